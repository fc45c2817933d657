"""The rules for topics: names, numbers of queues, settings, and the control records of each change.

All functions are pure. `create_records`, `alter_records`, `delete_records` and `split_calls` give
the control records that bring a broker group to the wanted state; each record is idempotent, so the
whole list can be sent again at any time.

Not here: storing topics and driving the groups (`topics.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from semel.controller.topics.id_dedup import complete_dedup, without_seed
from semel.controller.topics.splits import Queue, after_splits, queues_of, split_records
from semel.protos.errors import InvalidRequest
from semel.protos.v1.common_pb2 import STORAGE_MEMORY, QueueRef, TopicSettings
from semel.protos.v1.control_pb2 import AlterTopic, ControlRecord, CreateQueue, DeleteQueue
from semel.protos.v1.controller_pb2 import QueueRoute, TopicRoute
from semel.protos.v1.metadata_pb2 import TopicRecord

QUEUES_MAX: Final = 65_536
"""One queue needs at least one slot."""
MIB: Final = 1024 * 1024
RETENTION_MS: Final = 7 * 24 * 3600 * 1000
COMPACTION_MS_MAX: Final = 100 * 365 * 24 * 3_600_000
UNLIMITED: Final = -1
MESSAGE_BYTES_MAX: Final = MIB
BATCH_BYTES_MAX: Final = 4 * MIB
BATCH_BYTES_CAP: Final = 8 * MIB
"""A frame holds at least one batch and is cut at 8 MiB."""
MEMORY_BYTES: Final = 1024 * MIB
MEMORY_BYTES_MAX: Final = 1 << 50
MEMORY_BATCHES_MIN: Final = 4
"""A topic in memory has room for so many of its largest batches."""
BATCH_OVERHEAD: Final = 1024
"""Room for the headers and column offsets of a batch with a single message."""
RECORDS_A_CALL: Final = 1_000
"""Control records in one call to a broker: some 100 KB, one entry of its log."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """Raises InvalidRequest for a name that no topic may have."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"{name[:60]!r} is no topic name: use 1 to 249 letters, digits, '.', '_' and '-'"
        )


def check_queues(queues: int) -> None:
    """Raises InvalidRequest for a number of queues that no topic may have."""
    if not 1 <= queues <= QUEUES_MAX:
        raise InvalidRequest(f"a topic has 1 to {QUEUES_MAX:,} queues, not {queues:,}")


def complete_settings(given: TopicSettings) -> TopicSettings:
    """The settings with every absent field at its default, dedup by id without its seed; raises
    InvalidRequest. A compacted topic keeps messages for ever unless it is told otherwise."""
    settings = TopicSettings(
        retention_ms=given.retention_ms
        or (UNLIMITED if given.HasField("compaction") else RETENTION_MS),
        retention_bytes=given.retention_bytes or UNLIMITED,
        message_bytes_max=given.message_bytes_max or MESSAGE_BYTES_MAX,
        batch_bytes_max=given.batch_bytes_max or BATCH_BYTES_MAX,
        delay_per_second_max=given.delay_per_second_max,
    )
    for field in ("retention_ms", "retention_bytes", "delay_per_second_max"):
        value = getattr(settings, field)
        if value < UNLIMITED:
            raise InvalidRequest(f"{field} is {value}: use a positive number, or -1 for no limit")
    settings.delay_per_second_max = max(0, settings.delay_per_second_max)
    if settings.batch_bytes_max > BATCH_BYTES_CAP:
        raise InvalidRequest(
            f"batch_bytes_max is {settings.batch_bytes_max:,}, more than {BATCH_BYTES_CAP:,}"
        )
    if settings.message_bytes_max > settings.batch_bytes_max - BATCH_OVERHEAD:
        raise InvalidRequest(
            f"message_bytes_max is {settings.message_bytes_max:,}: it must be at least "
            f"{BATCH_OVERHEAD:,} below batch_bytes_max, which is {settings.batch_bytes_max:,}"
        )
    if given.HasField("dedup"):
        settings.dedup.CopyFrom(complete_dedup(given.dedup))
    if given.HasField("compaction"):
        compaction = given.compaction
        if not (0 < compaction.tombstone_ms <= COMPACTION_MS_MAX) or not (
            0 <= compaction.lag_ms <= COMPACTION_MS_MAX
        ):
            raise InvalidRequest(
                f"compaction: tombstone_ms is {compaction.tombstone_ms} and lag_ms"
                f" {compaction.lag_ms}: use positive numbers of milliseconds, at most 100 years"
            )
        settings.compaction.CopyFrom(compaction)
    settings.tier_after_ms = max(0, given.tier_after_ms)
    settings.local_retention_ms = given.local_retention_ms
    _check_tiering(settings)
    if given.storage == STORAGE_MEMORY:
        _complete_memory(settings, given.memory_bytes)
    elif given.memory_bytes:
        raise InvalidRequest("memory_bytes is a bound of topics in memory (storage memory)")
    return settings


