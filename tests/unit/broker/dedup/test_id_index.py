"""The index answers as a dictionary would, across memory, runs, merges, crashes and reopening."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup import id_index, id_runs
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_filter import IdFilter, Probes
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex, IdStore, MemoryIdStore, Writes
from semel.broker.dedup.recent_ids import RecentIds
from semel.broker.dedup.rocks_store import RocksIdStore
from semel.broker.dedup.run_list import encode_end, end_key
from semel.broker.dedup.sorted_ids import Hits

TOPIC = 7
SEED = bytes(16)


def keys_of(numbers: list[int]) -> U64:
    """Keys whose first halves collide: the index must not take them for equal."""
    pairs = [(Random(number // 3).getrandbits(64), number) for number in numbers]
    return np.array(pairs, np.uint64).reshape(-1, 2)


def digests_of(numbers: list[int]) -> U64:
    return np.array([number * 7 for number in numbers], np.uint64)


def ids_of(numbers: list[int], arrival: int) -> tuple[U64, U64, Places, int]:
    """Ids as `add` takes them; the message that arrives as 5 has offset 105 of queue 5 // 100."""
    at = np.arange(arrival, arrival + len(numbers))
    places = [
        Places.of(arrival + int(rows[0]), int(at[rows[0]]) // 100, 100, at[rows])
        for rows in np.split(np.arange(len(at)), np.flatnonzero(np.diff(at // 100)) + 1)
        if len(rows)
    ]
    return keys_of(numbers), digests_of(numbers), Places.joined([Places.none(), *places]), arrival


class Model:
    """What an index must know, in a dictionary."""

    def __init__(self, store: IdStore, memory_ids: int = 50) -> None:
        self.store = store
        self.memory_ids = memory_ids
        self.index = IdIndex(store, TOPIC, SEED, memory_ids=memory_ids)
        self.arrived: list[int] = []
        self.first = 0
        self.unapplied = 0
        """How many of the last ids are of entries that may still be lost."""

    def add(self, numbers: list[int]) -> None:
        live = set(self.arrived[self.first :])
        numbers = [each for each in dict.fromkeys(numbers) if each not in live]
        self.index.add(*ids_of(numbers, len(self.arrived)))
        self.arrived += numbers

    def look(self, numbers: list[int]) -> dict[int, int]:
        keys = keys_of(numbers)
        search = self.index.search_memory(keys, self.first)
        hits = self.index.search_disk(search, keys, self.first).hits
        rows = hits.rows.tolist()
        assert rows == sorted(set(rows))
        assert hits.digests.tolist() == [numbers[row] * 7 for row in rows]
        found = self.index.places_of(hits.arrivals)
        assert found.offsets.tolist() == [arrival + 100 for arrival in hits.arrivals.tolist()]
        assert found.queues.tolist() == [arrival // 100 for arrival in hits.arrivals.tolist()]
        return {
            numbers[row]: arrival for row, arrival in zip(rows, hits.arrivals.tolist(), strict=True)
        }

    def expected(self, numbers: list[int]) -> dict[int, int]:
        places = {each: at for at, each in enumerate(self.arrived) if at >= self.first}
        return {each: places[each] for each in numbers if each in places}

    def check(self, numbers: list[int]) -> None:
        assert self.look(numbers) == self.expected(numbers)

    def settle(self) -> None:
        while self.index.maintain(self.first):
            pass

    def flush(self) -> None:
        self.index.freeze(len(self.arrived) - self.unapplied)
        self.settle()

    def lose(self) -> None:
        """Entries that were not applied are lost with the mastership."""
        del self.arrived[len(self.arrived) - self.unapplied :]
        self.unapplied = 0
        self.first = min(self.first, len(self.arrived))
        self.index.cut_back(len(self.arrived))

    def check_since(self, numbers: list[int]) -> None:
        """A look-up that began earlier is completed by what came since."""
        for since in range(self.first, len(self.arrived) + 1, 7):
            hits = self.index.search_since(keys_of(numbers), since)
            if hits is None:
                assert since < len(self.arrived) - self.index.memory_ids
                continue
            found = [numbers[row] for row in hits.rows.tolist()]
            late = self.arrived[since:]
            assert sorted(found) == sorted(each for each in numbers if each in late)

    def reopen(self) -> None:
        """Opens the store as a node does after a crash, and replays what was not durable."""
        self.index = IdIndex(self.store, TOPIC, SEED, memory_ids=self.memory_ids)
        at = self.index.end_arrival
        assert at <= len(self.arrived)
        rest = self.arrived[at:]
        if rest:
            self.index.add(*ids_of(rest, at))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 120), max_size=30)),
        st.tuples(st.just("propose"), st.lists(st.integers(0, 120), max_size=30)),
        st.tuples(st.just("apply"), st.just([])),
        st.tuples(st.just("lose"), st.just([])),
        st.tuples(st.just("freeze"), st.just([])),
        st.tuples(st.just("maintain"), st.just([])),
        st.tuples(st.just("settle"), st.just([])),
        st.tuples(st.just("evict"), st.lists(st.integers(0, 40), min_size=1, max_size=1)),
        st.tuples(st.just("crash"), st.just([])),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_the_index_is_a_dictionary(steps: list[tuple[str, list[int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_runs, "CHUNK_IDS", 4)
        patch.setattr(id_index, "RUNS_PER_LEVEL", 3)
        patch.setattr(id_index, "LEVEL_IDS", 5)
        patch.setattr(id_runs, "PART_PLACES", 2)
        patch.setattr(id_index, "MERGE_IDS", 10)
        store = MemoryIdStore()
        model = Model(store)
        for what, numbers in steps:
            match what:
                case "add":
                    model.add(numbers)
                    model.unapplied = 0
                case "propose":
                    before = len(model.arrived)
                    model.add(numbers)
                    model.unapplied += len(model.arrived) - before
                case "apply":
                    model.unapplied = 0
                case "lose":
                    model.lose()
                case "freeze":
                    model.index.freeze(len(model.arrived) - model.unapplied)
                case "maintain":
                    model.index.maintain(model.first)
                case "settle":
                    model.flush()
                case "evict":
                    applied = len(model.arrived) - model.unapplied
                    model.first = min(applied, model.first + numbers[0])
                case "crash":
                    model.lose()
                    store.crash()
                    model.reopen()
            model.check(list(range(125)))
            model.check_since(list(range(125)))


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> IdStore:
    return MemoryIdStore() if request.param == "memory" else RocksIdStore(tmp_path / "ids")


def test_runs_of_each_level_merge_and_are_dropped(
    store: IdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_index, "MERGE_IDS", 300)
    model = Model(store, memory_ids=500)
    for start in range(0, 40_000, 500):
        model.add(list(range(start, start + 500)))
        assert model.index.is_full
        model.flush()
    # 80 runs of level 0 are ten of level 1: eight became one of level 2.
    assert [run.info.level for run in model.index._view.runs] == [2, 1, 1]
    model.check([0, 17, 39_999, 40_000, 50_000, *range(1_000, 1_300)])
    model.first = 36_500
    model.flush()
    assert [run.info.first_arrival for run in model.index._view.runs] == [36_000]
    model.check([0, 35_999, 36_499, 36_500, 39_999])
    (run,) = model.index._view.runs
    assert run.places([0]).columns[0][0] == 36_000
    model.add([5, 6])
    model.check([5, 6, 7, 36_500])
    store.close()


def test_memory_is_written_between_the_steps_of_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "MERGE_IDS", 100)
    model = Model(MemoryIdStore())
    for start in range(0, 800, 100):
        model.add(list(range(start, start + 100)))
        model.index.freeze(len(model.arrived))
        assert model.index.maintain(0)
    assert model.index.run_count == 8
    for _ in range(3):
        assert model.index.maintain(0)
    assert model.index.run_count == 8
    model.add([5_000, 5_001])
    model.index.freeze(802)
    assert model.index.maintain(0)
    assert (model.index.run_count, model.index.durable_arrival) == (9, 802)
    with model.index.pinned():
        assert not model.index.maintain(0)
    model.settle()
    assert [(run.info.level, run.info.ids) for run in model.index._view.runs] == [(1, 800), (0, 2)]
    model.check([0, 99, 400, 799, 800, 5_000, 5_001])


def test_rocks_keeps_what_was_synced(tmp_path: Path) -> None:
    store = RocksIdStore(tmp_path / "ids")
    model = Model(store)
    model.add(list(range(60)))
    model.flush()
    model.add(list(range(100, 120)))
    store.close()
    model.store = store = RocksIdStore(tmp_path / "ids")
    model.index = IdIndex(store, TOPIC, SEED, memory_ids=50)
    assert model.index.end_arrival == model.index.durable_arrival == 60
    model.reopen()
    model.check(list(range(130)))
    store.close()


def test_topics_do_not_meet(store: IdStore) -> None:
    left, right = (IdIndex(store, topic, SEED, memory_ids=10) for topic in (1, 2))
    left.add(*ids_of([1], 0))
    left.freeze(1)
    assert left.maintain(0)
    assert not len(right.search_memory(keys_of([1]), 0).maybe)
    assert IdIndex(store, 2, SEED, memory_ids=10).end_arrival == 0
    assert IdIndex(store, 1, SEED, memory_ids=10).end_arrival == 1
    store.close()


def test_ids_that_arrive_again_in_a_replay_are_not_added_twice() -> None:
    index = IdIndex(MemoryIdStore(), TOPIC, SEED)
    index.add(*ids_of([1, 2, 3], 0))
    index.add(*ids_of([2, 3], 1))
    index.add(*ids_of([4], 3))
    index.add(*ids_of([1], 0))
    assert index.end_arrival == 4
    assert index.memory_ids == 4


def test_a_gap_is_never_filled_with_other_ids() -> None:
    index = IdIndex(MemoryIdStore(), TOPIC, SEED)
    with pytest.raises(CorruptIndex, match="id 5 came after 0"):
        index.add(*ids_of([1], 5))


def test_an_id_that_came_again_after_the_window_left_it_counts_with_its_later_arrival() -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2, 3])
    model.flush()
    model.first = 2
    model.add([1])
    model.flush()
    assert model.look([1, 2, 3]) == {1: 3, 3: 2}


def test_memory_is_frozen_once_until_it_is_written() -> None:
    model = Model(MemoryIdStore())
    assert not model.index.freeze(len(model.arrived) - model.unapplied)
    model.add([1])
    assert model.index.freeze(len(model.arrived) - model.unapplied)
    model.add([2])
    assert not model.index.freeze(len(model.arrived) - model.unapplied)
    model.check([1, 2, 3])
    model.settle()
    assert model.index.durable_arrival == 1
    assert model.index.freeze(len(model.arrived) - model.unapplied)
    model.check([1, 2, 3])


# --- damage and races ---------------------------------------------------------------------------


def _lose(store: MemoryIdStore, kind: bytes) -> None:
    for key in [key for key in store._values if key[13:14] == kind]:
        del store._values[key]


@pytest.mark.parametrize("kind", [b"f", b"k"])
def test_a_run_without_its_filter_is_damage(kind: bytes) -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    assert isinstance(model.store, MemoryIdStore)
    _lose(model.store, kind)
    with pytest.raises(CorruptIndex):
        model.reopen()


def test_a_missing_chunk_is_damage_and_not_a_new_id() -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    assert isinstance(model.store, MemoryIdStore)
    _lose(model.store, b"c")
    with pytest.raises(CorruptIndex, match="lacks 1 chunks"):
        model.look([1])


@pytest.mark.parametrize("at", [0, 5, 20, -1])
def test_a_damaged_manifest_is_noticed(at: int) -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    assert isinstance(model.store, MemoryIdStore)
    (key,) = [key for key in model.store._values if key.endswith(b"m") and len(key) == 9]
    data = bytearray(model.store._values[key])
    data[at] ^= 1
    model.store._values[key] = bytes(data)
    with pytest.raises(CorruptIndex):
        model.reopen()


def test_chunks_of_a_run_that_was_not_finished_are_dropped_at_the_next_start() -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    store = model.store
    assert isinstance(store, MemoryIdStore)
    kept = dict(store._values)
    for number in (5, 9):
        left = id_runs.run_prefix(TOPIC, number) + b"c\0\0\0\0"
        store.write(Writes(puts=[(left, b"left over")]))
    model.reopen()
    assert store._values == kept


def test_a_look_up_whose_runs_are_merged_meanwhile_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(id_index, "RUNS_PER_LEVEL", 2)
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.index.freeze(len(model.arrived) - model.unapplied)
    assert model.index.maintain(0)
    keys = keys_of([1, 9])
    search = model.index.search_memory(keys, 0)
    assert len(search.maybe) == 1
    model.add([3])
    model.flush()
    hits = model.index.search_disk(search, keys, 0).hits
    assert (hits.rows.tolist(), hits.arrivals.tolist()) == ([0], [0])


def test_ids_are_added_while_runs_are_written(tmp_path: Path) -> None:
    store = RocksIdStore(tmp_path / "ids")
    index = IdIndex(store, TOPIC, SEED, memory_ids=2_000)
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set() or index.maintain(0):
                index.maintain(0)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for start in range(0, 60_000, 100):
        numbers = list(range(start, start + 100))
        index.add(*ids_of(numbers, start))
        if index.is_full:
            index.freeze(index.end_arrival)
        sample = keys_of([start // 2, start, start + 100])
        hits = index.search_disk(index.search_memory(sample, 0), sample, 0).hits
        assert hits.rows.tolist() == [0, 1]
    ended.set()
    thread.join()
    assert failures == []
    everything = keys_of(list(range(60_000)))
    hits = index.search_disk(index.search_memory(everything, 0), everything, 0).hits
    assert hits.arrivals.tolist() == list(range(60_000))
    store.close()


def test_the_filter_never_misses_and_seldom_errs() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 1 << 64, (20_000, 2), np.uint64)
    keys = keys[np.argsort(keys[:, 0])]
    known, other = Probes.of(*keys[::2].T), Probes.of(*keys[1::2].T)
    one, sorted_one = IdFilter.for_keys(10_000), IdFilter.for_keys(10_000)
    one.add(known)
    sorted_one.add_sorted(known)
    assert (one.words == sorted_one.words).all()
    assert one.might_hold(known).tolist() == list(range(10_000))
    assert 0 < len(one.might_hold(other)) < 20
    alone = [one.might_hold_one(first, second) for first, second in keys.tolist()]
    assert np.flatnonzero(alone).tolist() == one.might_hold(Probes.of(*keys.T)).tolist()


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], None),
        ([0] * 7, None),
        ([0] * 8, slice(0, 8)),
        ([2, *[0] * 8, 1], slice(1, 9)),
        ([2, 0, 2, 0, *[2] * 5, 1], None),
        ([3, 2, 0, 2, 0, *[2] * 6, 1], slice(1, 12)),
        ([1] * 7 + [0] * 7 + [1], slice(0, 15)),
        ([*[2] * 8, *[1] * 8], slice(8, 16)),
    ],
)
def test_runs_of_a_level_are_merged_with_the_smaller_ones_among_them(
    levels: list[int], expected: slice | None
) -> None:
    assert id_index._to_merge(levels, [1] * len(levels), 100) == expected


