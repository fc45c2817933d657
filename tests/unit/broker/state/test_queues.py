"""Extents, trimming, retention and live records against plain lists."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.state import Extent, QueueSettings, QueueState
from semel.broker.state.apply import extents as extents_module
from semel.broker.state.apply.codec import Reader
from semel.protos.errors import OffsetOutOfRange
from semel.protos.levels import SPLIT_LEVEL
from tests.kit.state_log import KEY


def new_queue(**limits: Any) -> QueueState:
    return QueueState(KEY, "orders", 0, 65_536, QueueSettings(**limits))


class ListQueue:
    """The same as a list of extents."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.extents: list[Extent] = []

    def append(self, count: int, index: int, position: int, length: int, time: int) -> None:
        self.extents.append(Extent(self.end, count, 0, index, position, length, time))
        self.end += count

    def trim(self, start: int) -> None:
        self.start = max(start, self.start)
        self.extents = [e for e in self.extents if e.base_offset + e.count > self.start]


def same(queue: QueueState, model: ListQueue) -> None:
    assert (queue.log_start_offset, queue.log_end_offset) == (model.start, model.end)
    assert queue.bytes == sum(extent.length for extent in model.extents)
    assert queue.extents_from(queue.log_start_offset, 1 << 60) == model.extents
    for offset in range(model.start, model.end, max(1, (model.end - model.start) // 7)):
        covering = next(e for e in model.extents if e.base_offset + e.count > offset)
        assert queue.extents_from(offset, 0) == [covering]
    low, high = 3, 1_500
    wanted = [(e.index, e.position, e.length) for e in model.extents if low <= e.index < high]
    assert list(queue.live_records(low, high)) == [record for record, _ in groupby(wanted)]
    for bounds in ([0, 1 << 40], [3, 4, 5, 9, 500, 1_500], [2_000, 2_001], [7, 10**9]):
        sums = np.zeros(len(bounds) - 1, np.int64)
        queue.extents.add_live_bytes(np.array(bounds, np.int64), sums)
        assert sums.tolist() == [
            sum(e.length for e in model.extents if low <= e.index < high)
            for low, high in pairwise(bounds)
        ]
    for time in (0, 2, 5, 10**9):
        later = [e.base_offset for e in model.extents if e.append_time_us >= time]
        expected = max(later[0], model.start) if later else model.end
        assert queue.offset_for_time(time) == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.floats(0, 1)), max_size=30))
def test_queue_is_a_list_of_extents(steps: list[tuple[int, int, float]]) -> None:
    queue, model = new_queue(), ListQueue()
    with pytest.MonkeyPatch.context() as patch:
        shrink_chunks(patch, 4)
        for at, (appends, count, cut) in enumerate(steps):
            for more in range(appends):
                for one in (queue, model):
                    one.append(count, at, 48 + more, 160 + count, at)
            if cut > 0.7:
                start = model.start + int((model.end - model.start) * (cut - 0.7) / 0.3)
                queue.trim(start)
                model.trim(start)
            same(queue, model)
            data = b"".join(queue.parts(SPLIT_LEVEL - 1))
            queue = QueueState.read_parts(Reader(data), SPLIT_LEVEL - 1)
            assert b"".join(queue.parts(SPLIT_LEVEL - 1)) == data


def shrink_chunks(patch: pytest.MonkeyPatch, chunk: int) -> None:
    """Small chunks, so that few extents fill several."""
    patch.setattr(extents_module, "CHUNK", chunk)
    patch.setattr(extents_module, "_INDEX_AT", chunk)
    patch.setattr(extents_module, "_PLACE_AT", 2 * chunk)
    patch.setattr(extents_module, "_TIME_AT", 3 * chunk)
    patch.setattr(extents_module, "_QUADS", 4 * chunk * 8)
    patch.setattr(extents_module, "SEALED_BYTES", chunk * 36 + 24)


def test_real_chunks() -> None:
    queue, model = new_queue(), ListQueue()
    for at in range(5_000):
        queue.append(2, at // 2, 48, 200, at)
        model.append(2, at // 2, 48, 200, at)
    same(queue, model)
    for start in (1, 2, 3, 2_047, 2_048, 2_049, 7_001, 10_000):
        queue.trim(start)
        model.trim(start)
        same(queue, model)
    queue.append(1, 9_999, 48, 200, 9_999)
    model.append(1, 9_999, 48, 200, 9_999)
    same(queue, model)


def test_extents_are_cut_by_bytes_but_never_to_nothing() -> None:
    queue = new_queue()
    for at in range(10):
        queue.append(10, at + 1, 48, 100, at)
    assert [e.base_offset for e in queue.extents_from(25, 350)] == [20, 30, 40]
    assert [e.base_offset for e in queue.extents_from(25, 1)] == [20]
    assert queue.extents_from(100, 1_000) == []


@pytest.mark.parametrize("offset", [-1, 9, 101])
def test_offsets_outside_are_refused(offset: int) -> None:
    queue = new_queue()
    for at in range(10):
        queue.append(10, at + 1, 48, 100, at)
    queue.trim(10)
    with pytest.raises(OffsetOutOfRange) as caught:
        queue.extents_from(offset, 1)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (10, 100)


def test_retention_by_age_and_size() -> None:
    queue = new_queue(retention_ms=5, retention_bytes=-1)
    for at in range(10):
        queue.append(10, at + 1, 48, 100, at * 1_000)
    assert queue.retention_target(5_000) is None
    assert queue.retention_target(7_000) == 20
    assert queue.retention_target(7_001) == 30
    assert queue.retention_target(10**9) == 100
    queue.settings = QueueSettings(retention_bytes=450)
    assert queue.retention_target(0) == 60
    queue.trim(60)
    assert queue.retention_target(0) is None
    queue.settings = QueueSettings(retention_bytes=0)
    assert queue.retention_target(0) == 90


def test_retention_by_size_walks_over_chunks() -> None:
    queue = new_queue(retention_bytes=1_000)
    for at in range(4_000):
        queue.append(1, at + 1, 48, 10, at)
    assert queue.retention_target(0) == 3_900
    queue.trim(100)
    assert queue.retention_target(0) == 3_900


def test_trimming_never_lowers_the_start() -> None:
    queue = new_queue()
    queue.append(10, 1, 48, 100, 0)
    queue.trim(7)
    queue.trim(3)
    assert queue.log_start_offset == 7
    assert queue.extents_from(7, 0)[0].base_offset == 0
