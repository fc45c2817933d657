"""Applies committed entries to the replicated state, and answers those who wait for that.

How it works. Frames come from the log's cache at once, else from disk in the reader pool, after
which `apply` goes on. An entry with a publication to topics that compare message ids waits as well,
until its ids are read from the batches that it takes (`IdIndexes.to_fetch`). For each applied entry
the proposer answers its requests (`Proposer.on_applied`), the lock clock is told, and long polls
wake; `on_applied` is called once every committed entry that is here is applied.

Invariants
1. The state is applied in index order, each entry once, and only entries that are committed.
2. At most one read from disk is under way. A snapshot that was installed meanwhile makes what it
   brings worthless, frames and errors.

Not here: what an entry changes (`state/`), when entries are committed (`raft/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from semel.broker.config import BrokerConfig
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.published_ids import ArrivedIds
from semel.broker.log import DamagedEntry, Log
from semel.broker.memory import BodyStore
from semel.broker.raft import RaftCore
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.fatal import halting
from semel.broker.replica.fetch_waiters import QueueWatchers
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.peers import Peers
from semel.broker.replica.pinned_look_up import read_stored
from semel.broker.state import State
from semel.protos import compat
from semel.protos.errors import SemelError, Unavailable

_FRAMES_MAX = 64
"""At most this many entries are applied before the commit index is read again."""
_READ_BYTES = 8 << 20


class AppliedReplica(Protocol):
    """The replica, as this module needs it; a snapshot replaces `state`."""

    config: BrokerConfig
    state: State
    on_fatal: Callable[[str], None]


class Applier:
    """Applies entries to the state of one replica."""

    def __init__(
        self,
        replica: AppliedReplica,
        *,
        log: Log,
        core: RaftCore,
        peers: Peers,
        mastership: Mastership,
        readers: Executor,
        ids: MessageIds,
        bodies: BodyStore,
    ) -> None:
        self._ids = ids
        self._bodies = bodies
        self.config = replica.config
        self._replica = replica
        self._log = log
        self._core = core
        self._peers = peers
        self._mastership = mastership
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        """Callers that wait until an index is applied."""
        self.applied_records = 0
        """Records that were applied since this node began, those of the log's replay included."""
        self.watchers = QueueWatchers()
        self.delaying = asyncio.Event()
        """Set when something is delayed; cleared by the background work that releases it."""
        self.on_applied: Callable[[State], None] = lambda _: None
        """Called when every committed entry that is here is applied."""

    @property
    def on_fatal(self) -> Callable[[str], None]:
        return self._replica.on_fatal

    @halting
    def apply(self) -> None:
        """Applies what is committed: from the cache at once, from disk in the reader pool."""
        state = self._replica.state
        while state.applied_index < self._core.commit_index and not self._reading:
            lo = state.applied_index + 1
            hi = min(self._core.commit_index + 1, lo + _FRAMES_MAX)
            hi = self._log.fit(lo, hi, _READ_BYTES)
            frames = self._log.cached_frames(lo, hi)
            if frames is None:
                self._reading = True
                reading = self._loop.run_in_executor(self._readers, self._log.read_frames, lo, hi)
                reading.add_done_callback(partial(self._on_read, state))
                return
            if not self._apply_frames(frames):
                return
        self.on_applied(state)

    @halting
    def _on_read(self, state: State, reading: asyncio.Future[list[bytes]]) -> None:
        """The frames that come next in `state` were read, or could not be."""
        self._reading = False
        if reading.cancelled():
            return
        if state is not self._replica.state:
            self.apply()
            return
        error = reading.exception()
        if isinstance(error, DamagedEntry) and len(self._peers.addresses) > 1:
            return  # `Repair` reports it, and calls `apply` once the entry is whole again
        if error is not None:
            self.on_fatal(
                f"node {self.config.node_id} cannot read its own committed log: {error}. Restore "
                "the file, or delete this node's data directory to rebuild it from its peers"
            )
            return
        if self._apply_frames(reading.result()):
            self.apply()

    def _apply_frames(self, frames: Sequence[bytes]) -> bool:
        """False if the rest of them has to wait for a thread."""
        state, mastership = self._replica.state, self._mastership
        for frame in frames:
            if (fetch := self._ids.to_fetch(frame)) is not None:
                self._reading = True
                work = partial(fetch, partial(read_stored, self._log))
                reading = self._loop.run_in_executor(self._readers, work)
                reading.add_done_callback(partial(self._on_fetched, state, frame))
                return False
            results = state.apply_frame(frame)
            self.applied_records += len(results)
            self._ids.on_applied(frame, results)
            if self._bodies.bytes:
                self._bodies.on_applied(state, results)
            if mastership.proposer is not None:
                mastership.proposer.on_applied(state.applied_index, results)
                if mastership.lock_clock is not None:
                    mastership.lock_clock.on_applied(results, monotonic_ms())
            self.watchers.wake(results)
        return True

    @halting
    def _on_fetched(
        self, state: State, frame: bytes, reading: asyncio.Future[dict[int, ArrivedIds]]
    ) -> None:
        """The message ids of a publication, the entry that comes next in `state`, were read."""
        self._reading = False
        if reading.cancelled():
            return
        if state is self._replica.state:
            error = reading.exception()
            if isinstance(error, SemelError | OSError) and not isinstance(error, CorruptIndex):
                self._ids.give_up_fetching(frame, error)
            else:
                self._ids.on_fetched(frame, reading.result())
        self.apply()

    def wake_waiters(self, index: int) -> None:
        """The state is applied up to `index`."""
        for wanted, future in self.waiters:
            if wanted <= index and not future.done():
                future.set_result(None)
        self.waiters = [waiter for waiter in self.waiters if not waiter[1].done()]

    async def wait_applied(self, index: int, timeout_s: float | None) -> None:
        """Waits until entry `index` is applied. Raises Unavailable if that takes too long."""
        if self._replica.state.applied_index >= index:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self.waiters.append((index, future))
        try:
            async with compat.timeout(timeout_s):
                await future
        except TimeoutError:
            raise Unavailable(
                f"node {self.config.node_id} has applied entry "
                f"{self._replica.state.applied_index} and not yet {index}; try again"
            ) from None
