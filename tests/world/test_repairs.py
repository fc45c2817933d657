"""A node recovers when nobody gives it an entry, and when it has never heard of the master.

These worlds once never came to rest: cases so rare that a thousand other worlds do not meet them.

Which seed leads there changes with the timing of the product. So each test runs seeds in order,
from one that leads there now, until the first one that does; all of them must come to rest.
"""

from __future__ import annotations

import pytest

from tests.world.soak import run_until_seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seeds", "theme", "event"),
    [
        # Rot in the tail of a new master, which nobody else has: one seed of 25.
        pytest.param(
            range(13, 213),
            "rotten tail",
            "mastership resigned",
            id="a_master_with_a_damaged_tail_resigns",
        ),
        # Rot in an entry that the others have cleaned away, and that is yet to be applied: one
        # seed of 25.
        pytest.param(
            range(10, 210),
            "left behind",
            "log rebuilt",
            id="a_slave_that_cannot_apply_takes_a_snapshot",
        ),
        # Away while another was replaced, whose successor is master now: one seed of 30.
        pytest.param(
            range(67, 307), None, "members heard of", id="an_unknown_master_is_asked_after"
        ),
        pytest.param(
            range(10),
            "moved on",
            "absence while all others are replaced",
            id="a_node_finds_a_group_of_strangers",
        ),
    ],
)
def test_a_world_comes_to_rest(seeds: range, theme: str | None, event: str) -> None:
    run_until_seen(seeds, {event: 1}, theme=theme)
