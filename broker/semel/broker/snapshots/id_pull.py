"""Fills the gaps in this node's indexes of message ids from the indexes of its peers.

How it works. While ids are missing, all members of the group are asked at once for the run that
holds the first of them: each may take seconds to answer, as one that has applied less. The first
answer that has the ids counts, and the others are told to stop. The run comes in pieces, at a
limited rate, and becomes a run here; then the next gap is asked for. A run that was cut off is
asked of the other members, and then of all anew.

Ids that every voter has lost are given up: there is nobody to have them from. A voter that does
not answer may have them, so the node goes on asking. One that was asked before it had applied them
may turn out to have them when it becomes master, so then they are asked for again.

Not here: what is missing (`replica/id_indexes.py`), runs (`dedup/run_copies.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, TypeVar

import google_crc32c
import grpc
import grpc.aio

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.run_copies import Piece, RunCopy
from semel.broker.identity import peer_channel
from semel.broker.raft import Role
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.pace import Pace
from semel.protos import compat
from semel.protos.errors import SemelError, Unavailable
from semel.protos.ids import NodeId
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_S: Final = 0.1
_PAUSE_S: Final = 1.0
"""Pause after all members were asked in vain."""
_CHUNK_TIMEOUT_S: Final = 15.0
"""A peer may have to write what it has in memory first."""
_ASKED_AT_ONCE: Final = 8
"""Members that are asked at a time; hardly ever has a group more."""


class _Offer(NamedTuple):
    """A member has begun to send its run."""

    node: NodeId
    call: Any
    """The call, whose next chunks are the pieces of the run."""
    ids: int
    held: range
    """The arrivals of the run that are in the member's window."""


class _Lacking(NamedTuple):
    """A member lacks the first missing id, too."""

    end_arrival: int
    """It may have those that arrived from here on."""


class _LeftBehind(NamedTuple):
    """The window of a member has left the first missing id behind."""

    first_arrival: int


_Answer = _Offer | _Lacking | _LeftBehind


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
        """Asks the members until one has helped; False if none has."""
        replica = self._replica
        own = replica.config.node_id
        asked = sorted(replica.peers.reachable.keys() - {own})
        lacking: dict[NodeId, int] = {}
        while asked:
            async with AsyncExitStack() as channels:
                answers = await self._ask_all(asked, topic_id, missing, channels)
                for node, answer in answers.items():
                    if isinstance(answer, _LeftBehind):
                        replica.ids.leave_behind(topic_id, answer.first_arrival)
                        return True
                    if isinstance(answer, _Offer) and await self._tried(
                        node, topic_id, self._copy(topic_id, missing, answer)
                    ):
                        return True
                    if isinstance(answer, _Lacking):
                        lacking[node] = answer.end_arrival
            asked = [node for node in asked if node not in answers]
        if lacking.keys() >= replica.core.membership.voters - {own}:
            # One of them may have some of the ids behind those that all have lost.
            replica.ids.forget(topic_id, min([missing.stop, *lacking.values()]))
            return True
        return False

    async def _ask_all(
        self, nodes: list[NodeId], topic_id: int, missing: range, channels: AsyncExitStack
    ) -> dict[NodeId, _Answer | None]:
        """Asks members until one has the ids or has left them behind: it stands last then, and
        those that have not answered yet are left out. None stands for a failure."""
        answers: dict[NodeId, _Answer | None] = {}
        limit = asyncio.Semaphore(_ASKED_AT_ONCE)
        asking: dict[NodeId, asyncio.Task[None]] = {}

        async def ask(node: NodeId) -> None:
            async with limit:
                found = await self._tried(
                    node, topic_id, self._ask(node, topic_id, missing, channels)
                )
            answers[node] = found
            if isinstance(found, _Offer | _LeftBehind):
                for other, task in asking.items():
                    if other != node:
                        task.cancel()

        async with compat.TaskGroup() as tasks:
            for node in nodes:
                asking[node] = tasks.create_task(ask(node))
        return answers

    async def _tried(self, node: NodeId, topic_id: int, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns; None, with a line in the log, if the member does not help."""
        try:
            return await work
        except (grpc.aio.AioRpcError, SemelError, TimeoutError, OSError) as error:
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            logger.info("no message ids from node=%d topic=%d reason=%s", node, topic_id, reason)
            return None

    async def _ask(
        self, node: NodeId, topic_id: int, missing: range, channels: AsyncExitStack
    ) -> _Answer:
        """What a member has of the first missing id.

        Raises AioRpcError, TimeoutError, CorruptIndex and Unavailable.
        """
        replica = self._replica
        address = replica.peers.address_of(node)
        window = replica.state.id_windows.topics.get(topic_id)
        if window is None or address is None:
            raise Unavailable(f"topic {topic_id} or node {node} is gone")
        request = raft_pb2.PullIdsRequest(
            topic_id=topic_id,
            seed=window.settings.seed,
            arrival=missing.start,
            applied_index=replica.state.applied_index,
            caller=self._caller(node),
        )
        channel = peer_channel(replica.config, node, address)
        await channels.enter_async_context(channel)
        stub: Any = raft_pb2_grpc.SnapshotsStub(channel)
        call = stub.PullIds(request)
        try:
            head = await _next(call)
        except BaseException:
            call.cancel()  # another member has the ids, or this one is too slow
            raise
        if head is None:
            raise Unavailable(f"node {node} gave no answer")
        if head.lacking:
            return _Lacking(int(head.end_arrival) or missing.stop)
        held = range(head.first_arrival, head.end_arrival)
        if not held and held.start > missing.start:
            return _LeftBehind(held.start)
        if not held or held.start >= missing.stop or held.stop <= missing.start:
            call.cancel()
            raise CorruptIndex(f"a peer gave {held} for {missing}")
        return _Offer(node, call, int(head.ids), held)

    async def _copy(self, topic_id: int, missing: range, offer: _Offer) -> bool:
        """Copies the run of a member; True.

        Raises AioRpcError, TimeoutError, CorruptIndex, Unavailable and OSError.
        """
        began = time.monotonic()
        replica = self._replica
        index = replica.ids.index_of(topic_id)
        if index is None:
            raise Unavailable(f"topic {topic_id} is gone")
        copy = await replica.ids.write(
            lambda: RunCopy(index, missing, ids=offer.ids, held=offer.held)
        )
        while (chunk := await _next(offer.call)) is not None:
            piece = Piece(chunk.id_columns, chunk.place_columns)
            if google_crc32c.extend(google_crc32c.value(piece.ids), piece.places) != chunk.crc:
                raise CorruptIndex("a piece of a peer's ids arrived damaged")
            await replica.ids.write(lambda piece=piece: copy.add(piece))  # type: ignore[misc]
            wait_s = self._pace.wait_s(len(piece.ids) + len(piece.places), time.monotonic())
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        await replica.ids.write(copy.finish)
        self.ids_pulled += copy.ids
        logger.info(
            "message ids pulled topic=%d ids=%d from=%d seconds=%.2f",
            topic_id,
            copy.ids,
            offer.node,
            time.monotonic() - began,
        )
        return True


async def _next(call: Any) -> Any:
    """The next chunk; None after the last one. Raises AioRpcError and TimeoutError."""
    async with compat.timeout(_CHUNK_TIMEOUT_S):
        chunk = await call.read()
    return None if chunk is grpc.aio.EOF else chunk
