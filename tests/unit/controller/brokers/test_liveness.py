"""What nodes report becomes one view of each group."""

from __future__ import annotations

from typing import Any

import pytest

from semel.controller.brokers.liveness import NodeTable, Outcome, QueueCountWatch
from semel.protos.errors import InvalidRequest
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2 import ReportNodeRequest


def report(number: int, role: str = "slave", term: int = 1, **fields: Any) -> ReportNodeRequest:
    fields.setdefault("group_id", 1)
    fields.setdefault("node", NodeAddress(node_id=number, address=f"h:{number}"))
    return ReportNodeRequest(role=role, term=term, **fields)


def members(*nodes: int) -> list[NodeAddress]:
    return [NodeAddress(node_id=node, address=f"h:{node}") for node in nodes]


@pytest.fixture
def table() -> NodeTable:
    return NodeTable(report_timeout_ms=2_000)


def test_the_first_report_registers_node_and_group(table: NodeTable) -> None:
    outcome = table.on_report(report(1, "master", 3), 0)
    assert outcome == Outcome(changed=True, new_master=True, regressed=False)
    route = table.route(1)
    assert (route.term, route.master_id, [n.node_id for n in route.nodes]) == (3, 1, [1])
    assert table.addresses(1) == ["h:1"]
    assert table.addresses(2) == []


def test_the_same_report_again_changes_nothing(table: NodeTable) -> None:
    table.on_report(report(1, "master"), 0)
    assert not table.on_report(report(1, "master", commit_index=9), 1).changed


def test_the_higher_term_wins_in_any_order(table: NodeTable) -> None:
    table.on_report(report(1, "master", 5), 0)
    table.on_report(report(2, "master", 4), 1)
    assert (table.route(1).term, table.route(1).master_id) == (5, 1)
    assert table.on_report(report(2, "master", 6), 2).new_master
    assert (table.route(1).term, table.route(1).master_id) == (6, 2)


def test_a_slaves_word_about_the_master_counts(table: NodeTable) -> None:
    table.on_report(report(1, "candidate", 2), 0)
    assert table.route(1).master_id == 0
    assert table.on_report(report(2, "slave", 2, master_id=3), 1).new_master
    assert table.route(1).master_id == 3


def test_members_are_who_the_master_names(table: NodeTable) -> None:
    table.on_report(report(1, "slave", members=members(1, 2, 3)), 0)
    assert [n.node_id for n in table.route(1).nodes] == [1, 2, 3]
    table.on_report(report(2, "master", members=members(2, 3, 4)), 0)
    assert [n.node_id for n in table.route(1).nodes] == [2, 3, 4]
    table.on_report(report(1, "slave", members=members(1, 2, 3)), 0)
    assert [n.node_id for n in table.route(1).nodes] == [2, 3, 4]


def test_a_master_that_was_replaced_names_no_members(table: NodeTable) -> None:
    """It does not know who came since."""
    table.on_report(report(2, "master", 5, members=members(1, 2, 3)), 0)
    table.on_report(report(1, "master", 4, members=members(1, 4)), 1)
    assert [n.node_id for n in table.route(1).nodes] == [1, 2, 3]
    table.on_report(report(3, "master", 6, members=members(2, 3)), 2)
    assert [n.node_id for n in table.route(1).nodes] == [2, 3]


def test_a_node_knows_its_own_address_best(table: NodeTable) -> None:
    table.on_report(report(1, "master", members=members(1, 2)), 0)
    table.on_report(report(2, node=NodeAddress(node_id=2, address="new:2")), 0)
    table.on_report(report(1, "master", members=members(1, 2)), 0)
    assert table.addresses(1) == ["h:1", "new:2"]


def test_a_node_cannot_be_in_two_groups(table: NodeTable) -> None:
    table.on_report(report(1, "master"), 0)
    with pytest.raises(InvalidRequest, match="belongs to broker group 1"):
        table.on_report(report(1, "master", group_id=2), 0)
    with pytest.raises(InvalidRequest):
        table.on_report(report(0, "master"), 0)
    with pytest.raises(InvalidRequest):
        table.on_report(report(5, node=NodeAddress(node_id=5)), 0)
    assert table.group_ids() == [1]


def test_a_group_is_served_while_its_master_reports(table: NodeTable) -> None:
    table.on_report(report(1, "master"), 0)
    table.on_report(report(2, master_id=1), 1_500)
    assert table.served_groups(2_000) == [1]
    assert table.served_groups(2_001) == []


def test_a_stored_group_comes_back_and_is_not_alive(table: NodeTable) -> None:
    table.on_report(report(1, "master", 7, members=members(1, 2, 3)), 0)
    again = NodeTable(report_timeout_ms=2_000)
    again.restore(table.record(1))
    assert again.route(1) == table.route(1)
    assert again.served_groups(0) == []
    assert not again.on_report(report(1, "master", 7, members=members(1, 2, 3)), 0).changed


def test_a_group_that_began_anew_is_followed_when_all_members_say_so(table: NodeTable) -> None:
    table.on_report(report(1, "master", 9, members=members(1, 2, 3)), 0)
    table.on_report(report(2, "slave", 9), 0)
    assert not table.on_report(report(2, "master", 1, members=members(1, 2, 3)), 1).regressed
    assert not table.on_report(report(3, "slave", 1, master_id=2), 1).regressed
    outcome = table.on_report(report(1, "slave", 1, master_id=2), 1)
    assert outcome == Outcome(changed=True, new_master=True, regressed=True)
    assert (table.route(1).term, table.route(1).master_id) == (1, 2)


def test_a_lasting_shortfall_of_queues_is_told_once() -> None:
    watch = QueueCountWatch(patience_ms=100)
    told = [watch.on_count(1, found=3, placed=4, now_ms=now) for now in (0, 50, 100, 150)]
    assert told == [False, False, True, False]
    assert not watch.on_count(1, found=4, placed=4, now_ms=200)
    told = [watch.on_count(1, found=0, placed=4, now_ms=now) for now in (250, 340, 350)]
    assert told == [False, False, True]


def test_a_node_that_waits_to_join_is_found_and_is_no_member(table: NodeTable) -> None:
    table.on_report(report(1, "master", 3, members=members(1, 2)), 0)
    outcome = table.on_report(report(9, "joining", 99), 1)
    assert not outcome.changed
    route = table.route(1)
    assert (route.term, [node.node_id for node in route.nodes]) == (3, [1, 2])
    (group,) = table.status(2, {})
    assert [(node.node_id, node.role) for node in group.nodes] == [
        (1, "master"),
        (2, ""),
        (9, "joining"),
    ]


def test_a_removed_node_is_shown_while_it_reports(table: NodeTable) -> None:
    table.on_report(report(1, "master", 3, members=members(1, 2)), 0)
    table.on_report(report(2, "slave", 3), 0)
    assert table.on_report(report(1, "master", 3, members=members(1, 4)), 10).changed
    table.on_report(report(2, "removed", 9), 20)
    assert table.addresses(1) == ["h:1", "h:4"]
    (group,) = table.status(30, {})
    assert [node.node_id for node in group.nodes] == [1, 2, 4]
    table.on_report(report(1, "master", 3, members=members(1, 4)), 5_000)
    (group,) = table.status(5_000, {})
    assert [node.node_id for node in group.nodes] == [1, 4]
