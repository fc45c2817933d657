"""The checker's word on delayed messages: what is cancelled is delivered by no release, and what is
due is not cancelled."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.protos.batch import decode_header
from semel.protos.columns import Columns, encode_batch
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2
from tests.checking.delays import Delayed, DelayedBatch

REF = queue_ref(QueueKey(TopicId(7), QueueId(0)))
DUE_US = 1_000


@pytest.fixture
def delayed() -> Delayed:
    """Five messages wait in the batch of entry 3."""
    batch = encode_batch(
        Columns(values=pa.array([b"%d" % row for row in range(5)], pa.binary())),
        topic_id=7,
        queue_id=0,
        producer_id=5,
        epoch=1,
        session=1,
        previous_sequence=-1,
        base_sequence=0,
        last_sequence=4,
        timestamp_us=1,
        deliver_at_us=DUE_US,
    )
    found = Delayed()
    found.on_batch(DelayedBatch(decode_header(batch), batch, 3))
    return found


def cancel(delayed: Delayed, row: int, *, entry: int = 3, now_us: int = DUE_US - 1) -> str:
    record = control_pb2.CancelDelayed(
        queue=REF, due_us=DUE_US, ordinal=0, row=row, arrival=row, entry=entry
    )
    return delayed.cancel(record, now_us)


def release(delayed: Delayed, messages: int) -> list[range | str]:
    record = control_pb2.ReleaseDelayed(
        queue=REF, until_us=DUE_US, batches=1, messages=messages, below_ordinal=1
    )
    return [each if isinstance(each, str) else each[1] for each in delayed.release(record, DUE_US)]


def test_a_release_leaves_out_what_is_cancelled(delayed: Delayed) -> None:
    assert [cancel(delayed, row) for row in (0, 3)] == ["", ""]
    assert release(delayed, 3) == [range(1, 3), range(4, 5)]


def test_a_batch_whose_messages_are_all_cancelled_waits_no_more(delayed: Delayed) -> None:
    assert not any(cancel(delayed, row) for row in range(5))
    found = release(delayed, 0)
    assert len(found) == 1
    assert "0 waited with 0 that are not cancelled" in str(found[0])


def test_a_release_of_what_is_cancelled_is_found(delayed: Delayed) -> None:
    assert not cancel(delayed, 0)
    assert "1 waited with 4 that are not cancelled" in str(release(delayed, 5)[0])


def test_a_cancel_of_what_is_not_there_is_found(delayed: Delayed) -> None:
    assert "does not wait" in cancel(delayed, 5)
    assert "does not wait" in cancel(delayed, 1, entry=4)
    assert not cancel(delayed, 1)
    assert "is cancelled twice" in cancel(delayed, 1)
    release(delayed, 4)
    assert "does not wait" in cancel(delayed, 2)


def test_a_cancel_of_what_is_due_is_found(delayed: Delayed) -> None:
    assert cancel(delayed, 1, now_us=DUE_US).startswith("late: ")
