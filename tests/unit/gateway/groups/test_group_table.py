"""The groups of one gateway: bounded, woken in time, and told when they end."""

from __future__ import annotations

import itertools

import pytest

from semel.gateway.groups.group_table import GroupTable, taken
from semel.gateway.groups.results import (
    GroupError,
    GroupLimits,
    GroupState,
    Join,
    JoinResult,
    Ticket,
)

JOIN = Join(
    session_ms=5_000, rebalance_ms=5_000, protocol_type="consumer", protocols=(("range", b""),)
)


@pytest.fixture
def table() -> GroupTable:
    numbers = itertools.count()
    return GroupTable(GroupLimits(initial_delay_ms=100, groups_max=2), lambda: f"{next(numbers)}")


def test_groups_are_found_by_name_until_there_is_no_room(table: GroupTable) -> None:
    first = table.begin("a")
    assert (table.find("a"), table.find("b"), table.is_full) == (first, None, False)
    table.begin("b")
    assert table.is_full
    table.end("a", GroupError.NOT_COORDINATOR)
    assert (table.find("a"), table.is_full) == (None, False)


def test_all_groups_are_woken_and_all_their_answers_collected(table: GroupTable) -> None:
    for ticket, name in enumerate(("a", "b"), start=1):
        table.begin(name).join(JOIN, Ticket(ticket), 1_000)
    assert table.on_time(1_099) == []
    assert [reply.ticket for reply in table.on_time(1_100)] == [1, 2]
    assert table.take() == []


def test_time_that_did_not_count_puts_everything_off(table: GroupTable) -> None:
    table.begin("a").join(JOIN, Ticket(1), 1_000)
    table.forgive(500)
    assert table.on_time(1_599) == []
    assert [reply.ticket for reply in table.on_time(1_600)] == [1]


def test_who_waits_when_a_group_ends_is_told_why(table: GroupTable) -> None:
    group = table.begin("a")
    group.join(JOIN, Ticket(1), 1_000)
    assert taken(group) == []
    (reply,) = table.end("a", GroupError.NOT_COORDINATOR)
    assert isinstance(reply.result, JoinResult)
    assert (reply.ticket, reply.result.error) == (1, GroupError.NOT_COORDINATOR)
    assert group.state is GroupState.DEAD
    assert table.end("a", GroupError.NOT_COORDINATOR) == []


def test_a_group_is_left_when_nobody_is_in_or_about_to_join(table: GroupTable) -> None:
    group = table.begin("a")
    assert group.is_left
    group.join(
        Join(
            session_ms=5_000,
            rebalance_ms=5_000,
            protocol_type="consumer",
            protocols=(("range", b""),),
            id_required=True,
        ),
        Ticket(1),
        0,
    )
    assert not group.is_left
    table.on_time(5_000)
    assert group.is_left
    group.join(JOIN, Ticket(2), 6_000)
    assert not group.is_left


def test_what_it_has_is_counted_and_rebalances_outlive_their_groups(table: GroupTable) -> None:
    assert (len(table), table.member_count, table.rebalances) == (0, 0, 0)
    table.begin("a").join(JOIN, Ticket(1), 1_000)
    table.on_time(1_100)
    assert (len(table), table.member_count, table.rebalances) == (1, 1, 1)
    table.end("a", GroupError.NOT_COORDINATOR)
    assert (len(table), table.member_count, table.rebalances) == (0, 0, 1)
