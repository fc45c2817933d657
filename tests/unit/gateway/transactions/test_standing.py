"""What a transactional producer may do follows from the row of its id."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from semel.gateway.transactions.numbers import epoch_of, producer_id_of
from semel.gateway.transactions.standing import (
    Producer,
    Row,
    Standing,
    refusal,
    repeated_end,
    standing_of,
)

OWN = Producer("booking", producer_id_of("booking"), 7)


def row(epoch: tuple[int, int], begun: tuple[int, int], attempt: int = 0) -> Row:
    return Row(epoch=epoch_of(*epoch), begun_epoch=epoch_of(*begun), attempt=attempt)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Row(), Standing.UNKNOWN),
        (row((7, 0), (7, 0)), Standing.ENDED),
        (row((7, 0), (7, 1), attempt=3), Standing.ONGOING),
        (row((7, 0), (7, 1)), Standing.LOST),
        (row((7, 0), (7, 2), attempt=4), Standing.LOST),
        (row((7, 3), (7, 3)), Standing.ENDED),
        (row((7, 3), (8, 0), attempt=5), Standing.FENCED),
        (row((8, 0), (8, 0)), Standing.FENCED),
        (Row(begun_epoch=epoch_of(7, 0), attempt=1), Standing.FENCED),
        (row((7 + 2**15, 0), (7 + 2**15, 0)), Standing.ENDED),
    ],
)
def test_the_row_tells_how_far_it_is(known: Row, expected: Standing) -> None:
    assert standing_of(known, OWN) is expected


def test_another_producers_id_is_not_known() -> None:
    assert standing_of(row((7, 0), (7, 0)), Producer("booking", 1, 7)) is Standing.UNKNOWN


def test_only_two_standings_let_a_client_go_on() -> None:
    free = {each for each in Standing if refusal(each) is ErrorCode.none}
    assert free == {Standing.ENDED, Standing.ONGOING}


@pytest.mark.parametrize(
    ("step", "committed", "code"),
    [
        (0, False, ErrorCode.none),
        (0, True, ErrorCode.invalid_txn_state),
        (1, True, ErrorCode.none),
        (1, False, ErrorCode.invalid_txn_state),
        (2, False, ErrorCode.none),
        (2, True, ErrorCode.invalid_txn_state),
    ],
)
def test_an_end_that_is_sent_again_hears_what_became_of_it(
    step: int, committed: bool, code: ErrorCode
) -> None:
    assert repeated_end(row((7, step), (7, step)), committed) is code
