"""What a mirror asks next and what it brings: against a source and a target in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection

import pytest

from semel.client.core.mirroring import (
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    QueueMirror,
    TopicMirror,
    promotion,
)
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import controller_pb2, mirrors_pb2
from semel.protos.v1.metadata_pb2 import MirroredQueue, MirroredTopic

KEY = QueueKey(TopicId(7), QueueId(0))
PIECE = 10


class Source:
    """A queue of one-byte batches; its slice is text, which names the end."""

    def __init__(self) -> None:
        self.start, self.end, self.now_us = 0, 0, 1_000_000
        self.version = 0
        self.kept: dict[bytes, bytes] = {}

    def slice(self) -> bytes:
        return b"ends at %d, version %d, and some more" % (self.end, self.version)

    def answer(self, asked: mirrors_pb2.ReadMirroredRequest) -> mirrors_pb2.ReadMirroredReply:
        self.now_us += 1_000
        reply = mirrors_pb2.ReadMirroredReply(source_time_us=self.now_us)
        if asked.slice_digest:
            data = self.kept.get(asked.slice_digest)
            if data is not None:
                reply.slice_digest, reply.slice_bytes = asked.slice_digest, len(data)
                reply.slice_offset = asked.slice_offset
                reply.slice_part = data[asked.slice_offset : asked.slice_offset + PIECE]
            return reply
        at = max(asked.offset, self.start)
        to = min(self.end, at + 3)
        reply.log_start_offset, reply.log_end_offset, reply.base_offset = self.start, self.end, at
        reply.batches.extend(b"%d" % offset for offset in range(at, to))
        if asked.slice_wanted and to == self.end:
            data = self.slice()
            reply.slice_digest = digest = hashlib.sha256(data).digest()
            if digest != asked.settled_digest:
                self.kept[digest] = data
                reply.slice_bytes, reply.slice_part = len(data), data[:PIECE]
        return reply


class Target:
    """The copy, which refuses whatever does not follow."""

    def __init__(self) -> None:
        self.base, self.copies, self.coming, self.settled = 0, list[bytes](), b"", b""

    def status(self) -> mirrors_pb2.MirroredQueueStatus:
        reply = mirrors_pb2.MirroredQueueStatus(
            log_start_offset=self.base, log_end_offset=self.base + len(self.copies)
        )
        if self.settled:
            reply.settled_digest = hashlib.sha256(self.settled).digest()
            reply.settled_end_offset = int(self.settled.split(b",")[0].split()[-1])
            reply.settled_us = 1
        return reply

    def take(self, read: mirrors_pb2.ReadMirroredReply) -> mirrors_pb2.MirroredQueueStatus:
        end = self.base + len(self.copies)
        if read.base_offset > end:
            assert read.log_start_offset > end
            self.base, self.copies = read.base_offset, []
        end = self.base + len(self.copies)
        for offset, stored in enumerate(read.batches, read.base_offset):
            if offset == end:
                self.copies.append(stored)
                end += 1
        if read.slice_bytes:
            if read.slice_offset == 0:
                self.coming = b""
            assert read.slice_offset == len(self.coming)
            self.coming += read.slice_part
            if len(self.coming) == read.slice_bytes:
                assert hashlib.sha256(self.coming).digest() == read.slice_digest
                self.settled, self.coming = self.coming, b""
                assert self.status().settled_end_offset <= end, "not all of it is here"
        return self.status()


def turn(queue: QueueMirror, source: Source, target: Target, now: float) -> None:
    if queue.status is None:
        queue.on_begun(target.status())
    read = source.answer(queue.next_read(now))
    bring = queue.on_read(now, read, may_settle=True)
    if bring is not None:
        queue.on_written(target.take(bring))


def caught_up(queue: QueueMirror, source: Source, target: Target, now: float) -> float:
    for _ in range(200):
        turn(queue, source, target, now)
        now = max(now + 0.01, queue.due)
        if target.settled == source.slice() and queue.lag == 0:
            return now
    raise AssertionError("it never catches up")


def test_it_catches_up_and_then_asks_seldom() -> None:
    source, target, queue = Source(), Target(), QueueMirror(KEY, "a", 1.0)
    source.end = 20
    now = caught_up(queue, source, target, 0.0)
    assert target.copies == [b"%d" % offset for offset in range(20)]
    begun = now
    for _ in range(20):
        turn(queue, source, target, now)
        assert queue.due > now
        now = queue.due
    assert now - begun > 10
    assert queue.lag_s(now) == pytest.approx(now - queue._told_at, abs=0.01)


@pytest.mark.parametrize("seed", range(50))
def test_any_failure_and_any_restart_is_gone_on_from(seed: int) -> None:
    rng = random.Random(seed)
    source, target = Source(), Target()
    queue, now = QueueMirror(KEY, "a", 0.5), 0.0
    for _ in range(100):
        now += rng.random() / 5
        match rng.randrange(9):
            case 0:
                source.end += rng.randrange(6)
            case 1:
                source.start = rng.randint(source.start, source.end)
            case 2:
                source.version += 1
            case 3:
                source.kept.clear()  # it has another master
            case 4:
                queue = QueueMirror(KEY, "a", 0.5)  # the program ended
            case 5:  # a call failed, whether it took effect or not
                if queue.status is None:
                    queue.on_begun(target.status())
                bring = queue.on_read(now, source.answer(queue.next_read(now)), may_settle=True)
                if bring is not None and rng.random() < 0.5:
                    target.take(bring)
                queue.on_failed(now, 0.1, "no answer")
            case _:
                turn(queue, source, target, now)
    caught_up(queue, source, target, now)
    found = [b"%d" % offset for offset in range(target.base, target.base + len(target.copies))]
    assert target.copies == found
    assert target.base + len(target.copies) == source.end


def test_a_failure_asks_for_less_and_success_for_more() -> None:
    source, target, queue = Source(), Target(), QueueMirror(KEY, "a", 1.0)
    for _ in range(9):
        queue.on_failed(0.0, 0.1, "too slow")
    assert queue.trouble == "too slow"
    queue.on_begun(target.status())
    assert queue.next_read(0.0).max_bytes == READ_BYTES_MIN
    for _ in range(9):
        turn(queue, source, target, 0.0)
    assert queue.next_read(0.0).max_bytes == READ_BYTES_MAX
    assert not queue.trouble


def test_a_slice_that_has_to_wait_is_asked_for_again() -> None:
    source, target, queue = Source(), Target(), QueueMirror(KEY, "a", 1.0)
    source.end = 2
    queue.on_begun(target.status())
    bring = queue.on_read(0.0, source.answer(queue.next_read(0.0)), may_settle=False)
    assert bring is not None
    assert len(bring.batches) == 2
    assert not bring.slice_bytes
    queue.on_written(target.take(bring))
    assert not queue.settled
    caught_up(queue, source, target, 2.0)
    assert queue.settled


# --- topics ---------------------------------------------------------------------------------------


def route(
    *queues: tuple[int, int, int, int | None], sealed: Collection[int] = ()
) -> controller_pb2.TopicRoute:
    made = controller_pb2.TopicRoute(name="orders", topic_id=7)
    for number, start, end, parent in queues:
        listed = made.sealed if number in sealed else made.queues
        listed.add(queue_id=number, group_id=1, slot_start=start, slot_end=end, parent_id=parent)
    return made


SPLIT = (
    (0, 0, 100, None),
    (1, 100, 200, None),
    (2, 0, 50, 0),
    (3, 50, 100, 0),
    (4, 100, 150, 1),
    (5, 150, 200, 1),
)


def test_the_slice_of_a_parent_waits_for_its_children_and_for_earlier_splits() -> None:
    whole = route(*SPLIT, sealed={0, 1})
    topic = TopicMirror(whole, "a", 1.0)
    assert [queue.queue_id for queue in topic.on_route(whole)] == [0, 1, 2, 3, 4, 5]
    assert topic.may_settle(())
    assert not topic.may_settle((4, 5)), "they have none"
    topic.queues[4].settled = topic.queues[5].settled = True
    assert not topic.may_settle((4, 5)), "the earlier split is not settled"
    topic.queues[2].settled = topic.queues[3].settled = True
    assert topic.may_settle((2, 3))
    topic.queues[0].child_ids = (2, 3)
    assert topic.may_settle((4, 5))
    assert not topic.may_settle((6, 7)), "nobody has told of them"


def test_a_child_that_was_split_before_its_parents_split_settled_goes_first() -> None:
    """The mirror was away meanwhile: the parent waits for it, so it must not wait in turn."""
    nested = (*SPLIT, (6, 0, 25, 2), (7, 25, 50, 2))
    whole = route(*nested, sealed={0, 1, 2})
    topic = TopicMirror(whole, "a", 1.0)
    topic.on_route(whole)
    for number in (3, 4, 5, 6, 7):
        topic.queues[number].settled = True
    assert not topic.may_settle((2, 3)), "queue 2 has no slice"
    assert not topic.may_settle((4, 5)), "the split of queue 0 comes first"
    assert topic.may_settle((6, 7)), "or none of the three would ever settle"
    topic.queues[2].settled, topic.queues[2].child_ids = True, (6, 7)
    assert topic.may_settle((2, 3))
    topic.queues[0].child_ids = (2, 3)
    assert topic.may_settle((4, 5))


def test_a_child_with_a_slice_waits_for_the_earlier_splits() -> None:
    nested = (*SPLIT, (6, 0, 25, 2), (7, 25, 50, 2))
    whole = route(*nested, sealed={0, 1, 2})
    topic = TopicMirror(whole, "a", 1.0)
    topic.on_route(whole)
    for queue in topic.queues:
        queue.settled = True  # queue 2 as it was before its split
    assert not topic.may_settle((6, 7)), "splits before it can settle by themselves"
    topic.queues[0].child_ids = (2, 3)
    assert not topic.may_settle((6, 7))
    topic.queues[1].child_ids = (4, 5)
    assert topic.may_settle((6, 7))


def test_queues_of_a_later_split_wait_for_the_numbers_below() -> None:
    later = route(*SPLIT[:2], *SPLIT[4:], sealed={1})
    topic = TopicMirror(later, "a", 1.0)
    assert [queue.queue_id for queue in topic.on_route(later)] == [0, 1]
    whole = route(*SPLIT, sealed={0, 1})
    assert [queue.queue_id for queue in topic.on_route(whole)] == [0, 1, 2, 3, 4, 5]
    assert [queue.parent for queue in topic.queues] == [None, None, 0, 0, 1, 1]


def mirrored() -> MirroredTopic:
    made = MirroredTopic()
    made.topic.name = "orders"
    for number, start, end, parent in SPLIT:
        made.queues.add(queue_id=number, slot_start=start, slot_end=end, parent_id=parent)
    return made


def status(number: int, *children: int, settled: bool = True) -> mirrors_pb2.MirroredQueueStatus:
    made = mirrors_pb2.MirroredQueueStatus(settled_child_ids=children, settled_end_offset=number)
    made.queue.queue_id = number
    if settled:
        made.settled_digest = bytes([number]) * 32
    return made


def test_a_promotion_sees_a_split_with_all_its_children_or_not_at_all() -> None:
    early = [status(0, 2, 3), status(1), status(2), status(3), status(4), status(5, settled=False)]
    found = promotion(mirrored(), early)
    assert [(queue.queue_id, list(queue.child_ids)) for queue in found] == [
        (0, [2, 3]),
        (1, []),
        (2, []),
        (3, []),
    ]
    assert [queue.log_end_offset for queue in found] == [0, 1, 2, 3]
    assert found[2].parent_id == 0
    late = [*early[:1], status(1, 4, 5), *early[2:5], status(5)]
    assert len(promotion(mirrored(), late)) == 6


def test_a_queue_without_a_slice_cannot_be_promoted() -> None:
    with pytest.raises(InvalidRequest, match="queue 1 of topic 'orders' is not copied whole"):
        promotion(mirrored(), [status(0), status(1, settled=False)])


def test_a_promotion_that_goes_on_keeps_what_is_promoted_as_it_was_decided() -> None:
    topic = mirrored()
    topic.queues[0].CopyFrom(
        MirroredQueue(queue_id=0, slot_end=100, digest=b"decided", child_ids=[2, 3])
    )
    done = mirrors_pb2.MirroredQueueStatus(promoted=True)
    found = promotion(topic, [done, *(status(number) for number in range(1, 6))])
    assert [queue.queue_id for queue in found] == [0, 1, 2, 3]
    assert found[0].digest == b"decided"
