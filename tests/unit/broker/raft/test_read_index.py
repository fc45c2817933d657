"""Reads wait for a round that starts after them."""

from __future__ import annotations

from semel.broker.raft import ReadState
from semel.broker.raft.read_index import ReadIndex


def test_a_round_confirms_the_reads_before_it_and_no_later_ones() -> None:
    reads = ReadIndex()
    assert not reads.wants_round
    reads.add(1, 10)
    assert reads.wants_round
    first = reads.start_round()
    assert (first, reads.round) == (1, 1), "0 is no round: an answer without one carries it"
    reads.add(2, 11)
    assert not reads.wants_round, "one round at a time"
    assert reads.take(first) == [ReadState(context=1, index=10)]
    assert reads.wants_round
    assert reads.take(first) == []
    assert reads.take(reads.start_round()) == [ReadState(context=2, index=11)]


def test_a_later_round_confirms_earlier_reads_too() -> None:
    reads = ReadIndex()
    reads.add(1, 10)
    reads.start_round()
    reads.add(2, 11)
    second = reads.start_round()
    assert [read.context for read in reads.take(second)] == [1, 2]


def test_early_reads_wait_for_an_entry_of_the_own_term() -> None:
    reads = ReadIndex()
    reads.add(1, None)
    assert not reads.wants_round
    early = reads.start_round()
    reads.on_own_commit(7)
    assert reads.take(early) == []
    assert reads.take(reads.start_round()) == [ReadState(context=1, index=7)]


def test_after_a_stop_no_answer_counts_that_may_be_older() -> None:
    reads = ReadIndex()
    reads.add(1, 10)
    stale = reads.start_round()
    reads.distrust()
    assert reads.take(stale) == []
    assert reads.wants_round
    assert reads.take(reads.start_round()) == [ReadState(context=1, index=10)]


def test_lost_mastership_fails_every_pending_read_once() -> None:
    reads = ReadIndex()
    reads.add(1, None)
    reads.add(2, 5)
    reads.start_round()
    assert reads.fail() == [1, 2]
    assert reads.fail() == []
    assert reads.take(99) == []
    assert not reads.wants_round
