"""What a person is told of a node's disk."""

from __future__ import annotations

import pytest

from semel.client.admin.descriptions import NodeDescription


@pytest.mark.parametrize(
    ("damaged", "lost", "full", "told"),
    [
        (0, 0, False, "ok"),
        (3, 0, False, "3 damaged"),
        (3, 1, True, "full, 3 damaged, 1 lost"),
    ],
)
def test_the_disk_in_words(damaged: int, lost: int, full: bool, told: str) -> None:
    node = NodeDescription(
        id=1,
        address="127.0.0.1:1",
        role="slave",
        log_end_index=1,
        alive=True,
        silent_ms=0,
        damaged=damaged,
        lost=lost,
        disk_full=full,
    )
    assert node.disk == told
