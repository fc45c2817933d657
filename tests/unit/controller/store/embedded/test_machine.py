"""The fold of commands: once each, whatever comes twice, late, or from a former life."""

from __future__ import annotations

import pytest

from semel.controller.store import Transaction, Versioned
from semel.controller.store.embedded.machine import (
    COMMAND_BYTES_MAX,
    Applied,
    Machine,
    Result,
    barrier_command,
    transaction_command,
)
from semel.protos.errors import InvalidRequest, MessageTooLarge


def command(
    sequence: int,
    transaction: Transaction,
    *,
    controller_id: int = 1,
    incarnation: int = 1,
    resolved_below: int = 0,
) -> bytes:
    return transaction_command(
        transaction,
        controller_id=controller_id,
        incarnation=incarnation,
        sequence=sequence,
        resolved_below=resolved_below,
    )


def create(key: str = "/a", value: bytes = b"v") -> Transaction:
    return Transaction(checks={key: None}, puts={key: value})


def test_asked_twice_it_is_done_once_and_answered_alike() -> None:
    machine = Machine()
    first = machine.apply(command(1, create()))
    second = machine.apply(command(1, create()))
    assert first.result == second.result == Result(revision=1)
    assert first.puts == {"/a": Versioned(value=b"v", version=1)}
    assert second.puts == {}
    assert machine.table.revision == 1


def test_a_conflict_is_remembered_as_a_conflict() -> None:
    machine = Machine()
    machine.apply(command(1, create()))
    refused = machine.apply(command(2, create()))
    assert refused.result is not None
    assert "expected None" in refused.result.conflict
    machine.apply(command(3, Transaction(deletes=frozenset({"/a"}))))
    assert machine.apply(command(2, create())).result == refused.result
    assert machine.table.entries == {}


def test_what_its_asker_has_resolved_is_forgotten_and_never_done_again() -> None:
    machine = Machine()
    machine.apply(command(1, create()))
    machine.apply(command(2, Transaction(deletes=frozenset({"/a"})), resolved_below=2))
    assert set(machine.sessions[1].results) == {2}
    assert machine.apply(command(1, create())).result is None
    assert machine.table.entries == {}


def test_requests_of_a_former_life_are_not_done() -> None:
    machine = Machine()
    machine.apply(command(5, create("/a")))
    machine.apply(command(1, create("/b"), incarnation=2))
    assert machine.apply(command(6, create("/c"))).result is None
    assert machine.apply(command(5, create("/a"))).result is None
    other = machine.apply(command(6, create("/c"), controller_id=2))
    assert other.result == Result(revision=3)
    assert set(machine.table.entries) == {"/a", "/b", "/c"}


def test_a_barrier_changes_nothing() -> None:
    machine = Machine()
    machine.apply(command(1, create()))
    before = machine.state()
    assert machine.apply(barrier_command(b"n")) == Applied(
        revision=1, puts={}, deletes=frozenset(), barrier=b"n"
    )
    assert machine.state() == before


def test_a_restored_machine_answers_like_the_one_it_was() -> None:
    machine = Machine()
    machine.apply(command(1, create()))
    state = machine.state()
    other = Machine()
    other.restore(state)
    machine.apply(command(2, create("/b")))
    assert other.table.revision == 1, "a copy follows nobody"
    assert other.apply(command(1, create())).result == Result(revision=1)
    assert other.apply(command(2, create("/b"))).result == Result(revision=2)
    assert other.state() == machine.state()


@pytest.mark.parametrize("bad", [b"", b"\xff\xff", b"\x1a\x00"])
def test_what_is_no_command_halts(bad: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Machine().apply(bad)


def test_a_transaction_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(MessageTooLarge) as raised:
        command(1, create(value=bytes(COMMAND_BYTES_MAX)))
    assert raised.value.limit_bytes == COMMAND_BYTES_MAX
