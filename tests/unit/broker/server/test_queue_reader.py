"""What a fetch gets of a queue: under which lock, from where, and how it is told of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.memory import BodyStore
from semel.broker.server.queue_reader import QueueReader
from semel.protos.batch import BatchFlags
from semel.protos.errors import LockLost, OffsetOutOfRange, UnsupportedVersion, from_detail
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import CONTEXT_LEVEL, LEVEL_MAX, NULL_LEVEL
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.state_log import KEY, Group, control, header


class Node:
    """20 messages in two batches; group g holds the queue under token 1."""

    def __init__(self) -> None:
        self.group = Group()
        self.group.fence()
        self.group.produce(header(-1, last=9))
        self.group.produce(header(9, last=19))
        self.acquire()
        self.state = self.group.state
        self.pools: Any = SimpleNamespace(clients=None)
        self.bodies = BodyStore(0)
        self.log: Any = SimpleNamespace(
            cached_record=lambda index, position, length: self.group.payload(index, position)
        )
        self.delivered: list[tuple[str, int, int]] = []

    def acquire(self) -> None:
        record = control_pb2.AcquireLock(
            group="g",
            queue=queue_ref(KEY),
            member_id="m",
            lock_ms=500,
            session_ms=100,
        )
        self.group.apply(control(acquire_lock=record))

    def on_delivered(self, group: str, queue_key: Any, token: int, end_offset: int) -> None:
        assert queue_key == KEY
        self.delivered.append((group, token, end_offset))


@pytest.fixture
def node() -> Node:
    return Node()


def wanted(offset: int, *, token: int = 0, group: str = "") -> broker_pb2.FetchQueue:
    return broker_pb2.FetchQueue(queue=queue_ref(KEY), offset=offset, token=token, group=group)


async def read(
    node: Node, fetch: broker_pb2.FetchQueue, level_max: int = LEVEL_MAX, *, room: int = 1 << 20
) -> Any:
    return await QueueReader(node).read(fetch, KEY, room, alone=True, level_max=level_max)


async def test_the_first_batch_is_given_from_the_row_that_was_asked_for(node: Node) -> None:
    found = await read(node, wanted(3))
    ranges = [(one.base_offset, one.row_start, one.row_end) for one in found.result.batches]
    assert ranges == [(3, 3, 10), (10, 0, 10)]
    assert found.next_offset == 20
    assert len(set(found.batches)) == 2
    assert (found.result.log_start_offset, found.result.high_watermark) == (0, 20)
    assert node.delivered == [], "under no lock"


async def test_a_crowd_gets_what_one_reader_gets_while_the_cache_has_it(node: Node) -> None:
    reader = QueueReader(node)
    for offset, room in ((0, 1 << 20), (3, 1 << 20), (3, 1), (10, 1)):
        found = reader.read_cached(wanted(offset), KEY, room)
        assert found == await read(node, wanted(offset), room=room)
    for offset in (-1, 20, 21):
        assert reader.read_cached(wanted(offset), KEY, 1) is None
    node.log.cached_record = lambda index, *_: None if index > 4 else b"first"
    assert reader.read_cached(wanted(0), KEY, 1) is not None
    assert reader.read_cached(wanted(0), KEY, 1 << 20) is None
    assert (reader.end_of(KEY), reader.end_of(QueueKey(TopicId(7), QueueId(9)))) == (20, -1)


async def test_what_is_given_under_a_lock_is_delivered_under_its_token(node: Node) -> None:
    assert (await read(node, wanted(0, token=1, group="g"))).next_offset == 20
    assert node.delivered == [("g", 1, 20)]
    node.acquire()
    found = await read(node, wanted(0, token=1, group="g"))
    error = from_detail(found.result.error)
    assert isinstance(error, LockLost)
    assert error.current_token == 2
    assert (found.batches, found.next_offset) == ([], 0)
    assert len(node.delivered) == 1, "the new owner's time goes by on its own deliveries"


async def test_a_lock_that_was_released_gives_nothing(node: Node) -> None:
    record = control_pb2.ReleaseLock(group="g", queue=queue_ref(KEY), token=1)
    node.group.apply(control(release_lock=record))
    found = await read(node, wanted(0, token=1, group="g"))
    assert isinstance(from_detail(found.result.error), LockLost)
    assert found.batches == []


async def test_who_waits_at_the_end_under_a_lost_lock_is_told_at_once(node: Node) -> None:
    reader = QueueReader(node)
    assert reader.nothing_for(wanted(20, token=1, group="g"), KEY)
    assert reader.nothing_for(wanted(20), KEY)
    assert not reader.nothing_for(wanted(19), KEY)
    node.acquire()
    assert not reader.nothing_for(wanted(20, token=1, group="g"), KEY)
    assert await read(node, wanted(20)) is None


@pytest.mark.parametrize(
    ("flag", "level"),
    [(BatchFlags.NULL_VALUES, NULL_LEVEL), (BatchFlags.CONTEXT, CONTEXT_LEVEL)],
)
async def test_an_older_client_gets_what_it_can_read_and_then_an_error(
    node: Node, flag: BatchFlags, level: int
) -> None:
    node.group.raise_level(level)
    head = header(19, last=21)
    node.group.produce(replace(head, flags=head.flags | flag))
    node.group.produce(header(21, last=22))
    old = level - 1
    found = await read(node, wanted(3), old)
    assert [one.base_offset for one in found.result.batches] == [3, 10]
    assert (len(found.batches), found.next_offset) == (2, 20)
    found = await read(node, wanted(21), old)
    error = from_detail(found.result.error)
    assert isinstance(error, UnsupportedVersion)
    assert error.level == level
    assert "from offset 21 of queue 0 has null values" in error.message
    assert (found.batches, found.next_offset) == ([], 21)
    assert (await read(node, wanted(22), old)).next_offset == 23
    assert (await read(node, wanted(3))).next_offset == 23


async def test_only_what_an_older_client_is_sent_counts_as_delivered(node: Node) -> None:
    """Else it would have a lock's time counted for messages that it never got."""
    node.group.raise_level(NULL_LEVEL)
    head = header(19, last=21)
    node.group.produce(replace(head, flags=head.flags | BatchFlags.NULL_VALUES))
    await read(node, wanted(3, token=1, group="g"), NULL_LEVEL - 1)
    assert node.delivered == [("g", 1, 20)]
    await read(node, wanted(20, token=1, group="g"), NULL_LEVEL - 1)
    assert node.delivered == [("g", 1, 20)], "it was told UnsupportedVersion"
    await read(node, wanted(20, token=1, group="g"))
    assert node.delivered[1:] == [("g", 1, 22)]


@pytest.mark.parametrize("offset", [4, 21])
async def test_offsets_that_do_not_exist_are_told_with_those_that_do(
    node: Node, offset: int
) -> None:
    trim = control_pb2.Trim(queue=queue_ref(KEY), log_start_offset=5)
    node.group.apply(control(trim=trim))
    error = from_detail((await read(node, wanted(offset))).result.error)
    assert isinstance(error, OffsetOutOfRange)
    assert (error.log_start_offset, error.log_end_offset) == (5, 20)
