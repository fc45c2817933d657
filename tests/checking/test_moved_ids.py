"""The checker's word on ids that move: a good move passes, each way to spoil one is found."""

from __future__ import annotations

from typing import Any

from tests.checking.moved_ids import (
    Known,
    Message,
    MovedId,
    MovesOfIds,
    Place,
    Source,
    Taken,
    judge_moved,
)

JOB = ((7, 0), 1)
KNOWN = [Known(Message(b"%d" % at, b"v"), Place(0, at, 0)) for at in range(4)]
OTHER = Known(Message(b"x", b"v"), Place(1, 0, 0))


def problems(
    moved: list[Known], *, covered: range = range(10, 15), left: int = 0, cancelled: Any = ()
) -> list[str]:
    """The source had four messages of the queue and one of another, from arrival 10 on."""
    source = MovesOfIds(sealed={JOB: dict(enumerate(KNOWN, 10))}, left={JOB: left})
    ids = [MovedId(*each) for each in moved]
    target = MovesOfIds(taken=[Taken(5, JOB, 1, covered, ids)], activated=[JOB])
    window = Source(10, [*KNOWN, OTHER], dict.fromkeys(cancelled, 3))
    return list(judge_moved({1: source, 2: target}, {1: {7: [window]}, 2: {}}, {}))


def test_a_good_move_passes() -> None:
    assert problems(KNOWN) == []
    assert problems(KNOWN[2:], covered=range(12, 15), left=12) == []


def test_lost_ids_are_found() -> None:
    assert "has lost 1 ids" in problems(KNOWN[:3])[0]
    assert "has lost 2 ids" in problems(KNOWN[2:], left=9)[0]


def test_ids_of_another_place_or_order_are_found() -> None:
    assert "did not arrive at the source" in problems(KNOWN[::-1])[0]
    assert "did not arrive at the source" in problems(KNOWN, covered=range(11, 15))[0]
    elsewhere = KNOWN[0]._replace(place=Place(0, 9, 0))
    assert "did not arrive at the source" in problems([elsewhere, *KNOWN[1:]])[0]


def test_ids_of_another_queue_are_found() -> None:
    assert "is not the queue's" in problems([*KNOWN, OTHER])[0]


def test_the_id_of_a_cancelled_message_is_found() -> None:
    assert "and it was cancelled" in problems(KNOWN, cancelled={11})[0]
