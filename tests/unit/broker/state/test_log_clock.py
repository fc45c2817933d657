"""Log time under jumping wall clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state import LogClock, VoterClocks, majority_time_us

HOUR = 3_600_000_000


def test_starts_from_the_later_of_log_and_wall() -> None:
    assert LogClock(5, wall_us=9, monotonic_us=0).now(wall_us=9, monotonic_us=0) == 9
    assert LogClock(9, wall_us=5, monotonic_us=0).now(wall_us=5, monotonic_us=0) == 9


def test_follows_the_wall_clock() -> None:
    clock = LogClock(0, wall_us=HOUR, monotonic_us=0)
    assert clock.now(wall_us=HOUR + 1_000, monotonic_us=1_000) == HOUR + 1_000


def test_a_jump_bends_it_by_one_percent() -> None:
    clock = LogClock(0, wall_us=HOUR, monotonic_us=0)
    assert clock.now(wall_us=2 * HOUR, monotonic_us=1_000_000) == HOUR + 1_010_000
    assert clock.now(wall_us=0, monotonic_us=2_000_000) == HOUR + 2_000_000


@given(st.lists(st.tuples(st.integers(-2 * HOUR, 2 * HOUR), st.integers(-10, HOUR))))
def test_never_falls_and_keeps_its_speed(steps: list[tuple[int, int]]) -> None:
    clock = LogClock(HOUR, wall_us=0, monotonic_us=0)
    wall = monotonic = before = 0
    before = clock.now(wall_us=0, monotonic_us=0)
    assert before == HOUR
    for jump, elapsed in steps:
        wall += jump
        now = clock.now(wall_us=wall, monotonic_us=monotonic + elapsed)
        passed = max(0, elapsed)
        monotonic += passed
        assert before + int(passed * 0.99) <= now <= before + int(passed * 1.01)
        before = now


def test_majority_time_is_one_that_most_clocks_have_passed() -> None:
    assert majority_time_us([50, 10, 40], 3) == 40
    assert majority_time_us([50, 10], 3) == 10
    assert majority_time_us([7], 1) == 7
    assert majority_time_us([1, 2, 3, 4, 5], 5) == 3


def test_one_wrong_clock_carries_nobody_along() -> None:
    for own, other in ((HOUR, 2 * HOUR), (2 * HOUR, HOUR)):
        clocks = VoterClocks()
        clocks.on_vote(2, term=5, clock_us=other, monotonic_us=100)
        now = clocks.now([1, 2, 3], term=5, wall_us=own + 50, monotonic_us=150)
        assert now == HOUR + 50


def test_all_votes_of_the_election_count_and_no_other_ones() -> None:
    clocks = VoterClocks()
    clocks.on_vote(2, term=5, clock_us=HOUR, monotonic_us=0)
    clocks.on_vote(3, term=5, clock_us=3 * HOUR, monotonic_us=0)
    assert clocks.now([1, 2, 3], term=5, wall_us=2 * HOUR, monotonic_us=0) == 2 * HOUR
    clocks.on_vote(2, term=6, clock_us=HOUR, monotonic_us=0)
    assert clocks.now([1, 2, 3], term=6, wall_us=9 * HOUR, monotonic_us=0) == HOUR


def test_voters_that_tell_no_clock_leave_the_own_one() -> None:
    clocks = VoterClocks()
    clocks.on_vote(2, term=5, clock_us=0, monotonic_us=0)
    assert clocks.now([1, 2, 3], term=5, wall_us=HOUR, monotonic_us=0) == HOUR
    assert clocks.now([1], term=5, wall_us=HOUR, monotonic_us=0) == HOUR
