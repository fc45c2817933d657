"""Fields that were called something else in older versions: programs that read those still work."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client.admin.descriptions import ClusterStatus, Described, QueueMove, UnfinishedTopic
from semel.client.admin.inspection import ControllerReport, NodeReport

HALF = UnfinishedTopic(name="half", topic_id=1, step="creating", reason="no master")
NODE = NodeReport(node=1, group=1, address="h:1", reason="no route", non_counting=True)
MOVE: dict[str, Any] = {
    "topic": "t",
    "queue": 0,
    "source": 1,
    "target": 2,
    "stage": "aborted",
    "copied_bytes": 0,
    "total_bytes": 0,
    "reason": "given up",
    "begun_us": 0,
}


@pytest.mark.parametrize(
    ("described", "former"),
    [
        (HALF, {"trouble": "no master"}),
        (QueueMove(**MOVE), {"trouble": "given up"}),
        (ControllerReport(address="c:1", reason="refused", version=""), {"trouble": "refused"}),
        (NODE, {"trouble": "no route", "muted": True}),
    ],
)
def test_a_former_name_is_an_attribute_and_a_key(
    described: Described, former: dict[str, object]
) -> None:
    plain = described.as_dict()
    for name, value in former.items():
        assert getattr(described, name) == value
        assert plain[name] == value
    assert plain["reason"] == former["trouble"], "the new name is there, too"


def test_a_nested_description_has_its_former_names() -> None:
    status = ClusterStatus(
        cluster_id="c", version="1", topics=1, groups=[], controllers=[], unfinished=[HALF]
    )
    (nested,) = status.as_dict()["unfinished"]
    assert (nested["trouble"], nested["reason"]) == ("no master", "no master")
