"""What nothing needs any more goes: garbage of queues, and queues of deleted topics."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background.tier_garbage import TierGarbage
from semel.protos.v1 import control_pb2
from semel.tier import layout, put_rows, rows_of
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


async def garbage_of(node: TieredNode) -> TierGarbage:
    replica: Any = node
    garbage = TierGarbage(replica, node.place)
    await garbage.look()
    return garbage


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
    garbage, before = await garbage_of(node), names(node)
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
    garbage = await garbage_of(node)
    put_rows(node.store, CLUSTER, KEY, rows_of([plain_rows(5)]))
    age(tmp_path)
    before = names(node)
    (manifest,) = (tmp_path / "tier").rglob("manifests/*.json")
    manifest.write_bytes(b"{}")
    await garbage.collect()
    assert names(node) == before
    assert "garbage of a queue stays" in caplog.text
    assert node.place.counters.errors == 1


async def test_the_files_of_a_deleted_topic_go_a_day_later(
    node: TieredNode, tmp_path: Path
) -> None:
    slave, master = await garbage_of(node), await garbage_of(node)
    delete(node)
    await slave.look()
    await master.look()
    await master.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) in names(node)
    await master.collect()
    assert len(names(node)) > 4
    await slave.note_deleted()  # it has become master, and saw the queue go as well
    age(tmp_path)
    again = await garbage_of(node)  # a process that knows nothing of it
    await again.collect()
    assert names(node) == []


async def test_a_queue_that_has_moved_away_is_no_deleted_one(node: TieredNode) -> None:
    garbage = await garbage_of(node)
    state = SimpleNamespace(queues={}, moves=SimpleNamespace(places={KEY: "elsewhere"}))
    node.group.state = state  # type: ignore[assignment]
    await garbage.look()
    await garbage.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) not in names(node)


async def test_a_queue_that_is_back_was_not_deleted(node: TieredNode) -> None:
    garbage, state = await garbage_of(node), node.group.state
    empty = SimpleNamespace(queues={}, moves=SimpleNamespace(places={}))
    node.group.state = empty  # type: ignore[assignment]
    await garbage.look()
    node.group.state = state
    await garbage.look()
    await garbage.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) not in names(node)


async def test_a_note_that_failed_is_made_later(node: TieredNode) -> None:
    garbage = await garbage_of(node)
    delete(node)
    await garbage.look()
    node.system.plant("open_output_stream", fails("AWS Error SLOW_DOWN"))
    with pytest.raises(Exception, match="SLOW_DOWN"):
        await garbage.note_deleted()
    await garbage.note_deleted()
    assert layout.deleted_name(CLUSTER, KEY) in names(node)
