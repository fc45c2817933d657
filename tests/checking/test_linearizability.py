"""The second checker passes what can be explained and catches every planted lie."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checking.linearizability import (
    Append,
    LockModel,
    NotLinearizable,
    Operation,
    Saw,
    check_early,
    check_offsets,
    linearize,
)


def op(began: float, ended: float | None, client: str, what: str, **fields: object) -> Operation:
    until = {} if ended is None else {"ended_s": ended}
    return Operation(client=client, what=what, began_s=began, fields=fields, **until)


GOOD = [
    op(0, 1, "a", "acquire", token=1, committed=-1),
    op(1, 2, "b", "refused", owner="a"),
    op(2, 3, "a", "commit", token=1, offset=5),
    op(2.5, 3.5, "b", "describe", token=1, owner="a", committed=5),
    op(4, 5, "a", "behind", token=1, offset=3),
    op(4, 5, "a", "renewed", token=1),
    op(5, 6, "a", "release", token=1),
    op(6, 7, "b", "acquire", token=2, committed=5),
    op(7, 8, "a", "lost", token=1, offset=9),
    op(7, 8, "a", "unrenewed", token=1),
    op(8, 9, "b", "commit", token=2, offset=6),
]


def test_a_true_history_passes() -> None:
    linearize(LockModel(), GOOD)
    check_early(GOOD, 0.5)


def test_a_lock_may_end_by_its_session() -> None:
    linearize(LockModel(), [GOOD[0], op(9, 10, "b", "acquire", token=2, committed=-1)])


def test_an_operation_without_an_answer_may_happen_late_or_never() -> None:
    late = [
        op(0, None, "a", "acquire"),
        op(1, 2, "b", "acquire", token=1, committed=-1),
        op(3, 4, "c", "describe", token=2, owner="a", committed=-1),
    ]
    linearize(LockModel(), late)
    linearize(LockModel(), late[:2])


@pytest.mark.parametrize(
    ("lie", "planted"),
    [
        ("two members hold one token", op(1.1, 1.2, "b", "acquire", token=1, committed=-1)),
        ("a token is skipped", op(6.1, 6.9, "c", "acquire", token=4, committed=5)),
        ("a stale owner's commit counts", op(8.2, 8.4, "a", "commit", token=1, offset=6)),
        ("a commit goes back", op(9, 10, "b", "commit", token=2, offset=2)),
        ("a commit is forgotten", op(9, 10, "c", "acquire", token=3, committed=5)),
        ("a stale node shows the old owner", op(9, 10, "c", "refused", owner="a")),
        (
            "a stale node shows the old state",
            op(9, 10, "c", "describe", token=1, owner="a", committed=5),
        ),
        ("a refused commit is no refusal", op(9, 10, "b", "behind", token=2, offset=6)),
        ("a stale master renews", op(9, 10, "a", "renewed", token=1)),
        ("progress from nowhere", op(9, 10, "c", "describe", token=2, owner="b", committed=8)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_planted_lie_is_caught(lie: str, planted: Operation) -> None:
    with pytest.raises(NotLinearizable):
        linearize(LockModel(), [*GOOD, planted])


def test_a_lock_that_ends_too_early_is_caught() -> None:
    grants = [
        op(0, 0.1, "a", "acquire", token=1, committed=-1),
        op(0.2, 0.3, "b", "acquire", token=2, committed=-1),
    ]
    linearize(LockModel(), grants)
    with pytest.raises(NotLinearizable, match="two owners"):
        check_early(grants, 0.7)
    with pytest.raises(NotLinearizable, match="two owners"):
        check_early([*grants, op(0.15, 0.2, "a", "renewed", token=1)], 0.2)
    check_early([*grants, op(0.1, None, "a", "release", token=1)], 0.7)
    check_early(grants, 0.2)


def test_the_search_is_quick_among_many_unanswered_operations() -> None:
    chosen = random.Random(1)
    history = []
    for token in range(1, 401):
        clock = float(token)
        client = f"m{chosen.randrange(3)}"
        if chosen.random() < 0.2:
            history.append(op(clock, None, client, "acquire"))
        history.append(op(clock, clock + 0.5, client, "acquire", token=token, committed=-1))
    linearize(LockModel(), history)


def appends(count: int) -> list[Append]:
    return [Append(offset=at, began_s=at, ended_s=at + 1.5) for at in range(count)]


def test_true_offsets_pass() -> None:
    check_offsets(
        [*appends(3), Append(offset=3, began_s=0.5)],
        [
            Saw(end=0, began_s=0, ended_s=1),
            Saw(end=2, began_s=1, ended_s=3),
            Saw(end=4, began_s=5, ended_s=6),
            Saw(end=2, began_s=2, ended_s=9, exact=False),
        ],
    )


@pytest.mark.parametrize(
    ("lie", "written", "seen"),
    [
        ("a stale end", appends(4), [Saw(end=1, began_s=5, ended_s=6)]),
        ("an end that nobody had sent", appends(4), [Saw(end=4, began_s=0, ended_s=1)]),
        ("an end beyond the log", appends(4), [Saw(end=5, began_s=5, ended_s=6)]),
        (
            "an end that goes back",
            [Append(offset=0, began_s=0)],
            [Saw(end=1, began_s=1, ended_s=2), Saw(end=0, began_s=3, ended_s=4)],
        ),
        (
            "messages in another order than acknowledged",
            [
                Append(offset=0, began_s=5, ended_s=6),
                Append(offset=1, began_s=0, ended_s=1),
            ],
            [],
        ),
        ("an offset twice", [*appends(2), Append(offset=1, began_s=5, ended_s=6)], []),
        ("a hole", [Append(offset=1, began_s=0, ended_s=1)], []),
        (
            "a delivery before the message",
            appends(4),
            [Saw(end=4, began_s=0, ended_s=1, exact=False)],
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_planted_lie_about_offsets_is_caught(
    lie: str, written: list[Append], seen: list[Saw]
) -> None:
    with pytest.raises(NotLinearizable):
        check_offsets(written, seen)


class EndModel:
    """A queue as the search sees it, to compare with the direct answer."""

    initial = 0

    def step(self, state: int, operation: Operation) -> Iterable[int]:
        if operation.what == "append":
            return (state + 1,) if state == operation.fields["offset"] else ()
        return (state,) if state == operation.fields["end"] else ()

    def too_late(self, state: int, operation: Operation) -> bool:
        return operation.what == "read" and operation.fields["end"] < state


moments = st.integers(0, 12)


@given(
    spans=st.lists(st.tuples(moments, moments, st.booleans()), min_size=1, max_size=5),
    reads=st.lists(st.tuples(moments, moments, st.integers(0, 5)), max_size=4),
)
def test_the_search_and_the_direct_answer_agree(
    spans: list[tuple[int, int, bool]], reads: list[tuple[int, int, int]]
) -> None:
    written = [
        Append(offset=at, began_s=min(a, b), **({"ended_s": max(a, b)} if known else {}))
        for at, (a, b, known) in enumerate(spans)
    ]
    seen = [Saw(end=end, began_s=min(a, b), ended_s=max(a, b)) for a, b, end in reads]
    # All appends stand in the log, so each has happened by the end of time.
    operations = [
        Operation(
            client="p",
            what="append",
            began_s=one.began_s,
            ended_s=min(one.ended_s, 1e9),
            fields={"offset": one.offset},
        )
        for one in written
    ] + [
        Operation(
            client="r",
            what="read",
            began_s=one.began_s,
            ended_s=one.ended_s,
            fields={"end": one.end},
        )
        for one in seen
    ]
    try:
        check_offsets(written, seen)
        direct = True
    except NotLinearizable:
        direct = False
    try:
        linearize(EndModel(), operations)
        searched = True
    except NotLinearizable:
        searched = False
    assert direct == searched
