"""What readers of a client share: one stream to a node, and none of what goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from semel.client.config import ClientConfig
from semel.client.transport.connection import Purpose
from semel.client.transport.fetch_streams import OLD_SEATS_MAX, FetchStreams, Seat
from semel.client.transport.shared_memory import BUSY_BYTES
from semel.protos.errors import Closed, NotMaster, SemelError, TimedOut, Unavailable
from semel.protos.levels import LEVEL_MAX
from semel.protos.streams import encode_fetch_reply
from semel.protos.v1 import broker_pb2
from semel.protos.v1.common_pb2 import Levels

NODE = "broker:1"


class FakeStream:
    """A stream to a broker that is played by hand."""

    def __init__(self, level_max: int = LEVEL_MAX) -> None:
        self.levels = Levels(max=level_max)
        self.level = level_max
        self.requests: list[broker_pb2.FetchRequest] = []
        self.closed = False
        self.room = asyncio.Event()
        self.room.set()
        self._answers: asyncio.Queue[bytes | SemelError] = asyncio.Queue()

    async def read(self) -> bytes:
        answer = await self._answers.get()
        if isinstance(answer, SemelError):
            raise answer
        return answer

    async def write(self, message: bytes) -> None:
        await self.room.wait()
        self._take(message)

    def write_now(self, message: bytes) -> bool:
        if self.room.is_set():
            self._take(message)
        return self.room.is_set()

    def _take(self, message: bytes) -> None:
        self.requests.append(broker_pb2.FetchRequest.FromString(message))

    def close(self) -> None:
        self.closed = True

    def answer(self, number: int, *parts: bytes, more: bool = False) -> None:
        header = broker_pb2.FetchReplyHeader(correlation_id=number, more=more)
        if parts:
            result = header.results.add()
            for part in parts:
                result.batches.add(length=len(part))
        self._answers.put_nowait(encode_fetch_reply(header, parts))

    def end(self, error: SemelError) -> None:
        self._answers.put_nowait(error)


class FakeClient:
    """A client without a cluster."""

    def __init__(self) -> None:
        self.config = ClientConfig()
        self.streams: Any = self
        self.opened: list[FakeStream] = []
        self.level_max = LEVEL_MAX
        self.refusal: SemelError | None = None
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.tasks: list[asyncio.Task[Any]] = []
        self.fetches = FetchStreams(self)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(coroutine, name=name))
        return self.tasks[-1]

    async def open(self, address: str, purpose: Purpose) -> FakeStream:
        assert purpose is Purpose.FETCH
        stream = FakeStream(self.level_max)
        self.opened.append(stream)
        await self.may_open.wait()
        if self.refusal is not None:
            raise self.refusal
        return stream

    async def join(self, link: FakeLink, address: str = NODE) -> Seat:
        link.seat = await self.fetches.join(address, link, answer_bytes=1 << 20, held_bytes=4 << 20)
        return link.seat

    async def joined(self, count: int) -> list[FakeLink]:
        links = [FakeLink() for _ in range(count)]
        await asyncio.gather(*(self.join(link) for link in links))
        return links

    @property
    def stream(self) -> FakeStream:
        """The only one that is open."""
        (stream,) = (stream for stream in self.opened if not stream.closed)
        return stream


class FakeLink:
    """A reader's link that notes what it is told."""

    def __init__(self) -> None:
        self.seat: Seat = None  # type: ignore[assignment]
        self.answers: list[tuple[int, bytes]] = []
        self.woken = 0
        self.bug: Exception | None = None

    def on_reply(self, header: broker_pb2.FetchReplyHeader, parts: Sequence[memoryview]) -> None:
        if self.bug is not None:
            raise self.bug
        self.answers.append((header.correlation_id, b"".join(bytes(part) for part in parts)))

    def wake(self) -> None:
        self.woken += 1

    def ask(self) -> int:
        request = broker_pb2.FetchRequest(correlation_id=self.seat.new_number())
        slot = self.seat.exchange.name_place(request, time.monotonic())
        self.seat.ask(request, slot)
        return request.correlation_id


