"""Which polls stand, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import time

import pytest

from semel.client.reading.fetch import STANDING_BYTES, _FetchLink
from semel.client.transport.shared_memory import BUSY_BYTES, Exchange, Slot, StreamMemory
from semel.protos.batch import BrokerHeader
from semel.protos.ids import GroupId, Offset, Term
from semel.protos.streams import decode_fetch_header, encode_fetch_reply
from semel.protos.v1 import broker_pb2
from tests.unit.client.reading.feeds import KEY, Box, Nowhere, stored

FETCH_BYTES = 1 << 20


def appended(at_us: int) -> memoryview:
    """The beginning of a batch that was stored then."""
    return memoryview(
        BrokerHeader(base_offset=Offset(0), append_time_us=at_us, term=Term(1)).encode()
    )


class FakeSeat:
    """Requests that were sent, and their slots."""

    def __init__(self) -> None:
        self.requests: list[broker_pb2.FetchRequest] = []
        self.slots: dict[int, Slot | None] = {}
        self.exchange = Exchange(StreamMemory(allowed=True), FETCH_BYTES, 16 * FETCH_BYTES)
        self.failure = None

    def new_number(self) -> int:
        return len(self.requests) + 1

    def ask(self, request: broker_pb2.FetchRequest, slot: Slot | None) -> None:
        self.requests.append(request)
        self.slots[request.correlation_id] = slot


class Linked(Box):
    """A feed with one link, to a broker that is played by hand."""

    def __init__(self, prefetch_bytes: int = 16 * FETCH_BYTES) -> None:
        super().__init__(prefetch_bytes)
        self.feed.cluster = Nowhere()  # type: ignore[assignment]
        self.link = _FetchLink(self.feed, GroupId(1))
        self.seat = FakeSeat()

    async def asked(self) -> broker_pb2.FetchRequest | None:
        """What the link asks now; None if it does not."""
        requests = self.seat.requests
        before = len(requests)
        task = asyncio.create_task(self.link._ask(self.seat))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(requests) - before <= 1
        return requests[-1] if len(requests) > before else None

    async def must_ask(self) -> broker_pb2.FetchRequest:
        request = await self.asked()
        assert request is not None
        return request

    def answer(
        self, number: int, *values: bytes, at: int = 0, end: int | None = None, more: bool = False
    ) -> None:
        """One batch at an offset, of a queue that ends behind it or at `end`."""
        header = broker_pb2.FetchReplyHeader(correlation_id=number, more=more)
        parts = []
        if values:
            part = stored(list(values), at)
            behind = at + len(values)
            result = header.results.add(high_watermark=behind if end is None else end)
            result.queue.topic_id, result.queue.queue_id = KEY
            result.batches.add(length=len(part), base_offset=at, row_start=0, row_end=len(values))
            parts.append(part)
        self.reply(header, parts)

    def answer_at_the_end(self, number: int, *, at: int) -> None:
        """The queue was split, and holds nothing from the offset on."""
        header = broker_pb2.FetchReplyHeader(correlation_id=number)
        result = header.results.add(high_watermark=at, sealed=True)
        result.queue.topic_id, result.queue.queue_id = KEY
        self.reply(header, [])

    def reply(self, header: broker_pb2.FetchReplyHeader, parts: list[memoryview]) -> None:
        slot = self.seat.slots[header.correlation_id]
        header, rest = decode_fetch_header(encode_fetch_reply(header, parts))
        exchange = self.seat.exchange
        self.link.on_reply(header, exchange.on_answer(header, rest, slot, time.monotonic()))

    def taken(self) -> list[bytes]:
        return [message.value for message in self.puller.messages(100)]


async def test_one_poll_brings_what_comes_bit_by_bit() -> None:
    box = Linked()
    request = await box.must_ask()
    assert request.standing_bytes == STANDING_BYTES
    for offset in range(3):
        box.answer(request.correlation_id, b"%d" % offset, at=offset, more=True)
        assert box.taken() == [b"%d" % offset]
        assert await box.asked() is None
    box.answer(request.correlation_id)
    again = await box.must_ask()
    assert again.correlation_id != request.correlation_id
    assert again.queues[0].offset == 3


@pytest.mark.parametrize("delay_ms", [0, 300])
@pytest.mark.parametrize("offset", [0, 7])
async def test_a_queue_that_was_split_is_read_to_its_end(delay_ms: int, offset: int) -> None:
    """With a delay its next batch is peeked at first, and there is none."""
    box = Linked()
    box.queue.delay_ms = delay_ms
    box.queue.begin_at(offset)
    request = await box.must_ask()
    assert request.queues[0].max_bytes == (1 if delay_ms else FETCH_BYTES)
    box.answer_at_the_end(request.correlation_id, at=offset)
    assert box.ended == [KEY]
    assert await box.asked() is None, "nothing more will come"


async def test_a_queue_with_a_delay_that_was_split_gives_out_what_it_holds_first() -> None:
    box = Linked()
    box.queue.delay_ms = 1
    box.queue.token = 5
    request = await box.must_ask()
    assert (request.queues[0].token, request.queues[0].max_bytes) == (0, 1), "a peek"
    box.answer(request.correlation_id, b"a", end=1)
    assert box.ended == []
    assert box.queue.due is not None
    box.queue.due = 0.0
    request = await box.must_ask()
    assert request.queues[0].token == 5
    box.answer(request.correlation_id, b"a", end=1)
    assert box.taken() == [b"a"]
    request = await box.must_ask()
    assert request.queues[0].token == 0, "another peek"
    box.answer_at_the_end(request.correlation_id, at=1)
    assert box.ended == [KEY]
    assert await box.asked() is None


async def test_a_broker_that_answers_once_is_asked_again() -> None:
    """As one does that does not know what standing is."""
    box = Linked()
    for offset in range(3):
        request = await box.must_ask()
        assert request.queues[0].offset == offset
        box.answer(request.correlation_id, b"x", at=offset)
    assert box.taken() == [b"x"] * 3


async def test_what_comes_after_a_seek_is_void_and_another_poll_is_made() -> None:
    box = Linked()
    request = await box.must_ask()
    box.answer(request.correlation_id, b"a", at=0, more=True)
    box.queue.go_to(50)
    other = await box.must_ask()
    assert other.queues[0].offset == 50
    box.answer(request.correlation_id, b"b", at=1, more=True)
    box.answer(other.correlation_id, b"z", at=50, more=True)
    box.answer(request.correlation_id, b"c", at=2)
    assert box.taken() == [b"z"]
    assert await box.asked() is None, "the first poll's end is not the second one's"


@pytest.mark.parametrize("behind_us", [0, 1_000_000, 3_600_000_000])
async def test_a_clock_that_is_behind_makes_a_backlog_late_once(
    monkeypatch: pytest.MonkeyPatch, behind_us: int
) -> None:
    """Batches of the backlog that were stored soon after its first one are due soon after it."""
    box = Linked()
    queue, delay_ms = box.queue, 300
    queue.delay_ms = delay_ms
    first_us, now_us = 1_700_000_000_000_000, 5_000_000  # just appended, by the monotonic clock
    monkeypatch.setattr(time, "monotonic", lambda: now_us / 1e6)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_us * 1000)
    started_us = now_us
    monkeypatch.setattr(
        time, "time_ns", lambda: (first_us - behind_us + now_us - started_us) * 1000
    )
    dues = []
    for number in range(5):
        box.link._wait_until_due(queue, appended(first_us + 5_000 * number))
        assert queue.due is not None
        dues.append(queue.due - started_us / 1e6)
        now_us = max(now_us, round(queue.due * 1e6))
    assert dues == pytest.approx([0.3 + 0.005 * number for number in range(5)])


@pytest.mark.parametrize(
    "why", ["it is behind", "it has an end", "it has a delay", "any replica", "large answers"]
)
async def test_other_polls_do_not_stand(why: str) -> None:
    box = Linked()
    if why == "it is behind":
        box.queue.high_watermark = 1
    elif why == "it has an end":
        box.queue.end = 10
    elif why == "it has a delay":
        box.queue.delay_ms = 5
    elif why == "any replica":
        box.link._any = True
    else:
        request = await box.must_ask()
        box.answer(request.correlation_id, bytes(BUSY_BYTES), at=0)
    assert (await box.must_ask()).standing_bytes == 0


@pytest.mark.parametrize("room", [1, 300, 10 * STANDING_BYTES])
async def test_it_stands_for_no_more_than_there_is_room_for(room: int) -> None:
    size = len(stored([b"a"], 0))
    box = Linked(prefetch_bytes=size + room)
    request = await box.must_ask()
    box.answer(request.correlation_id, b"a", at=0)
    assert (await box.must_ask()).standing_bytes == min(room, STANDING_BYTES)


def test_standing_bytes_are_less_than_what_memory_is_for() -> None:
    """An answer that is large enough for memory is its poll's last: the next one may name a
    place."""
    assert STANDING_BYTES < BUSY_BYTES
