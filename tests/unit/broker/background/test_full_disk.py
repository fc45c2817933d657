"""A master without room hands over, if there is anybody to hand over to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background import full_disk
from semel.broker.background.full_disk import FullDisk
from semel.protos.errors import Unavailable
from tests.kit.waiting import until_async


class Node:
    """The master of a group, and the changes of its membership."""

    def __init__(self, members: int) -> None:
        self.disk_full = False
        self.is_master = True
        self.peers = SimpleNamespace(addresses=dict.fromkeys(range(1, members + 1), ""))
        self.fit: list[bool] = []
        self.transfers = 0
        self.taken = True

    def set_fit(self, reason: str, fit: bool) -> None:
        assert reason == "its disk is full"
        self.fit.append(fit)

    async def transfer(self, wanted: None, *, ignore_memory: bool) -> tuple[int, int]:
        assert ignore_memory, "it does not stop: nothing in its memory is lost"
        self.transfers += 1
        if not self.taken:
            raise Unavailable("nobody has room")
        self.is_master = False
        return 2, 5


@pytest.mark.parametrize("members", [1, 3])
async def test_it_is_elected_again_only_if_it_is_alone(
    monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    """A group of one would have no master for ever, and could not even be read."""
    monkeypatch.setattr(full_disk, "_CHECK_S", 0.001)
    monkeypatch.setattr(full_disk, "_YIELD_PAUSE_S", 0.001)
    node: Any = Node(members)
    node.taken = False
    task = asyncio.ensure_future(FullDisk(node, node).run())
    try:
        await until_async(lambda: len(node.fit) >= 3)
        assert set(node.fit) == {True}
        assert node.transfers == 0
        node.disk_full = True
        await until_async(lambda: node.transfers >= 2)
        assert node.fit[-1] is (members == 1)
        node.taken = True
        await until_async(lambda: not node.is_master)
        count = node.transfers
        looks = len(node.fit)
        await until_async(lambda: len(node.fit) >= looks + 3)
        assert node.transfers == count, "a slave has nothing to hand over"
        node.disk_full = False
        await until_async(lambda: node.fit[-1])
    finally:
        task.cancel()
        await asyncio.wait([task])
