"""What `semel verify` expects a producer's window to remember."""

from __future__ import annotations

from semel.broker.state.verify.moved_tables import Entry, window_problems

FIRST: Entry = (0, 99, 0, 100, 7)
NEWEST: Entry = (100, 299, 100, 200, 8)


def problems(window: list[Entry], log_start_offset: int) -> list[str]:
    stored = {5: [entry for entry in (FIRST, NEWEST) if entry[2] + entry[3] > log_start_offset]}
    return list(window_problems({5: window}, stored, log_start_offset, {}))


def test_a_window_that_lacks_the_newest_batch_is_found() -> None:
    assert problems([FIRST, NEWEST], 0) == []
    assert problems([FIRST], 0) == [
        "the window of producer 5 does not remember its newest batch, 100 to 299 at offset 100"
    ]


def test_records_that_are_deleted_up_to_the_middle_of_the_newest_batch_are_no_problem() -> None:
    assert problems([FIRST, NEWEST], 100) == []
    assert problems([FIRST, NEWEST], 250) == []
    assert problems([FIRST, NEWEST], 300) == []
