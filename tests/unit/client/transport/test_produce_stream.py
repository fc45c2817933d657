"""What all producers of a client send on the stream to one broker group."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.client.core.batching import Part
from semel.client.core.sequences import Decision
from semel.client.producer.lanes import Lane, Link
from semel.client.transport.produce_stream import Wire
from semel.protos import compat
from semel.protos.errors import (
    SemelError,
    Throttled,
    UnknownGroup,
    UnsupportedVersion,
    to_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1 import broker_pb2


class Window:
    """Notes the answers it is given."""

    def __init__(self, producer_id: int = 7, epoch: int = 1, session: int = 1) -> None:
        self.producer_id, self.epoch, self.session = producer_id, epoch, session
        self.stored: list[int] = []
        self.refused: list[int] = []

    def on_stored(self, base: int, *_: Any) -> list[Decision]:
        self.stored.append(base)
        return []

    def on_refused(self, base: int, *_: Any) -> list[Decision]:
        self.refused.append(base)
        return []


class FakeLane:
    """One with so many batches to send."""

    def __init__(self, batches: int = 1 << 30, size: int = 1_000, **identity: int) -> None:
        self.key = QueueKey(1, 0)  # type: ignore[arg-type]
        self.window = Window(**identity)
        self.sent_as = None
        self.pending: list[Part] = []
        self.link: Any = None
        self.refusals: list[SemelError] = []
        self._batches = batches
        self._left = batches
        self._size = size

    def next_batch(self) -> Any:
        if not self._left:
            return None
        self._left -= 1
        return SimpleNamespace(payload=b"batch" + bytes(self._size))

    def on_answer(self, error: SemelError | None, decisions: list[Decision]) -> None:
        self.link.on_answer(self, error, decisions)

    def refuse(self, error: SemelError) -> None:
        self.refusals.append(error)

    def on_stream_lost(self) -> None:
        self._left = self._batches

    def close(self) -> None:
        pass


class Owner:
    """A producer."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(max_in_flight_bytes=8 << 20)
        self.performed: list[Any] = []
        self.rooms = 0
        self.room = asyncio.Event()

    def perform(self, lane: Any, decisions: list[Decision]) -> None:
        self.performed.append(lane)

    def on_room(self) -> None:
        self.rooms += 1
        self.room.set()


class Stream:
    """A stream to a broker, which answers what the test says."""

    level = LEVEL_MAX

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, message: bytes) -> None:
        if b"batch" in message:
            self.written.set()

    async def read(self) -> bytes:
        message: bytes = (await self.replies.get()).SerializeToString()
        return message

    def close(self) -> None:
        pass


