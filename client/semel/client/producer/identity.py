"""A producer's id and epoch from the controllers, and the FENCEs that make them known to brokers.

Invariants
1. A named producer that was opened elsewhere in the meantime ends: it never takes the epoch back.
2. A FENCE reaches every queue of the call, or the whole call fails.

Not here: when to fence, and what replies mean (`producer/producer.py`, `core/sequences.py`).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from semel.client.core.routing import QueueRoute
from semel.client.transport.cluster import Cluster
from semel.protos.errors import DedupStateExpired, ProducerFenced, QueueMoved
from semel.protos.ids import ProducerId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, controller_pb2

MOVED_PAUSE_S: Final = 0.02
FENCE_QUEUES_MAX: Final = 1_000
"""Most queues in one request."""


class Identity:
    """One producer's (id, epoch). Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        """The producer's name; empty for an anonymous one."""
        self.producer_id = ProducerId(0)
        self.epoch = 0
        self._cluster = cluster
        self._fixed = False
        self._task: asyncio.Task[None] | None = None
        """The newest call to the controllers; it may have ended."""
        self._elsewhere: ProducerFenced | None = None
        """Another process has opened the name: no lane may use the epoch that was got since."""

    @classmethod
    def given(cls, cluster: Cluster, name: str, producer_id: ProducerId, epoch: int) -> Identity:
        """Returns an identity whose epochs are given from outside; it is never opened again."""
        identity = cls(cluster, name)
        identity.producer_id, identity.epoch = producer_id, epoch
        identity._fixed = True
        return identity

    @property
    def pair(self) -> tuple[ProducerId, int]:
        return self.producer_id, self.epoch

    async def ensure(self) -> None:
        """Asks the controllers for id and epoch, once. Raises SemelError."""
        if self._fixed:
            return
        if self._task is None or self._task.done():
            if self.producer_id:
                return
            self._task = self._cluster.spawn(self._open(), "semel-open-producer")
        await asyncio.shield(self._task)

    async def _open(self) -> None:
        request = controller_pb2.OpenProducerRequest(name=self.name, open_id=os.urandom(16))
        reply = await self._cluster.controller("OpenProducer", request)
        self.producer_id, self.epoch = ProducerId(reply.producer_id), reply.epoch

    async def reopen(self, old: tuple[ProducerId, int]) -> None:
        """Gets a new epoch (an anonymous producer a new id), unless `old` was replaced already. All
        lanes that call it at a time get the same one.

        Raises ProducerFenced when another process opened the name since, or when this producer may
        not raise the epoch.
        """
        if self._fixed:
            raise ProducerFenced(
                f"producer {self.name!r} was forgotten; it goes on under a higher epoch only",
                current_epoch=self.epoch,
            )
        if self._elsewhere is not None:
            raise self._elsewhere
        if self.pair != old:
            return
        if self._task is None or self._task.done():
            self._task = self._cluster.spawn(self._open_again(old[1]), "semel-open-producer")
        await asyncio.shield(self._task)

    async def _open_again(self, old: int) -> None:
        await self._open()
        if self.name and self.epoch > old + 1:
            self._elsewhere = ProducerFenced(
                f"producer {self.name!r} was opened elsewhere; this one ends",
                current_epoch=self.epoch - 1,
            )
            raise self._elsewhere

    async def fence(
        self, queues: list[QueueRoute], session: int, timeout_s: float, *, after_expiry: bool
    ) -> list[broker_pb2.ProducerRow]:
        """Fences queues under the id and epoch that are present when it is called. Returns their
        rows in the same order.

        Raises DedupStateExpired when a queue may have forgotten what this producer stored, unless
        the producer continues `after_expiry`.
        """
        request = broker_pb2.FenceProducerRequest(
            producer_id=self.producer_id,
            epoch=self.epoch,
            session=session,
            name=self.name,
            after_expiry=after_expiry,
        )
        until = time.monotonic() + timeout_s
        while True:
            try:
                return await self._fence(queues, request, timeout_s)
            except QueueMoved:  # the routes know the new group by now
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(MOVED_PAUSE_S)

    async def _fence(
        self, queues: list[QueueRoute], template: broker_pb2.FenceProducerRequest, timeout_s: float
    ) -> list[broker_pb2.ProducerRow]:
        """Sends `template` for each broker group's queues."""
        requests = []
        for group_id, keys in self._cluster.routes.by_home(queues).items():
            for start in range(0, len(keys), FENCE_QUEUES_MAX):
                request = broker_pb2.FenceProducerRequest()
                request.CopyFrom(template)
                some = keys[start : start + FENCE_QUEUES_MAX]
                request.queues.extend(queue_ref(key) for key in some)
                requests.append((group_id, some, request))
        replies = await asyncio.gather(
            *(
                self._cluster.call_master(group_id, "FenceProducer", request, timeout_s)
                for group_id, _, request in requests
            )
        )
        rows = {
            key: row
            for (_, keys, _), reply in zip(requests, replies, strict=True)
            for key, row in zip(keys, reply.rows, strict=True)
        }
        return [rows[queue.key] for queue in queues]

    def forgotten(self, topic: str, error: DedupStateExpired) -> DedupStateExpired:
        """Returns the error for a queue whose answer "nothing stored yet" may be wrong."""
        return DedupStateExpired(
            f"producer {self.name!r} was away until topic {topic} forgot how far it had come, so"
            " what it sends again could be stored twice. Find out from the messages what is stored,"
            " then open it once with after_expiry='restart', or use another name"
            f" ({error.message})",
            epoch_floor=error.epoch_floor,
        )
