"""Moves of queues between broker groups, in steps that survive a crash between any two steps.

How it works. A move is a record in the store, and a *driver* task that brings both groups to the
state that the record describes, as with topics (`topics/topics.py`):

    copying     source: HOLD, if the topic is compacted
                target: BEGIN, then fetch again and again while the source serves   → sealing
    sealing     source: SEAL; target: fetch the rest and the slice, INGEST          → decided
    decided     target: ACTIVATE                          → activated, with the queue's new place
    activated   source: FORWARD                                                     → (no record)
    aborting    source: UNSEAL; target: ABORT                                       → aborted

The step from sealing to decided, a compare-and-set, is the decision. Before it the move can be
given up: by an operator, by the deletion of the topic, or because the groups did not finish while
the queue was sealed. After it the move only goes forward. The routes change with *activated*: the
target has the queue, and the source still refuses requests to it as sealed until it is told to
forward.

Invariants
1. UNSEAL and ABORT are sent only once *aborting* is stored, ACTIVATE and FORWARD only once
   *decided* is: never both of one job.
2. A queue is sealed only while *sealing* is stored. A move is given up if it is not decided within
   `SEALED_S` after its queue was sealed, or after this controller found it sealing.
3. A queue that moves is not split, and the queues of a deleted topic are not deleted before its
   moves have ended.

Not here: the stored records (`move_table.py`), what a step does (the broker), records of topics
(`topics/topics.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.moves.move_table import Key, MoveTable, StoredMove, key_of
from semel.controller.store import StoreFailed, VersionConflict
from semel.controller.topics.splits import queues_of
from semel.controller.topics.topics import RETRY_MS_FIRST, RETRY_MS_LAST, TopicService
from semel.protos import compat
from semel.protos.errors import (
    Closed,
    InvalidRequest,
    QueueMoved,
    RetriableError,
    SemelError,
    StorageError,
    Throttled,
    Unavailable,
    UnknownGroup,
    UnknownQueue,
    UnsupportedVersion,
)
from semel.protos.levels import MOVE_LEVEL, UNTOLD_MAX
from semel.protos.v1 import control_pb2
from semel.protos.v1.broker_pb2 import CopyQueueReply, PullQueueReply, PullQueueRequest
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.control_pb2 import ControlRecord, CreateQueue, MoveQueue
from semel.protos.v1.controller_pb2 import MoveStatus, UnfinishedTopic
from semel.protos.v1.metadata_pb2 import (
    MOVE_STAGE_ABORTED,
    MOVE_STAGE_ABORTING,
    MOVE_STAGE_ACTIVATED,
    MOVE_STAGE_COPYING,
    MOVE_STAGE_DECIDED,
    MOVE_STAGE_SEALING,
    TOPIC_STATE_ACTIVE,
    MoveRecord,
    MoveStage,
    TopicRecord,
)

log = logging.getLogger(__name__)

PULL_MS: Final = 1_000
"""Length of one fetching call; after each, the driver checks whether the move was given up."""
SEAL_BYTES: Final = 8 << 20
"""Bytes that may be left to copy when the queue is sealed: well below a second's work."""
SEAL_IDS: Final = 200_000
"""Message ids that may be left."""
SEALED_S: Final = 15.0
"""How long producers of a queue wait at most for a move that does not finish."""
_RUNNING: Final = frozenset({MOVE_STAGE_COPYING, MOVE_STAGE_SEALING})


class GroupCaller(Protocol):
    """Calls to the masters of broker groups. Every method raises SemelError."""

    async def apply(self, group_id: int, batch: list[ControlRecord]) -> None:
        """Sends control records, which are applied once it returns."""

    async def figures(self, group_id: int, queue: QueueRef) -> CopyQueueReply:
        """Start, end and size of a queue that could be moved."""

    async def pull(
        self, group_id: int, source_id: int, request: PullQueueRequest
    ) -> PullQueueReply:
        """Makes a group fetch from another one."""


class Groups(Protocol):
    """The facts about broker groups that moves depend on."""

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""

    def served_groups(self) -> list[int]:
        """Groups whose master reported in time."""

    def level(self, group_id: int) -> int | None:
        """Feature level of a group's log; None when its master has not reported it."""


