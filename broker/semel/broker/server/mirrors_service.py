"""The calls of a mirror to a broker group, at the source and at the target.

Not here: what the source tells (`mirror_source.py`), what the target takes (`mirror_target.py`),
the order of the calls (the client's `mirror/`).
"""

# ruff: noqa: N802  (gRPC names the methods)

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from semel.broker.config import BrokerConfig
from semel.broker.replica.replica import Replica
from semel.broker.server.mirror_source import MirrorSource
from semel.broker.server.mirror_target import MirrorTarget
from semel.broker.server.moves_service import MovesService
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey
from semel.protos.levels import MIRROR_LEVEL
from semel.protos.metrics import Metric, Samples
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2, mirrors_pb2, mirrors_pb2_grpc


def _metric(name: str, kind: Any, unit: str, text: str) -> Metric:
    return Metric(name=f"semel_broker_{name}", kind=kind, unit=unit, text=text)


MOVED_METRICS: Final = (
    _metric("incoming_queues", "gauge", "queues", "Queues on their way to this broker group."),
    _metric(
        "sealed_queues", "gauge", "queues", "Queues that a move has sealed: for moments, or stuck."
    ),
    _metric(
        "moved_bytes_total",
        "counter",
        "bytes",
        "Bytes of stored batches that came with queues moved here.",
    ),
    _metric(
        "mirrored_queues", "gauge", "queues", "Copies of another cluster's queues, not promoted."
    ),
    _metric(
        "mirrored_bytes_total", "counter", "bytes", "Bytes of stored batches that a mirror brought."
    ),
    _metric(
        "mirror_lag_messages",
        "gauge",
        "messages",
        "Messages that the source had when it was last asked, and a promotion would not. Master"
        " only.",
    ),
    _metric(
        "mirror_lag_seconds",
        "gauge",
        "seconds",
        "How old what would be promoted is, of the oldest queue. It grows while no mirror runs."
        " Master only.",
    ),
)


class _Request(Protocol):
    @property
    def cluster_id(self) -> str: ...


class MirrorsService(mirrors_pb2_grpc.MirrorsServicer):
    """Serves semel.protos.v1.Mirrors on one replica."""

    def __init__(self, config: BrokerConfig, replica: Replica, moves: MovesService) -> None:
        self._config = config
        self._replica = replica
        self._moves = moves
        self._source = MirrorSource(replica)
        self._target = MirrorTarget(replica)
        self._writing: WeakValueDictionary[QueueKey, asyncio.Lock] = WeakValueDictionary()
        """A queue's lock lives as long as a call holds it or waits for it."""

    async def ReadMirrored(
        self, request: mirrors_pb2.ReadMirroredRequest, context: Any
    ) -> mirrors_pb2.ReadMirroredReply:
        self._check(request)
        return await self._source.read(request)

    async def BeginMirrored(
        self, request: mirrors_pb2.BeginMirroredRequest, context: Any
    ) -> mirrors_pb2.MirroredQueueStatus:
        await self._ready(request)
        key = queue_key_of(request.create.queue)
        if not request.source or request.source == self._config.cluster_id:
            raise InvalidRequest(f"cluster {self._config.cluster_id} cannot mirror itself")
        async with self._lock(key):
            await self._target.begin(request.create, request.source, request.mirror_epoch)
            return self._status(key)

    async def WriteMirrored(
        self, request: mirrors_pb2.WriteMirroredRequest, context: Any
    ) -> mirrors_pb2.MirroredQueueStatus:
        await self._ready(request)
        key = queue_key_of(request.queue)
        async with self._lock(key):  # a call that the caller has given up may still be at work
            await self._target.write(key, request.mirror_epoch, request.read)
            return self._status(key)

    async def DescribeMirrored(
        self, request: mirrors_pb2.DescribeMirroredRequest, context: Any
    ) -> mirrors_pb2.DescribeMirroredReply:
        await self._ready(request)
        await self._replica.confirm_read()
        keys = map(queue_key_of, request.queues)
        found = (self._target.status(key, whole=True) for key in keys)
        return mirrors_pb2.DescribeMirroredReply(queues=[each for each in found if each])

    async def EndMirrored(
        self, request: mirrors_pb2.EndMirroredRequest, context: Any
    ) -> mirrors_pb2.EndMirroredReply:
        await self._ready(request)
        key = queue_key_of(request.queue)
        async with self._lock(key):
            if request.digest:
                settings = control_pb2.CreateQueue(queue=request.queue, settings=request.settings)
                await self._target.promote(key, request.digest, settings)
            else:
                await self._target.drop(key)
        return mirrors_pb2.EndMirroredReply()

    def add_to(self, page: Samples) -> None:
        """Adds the figures of queues that move here, or are mirrored."""
        moves = self._replica.state.moves
        mirrors = {key: each for key, each in moves.incoming.items() if each.mirror is not None}
        page.add("semel_broker_incoming_queues", len(moves.incoming) - len(mirrors))
        page.add("semel_broker_sealed_queues", moves.frozen_count)
        page.add("semel_broker_moved_bytes_total", self._moves.copied_bytes)
        page.add("semel_broker_mirrored_queues", len(mirrors))
        page.add("semel_broker_mirrored_bytes_total", self._target.copied_bytes)
        if not self._replica.is_master:
            return
        messages, now_us = 0, self._replica.log_time_us()
        oldest_us = now_us
        for key, incoming in mirrors.items():
            assert incoming.mirror is not None
            seen = self._target.seen.get(key)
            end = incoming.queue.log_end_offset if seen is None else seen.log_end_offset
            messages += max(0, end - incoming.mirror.settled_end)
            current_us = 0 if seen is None else seen.current_us
            oldest_us = min(oldest_us, max(incoming.mirror.settled_us, current_us))
        page.add("semel_broker_mirror_lag_messages", messages)
        page.add("semel_broker_mirror_lag_seconds", (now_us - oldest_us) / 1_000_000)

    def _status(self, key: QueueKey) -> mirrors_pb2.MirroredQueueStatus:
        found = self._target.status(key, whole=False)
        if found is None:
            raise InvalidRequest(f"queue {key.queue_id} is not mirrored")
        return found

    def _lock(self, key: QueueKey) -> asyncio.Lock:
        lock = self._writing.get(key)
        if lock is None:
            lock = self._writing[key] = asyncio.Lock()
        return lock

    def _check(self, request: _Request) -> None:
        if request.cluster_id != self._config.cluster_id:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._config.cluster_id}, "
                f"the caller to {request.cluster_id}"
            )

    async def _ready(self, request: _Request) -> None:
        self._check(request)
        await self._replica.wait_master()
        await self._replica.require_level(MIRROR_LEVEL)
