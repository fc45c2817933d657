"""Mends damaged entries of the own log with the frames that peers have.

How it works. The log knows a damaged entry by index and term, from its start or from a read that
failed. While there is one, this node votes but never stands for election (a master must be able to
give out every entry), and asks each peer in turn for the frames. A frame proves itself: both CRCs,
and index, term and length as the log remembers them.

Not here: finding damage (`log/`), records below the first entry (`snapshots.py` has them replaced).
"""

from __future__ import annotations

import asyncio
import logging

import grpc
import grpc.aio

from semel.broker.peers import Identity
from semel.broker.replica import Replica
from semel.protos.errors import SemelError
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_PULL_TIMEOUT_S = 10.0
_ENTRIES_PER_PULL = 256


class Repair:
    """The background task that keeps a replica's log whole."""

    def __init__(self, replica: Replica, identity: Identity) -> None:
        self._replica = replica
        self._identity = identity
        self._reported: set[int] = set()

    async def run(self) -> None:
        """Ends only by cancellation."""
        replica = self._replica
        while True:
            damaged = replica.log.damaged
            replica.set_fit("entries are damaged", not damaged or len(replica.addresses()) == 1)
            fresh = sorted(damaged.keys() - self._reported)
            if fresh:
                logger.error(
                    "entries are damaged on this node, asking the peers for them indexes=%s", fresh
                )
                self._reported.update(fresh)
            if damaged:
                for peer in replica.addresses():
                    address = replica.peer_address(peer)
                    if address and peer != self._identity.node_id and replica.log.damaged:
                        await self._mend_from(peer, address)
                replica.apply()
            await asyncio.sleep(_LOOK_S)

    async def _mend_from(self, peer: NodeId, address: str) -> None:
        log = self._replica.log
        wanted = sorted(log.damaged.values(), key=lambda damage: damage.index)
        request = raft_pb2.PullFramesRequest(
            entries=[
                raft_pb2.EntryRef(index=damage.index, term=damage.term)
                for damage in wanted[:_ENTRIES_PER_PULL]
            ]
        )
        loop = asyncio.get_running_loop()
        try:
            async with grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS) as channel:
                stub = raft_pb2_grpc.SnapshotsStub(channel)
                async for chunk in stub.PullFrames(
                    request, timeout=_PULL_TIMEOUT_S, metadata=self._identity.metadata
                ):
                    await loop.run_in_executor(self._replica.readers, log.mend, chunk.data)
                    self._reported.discard(chunk.index)
                    logger.warning("entry mended index=%d peer=%d", chunk.index, peer)
        except grpc.aio.AioRpcError:
            return  # the next peer may answer
        except SemelError as error:
            logger.error("peer sent an entry that does not fit peer=%d error=%s", peer, error)