@pytest.fixture
async def client() -> AsyncIterator[FakeClient]:
    made = FakeClient()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_fifty_readers_share_a_stream_and_each_gets_its_own_answers(
    client: FakeClient,
) -> None:
    links = await client.joined(50)
    numbers = [link.ask() for link in links]
    assert len(set(numbers)) == 50
    for number in reversed(numbers):
        client.stream.answer(number, b"%d" % number)
    await settle()
    assert [link.answers for link in links] == [[(number, b"%d" % number)] for number in numbers]
    assert len(client.opened) == 1


async def test_each_node_has_a_stream_of_its_own(client: FakeClient) -> None:
    for address in ("a:1", "b:1", "a:1"):
        await client.join(FakeLink(), address)
    assert len(client.opened) == 2


async def test_a_poll_that_stands_is_answered_again_and_again(client: FakeClient) -> None:
    (link,) = await client.joined(1)
    number = link.ask()
    for value in (b"a", b"b"):
        client.stream.answer(number, value, more=True)
    client.stream.answer(number, b"c")
    client.stream.answer(number, b"nobody asked for it")
    client.stream.answer(number + 1, b"nor for this")
    await settle()
    assert link.answers == [(number, b"a"), (number, b"b"), (number, b"c")]
    assert link.seat.failure is None


async def test_a_reader_that_leaves_disturbs_nobody(client: FakeClient) -> None:
    gone, stays = await client.joined(2)
    void, number = gone.ask(), stays.ask()
    gone.seat.leave()
    gone.seat.leave()
    client.stream.answer(void, b"void")
    client.stream.answer(number, b"here")
    await settle()
    assert gone.answers == []
    assert stays.answers == [(number, b"here")]
    stays.seat.leave()
    await settle()
    assert client.opened[0].closed
    (again,) = await client.joined(1)
    assert len(client.opened) == 2
    assert again.seat.failure is None


async def test_a_place_stays_taken_until_the_answer_although_the_reader_is_gone(
    client: FakeClient,
) -> None:
    """The broker may write there until then."""
    gone, stays = await client.joined(2)
    gone.seat.exchange.on_answer(*_large(), None, time.monotonic())
    number = gone.ask()
    region = stays.seat.exchange._memory.region
    assert region is not None
    free = region.free
    gone.seat.leave()
    assert region.free == free
    client.stream.answer(number)
    await settle()
    assert region.free == free + 1


def _large() -> tuple[broker_pb2.FetchReplyHeader, memoryview]:
    header = broker_pb2.FetchReplyHeader()
    header.results.add().batches.add(length=BUSY_BYTES)
    return header, memoryview(bytes(BUSY_BYTES))


@pytest.mark.parametrize("error", [NotMaster("no"), RuntimeError("a bug")])
async def test_an_answer_that_fails_ends_the_seat_of_its_reader_alone(
    client: FakeClient, error: Exception
) -> None:
    bad, good = await client.joined(2)
    bad.bug = error
    for number in (bad.ask(), bad.ask(), good.ask()):
        client.stream.answer(number, b"x")
    await settle()
    assert bad.seat.failure is error
    assert bad.woken == 1
    assert good.answers == [(3, b"x")]
    assert good.seat.failure is None


async def test_the_end_of_the_stream_is_told_to_all_and_the_next_one_is_another(
    client: FakeClient,
) -> None:
    links = await client.joined(3)
    client.stream.end(Unavailable("gone"))
    await settle()
    for link in links:
        assert isinstance(link.seat.failure, Unavailable)
        assert link.woken == 1
    assert client.opened[0].closed
    await client.join(links[0])
    assert client.stream is client.opened[1]
    for link in links[1:]:
        link.seat.leave()
    await settle()
    assert not client.stream.closed, "old seats have nothing to do with it"


