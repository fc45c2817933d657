"""When a checkpoint is due."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background import checkpointing
from semel.broker.background.checkpointing import RECORDS_MAX, Checkpointing
from semel.protos.errors import DiskFull
from tests.kit.waiting import until_async


class Node:
    """A replica, and its checkpoints."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(checkpoint_bytes=1_000, checkpoint_records=100)
        self.state = SimpleNamespace(applied_index=0)
        self.applier = SimpleNamespace(applied_records=0)
        self.log = self
        self.appended = 0
        self.index = 0
        self.length = 10
        self.written: list[int] = []
        self.failing = False
        self.looks = 0
        stand_in: Any = self
        self.work = Checkpointing(stand_in, stand_in)

    def stats(self) -> Any:
        self.looks += 1
        return SimpleNamespace(appended_bytes=self.appended)

    async def write(self) -> None:
        if self.failing:
            raise DiskFull("no room")
        self.index = self.state.applied_index
        self.written.append(self.index)


async def looked(node: Node) -> None:
    """Lets it look, more than once."""
    looks = node.looks
    task = asyncio.ensure_future(node.work.run())
    try:
        await until_async(lambda: node.looks >= looks + 3)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_CHECK_S", 0.001)


async def test_one_is_due_after_so_many_entries_or_bytes() -> None:
    node = Node()
    node.state.applied_index, node.appended = 99, 999
    await looked(node)
    assert node.written == []
    node.state.applied_index = 100
    await looked(node)
    assert node.written == [100]
    node.state.applied_index, node.appended = 110, 1_998
    await looked(node)
    assert node.written == [100], "bytes count from the last one on"
    node.appended = 1_999
    await looked(node)
    assert node.written == [100, 110]


async def test_one_is_due_after_so_many_records_in_few_entries() -> None:
    node = Node()
    node.state.applied_index, node.applier.applied_records = 1, RECORDS_MAX - 1
    await looked(node)
    assert node.written == []
    node.applier.applied_records = RECORDS_MAX
    await looked(node)
    assert node.written == [1]
    node.state.applied_index, node.applier.applied_records = 2, 2 * RECORDS_MAX - 1
    await looked(node)
    assert node.written == [1], "records count from the last one on"
    node.applier.applied_records = 2 * RECORDS_MAX
    node.length = 32 << 20
    await looked(node)
    assert node.written == [1], "the state is large by now"
    node.applier.applied_records = 3 * RECORDS_MAX
    await looked(node)
    assert node.written == [1, 2]


async def test_a_large_state_is_written_more_rarely() -> None:
    node = Node()
    node.length = 1_000
    node.state.applied_index, node.appended = 1, 31_999
    await looked(node)
    assert node.written == []
    node.appended = 32_000
    await looked(node)
    assert node.written == [1]


async def test_one_that_cannot_be_written_is_tried_again() -> None:
    node = Node()
    node.failing = True
    node.state.applied_index = 100
    await looked(node)
    node.failing = False
    await looked(node)
    assert node.written == [100]
