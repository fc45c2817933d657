"""The work on topics: they are created, altered and deleted in steps that survive crashes between.

How it works. The wanted state is written to the store first, then the broker groups are brought to
it, then the store records that this is done. A *driver* task per unfinished topic reads the record
and does the next step:

    creating               create the queues on every group        → active
    active, settings new   send the settings to every group        → active
    active, splits         split the queues on their groups        → active, with their children
    deleting               delete the queues on every group        → (no record)

Steps are idempotent and are repeated until they succeed: after an error with growing pauses, at
once when a group has a new master, and by a new driver after a restart of the controller. Deleting
moves the record from the topic's name to its id: from that moment the name is free, and the topic
never comes back.

Invariants
1. A topic is in the routes only while it is active, that is, while all its queues exist.
2. A topic_id is never given to a second topic: it is random, and checked against all that are
   known.
3. A caller that gives up does not stop the steps: they go on to the end.

If a request to create a queue is delayed on its way to a broker until the topic is deleted, it
leaves an unused queue there, which no route and no client can name.

Not here: the stored records (`topic_table.py`), rules and control records (`rules.py`), calling
brokers (`brokers/calls.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.store import StoreFailed, VersionConflict
from semel.controller.topics import id_dedup, setting_levels, splits
from semel.controller.topics import rules as topic_rules
from semel.controller.topics.held import require_nothing_delayed
from semel.controller.topics.placement import place, weigh
from semel.controller.topics.topic_table import StoredTopic, TopicTable, copied
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
_STEPS: Final = {
    TOPIC_STATE_CREATING: "creating",
    TOPIC_STATE_ACTIVE: "altering",
    TOPIC_STATE_DELETING: "deleting",
}


class QueueApplier(Protocol):
    """Sends control records and questions to broker groups."""

    async def apply(self, group_id: int, batch: list[ControlRecord]) -> None:
        """Returns once the records are durable there; raises SemelError if the attempt failed."""

    async def offsets(self, group_id: int, queues: Sequence[QueueRef]) -> ListOffsetsReply:
        """The group's offsets of queues. Raises SemelError."""


