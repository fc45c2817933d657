"""Pulls a checkpoint and records from the group's members, and resumes a pull that was cut off.

How it works. Any member that has applied enough entries can give the same bytes: a record's place
in the log is the same on every node. So a broken stream, or a node that hangs, is damaged or stops,
does not end the pull: it asks the next member for the missing rest. A pull is given up only when
nothing at all has arrived from any member for `_PATIENCE_S`.

All bytes that arrive count against `bytes_per_second`, so that the giver can go on serving.

Invariants
1. Bytes that arrived are not asked for again, except when the giver has a newer checkpoint.
2. "Gone" counts only from a node that has applied the checkpoint's index, because there it means
   that the record was trimmed.

Not here: what is pulled and where it goes (`snapshots/install.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import google_crc32c
import grpc
import grpc.aio

from semel.broker.log import RecordRef
from semel.broker.snapshots.pace import Pace
from semel.protos import compat
from semel.protos.errors import CorruptSegment, Unavailable
from semel.protos.ids import NodeId
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_PATIENCE_S = 30.0
_CHUNK_TIMEOUT_S = 15.0
"""A giver first writes a checkpoint if it has none that is new enough."""
_PAUSE_S = 0.2
_REQUEST_BYTES_MAX = 4 << 20
_REQUEST_RECORDS_MAX = 4_096
"""A giver answers no more of them (`raft.proto`)."""
_CUT_OFF = (grpc.aio.AioRpcError, TimeoutError, CorruptSegment)


class SnapshotPull:
    """One pull; call `close` in any case."""

    def __init__(
        self,
        sources: Callable[[], Sequence[tuple[NodeId, str]]],
        caller: Callable[[NodeId], raft_pb2.PeerCaller],
        *,
        bytes_per_second: int,
        connect: Callable[[NodeId, str], grpc.aio.Channel],
    ) -> None:
        """`sources` gives the members with their addresses, in the order in which to ask them;
        `caller` is how this node introduces itself to one of them, and `connect` opens a channel
        to it."""
        self._sources = sources
        self._caller = caller
        self._asked = NodeId(0)
        """The member that this pull asks now."""
        self._rate = bytes_per_second
        self._connect = connect
        self._arrivals = Pace(bytes_per_second)
        self._channel: grpc.aio.Channel | None = None
        self._closed = asyncio.Event()
        self._failures = 0
        self._heard = time.monotonic()
        self.bytes_received = 0

    async def close(self) -> None:
        """Ends the pull from any task: calls under way raise Unavailable."""
        self._closed.set()
        await self._drop_channel()

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(grace=0)

    async def checkpoint(self, index: int) -> tuple[int, int, bytes]:
        """Index, term and payload of a checkpoint at or above `index`. Raises Unavailable."""
        pieces: list[bytes] = []
        received, found, term, total, crc = 0, index, 0, -1, 0
        while received != total:
            request = raft_pb2.PullCheckpointRequest(index=found, position=received)
            try:
                async for chunk in self._chunks(self._stub().PullCheckpoint, request):
                    if (chunk.index, chunk.position) != (found, received):
                        pieces, received = [], 0  # It is a newer one.
                        if chunk.position:
                            raise CorruptSegment("a checkpoint arrived without its beginning")
                    found, term = chunk.index, chunk.term
                    total, crc = chunk.total_bytes, chunk.payload_crc
                    pieces.append(chunk.data)
                    received += len(chunk.data)
                    await self._pace(len(chunk.data))
                if received == total and google_crc32c.value(b"".join(pieces)) != crc:
                    pieces, received, total = [], 0, -1
                    raise CorruptSegment(f"checkpoint {found} arrived damaged")
            except _CUT_OFF as error:
                await self._cut_off(error, f"checkpoint {found} at byte {received}")
        return found, term, b"".join(pieces)

    async def records(self, refs: Sequence[RecordRef], index: int) -> list[tuple[RecordRef, bytes]]:
        """Those of `refs` that still exist, as of `index`, in order. Raises Unavailable."""
        found: list[tuple[RecordRef, bytes]] = []
        answered = 0
        while answered < len(refs):
            request = raft_pb2.PullRecordsRequest(
                records=[
                    raft_pb2.RecordRef(index=ref.index, position=ref.position, length=ref.length)
                    for ref in self._portion(refs, answered)
                ],
                applied_index=index,
            )
            try:
                async for chunk in self._chunks(self._stub().PullRecords, request):
                    ref = refs[answered]
                    if chunk.damaged:
                        raise CorruptSegment(
                            f"{ref} is damaged at the peer, which repairs it first"
                        )
                    if not chunk.gone:
                        crc = google_crc32c.value(chunk.data)
                        if len(chunk.data) != ref.length or crc != chunk.crc:
                            raise CorruptSegment(f"record {ref} arrived damaged")
                        found.append((ref, chunk.data))
                    answered += 1
                    await self._pace(len(chunk.data))
            except _CUT_OFF as error:
                await self._cut_off(error, f"record {refs[answered]}")
        return found

    def _portion(self, refs: Sequence[RecordRef], start: int) -> Sequence[RecordRef]:
        """The records for one request. They are few, because the giver fills the buffers on the way
        as fast as it can, and the rate must hold there too."""
        room = min(_REQUEST_BYTES_MAX, self._rate // 4)
        end = start
        last = min(len(refs), start + _REQUEST_RECORDS_MAX)
        while end < last and (end == start or room >= refs[end].length):
            room -= refs[end].length
            end += 1
        return refs[start:end]

    def _stub(self) -> Any:
        """A stub for the member that this pull asks now. Raises Unavailable."""
        if self._closed.is_set():
            raise Unavailable("the pull was ended; the master offers it again")
        if self._channel is None:
            sources = self._sources()
            if not sources:
                raise Unavailable("no other member of the group is known")
            self._asked, address = sources[self._failures % len(sources)]
            self._channel = self._connect(self._asked, address)
        return raft_pb2_grpc.SnapshotsStub(self._channel)

    async def _chunks(self, method: Any, request: Any) -> AsyncIterator[Any]:
        request.caller.CopyFrom(self._caller(self._asked))
        call = method(request)
        try:
            while True:
                async with compat.timeout(_CHUNK_TIMEOUT_S):
                    chunk = await call.read()
                if chunk is grpc.aio.EOF:
                    return
                yield chunk
        finally:
            call.cancel()

    async def _cut_off(self, error: BaseException, at: str) -> None:
        """Goes on to the next member. Raises Unavailable if none gave anything for too long."""
        reason = error_from_rpc(error) if isinstance(error, grpc.aio.AioRpcError) else error
        await self._drop_channel()
        self._failures += 1
        if time.monotonic() - self._heard > _PATIENCE_S:
            raise Unavailable(
                f"no member gives {at} ({reason}); the master offers it again"
            ) from None
        logger.info("pull cut off, asking the next member at=%s reason=%r", at, reason)
        await self._pause(_PAUSE_S)

    async def _pace(self, received: int) -> None:
        """Keeps the pull at or below its rate."""
        self.bytes_received += received
        now = self._heard = time.monotonic()
        wait_s = self._arrivals.wait_s(received, now)
        if wait_s > 0:
            await self._pause(wait_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(seconds):
                await self._closed.wait()
