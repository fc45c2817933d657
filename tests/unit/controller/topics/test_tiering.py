"""Settings of tiered topics: what one needs of another."""

from __future__ import annotations

from typing import Any

import pytest

from semel.controller.topics import setting_levels
from semel.controller.topics.rules import complete_settings
from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1.common_pb2 import Compaction, TopicSettings
from semel.protos.v1.metadata_pb2 import TopicRecord

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("given", "tier_after_ms", "local_retention_ms"),
    [
        ({}, 0, 0),
        ({"tier_after_ms": -1}, 0, 0),
        ({"tier_after_ms": HOUR}, HOUR, 0),
        ({"tier_after_ms": HOUR, "local_retention_ms": -1}, HOUR, -1),
        ({"tier_after_ms": HOUR, "local_retention_ms": 2 * HOUR}, HOUR, 2 * HOUR),
        ({"tier_after_ms": HOUR, "local_retention_ms": 1}, HOUR, 1),
        ({"tier_after_ms": HOUR, "retention_ms": -1, "local_retention_ms": 1 << 40}, HOUR, 1 << 40),
    ],
)
def test_what_is_taken(given: dict[str, Any], tier_after_ms: int, local_retention_ms: int) -> None:
    settings = complete_settings(TopicSettings(**given))
    assert settings.tier_after_ms == tier_after_ms
    assert settings.local_retention_ms == local_retention_ms
    assert complete_settings(settings) == settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"local_retention_ms": HOUR}, "give tier_after_ms"),
        ({"tier_after_ms": HOUR, "local_retention_ms": -2}, "local_retention_ms is -2"),
        ({"tier_after_ms": HOUR, "retention_ms": HOUR}, "tier_after_ms must be the lower"),
        (
            {"tier_after_ms": 1, "local_retention_ms": HOUR, "retention_ms": HOUR},
            "local_retention_ms must be the lower",
        ),
        ({"tier_after_ms": HOUR, "compaction": Compaction(tombstone_ms=1)}, "compact"),
    ],
)
def test_what_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        complete_settings(TopicSettings(**given))


class Groups:
    def level(self, group_id: int) -> int | None:
        return TIER_LEVEL - (group_id == 2)


@pytest.mark.parametrize(
    ("level", "placement", "refused"),
    [(TIER_LEVEL, [1], False), (TIER_LEVEL - 1, [1], True), (TIER_LEVEL, [1, 2], True)],
)
def test_metadata_and_all_groups_must_know_it(
    level: int, placement: list[int], refused: bool
) -> None:
    record = TopicRecord(name="t", placement=placement)
    setting_levels.require_levels_of(record, TopicSettings(), level, Groups())
    wanted = TopicSettings(tier_after_ms=HOUR)
    if refused:
        with pytest.raises(UnsupportedVersion):
            setting_levels.require_levels_of(record, wanted, level, Groups())
    else:
        setting_levels.require_levels_of(record, wanted, level, Groups())
