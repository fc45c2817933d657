"""What a broker tells of delayed messages, and which questions it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.log import IndexUnavailable
from semel.broker.server import delay_calls
from semel.broker.server.delay_calls import DelayCalls
from semel.protos.batch import BROKER_HEADER_BYTES, decode_header
from semel.protos.errors import CorruptBatch, InvalidRequest, UnknownQueue, from_detail
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY, START_US, Group, header
from tests.unit.broker.server.lone_master import Master
from tests.unit.broker.state.delaying import OTHER, SECOND_US, delaying_group, late


class DelayMaster(Master):
    """A master with the log of a group."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.state)
        self.config = SimpleNamespace(group_id=1)
        self.log = SimpleNamespace(read_record=self._read)
        self.reads: list[tuple[int, int, int]] = []
        self.cleaned = False
        self._group = group

    def log_time_us(self) -> int:
        return self._group.now_us

    def _read(self, index: int, position: int, length: int) -> bytes:
        if self.cleaned:
            raise IndexUnavailable(index, index + 1, index + 1)
        self.reads.append((index, position, length))
        return self._group.payload(index, position)

    pools = SimpleNamespace(clients=None)

    async def in_reader(self, work: Callable[[], Any], pool: Any) -> Any:
        return work()


@pytest.fixture
def group() -> Group:
    """Five batches are delayed, numbers 0 to 4, each of two messages; another queue has one."""
    made = delaying_group()
    for at, seconds in enumerate([9, 3, 9, 1, 3]):
        made.produce(late(2 * at - 1, seconds, last=2 * at + 1, crc=at))
    made.produce(header(9, crc=99))
    made.produce(late(-1, 2, crc=7, key=OTHER))
    return made


async def ask(replica: Any, **fields: Any) -> broker_pb2.ListDelayedReply:
    request: dict[str, Any] = {"queue": queue_ref(KEY), "messages_max": 100}
    return await DelayCalls(replica).ListDelayed(
        broker_pb2.ListDelayedRequest(**(request | fields)), None
    )


def crcs(reply: broker_pb2.ListDelayedReply) -> list[int]:
    return [decode_header(each.stored, BROKER_HEADER_BYTES).content_crc for each in reply.batches]


async def test_a_page_has_the_stored_batches_by_due_time(group: Group) -> None:
    reply = await ask(DelayMaster(group))
    assert (crcs(reply), reply.more) == ([3, 1, 4, 0, 2], False)
    assert [(each.place.due_us, each.place.ordinal) for each in reply.batches] == [
        (START_US + seconds * SECOND_US, number)
        for seconds, number in [(1, 3), (3, 1), (3, 4), (9, 0), (9, 2)]
    ]
    other = await ask(DelayMaster(group), queue=queue_ref(OTHER))
    assert (crcs(other), other.more) == ([7], False)


async def test_pages_follow_each_other_while_batches_are_released(group: Group) -> None:
    replica = DelayMaster(group)
    first = await ask(replica, messages_max=3)
    assert (crcs(first), first.more) == ([3, 1], True)
    assert len(replica.reads) == 2, "nothing beyond the page is read"
    group.now_us += 2 * SECOND_US
    assert group.release() is not None
    rest = await ask(replica, after=first.batches[-1].place)
    assert (crcs(rest), rest.more) == ([4, 0, 2], False)
    assert crcs(await ask(replica)) == [1, 4, 0, 2], "what is released is listed no more"
    group.now_us += 60 * SECOND_US
    group.release()
    nothing = await ask(replica, after=first.batches[-1].place)
    assert (crcs(nothing), nothing.more) == ([], False)


async def test_a_page_ends_before_the_given_time(group: Group) -> None:
    reply = await ask(DelayMaster(group), before_us=START_US + 3 * SECOND_US)
    assert (crcs(reply), reply.more) == ([3], False)
    reply = await ask(DelayMaster(group), before_us=START_US + 3 * SECOND_US + 1, messages_max=1)
    assert (crcs(reply), reply.more) == ([3], True)


async def test_a_page_is_bounded_in_bytes(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_calls, "PAGE_BYTES", 1)
    reply = await ask(DelayMaster(group))
    assert (crcs(reply), reply.more) == ([3], True)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages_max": 0}, "1 to 10000 messages, not 0"),
        ({"messages_max": -1}, "1 to 10000 messages, not -1"),
        ({"messages_max": 10_001}, "not 10001"),
        ({"before_us": -1}, "-1 is no time"),
        ({"after": broker_pb2.DelayedPlace(due_us=-5, ordinal=1)}, "until -5"),
        ({"after": broker_pb2.DelayedPlace()}, "delayed until 0"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    group: Group, fields: dict[str, Any], text: str
) -> None:
    replica = DelayMaster(group)
    with pytest.raises(InvalidRequest, match=text):
        await ask(replica, **fields)
    assert replica.reads == []


