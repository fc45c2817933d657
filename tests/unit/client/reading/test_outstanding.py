"""What was given out and is not committed: spans against a simple model of a careful caller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.reading.outstanding import Outstanding, Span
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey, TopicId

A = QueueKey(TopicId(7), QueueId(0))
B = QueueKey(TopicId(7), QueueId(1))


def give(out: Outstanding, start: int, end: int, *, key: QueueKey = A, token: int = 1) -> Any:
    """What a puller does with rows `[start, end)`; the last message of them."""
    rows: Any = SimpleNamespace(topic="t", queue=key, token=token, position=lambda row: start + row)
    out.at(rows, 0).end = end
    return message(end - 1, key=key, token=token)


def message(offset: int, *, key: QueueKey = A, token: int = 1) -> Any:
    rows = SimpleNamespace(topic="t", queue=key, token=token)
    return SimpleNamespace(rows=rows, offset=offset, queue=key.queue_id, topic="t")


def span(start: int, end: int, *, key: QueueKey = A, token: int = 1) -> Span:
    return Span("t", key, token, start, end)


def test_spans_grow_with_what_is_given_out_and_shrink_with_what_is_committed() -> None:
    out = Outstanding()
    give(out, 5, 8)
    give(out, 0, 2, key=B)
    give(out, 8, 10)
    assert out.spans() == [span(5, 10), span(0, 2, key=B)]
    out.settle([span(5, 7)])
    assert out.spans() == [span(7, 10), span(0, 2, key=B)]
    out.settle([span(5, 6), span(0, 2, key=B)])
    assert out.spans() == [span(7, 10)], "committing less changes nothing"
    give(out, 10, 11)
    out.settle([span(7, 99)])
    assert out.spans() == []
    give(out, 20, 21)
    assert out.spans() == [span(20, 21)], "what lies between was trimmed away, or sought over"


def test_a_gap_is_committed_with_what_is_around_it() -> None:
    out = Outstanding()
    gap: Any = SimpleNamespace(topic="t", queue=A, token=1, end_offset=9)
    out.pass_over(gap, 5)
    assert out.spans() == [span(5, 9)], "though nothing was given out"
    give(out, 9, 10)
    assert out.spans() == [span(5, 10)]
    out.settle([span(5, 10)])
    gap.end_offset = 12
    out.pass_over(gap, 10)
    assert out.spans() == [span(10, 12)]


def test_two_locks_of_one_queue_are_two_spans() -> None:
    out = Outstanding()
    give(out, 0, 10, token=1)
    give(out, 0, 5, token=3)
    assert out.spans() == [span(0, 10, token=1), span(0, 5, token=3)]
    out.settle([span(0, 5, token=3)], [span(0, 1, token=1)])
    assert out.spans() == [], "that the lock is lost is told once, for all of it"
    give(out, 5, 6, token=4)
    assert out.spans() == [span(5, 6, token=4)]
    assert len(out._open[A]) == 1, "locks that came to nothing are not kept"


def test_what_is_given_out_again_after_a_seek_is_outstanding_again() -> None:
    out = Outstanding()
    give(out, 0, 10)
    give(out, 4, 6)
    assert out.spans() == [span(0, 6)]
    out.settle([span(0, 6)])
    give(out, 2, 3)
    assert out.spans() == [span(2, 3)]


def test_up_to_a_message_is_its_own_queue_under_its_own_token() -> None:
    out = Outstanding()
    give(out, 0, 10)
    give(out, 0, 10, key=B)
    assert out.up_to(message(3)) == [span(0, 4)]
    assert out.up_to(message(3, token=9)) == [span(4, 4, token=9)], "the broker will refuse it"
    out.settle([span(0, 8)])
    assert out.up_to(message(3)) == [span(4, 4)]
    assert out.processed_up_to(message(8)) == [span(8, 9)]


@pytest.mark.parametrize("offset", [3, 10])
def test_results_of_what_is_not_outstanding_are_not_stored(offset: int) -> None:
    out = Outstanding()
    give(out, 0, 10)
    out.settle([span(0, 4)])
    with pytest.raises(InvalidRequest, match="take messages anew"):
        out.processed_up_to(message(offset))
    with pytest.raises(InvalidRequest):
        out.processed_up_to(message(5, token=2))


def test_after_a_failure_everything_is_to_be_given_back_first() -> None:
    out = Outstanding()
    give(out, 0, 10)
    give(out, 3, 4, key=B)
    out.settle([span(0, 4)])
    assert not out.must_give_back
    out.give_back()
    assert out.must_give_back
    assert not out.in_doubt
    assert out.spans() == []
    assert out.back == [span(4, 10), span(3, 4, key=B)]
    out.give_back(in_doubt=True)
    assert out.in_doubt, "a failure in doubt is not forgotten by one that is not"
    out.give_back()
    assert out.in_doubt
    assert out.back == [span(4, 10), span(3, 4, key=B)]
    out.on_given_back()
    assert (out.must_give_back, out.in_doubt, out.back) == (False, False, [])


def test_what_a_seek_back_gives_out_again_is_committed_by_nothing_before_that() -> None:
    """Its notes, to retry or reject it, are void: a commit past it would lose it."""
    out = Outstanding()
    give(out, 0, 4, key=B)
    last = give(out, 5, 10)
    out.settle([span(5, 6)])
    out.on_seek("t", 0, 8)
    assert out.spans() == [span(0, 4, key=B), span(6, 8)]
    with pytest.raises(InvalidRequest, match="offset 9 of queue 0 of topic 't' is given out again"):
        out.up_to(last)
    assert out.up_to(message(7)) == [span(6, 8)]
    give(out, 8, 10)
    assert out.up_to(last) == [span(6, 10)]
    out.on_seek("t", 0, 2)
    assert out.spans() == [span(0, 4, key=B)], "also what was committed is given out again"
    give(out, 2, 3)
    assert out.spans()[1:] == [span(2, 3)]


def test_a_seek_forward_leaves_what_was_given_out() -> None:
    out = Outstanding()
    give(out, 5, 10)
    out.on_seek("t", 0, 20)
    out.on_seek("other", 0, 0)
    assert out.spans() == [span(5, 10)]