class MoveService:
    """All moves of the cluster. `start` begins its work, `stop` ends it."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        topics: TopicService,
        groups: Groups,
        caller: GroupCaller,
        *,
        clock_us: Callable[[], int],
    ) -> None:
        self._table = MoveTable(epoch, topics, clock_us=clock_us)
        self._topics = topics
        self._groups = groups
        self._caller = caller
        self._drivers: dict[Key, asyncio.Task[None]] = {}
        self._errors: dict[Key, SemelError] = {}
        self._progress: dict[Key, PullQueueReply] = {}
        self._sealed_since: dict[Key, float] = {}
        self._retry_now = asyncio.Event()
        self._stopped = False

    async def load(self) -> None:
        """Reads all moves; to be called once, before `start`."""
        await self._table.load()

    def start(self) -> None:
        """Continues all unfinished moves."""
        for key in self._table.queues():
            self._drive(key)

    async def stop(self) -> None:
        """Ends all drivers; their unfinished moves stay unfinished in the store."""
        self._stopped = True
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)

    def on_new_master(self) -> None:
        """Retries at once all moves that wait for a group."""
        self._retry_now.set()
        self._retry_now = asyncio.Event()
        self.start()

    def moving(self, topic_id: int, queue_id: int | None = None) -> bool:
        """Whether a queue of the topic, or this one, is on its way or on its way back."""
        return self._table.moving(topic_id, queue_id)

    # --- requests -------------------------------------------------------------------------------

    async def move(self, name: str, queue_id: int, group_id: int) -> MoveStatus:
        """Begins a move; repeating the call succeeds.

        Raises UnknownTopic, UnknownQueue, UnknownGroup, Unavailable (the target has no master, or
        the source does not answer), Throttled while the topic changes, InvalidRequest.
        """
        record = self._topics.find(name)
        key = record.topic_id, queue_id
        running = self._table.running(key)
        if running is not None and running.target == group_id:
            return self._status(key)
        source = self._check(record, queue_id, group_id)
        await self._caller.figures(source, QueueRef(topic_id=key[0], queue_id=queue_id))
        await unbroken(self._begin(record, queue_id, source, group_id))
        return self._status(key)

    async def cancel(self, name: str, queue_id: int) -> MoveStatus:
        """Gives up a move that is not decided; repeating the call succeeds.

        Raises UnknownTopic, and InvalidRequest when the queue does not move or its move is decided.
        """
        key = self._topics.find(name).topic_id, queue_id
        while True:
            known = self._table.get(key)
            if known is None:
                raise InvalidRequest(f"queue {queue_id} of topic {name!r} is not being moved")
            if known.record.stage in (MOVE_STAGE_ABORTING, MOVE_STAGE_ABORTED):
                return self._status(key)
            if known.record.stage not in _RUNNING:
                raise InvalidRequest(
                    f"the move of queue {queue_id} of topic {name!r} to broker group"
                    f" {known.record.target} is decided and goes on; move it back if you want"
                )
            if await unbroken(self._abort(known, "given up by an operator")):
                return self._status(key)

    def statuses(self, name: str = "") -> list[MoveStatus]:
        """Moves of one topic or of all, by topic, then queue. Raises UnknownTopic."""
        wanted = self._topics.find(name).topic_id if name else None
        found = [self._status(key) for key in self._table.queues() if wanted in (None, key[0])]
        return sorted(found, key=lambda status: (status.topic, status.queue_id))

    def unfinished(self) -> list[UnfinishedTopic]:
        """Moves that are under way, in the form of `GetClusterStatus`."""
        return [
            UnfinishedTopic(
                name=status.topic,
                topic_id=status.topic_id,
                step=f"moving queue {status.queue_id} to group {status.target}",
                reason=status.reason,
            )
            for status in self.statuses()
            if status.stage != "aborted"
        ]

    def _check(self, record: TopicRecord, queue_id: int, group_id: int) -> int:
        """The group that owns the queue, if the queue can move to `group_id`. Raises SemelError."""
        name = record.name
        queues = queues_of(record)
        if queue_id >= len(queues):
            raise UnknownQueue(f"topic {name!r} has no queue {queue_id}")
        queue = queues[queue_id]
        groups = self._groups.group_ids()
        if group_id not in groups:
            raise UnknownGroup(f"there is no broker group {group_id}; known are {groups}")
        running = self._table.running((record.topic_id, queue_id))
        if running is not None:
            raise InvalidRequest(
                f"queue {queue_id} of topic {name!r} is on its way from broker group"
                f" {running.source} to {running.target}; wait for it, or give it up first"
                " (semel queue move --cancel)"
            )
        if record.state != TOPIC_STATE_ACTIVE or record.splits:
            raise Throttled(f"topic {name!r} is being changed; ask again", retry_after_ms=100)
        if queue.sealed:
            raise InvalidRequest(
                f"queue {queue_id} of topic {name!r} was split: it stays. Once retention"
                " has emptied it, move what was split off"
            )
        if queue.group_id == group_id:
            raise InvalidRequest(
                f"queue {queue_id} of topic {name!r} is on broker group {group_id} already"
            )
        if group_id not in self._groups.served_groups():
            raise Unavailable(
                f"broker group {group_id} has no master now: start its nodes, then move"
                " queues to it"
            )
        self._check_levels(queue.group_id, group_id)
        return queue.group_id

    def _check_levels(self, source: int, target: int) -> None:
        """Raises UnsupportedVersion, and Throttled while the target's level is not known."""
        level = self._groups.level(target)
        if level is None:
            raise Throttled(
                f"broker group {target} has not told its feature level; ask again",
                retry_after_ms=1_000,
            )
        # A source that reports no level may be at any level from before levels were reported.
        needed = self._groups.level(source) or UNTOLD_MAX
        if level < max(needed, MOVE_LEVEL):
            raise UnsupportedVersion(
                f"broker group {target} is at feature level {level}, and the queue is on group"
                f" {source} at level {needed}: raise the former first (semel cluster upgrade"
                " --finish)",
                level=max(needed, MOVE_LEVEL),
            )

    def _status(self, key: Key) -> MoveStatus:
        known = self._table.get(key)
        if known is None:  # the move has ended meanwhile
            return MoveStatus(topic_id=key[0], queue_id=key[1], stage="done")
        record, progress = known.record, self._progress.get(key, PullQueueReply())
        reason = record.reason or str(self._errors.get(key, ""))
        return MoveStatus(
            topic=record.topic,
            topic_id=record.topic_id,
            queue_id=record.queue_id,
            source=record.source,
            target=record.target,
            job=record.job,
            stage=MoveStage.Name(record.stage).removeprefix("MOVE_STAGE_").lower(),
            copied_bytes=progress.copied_bytes,
            total_bytes=progress.total_bytes,
            reason=reason,
            begun_us=record.begun_us,
        )

    # --- the store ------------------------------------------------------------------------------

    async def _begin(self, topic: TopicRecord, queue_id: int, source: int, target: int) -> None:
        key = topic.topic_id, queue_id
        await self._table.add(
            topic, queue_id, source, target, lambda changed: self._check(changed, queue_id, target)
        )
        self._forget(key)
        self._drive(key)

    async def _set(self, known: StoredMove, stage: MoveStage, reason: str = "") -> None:
        await self._table.set(known, stage, reason)
        self._errors.pop(key_of(known.record), None)

    async def _remove(self, known: StoredMove) -> None:
        await self._table.remove(known)
        self._forget(key_of(known.record))

    async def _abort(self, known: StoredMove, reason: str) -> bool:
        """Gives up the move; false when it has got further meanwhile."""
        try:
            await self._set(known, MOVE_STAGE_ABORTING, reason)
        except VersionConflict:
            return False
        self._drive(key_of(known.record))
        return True

    def _forget(self, key: Key) -> None:
        for known in (self._errors, self._progress, self._sealed_since):
            known.pop(key, None)

    # --- the drivers ----------------------------------------------------------------------------

    def _drive(self, key: Key) -> None:
        if not self._stopped and key not in self._drivers and self._to_do(key):
            self._drivers[key] = asyncio.get_running_loop().create_task(self._finish(key))

    def _to_do(self, key: Key) -> bool:
        known = self._table.get(key)
        if known is None:
            return False
        return known.record.stage != MOVE_STAGE_ABORTED or self._topic(key) is None

    def _topic(self, key: Key) -> TopicRecord | None:
        """The topic's record; None once it is being deleted."""
        record = self._topics.by_id(key[0])
        return record if record is not None and record.state == TOPIC_STATE_ACTIVE else None

    async def _finish(self, key: Key) -> None:
        try:
            await self._steps(key)
        except (Closed, StoreFailed):
            return  # the controller ends
        except Exception:
            log.exception("a bug interrupts a move, which is tried again queue=%s", key)
        finally:
            del self._drivers[key]

    async def _steps(self, key: Key) -> None:
        pause_ms = RETRY_MS_FIRST
        while self._to_do(key):
            known, retry_now = self._table.get(key), self._retry_now
            assert known is not None
            try:
                await self._step_or_abort(known)
                self._errors.pop(key, None)
                pause_ms = RETRY_MS_FIRST
                continue
            except VersionConflict:
                continue  # the move was given up meanwhile, or the topic changed: read again
            except (Closed, StoreFailed):
                raise
            except SemelError as error:
                self._errors[key] = error
                log.warning("move waits queue=%s reason=%s", key, error)
            try:
                async with compat.timeout(pause_ms / 1000):
                    await retry_now.wait()
            except TimeoutError:
                pause_ms = min(pause_ms * 2, RETRY_MS_LAST)

    async def _step_or_abort(self, known: StoredMove) -> None:
        """Does the next step, or gives the move up if that step will never succeed.

        Raises SemelError for what is to be tried again, also if the store does not take it that the
        move is given up.
        """
        try:
            await self._step(known)
        except (VersionConflict, Closed, StoreFailed):
            raise
        except SemelError as error:
            if known.record.stage not in _RUNNING or _passes(error):
                raise
            if await unbroken(self._abort(known, str(error))):
                log.warning("move is given up queue=%s reason=%s", key_of(known.record), error)

    async def _step(self, known: StoredMove) -> None:
        record = known.record
        key, topic = key_of(record), self._topic(key_of(record))
        if record.stage in _RUNNING and topic is None:
            await unbroken(self._abort(known, "the topic was deleted"))
        elif record.stage == MOVE_STAGE_COPYING:
            assert topic is not None
            await self._copy(known, topic)
        elif record.stage == MOVE_STAGE_SEALING:
            await self._seal(known)
        elif record.stage == MOVE_STAGE_DECIDED:
            await self._tell(record, record.target, control_pb2.MOVE_STEP_ACTIVATE, topic)
            await unbroken(self._table.activate(known))
        elif record.stage == MOVE_STAGE_ACTIVATED:
            await self._tell(record, record.source, control_pb2.MOVE_STEP_FORWARD)
            log.info("queue has moved topic=%s queue=%d", record.topic, record.queue_id)
            await unbroken(self._remove(known))
        elif record.stage == MOVE_STAGE_ABORTING:
            await self._tell(record, record.source, control_pb2.MOVE_STEP_UNSEAL)
            await self._tell(record, record.target, control_pb2.MOVE_STEP_ABORT)
            await unbroken(self._set(known, MOVE_STAGE_ABORTED))
        elif self._topics.by_id(key[0]) is None or topic is None:
            await unbroken(self._remove(known))  # an aborted move of a topic that is gone

    async def _copy(self, known: StoredMove, topic: TopicRecord) -> None:
        record, key = known.record, key_of(known.record)
        if topic.settings.HasField("compaction"):
            await self._tell(record, record.source, control_pb2.MOVE_STEP_HOLD)
        await self._tell(record, record.target, control_pb2.MOVE_STEP_BEGIN, topic)
        rounds = 0
        while self._table.get(key) is known and self._topic(key) is not None:
            found = self._progress[key] = await self._pull(record, finish=False)
            self._errors.pop(key, None)
            rounds += 1
            left = found.total_bytes - found.copied_bytes
            # The limits rise, because producers may write faster than the queue is copied.
            patience = 1 + rounds // 16
            copied = found.copied_offset >= found.log_end_offset or left <= SEAL_BYTES * patience
            copied = copied and found.delayed_left <= SEAL_BYTES * patience
            if copied and found.ids_left <= SEAL_IDS * patience:
                await unbroken(self._set(known, MOVE_STAGE_SEALING))
                return

    async def _seal(self, known: StoredMove) -> None:
        """Seals the queue and fetches the rest; gives the move up when that takes too long.

        Raises SemelError for a failure that may pass.
        """
        record, key = known.record, key_of(known.record)
        since = self._sealed_since.setdefault(key, time.monotonic())
        try:
            await self._tell(record, record.source, control_pb2.MOVE_STEP_SEAL)
            found = self._progress[key] = await self._pull(record, finish=True)
        except SemelError as error:
            if not _passes(error) or time.monotonic() - since < SEALED_S:
                raise
            await unbroken(self._abort(known, f"not through in {SEALED_S:g} s: {error}"))
            return
        if found.ready:
            await unbroken(self._set(known, MOVE_STAGE_DECIDED))
        elif time.monotonic() - since >= SEALED_S:
            await unbroken(self._abort(known, f"not everything was copied in {SEALED_S:g} s"))

    async def _tell(
        self,
        record: MoveRecord,
        group_id: int,
        step: control_pb2.MoveStep,
        topic: TopicRecord | None = None,
    ) -> None:
        move = MoveQueue(
            queue=QueueRef(topic_id=record.topic_id, queue_id=record.queue_id),
            job=record.job,
            group_id=record.source if group_id == record.target else record.target,
            step=step,
        )
        if topic is not None:
            queue = queues_of(topic)[record.queue_id]
            move.create.CopyFrom(
                CreateQueue(
                    queue=move.queue,
                    topic=topic.name,
                    slot_start=queue.slot_start,
                    slot_end=queue.slot_end,
                    settings=topic.settings,
                )
            )
        await self._caller.apply(group_id, [ControlRecord(move_queue=move)])

    async def _pull(self, record: MoveRecord, *, finish: bool) -> PullQueueReply:
        request = PullQueueRequest(
            queue=QueueRef(topic_id=record.topic_id, queue_id=record.queue_id),
            job=record.job,
            max_ms=PULL_MS,
            finish=finish,
        )
        return await self._caller.pull(record.target, record.source, request)


def _passes(error: SemelError) -> bool:
    """Whether the error may pass, perhaps once other nodes of a group have repaired something."""
    return isinstance(error, RetriableError | StorageError) and not isinstance(error, QueueMoved)
