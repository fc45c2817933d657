"""Acknowledgements with dropped messages: each handle gets its own outcome."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core.batching import Chunk, Outcome, Part, Rows
from semel.client.core.dropped_rows import DroppedRows, read_table
from semel.client.core.encoding import encode_part
from semel.client.core.sequences import InFlight, Settled
from semel.client.producer.futures import BulkFuture, SendFuture
from semel.client.producer.producer import stored_outcome
from semel.protos.batch import Codec
from semel.protos.columns import Columns
from semel.protos.dropped import ANSWER, Verdict
from semel.protos.errors import CorruptBatch, IdConflict
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, TopicId
from tests.unit.client.chunks import chunk_of

KEY = QueueKey(TopicId(5), QueueId(3))
BASE = 100


def table(rows: list[tuple[int, int, int, int, int]]) -> bytes:
    """(sequence, offset, due, queue, verdict) of each dropped message."""
    return np.array(rows, ANSWER).tobytes()


def sent(
    count: int,
    verdicts: dict[int, Verdict],
    *,
    positions: bool = False,
    trimmed: int = 0,
    again: bool = False,
) -> Chunk:
    """A chunk of one settled part; the queue has `trimmed` rows of it from before, and dropped
    `verdicts`, by place. `again`: the answer is that to its second transmission. The first message
    with the id of row n is at offset 1,000 + n of queue 7.
    """
    ids = [b"id %d" % row for row in range(count)]
    chunk = chunk_of([b"v"] * count, message_ids=ids)
    part = Part(chunk, KEY, 0, count - trimmed, 0)
    part.columns = Columns.from_arrow([b"v"] * (count - trimmed), message_ids=ids[trimmed:])
    numbers = np.arange(count) * 3 + BASE if positions else np.arange(count) + BASE
    if positions:
        part.positions = numbers[trimmed:]
    payload, base, last = encode_part(
        part,
        producer_id=ProducerId(9),
        epoch=1,
        session=1,
        previous_sequence=Sequence(int(numbers[trimmed]) - 1),
        codec=Codec.NONE,
    )
    part.count = count
    if positions:
        part.positions = numbers
    answer = [
        (int(numbers[row]), 1_000 + row, 0, 7, int(verdict))
        for row, verdict in sorted(verdicts.items())
    ]
    found = read_table(table(answer))
    chunk.parts = [part]
    batch = InFlight(
        previous=Sequence(BASE - 1),
        base=base,
        last=last,
        count=count - trimmed,
        payload=payload,
        tag=part,
    )
    batch.trimmed = trimmed
    part.outcome = stored_outcome(Settled(batch, 0, 4, again and bool(answer), found), part)
    return chunk


@given(
    st.integers(1, 12),
    st.dictionaries(st.integers(0, 11), st.sampled_from(Verdict)),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_handle_gets_its_own_outcome(
    count: int, drawn: dict[int, Verdict], positions: bool, trimmed: int, again: bool
) -> None:
    trimmed = min(trimmed, count - 1)
    verdicts = {row: verdict for row, verdict in drawn.items() if trimmed <= row < count}
    chunk = sent(count, verdicts, positions=positions, trimmed=trimmed, again=again)
    offset = 0
    for row in range(count):
        future = SendFuture(chunk, row)
        sequence = BASE + row * (3 if positions else 1)
        verdict = verdicts.get(row)
        if verdict is Verdict.CONFLICT:
            with pytest.raises(IdConflict) as caught:
                future.result()
            error = caught.value
            assert error.message_id == b"id %d" % row
            assert (error.queue_id, error.offset) == (7, 1_000 + row)
            assert isinstance(future.exception(), IdConflict)
            continue
        found = future.result()
        assert future.exception() is None
        assert found.sequence == sequence
        if verdict is Verdict.DUPLICATE:
            assert found[:3] == ("t", 7, 1_000 + row)
            assert found.duplicate
        elif row < trimmed:
            assert (found.offset, found.duplicate) == (-1, True)
        else:
            assert (found.queue, found.offset, found.duplicate) == (3, offset, False)
            offset += 1


@given(
    st.dictionaries(st.integers(0, 11), st.sampled_from(Verdict)),
    st.permutations(range(12)),
    st.booleans(),
)
def test_a_summary_counts_what_was_dropped_and_names_its_rows(
    verdicts: dict[int, Verdict], order: list[int], again: bool
) -> None:
    """The part holds the rows in another order than the call."""
    chunk = sent(12, verdicts, again=again)
    chunk.order = np.array(order, np.int64)
    turned: list[Rows | None] = [np.arange(12, dtype=np.int64)[::-1]]
    for numbers in (None, turned):
        summary = BulkFuture([(chunk, 0, 12)], numbers).result()
        rows = {
            verdict: sorted(
                order[place] if numbers is None else 11 - order[place]
                for place, each in verdicts.items()
                if each is verdict
            )
            for verdict in Verdict
        }
        assert summary.duplicate_rows.tolist() == rows[Verdict.DUPLICATE]
        assert summary.conflict_rows.tolist() == rows[Verdict.CONFLICT]
        assert summary.duplicates == len(rows[Verdict.DUPLICATE])
        assert summary.conflicts == len(rows[Verdict.CONFLICT])
        assert summary.stored == 12 - len(verdicts)
        assert chunk.told == bool(rows[Verdict.CONFLICT]) or numbers is not None


def test_rows_of_later_ranges_follow_those_of_the_earlier_ones() -> None:
    chunks = [sent(4, {1: Verdict.DUPLICATE}), sent(3, {2: Verdict.CONFLICT})]
    summary = BulkFuture([(chunk, 0, chunk.count) for chunk in chunks]).result()
    assert (summary.duplicate_rows.tolist(), summary.conflict_rows.tolist()) == ([1], [6])


def test_the_due_time_of_a_delayed_first_message_is_told() -> None:
    chunk = sent(1, {})
    assert chunk.parts is not None
    (part,) = chunk.parts
    found = read_table(table([(BASE, -1, 77, 2, Verdict.DUPLICATE)]))
    assert found is not None
    dropped = DroppedRows(np.array([0]), found, {})
    part.outcome = Outcome(base_offset=-1, base_sequence=BASE, dropped=dropped)
    metadata = SendFuture(chunk, 0).result()
    assert (metadata.queue, metadata.offset, metadata.due_us) == (2, -1, 77)
    assert metadata.duplicate


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        table([(1, 0, 0, 0, 3)]),
        table([(1, 0, 0, 0, 0)]),
        table([(2, 0, 0, 0, 1), (2, 0, 0, 0, 1)]),
        table([(2, 0, 0, 0, 1), (1, 0, 0, 0, 1)]),
    ],
)
def test_a_malformed_table_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read_table(data)
