"""The committed offsets of one Kafka group, as the gateway that coordinates it stores them.

How it works. They are the progress of the Semel group of the same name, with Kafka's metadata
beside each. The coordinator holds the locks of the queues that its members have asked for, under
one owner for all gateways and the generation in which it took the group over. So the next
coordinator gets every lock at once, under a new token and a higher generation, and from then on
whatever the one before it still commits is refused at apply, and so are its new locks: it hears
that it was deposed.

Members of a group ask for their offsets when they begin to read, so the lock is acquired then, and
the offsets are those of the grant: nothing of an earlier coordinator lands behind them.

A commit may go back, as in Kafka. It says so, and its token is used no more: a copy of it that was
delayed on the way cannot undo a later commit.

Invariants
1. Every commit carries a token that was granted under the generation of this coordinator.
2. Code after an await uses the lock that it sent, not the one that is there by then.

Not here: who coordinates (`roles.py`), whether a member may commit (`groups/kafka_group.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import QueueRoute, TopicRoute, topic_route
from semel.client.transport.cluster import Cluster
from semel.gateway.partitions import partitions_of
from semel.protos.errors import (
    InvalidRequest,
    LockLost,
    OffsetOutOfRange,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    Throttled,
    UnknownQueue,
    from_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, controller_pb2

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

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""


class Progress(NamedTuple):
    """The committed progress on one queue."""

    offset: int
    """The next offset to read; -1 for none."""
    metadata: bytes


class Deposed(Exception):
    """Another gateway coordinates the group."""


@dataclass(slots=True)
class _Lock:
    route: QueueRoute
    token: int
    committed: int
    """The offset that is committed, as far as it is known."""
    version: int = 0
    """The last version of metadata under this token."""


class CommittedOffsets:
    """See the module's text. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, group_id: str, generation: int) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._generation = generation
        self._locks: dict[QueueKey, _Lock] = {}

    async def commit(self, wanted: Mapping[Place, Progress]) -> dict[Place, SemelError]:
        """Stores offsets. Returns the errors of those that are not, or perhaps not, stored.

        Raises Deposed; then some may be stored.
        """
        queues, refused = await _resolve(self._cluster, wanted)
        for place in [place for place in queues if wanted[place].offset < 0]:
            del queues[place]
            refused[place] = OffsetOutOfRange(f"offset {wanted[place].offset} does not exist")

        async def at(home: GroupId, places: Mapping[QueueKey, Place]) -> _Errors:
            return await self._commit_at(
                home,
                {key: (queues[place], wanted[place]) for key, place in places.items()},
            )

        return refused | await self._everywhere(queues, at)

    async def fetch(self, wanted: Iterable[Place]) -> dict[Place, Progress | SemelError]:
        """Returns what is committed, as no earlier coordinator can change it. Raises Deposed."""
        queues, refused = await _resolve(self._cluster, wanted)

        async def at(home: GroupId, places: Mapping[QueueKey, Place]) -> _Errors:
            errors = await self._acquire(home, [queues[place] for place in places.values()], found)
            return {key: errors.get(key) for key in places}

        found: dict[QueueKey, Progress] = {}
        failed = refused | await self._everywhere(queues, at)
        result: dict[Place, Progress | SemelError] = dict(failed)
        for place, route in queues.items():
            if place not in failed:
                result[place] = found[route.key]
        return result

    async def renew(self) -> None:
        """Keeps the locks. Raises Deposed."""
        for home, locks in self._by_home().items():
            request = broker_pb2.RenewLocksRequest(
                group=self._group_id,
                member_id=OWNER,
                locks=[_ref(lock) for lock in locks],
            )
            try:
                reply = await self._cluster.call_master(home, "RenewLocks", request, CALL_S)
            except SemelError as error:
                logger.info("renew failed group=%s error=%s", self._group_id, error.message)
                continue
            lost = {(queue_key_of(ref.queue), ref.token) for ref in reply.lost}
            again = [lock for lock in locks if (lock.route.key, lock.token) in lost]
            for lock in again:
                self._forget(lock)
            if again:  # a reset, a move, or another coordinator: the answer tells
                with contextlib.suppress(SemelError):
                    await self._acquire(home, [lock.route for lock in again], {})

    async def release(self) -> None:
        """Gives all locks back, as far as the brokers answer; the others end with their session."""
        by_home = self._by_home()
        self._locks.clear()
        requests = [
            (
                home,
                broker_pb2.ReleaseLocksRequest(
                    group=self._group_id, member_id=OWNER, locks=[_ref(lock) for lock in locks]
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

    # --- calls to one broker group ----------------------------------------------------------------

    async def _everywhere(
        self,
        queues: Mapping[Place, QueueRoute],
        at: Callable[[GroupId, Mapping[QueueKey, Place]], Awaitable[_Errors]],
    ) -> dict[Place, SemelError]:
        """Makes calls at the broker groups that have the queues, again for those that moved or
        whose lock was lost. Returns the errors that remain."""
        left = {route.key: place for place, route in queues.items()}
        failed: dict[Place, SemelError] = {}
        last: dict[QueueKey, SemelError] = {}
        backoff = Backoff(RETRY_POLICY, random.random)
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(backoff.next_ms() / 1000)
            homes = self._cluster.routes.by_home(queues[place] for place in left.values())
            for outcomes in await asyncio.gather(
                *(at(home, {key: left[key] for key in keys}) for home, keys in homes.items())
            ):
                for key, error in outcomes.items():
                    if isinstance(error, QueueMoved):
                        self._cluster.routes.on_moved(error)
                    if isinstance(error, LockLost | QueueMoved | Throttled):
                        last[key] = error
                        continue
                    place = left.pop(key)
                    if error is not None:
                        failed[place] = error
            if not left:
                break
        return failed | {place: last[key] for key, place in left.items()}

    async def _commit_at(
        self, home: GroupId, wanted: Mapping[QueueKey, tuple[QueueRoute, Progress]]
    ) -> _Errors:
        errors: _Errors = {}
        missing = [route for key, (route, _) in wanted.items() if key not in self._locks]
        if missing:
            errors |= await self._acquire(home, missing, {})
        request = broker_pb2.CommitRequest(group=self._group_id)
        sent: list[_Lock] = []
        for key, (_, progress) in wanted.items():
            lock = self._locks.get(key)
            if lock is None:
                errors.setdefault(key, LockLost(f"the lock of {key} was lost"))
                continue
            if key in errors:
                continue
            lock.version += 1
            may_lower = progress.offset < lock.committed
            if may_lower:
                self._forget(lock)
            request.commits.add(
                queue=queue_ref(key),
                token=lock.token,
                offset=progress.offset,
                metadata=progress.metadata,
                metadata_version=lock.version,
                may_lower=may_lower,
            )
            sent.append(lock)
        if not sent:
            return errors
        try:
            reply = await self._cluster.call_master(home, "Commit", request, CALL_S)
        except SemelError as error:
            for lock in sent:  # a copy may still be on its way: later ones use another token
                self._forget(lock)
                errors[lock.route.key] = error
            return errors
        for lock, outcome in zip(sent, reply.outcomes, strict=True):
            refusal = from_detail(outcome.error) if outcome.HasField("error") else None
            errors[lock.route.key] = self._judged(lock, wanted[lock.route.key][1].offset, refusal)
        return errors

    def _judged(self, lock: _Lock, offset: int, refusal: SemelError | None) -> SemelError | None:
        """Takes in the outcome of a commit; returns the error that it ends with, or LockLost for
        another attempt."""
        if refusal is None:
            lock.committed = offset
            return None
        if isinstance(refusal, LockLost):
            self._forget(lock)
        elif isinstance(refusal, InvalidRequest):
            # A commit that got no answer has reached further: this one goes back, and says so after
            # the next acquisition has told how far that was.
            self._forget(lock)
            return LockLost(refusal.message)
        return refusal

    async def _acquire(
        self, home: GroupId, routes: Iterable[QueueRoute], found: dict[QueueKey, Progress]
    ) -> _Errors:
        """Acquires locks; what is committed there goes to `found`. Raises Deposed."""
        wanted = {route.key: route for route in routes}
        request = broker_pb2.AcquireLocksRequest(
            group=self._group_id,
            member_id=OWNER,
            generation=self._generation,
            queues=[queue_ref(key) for key in wanted],
            lock_ms=LOCK_MS,
            session_ms=SESSION_MS,
        )
        try:
            reply = await self._cluster.call_master(home, "AcquireLocks", request, CALL_S)
        except SemelError as error:
            return dict.fromkeys(wanted, error)
        errors: _Errors = {}
        for (key, route), grant in zip(wanted.items(), reply.grants, strict=True):
            if grant.token:
                self._locks[key] = _Lock(route, grant.token, grant.committed_offset)
                found[key] = Progress(grant.committed_offset, grant.metadata)
                continue
            refusal = errors[key] = from_detail(grant.error)
            if isinstance(refusal, StaleGeneration | QueueLocked):
                raise Deposed(refusal.message)
        return errors

    def _forget(self, lock: _Lock) -> None:
        if self._locks.get(lock.route.key) is lock:
            del self._locks[lock.route.key]

    def _by_home(self) -> dict[GroupId, list[_Lock]]:
        found: dict[GroupId, list[_Lock]] = {}
        for lock in self._locks.values():
            found.setdefault(self._cluster.routes.home(lock.route), []).append(lock)
        return found


_Errors: TypeAlias = dict[QueueKey, SemelError | None]


def _ref(lock: _Lock) -> broker_pb2.LockRef:
    return broker_pb2.LockRef(queue=queue_ref(lock.route.key), token=lock.token)


def _queue_of(topic: TopicRoute, partition: int) -> QueueRoute | None:
    """Returns the queue of a partition. A topic with a split queue is not served to Kafka's clients
    any more; what they had read of it is still committed, under the numbers that they know."""
    if topic.sealed:
        return topic.find(partition)
    queues = partitions_of(topic)
    return queues[partition] if 0 <= partition < len(queues) else None


async def _resolve(
    cluster: Cluster, places: Iterable[Place]
) -> tuple[dict[Place, QueueRoute], dict[Place, SemelError]]:
    """Finds the queues; also those that are newer than the routes."""
    numbers: dict[str, list[int]] = {}
    for topic, number in places:
        numbers.setdefault(topic, []).append(number)
    found: dict[Place, QueueRoute] = {}
    failed: dict[Place, SemelError] = {}
    for topic, wanted in numbers.items():
        try:
            route = await cluster.topic(topic)
            if any(_queue_of(route, number) is None for number in wanted):
                route = await cluster.topic(topic, refresh=True)
        except SemelError as error:
            failed |= {(topic, number): error for number in wanted}
            continue
        for number in wanted:
            queue = _queue_of(route, number)
            if queue is not None:
                found[topic, number] = queue
            else:
                failed[topic, number] = UnknownQueue(f"topic {topic!r} has no partition {number}")
    return found, failed


async def read_offsets(cluster: Cluster, group_id: str) -> dict[Place, Progress]:
    """Returns all that a group has committed, without being its coordinator. Raises SemelError."""
    routes = await cluster.controller("GetRoutes", controller_pb2.GetRoutesRequest())
    cluster.routes.on_routes(routes)
    places = {
        queue.key: (topic.name, number)
        for topic in map(topic_route, routes.topics)
        for number, queue in _numbered(topic)
    }
    request = broker_pb2.DescribeGroupOffsetsRequest(group=group_id)
    replies = await asyncio.gather(
        *(
            cluster.call_master(GroupId(message.group_id), "DescribeGroupOffsets", request, CALL_S)
            for message in routes.groups
        )
    )
    return {
        places[key]: Progress(state.committed_offset, state.metadata)
        for reply in replies
        for state in reply.states
        if state.committed_offset >= 0 and (key := queue_key_of(state.queue)) in places
    }


def _numbered(topic: TopicRoute) -> Iterable[tuple[int, QueueRoute]]:
    """The queues by partition; see `_queue_of`."""
    if topic.sealed:
        return [(queue.key.queue_id, queue) for queue in topic.every]
    return enumerate(partitions_of(topic))
