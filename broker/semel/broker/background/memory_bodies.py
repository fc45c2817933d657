"""Brings the bodies of topics in memory that this node lacks, and gives up those that nobody has.

How it works. A node that starts has no bodies, and one that got entries from a node without them
lacks some. It goes through the queues in memory, asks the members for what it lacks, newest first
and at a limited rate, and compares each batch with the header in its own log. What no member has is
lost: the master says so in an entry (LOSE_MEMORY) once every member has answered in one round, or
those that do not answer had `memory_wait_ms` for it. If that happens to a queue on its way here,
the move is given up (`state/apply/moves.py`): its source has all of it.

Invariants
1. A batch is taken only if its header is that of the log and its body has the header's CRC.
2. Only the master gives up offsets, and only applied ones that it lacks itself. While it cannot
   read the header of a batch in its own log, it gives up nothing: the entry is to be repaired.

Not here: the batches that are here (`memory/bodies.py`), reads of what is not (`server/fetch.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

import grpc
import grpc.aio

from semel.broker.background.propose import propose
from semel.broker.identity import peer_channel
from semel.broker.log import IndexUnavailable, Log
from semel.broker.memory import Lacking
from semel.broker.memory.bodies import is_wanted
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.pace import Pace
from semel.broker.state import RECORD_BYTES, LostRange
from semel.protos import compat
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.errors import CorruptBatch, CorruptSegment, SemelError
from semel.protos.ids import NodeId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2, raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_PAUSE_S: Final = 0.5
"""Pause after a round in which not everything was found."""
_CHUNK_TIMEOUT_S: Final = 5.0
_REQUEST_BYTES_MAX: Final = 4 << 20
_REQUEST_RECORDS_MAX: Final = 4_096
"""A giver answers no more of them (`raft.proto`)."""


class MemoryBodies:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self,
        replica: Replica,
        caller: Callable[[NodeId], raft_pb2.PeerCaller],
        *,
        bytes_per_second: int,
    ) -> None:
        """`caller` is how this node introduces itself to a member."""
        self._replica = replica
        self._caller = caller
        self._rate = bytes_per_second
        self._pace = Pace(bytes_per_second)
        self._since: float | None = None
        """Since when this node, as master, lacks what no member that answers has."""
        self._blind = False
        """Some header could not be read in the round under way."""
        self.missing_bytes = 0
        """Batches that this node lacked when it looked last."""
        self.pulled_bytes = 0
        """Batches of all pulls since the start."""

    async def run(self) -> None:
        """Looks for what is missing whenever something may be."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._replica.bodies.missing_to and not await self._look():
                await asyncio.sleep(_PAUSE_S)

    async def _look(self) -> bool:
        """Brings what it can; False if something is still missing."""
        replica, bodies = self._replica, self._replica.bodies
        missing_to, state = bodies.missing_to, replica.state
        applied = state.applied_index  # what is applied while members are asked was not looked at
        lacking = await self._lacking()
        own = replica.config.node_id
        members = replica.core.membership.nodes - {own}
        first = [replica.core.master_id] if replica.core.master_id in members else []
        answered = set[NodeId]()
        self._blind = False
        left = lacking
        for node in [*first, *sorted(members - set(first))]:
            if not left:
                break
            rest = await self._ask(node, left)
            if rest is not None:
                answered.add(node)
                left = rest
        self.missing_bytes = sum(one.extent.length for one in left)
        if not left:
            self._since = None
            same = state is replica.state and bodies.missing_to == missing_to
            if same and applied >= missing_to:
                bodies.missing_to = 0
            return not bodies.missing_to
        if replica.is_master and state is replica.state and not self._blind:
            await self._give_up(left, all_answered=answered >= members)
        else:
            self._since = None
        return False

    async def _lacking(self) -> list[Lacking]:
        """Returns what is live and not here, newest first."""
        found: list[Lacking] = []
        for one in self._replica.bodies.lacking(self._replica.state):
            if one is None:
                await asyncio.sleep(0)
            else:
                found.append(one)
        return sorted(found, key=lambda one: one.extent.index, reverse=True)

    async def _ask(self, node: NodeId, wanted: Sequence[Lacking]) -> list[Lacking] | None:
        """Returns what is still missing after a member has answered; None if it does not answer."""
        address = self._replica.peers.address_of(node)
        if address is None:
            return None
        left: list[Lacking] = []
        try:
            async with peer_channel(self._replica.config, node, address) as channel:
                stub: Any = raft_pb2_grpc.SnapshotsStub(channel)
                done = 0
                while done < len(wanted):
                    portion = self._portion(wanted, done)
                    left += await self._pull(stub, node, portion)
                    done += len(portion)
        except (grpc.aio.AioRpcError, SemelError, TimeoutError, OSError) as error:
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            logger.info("no bodies from node=%d reason=%s", node, reason)
            return None
        return left

    def _portion(self, wanted: Sequence[Lacking], start: int) -> Sequence[Lacking]:
        """The records for one request: few, so that the rate holds on the way, too."""
        room = min(_REQUEST_BYTES_MAX, self._rate // 4)
        end, last = start, min(len(wanted), start + _REQUEST_RECORDS_MAX)
        while end < last and (end == start or room >= wanted[end].extent.length):
            room -= wanted[end].extent.length
            end += 1
        return wanted[start:end]

    async def _pull(self, stub: Any, node: NodeId, wanted: Sequence[Lacking]) -> list[Lacking]:
        """What of a portion is still missing. Raises AioRpcError, SemelError, TimeoutError."""
        request = raft_pb2.PullBodiesRequest(
            records=[
                raft_pb2.RecordRef(
                    index=one.extent.index, position=one.extent.position, length=one.extent.length
                )
                for one in wanted
            ],
            caller=self._caller(node),
        )
        call = stub.PullBodies(request)
        came: list[bytes] = []
        try:
            async with compat.timeout(_CHUNK_TIMEOUT_S * 2):
                while (chunk := await call.read()) is not grpc.aio.EOF:
                    came.append(chunk.data)
        finally:
            call.cancel()
        came += [b""] * (len(wanted) - len(came))
        left = await self._take(wanted, came)
        wait_s = self._pace.wait_s(sum(map(len, came)), time.monotonic())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        return left

    async def _take(self, wanted: Sequence[Lacking], came: Sequence[bytes]) -> list[Lacking]:
        """Puts what came into memory, if it is what is wanted; returns what is still missing."""
        replica, log = self._replica, self._replica.log
        good = await replica.in_reader(lambda: _checked(log, wanted, came))
        left: list[Lacking] = []
        for one, stored, is_good in zip(wanted, came, good, strict=False):
            extent = one.extent
            if is_good is None and extent.index not in replica.lost_entries:
                self._blind = True
            if not is_good:
                left.append(one)
            elif is_wanted(replica.state, extent.index, extent.position, stored):
                replica.bodies.put(extent.index, extent.position, stored)
                self.pulled_bytes += len(stored)
        return left

    async def _give_up(self, left: Sequence[Lacking], *, all_answered: bool) -> None:
        """Says that offsets are lost, if it is time for that."""
        replica, now = self._replica, time.monotonic()
        if self._since is None:
            self._since = now
        waited = now - self._since >= replica.config.memory_wait_ms / 1000
        if not all_answered and not waited:
            return
        for key, lost in _ranges(left):
            queue = replica.state.holding(key)
            start = lost.from_offset if queue is None else queue.log_start_offset
            if lost.to_offset <= start or (queue is not None and queue.frozen):
                continue  # what a sealed queue has lost is said where it goes, or once it stays
            logger.error(
                "messages of a topic in memory are lost topic=%s queue=%d first=%d last=%d"
                " all_answered=%s",
                "" if queue is None else queue.topic,
                key.queue_id,
                lost.from_offset,
                lost.to_offset - 1,
                all_answered,
            )
            record = control_pb2.LoseMemory(
                queue=queue_ref(key),
                from_offset=max(lost.from_offset, start),
                to_offset=lost.to_offset,
            )
            await propose(replica, control_pb2.ControlRecord(lose_memory=record))
        self._since = None


def _ranges(lacking: Sequence[Lacking]) -> list[tuple[QueueKey, LostRange]]:
    """The offsets of batches, those that follow each other as one range."""
    found: list[tuple[QueueKey, LostRange]] = []
    ordered = sorted(lacking, key=lambda one: (one.key, one.extent.base_offset))
    for key, group in groupby(ordered, lambda one: one.key):
        ranges: list[LostRange] = []
        for one in group:
            start, end = one.extent.base_offset, one.extent.base_offset + one.extent.count
            if ranges and ranges[-1].to_offset == start:
                start = ranges.pop().from_offset
            ranges.append(LostRange(start, end))
        found += [(key, each) for each in ranges]
    return found


def _checked(log: Log, wanted: Sequence[Lacking], came: Sequence[bytes]) -> list[bool | None]:
    """BLOCKING. Which of the batches that came are those that are wanted; None for one whose
    header cannot be read here."""
    return [_is_good(log, one, stored) for one, stored in zip(wanted, came, strict=False)]


def _is_good(log: Log, one: Lacking, stored: bytes) -> bool | None:
    extent = one.extent
    if len(stored) != extent.length:
        return False
    try:
        check_batch(stored, BROKER_HEADER_BYTES)
    except CorruptBatch:
        return False
    try:
        header = log.read_record(extent.index, extent.position, RECORD_BYTES)
    except (IndexUnavailable, CorruptSegment):
        return None
    return bytes(header) == stored[:RECORD_BYTES]
