"""A transaction's batches have the places that follow from its first one in the queue."""

from __future__ import annotations

from semel.client.core.sequences import Failed, InFlight, Retry, Settled
from semel.gateway.producing.kafka_numbers import Numbers
from semel.gateway.producing.stage_window import StageWindow
from semel.protos.errors import OutOfOrderSequence, SequenceConflict, Unavailable
from semel.protos.ids import Sequence

SPAN = 2**31


def window(base: int = 100, last: int = -1) -> StageWindow:
    return StageWindow(stager_id=2**62, session=base + 1, base=base, last_sequence=last)


def put(one: StageWindow, base_sequence: int, count: int) -> Numbers:
    numbers = one.numbers(base_sequence, count)
    previous, base, last = (Sequence(each) for each in numbers)
    one.add(
        base_sequence,
        InFlight(previous=previous, base=base, last=last, count=count, payload=b"", tag=None),
    )
    sent = one.next_to_send()
    assert sent is not None
    return numbers


def test_places_count_from_the_base() -> None:
    one = window()
    assert put(one, 100, 5) == (-1, 0, 4)
    assert put(one, 105, 5) == (4, 5, 9)


def test_the_clients_numbers_may_wrap() -> None:
    one = window(base=SPAN - 3)
    assert put(one, SPAN - 3, 3) == (-1, 0, 2)
    assert put(one, 0, 2) == (2, 3, 4)


def test_a_batch_that_comes_again_has_the_place_that_it_had() -> None:
    assert window(last=9).numbers(105, 5) == (4, 5, 9)


def test_a_batch_of_before_the_base_never_fits() -> None:
    numbers = window().numbers(95, 5)
    assert numbers.previous != -1


def test_a_duplicate_is_settled_at_once() -> None:
    one = window(last=4)
    put(one, 100, 5)
    (decision,) = one.on_stored(0, 4, -1, 0, True)
    assert isinstance(decision, Settled)
    assert decision.duplicate
    assert not one.in_flight
    assert one.on_stored(0, 4, -1, 0, True) == []


def test_what_is_behind_a_failure_fails_and_what_is_only_early_comes_again() -> None:
    one = window()
    put(one, 100, 5)
    put(one, 105, 5)
    early = OutOfOrderSequence("early", last_sequence=-1)
    assert one.on_refused(5, 9, early) == [Retry(0)]
    one.on_stream_lost()
    assert one.next_to_send() is not None
    assert one.next_to_send() is not None
    (failed,) = one.on_refused(0, 4, SequenceConflict("other content"))
    assert isinstance(failed, Failed)
    (behind,) = one.on_refused(5, 9, early)
    assert isinstance(behind, Failed)
    assert not one.in_flight


def test_a_busy_broker_is_asked_again() -> None:
    one = window()
    put(one, 100, 5)
    (decision,) = one.on_refused(0, 4, Unavailable("no master"))
    assert isinstance(decision, Retry)
    assert one.in_flight