class OneMaster:
    """A cluster with one broker group, whose master is known."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(ping_ms=60_000, silence_ms=600_000)
        self.streams = self
        self.calls: list[Stream] = []
        self.opened = asyncio.Event()
        self.refusal: SemelError | None = None
        """The error with which streams are refused."""
        self.unknown: SemelError | None = None
        """The error with which searches for a master end."""
        self._master = SimpleNamespace(address="b:1")
        self.routes = SimpleNamespace(master=lambda _: self._master)
        self.tasks: list[asyncio.Task[None]] = []

    async def master(self, _: GroupId) -> Any:
        if self.unknown is not None:
            raise self.unknown
        return self._master

    def on_master_error(self, *_: Any) -> None:
        pass

    async def open(self, *_: object) -> Stream:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(Stream())
        self.opened.set()
        return self.calls[-1]

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(coroutine, name=name))
        return self.tasks[-1]


class Box:
    """A wire with producers of one lane each."""

    def __init__(self) -> None:
        self.cluster = OneMaster()
        self.wire = Wire(cast(Any, self.cluster), GroupId(1))

    def producer(self, lane: FakeLane) -> tuple[Owner, Link]:
        owner = Owner()
        link = Link(cast(Any, owner), self.wire)
        lane.link = link
        link.add(cast(Lane, lane))
        return owner, link

    async def sending(self, lane: FakeLane) -> Link:
        """A producer whose first batch went out, on the first stream."""
        _, link = self.producer(lane)
        link.count(100)
        link.on_ready(cast(Lane, lane))
        await self.cluster.opened.wait()
        await self.cluster.calls[0].written.wait()
        return link

    def ack(self, lane: FakeLane, base: int, error: Any = None, **other: int) -> Any:
        window = lane.window
        ack = broker_pb2.ProduceAck(
            topic_id=1,
            queue_id=0,
            producer_id=window.producer_id,
            epoch=window.epoch,
            session=window.session,
            base_sequence=base,
            status=broker_pb2.PRODUCE_STATUS_COMMITTED,
        )
        if error is not None:
            ack.status = broker_pb2.PRODUCE_STATUS_FAILED
            ack.error.CopyFrom(to_detail(error))
        for name, value in other.items():
            setattr(ack, name, value)
        return ack

    def end(self) -> None:
        for task in self.cluster.tasks:
            task.cancel()


async def test_a_producer_sends_nothing_once_it_is_closed() -> None:
    """A producer that fails because of a hole must not store what comes behind the hole, though the
    writer may be due to run once more."""
    box = Box()
    lane, other = FakeLane(), FakeLane(batches=1, producer_id=8)
    _, link = box.producer(lane)
    box.producer(other)
    link.on_ready(cast(Lane, lane))
    assert box.wire._gather()
    link.close()
    link.on_ready(cast(Lane, lane))
    assert box.wire._gather() == []
    other.link.on_ready(cast(Lane, other))
    assert len(box.wire._gather()) == 1
    box.end()


class Failing(FakeLane):
    """Its first batch cannot be encoded, and its producer ends therefore."""

    def next_batch(self) -> Any:
        self.link.close()
        return None


async def test_a_producer_that_ends_while_its_batch_is_made_disturbs_nobody() -> None:
    box = Box()
    failing, other = Failing(), FakeLane(batches=1, producer_id=8)
    for lane in (failing, other):
        box.producer(lane)
        lane.link.on_ready(cast(Lane, lane))
    assert len(box.wire._gather()) == 1
    failing.link.on_ready(cast(Lane, failing))
    assert box.wire._gather() == []
    box.end()


async def test_producers_share_messages() -> None:
    box = Box()
    lanes = [FakeLane(batches=1, size=100, producer_id=at) for at in range(1, 101)]
    for lane in lanes:
        box.producer(lane)
        lane.link.on_ready(lane)
    assert len(box.wire._gather()) == 100
    assert box.wire._gather() == []
    box.end()


async def test_what_went_out_on_a_stream_that_ends_goes_out_on_the_next() -> None:
    """Though nothing new is sent."""
    box = Box()
    lane = FakeLane(batches=1)
    async with compat.timeout(60):
        await box.sending(lane)
        box.cluster.opened.clear()
        reply = broker_pb2.ProduceReply()
        reply.error.CopyFrom(to_detail(Throttled("go away", retry_after_ms=1)))
        box.cluster.calls[0].replies.put_nowait(reply)
        await box.cluster.opened.wait()
        await box.cluster.calls[1].written.wait()
    box.end()


async def test_an_answer_is_for_the_lane_that_has_sent_under_its_name() -> None:
    """Two incarnations of one producer in one process share a stream, and what an older session is
    told is nothing to the newer one."""
    box = Box()
    old, new = FakeLane(batches=1), FakeLane(batches=1, epoch=2)
    owners = [box.producer(lane)[0] for lane in (old, new)]
    for lane in (old, new):
        lane.link.on_ready(lane)
    box.wire._gather()
    reply = broker_pb2.ProduceReply(acks=[box.ack(old, 3), box.ack(new, 5), box.ack(new, 6)])
    reply.acks[2].session = 2
    box.wire._on_reply(reply)
    assert (old.window.stored, new.window.stored) == ([3], [5])
    assert [owner.performed for owner in owners] == [[old], [new]]
    # A fence of its own gives it a new session; what the old one sent is void.
    new.window.session, new._left = 2, 1
    before = box.ack(new, 7, session=1)
    new.link.on_ready(new)
    box.wire._gather()
    box.wire._on_reply(broker_pb2.ProduceReply(acks=[before, box.ack(new, 8)]))
    assert new.window.stored == [5, 8]
    box.end()


async def test_a_refusal_is_told_to_one_producer_alone() -> None:
    box = Box()
    first, second = FakeLane(batches=1), FakeLane(batches=1, producer_id=8)
    for lane in (first, second):
        box.producer(lane)
        lane.link.on_ready(lane)
    box.wire._gather()
    refusal = Throttled("too much", retry_after_ms=9)
    box.wire._on_reply(broker_pb2.ProduceReply(acks=[box.ack(first, 1, refusal)]))
    assert first.window.refused == [1]
    assert isinstance(first.link.last_error, Throttled)
    assert second.link.last_error is None
    box.wire._on_reply(broker_pb2.ProduceReply(acks=[box.ack(first, 1)]))
    assert first.link.last_error is None
    box.end()


async def test_an_answer_without_a_session_is_for_nobody() -> None:
    """Nobody can be certain whose batch it answers."""
    box = Box()
    lane = FakeLane(batches=1)
    async with compat.timeout(60):
        await box.sending(lane)
        box.wire._on_reply(broker_pb2.ProduceReply(acks=[box.ack(lane, 0, session=0)]))
    assert lane.window.stored == []
    box.end()


async def test_what_waits_for_a_broker_of_another_version_fails_at_once() -> None:
    """Waiting helps nobody: its program has to be upgraded. Who comes later hears the same."""
    box = Box()
    box.cluster.refusal = UnsupportedVersion("upgrade the brokers before the clients")
    lane = FakeLane(batches=1)
    lane.pending.append(cast(Part, "what comes"))
    _, link = box.producer(lane)
    link.on_ready(cast(Lane, lane))
    async with compat.timeout(60):
        while len(lane.refusals) < 2:
            await asyncio.sleep(0.001)
    assert lane.refusals[0] is box.cluster.refusal
    assert link.last_error is box.cluster.refusal
    assert link.available, "or what comes next would wait in the intake for its delivery timeout"
    box.end()


@pytest.mark.parametrize("error", [UnknownGroup("gone"), UnsupportedVersion("newer")])
async def test_a_search_that_cannot_succeed_ends_when_nobody_needs_it(error: SemelError) -> None:
    box = Box()
    box.cluster.unknown = error
    lane = FakeLane()
    lane.pending.append(cast(Any, None))
    owner, link = box.producer(lane)
    link.on_ready(cast(Lane, lane))
    while box.wire.last_error is None:
        await asyncio.sleep(0)
    lane.pending.clear()  # as when its messages are late
    owner.room.clear()
    async with compat.timeout(60):
        await owner.room.wait()
        while box.wire._work.is_set():
            await asyncio.sleep(0.01)
    assert not box.wire.searching
    box.end()


async def test_what_a_closed_producer_had_in_flight_does_not_count() -> None:
    box = Box()
    _, first = box.producer(FakeLane())
    _, second = box.producer(FakeLane(producer_id=8))
    first.count(100)
    second.count(10)
    assert box.wire.in_flight_bytes == 110
    first.close()
    first.count(-100)
    first.close()
    assert box.wire.in_flight_bytes == 10
    box.end()


async def test_a_broker_that_says_nothing_gets_longer_with_each_stream_until_it_answers() -> None:
    """With very many clients at once it gets to each of them late, and to none if each gives up."""
    box = Box()
    box.cluster.config = SimpleNamespace(ping_ms=10, silence_ms=20)
    lane = FakeLane(batches=1)
    opened: list[float] = []
    async with compat.timeout(60):
        await box.sending(lane)
        while len(box.cluster.calls) < 4:
            opened.append(asyncio.get_running_loop().time())
            box.cluster.opened.clear()
            await box.cluster.opened.wait()
        opened.append(asyncio.get_running_loop().time())
        second, third = opened[2] - opened[1], opened[3] - opened[2]
        assert second >= 0.04
        assert third >= 0.08
        reply = broker_pb2.ProduceReply(acks=[box.ack(lane, 0)])
        box.cluster.calls[3].replies.put_nowait(reply)
        while not lane.window.stored:
            await asyncio.sleep(0)
        assert box.wire._patience == 1
    box.end()
