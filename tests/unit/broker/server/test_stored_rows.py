"""A message that is known by its id is found among the batches that may hold it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from semel.broker.server.stored_rows import Candidate, read_row
from semel.broker.state import Extent
from semel.protos.batch import BROKER_HEADER_BYTES
from tests.kit.cancelling import CancelGroup
from tests.kit.state_log import KEY

EARLY_US, LATE_US = 5_000_000, 6_000_000


def released(base_offset: int, count: int, position: int, length: int) -> Candidate:
    """A batch of one entry, of which all was released in the same moment."""
    extent = Extent(base_offset, count, 0, 109, position, length, 9_000_000)
    return Candidate(
        queue_key=KEY,
        entry=109,
        position=position,
        length=length,
        first_row=0,
        count=count,
        extent=extent,
        ordinal=-1,
    )


def test_the_message_that_was_due_then_is_found_and_not_an_older_one_with_its_id() -> None:
    """An entry that came with a move holds batches of several entries, and a window that has left
    an id behind takes it again."""
    group = CancelGroup()
    older = group.batch([(b"a", b"1"), (b"b", b"2")], due_us=EARLY_US)
    newer = group.batch([(b"c", b"3"), (b"a", b"4")], due_us=LATE_US)
    stored = [bytes(BROKER_HEADER_BYTES) + each for each in (older, newer)]
    log: Any = SimpleNamespace(read_record=lambda _index, position, _length: stored[position])
    among = [released(10 + 2 * at, 2, at, len(stored[at])) for at in range(2)]

    def offset(message_id: bytes, due_us: int) -> int | None:
        found = read_row(log, among, message_id, due_us)
        return None if found is None else found.offset

    assert offset(b"a", EARLY_US) == 10
    assert offset(b"a", LATE_US) == 13
    assert offset(b"c", LATE_US) == 12
    assert offset(b"d", LATE_US) is None
    assert offset(b"b", LATE_US) == 11, "nothing has this time: the only one with the id"