class Groups(id_dedup.GroupFacts, Protocol):
    """The facts about broker groups that topics depend on."""

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""

    def roomy_groups(self) -> list[int]:
        """Groups whose master is alive and has room on its disk; if none has, those without."""

    def written_bytes(self) -> dict[int, int]:
        """Bytes a second that producers write to each group, as far as known."""


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
        is_taken: Callable[[str], bool] = lambda _: False,
        topics_max: Callable[[], int] = lambda: 100_000,
    ) -> None:
        """`clock_us` is the wall clock. `on_change` is called for each topic that came, went or has
        other queues. `moving` says whether a queue of a topic, or a certain one, moves between
        groups; `is_taken`, whether a topic that is not this cluster's yet has a name."""
        self._epoch = epoch
        self._topics_max = topics_max
        self._table = TopicTable(epoch, routes, on_change)
        self._routes = routes
        self._groups = groups
        self._applier = applier
        self._clock_us = clock_us
        self._moving = moving
        self._is_taken = is_taken
        self._drivers: dict[int, asyncio.Task[None]] = {}
        self._errors: dict[int, SemelError] = {}
        self._creating = asyncio.Lock()
        self._retry_now = asyncio.Event()
        self._stopped = False

    @property
    def table(self) -> TopicTable:
        """The topics as they are stored."""
        return self._table

    async def load(self) -> None:
        """Reads all topics; to be called once, before `start`."""
        await self._table.load()

    def start(self) -> None:
        """Continues all unfinished work."""
        for topic_id in self._table.ids():
            self._drive(topic_id)

    async def stop(self) -> None:
        """Ends all drivers; their unfinished work stays unfinished in the store."""
        self._stopped = True
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    def on_new_master(self, group_id: int) -> None:
        """Retries at once all work that waits for a group."""
        self._retry_now.set()
        self._retry_now = asyncio.Event()
        self.start()

    def placed(self) -> dict[int, int]:
        """The number of queues of active topics that each group owns."""
        return self._table.placed()

    def unfinished(self) -> list[UnfinishedTopic]:
        """Topics with steps left to do, by name, each with the reason for the delay."""
        found = self._table.unfinished()
        return [
            UnfinishedTopic(
                name=record.name,
                topic_id=record.topic_id,
                step=_STEPS[record.state],
                reason=str(self._errors.get(record.topic_id, "")),
            )
            for record in sorted(found, key=lambda record: (record.name, record.topic_id))
        ]

    def names(self) -> list[str]:
        """All active topics."""
        return self._table.names()

    def find(self, name: str) -> TopicRecord:
        """The record of a topic that exists or is being created. Raises UnknownTopic."""
        return self._table.find(name)

    def by_id(self, topic_id: int) -> TopicRecord | None:
        """The record of a topic, also of one that is being deleted."""
        return self._table.by_id(topic_id)

    async def change_with(
        self,
        topic_id: int,
        change: Callable[[TopicRecord], None],
        *,
        checks: dict[str, int | None],
        puts: dict[str, bytes],
    ) -> int:
        """`TopicTable.change_with`; a driver then does the steps that the change asks for."""
        version = await self._table.change_with(topic_id, change, checks=checks, puts=puts)
        self._drive(topic_id)
        return version

    async def create(
        self, request: CreateTopicRequest, timeout_s: float, owner: str = ""
    ) -> tuple[TopicRoute, bool]:
        """Creates a topic for `owner`; returns it and whether it is new.

        Raises InvalidRequest, TopicExists, UnknownGroup, Unavailable (no broker group),
        UnsupportedVersion when a setting needs a higher feature level, Throttled while a group's
        level is not known, and TimedOut when its queues do not exist in time; the topic
        will be finished nevertheless.
        """
        topic_rules.check_name(request.name)
        topic_rules.check_queues(request.queues)
        settings = topic_rules.complete_settings(request.settings)
        topic_id, created = await unbroken(self._begin_create(request, settings, owner))
        await self._settled(topic_id, timeout_s, f"topic {request.name!r} is being created")
        route = self._routes.topic(request.name)
        if route is None or route.topic_id != topic_id:
            raise UnknownTopic(f"topic {request.name!r} was deleted while it was created")
        return route, created

    async def alter(
        self, name: str, settings: TopicSettings | None, queues: int, timeout_s: float
    ) -> TopicRoute:
        """Gives a topic new settings, or more open queues (0: as many as there are).

        Raises InvalidRequest, UnknownTopic, Throttled while other changes go on, UnsupportedVersion
        when a setting needs a higher feature level, TimedOut.
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
                self._require_no_move(record, complete)
                topic_rules.check_storage(record, complete)
                setting_levels.require_levels_of(record, complete, self._epoch.level, self._groups)
                id_dedup.change_settings(record, complete, self._epoch.level, self._groups)
                record.settings_pending = True

        record = self.find(name)
        await require_nothing_delayed(self._applier.offsets, self._groups, record, plan(record))
        topic_id = await unbroken(self._begin_alter(name, change))
        await self._settled(topic_id, timeout_s, f"the change of {name!r} is stored")
        return topic_rules.topic_route(self._table.known(name).record)

    async def split(self, name: str, queue_id: int, children: int, timeout_s: float) -> TopicRoute:
        """Splits one queue; repeating the call succeeds.

        Raises InvalidRequest, also while messages of it are delayed and its group cannot split it
        with them, UnknownTopic, UnknownQueue, Throttled while other splits go on, TimedOut.
        """

        def plan(record: TopicRecord) -> list[SplitRecord]:
            pending = [len(each.child_ids) for each in record.splits if each.queue_id == queue_id]
            return [] if pending == [children] else splits.plan_queue(record, queue_id, children)

        record = self.find(name)
        await require_nothing_delayed(self._applier.offsets, self._groups, record, plan(record))
        topic_id = await unbroken(
            self._begin_alter(name, lambda record: self._split(record, plan(record)))
        )
        await self._settled(topic_id, timeout_s, f"the split of queue {queue_id} is decided")
        return topic_rules.topic_route(self._table.known(name).record)

    async def delete(self, name: str, *, if_exists: bool, timeout_s: float) -> bool:
        """Deletes a topic for ever; false when there was none.

        Raises UnknownTopic, and TimedOut when its queues are not gone in time; the topic itself is
        gone then.
        """
        try:
            topic_id = await unbroken(self._begin_delete(name))
        except UnknownTopic:
            if if_exists:
                return False
            raise
        await self._settled(topic_id, timeout_s, f"topic {name!r} is deleted; its data")
        return True

    # The first step of each change. Once one has begun, it runs to its end.

    async def _begin_create(
        self, request: CreateTopicRequest, settings: TopicSettings, owner: str
    ) -> tuple[int, bool]:
        async with self._creating:
            if self._table.has(request.name):
                again = self._check_same(request)
                return self._table.known(request.name).record.topic_id, again
            if self._is_taken(request.name):
                raise InvalidRequest(
                    f"topic {request.name!r} is a copy of another cluster's: promote it, or drop it"
                )
            if self._table.count >= self._topics_max():
                raise InvalidRequest(
                    f"there are {self._table.count:,} topics, as many as --topics-max of the"
                    " controllers allows"
                )
            record = TopicRecord(
                name=request.name,
                topic_id=self._new_id(),
                state=TOPIC_STATE_CREATING,
                settings=settings,
                placement=place(request.queues, self._loads(request)),
                created_us=self._clock_us(),
                request_id=request.request_id,
                owner=owner,
            )
            setting_levels.require_levels_of(record, settings, self._epoch.level, self._groups)
            if settings.HasField("dedup"):
                id_dedup.begin(record, self._epoch.level, self._groups)
            await self._table.add(record)
            log.info("topic is being created topic=%s queues=%d", record.name, request.queues)
            self._drive(record.topic_id)
            return record.topic_id, True

    async def _begin_alter(self, name: str, change: Callable[[TopicRecord], None]) -> int:
        while True:
            known = self._table.known(name)
            record = copied(known.record)
            change(record)
            if record == known.record or await self._table.replace(known, record):
                self._drive(record.topic_id)
                return record.topic_id

    async def _begin_delete(self, name: str) -> int:
        while True:
            known = self._table.known(name)
            record = copied(known.record)
            record.state = TOPIC_STATE_DELETING
            if await self._table.replace(known, record, records.deleting_key(record.topic_id)):
                log.info("topic is deleted topic=%s", name)
                self._drive(record.topic_id)
                return record.topic_id

    def _split(self, record: TopicRecord, plan: list[SplitRecord]) -> None:
        if plan:
            _require_no_splits(record)
            self._require_at_rest(record, plan)
            record.splits.extend(plan)

    def _require_no_move(self, record: TopicRecord, wanted: TopicSettings) -> None:
        begins = wanted.HasField("dedup") and not record.settings.HasField("dedup")
        if begins and self._moving(record.topic_id, None):
            raise InvalidRequest(
                f"a queue of topic {record.name!r} moves to another broker group: begin to compare"
                " message ids when it is there, or give the move up (semel queue move --cancel)"
            )
        begins = wanted.HasField("compaction") and not record.settings.HasField("compaction")
        if begins and self._moving(record.topic_id, None):
            raise InvalidRequest(
                f"a queue of topic {record.name!r} moves to another broker group: begin to compact"
                " when it is there, or give the move up (semel queue move --cancel)"
            )

    def _require_at_rest(self, record: TopicRecord, plan: list[SplitRecord]) -> None:
        for split in plan:
            if self._moving(record.topic_id, split.queue_id):
                raise InvalidRequest(
                    f"queue {split.queue_id} of topic {record.name!r} moves to another broker"
                    " group; split it when it is there, or give the move up (semel queue move"
                    " --cancel)"
                )

    def _check_same(self, request: CreateTopicRequest) -> bool:
        """Checks that an existing topic satisfies the request. Raises TopicExists.

        That is so only if the caller allowed it and the number of queues is the same. Returns true
        for a topic that an earlier attempt of the same call made, perhaps at another controller.
        """
        record = self._table.known(request.name).record
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
        """The groups that may get queues of a new topic, with their loads."""
        known = self._groups.group_ids()
        for group_id in request.groups:
            if group_id not in known:
                raise UnknownGroup(f"there is no broker group {group_id}; known are {known}")
        usable = list(request.groups) or self._groups.roomy_groups() or known
        if not usable:
            raise Unavailable("no broker has reported to the controller yet. Start the brokers")
        counts = {GroupId(group_id): self._table.promised(group_id) for group_id in usable}
        written = self._groups.written_bytes()
        return weigh(counts, {GroupId(group_id): written[group_id] for group_id in written})

    def _new_id(self) -> int:
        while True:
            topic_id = secrets.randbits(63)
            if topic_id and self._table.get(topic_id) is None:
                return topic_id

    # The drivers.

    def _drive(self, topic_id: int) -> None:
        known = self._table.get(topic_id)
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
                "a bug interrupts the work on a topic, which is tried again topic_id=%d", topic_id
            )
        finally:
            del self._drivers[topic_id]

    async def _steps(self, topic_id: int) -> None:
        pause_ms = RETRY_MS_FIRST
        while (known := self._table.get(topic_id)) is not None and known.unfinished:
            retry_now = self._retry_now
            try:
                await self._step(known)
                self._errors.pop(topic_id, None)
                pause_ms = RETRY_MS_FIRST
                continue
            except VersionConflict:
                continue  # the topic was altered or deleted meanwhile: read again
            except (Closed, StoreFailed):
                raise
            except SemelError as error:
                self._errors[topic_id] = error
                log.warning("topic waits topic=%s reason=%s", known.record.name, error)
            try:
                async with compat.timeout(pause_ms / 1000):
                    await retry_now.wait()
            except TimeoutError:
                pause_ms = min(pause_ms * 2, RETRY_MS_LAST)

    async def _step(self, known: StoredTopic) -> None:
        record = known.record
        if record.state == TOPIC_STATE_DELETING:
            if self._moving(record.topic_id, None):
                raise Throttled(f"a queue of deleted topic {record.name!r} still moves")
            await self._on_all(
                record,
                lambda group: topic_rules.delete_records(record, group),
                topic_rules.touched_groups(record),
            )
            await unbroken(self._table.remove(known))
            return
        done = copied(record)
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
        await unbroken(self._table.replace(known, done))

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
        known = self._table.get(topic_id)
        if known is None or not known.unfinished:
            return
        error = self._errors.get(topic_id)
        reason = f" (last error: {error})" if error else ""
        raise TimedOut(f"{what}: not on all broker groups yet, it goes on by itself{reason}")


def _leads_to(record: TopicRecord, queues: int) -> bool:
    """Whether the splits that are already decided make this many open queues."""
    return bool(record.splits) and len(splits.open_queues(splits.after_splits(record))) == queues


def _require_no_splits(record: TopicRecord) -> None:
    if record.splits:
        raise Throttled(
            f"queues of topic {record.name!r} are being split; ask again", retry_after_ms=100
        )
