"""Fills the gaps in this node's indexes of message ids from the indexes of its peers.

How it works. While ids are missing, the members of the group are asked in turn for the run that
holds the first of them. It comes in pieces, at a limited rate, and becomes a run here; then the
next gap is asked for. A run that was cut off is asked for anew.

Ids that every voter has lost are given up: there is nobody to have them from. A voter that does
not answer may have them, so the node goes on asking. One that was asked before it had applied them
may turn out to have them when it becomes master, so then they are asked for again.

Not here: what is missing (`replica/id_indexes.py`), runs (`dedup/run_copies.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import google_crc32c
import grpc
import grpc.aio

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.run_copies import Piece, RunCopy
from semel.broker.raft import Role
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.pace import Pace
from semel.protos import compat
from semel.protos.errors import SemelError, Unavailable
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_PAUSE_S: Final = 1.0
"""Pause after all members were asked in vain."""
_CHUNK_TIMEOUT_S: Final = 15.0
"""A peer may have to write what it has in memory first."""


class IdPull:
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
        self._pace = Pace(bytes_per_second)
        self.ids_pulled = 0
        """Ids of all pulls since the start."""

    async def run(self) -> None:
        """Fills gaps as they appear."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._follows_a_master():
                self._replica.ids.recall()
            if not self._replica.ids.behind:
                continue
            for topic_id, missing in self._replica.ids.gaps().items():
                if not await self._fill(topic_id, missing):
                    await asyncio.sleep(_PAUSE_S)
            self._replica.ids.check()

    def _follows_a_master(self) -> bool:
        """Whether another node serves as master, with the ids that it has."""
        core, applied_term = self._replica.core, self._replica.state.applied_term
        return core.role is Role.SLAVE and core.master_id is not None and applied_term == core.term

    async def _fill(self, topic_id: int, missing: range) -> bool:
        """Asks one member after the other; False if none has helped."""
        replica = self._replica
        own = replica.config.node_id
        lacking: dict[NodeId, int] = {}
        for node in sorted(replica.peers.reachable.keys() - {own}):
            try:
                end = await self._pull(node, topic_id, missing)
                if end is None:
                    return True
                lacking[node] = end
            except (grpc.aio.AioRpcError, SemelError, TimeoutError, OSError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                logger.info(
                    "no message ids from node=%d topic=%d reason=%s", node, topic_id, reason
                )
        if lacking.keys() >= replica.core.membership.voters - {own}:
            # One of them may have some of the ids behind those that all have lost.
            replica.ids.forget(topic_id, min([missing.stop, *lacking.values()]))
            return True
        return False

    async def _pull(self, node: NodeId, topic_id: int, missing: range) -> int | None:
        """Copies the run of a member that holds the first missing id, unless its window has left
        that behind. If it lacks it, too, returns the arrival from which on it may have ids.

        Raises AioRpcError, TimeoutError, CorruptIndex, Unavailable and OSError.
        """
        replica = self._replica
        index, address = replica.ids.index_of(topic_id), replica.peers.address_of(node)
        window = replica.state.id_windows.topics.get(topic_id)
        if index is None or window is None or address is None:
            raise Unavailable(f"topic {topic_id} or node {node} is gone")
        began = time.monotonic()
        request = raft_pb2.PullIdsRequest(
            topic_id=topic_id,
            seed=window.settings.seed,
            arrival=missing.start,
            applied_index=replica.state.applied_index,
            caller=self._caller(node),
        )
        channel = grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS)
        try:
            stub: Any = raft_pb2_grpc.SnapshotsStub(channel)
            call = stub.PullIds(request)
            head = await _next(call)
            if head is None:
                raise Unavailable(f"node {node} gave no answer")
            if head.lacking:
                return int(head.end_arrival) or missing.stop
            held = range(head.first_arrival, head.end_arrival)
            if not held and held.start > missing.start:
                replica.ids.leave_behind(topic_id, held.start)
                return None
            if not held or held.start >= missing.stop or held.stop <= missing.start:
                raise CorruptIndex(f"a peer gave {held} for {missing}")
            copy = await replica.ids.write(lambda: RunCopy(index, missing, ids=head.ids, held=held))
            while (chunk := await _next(call)) is not None:
                piece = Piece(chunk.id_columns, chunk.place_columns)
                if google_crc32c.extend(google_crc32c.value(piece.ids), piece.places) != chunk.crc:
                    raise CorruptIndex("a piece of a peer's ids arrived damaged")
                await replica.ids.write(lambda piece=piece: copy.add(piece))  # type: ignore[misc]
                wait_s = self._pace.wait_s(len(piece.ids) + len(piece.places), time.monotonic())
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
            await replica.ids.write(copy.finish)
        finally:
            await channel.close(grace=0)
        self.ids_pulled += copy.ids
        seconds = time.monotonic() - began
        logger.info(
            "message ids pulled topic=%d ids=%d from=%d seconds=%.2f",
            topic_id,
            copy.ids,
            node,
            seconds,
        )
        return None


async def _next(call: Any) -> Any:
    """The next chunk; None after the last one. Raises AioRpcError and TimeoutError."""
    async with compat.timeout(_CHUNK_TIMEOUT_S):
        chunk = await call.read()
    return None if chunk is grpc.aio.EOF else chunk
