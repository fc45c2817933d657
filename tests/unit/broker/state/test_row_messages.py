"""Rows of the sequence table as producers get them with the reply to a FENCE."""

from __future__ import annotations

from semel.broker.state.apply.producers import row_message
from tests.kit.id_group import IdGroup
from tests.kit.state_log import KEY


def test_a_producer_learns_which_of_its_batches_lack_messages() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    group.produce_ids([(b"c", b"3")])
    (row,) = [row for row in group.state.producers.rows(KEY) if row.producer_id == 1]
    found = row_message(row).window
    assert [(entry.base_sequence, entry.last_sequence) for entry in found] == [
        (0, 0),
        (1, 2),
        (3, 3),
    ]
    assert [entry.dropped for entry in found] == [False, True, False]
    assert [entry.base_offset for entry in found] == [0, -1, 2]
