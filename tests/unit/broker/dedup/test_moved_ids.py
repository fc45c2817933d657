"""Ids of one queue are taken out of an index, in their order, and mean the same in another one."""

from __future__ import annotations

import numpy as np
import pytest

from semel.broker.dedup import id_index, moved_ids
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex, MemoryIdStore
from semel.broker.dedup.moved_ids import Pass, unpack

TOPIC = 7


def keys_of(arrivals: range) -> U64:
    numbers = np.array(arrivals, np.uint64)
    return np.stack([numbers * np.uint64(0x9E3779B97F4A7C15), numbers], axis=1)


def filled(count: int) -> IdIndex:
    """Batches of five by turns of three queues; every fourth batch is delayed."""
    index = IdIndex(MemoryIdStore(), TOPIC, bytes(16), memory_ids=60)
    for start in range(0, count, 5):
        arrivals = range(start, start + 5)
        due = 9_000 + start if start % 20 == 15 else 0
        places = Places.of(start, start // 5 % 3, 500 + start, np.arange(5), due)
        index.add(keys_of(arrivals), np.array(arrivals, np.uint64) * np.uint64(3), places, start)
        if index.is_full:
            index.freeze(index.end_arrival)
            while index.maintain(0):
                pass
    return index


def expected(arrivals: range, queue: int) -> list[tuple[int, int, int, int, int]]:
    """Arrival, digest, queue, offset and due time."""
    rows = []
    for arrival in arrivals:
        start = arrival // 5 * 5
        if start // 5 % 3 == queue:
            delayed = start % 20 == 15
            offset = -1 if delayed else 500 + arrival
            rows.append((arrival, arrival * 3, queue, offset, 9_000 + start if delayed else 0))
    return rows


@pytest.mark.parametrize("arrivals", [range(200), range(33, 150), range(7, 8), range(50, 50)])
def test_the_ids_of_other_queues_stay(monkeypatch: pytest.MonkeyPatch, arrivals: range) -> None:
    monkeypatch.setattr(id_index, "READ_CHUNKS", 1)
    monkeypatch.setattr(moved_ids, "PORTION_IDS", 8)
    found = Pass.of(filled(200), arrivals, {0, 2})
    rows: list[tuple[int, int, int, int, int]] = []
    target = IdIndex(MemoryIdStore(), TOPIC, bytes(16))
    at = arrivals.start
    while at < arrivals.stop:
        data, covered = found.portion(at)
        keys, digests, places = unpack(data, target.end_arrival)
        if len(keys):
            target.add(keys, digests, places, target.end_arrival)
        assert covered > at
        at = covered
    wanted = expected(arrivals, 1)
    keys = keys_of(range(200))
    hits = target.search_memory(keys, 0).hits
    found_at = target.places_of(hits.arrivals)
    order = np.argsort(hits.arrivals)
    rows = [
        (
            int(hits.rows[each]),
            int(hits.digests[each]),
            int(found_at.queues[each]),
            int(found_at.offsets[each]),
            int(found_at.dues[each]),
        )
        for each in order
    ]
    assert rows == wanted
    assert hits.arrivals[order].tolist() == list(range(len(wanted)))


def test_ids_of_cancelled_messages_stay() -> None:
    found = Pass.of(filled(200), range(200), {0, 2}, [5, 6, 95])
    assert found.own.tolist()[:5] == [7, 8, 9, 20, 21]
    assert 95 not in found.own


def test_half_an_id_is_refused() -> None:
    with pytest.raises(CorruptIndex, match="moved ids have 41 bytes"):
        unpack(bytes(41), 0)


def test_ids_of_messages_that_may_still_be_cancelled_wait() -> None:
    """A cancellation would not reach the other index: the id would stay known there."""
    index = filled(200)  # in queue 1 those from 35 on are due at 9,035, those from 95 on at 9,095
    for now_us, cancelled, end in (
        (9_034, [], 35),
        (9_034, [35, 36], 37),
        (9_034, [35, 36, 37, 38, 39], 95),
        (9_035, [], 95),
        (9_095, [], 155),
        (9_155, [], 200),
    ):
        found = Pass.of(index, range(200), {0, 2}, cancelled, now_us)
        assert found.arrivals == range(end)
        wanted = [row[0] for row in expected(range(end), 1) if row[0] not in cancelled]
        assert found.own.tolist() == wanted
        assert found.portion(0)[1] == end
    nothing = Pass.of(index, range(35, 200), {0, 2}, [], 9_034)
    assert nothing.portion(35) == (b"", 35)
