"""Repairs the damaged parts of this node's log with the bytes that its peers have.

How it works. The log knows a damaged entry by index and term, and a damaged kept record by its
place. It finds damage when it opens, when a read fails, and in the scrub. This node asks one peer
after the other for the damaged parts. A frame proves itself: both CRCs must match, and index, term
and length must be those that the log remembers. A record must have the CRC that its header
remembers. A live record may have no copy here at all, because its kept file lost everything; this
node looks for such records at the start and after each scrub.

Each round asks every peer for all that is damaged, a limited number at a time. What is lost comes
last, since only an operator can bring it back.

If no peer can give an entry, the answers of all of them decide (`repair/decision.py`): an entry
that no node can have acknowledged is cut off, and one whose copies are all damaged is called lost.

The peers may have cleaned an entry away. Then this node fetches those records of the entry that are
still needed, one by one, into a kept file. Once it has all of them, the entry no longer counts as
missing, and its damaged frame goes away with the segment. But an entry that this node has yet to
apply needs its frame. If no peer gives that, a slave replaces its log by a peer's checkpoint, and a
master, which may have entries that no other node has, resigns.

Invariants
1. This node votes but never stands for election while an entry is damaged that may still be
   repaired or has yet to be applied: a master must be able to give out every entry.

Not here: finding damage (`log/`, `repair/scrub.py`), giving entries to peers
(`snapshots/snapshot_service.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import google_crc32c
import grpc
import grpc.aio

from semel.broker.identity import NodeIdentity
from semel.broker.log import RecordRef
from semel.broker.raft import Role
from semel.broker.repair.decision import Verdict, decide
from semel.broker.replica.replica import Replica
from semel.broker.replication.receiver import frame_meta
from semel.protos.errors import SemelError
from semel.protos.frames import decode_frame_header
from semel.protos.ids import NodeId
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_PAUSE_MAX_S = 5.0
_PULL_TIMEOUT_S = 10.0
_ENTRIES_PER_PULL = 256

Wanted = TypeVar("Wanted", raft_pb2.EntryRef, RecordRef)

_EntryStates = dict[tuple[int, int], dict[NodeId, raft_pb2.EntryState]]
"""What each peer has of an entry, by (index, term)."""


def note_missing(replica: Replica) -> None:
    """Notes live records that are missing: below the log's first entry, and in no kept file."""
    log, state = replica.log, replica.state
    live = state.live_table(0, log.first_index)
    log.note_missing(RecordRef(*record) for record in live)


