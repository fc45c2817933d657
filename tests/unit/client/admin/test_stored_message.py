"""One stored message: where it can be, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin import stored_message
from semel.client.admin.stored_message import show_message
from semel.client.core.routing import QueueRoute
from semel.client.reading.feed_queue import Delivery, FeedQueue
from semel.protos.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    SemelError,
    TimedOut,
    Unavailable,
    UnknownQueue,
)
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, controller_pb2
from tests.unit.client.reading.feeds import KEY, Nowhere, stored

QUEUE = KEY.queue_id


class OneQueue(Nowhere):
    """A cluster whose topic has one queue, number 2."""

    def __init__(self, start: int, end: int, append_time_us: int = 0) -> None:
        super().__init__()
        self.offsets = broker_pb2.QueueOffsets(
            log_start_offset=start, high_watermark=end, append_time_us=append_time_us
        )
        self.asked: list[int] = []
        self.failure: SemelError | None = None

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        queue = QueueRoute(key=KEY, group_id=GroupId(1), slot_start=0, slot_end=65_536)
        return SimpleNamespace(
            name=name,
            topic_id=KEY.topic_id,
            every=(queue,),
            find=lambda number: queue if number == QUEUE else None,
        )

    def by_home(self, queues: Any) -> Any:
        return {GroupId(1): [queue.key for queue in queues]}

    async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
        assert method == "ListOffsets"
        if request.HasField("offset"):
            self.asked.append(request.offset)
        self.offsets.queue.CopyFrom(request.queues[0])
        return broker_pb2.ListOffsetsReply(queues=[self.offsets])

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        assert method == "ListProducers"
        if self.failure is not None:
            raise self.failure
        reply = controller_pb2.ListProducersReply()
        for number in (4, 5, 6):
            reply.producers.add(name=f"loader-{number}", producer_id=number)
        return reply

    def spawn(self, coroutine: Any, name: str) -> Any:
        coroutine.close()
        return SimpleNamespace(cancel=lambda: None)


async def show(cluster: OneQueue, queue: Any = QUEUE, offset: Any = 0) -> Any:
    runtime: Any = SimpleNamespace(call_soon=lambda function: None)
    return await show_message(cluster, runtime, "orders", queue, offset)  # type: ignore[arg-type]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offset 41 is the second message of a batch that was stored, says its header, at time 1."""

    async def fetch(*_: Any) -> Delivery:
        batch = stored([b"tea", b"cakes", b"wine"], 40, keys=[None, b"k", None])
        queue = FeedQueue("orders", KEY, GroupId(1), 41)
        return Delivery(queue, 0, 0, batch, 41, 1, 2)

    monkeypatch.setattr(stored_message, "_fetch", fetch)


@pytest.mark.usefixtures("fetched")
async def test_a_message_is_shown_with_its_producer_and_its_times() -> None:
    cluster = OneQueue(0, 100, append_time_us=9_000_000)
    found = await show(cluster, offset=41)
    assert cluster.asked == [41]
    assert (found.topic, found.queue, found.offset) == ("orders", QUEUE, 41)
    assert (found.key, found.value, found.headers, found.message_id) == (b"k", b"cakes", (), None)
    assert (found.timestamp_us, found.append_time_us, found.deliver_at_us) == (777, 9_000_000, 0)
    assert (found.producer_id, found.producer) == (5, "loader-5")
    assert (found.epoch, found.session, found.sequence) == (1, 1, 141)
    assert found.as_dict()["value"] == b"cakes"


@pytest.mark.usefixtures("fetched")
async def test_of_an_older_broker_the_batch_tells_when_it_was_stored() -> None:
    assert (await show(OneQueue(0, 100), offset=41)).append_time_us == 1


@pytest.mark.usefixtures("fetched")
async def test_a_message_is_shown_without_a_name_while_no_controller_answers() -> None:
    cluster = OneQueue(0, 100)
    cluster.failure = Unavailable("all are down")
    assert (await show(cluster, offset=41)).producer is None


@pytest.mark.parametrize(
    ("start", "end", "offset", "text"),
    [
        (10, 20, 9, "no message at offset 9: it has 10 to 19; what is below was trimmed"),
        (10, 20, 20, "no message at offset 20: it has 10 to 19"),
        (0, 1, -1, "no message at offset -1: it has 0 to 0"),
        (0, 0, 0, "no message at offset 0: it is empty, and its next message gets offset 0"),
        (7, 7, 6, "it is empty, and its next message gets offset 7; what is below was trimmed"),
    ],
)
async def test_an_offset_that_is_not_stored_is_refused_with_those_that_are(
    start: int, end: int, offset: int, text: str
) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        await show(OneQueue(start, end), offset=offset)
    assert caught.value.message.endswith(text), caught.value.message
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (start, end)


async def test_a_queue_that_the_topic_lacks_is_refused() -> None:
    with pytest.raises(UnknownQueue, match="topic 'orders' has no queue 3"):
        await show(OneQueue(0, 1), queue=3)


@pytest.mark.parametrize(("queue", "offset"), [("2", 0), (True, 0), (2, 1.0), (2, 1 << 63)])
async def test_what_is_no_number_is_refused(queue: Any, offset: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a whole number"):
        await show(OneQueue(0, 1), queue, offset)


async def test_a_message_that_does_not_come_is_an_error() -> None:
    cluster = OneQueue(0, 100)
    cluster.config = replace(cluster.config, request_timeout_ms=1)
    with pytest.raises(TimedOut, match="offset 41 of queue 2 of topic 'orders' did not come"):
        await show(cluster, offset=41)
