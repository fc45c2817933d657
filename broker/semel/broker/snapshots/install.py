"""Checkpoints of the own state, and catching up from a peer's.

How it works. A checkpoint is the replicated state at one index, in canonical bytes: taken on the
loop, written and synced in a thread beside serving. It bounds the replay at start, lets the log be
cleaned, and is what a peer pulls that is too far behind for entries (or new and empty):

1. The master offers a snapshot. The slave pulls the newest checkpoint there and builds the state.
2. The state names every stored record that is still live. What the slave's own committed log holds
   is copied from there, the rest is pulled (`pull.py`: bounded in rate, going on at the
   next member when one fails).
3. The log switches to the new base in one step (`Log.install_snapshot`); until then the old log and
   vote stand. Entries behind the checkpoint then come the ordinary way.

A record that was trimmed at the master since the checkpoint is gone there; the slave leaves it out,
because the log says so at a later index, before which nobody is served from here.

Not here: when a snapshot is offered (`raft/`), how files are switched (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import google_crc32c
import grpc
import grpc.aio

from semel.broker.identity import NodeIdentity
from semel.broker.log import IndexUnavailable, Log, RecordRef
from semel.broker.raft import Message, SnapshotMark
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.pull import SnapshotPull
from semel.broker.state import State
from semel.protos.errors import CorruptSegment, SemelError, Unavailable
from semel.protos.ids import NodeId
from semel.protos.metrics import Histogram
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_RECORDS_PER_PULL = 512
_FRAMES_PER_PULL = 1_024


_Asking = (
    raft_pb2.PullCheckpointRequest
    | raft_pb2.PullFramesRequest
    | raft_pb2.PullRecordsRequest
    | raft_pb2.DescribeEntriesRequest
)


class Checkpoints:
    """Writes checkpoints of one replica, one at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._writing = asyncio.Lock()
        checkpoint = replica.log.checkpoint
        self.index = 0 if checkpoint is None else checkpoint.index
        """Index of the newest checkpoint."""
        self.seconds = Histogram()
        """How long writing one took, from taking the state to its being durable."""
        self.pause_seconds = Histogram()
        """How long the loop stood still for that, while the state was taken."""

    @property
    def length(self) -> int:
        """Bytes of the newest checkpoint's payload; 0 without one."""
        checkpoint = self._replica.log.checkpoint
        return 0 if checkpoint is None else checkpoint.length

    async def write(self, *, anew: bool = False) -> int:
        """Makes the newest applied state durable; returns its index. `anew`: even if it is."""
        async with self._writing:
            replica = self._replica
            state, log = replica.state, replica.log
            index, term = state.applied_index, state.applied_term
            if index <= self.index and not anew:
                return self.index
            began = time.monotonic()  # the loop's own clock stands still within a turn
            parts = state.to_parts()
            self.pause_seconds.observe(time.monotonic() - began)
            await asyncio.get_running_loop().run_in_executor(
                replica.readers, log.save_checkpoint, index, term, parts
            )
            self.seconds.observe(time.monotonic() - began)
            self.index = max(self.index, index)
            logger.info("checkpoint written index=%d bytes=%d", index, sum(map(len, parts)))
            return self.index


