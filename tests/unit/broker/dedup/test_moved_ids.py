"""Ids of one queue are taken out of an index, in their order, and mean the same in another one."""

from __future__ import annotations

import numpy as np
import pytest

from semel.broker.dedup import id_index, moved_ids
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex, MemoryIdStore
from semel.broker.dedup.moved_ids import Pass, Take, delayed_of, unpack

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


def test_ids_of_messages_that_wait_come_apart_from_the_others() -> None:
    """Delayed are the batches from 15, 35, 55, ...; those due after 9,100 wait."""
    index, everything = filled(200), range(200)
    settled = Pass.of(index, everything, {0, 2}, (), 9_100, Take.SETTLED)
    waiting = Pass.of(index, everything, {0, 2}, (), 9_100, Take.WAITING)
    wanted = expected(everything, 1)
    late = [row[0] for row in wanted if row[4] > 9_100]
    assert waiting.own.tolist() == settled.waits.tolist() == late
    assert settled.own.tolist() == [row[0] for row in wanted if row[4] <= 9_100]
    assert late == list(range(155, 160))
    assert settled.waits_from(range(200)) == late[0]
    assert settled.waits_from(range(late[0])) == late[0]
    assert settled.waits_from(range(late[-1] + 1, 200)) == 200
    assert len(waiting.waits) == 0


@pytest.mark.parametrize(("take", "entry"), [(Take.WAITING, 77), (Take.BEFORE_WAITING, 0)])
def test_the_entry_of_a_delayed_message_goes_along(take: Take, entry: int) -> None:
    index = IdIndex(MemoryIdStore(), TOPIC, bytes(16))
    places = Places.of(0, 1, 0, np.arange(3), 9_000, 77)
    index.add(keys_of(range(3)), np.arange(3).astype(np.uint64), places, 0)
    horizon_us = 0 if take is Take.WAITING else 9_000
    data, _ = Pass.of(index, range(3), (), (), horizon_us, take).portion(0)
    _, _, moved = unpack(data, 50)
    found = moved.find(np.arange(50, 53).astype(np.uint64))
    assert found.entries.tolist() == [entry] * 3
    assert found.dues.tolist() == [9_000] * 3
    assert found.queues.tolist() == [1] * 3


def test_delayed_messages_of_a_queue_are_found_by_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_ids, "PASS_IDS", 30)
    wanted = [row[0] for row in expected(range(200), 1) if row[4]]
    assert delayed_of(filled(200), range(200), 1).tolist() == wanted
    assert delayed_of(filled(200), range(40, 60), 5).tolist() == []
