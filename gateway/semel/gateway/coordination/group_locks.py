"""The locks of queues that a gateway holds for a group of Kafka's clients, and their calls.

All gateways hold a group's locks under one owner, each in the generation in which it took the group
over, and nobody else has that owner's name: so the next coordinator gets every lock at once.

Not here: what is stored under the locks (`committed_offsets.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import QueueRoute
from semel.client.transport.cluster import Cluster
from semel.gateway.coordination.line_progress import Progress
from semel.protos.errors import (
    LockLost,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    Throttled,
    from_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, control_pb2

logger = logging.getLogger(__name__)

OWNER: Final = "kafka-gateway"
"""Owns the locks of all Kafka groups, whichever gateway coordinates them."""
LOCK_MS: Final = 24 * 3600 * 1000
"""The longest there is: nothing is delivered under these locks that must be committed in time."""
SESSION_MS: Final = 30_000
"""If a gateway dies and no other one follows, its groups' offsets can be reset so much later."""
CALL_S: Final = 10.0
"""Seconds for a call; Kafka's clients wait for 30 s unless told otherwise."""
ATTEMPTS: Final = 6
RETRY_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=500)
NO_ERA: Final = -1

Errors: TypeAlias = dict[QueueKey, SemelError | None]
"""How a call ended for each queue: None is success."""


class Deposed(Exception):
    """Another gateway coordinates the group."""


@dataclass(slots=True)
class GroupLock:
    """The lock of one queue."""

    route: QueueRoute
    token: int
    committed: int
    """The offset that is committed, as far as it is known."""
    split: control_pb2.SplitQueue | None = None
    """How the queue was split, if it was when the lock was granted."""
    version: int = 0
    """The last version of metadata under this token."""
    era: int = NO_ERA
    """Nothing is staged that was staged before this era."""


