"""The window of one peer, and its walk through the three states."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.broker.raft import RaftConfig
from semel.broker.raft.progress import Progress, ProgressState

CONFIG = RaftConfig(inflight_bytes_max=1000, inflight_messages_max=3)


def replicating() -> Progress:
    progress = Progress(next_index=11, now_ms=0)
    progress.on_acknowledged(10)
    progress.become_replicate()
    return progress


def test_a_probe_waits_for_its_answer() -> None:
    progress = Progress(next_index=11, now_ms=0)
    assert progress.may_send(CONFIG)
    progress.on_sent(12, 200)
    assert not progress.may_send(CONFIG)
    assert progress.next_index == 11
    progress.become_probe(7)
    assert progress.may_send(CONFIG)


def test_the_window_counts_bytes() -> None:
    progress = replicating()
    progress.on_sent(11, 999)
    assert progress.may_send(CONFIG)
    progress.on_sent(12, 999)
    assert not progress.may_send(CONFIG)
    assert progress.on_acknowledged(11)
    assert progress.inflight_bytes == 999
    assert progress.may_send(CONFIG)


def test_the_window_counts_messages() -> None:
    progress = replicating()
    for index in (11, 12, 13):
        assert progress.may_send(CONFIG)
        progress.on_sent(index, 1)
    assert not progress.may_send(CONFIG)
    progress.on_acknowledged(12)
    assert progress.may_send(CONFIG)


def test_an_acknowledgement_in_the_middle_of_an_append_frees_nothing() -> None:
    progress = replicating()
    progress.on_sent(15, 500)
    assert progress.on_acknowledged(13)
    assert progress.inflight_bytes == 500
    assert not progress.on_acknowledged(12)
    assert progress.match_index == 13


def test_going_back_empties_the_window() -> None:
    progress = replicating()
    progress.on_sent(15, 500)
    progress.become_probe(11)
    assert (progress.inflight_bytes, len(progress.inflight)) == (0, 0)
    with pytest.raises(AssertionError):
        progress.become_probe(10)


def test_nothing_is_sent_to_a_peer_that_pulls_a_snapshot() -> None:
    progress = replicating()
    progress.become_snapshot()
    assert not progress.may_send(CONFIG)
    with pytest.raises(AssertionError):
        progress.on_sent(11, 1)


class ProgressMachine(RuleBasedStateMachine):
    """Any order of events keeps the invariants of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(next_index=5, now_ms=0)
        self.highest_match = 0

    @precondition(lambda self: self.progress.may_send(CONFIG))
    @rule(entries=st.integers(1, 5), size=st.integers(1, 700))
    def send(self, entries: int, size: int) -> None:
        self.progress.on_sent(self.progress.next_index + entries - 1, size)

    @rule(index=st.integers(0, 60))
    def acknowledge(self, index: int) -> None:
        rose = self.progress.on_acknowledged(index)
        assert rose == (index > self.highest_match)
        self.highest_match = max(self.highest_match, index)

    @rule(back=st.integers(1, 9))
    def probe(self, back: int) -> None:
        self.progress.become_probe(self.progress.match_index + back)

    @rule()
    def replicate(self) -> None:
        self.progress.become_replicate()

    @rule()
    def snapshot(self) -> None:
        self.progress.become_snapshot()

    @invariant()
    def holds(self) -> None:
        progress = self.progress
        assert progress.match_index == self.highest_match < progress.next_index
        assert progress.inflight_bytes == sum(size for _, size in progress.inflight)
        assert not progress.inflight or progress.state is ProgressState.REPLICATE
        ends = [end for end, _ in progress.inflight]
        assert ends == sorted(set(ends))
        assert not ends or progress.match_index < ends[0] <= ends[-1] == progress.next_index - 1


TestProgressMachine = ProgressMachine.TestCase


def test_a_peer_that_lost_its_disk_is_probed_from_the_end_and_not_counted() -> None:
    progress = replicating()
    progress.acked_round = 7
    assert progress.on_non_counting(read_round=8, last_index=10)
    assert (progress.match_index, progress.next_index) == (0, 10)
    assert (progress.counted_match, progress.counted_round) == (0, 0)
    assert progress.state is ProgressState.PROBE
    assert not progress.on_non_counting(read_round=9, last_index=12), "no news: it is being probed"
    progress.on_acknowledged(10)
    assert (progress.match_index, progress.counted_match) == (10, 0)


def test_only_a_round_that_began_later_makes_a_non_counting_peer_count_again() -> None:
    progress = replicating()
    progress.on_non_counting(read_round=8, last_index=10)
    progress.on_non_counting(read_round=9, last_index=10)
    assert not progress.on_counting(0)
    assert not progress.on_counting(9), "it may have been on its way before the loss"
    assert progress.on_counting(10)
    progress.on_acknowledged(10)
    assert progress.counted_match == 10


def test_a_new_peer_has_shown_nothing() -> None:
    progress = Progress(next_index=11, now_ms=5)
    found = {name: getattr(progress, name) for name in Progress.__slots__}
    assert (len(found.pop("inflight")), found.pop("state")) == (0, ProgressState.PROBE)
    assert found == {
        "acked_round": 0,
        "counts": True,
        "inflight_bytes": 0,
        "last_contact_ms": 5,
        "match_index": 0,
        "non_counting_round": 0,
        "next_index": 11,
        "probe_sent": False,
    }


def test_the_window_is_full_at_its_last_byte() -> None:
    progress = replicating()
    progress.on_sent(11, 999)
    assert progress.may_send(CONFIG) is True
    progress.on_acknowledged(11)
    progress.on_sent(12, 1000)
    assert progress.may_send(CONFIG) is False


def test_old_news_is_no_news() -> None:
    progress = replicating()
    assert progress.on_acknowledged(10) is False
    assert progress.on_acknowledged(11) is True
    assert (progress.match_index, progress.next_index) == (11, 12)
    progress.on_sent(15, 10)
    assert progress.on_acknowledged(13) is True
    assert progress.next_index == 16


@pytest.mark.parametrize(("last_index", "next_index"), [(0, 1), (1, 1), (2, 2), (15, 15)])
def test_a_peer_that_lost_its_disk_starts_anew_and_is_counted_nowhere(
    last_index: int, next_index: int
) -> None:
    progress = replicating()
    progress.acked_round = 6
    assert (progress.counted_match, progress.counted_round) == (10, 6)
    progress.on_sent(11, 500)
    assert progress.on_non_counting(7, last_index) is True
    assert (progress.match_index, progress.acked_round, progress.counts) == (0, 0, False)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, next_index)
    assert (progress.inflight_bytes, progress.non_counting_round) == (0, 7)
    progress.on_acknowledged(3)
    progress.acked_round = 7
    assert (progress.counted_match, progress.counted_round) == (0, 0)
    assert progress.on_non_counting(8, last_index) is False
    assert (progress.non_counting_round, progress.match_index) == (8, 3)
    assert progress.on_counting(8) is False
    assert progress.on_counting(9) is True
    assert (progress.counted_match, progress.counted_round) == (3, 7)


def test_what_a_non_counting_peer_had_is_forgotten_to_the_last_entry() -> None:
    progress = replicating()
    with pytest.raises(AssertionError):
        progress.forget()
    progress.on_non_counting(1, 5)
    progress.on_acknowledged(3)
    progress.forget()
    assert progress.match_index == 0
