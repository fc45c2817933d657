"""The ids of a transaction's batches, against a model that looks at one message after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from semel.broker.dedup import pinned_ids
from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.dedup.pinned_ids import (
    PinnedDecision,
    PinnedIds,
    PinnedRecord,
    may_grow_too_large,
)
from semel.broker.state import KnownIds
from semel.protos.batch import BATCH_BYTES_MAX, BROKER_HEADER_BYTES, Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.dropped import DROPPED, SAME_TRANSACTION
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.staging import STAGER_EPOCH, STAGER_ID_MIN

SEED = b"0123456789abcdef"
PRINTS = Fingerprints(SEED)
Message = tuple[bytes | None, bytes]
ENTRY = 90
"""That of the publication."""


@dataclass
class Case:
    """An index with what arrived so far, and batches of a transaction in two queues."""

    batches: Sequence[tuple[int, int, Sequence[Message]]]
    """Queue, when it is due, and messages."""
    small: bool = True
    keep_first: bool = False
    first_arrival: int = 0
    cancelled: list[int] = field(default_factory=list)
    arrived: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = IdIndex(MemoryIdStore(), 7, SEED, memory_ids=8)
        self.stored: dict[tuple[int, int], bytes] = {}
        self.batches = sorted(self.batches, key=lambda batch: batch[0])
        records, previous = [], -1
        for number, (queue, due_us, messages) in enumerate(self.batches):
            data = batch_of(messages, previous, queue, due_us)
            previous += len(messages)
            self.stored[number + 1, 48] = bytes(BROKER_HEADER_BYTES) + data
            records.append(PinnedRecord(number + 1, 48, BROKER_HEADER_BYTES + len(data)))
        self.pinned = PinnedIds(self.index, PRINTS, records, small=self.small)

    def read(self, entry: int, position: int, length: int) -> bytes:
        payload = self.stored[entry, position]
        assert len(payload) == length
        return payload

    @property
    def window(self) -> KnownIds:
        half = len(self.cancelled) // 2
        lists = sorted(self.cancelled[:half]), sorted(self.cancelled[half:])
        return KnownIds(self.first_arrival, lists, self.keep_first)

    def arrive(self, messages: Sequence[Message]) -> None:
        """Messages that were stored by somebody else, in queue 5."""
        if not messages:
            return
        names = pa.array([name for name, _ in messages], pa.binary())
        columns = Columns.from_arrow([value for _, value in messages], message_ids=names)
        start = len(self.arrived)
        places = Places.of(start, 5, 100 + start, np.arange(len(messages)))
        self.index.add(PRINTS.keys(names), PRINTS.digests(columns), places, start)
        self.arrived += messages

    def known(self, message_id: bytes) -> int | None:
        """The newest arrival that counts."""
        for arrival in reversed(range(self.first_arrival, len(self.arrived))):
            if self.arrived[arrival][0] == message_id and arrival not in self.cancelled:
                return arrival
        return None

    def expected(self) -> list[list[tuple[int, int]]]:
        """Messages to be dropped, as `DROPPED`, batch by batch."""
        mine: dict[bytes, bytes] = {}
        found = []
        sequence = 0
        for _, _, messages in self.batches:
            lost = []
            for name, value in messages:
                if name is not None:
                    arrival = self.known(name)
                    if arrival is not None:
                        first, content = arrival, self.arrived[arrival][1]
                    else:
                        first, content = SAME_TRANSACTION, mine.get(name, b"")
                    if arrival is not None or name in mine:
                        same = self.keep_first or content == value
                        lost.append((sequence, first if same else -1 - first))
                    mine.setdefault(name, value)
                sequence += 1
            found.append(lost)
        return found

    def kept(self) -> list[list[Message]]:
        sequence, kept = 0, []
        for (_, _, messages), lost in zip(self.batches, self.expected(), strict=True):
            gone = {each for each, _ in lost}
            kept.append([m for at, m in enumerate(messages, sequence) if at not in gone])
            sequence += len(messages)
        return kept

    def decide(self, ends: dict[int, int] | None = None) -> PinnedDecision:
        begins = {key(queue): (ends or {}).get(queue, 10) for queue in (0, 1)}
        return self.pinned.decide(self.window, len(self.arrived), begins, ENTRY)


def key(queue: int) -> QueueKey:
    return QueueKey(TopicId(7), QueueId(queue))


def batch_of(
    messages: Sequence[Message],
    previous: int,
    queue: int,
    due_us: int = 0,
    codec: Codec = Codec.NONE,
) -> bytes:
    names = [name for name, _ in messages]
    return encode_batch(
        Columns.from_arrow(
            [value for _, value in messages],
            message_ids=pa.array(names, pa.binary()) if any(names) else None,
        ),
        topic_id=7,
        queue_id=queue,
        producer_id=STAGER_ID_MIN,
        epoch=STAGER_EPOCH,
        session=1,
        previous_sequence=previous,
        base_sequence=previous + 1,
        last_sequence=previous + len(messages),
        timestamp_us=1,
        deliver_at_us=due_us,
        codec=codec,
    )


def messages_in(batch: bytes) -> list[Message]:
    header = check_batch(batch)
    if not header.count:
        return []
    columns = decode_columns(batch, header)
    names = columns.message_ids
    listed = [None] * header.count if names is None else names.to_pylist()
    return list(zip(listed, columns.values.to_pylist(), strict=True))


def logged(record: Any) -> list[tuple[int, int]]:
    return [tuple(each) for each in np.frombuffer(record.dropped, DROPPED).tolist()]


def check_decision(case: Case, before: int, decision: PinnedDecision) -> None:
    """The decision is that of the model, and the index has the ids at their places."""
    kept, lost = case.kept(), case.expected()
    ids = [[name for name, _ in each if name is not None] for each in kept]
    assert decision.ids == [len(each) for each in ids]
    assert [record is None for record in decision.records] == [bool(each) for each in lost]
    placed = iter(decision.placed)
    ends = {0: 10, 1: 10}
    expected = []
    arrival = before
    for number, (queue, due_us, _) in enumerate(case.batches):
        if lost[number]:
            rewrite, base_offset = next(placed)
            assert messages_in(rewrite.batch) == kept[number]
            assert rewrite.messages == len(kept[number])
            assert logged(rewrite.record) == lost[number]
            assert rewrite.record.count == len(case.batches[number][2])
            assert rewrite.record.duplicates == sum(first >= 0 for _, first in lost[number])
            assert base_offset == (-1 if due_us and kept[number] else ends[queue])
        for row, (name, _) in enumerate(kept[number]):
            if name is not None:
                place = (queue, -1, due_us) if due_us else (queue, ends[queue] + row, 0)
                holder = ENTRY if lost[number] else number + 1
                expected.append((name, arrival, (*place, holder if due_us else 0)))
                arrival += 1
        ends[queue] += 0 if due_us else len(kept[number])
    assert decision.ends == {key(queue): end for queue, end in ends.items()}
    assert case.index.end_arrival == arrival
    if expected:
        keys = PRINTS.keys(pa.array([name for name, _, _ in expected], pa.binary()))
        search = case.index.search_memory(keys, before)
        hits = case.index.search_disk(search, keys, before).hits
        assert hits.arrivals.tolist() == [at for _, at, _ in expected]
        places = case.index.places_of(hits.arrivals)
        assert list(zip(*(column.tolist() for column in places), strict=True)) == [
            place for _, _, place in expected
        ]


NAMES = st.integers(0, 9).map(lambda number: b"id %d" % number)
VALUES = st.sampled_from([b"1", b"2"])
MESSAGES = st.lists(st.tuples(st.one_of(st.none(), NAMES), VALUES), min_size=1, max_size=12)
ARRIVING = st.lists(
    st.one_of(
        st.lists(st.tuples(NAMES, VALUES), max_size=6),
        st.sampled_from(["freeze", "maintain", "write", "cancel", "evict"]),
    ),
    max_size=8,
)


def happen(case: Case, steps: list[Any]) -> None:
    for step in steps:
        match step:
            case "freeze":
                case.index.freeze(len(case.arrived))
            case "maintain":
                case.index.maintain(case.first_arrival)
            case "write":
                case.index.freeze(len(case.arrived))
                while case.index.maintain(case.first_arrival):
                    pass
            case "cancel" if len(case.arrived) > case.first_arrival:
                case.cancelled.append(case.first_arrival)
                case.cancelled = sorted({*case.cancelled, len(case.arrived) - 1})
            case "evict":
                case.first_arrival = (case.first_arrival + len(case.arrived)) // 2
            case list():
                # An id arrives only if it is not known.
                fresh: dict[bytes, bytes] = {}
                for name, value in step:
                    if case.known(name) is None:
                        fresh.setdefault(name, value)
                case.arrive(list(fresh.items()))


EVERYTHING = given(
    before=ARRIVING,
    batches=st.lists(
        st.tuples(st.sampled_from([0, 1]), st.sampled_from([0, 0, 7_000]), MESSAGES), max_size=4
    ),
    since=ARRIVING,
    keep_first=st.booleans(),
    small=st.booleans(),
)


@EVERYTHING
@settings(max_examples=300, deadline=None)
def test_each_message_is_decided_as_one_by_one(**world: Any) -> None:
    check_world(**world)


def check_world(
    before: list[Any],
    batches: list[Any],
    since: list[Any],
    keep_first: bool,
    small: bool,
) -> None:
    case = Case(batches, small=small, keep_first=keep_first)
    happen(case, before)
    case.pinned.look_up(case.read, case.window)
    if not small:
        check_rewrites(case)
    happen(case, since)
    seen = case.pinned._end_arrival
    lost = any(case.expected())
    complete = case.pinned.catch_up(case.window)
    if case.index.in_memory(seen):
        assert complete is (small or not lost)
    else:
        assert not complete
        return
    if complete:
        end = len(case.arrived)
        check_decision(case, end, case.decide())


def check_rewrites(case: Case) -> None:
    """All batches that lose something are rewritten, and only those."""
    found = [
        rewrite for some in case.pinned.rewrites(case.read, case.window, 1) for rewrite in some
    ]
    expected, kept = case.expected(), case.kept()
    losing = [number for number, lost in enumerate(expected) if lost]
    assert [rewrite.replaced.entry - 1 for rewrite in found] == losing
    for number, rewrite in zip(losing, found, strict=True):
        assert logged(rewrite.record) == expected[number]
        assert messages_in(rewrite.batch) == kept[number]


def forgets_what_arrived_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PinnedIds, "_take", lambda *_: None)


def overlooks_repeats(patch: pytest.MonkeyPatch) -> None:
    nothing = np.zeros(0, np.int64)
    patch.setattr(pinned_ids, "repeated", lambda *_: (nothing, nothing))


def counts_what_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pinned_ids, "counting", lambda arrivals, _: arrivals >= 0)


def takes_wrong_offsets(patch: pytest.MonkeyPatch) -> None:
    whole = PinnedIds._places_of_all
    patch.setattr(
        PinnedIds,
        "_places_of_all",
        lambda self, arrivals, offsets: whole(self, arrivals, offsets * 0),
    )


def overlooks_what_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdIndex, "search_disk", lambda self, search, *_: search)


class Found(Exception):
    """The model did not agree."""


HUNT = settings(
    max_examples=2_000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # one that fails is enough, it need not be small
    report_multiple_bugs=False,
)


@pytest.mark.parametrize(
    "plant",
    [
        forgets_what_arrived_since,
        overlooks_repeats,
        counts_what_is_cancelled,
        takes_wrong_offsets,
        overlooks_what_is_on_disk,
    ],
)
def test_the_model_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    def look(**world: Any) -> None:
        try:
            check_world(**world)
        except Exception as error:
            raise Found from error

    with pytest.raises(Found):
        HUNT(EVERYTHING(look))()


def test_ids_that_are_too_many_for_a_turn_of_the_loop_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case([(0, 0, [(b"a", b"1")])])
    case.pinned.look_up(case.read, case.window)
    case.arrive([(b"b", b"1"), (b"c", b"1")])
    monkeypatch.setattr(pinned_ids, "LATE_MAX", 1)
    assert not case.pinned.catch_up(case.window)
    monkeypatch.setattr(pinned_ids, "LATE_MAX", 2)
    assert case.pinned.catch_up(case.window)


@pytest.mark.parametrize("small", [True, False])
def test_many_ids_are_looked_up_piece_by_piece(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_ids, "_AT_ONCE", 1_000)
    names = [b"%d" % number for number in range(6_000)]
    batches = [
        (0, 0, [(name, b"v") for name in names[at : at + 600]]) for at in range(0, 6_000, 600)
    ]
    case = Case(batches, small=small)
    known = [(name, b"v") for name in names[5::97]]
    for at in range(0, len(known), 10):
        case.arrive(known[at : at + 10])
        case.index.freeze(len(case.arrived))
        case.index.maintain(0)
    case.pinned.look_up(case.read, case.window)
    case.arrive([(names[7], b"v")])
    found = [
        rewrite for some in case.pinned.rewrites(case.read, case.window, 40_000) for rewrite in some
    ]
    assert sum(rewrite.messages for rewrite in found) == 6_000 - len(known)
    assert case.pinned.catch_up(case.window) is small
    if small:
        check_decision(case, len(case.arrived), case.decide())


def test_a_limited_number_of_batches_is_rewritten_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinned_ids, "REWRITES_MAX", 2)
    case = Case([(0, 0, [(b"a", b"1")])] * 5, small=False)
    case.arrive([(b"a", b"1")])
    case.pinned.look_up(case.read, case.window)
    found = case.pinned.rewrites(case.read, case.window, 1 << 20)
    assert [len(each) for each in found] == [2, 2, 1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_what_may_grow_too_large_is_known_before_it_is_staged(codec: Codec) -> None:
    """Every second message is kept, so there are as many sequences as messages that are listed."""
    for count, large in ((1_000, False), (240_000, False), (340_000, True)):
        data = batch_of([(b"%d" % each, b"v") for each in range(count)], -1, 0, codec=codec)
        header = check_batch(data)
        assert may_grow_too_large(header, BATCH_BYTES_MAX) is large
        if large:
            continue
        case = Case([])
        record = PinnedRecord(1, 48, BROKER_HEADER_BYTES + len(data))
        case.stored[1, 48] = bytes(BROKER_HEADER_BYTES) + data
        case.pinned = PinnedIds(case.index, PRINTS, [record], small=False)
        names = [(b"%d" % each, b"v") for each in range(0, count, 2)]
        case.arrive(names)
        case.pinned.look_up(case.read, case.window)
        ((rewrite,),) = case.pinned.rewrites(case.read, case.window, 1)
        assert len(rewrite.batch) + len(rewrite.record.dropped) <= BATCH_BYTES_MAX