async def test_a_stream_that_cannot_be_opened_is_told_to_all_who_wait(client: FakeClient) -> None:
    client.refusal = Unavailable("down")
    client.may_open.clear()
    joining = [asyncio.create_task(client.join(FakeLink())) for _ in range(3)]
    await settle()
    joining.pop().cancel()
    client.may_open.set()
    found = await asyncio.gather(*joining, return_exceptions=True)
    assert found == [client.refusal] * 2
    assert len(client.opened) == 1
    client.refusal = None
    await client.joined(1)


async def test_whoever_gives_up_does_not_end_the_opening_for_others(client: FakeClient) -> None:
    client.may_open.clear()
    link = FakeLink()
    impatient = asyncio.create_task(client.join(FakeLink()))
    await settle()
    patient = asyncio.create_task(client.join(link))
    await settle()
    impatient.cancel()
    await settle()
    client.may_open.set()
    assert (await patient).failure is None
    link.ask()
    assert len(client.stream.requests) == 1


async def test_an_old_broker_gets_no_more_readers_a_stream_than_it_serves(
    client: FakeClient,
) -> None:
    client.level_max = 8
    links = await client.joined(2 * OLD_SEATS_MAX + 1)
    assert sum(not stream.closed for stream in client.opened) == 3
    for link in links:
        link.ask()
    asked = sorted(len(stream.requests) for stream in client.opened if not stream.closed)
    assert asked == [1, OLD_SEATS_MAX, OLD_SEATS_MAX]
    links[0].seat.leave()
    await client.join(FakeLink())
    assert sum(not stream.closed for stream in client.opened) == 3


async def test_polls_leave_in_the_order_in_which_they_were_made(client: FakeClient) -> None:
    """A poll that named a place before another one offered new memory must not come after it."""
    links = await client.joined(3)
    client.stream.room.clear()
    numbers = [link.ask() for link in links]
    links[1].seat.leave()
    await settle()
    assert client.stream.requests == []
    client.stream.room.set()
    numbers.append(links[0].ask())
    await settle()
    numbers.append(links[2].ask())
    assert [request.correlation_id for request in client.stream.requests] == numbers


class Clock:
    """Time that passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._turn = asyncio.sleep
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await self._turn(0)

    async def wait(self, seconds: float, step: float = 0.25) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step
            for _ in range(5):
                await self._turn(0)


@pytest.mark.parametrize("others", [False, True])
async def test_a_broker_that_hangs_is_given_up(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """Soon if it says nothing at all; an answer that stands behind others has more time."""
    clock = Clock(monkeypatch)
    waits, asks = await client.joined(2)
    began = clock.now
    waits.ask()
    while waits.seat.failure is None:
        if others:
            client.stream.answer(asks.ask(), b"x")
        await clock.wait(0.5)
    assert isinstance(waits.seat.failure, TimedOut)
    assert isinstance(asks.seat.failure, TimedOut)
    assert clock.now - began == pytest.approx(12.5 if others else 2.5, abs=0.6)


async def test_answers_that_go_on_keep_the_stream(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    (link,) = await client.joined(1)
    number = link.ask()
    for _ in range(40):
        await clock.wait(0.5)
        client.stream.answer(number, b"x", more=True)
    await clock.wait(1.0)
    assert link.seat.failure is None


async def test_a_process_that_was_suspended_reads_its_answers_first(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    (link,) = await client.joined(1)
    link.ask()
    await clock.wait(60.0, step=60.0)
    assert link.seat.failure is None
    await clock.wait(2.0)
    assert isinstance(link.seat.failure, TimedOut)


async def test_the_end_of_the_client_ends_its_streams(client: FakeClient) -> None:
    (link,) = await client.joined(1)
    for task in client.tasks:
        task.cancel()
    await asyncio.gather(*client.tasks, return_exceptions=True)
    assert client.opened[0].closed
    assert isinstance(link.seat.failure, Unavailable | Closed)
