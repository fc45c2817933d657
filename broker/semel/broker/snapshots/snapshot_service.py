"""Gives peers the checkpoint, the entries and the records of this node that they lack.

How it works. A peer that is too far behind pulls a checkpoint and the records that it names
(`PullCheckpoint`, `PullRecords`). A peer whose copy is damaged pulls entries and records, and asks
what this node has of them (`PullFrames`, `PullRecords`, `DescribeEntries`). A peer that has lost
message ids pulls them run by run (`PullIds`). The reader pool reads all bytes.

Invariants
1. Each call checks who the caller is before it reads anything.
2. A record is called gone only if this node's state says that it is not live any more, or if it is
   lost on every node. A live one that cannot be read here is called damaged, whatever the reason,
   and a node that has applied less than the caller refuses to answer.

Not here: the pulling side (`snapshots/pull.py`, `snapshots/id_pull.py`, `repair/repair.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import google_crc32c

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.run_copies import pieces
from semel.broker.identity import NodeIdentity
from semel.broker.log import IndexUnavailable, RecordRef
from semel.broker.replica.id_indexes import Lacking, LeftBehind
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.snapshots.records import read_or_none
from semel.protos.errors import CorruptSegment, Unavailable
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

_PIECE_BYTES = 1 << 20
_FRAMES_PER_PULL = 1_024
_RECORDS_PER_PULL = 4_096
_APPLY_TIMEOUT_S = 5.0

_Asking = (
    raft_pb2.PullCheckpointRequest
    | raft_pb2.PullFramesRequest
    | raft_pb2.PullRecordsRequest
    | raft_pb2.DescribeEntriesRequest
    | raft_pb2.PullIdsRequest
    | raft_pb2.PullBodiesRequest
)


class SnapshotService(raft_pb2_grpc.SnapshotsServicer):
    """Gives peers this node's checkpoint, entries and records."""

    def __init__(self, replica: Replica, checkpoints: Checkpoints, identity: NodeIdentity) -> None:
        self._replica = replica
        self._checkpoints = checkpoints
        self._identity = identity

    def _check(self, request: _Asking, context: Any) -> None:
        """Raises DataDirectoryError, Unauthenticated, Unavailable."""
        caller = request.caller if request.HasField("caller") else None
        self._identity.check_message(caller)
        if caller is not None:
            self._identity.check_proof(context, caller.node_id)

    async def PullCheckpoint(  # noqa: N802
        self, request: raft_pb2.PullCheckpointRequest, context: Any
    ) -> AsyncIterator[raft_pb2.CheckpointChunk]:
        """The newest checkpoint from `position`, or from 0 when `index` is an older one."""
        self._check(request, context)
        loop = asyncio.get_running_loop()
        log = self._replica.log
        if self._checkpoints.index < request.index:
            await self._checkpoints.write()
        checkpoint = log.checkpoint
        if checkpoint is None or checkpoint.index < request.index:
            raise Unavailable(f"no checkpoint at or above index {request.index} here; try again")
        payload = await loop.run_in_executor(self._replica.pools.copies, lambda: checkpoint.payload)
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
        self, request: raft_pb2.PullFramesRequest, context: Any
    ) -> AsyncIterator[raft_pb2.FrameChunk]:
        """Entries that this node has whole, for a peer whose copy is damaged."""
        self._check(request, context)
        loop = asyncio.get_running_loop()
        log = self._replica.log
        for ref in request.entries[:_FRAMES_PER_PULL]:
            if log.term_at(ref.index) != ref.term:
                continue
            try:
                (frame,) = await loop.run_in_executor(
                    self._replica.pools.copies, log.read_frames, ref.index, ref.index + 1
                )
            except (IndexUnavailable, CorruptSegment):
                continue
            yield raft_pb2.FrameChunk(index=ref.index, data=frame)

    async def PullRecords(  # noqa: N802
        self, request: raft_pb2.PullRecordsRequest, context: Any
    ) -> AsyncIterator[raft_pb2.RecordChunk]:
        """The records asked for, in that order. Raises Unavailable on a node that is behind."""
        self._check(request, context)
        loop = asyncio.get_running_loop()
        if self._replica.state.applied_index < request.applied_index:
            raise Unavailable(
                f"node {self._replica.config.node_id} has applied entry "
                f"{self._replica.state.applied_index}, not yet {request.applied_index}"
            )
        records = request.records[:_RECORDS_PER_PULL]
        live: set[tuple[int, int]] | None = None
        for ref in records:
            wanted = RecordRef(ref.index, ref.position, ref.length)
            data = await loop.run_in_executor(
                self._replica.pools.copies, read_or_none, self._replica.log, wanted
            )
            if data is None:
                live = self._live(records) if live is None else live
                # A record that is lost everywhere is left out: its readers get an error with its
                # name.
                damaged = (ref.index, ref.position) in live
                damaged = damaged and ref.index not in self._replica.lost_entries
                yield raft_pb2.RecordChunk(record=ref, gone=not damaged, damaged=damaged)
            else:
                yield raft_pb2.RecordChunk(record=ref, data=data, crc=google_crc32c.value(data))

    async def PullBodies(  # noqa: N802
        self, request: raft_pb2.PullBodiesRequest, context: Any
    ) -> AsyncIterator[raft_pb2.BodyChunk]:
        """The batches of topics in memory that are asked for, in that order."""
        self._check(request, context)
        for ref in request.records[:_RECORDS_PER_PULL]:
            stored = self._replica.bodies.get(ref.index, ref.position)
            yield raft_pb2.BodyChunk(record=ref, data=stored or b"")

    def _live(self, refs: Sequence[raft_pb2.RecordRef]) -> set[tuple[int, int]]:
        """Index and position of those of `refs` that are live in this node's state."""
        wanted = {(ref.index, ref.position) for ref in refs}
        indexes = [ref.index for ref in refs]
        records = self._replica.state.live_records(min(indexes), max(indexes) + 1)
        return {record[:2] for record in records if record[:2] in wanted}

    async def PullIds(  # noqa: N802
        self, request: raft_pb2.PullIdsRequest, context: Any
    ) -> AsyncIterator[raft_pb2.IdsChunk]:
        """The run of an index that holds an arrival. Raises Unavailable and OSError.

        What the caller has applied is waited for, but not for ever: while no node may become master
        nobody applies anything.
        """
        self._check(request, context)
        replica, ids = self._replica, self._replica.ids
        with suppress(Unavailable):
            await replica.wait_applied(request.applied_index, _APPLY_TIMEOUT_S)
        late = replica.state.applied_index < request.applied_index
        loan = await ids.lend(request.topic_id, request.seed, request.arrival, late=late)
        if isinstance(loan, Lacking):
            yield raft_pb2.IdsChunk(lacking=True, end_arrival=loan.end_arrival)
            return
        if isinstance(loan, LeftBehind):
            yield raft_pb2.IdsChunk(
                first_arrival=loan.first_arrival, end_arrival=loan.first_arrival
            )
            return
        yield raft_pb2.IdsChunk(
            first_arrival=loan.held.start, end_arrival=loan.held.stop, ids=loan.run.info.ids
        )
        with loan.ids.pinned():
            found = pieces(loan.run, loan.held.start)
            try:
                while (
                    piece := await replica.in_reader(
                        lambda: next(found, None), replica.pools.copies
                    )
                ) is not None:
                    crc = google_crc32c.extend(google_crc32c.value(piece.ids), piece.places)
                    yield raft_pb2.IdsChunk(
                        id_columns=piece.ids, place_columns=piece.places, crc=crc
                    )
            except CorruptIndex as error:
                # A run that was merged, or whose topic's index was dropped, is no damage.
                if not loan.ids.is_abandoned and loan.run is loan.ids.run_with(loan.held.start):
                    ids.on_damage(error)
                raise Unavailable(f"the ids of topic {request.topic_id} were merged") from error

    async def DescribeEntries(  # noqa: N802
        self, request: raft_pb2.DescribeEntriesRequest, context: Any
    ) -> raft_pb2.DescribeEntriesReply:
        """What this node has of entries that are damaged at a peer."""
        self._check(request, context)
        return raft_pb2.DescribeEntriesReply(
            node_id=self._replica.config.node_id,
            states=[
                self._entry_state(ref.index, ref.term) for ref in request.entries[:_FRAMES_PER_PULL]
            ],
        )

    def _entry_state(self, index: int, term: int) -> raft_pb2.EntryState:
        replica = self._replica
        log = replica.log
        if replica.non_counting:
            return raft_pb2.ENTRY_STATE_UNKNOWN
        if index < log.first_index:
            return raft_pb2.ENTRY_STATE_HELD
        if log.term_at(index) != term:
            return raft_pb2.ENTRY_STATE_ABSENT
        damage = log.damaged.get(index)
        if damage is None:
            return raft_pb2.ENTRY_STATE_HELD
        return raft_pb2.ENTRY_STATE_TORN if damage.torn else raft_pb2.ENTRY_STATE_DAMAGED
