"""The core sees entries with the bodies that travel beside them."""

from __future__ import annotations

from typing import Any

from semel.broker.memory import BodyStore
from semel.broker.replica.log_view import CoreLog
from tests.kit.memory_log import MemoryGroup


class Frames:
    """A log of frames of 100 bytes."""

    def __init__(self, count: int) -> None:
        self.count = count

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        return max(min(hi_max, lo + max_bytes // 100), min(lo + 1, hi_max))

    def size_of(self, index: int) -> int:
        return 100

    def term_at(self, index: int) -> int:
        return 1


def test_bodies_count_for_the_size_of_an_entry_and_of_an_append() -> None:
    group = MemoryGroup()
    bodies = BodyStore(0)
    log: Any = Frames(10)
    core_log = CoreLog(log, {}, bodies)
    assert (core_log.fit(1, 11, 1_000), core_log.meta(3).size) == (11, 100)
    head = group.send(-1)
    (stored,) = group.bodies.values()
    assert len(stored) == 160 + head.body_length
    large = stored + bytes(650 - len(stored))
    for index in (3, 4):
        bodies.put(index, 48, large)
    assert [core_log.meta(index).size for index in (2, 3, 4)] == [100, 750, 750]
    assert core_log.fit(1, 11, 1_000) == 4
    assert core_log.fit(3, 11, 1_000) == 4
    assert core_log.fit(3, 11, 10) == 4, "at least one entry"
    assert core_log.fit(5, 11, 600) == 11
    assert core_log.fit(5, 5, 600) == 5
