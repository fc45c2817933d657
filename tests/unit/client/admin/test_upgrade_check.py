"""What an upgrade would meet, told from one inspection."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semel.client.admin.descriptions import (
    BrokerGroupDescription,
    ClusterStatus,
    UnfinishedTopic,
)
from semel.client.admin.inspection import ControllerReport, Inspection, NodeReport, PeerReport
from semel.client.admin.upgrade import GroupLevel
from semel.client.admin.upgrade_check import UpgradeCheck, check_upgrade
from semel.protos.levels import LEVEL_MAX, feature_texts

FOLLOWING = {"behind": 0, "active": True, "counts": True}


def inspection(
    *,
    peers: dict[int, dict[str, Any]] | None = None,
    unfinished: list[UnfinishedTopic] | None = None,
    **changed: dict[str, Any],
) -> Inspection:
    """A group of three nodes and one controller at level 8, all of which know 9. `changed` are the
    fields that differ, by `node1` to `node3` and `controller`."""
    told = peers or {2: FOLLOWING, 3: FOLLOWING}
    master: dict[str, Any] = {
        "role": "master",
        "serving": True,
        "level": 8,
        "peers": [PeerReport(node=node, **facts) for node, facts in told.items()],
    }
    nodes = []
    for number in (1, 2, 3):
        facts: dict[str, Any] = {
            "node": number,
            "group": 1,
            "address": f"h:{number}",
            "reason": "",
            "version": "1.0",
            "role": "slave",
            "level_max": 9,
        }
        facts |= master if number == 1 else {}
        nodes.append(NodeReport(**(facts | changed.get(f"node{number}", {}))))
    controller: dict[str, Any] = {
        "address": "c:1",
        "reason": "",
        "version": "1.0",
        "level": 8,
        "level_max": 9,
    }
    group = BrokerGroupDescription(id=1, term=1, master=1, commit_index=1, queues=1, nodes=[])
    return Inspection(
        status=ClusterStatus(
            cluster_id="c",
            version="1.0",
            topics=0,
            groups=[group],
            controllers=[],
            unfinished=unfinished or [],
        ),
        controllers=[ControllerReport(**(controller | changed.get("controller", {})))],
        nodes=nodes,
    )


def obstacles(found: UpgradeCheck) -> list[tuple[str, str, bool]]:
    return [(each.kind, each.subject, each.stops) for each in found.obstacles]


def test_a_healthy_cluster_is_ready_and_is_told_what_the_raise_allows() -> None:
    found = check_upgrade(inspection())
    assert (found.ready, found.changes, found.obstacles) == (True, True, [])
    assert (found.level, found.metadata) == (9, 8)
    assert found.groups == [GroupLevel(group=1, level=8)]
    assert [each.subject for each in found.programs] == [
        "controller c:1",
        "broker 1",
        "broker 2",
        "broker 3",
    ]
    [allowed] = found.allows
    assert allowed.startswith("level 9: tiers")
    raised = check_upgrade(inspection(node1={"level": 9}, controller={"level": 9}))
    assert (raised.ready, raised.changes, raised.allows) == (True, False, [])


@pytest.mark.parametrize("above", range(LEVEL_MAX))
def test_each_level_says_what_it_allows(above: int) -> None:
    texts = feature_texts(above, LEVEL_MAX)
    named = [int(text.partition(":")[0].removeprefix("level ")) for text in texts]
    assert named == list(range(max(2, above + 1), LEVEL_MAX + 1))
    assert not [text for text in texts if text.endswith(",")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"node2": {"reason": "no route", "role": ""}}, ("silent", "broker 2", True)),
        ({"controller": {"reason": "no route"}}, ("silent", "controller c:1", True)),
        ({"node3": {"level_max": 8}}, ("too-old", "broker 3", True)),
        ({"controller": {"level_max": 8}}, ("too-old", "controller c:1", True)),
        ({"node1": {"serving": False}}, ("no-master", "broker group 1", True)),
        (
            {"peers": {2: FOLLOWING, 3: FOLLOWING | {"counts": False}}},
            ("under-replicated", "broker group 1", True),
        ),
        ({"node3": {"version": "0.9"}}, ("versions", "broker 3", False)),
        ({"node3": {"memory_pulling": True}}, ("memory", "broker 3", False)),
    ],
)
def test_an_obstacle_is_named(changed: dict[str, Any], expected: tuple[str, str, bool]) -> None:
    found = check_upgrade(inspection(**changed))
    assert obstacles(found) == [expected]
    assert found.ready is not expected[2]


def test_a_silent_node_is_told_once_although_its_group_is_under_replicated() -> None:
    peers = {2: FOLLOWING | {"active": False}, 3: FOLLOWING}
    found = inspection(peers=peers, node2={"reason": "no route", "role": ""})
    assert obstacles(check_upgrade(found)) == [("silent", "broker 2", True)]


def test_a_node_that_waits_to_join_does_not_matter() -> None:
    whole = inspection()
    waiting = dataclasses.replace(whole.nodes[2], node=9, role="joining", level_max=3)
    found = check_upgrade(dataclasses.replace(whole, nodes=[*whole.nodes, waiting]))
    assert (found.level, found.ready) == (9, True)


def test_moves_and_steps_of_topics_are_told_and_stop_nothing() -> None:
    steps = [
        UnfinishedTopic(name="a", topic_id=1, step="moving queue 1 to group 2", reason=""),
        UnfinishedTopic(name="b", topic_id=2, step="altering", reason="no master"),
    ]
    found = check_upgrade(inspection(unfinished=steps))
    assert obstacles(found) == [
        ("move", "topic a", False),
        ("unfinished-topic", "topic b", False),
    ]
    assert "no master" in found.obstacles[1].text
    assert found.ready


def test_a_level_that_nobody_knows_yet_names_all_programs() -> None:
    found = check_upgrade(inspection(), level=10)
    assert [each.kind for each in found.obstacles] == ["too-old"] * 4
    assert not found.ready


def test_a_group_of_one_node_is_told() -> None:
    whole = inspection(peers={2: FOLLOWING})
    found = check_upgrade(dataclasses.replace(whole, nodes=whole.nodes[:1]))
    assert ("one-node", "broker group 1", False) in obstacles(found)
