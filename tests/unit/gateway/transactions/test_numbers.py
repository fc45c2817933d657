"""Kafka's numbers of transactions and Semel's follow from each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.transactions.numbers import (
    INCARNATIONS,
    after_abort,
    epoch_of,
    first_incarnation,
    incarnation_of,
    is_transaction,
    kafka_epoch_of,
    next_transaction,
    producer_id_of,
    stager_id_of,
    timed_incarnation,
)
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.staging import EPOCH_END, STAGER_ID_END, STAGER_ID_MIN

incarnations = st.integers(0, INCARNATIONS - 1)
steps = st.integers(0, 2**32 - 3)


@given(incarnations, steps)
def test_an_epoch_tells_its_incarnation(incarnation: int, step: int) -> None:
    epoch = epoch_of(incarnation, step)
    assert 0 <= epoch < EPOCH_END
    assert incarnation_of(epoch) == incarnation
    assert kafka_epoch_of(epoch) == incarnation % 2**15


@given(incarnations, steps)
def test_the_next_transaction_is_above_all_that_has_ended(incarnation: int, step: int) -> None:
    epoch = epoch_of(incarnation, step)
    following = next_transaction(epoch)
    assert is_transaction(following)
    assert following > epoch
    assert incarnation_of(following) == incarnation
    if is_transaction(epoch):
        assert epoch < after_abort(epoch) < following
        assert next_transaction(after_abort(epoch)) == following


def test_no_epoch_has_no_incarnation() -> None:
    assert incarnation_of(-1) == -1
    assert first_incarnation(-1, 0) == 0


@given(st.integers(0, 2**51))
def test_an_id_that_nobody_has_used_has_kafka_s_epoch_0(log_time_us: int) -> None:
    found = first_incarnation(-1, log_time_us)
    assert kafka_epoch_of(epoch_of(found, 0)) == 0
    assert 0 <= timed_incarnation(log_time_us) - found < 2**15


@given(st.integers(0, 2**30 - 2), st.integers(0, 2**51))
def test_an_incarnation_is_above_the_one_before_and_not_below_the_time(
    before: int, log_time_us: int
) -> None:
    found = first_incarnation(before, log_time_us)
    assert found > before
    assert (found + 1) * 4_000_000 > log_time_us


@given(st.text(max_size=249), st.integers(0, EPOCH_END - 1))
def test_ids_are_where_nobody_else_has_any(name: str, epoch: int) -> None:
    assert 2**61 <= producer_id_of(name) < STAGER_ID_MIN
    queue, other = (QueueKey(TopicId(1), QueueId(number)) for number in (1, 2))
    assert STAGER_ID_MIN <= stager_id_of(name, epoch, queue) < STAGER_ID_END
    places = [(epoch, queue), (epoch + 1, queue), (epoch, other), (epoch, queue, "group")]
    assert len({stager_id_of(name, *place) for place in places}) == len(places)  # type: ignore[arg-type]
