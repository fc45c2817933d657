"""A Spark application that is killed between our commit and Spark's copies everything once.

The other points, and executors, masters and controllers: `./run soak spark-crashes`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.spark_crashes import COUNT, one
from tests.spark.crashes import CRASHES


@pytest.mark.timeout(600)
def test_a_driver_that_dies_behind_its_commit_repeats_it_without_a_trace(tmp_path: Path) -> None:
    copied = one(CRASHES["driver-committed"], tmp_path)
    assert copied.messages == COUNT
    assert copied.lives >= 2
