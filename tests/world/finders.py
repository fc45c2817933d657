"""Seeds that found a planted bug before: they are tried first, for a test that finds it is over.

They say in which order seeds are tried, not which: `first_failure` takes one that is among its
seeds alone, and when the product has changed so that it finds nothing, the others follow. What a
test shows is the same without this table, and takes minutes more.

Not here: the plants (`planted*.py`), and which seeds their tests have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FINDERS: Final[dict[str, int]] = {
    "acknowledges_before_it_has_bodies": 131,
    "begins_again_with_the_first_session": 11,
    "begins_windows_at_nought": 5,
    "believes_what_it_knew": 6,
    "cancels_what_is_due": 8,
    "closes_gaps": 8,
    "collects_by_copies_alone": 32,
    "dates_marks_early": 17,
    "decides_any_attempt": 11,
    "drops_too_much": 8,
    "forgets_the_last_epoch": 5,
    "founders_of_one_begin_again": 58,
    "is_early_at_the_target": 15,
    "keeps_ids_of_lost_entries": 289,
    "leaves_out_bodies": 7,
    "loses_marks": 3,
    "misses_what_the_window_left_behind": 6,
    "names_by_content_alone": 319,
    "releases_what_is_being_cancelled": 148,
    "remembers_no_deletions": 9,
    "tells_no_loss": 3,
    "tells_of_an_abort_that_is_none": 11,
    "trusts_its_tables_after_an_unknown_outcome": 252,
    "writes_checkpoints_before_the_index": 20,
}
"""By the name of the plant's function: only those that the first seeds do not find."""


def finder_first(seeds: Iterable[int], plant: str) -> list[int]:
    """All of these seeds in their order, but the finder in front, if it is one of them."""
    finder = FINDERS.get(plant)
    return sorted(seeds, key=lambda seed: seed != finder)
