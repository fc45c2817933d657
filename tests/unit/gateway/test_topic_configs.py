"""Kafka's settings of topics: what is asked for is what the topic has, or it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client import Compaction
from semel.client.admin.descriptions import TopicSettings
from semel.gateway.topic_configs import (
    DEFAULTS,
    LAG,
    POLICY,
    TOMBSTONES,
    Alteration,
    Operation,
    altered,
    arguments,
    configs_of,
    creation,
    replaced,
)
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import common_pb2

DAY_MS = 86_400_000


def settings(**fields: Any) -> TopicSettings:
    return TopicSettings.of(common_pb2.TopicSettings(**fields))


def changes(before: TopicSettings, *wanted: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = configs_of(before)
    return arguments(configs, altered(configs, [Alteration(*each) for each in wanted]))


def test_a_topic_without_settings_has_the_defaults() -> None:
    assert configs_of(settings()) == DEFAULTS


def test_only_what_differs_is_changed() -> None:
    before = settings(retention_ms=DAY_MS)
    assert changes(before, ("retention.ms", Operation.SET, str(DAY_MS))) == {}
    found = changes(
        before,
        ("retention.ms", Operation.SET, "5000"),
        ("retention.bytes", Operation.SET, "1048576"),
        ("max.message.bytes", Operation.SET, "1000"),
    )
    assert found == {"retention_ms": 5000, "retention_bytes": 1 << 20, "message_bytes_max": 1000}
    assert changes(before, ("retention.ms", Operation.DELETE, None)) == {
        "retention_ms": int(DEFAULTS["retention.ms"])
    }


def test_settings_that_are_not_named_get_their_defaults_where_all_are_given() -> None:
    before = configs_of(settings(retention_ms=DAY_MS, retention_bytes=1 << 20))
    found = arguments(before, replaced(before, {"retention.ms": "5000"}))
    assert found == {"retention_ms": 5000, "retention_bytes": -1}


def test_a_topic_that_is_compacted_loses_its_retention_as_in_kafka() -> None:
    found = changes(settings(retention_ms=DAY_MS), (POLICY, Operation.SET, "compact"))
    assert found == {"compaction": Compaction(), "retention_ms": -1}
    kept = changes(settings(retention_ms=DAY_MS), (POLICY, Operation.APPEND, "compact"))
    assert kept == {"compaction": Compaction()}, "compact and delete"
    said = changes(
        settings(retention_ms=DAY_MS),
        (POLICY, Operation.SET, "compact"),
        ("retention.ms", Operation.SET, "5000"),
    )
    assert said == {"compaction": Compaction(), "retention_ms": 5000}


def test_compaction_has_its_times_and_an_end() -> None:
    before = settings(
        retention_ms=-1, compaction=common_pb2.Compaction(tombstone_ms=DAY_MS, lag_ms=0)
    )
    assert configs_of(before)[POLICY] == "compact"
    assert changes(before, (LAG, Operation.SET, "60000"), (TOMBSTONES, Operation.SET, "5")) == {
        "compaction": Compaction(lag_ms=60_000, tombstone_ms=5)
    }
    assert changes(before, (POLICY, Operation.SET, "delete")) == {"compaction": "off"}
    limited = settings(
        retention_ms=DAY_MS, compaction=common_pb2.Compaction(tombstone_ms=DAY_MS, lag_ms=0)
    )
    assert configs_of(limited)[POLICY] == "compact,delete"
    assert changes(limited, (POLICY, Operation.SUBTRACT, "delete")) == {"retention_ms": -1}


@pytest.mark.parametrize(
    "wanted",
    [
        [("min.insync.replicas", Operation.SET, "2")],
        [("retention.ms", Operation.SET, "soon")],
        [("retention.ms", Operation.SET, None)],
        [("retention.ms", Operation.APPEND, "5")],
        [("retention.ms", 9, "5")],
        [(POLICY, Operation.SET, "shred")],
        [(POLICY, Operation.SUBTRACT, "delete")],
        [(LAG, Operation.SET, "5")],
        [("retention.ms", Operation.SET, "5"), ("retention.ms", Operation.SET, "6")],
    ],
)
def test_what_cannot_be_is_refused(wanted: list[tuple[str, int, str | None]]) -> None:
    with pytest.raises(InvalidRequest):
        changes(settings(), *wanted)


def test_a_new_topic_gets_what_is_given() -> None:
    assert creation({}) == {}
    assert creation({"retention.ms": "-1", POLICY: "compact"}) == {
        "retention_ms": -1,
        "compaction": Compaction(),
    }
    assert creation({POLICY: "compact,delete", LAG: "7"}) == {"compaction": Compaction(lag_ms=7)}
    for wrong in ({"flush.ms": "1"}, {LAG: "7"}, {"retention.ms": None}):
        with pytest.raises(InvalidRequest):
            creation(wrong)
