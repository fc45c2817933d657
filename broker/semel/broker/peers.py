"""Outgoing streams to the other replicas of the group.

How it works. To each peer this node opens one gRPC channel for control messages (votes, heartbeats,
acknowledgements) and one for entries, so that a heartbeat never queues behind a megabyte. Messages
go one way; what the peer answers comes through the peer's own streams. Raft survives lost messages,
so nothing is kept for a peer that is not connected: the core is told, and probes anew.

Entries are named by index range and turned into bytes when they are sent: from the log's cache,
else read in the reader pool, so that a slow disk holds up one peer's stream and nothing else.

Invariants
1. Per peer and stream, messages leave in the order in which they were given.
2. `outstanding_bytes_max` bounds what waits for a slow peer; the core's byte window stays below it.

Not here: what is sent and when (`raft/`, `node.py`), the receiving side (`server/replicate.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import grpc
import grpc.aio

from semel.broker.log import IndexUnavailable, Log
from semel.broker.raft import Message, MessageKind, encode_message
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NodeId
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.streams import frame_prefix

logger = logging.getLogger(__name__)

CONTROL_METHOD = "/semel.protos.v1.RaftPeer/Control"
BULK_METHOD = "/semel.protos.v1.RaftPeer/Bulk"
_RECONNECT_MIN_S = 0.02
_RECONNECT_MAX_S = 0.2
_QUEUE_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a node says of itself at the start of each stream."""

    cluster_id: str
    group_id: int
    node_id: int

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("semel-cluster", self.cluster_id),
            ("semel-group", str(self.group_id)),
            ("semel-node", str(self.node_id)),
        )


class PeerLink:
    """The two streams to one peer; `run` keeps them open until it is cancelled."""

    def __init__(
        self,
        *,
        peer_id: NodeId,
        address: str,
        identity: Identity,
        log: Log,
        readers: Executor,
        on_unreachable: Callable[[NodeId], None],
    ) -> None:
        self.peer_id = peer_id
        self.address = address
        self._log = log
        self._readers = readers
        self._on_unreachable = on_unreachable
        self._control = _Outbox(CONTROL_METHOD, address, identity)
        self._bulk = _Outbox(BULK_METHOD, address, identity)

    def send(self, message: Message) -> None:
        """Queues one message; drops it when the peer is not connected."""
        if message.kind is MessageKind.APPEND and message.entries:
            self._bulk.put(message)
        else:
            self._control.put(message)

    async def run(self) -> None:
        """Opens, feeds and reopens both streams."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(self._control))
            tasks.create_task(self._keep(self._bulk))

    async def _keep(self, outbox: _Outbox) -> None:
        delay = _RECONNECT_MIN_S
        channel = grpc.aio.insecure_channel(self.address, options=PEER_CHANNEL_OPTIONS)
        try:
            while True:
                try:
                    if await outbox.open(channel):
                        delay = _RECONNECT_MIN_S
                        await self._feed(outbox)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                        logger.error(
                            "peer refuses this node peer=%s reason=%s",
                            self.peer_id,
                            error.details(),
                        )
                        delay = _RECONNECT_MAX_S
                except (grpc.aio.UsageError, asyncio.InvalidStateError):
                    pass  # the stream ended while a message was being written
                finally:
                    outbox.close()
                self._on_unreachable(self.peer_id)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RECONNECT_MAX_S)
        finally:
            await channel.close(grace=0)

    async def _feed(self, outbox: _Outbox) -> None:
        """Writes what is queued until the stream breaks."""
        while True:
            message = await outbox.get()
            if message is None:
                return
            frames: list[bytes] = []
            if message.entries:
                found = await self._frames(message)
                if found is None:
                    continue
                frames = found
            head = encode_message(message)
            length = len(head) + sum(map(len, frames))
            await outbox.write(b"".join((frame_prefix(length), head, *frames)))

    async def _frames(self, message: Message) -> list[bytes] | None:
        """The entries' frames; None when they are gone by now (the core will offer a snapshot)."""
        lo = message.entries[0].index
        hi = message.entries[-1].index + 1
        frames = self._log.cached_frames(lo, hi)
        if frames is None:
            loop = asyncio.get_running_loop()
            try:
                frames = await loop.run_in_executor(self._readers, self._log.read_frames, lo, hi)
            except (IndexUnavailable, CorruptSegment) as error:
                logger.warning("entries not sent peer=%s reason=%s", self.peer_id, error)
                return None
        if self._log.term_at(hi - 1) != message.entries[-1].term:
            return None  # truncated and replaced meanwhile: the message speaks of other entries
        return frames


class _Outbox:
    """One outgoing stream and the messages that wait for it."""

    def __init__(self, method: str, address: str, identity: Identity) -> None:
        self._method = method
        self._address = address
        self._identity = identity
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._broken = True

    async def open(self, channel: grpc.aio.Channel) -> bool:
        """Starts the stream; True once the peer has accepted it."""
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(self._method)(
            metadata=self._identity.metadata
        )
        await call.initial_metadata()  # sent by the peer as soon as it accepts
        self._call = call
        self._broken = False
        self._queue.clear()
        self._watch = asyncio.create_task(self._until_end(call))
        return True

    async def _until_end(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        """The peer says nothing on this stream, so a read returns only when it is over."""
        try:
            await call.read()
        except grpc.aio.AioRpcError:
            pass
        finally:
            self._broken = True
            self._wake.set()

    def put(self, message: Message) -> None:
        if self._broken:
            return
        if len(self._queue) >= _QUEUE_MAX:
            self._queue.popleft()  # as good as lost on the way: Raft sends what matters again
        self._queue.append(message)
        self._wake.set()

    async def get(self) -> Message | None:
        """The next message; None when the stream is broken."""
        while not self._queue:
            if self._broken:
                return None
            self._wake.clear()
            await self._wake.wait()
        return None if self._broken else self._queue.popleft()

    async def write(self, data: bytes) -> None:
        assert self._call is not None
        await self._call.write(data)

    def close(self) -> None:
        self._broken = True
        self._queue.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._call is not None:
            self._call.cancel()
            self._call = None
