"""A window tells a client what the table decided, and nothing that wrong numbers could cause."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semel.client.core.sequences import (
    Elsewhere,
    Failed,
    Fence,
    InFlight,
    Moved,
    Retry,
    Settled,
)
from semel.gateway.producing.kafka_window import KafkaWindow
from semel.protos.batch import decode_header
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import (
    InvalidRequest,
    MessageTooLarge,
    NotMaster,
    OutOfOrderSequence,
    QueueMoved,
    SequenceConflict,
    Throttled,
    Unavailable,
)
from semel.protos.ids import Sequence

SPAN = 1 << 31
PRODUCER = 7


def put(window: KafkaWindow, base_sequence: int, count: int = 2) -> InFlight:
    numbers = window.numbers(base_sequence, count)
    payload = encode_batch(
        Columns(values=pa.array([b"v"] * count, pa.binary())),
        topic_id=1,
        queue_id=2,
        producer_id=PRODUCER,
        epoch=window.epoch,
        session=window.session,
        previous_sequence=numbers.previous,
        base_sequence=numbers.base,
        last_sequence=numbers.last,
        timestamp_us=1,
    )
    batch = InFlight(
        previous=Sequence(numbers.previous),
        base=Sequence(numbers.base),
        last=Sequence(numbers.last),
        count=count,
        payload=payload,
        tag=None,
    )
    window.add(base_sequence, batch)
    return batch


def window(last_sequence: int = -1) -> KafkaWindow:
    return KafkaWindow(producer_id=PRODUCER, epoch=1, last_sequence=last_sequence)


def sent(one: KafkaWindow) -> list[int]:
    found = []
    while (batch := one.next_to_send()) is not None:
        found.append(int(batch.base))
    return found


def kinds(decisions: list[Any]) -> list[type[Any]]:
    return [type(each) for each in decisions]


def test_batches_go_out_in_order_and_are_settled_by_their_numbers() -> None:
    one = window()
    first, second = put(one, 0), put(one, 2)
    assert sent(one) == [0, 2]
    assert one.on_stored(2, 3, 12, 0, False) == [Settled(second, 12, 0, False)]
    assert one.on_stored(0, 1, 10, 0, False) == [Settled(first, 10, 0, False)]
    assert one.in_flight == 0
    assert one.on_stored(0, 1, 10, 0, False) == []


def test_a_duplicate_at_a_known_place_is_settled_at_once() -> None:
    one = window(last_sequence=9)
    batch = put(one, 4)
    assert sent(one) == [4]
    assert one.on_stored(4, 5, 33, 0, True) == [Settled(batch, 33, 0, True)]


def test_a_duplicate_at_an_unknown_place_counts_only_after_a_fence() -> None:
    one = window(last_sequence=500)
    batch = put(one, 4)
    sent(one)
    assert one.on_stored(4, 5, -1, 0, True) == [Fence(False)]
    put(one, 501)
    assert sent(one) == [], "nothing goes out while a fence is wanted"
    assert one.on_fenced(500) == [Settled(batch, -1, 0, True)]
    assert sent(one) == [501]


def test_a_batch_with_numbers_from_an_old_view_goes_out_again_under_the_right_ones() -> None:
    """The producer has sent more than 2^31 records through another gateway. The loss that this
    prevents: the table takes the batch for an old one, and the client believes that it is stored.
    """
    one = window(last_sequence=99)
    batch = put(one, 100)
    assert sent(one) == [100]
    assert one.on_stored(100, 101, -1, 0, True) == [Fence(False)]
    assert one.on_fenced(SPAN + 99) == []
    assert sent(one) == [SPAN + 100]
    header = decode_header(batch.payload)
    assert (header.previous_sequence, header.base_sequence) == (SPAN + 99, SPAN + 100)
    assert one.on_stored(SPAN + 100, SPAN + 101, 7, 0, False) == [Settled(batch, 7, 0, False)]


def test_a_gap_fails_after_a_fence_and_waits_for_an_earlier_batch() -> None:
    one = window()
    first, later = put(one, 0), put(one, 6)
    assert sent(one) == [0, 6]
    error = OutOfOrderSequence("gap", last_sequence=-1)
    assert kinds(one.on_refused(6, 7, error)) == [Retry]
    one.rewind()
    assert sent(one) == [0, 6]
    one.on_stored(0, 1, 0, 0, True)
    assert one.in_flight == 1
    assert first.base == 0
    assert one.on_refused(6, 7, error) == [Fence(False)]
    assert one.on_fenced(1) == [Failed(later, error)]


def test_other_content_under_a_number_fails_after_a_fence() -> None:
    one = window(last_sequence=9)
    batch = put(one, 4)
    sent(one)
    error = SequenceConflict("other content")
    assert one.on_refused(4, 5, error) == [Fence(False)]
    assert one.on_fenced(9) == [Failed(batch, error)]


def test_what_is_in_doubt_goes_out_again_unchanged() -> None:
    one = window()
    put(one, 0)
    put(one, 2)
    assert sent(one) == [0, 2]
    assert kinds(one.on_refused(0, 1, Throttled("later", retry_after_ms=5))) == [Retry]
    one.on_stream_lost()
    assert sent(one) == [0, 2]
    assert kinds(one.on_refused(2, 3, Unavailable("away"))) == [Retry]


def test_an_answer_to_an_older_transmission_does_not_refuse() -> None:
    one = window()
    put(one, 0)
    sent(one)
    one.rewind()
    sent(one)
    assert one.on_refused(0, 1, MessageTooLarge("x", limit_bytes=1)) == []
    assert kinds(one.on_refused(0, 1, MessageTooLarge("x", limit_bytes=1))) == [Failed]


def test_masters_and_queues_that_move_are_followed() -> None:
    one = window()
    put(one, 0)
    sent(one)
    moved = NotMaster("no", term=2)
    assert one.on_refused(0, 1, moved) == [Moved(moved)]
    one.on_stream_lost()
    sent(one)
    elsewhere = QueueMoved("there", topic_id=1, queue_id=2, group_id=2)
    assert one.on_refused(0, 1, elsewhere) == [Elsewhere(elsewhere)]
    assert one.in_flight == 1


def test_a_final_refusal_fails_the_batch_alone() -> None:
    one = window()
    batch, other = put(one, 0), put(one, 2)
    sent(one)
    error = InvalidRequest("no")
    assert one.on_refused(0, 1, error) == [Failed(batch, error)]
    assert one.batches() == [other]


def test_the_end_leaves_nothing() -> None:
    one = window()
    batch = put(one, 0)
    error = Unavailable("over")
    assert one.end(error) == [Failed(batch, error)]
    assert one.in_flight == 0
    assert one.next_to_send() is None
