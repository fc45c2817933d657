"""Deletes what nothing needs any more from the object store.

How it works. From time to time the master goes over its tiered queues, one after the other. What is
garbage of one, and for how long it must have been, the tier's library says; it asks for the pointer
of the log after it has listed the objects, and gets one that a quorum has confirmed.

All nodes look which tiered queues there are. If one is gone and no move has taken it along, its
topic was deleted. The master notes that at the store, and a day later whoever is master then
deletes all that the queue had there.

Invariants
1. Ages are those of the store's clock.
2. A queue is noted as deleted only by a master whose confirmed state does not have it.

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
from semel.broker.state import QueueState
from semel.broker.tiers.place import TierPlace, check_owner
from semel.broker.tiers.pointers import pointer_of
from semel.protos.errors import NotMaster, SemelError
from semel.protos.ids import QueueKey
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
    topics_of,
)

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Pause between two looks at which queues there are."""
CONFIRM_S: Final = 30.0
GONE_MAX: Final = 100_000
"""Queues that were seen to go, on a node that never became master."""


class TierGarbage:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self, replica: Replica, place: TierPlace, policy: GarbagePolicy | None = None
    ) -> None:
        self._replica = replica
        self._place = place
        self._policy = policy or GarbagePolicy()
        self._tiered: set[QueueKey] = set()
        """Queues that were seen to have something at the store."""
        self._gone: set[QueueKey] = set()
        """Those of them whose deletion is not noted at the store."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self._replica.config.tier_collect_ms / 1000
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            if not self._replica.is_master:
                continue
            try:
                await self.note_deleted()
                if loop.time() >= next_s:
                    next_s = loop.time() + self._replica.config.tier_collect_ms / 1000
                    await self.collect()
            except NotMaster:
                continue
            except (SemelError, OSError) as error:
                self._place.counters.errors += 1
                logger.warning("tier not cleaned, it is tried again error=%s", error)

    async def look(self) -> None:
        """Sees which tiered queues came and went."""
        state = self._replica.state
        noted = bool(self._replica.config.tier_facts_ms)
        has = is_tiered if noted else _has_tier
        present = {queue.key async for queue in queues_in_turns(state, has)}
        if state is not self._replica.state:
            return  # a snapshot has taken its place
        went = (self._tiered | self._place.touched) - state.queues.keys()
        self._gone |= {key for key in went if key not in state.moves.places}
        self._gone -= state.queues.keys()
        if len(self._gone) > GONE_MAX:
            self._gone.clear()
        self._tiered = present
        self._place.touched.clear()

    async def note_deleted(self) -> None:
        """Notes queues whose topics were deleted."""
        if not self._gone:
            return
        await self._replica.confirm_read()
        await self.look()
        place = self._place
        for key in sorted(self._gone):
            await place.call(partial(_note, place.cluster_id, place.folder, key))
            self._gone.discard(key)
            logger.info("topic deleted, its files go in a day queue=%s", key)

    async def collect(self) -> None:
        """Deletes the garbage of every queue, and queues that were deleted a day ago."""
        place, policy = self._place, self._policy
        now_us = await place.call(partial(_clock_us, place.cluster_id, place.folder))
        for key in sorted(self._tiered):
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


def _has_tier(queue: QueueState) -> bool:
    return queue.tier.number > 0


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
    for topic in topics_of(store, folder):
        for key in queues_of(store, folder, topic.topic_id):
            if key not in here:
                found += delete_queue(store, folder, key, now_us=now_us, policy=policy, owner=owner)
    return found