class GroupLocks:
    """The locks of one group. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, group_id: str, generation: int) -> None:
        self._cluster = cluster
        self.group_id = group_id
        self._generation = generation
        self._locks: dict[QueueKey, GroupLock] = {}

    def acting(self, cluster: Cluster) -> GroupLocks:
        """Returns the same locks, with calls by a client of somebody else."""
        other = GroupLocks(cluster, self.group_id, self._generation)
        other._locks = self._locks
        return other

    def __contains__(self, key: QueueKey) -> bool:
        return key in self._locks

    def get(self, key: QueueKey) -> GroupLock | None:
        """Returns the lock of a queue, if there is one."""
        return self._locks.get(key)

    def committed(self) -> dict[QueueKey, int]:
        """Returns the offsets that are committed, as far as they are known."""
        return {key: lock.committed for key, lock in self._locks.items()}

    def era_of(self, key: QueueKey) -> int:
        """Returns the era before which nothing is staged on a queue, or `NO_ERA`."""
        lock = self._locks.get(key)
        return NO_ERA if lock is None else lock.era

    def forget(self, lock: GroupLock) -> None:
        """Uses this lock no more; one that was acquired meanwhile stays."""
        if self._locks.get(lock.route.key) is lock:
            del self._locks[lock.route.key]

    def forget_queue(self, key: QueueKey) -> None:
        """Uses no lock of a queue any more."""
        self._locks.pop(key, None)

    async def hold(
        self,
        queues: Mapping[QueueKey, QueueRoute],
        found: dict[QueueKey, Progress],
        era: int = NO_ERA,
    ) -> dict[QueueKey, SemelError]:
        """Acquires locks; what is committed there goes to `found`. With an era it gives up what was
        staged before. Returns the errors. Raises Deposed."""

        async def at(home: GroupId, keys: Sequence[QueueKey]) -> Errors:
            errors = await self.acquire(home, [queues[key] for key in keys], found, era)
            return {key: errors.get(key) for key in keys}

        return await self.everywhere(queues, at)

    async def renew(self) -> None:
        """Keeps the locks. Raises Deposed."""
        for home, locks in self._by_home().items():
            request = broker_pb2.RenewLocksRequest(
                group=self.group_id,
                member_id=OWNER,
                locks=[_ref(lock) for lock in locks],
            )
            try:
                reply = await self._cluster.call_master(home, "RenewLocks", request, CALL_S)
            except SemelError as error:
                logger.info("renew failed group=%s error=%s", self.group_id, error.message)
                continue
            lost = {(queue_key_of(ref.queue), ref.token) for ref in reply.lost}
            again = [lock for lock in locks if (lock.route.key, lock.token) in lost]
            for lock in again:
                self.forget(lock)
            if again:  # a reset, a move, or another coordinator: the answer tells
                with contextlib.suppress(SemelError):
                    await self.acquire(home, [lock.route for lock in again], {})

    async def release(self) -> None:
        """Gives all locks back, as far as the brokers answer; the others end with their session."""
        by_home = self._by_home()
        self._locks.clear()
        requests = [
            (
                home,
                broker_pb2.ReleaseLocksRequest(
                    group=self.group_id, member_id=OWNER, locks=[_ref(lock) for lock in locks]
                ),
            )
            for home, locks in by_home.items()
        ]
        await asyncio.gather(
            *(
                self._cluster.call_master(home, "ReleaseLocks", request, CALL_S)
                for home, request in requests
            ),
            return_exceptions=True,
        )

    async def everywhere(
        self,
        queues: Mapping[QueueKey, QueueRoute],
        at: Callable[[GroupId, Sequence[QueueKey]], Awaitable[Errors]],
    ) -> dict[QueueKey, SemelError]:
        """Makes calls at the broker groups that have the queues, again for those that moved or
        whose lock was lost. Returns the errors that remain."""
        left = dict(queues)
        failed: dict[QueueKey, SemelError] = {}
        last: dict[QueueKey, SemelError] = {}
        backoff = Backoff(RETRY_POLICY, random.random)
        for attempt in range(ATTEMPTS):
            if not left:
                break
            if attempt:
                await asyncio.sleep(backoff.next_ms() / 1000)
            homes = self._cluster.routes.by_home(left.values())
            for outcomes in await asyncio.gather(*(at(home, keys) for home, keys in homes.items())):
                for key, error in outcomes.items():
                    if isinstance(error, QueueMoved):
                        self._cluster.routes.on_moved(error)
                    if isinstance(error, LockLost | QueueMoved | Throttled):
                        last[key] = error
                        continue
                    del left[key]
                    if error is not None:
                        failed[key] = error
        return failed | {key: last[key] for key in left}

    async def acquire(
        self,
        home: GroupId,
        routes: Iterable[QueueRoute],
        found: dict[QueueKey, Progress],
        era: int = NO_ERA,
    ) -> Errors:
        """Acquires locks, as `hold` says. Raises Deposed."""
        wanted = {route.key: route for route in routes}
        request = broker_pb2.AcquireLocksRequest(
            group=self.group_id,
            member_id=OWNER,
            generation=self._generation,
            queues=[queue_ref(key) for key in wanted],
            lock_ms=LOCK_MS,
            session_ms=SESSION_MS,
            beside_parents=True,
            drop_staged=era != NO_ERA,
        )
        try:
            reply = await self._cluster.call_master(home, "AcquireLocks", request, CALL_S)
        except SemelError as error:
            return dict.fromkeys(wanted, error)
        errors: Errors = {}
        for (key, route), grant in zip(wanted.items(), reply.grants, strict=True):
            if grant.token:
                split = grant.split if grant.HasField("split") else None
                self._locks[key] = GroupLock(
                    route,
                    grant.token,
                    grant.committed_offset,
                    split,
                    era=self.era_of(key) if era == NO_ERA else era,
                )
                found[key] = Progress(grant.committed_offset, grant.metadata)
                continue
            refusal = errors[key] = from_detail(grant.error)
            if isinstance(refusal, StaleGeneration | QueueLocked):
                raise Deposed(refusal.message)
        return errors

    def _by_home(self) -> dict[GroupId, list[GroupLock]]:
        found: dict[GroupId, list[GroupLock]] = {}
        for lock in self._locks.values():
            found.setdefault(self._cluster.routes.home(lock.route), []).append(lock)
        return found


def _ref(lock: GroupLock) -> broker_pb2.LockRef:
    return broker_pb2.LockRef(queue=queue_ref(lock.route.key), token=lock.token)