@pytest.mark.parametrize(
    ("ids_max", "expected"),
    [
        (39, None),  # two runs have 40
        (40, slice(0, 2)),
        (109, slice(0, 5)),
        (160, slice(0, 8)),
        (10_000, slice(0, 9)),
    ],
)
def test_no_merge_makes_a_run_larger_than_its_part_of_the_window(
    ids_max: int, expected: slice | None
) -> None:
    assert id_index._to_merge([0] * 9, [20] * 9, ids_max) == expected
    assert id_index._to_merge([2, *[0] * 9], [500, *[20] * 9], ids_max) == (
        None if expected is None else slice(1 + expected.start, 1 + expected.stop)
    )


def test_the_disk_has_little_more_than_the_window() -> None:
    model = Model(MemoryIdStore(), memory_ids=100)
    for start in range(0, 40_000, 100):
        model.add(list(range(start, start + 100)))
        model.first = max(0, len(model.arrived) - 6_000)
        model.index.freeze(len(model.arrived))
        while model.index.maintain(model.first, 6_000):
            pass
        runs = model.index._view.runs
        assert max(run.info.ids for run in runs) <= 1_000
        assert sum(run.info.ids for run in runs) <= 7_000
        assert len(runs) < 35
    model.check(list(range(33_000, 40_000, 7)))


