"""Applying while a snapshot takes the place of log and state, and what waits for a thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.log import IndexUnavailable
from semel.broker.memory import BodyStore
from semel.broker.replica.applier import Applier
from semel.protos.errors import CorruptSegment
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
        bodies=BodyStore(0),
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


class Publishing(Node):
    """One whose next entry is a publication: its message ids are read from disk before."""

    def __init__(self) -> None:
        super().__init__()
        self.commit_index = 3
        self.outcome = [b"publication", b"later"]
        self.go_on.set()
        self.fetching = threading.Event()
        self.fetched: list[object] = []
        self.found: Exception | dict[int, object] = {7: "ids"}
        self.watchers = SimpleNamespace(wake=lambda results: None)

    def to_fetch(self, frame: bytes) -> Any:
        return self.fetch if frame == b"publication" and not self.fetched else None

    def fetch(self, read: object) -> dict[int, object]:
        assert self.fetching.wait(60)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def on_fetched(self, frame: bytes, found: object) -> None:
        assert frame == b"publication"
        self.fetched.append(found)

    def give_up_fetching(self, frame: bytes, error: Exception) -> None:
        self.fetched.append(str(error))

    def on_applied(self, frame: bytes, results: object) -> None:
        assert self.fetched


async def _fetch(node: Publishing) -> int:
    """Applies, with all that is fetched, and returns up to where it has."""
    applier = _applier(node)
    told: list[int] = []
    applier.on_applied = lambda state: told.append(state.applied_index)
    applier.apply()
    await until_async(lambda: applier._reading and not node.fetching.is_set())
    applier.apply()
    assert (node.applied, told) == ([], [1]), "it waits, and what is behind it as well"
    node.fetching.set()
    await until_async(lambda: told[1:] or node.fatal)
    return told[-1]


async def test_a_publication_waits_for_its_message_ids_and_what_is_behind_it_as_well() -> None:
    node = Publishing()
    assert await _fetch(node) == 3
    assert node.applied == [b"publication", b"later"]
    assert node.fetched == [{7: "ids"}]


@pytest.mark.parametrize("error", [CorruptSegment("damaged"), OSError("no such disk")])
async def test_a_publication_whose_ids_cannot_be_read_is_applied_without_them(
    error: Exception,
) -> None:
    node = Publishing()
    node.found = error
    assert await _fetch(node) == 3
    assert node.applied == [b"publication", b"later"]
    assert node.fetched == [str(error)]


@pytest.mark.parametrize("error", [CorruptIndex("other ids than it says"), AssertionError("bug")])
async def test_a_publication_with_other_ids_than_it_says_ends_the_process(error: Exception) -> None:
    node = Publishing()
    node.found = error
    assert await _fetch(node) == 1
    assert node.applied == []
    assert str(error) in node.fatal[0]


async def test_ids_of_the_log_before_a_snapshot_are_worthless() -> None:
    node = Publishing()
    node.found = CorruptSegment("that log is gone")
    applier = _applier(node)
    applier.apply()
    await until_async(lambda: applier._reading)
    node.state, node.commit_index = node.state_at(8), 8
    node.fetching.set()
    await until_async(lambda: not applier._reading)
    assert (node.applied, node.fatal, node.fetched) == ([], [], [])
