"""The committed offsets of one Kafka group, as the gateway that coordinates it stores them.

How it works. They are the progress of the Semel group of the same name, with Kafka's metadata
beside each. The coordinator holds the locks of the queues that its members have asked for, under
one owner for all gateways and the generation in which it took the group over. So the next
coordinator gets every lock at once, under a new token and a higher generation, and from then on
whatever the one before it still commits is refused at apply, and so are its new locks: it hears
that it was deposed.

Members of a group ask for their offsets when they begin to read, so the lock is acquired then, and
the offsets are those of the grant: nothing of an earlier coordinator lands behind them.

Where a queue was split, a partition is a line of queues, and its progress that on all of them
(`line_progress.py`). The locks of children are acquired beside those of their parents: Kafka's
consumers read a new partition whether or not another one has come to the place where it began.

When a partition may have got another reader (`KafkaGroup.era`), the first fetch of it gives up what
others have staged for the group with transactions that are open: the new reader does that work
again, and the transaction of the one before it cannot be committed any more.

A commit may go back, as in Kafka. It says so, and its token is used no more: a copy of it that was
delayed on the way cannot undo a later commit.

Invariants
1. Every commit carries a token that was granted under the generation of this coordinator.
2. Code after an await uses the lock that it sent, not the one that is there by then.
3. What is staged by a member of an earlier era is never committed after an offset was fetched.

Not here: the locks (`group_locks.py`), who coordinates (`roles.py`), whether a member may commit
(`groups/kafka_group.py`).
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from semel.client.admin.resets import forget_progress
from semel.client.core.retry import Backoff
from semel.client.core.routing import QueueRoute
from semel.client.transactions.staging import SERVICE
from semel.client.transport.cluster import Cluster
from semel.gateway.coordination.group_locks import (
    CALL_S,
    RETRY_POLICY,
    Errors,
    GroupLock,
    GroupLocks,
)
from semel.gateway.coordination.line_progress import STEPS, Progress, Stores, joined, own
from semel.gateway.coordination.staged_in import StagedIn
from semel.gateway.partitions import PartitionLine
from semel.gateway.topic_book import TopicBook
from semel.protos.errors import (
    InvalidRequest,
    LockLost,
    OffsetOutOfRange,
    SemelError,
    StaleGeneration,
    UnknownQueue,
    from_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, transaction_records_pb2

SPLIT_ATTEMPTS: Final = 3
"""How often an offset is committed that is beyond the end of a queue, until it is refused."""
FETCH_ATTEMPTS: Final = 20
"""How often offsets are fetched while locks tell of splits: each may tell of one more, and a queue
of one slot has at most 16 behind it."""

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""


class CommittedOffsets:
    """See the module's text. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, topics: TopicBook, locks: GroupLocks) -> None:
        self.locks = locks
        self._cluster = cluster
        self._topics = topics
        self._group_id = locks.group_id
        self._turn = asyncio.Lock()
        """Held while several queues of a partition are committed, one after the other."""

    def acting(self, cluster: Cluster, topics: TopicBook) -> CommittedOffsets:
        """Returns the same, with calls by a client of somebody else, whose rights count then."""
        if cluster is self._cluster:
            return self
        other = CommittedOffsets(cluster, topics, self.locks.acting(cluster))
        other._turn = self._turn
        return other

    async def commit(self, wanted: Mapping[Place, Progress]) -> dict[Place, SemelError]:
        """Stores offsets. Returns the errors of those that are not, or perhaps not, stored.

        Raises Deposed; then some may be stored.
        """
        return await self._by(wanted, self._store_at)

    async def _by(self, wanted: Mapping[Place, Progress], store: _Store) -> dict[Place, SemelError]:
        """Stores offsets by `store`, again where it tells of a split. Returns the errors."""
        failed: dict[Place, SemelError] = {}
        left = dict(wanted)
        for place in [place for place in left if wanted[place].offset < 0]:
            failed[place] = OffsetOutOfRange(f"offset {left.pop(place).offset} does not exist")
        backoff = Backoff(RETRY_POLICY, random.random)
        suffices = self._goes_on(left)
        for attempt in range(SPLIT_ATTEMPTS):
            lines, refused = await self._resolve(left, suffices)
            refused |= await store({place: (lines[place], left[place]) for place in lines})
            # The locks have told of a split that the routes do not show.
            again = {place for place, line in lines.items() if self._was_split(line)}
            suffices = _always if again else _never
            # Beyond the end of a queue: it may have been split, and another gateway has told.
            again |= {place for place in refused if isinstance(refused[place], OffsetOutOfRange)}
            failed |= refused
            left = {place: left[place] for place in again}
            if not left or attempt == SPLIT_ATTEMPTS - 1:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
            for place in left:
                failed.pop(place, None)
        return failed

    def _goes_on(self, wanted: Mapping[Place, Progress]) -> _Suffices:
        """Returns what tells whether a commit goes on from the one before. Else it may go back over
        a split, and then must know of it."""

        def goes_on(place: Place, line: PartitionLine) -> bool:
            number, offset = line.spot(wanted[place].offset)
            lock = self.locks.get(line.queues[number].key)
            return lock is not None and offset >= lock.committed

        return goes_on

    async def _store_at(
        self, wanted: Mapping[Place, tuple[PartitionLine, Progress]]
    ) -> dict[Place, SemelError]:
        simple = {place: each for place, each in wanted.items() if len(each[0].queues) == 1}
        split = {place: each for place, each in wanted.items() if place not in simple}
        stores: Stores = {}
        for line, progress in simple.values():
            stores |= own(line, progress, {})
        errors = await self._store(stores)
        failed = _by_place({place: line for place, (line, _) in simple.items()}, errors)
        return failed | await self._store_in_lines(split) if split else failed

    async def _store_in_lines(
        self, wanted: Mapping[Place, tuple[PartitionLine, Progress]]
    ) -> dict[Place, SemelError]:
        """Stores the progress on partitions whose queues were split; see `line_progress.py`."""
        lines = {place: line for place, (line, _) in wanted.items()}
        async with self._turn:
            queues = [queue for line in lines.values() for queue in line.queues]
            missing = {queue.key: queue for queue in queues if queue.key not in self.locks}
            failed = _by_place(lines, await self.locks.hold(missing, {}))
            for step in STEPS:
                known = self.locks.committed()
                stores: Stores = {}
                for place, (line, progress) in wanted.items():
                    if place not in failed:
                        stores |= step(line, progress, known)
                failed |= _by_place(lines, await self._store(stores))
        return failed

    async def fetch(self, wanted: Iterable[Place], era: int) -> dict[Place, Progress | SemelError]:
        """Returns what is committed, as neither an earlier coordinator nor a transaction of an
        earlier era can change it. Raises Deposed."""
        places = list(wanted)
        suffices = _never
        for _ in range(FETCH_ATTEMPTS):
            lines, refused = await self._resolve(places, suffices)
            found: dict[QueueKey, Progress] = {}
            queues = {queue.key: queue for line in lines.values() for queue in line.queues}
            new = {key: queue for key, queue in queues.items() if self.locks.era_of(key) != era}
            known = {key: queue for key, queue in queues.items() if key not in new}
            refused |= _by_place(lines, await self.locks.hold(new, found, era))
            refused |= _by_place(lines, await self.locks.hold(known, found))
            if not any(self._was_split(line) for line in lines.values()):
                break
            suffices = _always  # the controllers do not tell of the split yet: the locks have
        result: dict[Place, Progress | SemelError] = dict(refused)
        for place, line in lines.items():
            if place not in refused:
                result[place] = joined(line.queues, found, line.end)
        return result

    async def forget(self, places: Iterable[Place]) -> dict[Place, SemelError]:
        """Forgets what is committed of partitions. Returns the errors of those for which it does
        not know. Raises SemelError."""
        lines, refused = await self._resolve(places, _never)
        keys = {queue.key for line in lines.values() for queue in line.queues}
        async with self._turn:
            for key in keys:
                self.locks.forget_queue(key)
            if keys:
                await forget_progress(self._cluster, self._group_id, keys)
        return refused

    async def stage(
        self, wanted: Mapping[Place, Progress], transaction: StagedIn
    ) -> dict[Place, SemelError]:
        """Stages offsets, which are stored with the transaction's messages. Returns the errors of
        those that are not, or perhaps not, staged. Raises Deposed."""
        return await self._by(wanted, functools.partial(self._stage_in_lines, transaction))

    async def _stage_in_lines(
        self, transaction: StagedIn, wanted: Mapping[Place, tuple[PartitionLine, Progress]]
    ) -> dict[Place, SemelError]:
        lines = {place: line for place, (line, _) in wanted.items()}
        queues = {queue.key: queue for line in lines.values() for queue in line.queues}
        missing = {key: queue for key, queue in queues.items() if key not in self.locks}
        failed = _by_place(lines, await self.locks.hold(missing, {}))
        known = self.locks.committed()
        stores: Stores = {}
        for place, (line, progress) in wanted.items():
            if place not in failed:
                for step in STEPS:  # they become visible in one moment
                    stores |= step(line, progress, known)

        async def at(home: GroupId, keys: Sequence[QueueKey]) -> Errors:
            return await self._stage_at(home, {key: stores[key] for key in keys}, transaction)

        by_queue = {key: queue for key, (queue, _) in stores.items()}
        return failed | _by_place(lines, await self.locks.everywhere(by_queue, at))

    async def _stage_at(
        self,
        home: GroupId,
        wanted: Mapping[QueueKey, tuple[QueueRoute, Progress]],
        transaction: StagedIn,
    ) -> Errors:
        errors: Errors = {}
        missing = [route for key, (route, _) in wanted.items() if key not in self.locks]
        if missing:
            errors |= await self.locks.acquire(home, missing, {})
        locks = {key: self.locks.get(key) for key in wanted if errors.get(key) is None}
        results = await asyncio.gather(
            *(
                self._stage_one(home, lock, wanted[key][1], transaction)
                for key, lock in locks.items()
                if lock is not None
            )
        )
        held = [key for key, lock in locks.items() if lock is not None]
        lost = {key: LockLost(f"the lock of {key} was lost") for key in locks.keys() - {*held}}
        return errors | lost | dict(zip(held, results, strict=True))

    async def _stage_one(
        self, home: GroupId, lock: GroupLock, progress: Progress, transaction: StagedIn
    ) -> SemelError | None:
        """Stages progress on one queue, under a stager of its own (`transactions/coordinator.py`
        says why)."""
        key = lock.route.key
        opening = transaction.opening(self._group_id, key)
        lock.version += 1
        request = transaction_records_pb2.StageCommits(
            transaction_id=opening.transaction_id,
            epoch=opening.epoch,
            stager_id=opening.stager_id,
            group=self._group_id,
        )
        request.commits.add(
            queue=queue_ref(key),
            token=lock.token,
            offset=progress.offset,
            metadata=progress.metadata,
            metadata_version=lock.version,
            # A copy that comes late finds no stager: the token need not be given up.
            may_lower=progress.offset < lock.committed,
        )
        call = functools.partial(self._cluster.call_master, home, service=SERVICE)
        try:
            await call("Open", opening, CALL_S)
            if not transaction.may_stage():
                return StaleGeneration(f"group {self._group_id!r} has gone on without this member")
            reply = await call("StageCommits", request, CALL_S)
        except SemelError as error:
            return error
        (outcome,) = reply.outcomes
        refusal = from_detail(outcome.error) if outcome.HasField("error") else None
        if isinstance(refusal, LockLost | InvalidRequest):
            self.locks.forget(lock)
            return LockLost(refusal.message)
        return refusal

    def _was_split(self, line: PartitionLine) -> bool:
        """Whether a line goes on, as its last lock has told; then routes show it from now on."""
        lock = self.locks.get(line.open.key)
        if lock is None or lock.split is None:
            return False
        self._topics.on_split(line.open.key.topic_id, lock.split)
        return True

    async def _resolve(
        self, places: Iterable[Place], suffices: _Suffices
    ) -> tuple[dict[Place, PartitionLine], dict[Place, SemelError]]:
        """Finds the partitions, by new routes unless those that are known suffice for each."""
        numbers: dict[str, list[int]] = {}
        for name, number in places:
            numbers.setdefault(name, []).append(number)
        found: dict[Place, PartitionLine] = {}
        failed: dict[Place, SemelError] = {}
        for name, wanted in numbers.items():
            try:
                topic = await self._topics.find_with(name, max(wanted))
                if not all(
                    0 <= number < topic.count and suffices((name, number), topic.partition(number))
                    for number in wanted
                ):
                    topic = await self._topics.renewed(name)
            except SemelError as error:
                failed |= {(name, number): error for number in wanted}
                continue
            for number in wanted:
                try:
                    found[name, number] = topic.partition(number)
                except UnknownQueue as error:
                    failed[name, number] = error
        return found, failed

    async def _store(self, stores: Stores) -> dict[QueueKey, SemelError]:
        """Commits offsets of queues. Returns the errors. Raises Deposed."""

        async def at(home: GroupId, keys: Sequence[QueueKey]) -> Errors:
            return await self._commit_at(home, {key: stores[key] for key in keys})

        return await self.locks.everywhere({key: queue for key, (queue, _) in stores.items()}, at)

    async def _commit_at(
        self, home: GroupId, wanted: Mapping[QueueKey, tuple[QueueRoute, Progress]]
    ) -> Errors:
        errors: Errors = {}
        missing = [route for key, (route, _) in wanted.items() if key not in self.locks]
        if missing:
            errors |= await self.locks.acquire(home, missing, {})
        request = broker_pb2.CommitRequest(group=self._group_id)
        sent: list[GroupLock] = []
        for key, (_, progress) in wanted.items():
            lock = self.locks.get(key)
            if lock is None:
                errors.setdefault(key, LockLost(f"the lock of {key} was lost"))
                continue
            if key in errors:
                continue
            lock.version += 1
            may_lower = progress.offset < lock.committed
            if may_lower:
                self.locks.forget(lock)
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
                self.locks.forget(lock)
                errors[lock.route.key] = error
            return errors
        for lock, outcome in zip(sent, reply.outcomes, strict=True):
            refusal = from_detail(outcome.error) if outcome.HasField("error") else None
            errors[lock.route.key] = self._judged(lock, wanted[lock.route.key][1].offset, refusal)
        return errors

    def _judged(
        self, lock: GroupLock, offset: int, refusal: SemelError | None
    ) -> SemelError | None:
        """Takes in the outcome of a commit; returns the error that it ends with, or LockLost for
        another attempt."""
        if refusal is None:
            lock.committed = offset
            return None
        if isinstance(refusal, LockLost):
            self.locks.forget(lock)
        elif isinstance(refusal, InvalidRequest):
            # A commit that got no answer has reached further: this one goes back, and says so after
            # the next acquisition has told how far that was.
            self.locks.forget(lock)
            return LockLost(refusal.message)
        return refusal


_Suffices: TypeAlias = Callable[[Place, PartitionLine], bool]
"""Whether a partition as it is known will do."""


_Store: TypeAlias = Callable[
    [Mapping[Place, tuple[PartitionLine, Progress]]], Awaitable[dict[Place, SemelError]]
]
"""Stores progress on partitions as they are known, and returns the errors."""


def _never(place: Place, line: PartitionLine) -> bool:
    return False


def _always(place: Place, line: PartitionLine) -> bool:
    return True


def _by_place(
    lines: Mapping[Place, PartitionLine], errors: Mapping[QueueKey, SemelError]
) -> dict[Place, SemelError]:
    """Returns the first error of each partition that has any."""
    failed: dict[Place, SemelError] = {}
    for place, line in lines.items():
        for queue in line.queues:
            if queue.key in errors:
                failed.setdefault(place, errors[queue.key])
    return failed
