"""Steps of transactions that come late, again, or after a snapshot."""

from __future__ import annotations

import pytest

from semel.broker.state import Published, State
from semel.protos import errors
from semel.protos.v1 import transaction_records_pb2
from tests.unit.broker.state.staging import Stage, begin, decide, finish, group_with


def test_the_end_of_an_earlier_epoch_that_comes_again_does_not_end_a_later_one() -> None:
    """An earlier master had it in flight as well: else nobody would publish the later epoch."""
    group = Stage()
    coordination = group.state.transactions.coordination
    begin(group)
    decide(group, 0, 1, (2,))
    finish(group, 0)
    begin(group)
    decide(group, 1, 2, (2,))
    finish(group, 0)
    assert list(coordination.unpublished) == ["t"]
    assert isinstance(begin(group), errors.Throttled)
    finish(group, 1)
    assert list(coordination.unpublished) == []


def test_what_is_not_published_everywhere_is_known_after_a_snapshot() -> None:
    """The node that is master then goes on with it."""
    group = Stage()
    begin(group)
    decide(group, 0, 1, (1, 2))
    restored = State.from_bytes(b"".join(group.state.to_parts())).transactions.coordination
    assert list(restored.unpublished) == ["t"]
    assert restored.rows["t"].participants == (1, 2)
    finish(group, 0)
    restored = State.from_bytes(b"".join(group.state.to_parts())).transactions.coordination
    assert list(restored.unpublished) == []


def test_the_end_of_a_lower_pin_that_comes_late_leaves_the_higher_one_alone() -> None:
    """The coordinator was asked about the lower attempt; the higher one may be committed by now."""
    group, first = group_with(2)
    group.pin(first, attempt=1)
    assert group.pin(first, attempt=2) == ()
    group.step(drop_pin=transaction_records_pb2.DropPin(transaction_id="t", attempt=1))
    assert isinstance(group.publish(attempt=2), Published)
    assert group.contents() == [1, 1]


@pytest.mark.parametrize(("epoch", "attempt"), [(1, 1), (0, 2)])
def test_a_publication_of_what_is_not_pinned_is_refused(epoch: int, attempt: int) -> None:
    """Everybody who asks for it is refused: in the log it would halt the group."""
    group, first = group_with(2)
    group.pin(first)
    assert isinstance(group.publish(epoch=epoch, attempt=attempt), errors.TransactionAborted)
    assert group.contents() == []
    assert isinstance(group.publish(), Published)
