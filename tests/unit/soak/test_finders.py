"""The order in which seeds with a planted bug are tried."""

from __future__ import annotations

from tests.world.finders import FINDERS, finder_first


def test_the_seed_that_found_it_before_is_the_first_and_all_others_follow() -> None:
    finder = FINDERS["dates_marks_early"]
    seeds = range(finder + 3)
    ordered = finder_first(seeds, "dates_marks_early")
    assert ordered[0] == finder
    assert ordered[1:] == [seed for seed in seeds if seed != finder]


def test_a_seed_that_is_not_among_those_of_the_test_is_not_tried() -> None:
    assert finder_first(range(3), "dates_marks_early") == [0, 1, 2]
    assert finder_first((5, 4), "a plant that the first seed finds") == [5, 4]
