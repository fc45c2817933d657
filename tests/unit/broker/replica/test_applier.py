"""Applying while a snapshot takes the place of log and state."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.log import IndexUnavailable
from semel.broker.replica.applier import Applier
from tests.kit.waiting import until_async


class Node:
    """One whose next entry must be read from disk, which takes its time."""

    def __init__(self) -> None:
        self.log = self.core = self.peers = self.mastership = self
        self.config = SimpleNamespace(node_id=1)
        self.addresses = {1: "", 2: "", 3: ""}
        self.proposer = None
        self.commit_index = 2
        self.state = self.state_at(1)
        self.fatal: list[str] = []
        self.applied: list[bytes] = []
        self.go_on = threading.Event()
        self.outcome: list[bytes] | Exception = [b""]

    def state_at(self, index: int) -> Any:
        return SimpleNamespace(applied_index=index, apply_frame=self.apply_frame)

    def apply_frame(self, frame: bytes) -> list[object]:
        self.applied.append(frame)
        self.state.applied_index += 1
        return []

    def on_fatal(self, reason: str) -> None:
        self.fatal.append(reason)

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        return hi_max

    def cached_frames(self, lo: int, hi: int) -> None:
        return None

    def read_frames(self, lo: int, hi: int) -> list[bytes]:
        assert self.go_on.wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def _applier(node: Node) -> Applier:
    stand_in: Any = node
    return Applier(
        stand_in,
        log=stand_in,
        core=stand_in,
        peers=stand_in,
        mastership=stand_in,
        readers=ThreadPoolExecutor(1),
        ids=stand_in,
    )


@pytest.mark.parametrize("outcome", [[b"an entry of the old log"], IndexUnavailable(2, 9, 8)])
async def test_what_was_read_for_the_state_before_a_snapshot_is_worthless(
    outcome: list[bytes] | Exception,
) -> None:
    """Frames and errors: the log that was read is another one by now."""
    node = Node()
    node.outcome = outcome
    applier = _applier(node)
    told: list[int] = []
    applier.on_applied = lambda state: told.append(state.applied_index)
    applier.apply()
    node.state, node.commit_index = node.state_at(8), 8
    node.go_on.set()
    await until_async(lambda: told)
    assert told == [8]
    assert (node.applied, node.fatal) == ([], [])


async def test_a_log_that_cannot_be_read_for_the_present_state_ends_the_process() -> None:
    node = Node()
    node.outcome = IndexUnavailable(2, 9, 8)
    _applier(node).apply()
    node.go_on.set()
    await until_async(lambda: node.fatal)
    assert "cannot read its own committed log" in node.fatal[0]
