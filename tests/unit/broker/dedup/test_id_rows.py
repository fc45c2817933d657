"""Each message of a batch is kept, a duplicate or a conflict, as a loop over them would decide."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.dedup.id_places import Found
from semel.broker.dedup.id_rows import Known, Prints, RowsDecision, decide_rows
from semel.broker.dedup.sorted_ids import Hits
from semel.protos.dropped import DROPPED, Dropped, Verdict, read_answer

BASE = 500
FIRST = 1_000
ARRIVAL = 40


def prints_of(messages: list[tuple[int | None, int]]) -> Prints:
    """Messages are (id, content); no id is None. First halves of keys collide."""
    rows = [row for row, (each, _) in enumerate(messages) if each is not None]
    keys = [(each // 2, each) for each, _ in messages if each is not None]
    digests = [content for each, content in messages if each is not None]
    return Prints(
        np.array(rows, np.int64),
        np.array(keys, np.uint64).reshape(-1, 2),
        np.array(digests, np.uint64),
    )


def known_of(prints: Prints, stored: dict[int, int]) -> Known:
    """`stored` has the content by id; an even id is at offset 10 times itself of queue 8, an odd
    one was delayed until itself."""
    ids = prints.keys[:, 1].tolist()
    rows = [row for row, each in enumerate(ids) if each in stored]
    found = [ids[row] for row in rows]
    digests = np.array([stored[each] for each in found], np.uint64)
    hits = Hits(np.array(rows, np.int64), digests, np.array(found, np.uint64))
    return Known(
        hits,
        Found(
            np.full(len(rows), 8),
            np.array([-1 if each % 2 else 10 * each for each in found], np.int64),
            np.array([each if each % 2 else 0 for each in found], np.int64),
            np.zeros(len(rows), np.int64),
        ),
    )


def plainly(
    messages: list[tuple[int | None, int]],
    stored: dict[int, int],
    *,
    due_us: int,
    keep_first: bool,
) -> tuple[list[bool], list[Dropped]]:
    """The same decision by a loop."""
    kept, dropped, offset = [], [], BASE
    mine: dict[int, tuple[int, int]] = {}
    for row, (each, content) in enumerate(messages):
        if each is not None and each in stored:
            same = keep_first or stored[each] == content
            place = (-1, each, 8) if each % 2 else (10 * each, 0, 8)
        elif each is not None and each in mine:
            first_content, first_offset = mine[each]
            same = keep_first or first_content == content
            place = (-1 if due_us else first_offset, due_us, 3)
        else:
            if each is not None:
                mine[each] = content, offset
            kept.append(True)
            offset += 1
            continue
        kept.append(False)
        verdict = Verdict.DUPLICATE if same else Verdict.CONFLICT
        dropped.append(Dropped(FIRST + row, place[0], place[1], place[2], verdict))
    return kept, dropped


def decide(
    messages: list[tuple[int | None, int]],
    stored: dict[int, int],
    *,
    due_us: int = 0,
    keep_first: bool = False,
) -> RowsDecision:
    prints = prints_of(messages)
    return decide_rows(
        prints,
        known_of(prints, stored),
        np.arange(FIRST, FIRST + len(messages)),
        queue_id=3,
        base_offset=BASE,
        next_arrival=ARRIVAL,
        due_us=due_us,
        keep_first=keep_first,
    )


MESSAGES = st.lists(st.tuples(st.none() | st.integers(0, 12), st.integers(0, 2)), max_size=30)


@given(
    MESSAGES,
    st.dictionaries(st.integers(0, 12), st.integers(0, 2), max_size=6),
    st.sampled_from([0, 77]),
    st.booleans(),
)
def test_rows_are_decided_as_by_a_loop(
    messages: list[tuple[int | None, int]], stored: dict[int, int], due_us: int, keep_first: bool
) -> None:
    found = decide(messages, stored, due_us=due_us, keep_first=keep_first)
    kept, dropped = plainly(messages, stored, due_us=due_us, keep_first=keep_first)
    assert found.count == sum(kept)
    assert (found.kept is None) == all(kept)
    if found.kept is not None:
        assert found.kept.tolist() == kept
    assert read_answer(found.answer) == dropped
    assert found.duplicates == sum(each.verdict is Verdict.DUPLICATE for each in dropped)
    assert found.conflicts == len(dropped) - found.duplicates
    ids = [row for row, (each, _) in enumerate(messages) if each is not None]
    assert [ids[at] for at in found.ids.tolist()] == [row for row in ids if kept[row]]


def test_the_log_says_which_message_was_the_first() -> None:
    found = decide([(9, 0), (4, 1), (5, 9), (4, 2), (None, 0), (8, 3), (8, 3)], {5: 9})
    logged = np.frombuffer(found.logged, DROPPED)
    assert logged["sequence"].tolist() == [1_002, 1_003, 1_006]
    assert logged["first"].tolist() == [5, -1 - (ARRIVAL + 1), ARRIVAL + 2]


def test_a_batch_without_ids_is_kept_whole() -> None:
    found = decide([(None, 1), (None, 1)], {})
    assert (found.count, found.kept, found.logged) == (2, None, b"")
