"""An index that lost ids has them again once it has copied the runs of a peer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup import id_index, id_runs, run_copies
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import CorruptIndex, MemoryIdStore
from semel.broker.dedup.run_copies import Piece, RunCopy, pieces

TOPIC = 7
SEED = bytes(16)
MEMORY_IDS = 40


def keys_of(arrivals: range) -> U64:
    """First halves that are in no order, and some of which are equal."""
    numbers = np.array(arrivals, np.uint64)
    first = (numbers // np.uint64(3)) * np.uint64(0x9E3779B97F4A7C15)
    return np.stack([first, numbers], axis=1)


def places_of(arrivals: range) -> Places:
    """Batches of seven messages, of which every third is delayed."""
    joined = [Places.none()]
    for batch in range(arrivals.start // 7, -(-arrivals.stop // 7)):
        own = range(max(arrivals.start, batch * 7), min(arrivals.stop, batch * 7 + 7))
        rows = np.arange(len(own))
        due = 10_000 + batch if batch % 3 == 0 else 0
        joined.append(Places.of(own.start, batch % 5, 1_000 + own.start, rows, due))
    return Places.joined(joined)


def add(index: IdIndex, arrivals: range) -> None:
    digests = np.array(arrivals, np.uint64) * np.uint64(11)
    index.add(keys_of(arrivals), digests, places_of(arrivals), arrivals.start)


class Node:
    """An index that follows a log, and its store."""

    def __init__(self) -> None:
        self.store = MemoryIdStore()
        self.open(0)

    def open(self, following: int) -> None:
        self.index = IdIndex(self.store, TOPIC, SEED, memory_ids=MEMORY_IDS)
        if self.index.end_arrival < following:
            self.index.skip_to(following)

    def follow(self, following: int) -> None:
        if self.index.end_arrival < following:
            add(self.index, range(self.index.end_arrival, following))

    def settle(self, first: int) -> None:
        while self.index.durable_arrival < self.index.end_arrival:
            self.index.freeze(self.index.end_arrival)
            assert self.index.maintain(first)
        while self.index.maintain(first):
            pass

    def check(self, first: int, following: int) -> None:
        """Knows exactly what it does not miss of the window."""
        missing = [each for gap in self.index.missing(first) for each in gap]
        expected = sorted(set(range(first, following)) - set(missing))
        keys = keys_of(range(following + 20))
        hits = self.index.search_disk(self.index.search_memory(keys, first), keys, first).hits
        assert hits.arrivals.tolist() == hits.rows.tolist() == expected
        assert hits.digests.tolist() == [each * 11 for each in expected]
        found = self.index.places_of(hits.arrivals)
        for arrival, queue, offset, due in zip(expected, *found[:3], strict=True):
            delayed = arrival // 7 % 3 == 0
            assert queue == arrival // 7 % 5
            assert offset == (-1 if delayed else 1_000 + arrival)
            assert due == (10_000 + arrival // 7 if delayed else 0)


def copy_run(node: Node, peer: Node, first: int, *, peer_first: int | None = None) -> None:
    """What the calls between nodes do."""
    missing = node.index.missing(first)[0]
    peer_first = first if peer_first is None else peer_first
    held_first = max(missing.start, peer_first)
    peer.settle(peer_first)
    run = peer.index.run_with(held_first)
    assert run is not None
    held = range(max(held_first, run.info.first_arrival), run.info.end_arrival)
    copy = RunCopy(node.index, missing, ids=run.info.ids, held=held)
    for piece in pieces(run, held.start):
        copy.add(piece)
    copy.finish()
    gaps = node.index.missing(first)
    assert not gaps or gaps[0].start > missing.start
    assert copy.ids


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_runs, "CHUNK_IDS", 4)
    monkeypatch.setattr(id_runs, "PART_PLACES", 2)
    monkeypatch.setattr(id_index, "RUNS_PER_LEVEL", 3)
    monkeypatch.setattr(id_index, "LEVEL_IDS", 5)
    monkeypatch.setattr(id_index, "MERGE_IDS", 10)
    monkeypatch.setattr(run_copies, "PIECE_CHUNKS", 3)
    monkeypatch.setattr(run_copies, "PIECE_PARTS", 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "skip", "settle", "settle peer", "crash", "wipe", "evict", "copy"]
        ),
        st.integers(1, 30),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_copies_fill_all_gaps(steps: list[tuple[str, int]]) -> None:
    node, peer = Node(), Node()
    first = following = 0
    for what, number in steps:
        match what:
            case "arrive":
                following += number
                node.follow(following)
            case "skip":
                following += number
                node.index.skip_to(following)
            case "settle":
                node.settle(first)
            case "crash":
                node.store.crash()
                node.open(following)
            case "wipe":
                node.index.abandon()
                node.store.wipe()
                node.open(following)
            case "evict":
                first = min(following, first + number)
            case "copy" if node.index.missing(first):
                peer.follow(following)
                copy_run(node, peer, first)
        peer.follow(following)
        if what == "settle peer":
            peer.settle(first)
        node.check(first, following)
    while node.index.missing(first):
        copy_run(node, peer, first)
    node.check(first, following)
    node.settle(first)
    node.check(first, following)
    node.store.crash()
    node.open(following)
    node.check(first, following)
    assert not node.index.missing(first)


@pytest.fixture
def pair() -> tuple[Node, Node]:
    """A node that lacks the arrivals 30 to 99, and a whole peer."""
    node, peer = Node(), Node()
    node.follow(30)
    node.settle(0)
    node.index.skip_to(100)
    node.follow(120)
    peer.follow(120)
    return node, peer


def test_a_gap_is_no_hit_and_stops_merges(pair: tuple[Node, Node]) -> None:
    node, _ = pair
    assert node.index.missing(0) == [range(30, 100)]
    assert node.index.missing(50) == [range(50, 100)]
    assert node.index.missing(100) == []
    for end in range(121, 130):
        node.follow(end)
        node.settle(0)
    assert node.index.run_count == 10
    assert node.index.run_with(29) is not None
    assert node.index.run_with(30) is None
    node.settle(100)
    assert node.index.run_count < 10


def test_a_pinned_index_keeps_its_runs(pair: tuple[Node, Node]) -> None:
    _, peer = pair
    with peer.index.pinned():
        for end in range(121, 130):
            peer.follow(end)
            peer.settle(0)
        assert peer.index.run_count == 9
    peer.settle(0)
    assert peer.index.run_count < 9


def test_a_peer_whose_window_begins_later_gives_what_it_has(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    copy_run(node, peer, 0, peer_first=60)
    assert node.index.missing(0) == []
    node.check(60, 120)


def run_of(peer: Node) -> tuple[list[Piece], range, int]:
    peer.settle(0)
    run = peer.index.run_with(30)
    assert run is not None
    info = run.info
    return list(pieces(run, 30)), range(info.first_arrival, info.end_arrival), info.ids


def test_a_copy_that_lacks_a_piece_is_not_taken(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    found, held, ids = run_of(peer)
    copy = RunCopy(node.index, range(30, 100), ids=ids, held=held)
    for piece in found[1:]:
        copy.add(piece)
    with pytest.raises(CorruptIndex, match=r"a peer gave \d+ ids of 70"):
        copy.finish()
    assert node.index.missing(0) == [range(30, 100)]


@pytest.mark.parametrize("piece", [Piece(b"x" * 31, b""), Piece(b"", b"x" * 23)])
def test_a_piece_of_half_an_id_is_refused(pair: tuple[Node, Node], piece: Piece) -> None:
    node, _ = pair
    copy = RunCopy(node.index, range(30, 100), ids=70, held=range(120))
    with pytest.raises(CorruptIndex, match="a piece has"):
        copy.add(piece)


def test_an_index_that_was_given_up_takes_no_piece(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    found, held, ids = run_of(peer)
    copy = RunCopy(node.index, range(30, 100), ids=ids, held=held)
    node.index.abandon()
    with pytest.raises(CorruptIndex, match="no longer used"):
        copy.add(found[0])


def test_a_copy_writes_no_tables_once_its_index_is_given_up(pair: tuple[Node, Node]) -> None:
    """The next index of the topic may have a run of that number by then."""
    node, peer = pair
    found, held, ids = run_of(peer)
    copy = RunCopy(node.index, range(30, 100), ids=ids, held=held)
    for piece in found:
        copy.add(piece)
    before = dict(node.store._values)
    node.index.abandon()
    with pytest.raises(CorruptIndex, match="no longer used"):
        copy.finish()
    assert node.store._values == before


def test_a_copy_while_memory_is_not_written_is_in_its_place(pair: tuple[Node, Node]) -> None:
    """What was in memory before the gap is written after the copy that fills it."""
    node, peer = pair
    node.index.skip_to(140)
    peer.follow(140)
    assert node.index.missing(0) == [range(30, 100), range(120, 140)]
    for _ in range(2):
        copy_run(node, peer, 0)
    node.check(0, 140)
    node.settle(0)
    node.check(0, 140)
    assert node.index.durable_arrival == 140


def refuse(store: MemoryIdStore) -> None:
    """The disk refuses a change, so the store is opened again: what was not synced is gone."""
    store.failures += 1
    store.crash()


def test_a_copy_of_which_pieces_were_lost_is_begun_anew(pair: tuple[Node, Node]) -> None:
    node, peer = pair
    peer.settle(0)
    (missing,) = node.index.missing(0)
    run = peer.index.run_with(missing.start)
    assert run is not None
    copy = RunCopy(node.index, missing, ids=run.info.ids, held=range(missing.start, 120))
    for number, piece in enumerate(pieces(run, missing.start)):
        copy.add(piece)
        if not number:
            refuse(node.store)
    with pytest.raises(OSError, match="was lost in part"):
        copy.finish()
    assert node.index.missing(0) == [missing]
    copy_run(node, peer, 0)
    node.check(0, 120)


def test_a_merge_of_which_parts_were_lost_is_begun_anew() -> None:
    node = Node()
    for end in (40, 80, 120):
        node.follow(end)
        node.index.freeze(end)
        assert node.index.maintain(0)
    assert node.index.maintain(0)
    assert node.index.run_count == 3
    refuse(node.store)
    with pytest.raises(OSError, match="was lost in part"):
        node.settle(0)
    node.check(0, 120)
    node.settle(0)
    assert node.index.run_count == 1
    node.check(0, 120)
