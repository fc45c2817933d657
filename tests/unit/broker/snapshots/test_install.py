"""A peer's checkpoint takes the place of the own log: which one may, in which order, and whose
bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.log import IndexUnavailable, RecordRef
from semel.broker.replica.member_book import Members
from semel.broker.snapshots import install
from semel.broker.snapshots.install import CatchUp
from semel.broker.state import Membership, State
from semel.protos.errors import DiskFull
from semel.protos.ids import NodeId
from semel.protos.levels import LEVEL_MAX
from tests.kit.state_log import Group, header

ME, MASTER = NodeId(1), NodeId(2)


def group_state() -> State:
    """Two batches in two entries, which are needed still."""
    group = Group()
    group.fence()
    group.produce(header(-1, last=9))
    group.produce(header(9, last=19))
    return group.state


class FakePull:
    """A peer that gives its checkpoint, and any record."""

    checkpoint_given: tuple[int, int, bytes]
    asked: list[Any]
    bytes_received = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def checkpoint(self, least: int) -> tuple[int, int, bytes]:
        self.asked.append(least)
        return self.checkpoint_given

    async def records(self, refs: Sequence[RecordRef], index: int) -> list[tuple[RecordRef, bytes]]:
        self.asked.append([ref.index for ref in refs])
        return [(ref, b"the peer's") for ref in refs]

    async def close(self) -> None:
        pass


class Node:
    """One that is behind: what it does in its order."""

    def __init__(self, *, applied: int = 0) -> None:
        self.happened: list[str] = []
        self.failure: Exception | None = None
        self.installed: dict[int, bytes] = {}
        self.unreadable: set[int] = set()
        """Entries of the own log."""
        self.begins = True
        self.least: int | None = None
        self.master_id = MASTER
        self.core = self.log = self.peers = self.driver = self
        self.config = SimpleNamespace(level_max=LEVEL_MAX, node_id=ME)
        self.state: Any = SimpleNamespace(applied_index=applied)
        self.readers = ThreadPoolExecutor(1)
        self.tasks: list[asyncio.Task[None]] = []
        stand_in: Any = self
        self.checkpoints = SimpleNamespace(index=0)
        checkpoints: Any = self.checkpoints
        identity: Any = SimpleNamespace(caller=None, channel=None)
        self.catch_up = CatchUp(
            stand_in,
            checkpoints,
            identity,
            bytes_per_second=1 << 20,
            start_task=self.tasks.append,
        )

    # --- the core

    def begin_snapshot(self, mark: object) -> bool:
        self.happened.append("begin")
        return self.begins

    def begin_rebuild(self) -> int | None:
        return self.least

    def on_snapshot_installed(self, mark: Any, now_ms: int) -> None:
        self.happened.append(f"installed {mark.index} of term {mark.term}")

    def on_snapshot_failed(self, now_ms: int) -> None:
        self.happened.append("failed")

    # --- the log, in a thread

    def install_snapshot(
        self,
        parts: Iterable[bytes],
        index: int,
        term: int,
        kept_records: Iterator[tuple[RecordRef, bytes]],
        on_switched: Callable[[], None],
    ) -> None:
        self.installed = {ref.index: data for ref, data in kept_records}
        if self.failure is not None:
            raise self.failure
        self.happened.append("log")
        on_switched()

    def read_record(self, index: int, position: int, length: int) -> bytes:
        if index in self.unreadable:
            raise IndexUnavailable(index, 0, 0)
        return b"mine"

    # --- the peers and the driver

    def members_of(self, state: Membership) -> Members:
        return Members(voters={ME: "h1:1", MASTER: "h2:1"})

    def drain(self) -> None:
        pass

    # --- the replica

    def install_state(self, state: State) -> None:
        self.happened.append(f"state {state.applied_index}")

    async def offered(self, index: int) -> None:
        mark = SimpleNamespace(index=index)
        offer: Any = SimpleNamespace(source=MASTER, snapshot=mark)
        self.catch_up.on_offer(offer)
        await asyncio.gather(*self.tasks)


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> State:
    """The peer's state, at entry 5 of term 2."""
    state = group_state()
    assert [record[0] for record in state.live_records(0, 6)] == [4, 5]
    FakePull.checkpoint_given = (5, 2, b"".join(state.to_parts()))
    FakePull.asked = []
    monkeypatch.setattr(install, "SnapshotPull", FakePull)
    return state


async def test_the_log_is_replaced_before_the_state_and_both_before_the_core_is_told() -> None:
    node = Node()
    await node.offered(5)
    assert node.happened == ["begin", "log", "state 5", "installed 5 of term 2"]
    assert FakePull.asked == [5, [4, 5]]
    assert node.installed == {4: b"the peer's", 5: b"the peer's"}
    assert node.checkpoints.index == 5, "the log has this checkpoint: the next one is newer"


async def test_own_records_are_taken_only_as_far_as_they_are_applied() -> None:
    """What lies in the own log behind that may be another master's."""
    node = Node(applied=4)
    await node.offered(5)
    assert node.installed == {4: b"mine", 5: b"the peer's"}
    node = Node(applied=5)
    await node.offered(5)
    assert node.installed == {4: b"mine", 5: b"mine"}
    node = Node(applied=5)
    node.unreadable.add(5)
    await node.offered(5)
    assert node.installed == {4: b"mine", 5: b"the peer's"}, "the own one cannot be read"


@pytest.mark.parametrize("failure", [DiskFull("no room"), OSError("broken")])
async def test_when_the_log_cannot_be_replaced_all_stays_as_it_was(failure: Exception) -> None:
    node = Node()
    node.failure = failure
    await node.offered(5)
    assert node.happened == ["begin", "failed"]
    node.failure = None
    await node.offered(5)
    assert node.happened[-1] == "installed 5 of term 2", "it may be offered again"


async def test_what_is_not_needed_any_more_is_thrown_away() -> None:
    node = Node()
    node.begins = False
    await node.offered(5)
    assert node.happened == ["begin"]


async def test_a_rebuild_forgets_nothing_that_was_acknowledged() -> None:
    """Those who counted it rely on it: an older checkpoint is no good."""
    node = Node()
    node.least = 6
    node.catch_up.rebuild()
    await asyncio.gather(*node.tasks)
    assert (FakePull.asked, node.happened) == ([6], ["failed"])
    node.least = 5
    node.catch_up.rebuild()
    await asyncio.gather(*node.tasks)
    assert node.happened[1:] == ["log", "state 5", "installed 5 of term 2"]
    node.least = None
    node.catch_up.rebuild()
    assert len(node.tasks) == 2, "the core does not want it now"


async def test_a_checkpoint_of_another_index_than_its_states_is_refused() -> None:
    FakePull.checkpoint_given = (7, 2, FakePull.checkpoint_given[2])
    node = Node()
    await node.offered(5)
    assert node.happened == ["failed"]
