"""Topics: created, altered and deleted in steps that survive a crash between any two of them.

How it works. What is wanted is written to the store first, then the broker groups are driven to
it, then the store says that it is done. A *driver* task per unfinished topic reads the record and
does the next step:

    creating               create the queues on every group        → active
    active, settings new   send the settings to every group        → active
    active, splits         split the queues on their groups        → active, with their children
    deleting               delete the queues on every group        → (no record)

Steps are idempotent and are repeated until they succeed: after an error with growing pauses, at
once when a group has a new master, and by a fresh driver after a restart of the controller.
Deleting moves the record from the topic's name to its id, so that the name is free from that
moment and the topic never comes back.

Invariants
1. A topic is in the routes only while it is active: all its queues exist.
2. A record is written only with a check of the version that the decision was made from.
3. A topic_id is given to one topic, ever: it is random, and checked against all that are known.
4. A caller that gives up changes nothing about the steps: they go on to the end.

A request to create that its broker delays beyond the topic's deletion leaves an unused queue
there; no route and no client can name it.

Not here: rules and records (`rules.py`), calling brokers (`brokers/calls.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.store import StoreFailed, VersionConflict
from semel.controller.topics import rules as topic_rules
from semel.controller.topics import splits
from semel.controller.topics.held import require_nothing_delayed
from semel.controller.topics.placement import place, weigh
from semel.protos import compat
from semel.protos.errors import (
    Closed,
    InvalidRequest,
    SemelError,
    Throttled,
    TimedOut,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from semel.protos.ids import GroupId
from semel.protos.v1.broker_pb2 import ListOffsetsReply
from semel.protos.v1.common_pb2 import QueueRef, TopicSettings
from semel.protos.v1.control_pb2 import ControlRecord
from semel.protos.v1.controller_pb2 import CreateTopicRequest, TopicRoute, UnfinishedTopic
from semel.protos.v1.metadata_pb2 import (
    TOPIC_STATE_ACTIVE,
    TOPIC_STATE_CREATING,
    TOPIC_STATE_DELETING,
    SplitRecord,
    TopicRecord,
)

log = logging.getLogger(__name__)

RETRY_MS_FIRST: Final = 50
RETRY_MS_LAST: Final = 2_000
_GONE: Final = TopicRecord(state=TOPIC_STATE_DELETING)
_STEPS: Final = {
    TOPIC_STATE_CREATING: "creating",
    TOPIC_STATE_ACTIVE: "altering",
    TOPIC_STATE_DELETING: "deleting",
}


class QueueApplier(Protocol):
    """Brings control records to a broker group."""

    async def apply(self, group_id: int, batch: list[ControlRecord]) -> None:
        """Returns once they are durable there; raises SemelError when one attempt failed."""

    async def offsets(self, group_id: int, queues: Sequence[QueueRef]) -> ListOffsetsReply:
        """What the group knows of queues. Raises SemelError."""


class Groups(Protocol):
    """What the topics need to know about broker groups."""

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""

    def roomy_groups(self) -> list[int]:
        """Groups whose master is alive and has room on its disk; those without, if all are."""

    def written_bytes(self) -> dict[int, int]:
        """Bytes a second that producers write to each group, as far as known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A record as it is in the store."""

    key: str
    version: int
    record: TopicRecord

    @property
    def unfinished(self) -> bool:
        record = self.record
        return record.state != TOPIC_STATE_ACTIVE or record.settings_pending or bool(record.splits)


class TopicService:
    """All topics of the cluster. `start` begins its work, `stop` ends it."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        routes: RouteTable,
        groups: Groups,
        applier: QueueApplier,
        *,
        clock_us: Callable[[], int],
        on_change: Callable[[str], None],
        moving: Callable[[int, int | None], bool] = lambda *_: False,
    ) -> None:
        """`clock_us` is the wall clock; `on_change` hears of topics that came or went; `moving`
        says whether a queue of a topic, or a certain one, moves between groups."""
        self._epoch = epoch
        self._routes = routes
        self._groups = groups
        self._applier = applier
        self._clock_us = clock_us
        self._on_change = on_change
        self._moving = moving
        self._known: dict[int, _Known] = {}
        self._ids: dict[str, int] = {}
        self._placed: Counter[int] = Counter()
        self._promised: Counter[int] = Counter()
        self._drivers: dict[int, asyncio.Task[None]] = {}
        self._troubles: dict[int, SemelError] = {}
        self._creating = asyncio.Lock()
        self._retry_now = asyncio.Event()
        self._stopped = False

    async def load(self) -> None:
        """Reads all topics; to be called once, before `start`."""
        for prefix in (records.TOPICS, records.DELETING):
            for key, entry in (await self._epoch.store.scan(prefix)).items():
                record = records.load(TopicRecord, key, entry)
                self._absorb(_Known(key=key, version=entry.version, record=record))

    def start(self) -> None:
        """Goes on with everything that is unfinished."""
        for topic_id in list(self._known):
            self._drive(topic_id)

    async def stop(self) -> None:
        """Ends all drivers; what they had not finished stays unfinished in the store."""
        self._stopped = True
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    def on_new_master(self, group_id: int) -> None:
        """Tries again at once what waits for a group."""
        self._retry_now.set()
        self._retry_now = asyncio.Event()
        self.start()

    def placed(self) -> dict[int, int]:
        """How many queues of active topics each group owns."""
        return {group_id: count for group_id, count in self._placed.items() if count}

    def unfinished(self) -> list[UnfinishedTopic]:
        """Topics with steps to be done yet, by name, and what keeps them."""
        found = [known.record for known in self._known.values() if known.unfinished]
        return [
            UnfinishedTopic(
                name=record.name,
                topic_id=record.topic_id,
                step=_STEPS[record.state],
                trouble=str(self._troubles.get(record.topic_id, "")),
            )
            for record in sorted(found, key=lambda record: (record.name, record.topic_id))
        ]

    def names(self) -> list[str]:
        """All active topics."""
        return [name for name in sorted(self._ids) if self._routes.topic(name) is not None]

    def find(self, name: str) -> TopicRecord:
        """The record of a topic that exists or is being created. Raises UnknownTopic."""
        return _copy(self._find(name).record)

    def by_id(self, topic_id: int) -> TopicRecord | None:
        """The record of a topic, also of one that is being deleted."""
        known = self._known.get(topic_id)
        return None if known is None else known.record

    async def change_with(
        self,
        topic_id: int,
        change: Callable[[TopicRecord], None],
        *,
        checks: dict[str, int | None],
        puts: dict[str, bytes],
    ) -> int:
        """Changes a topic's record in one transaction with other keys; returns its version.

        Raises UnknownTopic, VersionConflict when one of `checks` may have failed, and what `change`
        raises: then nothing was written.
        """
        while True:
            known = self._known.get(topic_id)
            if known is None:
                raise UnknownTopic(f"there is no topic {topic_id:#x} any more")
            record = _copy(known.record)
            change(record)
            try:
                version = await self._epoch.transact(
                    checks={known.key: known.version, **checks},
                    puts={known.key: records.dump(record), **puts},
                )
            except VersionConflict:
                if self._known.get(topic_id) is known:
                    raise
                continue
            self._absorb(_Known(key=known.key, version=version, record=record))
            self._drive(topic_id)
            return version

    async def create(
        self, request: CreateTopicRequest, timeout_s: float
    ) -> tuple[TopicRoute, bool]:
        """Creates a topic; returns it and whether it is new.

        Raises InvalidRequest, TopicExists, UnknownGroup, Unavailable (no broker group), and
        TimedOut when its queues do not exist in time; it will be finished nevertheless.
        """
        topic_rules.check_name(request.name)
        topic_rules.check_queues(request.queues)
        settings = topic_rules.complete_settings(request.settings)
        topic_id, created = await unbroken(self._begin_create(request, settings))
        await self._settled(topic_id, timeout_s, f"topic {request.name!r} is being created")
        route = self._routes.topic(request.name)
        if route is None or route.topic_id != topic_id:
            raise UnknownTopic(f"topic {request.name!r} was deleted while it was created")
        return route, created

    async def alter(
        self, name: str, settings: TopicSettings | None, queues: int, timeout_s: float
    ) -> TopicRoute:
        """Gives a topic new settings, or more open queues (0: as many as there are).

        Raises InvalidRequest, UnknownTopic, Throttled while other splits go on, TimedOut.
        """
        if settings is None and not queues:
            raise InvalidRequest("nothing to alter: give settings, or a number of queues")
        complete = None if settings is None else topic_rules.complete_settings(settings)
        if queues:
            topic_rules.check_queues(queues)

        def plan(record: TopicRecord) -> list[SplitRecord]:
            if not queues or _leads_to(record, queues):
                return []
            _require_no_splits(record)
            return splits.plan_count(record, queues)

        def change(record: TopicRecord) -> None:
            self._split(record, plan(record))
            if complete is not None:
                record.settings.CopyFrom(complete)
                record.settings_pending = True

        record = self.find(name)
        await require_nothing_delayed(self._applier.offsets, record, plan(record))
        topic_id = await unbroken(self._begin_alter(name, change))
        await self._settled(topic_id, timeout_s, f"the change of {name!r} is stored")
        return topic_rules.topic_route(self._find(name).record)

    async def split(self, name: str, queue_id: int, children: int, timeout_s: float) -> TopicRoute:
        """Splits one queue; again the same is success.

        Raises InvalidRequest, also while messages of it are delayed, UnknownTopic, UnknownQueue,
        Throttled while other splits go on, TimedOut.
        """

        def plan(record: TopicRecord) -> list[SplitRecord]:
            pending = [len(each.child_ids) for each in record.splits if each.queue_id == queue_id]
            return [] if pending == [children] else splits.plan_queue(record, queue_id, children)

        record = self.find(name)
        await require_nothing_delayed(self._applier.offsets, record, plan(record))
        topic_id = await unbroken(
            self._begin_alter(name, lambda record: self._split(record, plan(record)))
        )
        await self._settled(topic_id, timeout_s, f"the split of queue {queue_id} is decided")
        return topic_rules.topic_route(self._find(name).record)

    async def delete(self, name: str, *, if_exists: bool, timeout_s: float) -> bool:
        """Deletes a topic for ever; false when there was none.

        Raises UnknownTopic, and TimedOut when its queues are not gone in time: the topic is.
        """
        try:
            topic_id = await unbroken(self._begin_delete(name))
        except UnknownTopic:
            if if_exists:
                return False
            raise
        await self._settled(topic_id, timeout_s, f"topic {name!r} is deleted; its data")
        return True

    # The first step of each change; run to their end once they have begun.

    async def _begin_create(
        self, request: CreateTopicRequest, settings: TopicSettings
    ) -> tuple[int, bool]:
        async with self._creating:
            if request.name in self._ids:
                again = self._check_same(request)
                return self._ids[request.name], again
            record = TopicRecord(
                name=request.name,
                topic_id=self._new_id(),
                state=TOPIC_STATE_CREATING,
                settings=settings,
                placement=place(request.queues, self._loads(request)),
                created_us=self._clock_us(),
                request_id=request.request_id,
            )
            key = records.topic_key(request.name)
            version = await self._epoch.transact(
                checks={key: None}, puts={key: records.dump(record)}
            )
            self._absorb(_Known(key=key, version=version, record=record))
            log.info("topic is being created topic=%s queues=%d", record.name, request.queues)
            self._drive(record.topic_id)
            return record.topic_id, True

    async def _begin_alter(self, name: str, change: Callable[[TopicRecord], None]) -> int:
        while True:
            known = self._find(name)
            record = _copy(known.record)
            change(record)
            if record == known.record or await self._replace(known, record):
                self._drive(record.topic_id)
                return record.topic_id

    async def _begin_delete(self, name: str) -> int:
        while True:
            known = self._find(name)
            record = _copy(known.record)
            record.state = TOPIC_STATE_DELETING
            if await self._replace(known, record, records.deleting_key(record.topic_id)):
                log.info("topic is deleted topic=%s", name)
                self._drive(record.topic_id)
                return record.topic_id

    def _split(self, record: TopicRecord, plan: list[SplitRecord]) -> None:
        if plan:
            _require_no_splits(record)
            self._require_at_rest(record, plan)
            record.splits.extend(plan)

    def _require_at_rest(self, record: TopicRecord, plan: list[SplitRecord]) -> None:
        for split in plan:
            if self._moving(record.topic_id, split.queue_id):
                raise InvalidRequest(
                    f"queue {split.queue_id} of topic {record.name!r} moves to another broker"
                    " group; split it when it is there, or give the move up (semel queue move"
                    " --cancel)"
                )

    def _check_same(self, request: CreateTopicRequest) -> bool:
        """An existing topic is success only if that was asked for and the queues are as many.

        True for a topic that an earlier attempt of the same call made, perhaps at another master.
        """
        record = self._find(request.name).record
        if request.request_id and request.request_id == record.request_id:
            return True
        doing = "exists" if record.state == TOPIC_STATE_ACTIVE else "is being created"
        if not request.if_not_exists:
            raise TopicExists(f"topic {request.name!r} {doing}")
        present = len(splits.open_queues(record))
        if present != request.queues:
            raise TopicExists(
                f"topic {request.name!r} {doing} with {present} queues, not {request.queues}"
            )
        return False

    def _loads(self, request: CreateTopicRequest) -> dict[GroupId, int]:
        """Groups that may get queues of a new topic, and how many they have."""
        known = self._groups.group_ids()
        for group_id in request.groups:
            if group_id not in known:
                raise UnknownGroup(f"there is no broker group {group_id}; known are {known}")
        usable = list(request.groups) or self._groups.roomy_groups() or known
        if not usable:
            raise Unavailable("no broker has reported to the controller yet. Start the brokers")
        counts = {GroupId(group_id): self._promised[group_id] for group_id in usable}
        written = self._groups.written_bytes()
        return weigh(counts, {GroupId(group_id): written[group_id] for group_id in written})

    def _new_id(self) -> int:
        while True:
            topic_id = secrets.randbits(63)
            if topic_id and topic_id not in self._known:
                return topic_id

    def _find(self, name: str) -> _Known:
        if name not in self._ids:
            raise UnknownTopic(f"there is no topic {name!r}. Create it, or check the spelling")
        return self._known[self._ids[name]]

    # The store and its image here.

    async def _replace(self, known: _Known, record: TopicRecord, key: str = "") -> bool:
        """Writes a new state, under another key if one is given; false when it had changed."""
        key = key or known.key
        try:
            version = await self._epoch.transact(
                checks={known.key: known.version},
                puts={key: records.dump(record)},
                deletes=frozenset({known.key} - {key}),
            )
        except VersionConflict:
            return False
        self._absorb(_Known(key=key, version=version, record=record))
        return True

    async def _remove(self, known: _Known) -> None:
        await self._epoch.transact(
            checks={known.key: known.version}, deletes=frozenset({known.key})
        )
        self._known.pop(known.record.topic_id, None)
        log.info("topic's queues are gone topic=%s", known.record.name)

    def _absorb(self, known: _Known) -> None:
        """Takes a stored record into the index and the routes."""
        record = known.record
        known_before = self._known.get(record.topic_id)
        before = _GONE if known_before is None else known_before.record
        self._known[record.topic_id] = known
        if record.state == TOPIC_STATE_DELETING:
            if self._ids.get(record.name) == record.topic_id:
                del self._ids[record.name]
                self._routes.remove_topic(record.name)
        else:
            self._ids[record.name] = record.topic_id
        if record.state == TOPIC_STATE_ACTIVE:
            self._routes.set_topic(topic_rules.topic_route(record))
        for each, sign in ((before, -1), (record, 1)):
            if each.state != TOPIC_STATE_DELETING:
                _count(self._promised, each, sign)
            if each.state == TOPIC_STATE_ACTIVE:
                _count(self._placed, each, sign)
        actives = [each.state == TOPIC_STATE_ACTIVE for each in (before, record)]
        if actives[0] != actives[1] or before.queues != record.queues:
            self._on_change(record.name)

    # The drivers.

    def _drive(self, topic_id: int) -> None:
        known = self._known.get(topic_id)
        if self._stopped or known is None or not known.unfinished or topic_id in self._drivers:
            return
        driver = asyncio.get_running_loop().create_task(self._finish(topic_id))
        self._drivers[topic_id] = driver

    async def _finish(self, topic_id: int) -> None:
        try:
            await self._steps(topic_id)
        except (Closed, StoreFailed):
            return  # the controller ends
        except Exception:
            log.exception(
                "a bug ends the work on a topic until it is changed again, or another controller"
                " is in office topic_id=%d",
                topic_id,
            )
        finally:
            del self._drivers[topic_id]

    async def _steps(self, topic_id: int) -> None:
        pause_ms = RETRY_MS_FIRST
        while (known := self._known.get(topic_id)) is not None and known.unfinished:
            retry_now = self._retry_now
            try:
                await self._step(known)
                self._troubles.pop(topic_id, None)
                pause_ms = RETRY_MS_FIRST
                continue
            except VersionConflict:
                continue  # altered or deleted meanwhile: read again
            except (Closed, StoreFailed):
                raise
            except SemelError as error:
                self._troubles[topic_id] = error
                log.warning("topic waits topic=%s reason=%s", known.record.name, error)
            try:
                async with compat.timeout(pause_ms / 1000):
                    await retry_now.wait()
            except TimeoutError:
                pause_ms = min(pause_ms * 2, RETRY_MS_LAST)

    async def _step(self, known: _Known) -> None:
        record = known.record
        if record.state == TOPIC_STATE_DELETING:
            if self._moving(record.topic_id, None):
                raise Throttled(f"a queue of deleted topic {record.name!r} still moves")
            await self._on_all(
                record,
                lambda group: topic_rules.delete_records(record, group),
                topic_rules.touched_groups(record),
            )
            await unbroken(self._remove(known))
            return
        done = _copy(record)
        if record.state == TOPIC_STATE_CREATING:
            await self._on_all(record, lambda group: topic_rules.create_records(record, group))
            done.state = TOPIC_STATE_ACTIVE
            log.info("topic is active topic=%s", record.name)
        elif record.splits:
            await self._on_all(record, lambda group: topic_rules.split_calls(record, group))
            done = splits.after_splits(record)
            log.info("queues are split topic=%s queues=%d", record.name, len(done.placement))
        else:
            await self._on_all(record, lambda _: topic_rules.alter_records(record))
            done.settings_pending = False
        await unbroken(self._replace(known, done))

    async def _on_all(
        self,
        record: TopicRecord,
        calls: Callable[[int], Iterator[list[ControlRecord]]],
        groups: list[int] | None = None,
    ) -> None:
        """Sends each group its records; raises the first failure after all have ended."""
        groups = topic_rules.groups_of(record) if groups is None else groups

        async def one(group_id: int) -> None:
            for batch in calls(group_id):
                await self._applier.apply(group_id, batch)

        results = await asyncio.gather(
            *(one(group_id) for group_id in groups), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _settled(self, topic_id: int, timeout_s: float, what: str) -> None:
        """Waits for the driver of a topic; raises TimedOut."""
        driver = self._drivers.get(topic_id)
        if driver is None:
            return
        await asyncio.wait({driver}, timeout=timeout_s)
        known = self._known.get(topic_id)
        if known is None or not known.unfinished:
            return
        trouble = self._troubles.get(topic_id)
        reason = f" (last trouble: {trouble})" if trouble else ""
        raise TimedOut(f"{what}: not on all broker groups yet, it goes on by itself{reason}")


def _count(counter: Counter[int], record: TopicRecord, sign: int) -> None:
    """Adds (1) or removes (-1) the topic's queues."""
    for group_id in record.placement:
        counter[group_id] += sign


def _leads_to(record: TopicRecord, queues: int) -> bool:
    """What is decided already makes so many open queues."""
    return bool(record.splits) and len(splits.open_queues(splits.after_splits(record))) == queues


def _require_no_splits(record: TopicRecord) -> None:
    if record.splits:
        raise Throttled(
            f"queues of topic {record.name!r} are being split; ask again", retry_after_ms=100
        )


def _copy(record: TopicRecord) -> TopicRecord:
    copy = TopicRecord()
    copy.CopyFrom(record)
    return copy
