"""The feature level that a setting of a topic needs, of the metadata and of the topic's groups.

Not here: when it is asked (`topics.py`), settings that begin something (`id_dedup.py`).
"""

from __future__ import annotations

from typing import Protocol

from semel.protos.errors import Throttled
from semel.protos.levels import (
    COMPACTION_LEVEL,
    DELAY_LIMIT_LEVEL,
    MEMORY_LEVEL,
    TIER_LEVEL,
    lacking,
)
from semel.protos.v1.common_pb2 import STORAGE_MEMORY, TopicSettings
from semel.protos.v1.metadata_pb2 import TopicRecord


class GroupLevels(Protocol):
    """The levels of broker groups."""

    def level(self, group_id: int) -> int | None:
        """Feature level of the group's log; None when its master has not told it."""


def require_levels_of(
    record: TopicRecord, wanted: TopicSettings, level: int, groups: GroupLevels
) -> None:
    """Raises like `require_level` unless everybody knows the settings that a topic is to have."""
    if wanted.delay_per_second_max:
        require_level(record, DELAY_LIMIT_LEVEL, level, groups)
    if wanted.HasField("compaction"):
        require_level(record, COMPACTION_LEVEL, level, groups)
    if wanted.tier_after_ms:
        require_level(record, TIER_LEVEL, level, groups)
    if wanted.storage == STORAGE_MEMORY:
        require_level(record, MEMORY_LEVEL, level, groups)


def require_level(record: TopicRecord, needed: int, level: int, groups: GroupLevels) -> None:
    """Checks that the metadata, at `level`, and the logs of a topic's groups are at the feature
    level that a setting needs. Raises UnsupportedVersion, and Throttled while a group is silent."""
    if level < needed:
        raise lacking(needed, level, "the controllers' metadata")
    for group_id in sorted(set(record.placement)):
        known = told_level(group_id, groups)
        if known < needed:
            raise lacking(needed, known, f"broker group {group_id}")


def told_level(group_id: int, groups: GroupLevels) -> int:
    """The feature level of a broker group. Raises Throttled while it has not told it."""
    known = groups.level(group_id)
    if known is None:
        raise Throttled(
            f"broker group {group_id} has not told its feature level; ask again",
            retry_after_ms=200,
        )
    return known
