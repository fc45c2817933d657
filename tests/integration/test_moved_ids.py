"""A queue takes its message ids along when it moves to another broker group. Real nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.broker.dedup import moved_ids
from semel.protos import compat
from semel.protos.dropped import Verdict
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.brokers import QUEUE, TOPIC, BrokerGroup
from tests.kit.id_senders import Sender, ids
from tests.kit.moving_groups import (
    OTHER,
    apply,
    create_of,
    groups,
    move,
    pull,
    step,
    verify,
)


def places(dropped: list[Any]) -> list[tuple[int, Verdict]]:
    return [(offset, verdict) for _, offset, verdict in dropped]


def duplicates(*offsets: int) -> list[tuple[int, Verdict]]:
    return [(offset, Verdict.DUPLICATE) for offset in offsets]


def ids_held(group: BrokerGroup) -> list[int]:
    """How many ids each node of a group has of the topic."""
    found = []
    for node in group.running.values():
        window = node.replica.state.id_windows.topics[TOPIC]
        index = node.replica.ids.index_of(TOPIC)
        assert index is not None
        assert not node.replica.ids.behind
        assert index.end_arrival == window.next_arrival
        found.append(window.ids)
    return found


async def test_ids_go_along_also_of_messages_that_retention_removed(tmp_path: Path) -> None:
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        other = await Sender(source, 6).open(OTHER)
        node = await source.master()
        last = 0
        async with compat.timeout(30):
            while node.replica.state.queues[QUEUE].log_start_offset < 30:
                await one.send(ids(last, last + 10), b"v" * 1_000)
                await other.send([b"other %d" % last])
                last += 10
        await move(source, target, QUEUE, 1)
        assert ids_held(target) == [last]
        two = await Sender(target, 7).open()
        _, dropped = await two.send(ids(0, last + 5), b"v" * 1_000)
        assert places(dropped) == duplicates(*range(last))
        ack, dropped = await two.send([b"other 0"])
        assert (ack.base_offset, dropped) == (last + 5, [])
        _, dropped = await two.send([b"id 3"], b"else")
        assert places(dropped) == [(3, Verdict.CONFLICT)]
        _, dropped = await other.send([b"other 0"])
        assert places(dropped) == duplicates(0)
        for group in (source, target):
            for verified in await verify(group):
                assert not verified.problems
                assert verified.table_matches


async def test_all_nodes_of_the_new_group_have_the_ids_and_a_move_may_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_ids, "PASS_IDS", 40)
    monkeypatch.setattr("semel.broker.server.moves_service.PASS_IDS", 40)
    monkeypatch.setattr(moved_ids, "PORTION_IDS", 7)
    async with groups(tmp_path, 3) as (source, target):
        one = await Sender(source, 5).open()
        other = await Sender(source, 6).open(OTHER)
        for start in range(0, 100, 10):
            await one.send(ids(start, start + 10))
            await other.send([b"other %d" % (start + each) for each in range(10)])
        await move(source, target, QUEUE, 1)
        await target.settled()
        assert ids_held(target) == [100] * 3
        await move(source, target, OTHER, 2)
        await target.settled()
        assert ids_held(target) == [200] * 3
        for node in source.running.values():
            await node.replica.wait_applied((await source.master()).replica.state.applied_index, 10)
            assert not node.replica.state.id_windows.topics
            assert node.replica.ids.index_of(TOPIC) is None
        old = await target.master()
        await target.stop(old.config.node_id)
        two = await Sender(target, 7).open()
        _, dropped = await two.send(ids(0, 101))
        assert places(dropped) == duplicates(*range(100))
        await target.start(old.config.node_id)
        await target.settled()
        await move(target, source, QUEUE, 3)
        three = await Sender(source, 8).open()
        _, dropped = await three.send(ids(0, 101))
        assert places(dropped) == duplicates(*range(101))


async def test_delayed_ids_and_unsealed_moves(tmp_path: Path) -> None:
    """A move that was given up leaves no window behind where there is no queue."""
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        await one.send(ids(0, 10))
        await step(target, "BEGIN", QUEUE, 1, create=create_of(QUEUE))
        await pull(source, target, QUEUE, 1, finish=False)
        assert ids_held(target) == [10]
        await step(target, "ABORT", QUEUE, 1)
        state = (await target.master()).replica.state
        assert not state.id_windows.topics
        assert not state.id_windows.copied
        await move(source, target, QUEUE, 2)
        assert ids_held(target) == [10]


async def test_a_topic_that_compares_anew_is_not_mixed_with_its_old_window(tmp_path: Path) -> None:
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        await one.send(ids(0, 10))
        await step(target, "BEGIN", QUEUE, 1, create=create_of(QUEUE))
        await pull(source, target, QUEUE, 1, finish=False)
        plain = common_pb2.TopicSettings(retention_bytes=50_000)
        await apply(source, alter_topic=control_pb2.AlterTopic(topic_id=TOPIC, settings=plain))
        anew = common_pb2.TopicSettings(
            dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=b"another seed----")
        )
        await apply(source, alter_topic=control_pb2.AlterTopic(topic_id=TOPIC, settings=anew))
        with pytest.raises(InvalidRequest, match="has begun to compare message ids"):
            await pull(source, target, QUEUE, 1, finish=False)
