"""Cleaning the log: nothing that is live goes, and nothing above a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background.retention import Retention
from semel.broker.log import RecordRef

ENTRY_BYTES = 100
LIVE = [(2, 48, 4), (5, 48, 4), (15, 48, 4), (30, 48, 4)]
"""Records of entries below, at and above the log's first one, which is 5."""


class Node:
    """A replica that has applied entry 40; its log holds the entries from 5 on."""

    def __init__(self) -> None:
        self.log = self
        self.readers = ThreadPoolExecutor(1)
        self.config = SimpleNamespace(
            retained_log_bytes=10 * ENTRY_BYTES, log=SimpleNamespace(segment_bytes=100)
        )
        self.state = SimpleNamespace(
            applied_index=40, live_bytes=1_000, live_records=self._live_records
        )
        self.incarnation = 7
        self.first_index = 5
        self.compact_limit = 5
        self.segment_bytes = 4_000
        self.index = 35
        """Index of the newest checkpoint."""
        self.written = 0
        self.compacted: list[tuple[int, int | None]] = []
        self.kept: list[RecordRef] = []
        self.alive: list[tuple[int, int]] = []
        stand_in: Any = self
        self.retention = Retention(stand_in, stand_in)

    def _live_records(self, lo: int, hi: int) -> list[tuple[int, int, int]]:
        return [record for record in LIVE if lo <= record[0] < hi]

    def stats(self) -> Any:
        return SimpleNamespace(segment_bytes=self.segment_bytes, kept_bytes=0)

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
    await node.retention._clean()
    assert node.compacted == [(31, 7)], "the newest ten entries are left for slaves"
    assert node.written == 0
    assert node.kept == [RecordRef(5, 48, 4), RecordRef(15, 48, 4)]
    # Those that were kept before, and those whose segments are gone since.
    assert node.alive == [(2, 48), (5, 48), (15, 48), (30, 48)]


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


@pytest.mark.parametrize(("stored", "live"), [(2_099, 1_000), (8_000, 6_001)])
async def test_nothing_is_cleaned_while_it_would_not_pay(stored: int, live: int) -> None:
    """Too little is dead: less than what stays and a segment, or less than a quarter."""
    node = Node()
    node.segment_bytes, node.state.live_bytes = stored, live
    await node.retention._clean()
    assert node.compacted == []
    node.segment_bytes, node.state.live_bytes = stored + 1, live - 1
    await node.retention._clean()
    assert len(node.compacted) == 1
