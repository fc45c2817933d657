"""Facts are noted before the pointer that they fit, when something changes, and not too often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.broker.state import read_slice
from semel.protos.v1 import control_pb2
from semel.tier import QueueFacts, newest_facts, newest_pointer, take_over
from tests.kit.state_log import KEY, control, ref
from tests.kit.tiered_node import CLUSTER, TieredNode


@pytest.fixture
async def node(tmp_path: Path) -> TieredNode:
    made = TieredNode(tmp_path)
    made.config.tier_facts_ms = 60_000
    await made.place.open()
    return made


def newest(node: TieredNode) -> QueueFacts | None:
    found = newest_facts(node.store, CLUSTER, KEY)
    return None if found is None else found[1]


def count(node: TieredNode) -> int:
    return sum("/facts/" in each.name for each in node.store.objects(""))


def lock(node: TieredNode, group: str) -> None:
    record = control_pb2.AcquireLock(
        group=group, queue=ref(), member_id="m", lock_ms=1, session_ms=1
    )
    node.group.apply(control(acquire_lock=record))


async def test_a_queue_without_a_manifest_has_facts(node: TieredNode) -> None:
    node.send(3)
    await node.tier()
    facts = newest(node)
    assert facts is not None
    assert (facts.number, facts.log_end_offset, facts.topic) == (0, 3, "orders")
    assert read_slice(facts.slice).producers.find(KEY, 1) is not None


async def test_facts_name_the_manifest_before_its_pointer_is_published(node: TieredNode) -> None:
    node.send(50)
    node.passes(5)
    await node.tier()
    facts = newest(node)
    assert facts is not None
    assert (facts.number, facts.sha256) == (1, node.queue.tier.sha256.hex())
    node.send(50)
    node.passes(5)
    # The store fails after the decision, when the facts are to be written.
    real = node.store.put

    def put(name: str, data: Any) -> None:
        if "/facts/" in name:
            raise OSError("the store is down")
        real(name, data)

    node.store.put = put  # type: ignore[method-assign]
    await node.tier()
    assert node.queue.tier.number == 2
    pointer = newest_pointer(node.store, CLUSTER, KEY)
    assert pointer is not None
    assert pointer.number == 1
    node.store.put = real  # type: ignore[method-assign]
    node.passes(2)
    await node.tier()
    facts, pointer = newest(node), newest_pointer(node.store, CLUSTER, KEY)
    assert facts is not None
    assert pointer is not None
    assert facts.number == pointer.number == node.queue.tier.number


async def test_changes_are_noted_once_in_a_while(node: TieredNode) -> None:
    node.send(3)
    await node.tier()
    assert count(node) == 1
    lock(node, "g")
    node.passes(1)
    await node.tiering.look()
    assert count(node) == 1
    node.boot_s += 60
    await node.tiering.look()
    assert count(node) == 2
    facts = newest(node)
    assert facts is not None
    assert read_slice(facts.slice).groups.names() == ["g"]
    node.boot_s += 60
    await node.tiering.look()
    assert count(node) == 2, "nothing has changed"


async def test_a_new_master_notes_them_again(node: TieredNode) -> None:
    node.send(3)
    await node.tier()
    node.term += 1
    lock(node, "g")
    await node.tiering.look()
    assert count(node) == 2


async def test_nothing_is_noted_for_a_place_that_has_changed_hands(node: TieredNode) -> None:
    node.send(3)
    await node.tier()
    take_over(node.store, "other", CLUSTER)
    lock(node, "g")
    node.boot_s += 60
    assert not await node.tiering.look()
    assert count(node) == 1
    assert node.place.counters.errors == 1


async def test_zero_notes_none(node: TieredNode) -> None:
    node.config.tier_facts_ms = 0
    node.send(3)
    await node.tier()
    assert count(node) == 0


async def test_a_queue_that_is_gone_is_forgotten(node: TieredNode) -> None:
    node.send(3)
    await node.tier()
    facts = node.tiering._facts
    assert set(facts._noted) == {KEY}
    node.group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
    await node.tiering.look()
    assert not facts._noted