class SnapshotService(raft_pb2_grpc.SnapshotsServicer):
    """Gives peers this node's checkpoint, entries and records."""

    def __init__(self, replica: Replica, checkpoints: Checkpoints, identity: NodeIdentity) -> None:
        self._replica = replica
        self._checkpoints = checkpoints
        self._identity = identity

    def _check(self, request: _Asking) -> None:
        """Raises DataDirectoryError, Unavailable."""
        self._identity.check_message(request.caller if request.HasField("caller") else None)

    async def PullCheckpoint(  # noqa: N802
        self, request: raft_pb2.PullCheckpointRequest, context: object
    ) -> AsyncIterator[raft_pb2.CheckpointChunk]:
        """The newest checkpoint from `position`, or from 0 when `index` is an older one."""
        self._check(request)
        loop = asyncio.get_running_loop()
        log = self._replica.log
        if self._checkpoints.index < request.index:
            await self._checkpoints.write()
        checkpoint = log.checkpoint
        if checkpoint is None or checkpoint.index < request.index:
            raise Unavailable(f"no checkpoint at or above index {request.index} here; try again")
        payload = await loop.run_in_executor(self._replica.readers, lambda: checkpoint.payload)
        crc = google_crc32c.value(payload)
        position = request.position if request.index == checkpoint.index else 0
        for at in range(min(position, len(payload)), max(len(payload), 1), _PIECE_BYTES):
            yield raft_pb2.CheckpointChunk(
                index=checkpoint.index,
                term=checkpoint.term,
                total_bytes=len(payload),
                position=at,
                data=payload[at : at + _PIECE_BYTES],
                payload_crc=crc,
            )

    async def PullFrames(  # noqa: N802
        self, request: raft_pb2.PullFramesRequest, context: object
    ) -> AsyncIterator[raft_pb2.FrameChunk]:
        """Entries that this node has whole, for a peer whose copy is damaged."""
        self._check(request)
        loop = asyncio.get_running_loop()
        log = self._replica.log
        for ref in request.entries[:_FRAMES_PER_PULL]:
            if log.term_at(ref.index) != ref.term:
                continue
            try:
                (frame,) = await loop.run_in_executor(
                    self._replica.readers, log.read_frames, ref.index, ref.index + 1
                )
            except (IndexUnavailable, CorruptSegment):
                continue
            yield raft_pb2.FrameChunk(index=ref.index, data=frame)

    async def PullRecords(  # noqa: N802
        self, request: raft_pb2.PullRecordsRequest, context: object
    ) -> AsyncIterator[raft_pb2.RecordChunk]:
        """The records asked for, in that order. Raises Unavailable on a node that is behind."""
        self._check(request)
        loop = asyncio.get_running_loop()
        if self._replica.state.applied_index < request.applied_index:
            raise Unavailable(
                f"node {self._replica.config.node_id} has applied entry "
                f"{self._replica.state.applied_index}, not yet {request.applied_index}"
            )
        for ref in request.records:
            wanted = RecordRef(ref.index, ref.position, ref.length)
            data = await loop.run_in_executor(
                self._replica.readers, _read_or_none, self._replica.log, wanted
            )
            if data is None:
                log = self._replica.log
                damaged = ref.index in log.damaged or wanted in log.damaged_records
                # One that is lost everywhere is left out: whoever asks for it is refused by name.
                damaged = damaged and ref.index not in self._replica.lost_entries
                yield raft_pb2.RecordChunk(record=ref, gone=not damaged, damaged=damaged)
            else:
                yield raft_pb2.RecordChunk(record=ref, data=data, crc=google_crc32c.value(data))

    async def DescribeEntries(  # noqa: N802
        self, request: raft_pb2.DescribeEntriesRequest, context: object
    ) -> raft_pb2.DescribeEntriesReply:
        """What this node has of entries that are damaged at a peer."""
        self._check(request)
        return raft_pb2.DescribeEntriesReply(
            node_id=self._replica.config.node_id,
            standings=[
                self._standing(ref.index, ref.term) for ref in request.entries[:_FRAMES_PER_PULL]
            ],
        )

    def _standing(self, index: int, term: int) -> raft_pb2.EntryStanding:
        replica = self._replica
        log = replica.log
        if replica.muted:
            return raft_pb2.ENTRY_STANDING_UNKNOWN
        if index < log.first_index:
            return raft_pb2.ENTRY_STANDING_HELD
        if log.term_at(index) != term:
            return raft_pb2.ENTRY_STANDING_ABSENT
        damage = log.damaged.get(index)
        if damage is None:
            return raft_pb2.ENTRY_STANDING_HELD
        return raft_pb2.ENTRY_STANDING_TORN if damage.torn else raft_pb2.ENTRY_STANDING_DAMAGED