def _check_tiering(settings: TopicSettings) -> None:
    """Raises InvalidRequest for settings of which one keeps another from having an effect."""
    after_ms, local_ms = settings.tier_after_ms, settings.local_retention_ms
    if local_ms < UNLIMITED:
        raise InvalidRequest(
            f"local_retention_ms is {local_ms}: use a positive number, or -1 for no limit"
        )
    if local_ms > 0 and not after_ms:
        raise InvalidRequest(
            "local_retention_ms is for tiered topics: give tier_after_ms as well, or the log would"
            " be the only place that has the messages"
        )
    if after_ms and settings.HasField("compaction"):
        raise InvalidRequest(
            "a topic cannot be tiered and compacted: the object store would keep what compaction"
            " removes from the log"
        )
    for name, value in (("tier_after_ms", after_ms), ("local_retention_ms", local_ms)):
        if settings.retention_ms != UNLIMITED and value >= settings.retention_ms:
            raise InvalidRequest(
                f"{name} is {value:,} and retention_ms {settings.retention_ms:,}: messages would be"
                f" deleted before it has an effect; {name} must be the lower one"
            )


def _complete_memory(settings: TopicSettings, memory_bytes: int) -> None:
    """Makes the settings those of a topic in memory. Raises InvalidRequest."""
    if settings.HasField("compaction"):
        raise InvalidRequest("a topic in memory cannot be compacted: leave one of the two out")
    if settings.HasField("dedup"):
        raise InvalidRequest(
            "a topic in memory cannot compare message ids: leave one of the two out"
        )
    if settings.delay_per_second_max:
        raise InvalidRequest(
            "a topic in memory takes no delayed messages, so it has no limit of them"
        )
    if settings.tier_after_ms:
        raise InvalidRequest(
            "a topic in memory cannot have a tier in an object store: leave one of the two out"
        )
    least = MEMORY_BATCHES_MIN * settings.batch_bytes_max
    if memory_bytes and not least <= memory_bytes <= MEMORY_BYTES_MAX:
        raise InvalidRequest(
            f"memory_bytes is {memory_bytes:,}: use {least:,} ({MEMORY_BATCHES_MIN} batches) to"
            f" {MEMORY_BYTES_MAX:,}"
        )
    settings.storage = STORAGE_MEMORY
    settings.memory_bytes = memory_bytes or MEMORY_BYTES


def check_storage(record: TopicRecord, wanted: TopicSettings) -> None:
    """Raises InvalidRequest if a topic would change between memory and log."""
    before = record.settings.storage == STORAGE_MEMORY
    if before is not (wanted.storage == STORAGE_MEMORY):
        raise InvalidRequest(
            f"topic {record.name!r} is in {'memory' if before else 'the log'} for its whole life:"
            " make another topic"
        )


def topic_route(record: TopicRecord) -> TopicRoute:
    """The topic as clients see it."""
    queues = queues_of(record)
    return TopicRoute(
        name=record.name,
        topic_id=record.topic_id,
        settings=without_seed(record.settings),
        queues=[_queue_route(queue) for queue in queues if not queue.sealed],
        sealed=[_queue_route(queue) for queue in queues if queue.sealed],
        created_us=record.created_us,
    )


def _queue_route(queue: Queue) -> QueueRoute:
    return QueueRoute(
        queue_id=queue.queue_id,
        group_id=queue.group_id,
        slot_start=queue.slot_start,
        slot_end=queue.slot_end,
        parent_id=queue.parent_id,
    )


def groups_of(record: TopicRecord) -> list[int]:
    """The broker groups that own queues of the topic."""
    return sorted(set(record.placement))


def touched_groups(record: TopicRecord) -> list[int]:
    """The groups of `groups_of`, and those that may still know of a queue that was to move."""
    return sorted({*record.placement, *(each.group_id for each in record.touched)})


def create_records(record: TopicRecord, group_id: int) -> Iterator[list[ControlRecord]]:
    """The records that create the group's queues of the topic, one list per call."""
    queues = [
        ControlRecord(
            create_queue=CreateQueue(
                queue=QueueRef(topic_id=record.topic_id, queue_id=queue.queue_id),
                topic=record.name,
                slot_start=queue.slot_start,
                slot_end=queue.slot_end,
                settings=record.settings,
            )
        )
        for queue in queues_of(record)
        if queue.group_id == group_id
    ]
    return _calls(queues)


def alter_records(record: TopicRecord) -> Iterator[list[ControlRecord]]:
    """The records that bring the settings to a group, one list per call."""
    alter = AlterTopic(topic_id=record.topic_id, settings=record.settings)
    return _calls([ControlRecord(alter_topic=alter)])


def delete_records(record: TopicRecord, group_id: int) -> Iterator[list[ControlRecord]]:
    """The records that delete the group's queues of the topic, one list per call.

    They include the children of splits that may have been done, and queues that moved and of which
    the group may still know.
    """
    touched = {each.queue_id for each in record.touched if each.group_id == group_id}
    queues = [
        ControlRecord(
            delete_queue=DeleteQueue(
                queue=QueueRef(topic_id=record.topic_id, queue_id=queue.queue_id)
            )
        )
        for queue in queues_of(after_splits(record))
        if queue.group_id == group_id or queue.queue_id in touched
    ]
    return _calls(queues)


def split_calls(record: TopicRecord, group_id: int) -> Iterator[list[ControlRecord]]:
    """The records that bring decided splits to a group, one list per call."""
    return _calls(list(split_records(record, group_id)))


def _calls(all_records: Sequence[ControlRecord]) -> Iterator[list[ControlRecord]]:
    for start in range(0, len(all_records), RECORDS_A_CALL):
        yield list(all_records[start : start + RECORDS_A_CALL])