def test_a_level_is_eight_times_the_one_below() -> None:
    sizes = (0, 1 << 13, (1 << 16) - 1, 1 << 16, (1 << 19) - 1, 1 << 19)
    assert [id_index.level_of(ids) for ids in sizes] == [0, 0, 0, 1, 1, 2]


def test_places_say_where_rows_with_ids_are() -> None:
    rows = np.array([0, 1, 4, 5, 6, 9])
    places = Places.of(70, 3, 1_000, rows)
    assert len(places) == 3
    found = places.find(np.arange(70, 76, dtype=np.uint64))
    assert found.offsets.tolist() == [1_000, 1_001, 1_004, 1_005, 1_006, 1_009]
    assert found.queues.tolist() == [3] * 6
    assert found.dues.tolist() == [0] * 6


def test_places_of_delayed_messages_say_when_they_are_due() -> None:
    delayed = Places.of(0, 1, -1, np.arange(3), 5_000_000)
    places = Places.joined([delayed, Places.of(3, 2, 9, np.arange(1))])
    found = places.find(np.arange(4, dtype=np.uint64))
    assert found.queues.tolist() == [1, 1, 1, 2]
    assert found.offsets.tolist() == [-1, -1, -1, 9]
    assert found.dues.tolist() == [5_000_000] * 3 + [0]


