"""Cleaning the log: nothing that is live goes, nothing above a checkpoint, no more than pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background.retention import Retention, worth_cleaning
from semel.broker.log import RecordRef, SegmentRange
from semel.broker.replica.pools import Pools
from semel.broker.state import LiveRecords

ENTRY_BYTES = 100
LIVE = [(2, 48, 4), (5, 48, 4), (15, 48, 4), (30, 48, 4)]
"""Records of entries below, at and above the log's first one, which is 5."""


class Node:
    """A replica that has applied entry 40; its log holds the entries from 5 on, five a segment."""

    def __init__(self) -> None:
        self.log = self
        self.pools = Pools.of_one(ThreadPoolExecutor(1))
        self.config = SimpleNamespace(
            retained_log_bytes=10 * ENTRY_BYTES, log=SimpleNamespace(segment_bytes=100)
        )
        self.live = [100] * 7
        """Live bytes of each segment."""
        self.state = SimpleNamespace(
            applied_index=40,
            live_bytes=1_000,
            live_table=self._live_table,
            live_bytes_between=lambda bounds: self.live[: len(bounds) - 1],
        )
        self.incarnation = 7
        self.first_index = 5
        self.compact_limit = 5
        self.segment_bytes = 4_000
        self.kept_bytes = 0
        self.index = 35
        """Index of the newest checkpoint."""
        self.written = 0
        self.compacted: list[tuple[int, int | None]] = []
        self.kept: list[RecordRef] = []
        self.alive: list[tuple[int, int]] = []
        stand_in: Any = self
        self.retention = Retention(stand_in, stand_in)

    def _live_table(self, lo: int, hi: int) -> LiveRecords:
        return LiveRecords.of((), [each for each in LIVE if lo <= each[0] < hi], (), lo, hi)

    def stats(self) -> Any:
        return SimpleNamespace(segment_bytes=self.segment_bytes, kept_bytes=self.kept_bytes)

    def sealed_segments(self) -> list[SegmentRange]:
        return [SegmentRange(each, each + 5, 5 * ENTRY_BYTES) for each in range(5, 40, 5)]

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        return min(hi_max, lo + max(1, max_bytes // ENTRY_BYTES))

    async def write(self) -> None:
        self.written += 1

    def compact(
        self, upto: int, keep: Callable[[int, int], Iterable[RecordRef]], *, incarnation: int | None
    ) -> int:
        self.compacted.append((upto, incarnation))
        self.kept = list(keep(self.first_index, 20))
        return 20

    def drop_kept(self, live: Callable[[int, int], bool], *, incarnation: int | None) -> int:
        assert incarnation == 7
        self.alive = [record[:2] for record in [*LIVE, (3, 48, 4)] if live(*record[:2])]
        return 0


async def test_what_is_live_stays_readable() -> None:
    node = Node()
    node.kept_bytes = 4
    await node.retention._clean()
    assert node.compacted == [(30, 7)], "the newest ten entries are left for slaves"
    assert node.written == 0
    assert node.kept == [RecordRef(5, 48, 4), RecordRef(15, 48, 4)]
    # Those that were kept before, and those whose segments are gone since.
    assert node.alive == [(2, 48), (5, 48), (15, 48)]


async def test_a_log_is_cleaned_up_to_a_checkpoint_though_none_can_be_written() -> None:
    node = Node()
    node.index = 11
    await node.retention._clean()
    assert node.written == 1
    assert node.compacted == [(12, 7)]


async def test_a_second_checkpoint_is_written_when_the_log_needs_it() -> None:
    """A group without traffic would never write one, and its log would never be cleaned."""
    node = Node()
    node.compact_limit = 0
    await node.retention._clean()
    assert node.written == 1


async def test_nothing_is_cleaned_while_too_little_is_dead() -> None:
    """Less than what stays and a segment."""
    node = Node()
    node.segment_bytes = 2_099
    await node.retention._clean()
    assert node.compacted == []
    node.segment_bytes += 1
    node.state.applied_index += 1
    await node.retention._clean()
    assert len(node.compacted) == 1


async def test_an_idle_log_is_not_looked_at_again() -> None:
    node = Node()
    node.segment_bytes = 2_000
    await node.retention._clean()
    node.segment_bytes = 4_000
    await node.retention._clean()
    assert node.compacted == [], "nothing was applied"


async def test_live_segments_are_not_copied_behind_dead_ones() -> None:
    """Queues that are cut at their old ends: their first segments are dead, all others live."""
    node = Node()
    node.live = [0, 0, 500, 500, 500, 500, 500]
    await node.retention._clean()
    assert node.compacted == [(15, 7)]


async def test_another_look_waits_until_another_segment_is_dead() -> None:
    node = Node()
    node.live = [500] * 7
    node.segment_bytes = 3_000
    await node.retention._clean()
    assert node.compacted == []
    node.live = [0] * 7
    node.segment_bytes += 99
    node.state.applied_index += 1
    await node.retention._clean()
    assert node.compacted == []
    node.segment_bytes += 1
    node.state.applied_index += 1
    await node.retention._clean()
    assert len(node.compacted) == 1


async def test_kept_files_are_cleaned_though_no_segment_is_worth_it() -> None:
    node = Node()
    node.live, node.kept_bytes = [500] * 7, 1_000
    await node.retention._clean()
    assert node.alive == [(2, 48)]
    assert node.written == 0, "a checkpoint is for the segments"


@pytest.mark.parametrize(
    ("live", "count"),
    [
        ([], 0),
        ([100, 100], 0),
        ([0, 0, 100, 100], 2),
        ([100, 0, 0, 100], 3),
        ([100, 33, 100], 2),
        ([74, 74, 74], 3),
        ([75, 75, 75], 0),
        ([76, 76, 76], 0),
        ([90, 90, 0, 90, 90, 90, 0, 0], 8),
        ([120, 0], 2),
    ],
)
def test_as_many_segments_are_cleaned_as_free_most_for_what_is_copied(
    live: list[int], count: int
) -> None:
    """A byte that is freed is worth three that are copied; all segments have 100 bytes."""
    assert worth_cleaning([100] * len(live), live) == count