async def test_a_queue_that_is_not_here_is_refused(group: Group) -> None:
    with pytest.raises(UnknownQueue):
        await ask(DelayMaster(group), queue=queue_ref(QueueKey(TopicId(7), QueueId(99))))


async def test_a_batch_that_cannot_be_read_is_an_error(group: Group) -> None:
    replica = DelayMaster(group)
    replica.cleaned = True
    with pytest.raises(CorruptBatch, match="is not readable on this node"):
        await ask(replica)


# --- counts


async def count(
    replica: Any, *within_us: int, queues: tuple[QueueKey, ...] = (KEY,)
) -> broker_pb2.CountDelayedReply:
    refs = [queue_ref(key) for key in queues]
    request = broker_pb2.CountDelayedRequest(queues=refs, within_us=within_us)
    return await DelayCalls(replica).CountDelayed(request, None)


def figures(queue: broker_pb2.QueueDelays) -> list[tuple[int, int]]:
    return [(each.batches, each.messages) for each in queue.counts]


async def test_counts_are_by_the_time_that_is_left_by_log_time(group: Group) -> None:
    replica = DelayMaster(group)
    s = SECOND_US
    reply = await count(replica, 0, s, 3 * s, 4 * s, queues=(KEY, OTHER))
    key, other = reply.queues
    assert figures(key) == [(0, 0), (1, 2), (2, 4), (0, 0), (2, 4)]
    assert figures(other) == [(0, 0), (0, 0), (1, 1), (0, 0), (0, 0)]
    assert (key.first_due_us, key.last_due_us) == (START_US + s, START_US + 9 * s)
    assert sum(each.bytes for each in key.counts) == group.state.delays.queues[KEY].bytes
    group.now_us += 3 * s
    (key,) = (await count(replica, 0, s)).queues
    assert figures(key) == [(3, 6), (0, 0), (2, 4)], "what is not released is overdue"
    assert group.release() is not None
    (key,) = (await count(replica, 0, s)).queues
    assert figures(key) == [(0, 0), (0, 0), (2, 4)]
    assert key.first_due_us == START_US + 9 * s
    assert replica.reads == []


async def test_a_queue_without_delayed_messages_counts_zero(group: Group) -> None:
    group.now_us += 60 * SECOND_US
    group.release()
    (key,) = (await count(DelayMaster(group))).queues
    assert (figures(key), key.first_due_us, key.last_due_us) == ([(0, 0)], 0, 0)


async def test_a_queue_that_is_not_here_is_named_beside_the_others(group: Group) -> None:
    key = QueueKey(TopicId(7), QueueId(99))
    gone, here = (await count(DelayMaster(group), queues=(key, KEY))).queues
    assert isinstance(from_detail(gone.error), UnknownQueue)
    assert figures(here) == [(5, 10)]


@pytest.mark.parametrize(
    "within_us", [[-1], [0, 0], [5, 3], [0, (1 << 60) + 1], [(1 << 63) - 1], list(range(65))]
)
async def test_bounds_that_make_no_sense_are_refused(group: Group, within_us: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="up to 64 bounds from 0 that rise"):
        await count(DelayMaster(group), *within_us)


async def test_others_have_their_turn_while_many_are_counted(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue may change in every pause; what is added then is not counted."""
    monkeypatch.setattr(delay_calls, "COUNTED_BLOCKS", 1)
    delays, turns = group.state.delays, 0
    for number in range(15_000):
        delays.add(KEY, START_US + (30 + number) * SECOND_US, 1, 48, 100, 1)
    counting = asyncio.ensure_future(count(DelayMaster(group)))
    while await asyncio.sleep(0, not counting.done()):
        turns += 1
        delays.add(KEY, START_US + 100_000 * SECOND_US, 1, 48, 100, 1)
        assert turns < 1_000, "it goes on for as long as batches come"
    (key,) = counting.result().queues
    assert figures(key) == [(15_005, 15_010)]
    assert key.last_due_us == START_US + 15_029 * SECOND_US
    assert turns > 5
