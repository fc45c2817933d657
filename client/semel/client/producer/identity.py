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
        if self._task is None or (self._task.done() and not self.producer_id):
            self._task = self._cluster.spawn(self._open(), "semel-open-producer")
        await asyncio.shield(self._task)

    async def _open(self) -> None:
        request = controller_pb2.OpenProducerRequest(name=self.name, open_id=os.urandom(16))
        reply = await self._cluster.controller("OpenProducer", request)
        self.producer_id, self.epoch = ProducerId(reply.producer_id), reply.epoch

    async def reopen(self, old: tuple[ProducerId, int]) -> None:
        """Gets a new epoch (an anonymous producer a new id), unless `old` was replaced already.

        Raises ProducerFenced when another process opened the name since, or when this producer may
        not raise the epoch.
        """
        if self._fixed:
            raise ProducerFenced(
                f"producer {self.name!r} was forgotten; it goes on under a higher epoch only",
                current_epoch=self.epoch,
            )
        if self.pair != old:
            return
        self._task = self._cluster.spawn(self._open(), "semel-open-producer")
        await asyncio.shield(self._task)
        if self.name and self.epoch > old[1] + 1:
            raise ProducerFenced(
                f"producer {self.name!r} was opened elsewhere; this one ends",
                current_epoch=self.epoch - 1,
            )

    async def fence(
        self, queues: list[QueueRoute], session: int, timeout_s: float, *, after_expiry: bool
    ) -> list[broker_pb2.ProducerRow]:
        """Fences queues under the present id and epoch. Returns their rows in the same order.

        Raises DedupStateExpired when a queue may have forgotten what this producer stored, unless
        the producer continues `after_expiry`.
        """
        until = time.monotonic() + timeout_s
        while True:
            try:
                return await self._fence(queues, session, timeout_s, after_expiry=after_expiry)
            except QueueMoved:  # the routes know the new group by now
                if time.monotonic() >= until:
                    raise
                await asyncio.sleep(MOVED_PAUSE_S)

    async def _fence(
        self, queues: list[QueueRoute], session: int, timeout_s: float, *, after_expiry: bool
    ) -> list[broker_pb2.ProducerRow]:
        requests = [
            (group_id, keys[start : start + FENCE_QUEUES_MAX])
            for group_id, keys in self._cluster.routes.by_home(queues).items()
            for start in range(0, len(keys), FENCE_QUEUES_MAX)
        ]
        replies = await asyncio.gather(
            *(
                self._cluster.call_master(
                    group_id,
                    "FenceProducer",
                    broker_pb2.FenceProducerRequest(
                        queues=[queue_ref(key) for key in keys],
                        producer_id=self.producer_id,
                        epoch=self.epoch,
                        session=session,
                        name=self.name,
                        after_expiry=after_expiry,
                    ),
                    timeout_s,
                )
                for group_id, keys in requests
            )
        )
        rows = {
            key: row
            for (_, keys), reply in zip(requests, replies, strict=True)
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
