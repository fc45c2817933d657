"""The answer that is made from the log's list has the bytes of the first answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup.dropped_answers import answer_of, arrivals_of
from semel.protos.dropped import DROPPED
from tests.kit.id_group import OTHER, IdGroup
from tests.kit.state_log import KEY

MESSAGES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"d", b"e"])),
        st.sampled_from([b"1", b"2"]),
    ),
    min_size=1,
    max_size=8,
)


@given(
    keep_first=st.booleans(),
    batches=st.lists(
        st.tuples(MESSAGES, st.booleans(), st.sampled_from([KEY, OTHER]), st.sampled_from([1, 2])),
        min_size=2,
        max_size=6,
    ),
)
@settings(max_examples=60, deadline=None)
def test_both_answers_are_the_same_bytes(keep_first: bool, batches: list[Any]) -> None:
    group = IdGroup(keep_first=keep_first)
    given = []
    for messages, delayed, key, producer in batches:
        due_us = group.now_us + 1_000_000 if delayed else 0
        decision = group.produce_ids(messages, due_us=due_us, key=key, producer=producer)
        given.append(decision.checked)
    for decision, record in given:
        if record.dropped:
            assert answer_of(group.index, record.dropped) == decision.answer


def test_there_is_no_answer_without_the_places() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    group.index.skip_to(5)
    rows = np.array([(0, 0), (1, -1 - 3)], DROPPED).tobytes()
    assert arrivals_of(rows).tolist() == [0, 3]
    assert answer_of(group.index, rows[:16]) is not None
    group.index.freeze(5)
    group.index.maintain(0)
    assert answer_of(group.index, rows) is None
