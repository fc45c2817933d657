"""In which order nodes are restarted, and when one may be stopped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semel.client.admin.descriptions import (
    BrokerGroupDescription,
    ClusterStatus,
    ControllerDescription,
)
from semel.client.admin.inspection import ControllerReport, Inspection, NodeReport, PeerReport
from semel.client.admin.rolling import RestartTarget, amiss, restart_order
from semel.protos.errors import InvalidRequest

NOW_US = 1_000_000_000
EXPECTED = range(1, 7)


def inspection(*, peer: dict[str, Any] | None = None, **changed: dict[str, Any]) -> Inspection:
    """Two groups, of nodes 1 to 3 with master 2 and of 4 to 6 with master 4, and three controllers,
    of which the first is active. `changed` are the fields of reports that differ, by `node1` to
    `node6` and `controller1` to `controller3`; `peer` those of node 3, as its master sees it."""
    nodes = []
    for number in range(1, 7):
        group = (number + 2) // 3
        master = {1: 2, 2: 4}[group]
        others = [other for other in range(group * 3 - 2, group * 3 + 1) if other != master]
        peers = [
            PeerReport(
                **(
                    {"node": other, "behind": 0, "active": True, "counts": True}
                    | ((peer or {}) if other == 3 else {})
                )
            )
            for other in others
        ]
        facts: dict[str, Any] = {
            "node": number,
            "group": group,
            "address": f"b{number}:1",
            "reason": "",
            "role": "master" if number == master else "slave",
            "serving": number == master,
            "peers": peers if number == master else [],
            "started_us": NOW_US - number * 1_000_000,
        }
        nodes.append(NodeReport(**(facts | changed.get(f"node{number}", {}))))
    controllers = []
    for number in (1, 2, 3):
        report: dict[str, Any] = {
            "address": f"c{number}:1",
            "reason": "",
            "version": "1",
            "level": 9 if number == 1 else 0,
            "started_us": NOW_US - 10_000_000,
        }
        controllers.append(ControllerReport(**(report | changed.get(f"controller{number}", {}))))
    return Inspection(
        status=ClusterStatus(
            cluster_id="c",
            version="",
            topics=0,
            groups=[
                BrokerGroupDescription(
                    id=group, term=1, master=1, commit_index=1, queues=1, nodes=[]
                )
                for group in (1, 2)
            ],
            controllers=[
                ControllerDescription(
                    id=number,
                    address=f"c{number}:1",
                    role="master" if number == 1 else "standby",
                    alive=True,
                )
                for number in (1, 2, 3)
            ],
        ),
        controllers=controllers,
        nodes=nodes,
    )


def names(targets: list[RestartTarget]) -> list[str]:
    return [each.name for each in targets]


def broker(number: int) -> RestartTarget:
    return restart_order(inspection(), nodes=[number])[0]


def test_standbys_come_first_and_masters_last_group_by_group() -> None:
    targets = restart_order(inspection())
    assert names(targets[:3]) == ["controller 2", "controller 3", "controller 1"]
    assert names(targets[3:]) == [f"broker {number}" for number in (1, 3, 2, 5, 6, 4)]
    assert [each.name for each in targets if each.master] == [
        "controller 1",
        "broker 2",
        "broker 4",
    ]


def test_some_of_them_may_be_chosen() -> None:
    found = inspection()
    assert names(restart_order(found, kinds=["controller"])) == [
        "controller 2",
        "controller 3",
        "controller 1",
    ]
    assert names(restart_order(found, nodes=[4, 2])) == ["broker 2", "broker 4"]
    with pytest.raises(InvalidRequest, match="node 9 is no member"):
        restart_order(found, nodes=[9])


def test_what_was_started_a_short_time_ago_is_left_out() -> None:
    left = restart_order(inspection(), ran_us=4_000_000, now_us=NOW_US)
    assert names(left) == [
        "controller 2",
        "controller 3",
        "controller 1",
        "broker 5",
        "broker 6",
        "broker 4",
    ]


def test_a_node_that_waits_to_join_stays_as_it_is() -> None:
    found = inspection()
    waiting = dataclasses.replace(found.nodes[0], node=7, role="joining")
    found = dataclasses.replace(found, nodes=[*found.nodes, waiting])
    assert "broker 7" not in names(restart_order(found))
    assert amiss(found, broker(1), EXPECTED) == ""


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"node3": {"reason": "no route", "role": ""}}, "broker 3 does not answer: no route"),
        ({"node2": {"serving": False}}, "broker group 1 has no master"),
        ({"peer": {"active": False}}, "broker 3 does not have everything yet"),
        ({"peer": {"counts": False}}, "broker 3 does not have everything yet"),
        ({"peer": {"behind": 5_000}}, "broker 3 does not have everything yet"),
        ({"node1": {"non_counting": True}}, "broker 1 does not count yet"),
        ({"node3": {"disk_full": True}}, "broker 3 has no room on its disk"),
        ({"node3": {"memory_pulling": True}}, "broker 3 still pulls messages"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_no_node_is_stopped_while_another_one_lacks_something(
    changed: dict[str, Any], text: str, number: int
) -> None:
    assert amiss(inspection(**changed), broker(number), EXPECTED).startswith(text)


def test_the_other_groups_do_not_matter() -> None:
    found = inspection(node6={"reason": "no route", "role": ""}, node4={"serving": False})
    assert amiss(found, broker(1), EXPECTED) == ""


def test_a_controller_waits_for_the_others_and_for_an_active_one() -> None:
    target = restart_order(inspection(), kinds=["controller"])[0]
    assert amiss(inspection(), target, EXPECTED) == ""
    silent = inspection(controller3={"reason": "no route"})
    assert amiss(silent, target, EXPECTED) == "controller c3:1 does not answer"
    none_active = inspection(controller1={"level": 0})
    assert amiss(none_active, target, EXPECTED) == "no controller is active"
    assert amiss(inspection(), target, [*EXPECTED, 8]) == (
        "broker 8 has not reported to the controllers yet"
    )
