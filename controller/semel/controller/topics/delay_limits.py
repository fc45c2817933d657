"""The rules for the limit of what is due in one second of a topic: its values and its level.

Not here: when these rules are asked (`topics.py`), what the limit does (the broker).
"""

from __future__ import annotations

from semel.controller.topics.id_dedup import GroupFacts
from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.levels import DELAY_LIMIT_LEVEL, lacking
from semel.protos.v1.common_pb2 import TopicSettings
from semel.protos.v1.metadata_pb2 import TopicRecord

NO_LIMIT = -1


def complete_limit(given: int) -> int:
    """The limit as it is stored, 0 for none. Raises InvalidRequest."""
    if given < NO_LIMIT:
        raise InvalidRequest(
            f"delay_per_second_max is {given}: use a positive number, or -1 for no limit"
        )
    return max(0, given)


def require_level(
    record: TopicRecord, wanted: TopicSettings, level: int, groups: GroupFacts
) -> None:
    """Raises UnsupportedVersion unless the metadata, at `level`, and the topic's broker groups know
    the limit in `wanted`; Throttled while a group has not told what it knows."""
    limit = wanted.delay_per_second_max
    if not limit:
        return
    if level < DELAY_LIMIT_LEVEL:
        raise lacking(DELAY_LIMIT_LEVEL, level, "the controllers' metadata")
    for group_id in sorted(set(record.placement)):
        known = groups.level(group_id)
        if known is None:
            raise Throttled(
                f"broker group {group_id} has not told its feature level; ask again",
                retry_after_ms=200,
            )
        if known < DELAY_LIMIT_LEVEL:
            raise lacking(DELAY_LIMIT_LEVEL, known, f"broker group {group_id}")
