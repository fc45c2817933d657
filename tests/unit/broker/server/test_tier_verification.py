"""What the object store has is read as a whole, and compared with the log where that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semel.broker.server.tier_verification import _names, _twice, verify_tier
from semel.tier import rows_of
from tests.kit.faulty_store import fails
from tests.kit.state_log import KEY
from tests.kit.tier_rows import plain_rows
from tests.kit.tiered_node import CLUSTER, TieredNode


@pytest.fixture
async def node(tmp_path: Path) -> TieredNode:
    """60 messages at the store, of which the log has the last 30, too."""
    node = TieredNode(tmp_path / "tier")
    await node.place.open()
    for _ in range(2):
        node.send(30)
        node.passes(1.1)
        await node.tier()
        node.forget()
    assert (node.queue.local_start, node.queue.tier.end) == (30, 60)
    return node


async def verified(node: TieredNode) -> Any:
    replica: Any = node
    return await verify_tier(replica, node.place, KEY)


async def test_all_is_read_and_what_the_log_has_is_compared(node: TieredNode) -> None:
    found = await verified(node)
    assert (found.start_offset, found.end_offset) == (0, 60)
    assert (found.messages, found.compared, found.duplicates) == (60, 30, 0)
    assert (list(found.problems), found.unread) == ([], "")


async def test_damage_is_a_problem(node: TieredNode, tmp_path: Path) -> None:
    path = tmp_path / "tier" / node.manifest.files[0].name(CLUSTER, KEY)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(bytes(data))
    found = await verified(node)
    assert [problem for problem in found.problems if "is damaged" in problem]
    assert (found.messages, found.compared) == (30, 30)


async def test_rows_that_are_not_the_logs_are_a_problem(node: TieredNode) -> None:
    node.queue.extents._times[-1] += 1  # an append time of the log differs
    found = await verified(node)
    (problem,) = found.problems
    assert problem == "offsets 30 to 60 are not in the object store as they are in the log"


async def test_a_store_that_is_down_is_no_contradiction(node: TieredNode) -> None:
    node.system.plant("open_input_file", fails("AWS Error SLOW_DOWN"))
    found = await verified(node)
    assert "SLOW_DOWN" in found.unread
    assert list(found.problems) == []
    replica: Any = node
    without = await verify_tier(replica, None, KEY)
    assert without is not None
    assert "without --tier" in without.unread


async def test_a_queue_with_nothing_there_is_left_out(tmp_path: Path) -> None:
    node = TieredNode(tmp_path / "tier")
    await node.place.open()
    node.send(3)
    assert await verified(node) is None


def test_a_sequence_that_comes_twice_is_counted() -> None:
    rows = rows_of([plain_rows(10)])
    names = _names(rows)
    assert _twice(names) == 0
    both = rows_of([plain_rows(10), plain_rows(10, base_offset=10)])
    assert _twice(_names(both)) == 0
    assert _twice(_names(both.slice(0, 10).combine_chunks())) == 0
    twice = _names(rows).tolist() + _names(rows.slice(4, 3)).tolist()
    assert _twice(np.array(twice, np.int64)) == 3
