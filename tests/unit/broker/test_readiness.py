"""A broker node is ready when another one of its group may be restarted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.readiness import ENTRIES_BEHIND_MAX, why_not_ready


def replica(**changes: Any) -> Any:
    core = SimpleNamespace(
        master_id=changes.get("master_id", 2), commit_index=changes.get("commit_index", 100)
    )
    return SimpleNamespace(
        role=changes.get("role", "slave"),
        core=core,
        electable=changes.get("electable", True),
        state=SimpleNamespace(applied_index=90),
    )


@pytest.mark.parametrize("role", ["master", "slave"])
def test_a_member_with_a_master_is_ready(role: str) -> None:
    assert why_not_ready(replica(role=role)) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"role": role}, role) for role in ("candidate", "learner", "joining", "removed")),
        ({"master_id": None}, "knows no master"),
        ({"electable": False}, "has not caught up"),
        ({"commit_index": 91 + ENTRIES_BEHIND_MAX}, "10001 committed entries"),
    ],
)
def test_what_is_missing_is_told(changes: dict[str, Any], reason: str) -> None:
    assert reason in why_not_ready(replica(**changes))
