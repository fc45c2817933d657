"""What nothing needs any more goes: garbage of queues, and queues of deleted topics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from semel.broker.background.tier_garbage import TierGarbage
from semel.broker.state import State
from semel.protos.errors import InvalidRequest, NotMaster
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2
from semel.tier import layout, put_rows, put_topic, rows_of
from tests.kit.faulty_store import fails
from tests.kit.state_log import KEY, control, ref
from tests.kit.tier_rows import plain_rows
from tests.kit.tiered_node import CLUSTER, TieredNode

DAYS_S = 3 * 24 * 3_600


@pytest.fixture
async def node(tmp_path: Path) -> TieredNode:
    node = TieredNode(tmp_path / "tier")
    await node.place.open()
    node.send(30)
    node.passes(2.1)
    await node.tier()
    return node


def garbage_of(node: TieredNode) -> TierGarbage:
    replica: Any = node
    return TierGarbage(replica, node.place)


def age(folder: Path) -> None:
    """Makes all that is there three days older."""
    for path in folder.rglob("*.*"):
        if path.is_file():
            then = path.stat().st_mtime - DAYS_S
            os.utime(path, (then, then))


def names(node: TieredNode) -> list[str]:
    return [each.name for each in node.store.objects(f"{CLUSTER}/topics")]


def delete(node: TieredNode) -> None:
    node.group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))


async def test_garbage_goes_once_it_is_old(node: TieredNode, tmp_path: Path) -> None:
    garbage, before = garbage_of(node), names(node)
    lost = put_rows(node.store, CLUSTER, KEY, rows_of([plain_rows(5)])).name(CLUSTER, KEY)
    await garbage.collect()
    assert lost in names(node)
    age(tmp_path)
    await garbage.collect()
    assert names(node) == before
    assert node.place.counters.deleted_objects == 1
    node.is_master = False
    await garbage.collect()
    assert names(node) == before


async def test_a_queue_that_cannot_be_read_keeps_its_garbage(
    node: TieredNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = garbage_of(node)
    put_rows(node.store, CLUSTER, KEY, rows_of([plain_rows(5)]))
    age(tmp_path)
    before = names(node)
    (manifest,) = (tmp_path / "tier").rglob("manifests/*.json")
    manifest.write_bytes(b"{}")
    await garbage.collect()
    assert names(node) == before
    assert "garbage of a queue stays" in caplog.text
    assert node.place.counters.errors == 1


async def test_the_files_of_a_deleted_topic_go_a_day_later_whoever_is_master_then(
    node: TieredNode, tmp_path: Path
) -> None:
    delete(node)
    assert node.state.deleted_tiers == {KEY}
    # Whoever saw it deleted has ended, and this process knows the log alone.
    node.group.state = State.from_bytes(b"".join(node.state.to_parts()))
    garbage = garbage_of(node)
    await garbage.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) in names(node)
    assert node.state.deleted_tiers == set(), "the store knows it now"
    await garbage.collect()
    assert len(names(node)) > 4
    age(tmp_path)
    await garbage_of(node).collect()
    assert names(node) == []


async def test_a_crash_between_the_note_and_the_word_of_it_only_repeats_it(
    node: TieredNode,
) -> None:
    delete(node)
    node.before_proposal = crash
    with pytest.raises(RuntimeError):
        await garbage_of(node).note_deleted()
    assert node.state.deleted_tiers == {KEY}
    node.before_proposal = lambda: None
    await garbage_of(node).note_deleted()
    assert node.state.deleted_tiers == set()


def crash() -> None:
    raise RuntimeError("the process ends here")


async def test_a_topic_whose_first_files_were_never_decided_leaves_nothing(
    node: TieredNode, tmp_path: Path
) -> None:
    key = QueueKey(TopicId(9), QueueId(0))
    node.group.create(key, tier_after_ms=1_000)
    put_topic(node.store, CLUSTER, "short", key.topic_id)
    put_rows(node.store, CLUSTER, key, rows_of([plain_rows(5)]))
    before = [name for name in names(node) if "0000000000000009" not in name]
    node.group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=queue_ref(key))))
    garbage = garbage_of(node)
    await garbage.note_deleted()
    age(tmp_path)
    await garbage.collect()
    assert names(node) == before


async def test_what_a_crash_left_of_a_deleted_topic_without_its_name_goes(
    node: TieredNode, tmp_path: Path
) -> None:
    delete(node)
    garbage = garbage_of(node)
    await garbage.note_deleted()
    age(tmp_path)
    node.store.delete([layout.topic_name(CLUSTER, KEY.topic_id)])  # it goes before the note
    await garbage.collect()
    assert names(node) == []


async def test_garbage_of_a_queue_without_a_manifest_goes(node: TieredNode, tmp_path: Path) -> None:
    key = QueueKey(TopicId(9), QueueId(0))
    node.group.create(key, tier_after_ms=1_000)
    before = names(node)
    put_rows(node.store, CLUSTER, key, rows_of([plain_rows(5)]))
    age(tmp_path)
    await garbage_of(node).collect()
    assert names(node) == before


async def test_a_queue_that_was_never_tiered_is_forgotten_at_once(node: TieredNode) -> None:
    key = QueueKey(TopicId(9), QueueId(0))
    node.group.create(key)
    node.group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=queue_ref(key))))
    assert node.state.deleted_tiers == set()


async def test_a_queue_that_is_here_is_not_noted(node: TieredNode) -> None:
    await garbage_of(node).note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) not in names(node)
    noted = control_pb2.ControlRecord(delete_queue=control_pb2.DeleteQueue(queue=ref(), noted=True))
    with pytest.raises(InvalidRequest, match="was not deleted"):
        await node.submit_control(noted)
    node.group.apply(control(delete_queue=noted.delete_queue))
    assert KEY in node.state.queues, "a word about the store deletes nothing"


async def test_a_note_that_failed_is_made_later(node: TieredNode) -> None:
    delete(node)
    garbage = garbage_of(node)
    node.system.plant("open_output_stream", fails("AWS Error SLOW_DOWN"))
    with pytest.raises(Exception, match="SLOW_DOWN"):
        await garbage.note_deleted()
    assert node.state.deleted_tiers == {KEY}
    await garbage.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) in names(node)


async def test_only_a_master_notes(node: TieredNode) -> None:
    delete(node)
    node.is_master = False
    with pytest.raises(NotMaster):
        await garbage_of(node).note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) not in names(node)