class Repair:
    """The background task that keeps a replica's log whole."""

    def __init__(
        self, replica: Replica, rebuild: Callable[[], None], identity: NodeIdentity
    ) -> None:
        """`rebuild` replaces the whole log by a snapshot, if that is possible now."""
        self._replica = replica
        self._rebuild = rebuild
        self._identity = identity
        self._reported: set[int] = set()
        self._stuck = False
        """In the last round no peer gave an entry that this node has yet to apply."""

    async def run(self) -> None:
        """Looks for damage and asks the peers for it, at growing intervals; ends only by
        cancellation."""
        log = self._replica.log
        note_missing(self._replica)
        known: tuple[object, object] = ({}, [])
        pause_s = wait_s = _LOOK_S
        while True:
            self._note()
            self._forget_dead_records()
            found = (log.damaged, log.damaged_records)
            wait_s -= _LOOK_S
            if found != known:
                pause_s, wait_s = _LOOK_S, 0.0
            if any(found) and wait_s <= 0:
                await self._repair()
                found = (log.damaged, log.damaged_records)
                wait_s = pause_s
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            known = found
            await asyncio.sleep(_LOOK_S)

    def _note(self) -> None:
        """Logs what is damaged, and decides whether this node may stand for election."""
        replica = self._replica
        damaged = replica.log.damaged
        replica.set_lost(replica.lost_entries & damaged.keys())
        missing = [
            index
            for index in damaged
            if index not in replica.lost_entries or index > replica.state.applied_index
        ]
        replica.set_fit("entries are damaged", not missing or len(replica.peers.addresses) == 1)
        self._reported &= damaged.keys()
        for index in sorted(damaged.keys() - self._reported):
            logger.error("damaged, asking the peers for it what=%s", replica.log.describe(index))
            self._reported.add(index)

    def _live(self, index: int) -> list[RecordRef]:
        """The records of an applied entry that are still needed."""
        return [RecordRef(*record) for record in self._replica.state.live_records(index, index + 1)]

    def _forget_dead_records(self) -> None:
        """Drops damaged records that were trimmed since: they need no repair any more."""
        log = self._replica.log
        for ref in log.damaged_records:
            if ref not in self._live(ref.index):
                log.forget_record(ref)

    async def _repair(self) -> None:
        """Asks every peer once for what is damaged, then decides about the rest."""
        replica = self._replica
        states: _EntryStates = {}
        for peer in replica.peers.addresses:
            address = replica.peers.address_of(peer)
            if not address or peer == self._replica.config.node_id:
                continue
            try:
                async with self._identity.channel(peer, address) as channel:
                    stub = raft_pb2_grpc.SnapshotsStub(channel)
                    await self._repair_entries(stub, peer)
                    await self._repair_records(stub, peer)
                    await self._keep_records(stub, peer)
                    await self._ask(stub, peer, states)
            except grpc.aio.AioRpcError:
                continue  # The next peer may answer.
            except OSError as error:  # A block that cannot be read cannot be written either.
                logger.error("not repaired, replace this disk error=%s", error)
            except SemelError as error:
                logger.error("repair failed, asking the next peer peer=%d error=%s", peer, error)
        self._decide(states)
        self._give_up_stuck(states)
        self._note()
        replica.applier.apply()

    async def _repair_entries(self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId) -> None:
        for entries in self._wanted():
            await self._repair_portion(stub, peer, entries)

    async def _repair_portion(
        self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId, entries: list[raft_pb2.EntryRef]
    ) -> None:
        log = self._replica.log
        loop = asyncio.get_running_loop()
        request = raft_pb2.PullFramesRequest(entries=entries, caller=self._identity.caller(peer))
        async for chunk in stub.PullFrames(request, timeout=_PULL_TIMEOUT_S):
            await loop.run_in_executor(self._replica.readers, log.repair, chunk.data)
            logger.warning("entry repaired index=%d peer=%d", chunk.index, peer)
            meta = frame_meta(chunk.data, decode_frame_header(chunk.data))
            if meta.membership is not None and meta.index > self._replica.state.applied_index:
                self._replica.on_fatal(
                    f"entry {chunk.index}, now repaired, changed the membership of this group, "
                    "which is read from the log at the start only: start this node again"
                )

    async def _repair_records(self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId) -> None:
        log = self._replica.log
        loop = asyncio.get_running_loop()
        for refs in _portions(log.damaged_records):
            for ref, data in await self._pull(stub, peer, refs):
                await loop.run_in_executor(self._replica.readers, log.repair_record, ref, data)
                logger.warning("kept record repaired index=%d peer=%d", ref.index, peer)

    async def _keep_records(self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId) -> None:
        """Fetches the records that are still needed of entries that the peer has cleaned away."""
        replica, log = self._replica, self._replica.log
        wanted = [
            ref
            for index in sorted(log.damaged)
            if index <= replica.state.applied_index
            for ref in self._live(index)
            if not log.has_kept(ref)
        ]
        loop = asyncio.get_running_loop()
        for refs in _portions(wanted):
            if found := await self._pull(stub, peer, refs):
                await loop.run_in_executor(replica.readers, log.keep_records, found)
                logger.warning("records of damaged entries kept count=%d peer=%d", len(found), peer)

    async def _pull(
        self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId, refs: list[RecordRef]
    ) -> list[tuple[RecordRef, bytes]]:
        """Pulls from the peer those of `refs` that it has; returns them checked."""
        found: list[tuple[RecordRef, bytes]] = []
        request = raft_pb2.PullRecordsRequest(
            records=[
                raft_pb2.RecordRef(index=ref.index, position=ref.position, length=ref.length)
                for ref in refs
            ],
            caller=self._identity.caller(peer),
        )
        async for chunk in stub.PullRecords(request, timeout=_PULL_TIMEOUT_S):
            if chunk.gone or chunk.damaged:
                continue
            ref = RecordRef(chunk.record.index, chunk.record.position, chunk.record.length)
            if len(chunk.data) == ref.length and google_crc32c.value(chunk.data) == chunk.crc:
                found.append((ref, chunk.data))
        return found

    async def _ask(
        self, stub: raft_pb2_grpc.SnapshotsStub, peer: NodeId, states: _EntryStates
    ) -> None:
        """Notes in `states` what the peer has of the entries that are still damaged."""
        for entries in self._wanted():
            request = raft_pb2.DescribeEntriesRequest(
                entries=entries, caller=self._identity.caller(peer)
            )
            reply = await stub.DescribeEntries(request, timeout=_PULL_TIMEOUT_S)
            if reply.node_id != peer or len(reply.states) != len(request.entries):
                return  # Another node answers at this address.
            for ref, state in zip(request.entries, reply.states, strict=True):
                states.setdefault((ref.index, ref.term), {})[peer] = state

    def _others(self) -> set[NodeId]:
        replica = self._replica
        nodes = {*replica.peers.addresses, *replica.core.membership.nodes}
        return nodes - {replica.config.node_id}

    def _give_up_stuck(self, states: _EntryStates) -> None:
        """Gives up an entry that this node has yet to apply, once all peers were asked for it twice
        and none gave it: either no other node has it, or all have cleaned it away. A master
        resigns, a slave is rebuilt."""
        replica, members = self._replica, self._others()
        stuck = [
            index
            for index, damage in replica.log.damaged.items()
            if index > replica.state.applied_index
            and members
            and members <= states.get((index, damage.term), {}).keys()
        ]
        again, self._stuck = self._stuck, bool(stuck)
        if not stuck or not again:
            return
        if replica.core.role is Role.MASTER:
            logger.error("no longer master: nobody gives %s", replica.log.describe(min(stuck)))
            replica.resign()
        elif min(stuck) <= replica.core.commit_index:
            self._rebuild()

    def _is_kept(self, index: int) -> bool:
        """Whether the entry is applied and all its needed records are in kept files."""
        replica = self._replica
        return index <= replica.state.applied_index and all(
            replica.log.has_kept(ref) for ref in self._live(index)
        )

    def _wanted(self) -> Iterator[list[raft_pb2.EntryRef]]:
        """All damaged entries, those last that are lost, a request's worth at a time."""
        lost = self._replica.lost_entries
        damaged = self._replica.log.damaged.values()
        return _portions(
            [
                raft_pb2.EntryRef(index=damage.index, term=damage.term)
                for damage in sorted(damaged, key=lambda one: (one.index in lost, one.index))
            ]
        )

    def _decide(self, states: _EntryStates) -> None:
        """Decides about the damaged entries by rising index: a cut also drops all later ones."""
        replica = self._replica
        members = self._others()
        for index, damage in sorted(replica.log.damaged.items()):
            said = states.get((index, damage.term), {})
            verdict = decide(members, said, torn=damage.torn)
            if verdict is Verdict.CUT:
                if replica.driver.cut_torn(index):
                    logger.warning("torn write cut, nobody acknowledged it index=%d", index)
                return
            if index in replica.lost_entries:
                continue
            if members <= said.keys() and self._is_kept(index):
                replica.set_lost(replica.lost_entries | {index})
                logger.warning(
                    "the peers have cleaned this entry away, what is needed of it is kept what=%s",
                    replica.log.describe(index),
                )
            elif verdict is Verdict.LOST:
                replica.set_lost(replica.lost_entries | {index})
                logger.error(
                    "EVERY COPY IS DAMAGED, its messages are refused; restore the file on one "
                    "node what=%s",
                    replica.log.describe(index),
                )


def _portions(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """All of them, as many at a time as one request may name."""
    for start in range(0, len(wanted), _ENTRIES_PER_PULL):
        yield list(wanted[start : start + _ENTRIES_PER_PULL])