class CatchUp:
    """Brings this replica up from a peer's checkpoint when the master offers one."""

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
        """Over all pulls of this life."""

    def on_offer(self, offer: Message) -> None:
        """Starts a pull unless one is under way."""
        assert offer.snapshot is not None
        self._start(offer.source, offer.snapshot.index, self._replica.core.begin_snapshot)

    def rebuild(self) -> None:
        """Puts a peer's checkpoint in place of the whole own log, of which an entry cannot be read.

        Nothing unless this node follows a master and no pull is under way. The checkpoint covers
        all that this node has acknowledged, so those who counted it still may.
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

    @property
    def bytes_pulled_now(self) -> int:
        """Of the pull that is under way; 0 when there is none."""
        return 0 if self._pulling is None else self._pulling.bytes_received

    async def _pull(
        self, source: NodeId, least: int, begin: Callable[[SnapshotMark], bool]
    ) -> None:
        replica = self._replica
        loop = asyncio.get_running_loop()
        installing: asyncio.Future[None] | None = None
        pull = SnapshotPull(
            lambda: self._sources(source), self._identity.caller, bytes_per_second=self._rate
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
            refs = [RecordRef(*ref) for ref in state.live_records(0, index + 1)]
            records = self._records(pull, refs, index, replica.state.applied_index, loop)
            installing = loop.run_in_executor(
                replica.readers,
                replica.log.install_snapshot,
                [payload],
                index,
                term,
                records,
            )
            await asyncio.shield(installing)
        finally:
            await pull.close()
            self._pulling = None
            self.bytes_pulled += pull.bytes_received
            if installing is not None and not installing.done():
                # The node stops. The thread waits for this loop, which must not be blocked by
                # waiting for the thread: see it end first.
                await asyncio.wait({installing})
        replica.install_state(state)
        self._checkpoints.index = max(self._checkpoints.index, index)
        replica.core.on_snapshot_installed(mark, monotonic_ms())
        logger.info(
            "snapshot installed index=%d records=%d pulled_bytes=%d",
            index,
            len(refs),
            pull.bytes_received,
        )

    def _sources(self, first: NodeId) -> list[tuple[NodeId, str]]:
        """Members that may give: who offered, then the master of the moment, then the others."""
        replica = self._replica
        nodes = sorted(
            replica.peers.reachable.keys() - {replica.config.node_id},
            key=lambda node: (node != first, node != replica.core.master_id, node),
        )
        return [(node, address) for node in nodes if (address := replica.peers.address_of(node))]

    def _records(
        self,
        pull: SnapshotPull,
        refs: Sequence[RecordRef],
        index: int,
        own_applied: int,
        loop: asyncio.AbstractEventLoop,
    ) -> Iterator[tuple[RecordRef, bytes]]:
        """Runs in the thread that installs: local records are read, others pulled on the loop."""
        missing: list[RecordRef] = []

        def fetch() -> list[tuple[RecordRef, bytes]]:
            wanted = missing.copy()
            missing.clear()
            return asyncio.run_coroutine_threadsafe(pull.records(wanted, index), loop).result()

        for ref in refs:
            data = None
            if ref.index <= own_applied:
                data = _read_or_none(self._replica.log, ref)
            if data is not None:
                yield ref, data
                continue
            missing.append(ref)
            if len(missing) == _RECORDS_PER_PULL:
                yield from fetch()
        if missing:
            yield from fetch()


def _read_or_none(log: Log, ref: RecordRef) -> bytes | None:
    """None when the record is not (readable) here any more."""
    try:
        return bytes(log.read_record(ref.index, ref.position, ref.length))
    except (IndexUnavailable, CorruptSegment):
        return None
