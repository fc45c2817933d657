"""Plans of splits: slots are covered once, numbers are new, and a crash changes nothing of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.controller.topics.splits import (
    after_splits,
    open_queues,
    plan_count,
    plan_queue,
    queues_of,
    split_records,
)
from semel.protos.errors import InvalidRequest, Throttled, UnknownQueue, UnknownTopic
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import TopicSettings
from semel.protos.v1.metadata_pb2 import TopicRecord
from tests.kit.controller_cluster import running_cluster
from tests.unit.controller.crashing import CrashingStore, CrashPoints, crash, settled

SLOTS = 65_536
FIVE = pb.AlterTopicRequest(name="orders", queues=5)


def topic(queues: int) -> TopicRecord:
    return TopicRecord(name="t", topic_id=5, placement=[number % 2 + 1 for number in range(queues)])


def check(record: TopicRecord) -> None:
    """Open queues tile the slots; children tile their parent, in its group."""
    queues = queues_of(record)
    ranges = sorted((queue.slot_start, queue.slot_end) for queue in open_queues(record))
    assert (ranges[0][0], ranges[-1][1]) == (0, SLOTS)
    assert all(start < end for start, end in ranges)
    assert all(one[1] == two[0] for one, two in pairwise(ranges))
    for queue in queues:
        children = sorted(each.slot_start for each in queues if each.parent_id == queue.queue_id)
        assert bool(children) == queue.sealed
        assert not children or children[0] == queue.slot_start
        parent = queue.parent_id
        assert parent is None or queues[parent].group_id == queue.group_id


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=6))
def test_any_row_of_splits_keeps_every_slot_in_one_open_queue(
    queues: int, steps: list[tuple[bool, int]]
) -> None:
    record = topic(queues)
    for by_count, number in steps:
        before = len(open_queues(record))
        if by_count:
            record.splits.extend(plan_count(record, before + number))
            wanted = before + number
        else:
            chosen = open_queues(record)[number % before]
            if chosen.slot_end - chosen.slot_start < 2 + number % 3:
                continue
            record.splits.extend(plan_queue(record, chosen.queue_id, 2 + number % 3))
            wanted = before + 1 + number % 3
        told = [split for group in (1, 2) for split in split_records(record, group)]
        assert len(told) == len(record.splits)
        record = after_splits(record)
        check(record)
        assert len(open_queues(record)) == wanted
        assert not record.splits
        numbers = {child.queue_id for split in told for child in split.split_queue.children}
        assert numbers <= {queue.queue_id for queue in queues_of(record)}


@pytest.mark.parametrize(("have", "want"), [(1, 3), (2, 3), (3, 8), (4, 8), (5, 64)])
def test_the_widest_queues_are_cut_first(have: int, want: int) -> None:
    record = topic(have)
    record.splits.extend(plan_count(record, want))
    widths = [q.slot_end - q.slot_start for q in open_queues(after_splits(record))]
    assert max(widths) <= 2 * min(widths) + 2, "no queue is much wider than another"


def test_what_cannot_be_split() -> None:
    record = topic(4)
    with pytest.raises(InvalidRequest, match="not merged"):
        plan_count(record, 3)
    assert plan_count(record, 4) == []
    with pytest.raises(UnknownQueue):
        plan_queue(record, 4, 2)
    for children in (0, 1, 16_385):
        with pytest.raises(InvalidRequest, match="16384 slots"):
            plan_queue(record, 0, children)
    record.splits.extend(plan_queue(record, 0, 3))
    record = after_splits(record)
    assert plan_queue(record, 0, 3) == [], "done before: the same again is success"
    with pytest.raises(InvalidRequest, match="into 3 before"):
        plan_queue(record, 0, 2)


async def test_a_crash_while_splitting_leaves_it_done_or_not_begun(tmp_path: Path) -> None:
    hit, stop_at, seen = True, 0, set()
    while hit:
        points = CrashPoints()
        async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
            for group in (1, 2):
                for broker in await cluster.add_group(group):
                    broker.before = broker.after = points.point
            await cluster.client.create("orders", 2)
            hit = await crash(cluster, points, stop_at, lambda c: c.call("AlterTopic", FIVE))
            await settled(cluster)
            (route,) = (await cluster.client.routes()).topics
            entry = (await cluster.store.scan("/topics/"))["/topics/orders"]
            check(TopicRecord.FromString(entry.value))
            shown = {queue.queue_id for queue in (*route.queues, *route.sealed)}
            assert {queue for broker in cluster.brokers for _, queue in broker.queues} == shown
            assert (len(route.queues), len(route.sealed)) in ((2, 0), (5, 2))
            seen.add(len(route.queues))
            reply = await cluster.client.call("AlterTopic", FIVE)
            assert len(reply.topic.queues) == 5
        stop_at += 1
    assert stop_at > 6
    assert seen == {2, 5}


async def test_a_topic_that_is_deleted_while_it_is_split_is_gone(tmp_path: Path) -> None:
    """Also the children that the controller never learned of."""
    async with running_cluster(tmp_path) as cluster:
        (broker, *_) = await cluster.add_group(1)
        await cluster.client.create("orders", 1)

        async def lost() -> None:
            raise UnknownTopic("the answer is lost")

        broker.after = lost
        split = pb.SplitQueueRequest(name="orders", queue_id=0, children=2)
        with pytest.raises(Exception, match="is decided"):
            await cluster.client.call("SplitQueue", split, 5.0)
        other = pb.SplitQueueRequest(name="orders", queue_id=0, children=3)
        with pytest.raises(Throttled):
            await cluster.client.call("SplitQueue", other, 5.0)
        assert len(broker.queues) == 3
        broker.after = None
        await cluster.client.delete("orders")
        assert not broker.queues


async def test_alterations_that_say_nothing_or_too_much(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        await cluster.client.create("orders", 2)
        for request in (
            pb.AlterTopicRequest(name="orders"),
            pb.AlterTopicRequest(name="orders", queues=65_537),
            pb.AlterTopicRequest(name="orders", queues=1),
        ):
            with pytest.raises(InvalidRequest):
                await cluster.client.call("AlterTopic", request)
        both = pb.AlterTopicRequest(name="orders", queues=3, settings=TopicSettings(retention_ms=7))
        reply = await cluster.client.call("AlterTopic", both)
        assert (len(reply.topic.queues), reply.topic.settings.retention_ms) == (3, 7)
        create = {"queues": 3, "if_not_exists": True}
        assert not (await cluster.client.create("orders", **create)).created
