"""The table of moves: their records as they are stored, in memory.

How it works. Every change is one transaction that checks the version of the record which the change
was made from. The first record of a move, and the one in which the queue has its new place, are
written together with the topic's record (`TopicService.change_with`).

Invariants
1. The job numbers of a queue rise: their upper half is the controller epoch.
2. The table holds exactly what is stored, except while a change is under way.

Not here: which stage follows, and when (`moves.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.controller import records
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import VersionConflict
from semel.controller.topics.topics import TopicService
from semel.protos.errors import Throttled
from semel.protos.v1.metadata_pb2 import (
    MOVE_STAGE_ABORTED,
    MOVE_STAGE_ACTIVATED,
    MOVE_STAGE_COPYING,
    TOPIC_STATE_ACTIVE,
    MoveRecord,
    MoveStage,
    TopicRecord,
)

log = logging.getLogger(__name__)

JOB_SHIFT: Final = 32

Key = tuple[int, int]
"""Topic and queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMove:
    """A record as it is in the store."""

    version: int
    record: MoveRecord


class MoveTable:
    """All moves of the cluster. `clock_us` is the wall clock."""

    def __init__(
        self, epoch: ControllerEpoch, topics: TopicService, *, clock_us: Callable[[], int]
    ) -> None:
        self._epoch = epoch
        self._topics = topics
        self._clock_us = clock_us
        self._known: dict[Key, StoredMove] = {}
        self._jobs = 0

    async def load(self) -> None:
        """Reads all moves; to be called once."""
        for key, entry in (await self._epoch.store.scan(records.MOVES)).items():
            record = records.load(MoveRecord, key, entry)
            self._known[key_of(record)] = StoredMove(version=entry.version, record=record)

    def queues(self) -> list[Key]:
        """The queues that have a record."""
        return list(self._known)

    def get(self, key: Key) -> StoredMove | None:
        """The newest move of a queue, unless it was done and its record removed."""
        return self._known.get(key)

    def running(self, key: Key) -> MoveRecord | None:
        """The move of the queue that has not ended; None without one."""
        known = self._known.get(key)
        return None if known is None or known.record.stage == MOVE_STAGE_ABORTED else known.record

    def moving(self, topic_id: int, queue_id: int | None = None) -> bool:
        """Whether a queue of the topic, or this one, is on its way or on its way back."""
        return any(
            key[0] == topic_id
            and queue_id in (None, key[1])
            and known.record.stage != MOVE_STAGE_ABORTED
            for key, known in self._known.items()
        )

    async def add(
        self,
        topic: TopicRecord,
        queue_id: int,
        source: int,
        target: int,
        check: Callable[[TopicRecord], object],
    ) -> None:
        """Stores a new move, and in the topic's record that the target may know of the queue.

        Raises Throttled when another move of the queue began meanwhile, and the errors of `check`,
        which gets the topic's record as it is stored.
        """
        key = topic.topic_id, queue_id
        before = self._known.get(key)
        self._jobs += 1
        record = MoveRecord(
            job=self._epoch.number << JOB_SHIFT | self._jobs,
            topic=topic.name,
            topic_id=topic.topic_id,
            queue_id=queue_id,
            source=source,
            target=target,
            stage=MOVE_STAGE_COPYING,
            begun_us=self._clock_us(),
        )

        def touch(changed: TopicRecord) -> None:
            check(changed)
            _touch(changed, queue_id, target)

        try:
            version = await self._topics.change_with(
                key[0],
                touch,
                checks={_path(key): None if before is None else before.version},
                puts={_path(key): records.dump(record)},
            )
        except VersionConflict:
            raise Throttled(
                f"queue {queue_id} of topic {topic.name!r} is being moved; ask again",
                retry_after_ms=100,
            ) from None
        self._known[key] = StoredMove(version=version, record=record)
        log.info(
            "queue begins to move topic=%s queue=%d from=%d to=%d job=%d",
            *(topic.name, queue_id, source, target, record.job),
        )

    async def set(self, known: StoredMove, stage: MoveStage, reason: str = "") -> None:
        """Stores the next stage of a move. Raises VersionConflict when the record has changed."""
        record = MoveRecord()
        record.CopyFrom(known.record)
        record.stage, record.reason = stage, reason or record.reason
        key = key_of(record)
        version = await self._epoch.transact(
            checks={_path(key): known.version}, puts={_path(key): records.dump(record)}
        )
        self._known[key] = StoredMove(version=version, record=record)
        log.info(
            "move goes on topic=%s queue=%d stage=%s reason=%s",
            *(record.topic, record.queue_id, MoveStage.Name(stage), reason or "none"),
        )

    async def remove(self, known: StoredMove) -> None:
        """Removes the record of a move that has ended."""
        key = key_of(known.record)
        await self._epoch.transact(
            checks={_path(key): known.version}, deletes=frozenset({_path(key)})
        )
        self._known.pop(key, None)

    async def activate(self, known: StoredMove) -> None:
        """Stores that the target has the queue, and its new place, which changes the routes."""
        record, key = MoveRecord(), key_of(known.record)
        record.CopyFrom(known.record)
        record.stage = MOVE_STAGE_ACTIVATED

        def place(topic: TopicRecord) -> None:
            topic.placement[record.queue_id] = record.target
            _touch(topic, record.queue_id, record.source)
            topic.settings_pending = topic.state == TOPIC_STATE_ACTIVE

        version = await self._topics.change_with(
            key[0],
            place,
            checks={_path(key): known.version},
            puts={_path(key): records.dump(record)},
        )
        self._known[key] = StoredMove(version=version, record=record)
        log.info(
            "queue lives elsewhere topic=%s queue=%d group=%d",
            *(record.topic, record.queue_id, record.target),
        )


def key_of(record: MoveRecord) -> Key:
    """The queue that a move is about."""
    return record.topic_id, record.queue_id


def _path(key: Key) -> str:
    return records.move_key(*key)


def _touch(topic: TopicRecord, queue_id: int, group_id: int) -> None:
    """Notes that the group may know of the queue: the topic's deletion must reach it, too."""
    if not any((each.queue_id, each.group_id) == (queue_id, group_id) for each in topic.touched):
        topic.touched.add(queue_id=queue_id, group_id=group_id)
