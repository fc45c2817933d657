"""The release before this tree, and this tree: rolled in both directions, mixed, under load.

`./run soak previous` runs the same for longer, with both stores and a Spark stream meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.previous import previous_release
from tests.kit.rolled_release import upgrade_cluster


def test_the_previous_release_becomes_this_one_under_load(tmp_path: Path) -> None:
    previous = previous_release(tmp_path / "previous")
    if previous is None:
        pytest.skip("this tree is no git repository, which has the release before")
    assert upgrade_cluster(previous, tmp_path / "cluster") > 100
