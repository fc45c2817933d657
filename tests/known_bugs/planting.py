"""One way to say that a scenario holds, and breaks as soon as its bug is planted.

Every test here runs its scenario twice: on the real code, and with the bug of another system put in
by a patch or a subclass. The second run shows that the first one could have failed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


def breaks_when_planted(scenario: Callable[[], None], plant: Plant, *, match: str) -> None:
    """The scenario passes as things are, and fails saying `match` with the bug."""
    scenario()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=match):
            scenario()
    scenario()
