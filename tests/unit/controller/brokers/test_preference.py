"""Masters go to the preferred rack when a node there was fit for long enough, and stay there."""

from __future__ import annotations

from typing import Any

import pytest

from semel.controller.brokers.preference import CLOSE_ENTRIES, MasterPreference
from semel.protos.v1.controller_pb2 import GroupStatus, NodeStatus

SETTLED_MS = 1_000


def node(number: int, rack: str, role: str = "slave", **fields: Any) -> NodeStatus:
    given = {"alive": True, "log_end_index": 10_000, **fields}
    return NodeStatus(node_id=number, rack=rack, role=role, **given)


def group(*nodes: NodeStatus, term: int = 1) -> GroupStatus:
    (master,) = [each.node_id for each in nodes if each.role == "master"]
    return GroupStatus(group_id=7, term=term, master_id=master, commit_index=10_000, nodes=nodes)


AWAY = group(node(1, "far", "master"), node(2, "near"), node(3, "near", log_end_index=10_001))


def preference(rack: str = "near") -> MasterPreference:
    return MasterPreference(rack, settled_ms=SETTLED_MS)


def test_the_furthest_node_there_gets_it_after_it_was_fit_for_long_enough() -> None:
    decides = preference()
    assert decides.on_status([AWAY], 0) == []
    assert decides.on_status([AWAY], SETTLED_MS - 1) == []
    assert decides.on_status([AWAY], SETTLED_MS) == [(7, 3)]


def test_a_transfer_that_did_not_happen_is_tried_again_only_later() -> None:
    decides = preference()
    decides.on_status([AWAY], 0)
    assert decides.on_status([AWAY], SETTLED_MS)
    assert decides.on_status([AWAY], SETTLED_MS + 1) == []
    assert decides.on_status([AWAY], 2 * SETTLED_MS) == []
    assert decides.on_status([AWAY], 2 * SETTLED_MS + 1) == [(7, 3)]


def test_an_election_begins_the_time_anew() -> None:
    decides = preference()
    decides.on_status([AWAY], 0)
    later = GroupStatus()
    later.CopyFrom(AWAY)
    later.term = 2
    assert decides.on_status([later], SETTLED_MS) == []
    assert decides.on_status([later], 2 * SETTLED_MS) == [(7, 3)]


@pytest.mark.parametrize(
    "unfit",
    [
        {"alive": False},
        {"rack": "far"},
        {"role": "learner"},
        {"role": "candidate"},
        {"damaged": 1},
        {"lost": 1},
        {"disk_full": True},
        {"log_end_index": 10_000 - CLOSE_ENTRIES - 1},
    ],
)
def test_a_node_that_was_unfit_in_between_waits_again(unfit: dict[str, Any]) -> None:
    fit = group(node(1, "far", "master"), node(2, "near"))
    broken = group(node(1, "far", "master"), node(2, **{"rack": "near", **unfit}))
    decides = preference()
    decides.on_status([fit], 0)
    assert decides.on_status([broken], SETTLED_MS) == []
    assert decides.on_status([fit], SETTLED_MS + 1) == []
    assert decides.on_status([fit], 2 * SETTLED_MS + 1) == [(7, 2)]


@pytest.mark.parametrize(
    "status",
    [
        group(node(1, "near", "master"), node(2, "near")),
        group(node(1, "far", "master"), node(2, "far")),
        group(node(1, "far", "master", alive=False), node(2, "near")),
    ],
)
def test_nothing_moves_that_is_there_or_has_nowhere_to_go_or_is_being_elected(
    status: GroupStatus,
) -> None:
    decides = preference()
    for now_ms in (0, SETTLED_MS, 10 * SETTLED_MS):
        assert decides.on_status([status], now_ms) == []


def test_nobody_who_prefers_nothing_moves_anything() -> None:
    decides = preference(rack="")
    unnamed = group(node(1, "far", "master"), node(2, ""))
    for now_ms in (0, SETTLED_MS, 10 * SETTLED_MS):
        assert decides.on_status([AWAY, unnamed], now_ms) == []
