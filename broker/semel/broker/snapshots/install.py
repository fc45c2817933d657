"""Catching up: a peer's checkpoint takes the place of this node's log and state.

How it works.

1. The master offers a snapshot. The slave pulls the master's newest checkpoint and builds the state
   from it.
2. The state names every stored record that is still live. The slave copies those that its own
   committed log holds, and pulls the others (`snapshots/pull.py`: at a limited rate, and from the
   next member when one fails).
3. Log, state and core switch to the new base in one turn of the event loop, while a thread waits
   (`Log.install_snapshot`); until then the old log, state and vote count, and everybody may read
   them. The entries after the checkpoint then come like all others.

A record that the giver has trimmed since the checkpoint can no longer be pulled, and the slave
leaves it out: a later entry of the log trims it here too, and until then this node serves nobody.

A node whose own log holds an entry that no node can read is rebuilt in the same way (`rebuild`).

Not here: when a snapshot is offered (`raft/`), how files are switched (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial

import grpc
import grpc.aio

from semel.broker.identity import NodeIdentity
from semel.broker.log import RecordRef
from semel.broker.raft import Message, SnapshotMark
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.snapshots.pull import SnapshotPull
from semel.broker.snapshots.records import read_or_none
from semel.broker.state import LiveRecords, State
from semel.protos.errors import CorruptSegment, SemelError
from semel.protos.ids import NodeId

logger = logging.getLogger(__name__)

_RECORDS_PER_PULL = 512


class CatchUp:
    """Brings this replica up to date from a peer's checkpoint when the master offers one."""

    def __init__(
        self,
        replica: Replica,
        checkpoints: Checkpoints,
        identity: NodeIdentity,
        *,
        bytes_per_second: int,
        start_task: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._replica = replica
        self._checkpoints = checkpoints
        self._identity = identity
        self._rate = bytes_per_second
        self._start_task = start_task
        self._running = False
        self._pulling: SnapshotPull | None = None
        self.bytes_pulled = 0
        """Bytes of all pulls since the start."""

    def on_offer(self, offer: Message) -> None:
        """Starts a pull unless one is under way, even if only its old files are being removed: the
        master repeats its offer."""
        assert offer.snapshot is not None
        self._start(offer.source, offer.snapshot.index, self._replica.core.begin_snapshot)

    def rebuild(self) -> None:
        """Replaces the whole log, which holds an unreadable entry, by a peer's checkpoint.

        Does nothing unless this node follows a master and no pull is under way. The checkpoint
        covers all that this node has acknowledged, so commits that counted this node stay valid.
        """
        master = self._replica.core.master_id
        if self._running or (least := self._replica.core.begin_rebuild()) is None:
            return
        assert master is not None
        logger.warning("rebuilding this node from a peer's checkpoint least_index=%d", least)
        self._start(master, least, lambda mark: True)

    def _start(self, source: NodeId, least: int, begin: Callable[[SnapshotMark], bool]) -> None:
        if self._running:
            return
        self._running = True
        self._start_task(asyncio.create_task(self._run(source, least, begin)))

    async def _run(self, source: NodeId, least: int, begin: Callable[[SnapshotMark], bool]) -> None:
        core = self._replica.core
        try:
            await self._pull(source, least, begin)
        except (SemelError, grpc.aio.AioRpcError, OSError) as error:
            logger.warning("snapshot not installed from=%d error=%s", source, error)
            core.on_snapshot_failed(monotonic_ms())
        finally:
            self._running = False
            self._replica.driver.drain()

    async def _pull(
        self, source: NodeId, least: int, begin: Callable[[SnapshotMark], bool]
    ) -> None:
        replica = self._replica
        loop = asyncio.get_running_loop()
        installing: asyncio.Future[None] | None = None
        pull = SnapshotPull(
            lambda: self._sources(source),
            self._identity.caller,
            bytes_per_second=self._rate,
            connect=self._identity.channel,
        )
        self._pulling = pull
        try:
            index, term, payload = await pull.checkpoint(least)
            state = await loop.run_in_executor(
                replica.readers, State.from_bytes, payload, replica.config.level_max
            )
            if state.applied_index != index or index < least:
                raise CorruptSegment(
                    f"checkpoint {index} holds state {state.applied_index}, {least} was asked for"
                )
            mark = SnapshotMark(
                index=index,
                term=term,
                membership=replica.peers.members_of(state.membership).membership,
            )
            if not begin(mark):
                return
            logger.info("installing snapshot index=%d bytes=%d", index, len(payload))
            refs = state.live_table(0, index + 1)
            records = self._records(pull, refs, index, replica.state.applied_index, loop)
            installing = loop.run_in_executor(
                replica.readers,
                replica.log.install_snapshot,
                [payload],
                index,
                term,
                records,
                partial(self._on_switched, state, mark),
            )
            await asyncio.shield(installing)
        finally:
            await pull.close()
            self._pulling = None
            self.bytes_pulled += pull.bytes_received
            if installing is not None and not installing.done():
                # The node stops. The thread may still wait for this loop, so the loop keeps running
                # until the thread has ended.
                await asyncio.wait({installing})
        logger.info(
            "snapshot installed index=%d records=%d pulled_bytes=%d",
            index,
            len(refs),
            pull.bytes_received,
        )

    def _on_switched(self, state: State, mark: SnapshotMark) -> None:
        """The log has switched in this turn of the loop: state and core follow."""
        self._replica.install_state(state)
        self._checkpoints.index = max(self._checkpoints.index, mark.index)
        self._replica.core.on_snapshot_installed(mark, monotonic_ms())

    def _sources(self, first: NodeId) -> list[tuple[NodeId, str]]:
        """Members to pull from: the one that made the offer, the present master, the others."""
        replica = self._replica
        nodes = sorted(
            replica.peers.reachable.keys() - {replica.config.node_id},
            key=lambda node: (node != first, node != replica.core.master_id, node),
        )
        return [(node, address) for node in nodes if (address := replica.peers.address_of(node))]

    def _records(
        self,
        pull: SnapshotPull,
        refs: LiveRecords,
        index: int,
        own_applied: int,
        loop: asyncio.AbstractEventLoop,
    ) -> Iterator[tuple[RecordRef, bytes]]:
        """Runs in the installing thread; reads local records, and has the loop pull the others."""
        missing: list[RecordRef] = []

        def fetch() -> list[tuple[RecordRef, bytes]]:
            wanted = missing.copy()
            missing.clear()
            return asyncio.run_coroutine_threadsafe(pull.records(wanted, index), loop).result()

        for ref in (RecordRef(*record) for record in refs):
            data = None
            if ref.index <= own_applied:
                data = read_or_none(self._replica.log, ref)
            if data is not None:
                yield ref, data
                continue
            missing.append(ref)
            if len(missing) == _RECORDS_PER_PULL:
                yield from fetch()
        if missing:
            yield from fetch()