def test_an_id_before_all_places_is_damage() -> None:
    with pytest.raises(CorruptIndex, match="arrived as 2"):
        Places.of(5, 1, 0, np.arange(3)).find(np.array([2], np.uint64))


def test_hits_of_several_blocks_are_joined_by_row() -> None:
    left = Hits(np.array([1, 4]), np.array([10, 40], np.uint64), np.array([3, 9], np.uint64))
    right = Hits(np.array([0, 1]), np.array([5, 11], np.uint64), np.array([1, 7], np.uint64))
    joined = Hits.joined([left, Hits.none(), right])
    assert joined.rows.tolist() == [0, 1, 4]
    assert joined.digests.tolist() == [5, 11, 40]
    assert joined.arrivals.tolist() == [1, 7, 9]


def test_a_block_is_cut_by_key() -> None:
    ids = RecentIds(0, 30)
    ids.add(*ids_of(list(range(30)), 0)[:3])
    (block,) = ids.sorted(0)
    middle = int(block.columns[0][10])
    below, above = block.cut(middle)
    assert (below.columns[0] < middle).all()
    assert (above.columns[0] >= middle).all()
    assert len(below) + len(above) == 30
    assert len(block.cut(1 << 64)[0]) == 30


def test_ids_of_an_earlier_window_are_dropped() -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    other = IdIndex(model.store, TOPIC, b"x" * 16)
    assert other.end_arrival == 0
    assert isinstance(model.store, MemoryIdStore)
    assert model.store._values == {}


def test_runs_that_the_window_left_behind_are_not_missed_after_a_restart() -> None:
    """A node starts from a checkpoint, whose window may begin before the dropped runs did."""
    store = MemoryIdStore()
    model = Model(store, memory_ids=10)
    for start in (0, 10, 20):
        model.add(list(range(start, start + 10)))
        assert model.index.freeze(start + 10)
        assert model.index.maintain(0)
    assert model.index.maintain(12)
    store.crash()
    again = IdIndex(store, TOPIC, SEED, memory_ids=10)
    assert again.run_count == 2
    assert again.missing(5) == []
    again.skip_to(35)
    assert again.missing(5) == [range(30, 35)]


def test_a_dropped_index_leaves_nothing_behind() -> None:
    model = Model(MemoryIdStore())
    model.add([1, 2])
    model.flush()
    model.add([3])
    model.index.freeze(3)
    model.index.abandon()
    assert not model.index.maintain(0)
    model.index.drop(9)
    assert isinstance(model.store, MemoryIdStore)
    assert model.store._values == {end_key(TOPIC): encode_end(9)}
