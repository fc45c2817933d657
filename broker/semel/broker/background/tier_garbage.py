"""Deletes what nothing needs any more from the object store.

How it works. From time to time the master goes over the queues of tiered topics, one after the
other, also those that have no manifest: their first attempt may have failed. What is garbage of
one, and for how long it must have been, the tier's library says; it asks for the pointer of the log
after it has listed the objects, and gets one that a quorum has confirmed.

Which queues were deleted is remembered by the replicated state (`state/apply/deleted_tiers.py`).
The master leaves a note of that at the store, and has the log forget it then; a day later whoever
is master deletes all that the queue had there.

Invariants
1. Ages are those of the store's clock.
2. A queue is noted as deleted only by a master whose confirmed state says that it was.

Not here: what is garbage (`semel.tier.planning`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.background.tiering import is_tiered
from semel.broker.replica.replica import Replica
from semel.broker.tiers.place import TierPlace, check_owner
from semel.broker.tiers.pointers import pointer_of
from semel.protos.errors import NotMaster, SemelError
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2
from semel.tier import (
    GarbagePolicy,
    Pointer,
    Store,
    TierUnavailable,
    clock_us,
    collect,
    delete_queue,
    mark_deleted,
    queues_of,
    topic_ids_of,
)

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Pause between two looks at which queues were deleted."""
CONFIRM_S: Final = 30.0


class TierGarbage:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self, replica: Replica, place: TierPlace, policy: GarbagePolicy | None = None
    ) -> None:
        self._replica = replica
        self._place = place
        self._policy = policy or GarbagePolicy()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        collected_s = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._replica.is_master:
                continue
            try:
                await self.note_deleted()
                if loop.time() >= collected_s + self._replica.config.tier_collect_ms / 1000:
                    collected_s = loop.time()
                    await self.collect()
            except NotMaster:
                continue
            except (SemelError, OSError) as error:
                self._place.counters.errors += 1
                logger.warning("tier not cleaned, it is tried again error=%s", error)

    async def note_deleted(self) -> None:
        """Notes queues that were deleted."""
        if not self._replica.state.deleted_tiers:
            return
        await self._replica.confirm_read()
        place = self._place
        for key in sorted(self._replica.state.deleted_tiers):
            if key not in self._replica.state.queues:
                await place.call(partial(_note, place.cluster_id, place.folder, key))
            record = control_pb2.DeleteQueue(queue=queue_ref(key), noted=True)
            await self._replica.submit_control(control_pb2.ControlRecord(delete_queue=record))
            logger.info("queue deleted, its files go in a day queue=%s", key)

    async def collect(self) -> None:
        """Deletes the garbage of every queue, and queues that were deleted a day ago."""
        place, policy, state = self._place, self._policy, self._replica.state
        now_us = await place.call(partial(_clock_us, place.cluster_id, place.folder))
        for key in sorted([queue.key async for queue in queues_in_turns(state, is_tiered)]):
            if not self._replica.is_master:
                return
            await self._collect(key, now_us)

        def deleted(store: Store) -> list[str]:
            return _delete_noted(store, place, here, now_us, policy)

        here = set(self._replica.state.queues)
        self._count(await self._place.call(deleted))

    async def _collect(self, key: QueueKey, now_us: int) -> None:
        owner, folder, policy = self._place.cluster_id, self._place.folder, self._policy
        loop = asyncio.get_running_loop()

        def decided() -> Pointer | None:
            asked = asyncio.run_coroutine_threadsafe(self._confirmed(key), loop)
            return asked.result(CONFIRM_S)

        def work(store: Store) -> list[str]:
            return collect(store, folder, key, decided, now_us=now_us, policy=policy, owner=owner)

        try:
            self._count(await self._place.call(work))
        except TierUnavailable:
            raise
        except (SemelError, OSError, TimeoutError) as error:
            self._place.counters.errors += 1
            logger.warning(
                "garbage of a queue stays, it is tried again queue=%s error=%s", key, error
            )

    async def _confirmed(self, key: QueueKey) -> Pointer | None:
        """The pointer of the log. Raises NotMaster, and also if the queue is not here."""
        await self._replica.confirm_read()
        queue = self._replica.state.queues.get(key)
        if queue is None:
            raise self._replica.not_master()
        return pointer_of(self._place.folder, queue)

    def _count(self, deleted: list[str]) -> None:
        self._place.counters.deleted_objects += len(deleted)
        if deleted:
            logger.info("deleted at the object store objects=%d first=%s", len(deleted), deleted[0])


def _note(cluster_id: str, folder: str, key: QueueKey, store: Store) -> None:
    """BLOCKING. Notes that the queue's topic was deleted."""
    check_owner(store, cluster_id)
    mark_deleted(store, folder, key)


def _clock_us(cluster_id: str, folder: str, store: Store) -> int:
    """BLOCKING. The time of the store's clock."""
    check_owner(store, cluster_id)
    return clock_us(store, folder)


def _delete_noted(
    store: Store, place: TierPlace, here: set[QueueKey], now_us: int, policy: GarbagePolicy
) -> list[str]:
    """BLOCKING. Deletes queues that were noted as deleted, those that are here aside."""
    found: list[str] = []
    owner, folder = place.cluster_id, place.folder
    for topic_id in topic_ids_of(store, folder):
        for key in queues_of(store, folder, topic_id):
            if key not in here:
                found += delete_queue(store, folder, key, now_us=now_us, policy=policy, owner=owner)
    return found
