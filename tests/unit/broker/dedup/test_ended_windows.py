"""The index of a window knows how the one before ended, and has nothing of it."""

from __future__ import annotations

import numpy as np
import pytest

from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import MemoryIdStore, Writes
from semel.broker.dedup.run_list import encode_end, end_key

TOPIC = 7
SEED, OTHER_SEED = bytes(16), b"x" * 16


def write_ids(index: IdIndex, count: int) -> None:
    """Adds so many ids, and has them written. Raises OSError."""
    if not index.end_arrival:
        keys = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
        places = Places.of(0, 0, 0, np.arange(count))
        index.add(keys, np.zeros(count, np.uint64), places, 0)
        assert index.freeze(count)
    assert index.maintain(0)


def end_it(store: MemoryIdStore, ended_by: int) -> None:
    index = IdIndex(store, TOPIC, SEED)
    index.abandon()
    index.drop(ended_by)


def test_the_last_end_outlives_later_windows() -> None:
    """Whatever their seeds are, and also if a node goes through an earlier end once more."""
    store = MemoryIdStore()
    for ended_by in (9, 5):
        end_it(store, ended_by)
        assert IdIndex(store, TOPIC, SEED).ended_by == 9
    write_ids(IdIndex(store, TOPIC, OTHER_SEED, ended_by=12), 1)
    assert IdIndex(store, TOPIC, SEED).ended_by == 12, "and that drops the index of the other seed"
    assert store._values == {end_key(TOPIC): encode_end(12)}


def test_a_topic_has_an_end_of_its_own() -> None:
    store = MemoryIdStore()
    end_it(store, 9)
    assert IdIndex(store, TOPIC + 1, SEED).ended_by == 0
    assert IdIndex(store, TOPIC - 1, SEED).ended_by == 0


def test_an_index_of_a_window_that_has_just_begun_has_nothing_of_the_store() -> None:
    """Before its first run is written, all that the store had is gone for good: a write that fails
    brings back what was not synced."""
    store = MemoryIdStore()
    write_ids(IdIndex(store, TOPIC, SEED), 3)
    index = IdIndex(store, TOPIC, SEED, ended_by=9)
    assert (index.end_arrival, index.run_count, index.ended_by) == (0, 0, 9)
    write = store.write

    def refuse(writes: Writes) -> None:
        if not writes.dropped:
            store.failures += 1
            store.crash()
            raise OSError("planted")
        write(writes)

    store.write = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="planted"):
        write_ids(index, 1)
    assert store._values == {end_key(TOPIC): encode_end(9)}
    store.write = write  # type: ignore[method-assign]
    write_ids(index, 1)
    store.crash()
    again = IdIndex(store, TOPIC, SEED)
    assert (again.end_arrival, again.run_count, again.ended_by) == (1, 1, 9)
