"""What there is to raise, and which node prevents it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semel.client.admin.descriptions import BrokerGroupDescription, ClusterStatus
from semel.client.admin.inspection import ControllerReport, Inspection, NodeReport
from semel.client.admin.upgrade import GroupLevel, plan_upgrade
from semel.protos.errors import Unavailable, UnsupportedVersion


def inspection(*, known: dict[int, int], active: dict[int, int], metadata: int = 4) -> Inspection:
    """Nodes by what they know, groups of one node by their level."""
    nodes = [
        NodeReport(
            node=number,
            group=number,
            address="",
            reason="",
            role="master",
            serving=True,
            level=active[number],
            level_max=most,
        )
        for number, most in known.items()
    ]
    groups = [
        BrokerGroupDescription(id=number, term=1, master=1, commit_index=1, queues=1, nodes=[])
        for number in active
    ]
    return Inspection(
        status=ClusterStatus(cluster_id="c", version="", topics=0, groups=groups, controllers=[]),
        controllers=[
            ControllerReport(address="c:1", reason="", version="", level=metadata, level_max=6),
            ControllerReport(address="c:2", reason="", version="", level=0, level_max=6),
        ],
        nodes=nodes,
    )


def test_everything_is_raised_to_what_everybody_knows() -> None:
    plan = plan_upgrade(
        inspection(known={1: 5, 2: 6}, active={1: 4, 2: 5}), level=None, dry_run=True
    )
    assert (plan.level, plan.metadata, plan.changes) == (5, 4, True)
    assert plan.groups == [GroupLevel(group=1, level=4)]
    assert plan.newer == ["broker 2", "controller c:1", "controller c:2"]
    whole = inspection(known={1: 6, 2: 6}, active={1: 6, 2: 6}, metadata=6)
    plan = plan_upgrade(whole, level=None, dry_run=False)
    assert (plan.level, plan.groups, plan.newer, plan.changes) == (6, [], [], False)
    waiting = dataclasses.replace(whole.nodes[0], node=9, role="joining", level_max=3)
    whole = dataclasses.replace(whole, nodes=[*whole.nodes, waiting])
    assert plan_upgrade(whole, level=None, dry_run=False).level == 6, "it is no member"


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"level_max": 4}, UnsupportedVersion, "broker 1 knows up to 4; upgrade them first"),
        ({"reason": "no route", "serving": False}, Unavailable, "broker 1: no route"),
        ({"serving": False}, Unavailable, "broker group 1 has no master"),
    ],
)
def test_who_stands_in_the_way_is_named(
    change: dict[str, Any], kind: type[Exception], text: str
) -> None:
    found = inspection(known={1: 6, 2: 6}, active={1: 4, 2: 4})
    nodes = [dataclasses.replace(found.nodes[0], **change), found.nodes[1]]
    with pytest.raises(kind, match=text):
        plan_upgrade(dataclasses.replace(found, nodes=nodes), level=5, dry_run=True)


def test_a_silent_controller_stands_in_the_way() -> None:
    found = inspection(known={1: 6}, active={1: 4})
    silent = ControllerReport(address="c:2", reason="no answer", version="")
    found = dataclasses.replace(found, controllers=[found.controllers[0], silent])
    with pytest.raises(Unavailable, match="controller c:2: no answer"):
        plan_upgrade(found, level=None, dry_run=True)
