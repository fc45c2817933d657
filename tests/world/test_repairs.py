"""A node recovers when nobody gives it an entry, and when it has never heard of the master.

These worlds once never came to rest: cases so rare that a thousand other worlds do not meet them.
"""

from __future__ import annotations

import pytest

from tests.world.plan import make_plan
from tests.world.run import run_plan


@pytest.mark.parametrize(
    ("seed", "theme", "event"),
    [
        # Rot in the tail of a new master, which nobody else has.
        pytest.param(
            1_034,
            "rotten tail",
            "mastership resigned",
            id="a_master_with_a_damaged_tail_resigns",
        ),
        # Rot in an entry that the others have cleaned away, and that is yet to be applied.
        pytest.param(
            10,
            "left behind",
            "log rebuilt",
            id="a_slave_that_cannot_apply_takes_a_snapshot",
        ),
        # Away while another was replaced, whose successor is master now.
        pytest.param(67, None, "members heard of", id="an_unknown_master_is_asked_after"),
    ],
)
def test_a_world_comes_to_rest(seed: int, theme: str | None, event: str) -> None:
    result, error, _ = run_plan(make_plan(seed, theme))
    assert result is not None, error
    assert result.seen[event], f"seed {seed} does not lead there any more: choose another"
