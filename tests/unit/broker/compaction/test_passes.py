"""Passes over a queue: of each key the newest message stays, at its offset."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semel.broker.compaction import CompactedRun, NewestOffsets
from semel.broker.state import StateDiverged
from semel.protos.batch import Codec
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.compacting import SEED, TOMBSTONE_MS, CompactedGroup, Row
from tests.kit.state_log import KEY, control, ref

MINUTE_US = 60_000_000


def rows(chance: random.Random, number: int) -> list[Row]:
    found: list[Row] = []
    for _ in range(chance.randrange(1, 6)):
        key = chance.choice([None, *(b"k%d" % each for each in range(8))])
        value = None if key is not None and chance.random() < 0.2 else b"%d" % number
        found.append((key, value))
    return found


def test_of_each_key_the_newest_message_stays() -> None:
    group = CompactedGroup()
    group.send([(b"a", b"1"), (b"b", b"1"), (None, b"x")])
    group.send([(b"a", b"2"), (b"a", b"3")])
    group.send([(b"b", None), (b"c", b"1")])
    assert group.compact() == 1
    assert group.read() == [
        (2, (None, b"x")),
        (4, (b"a", b"3")),
        (5, (b"b", None)),
        (6, (b"c", b"1")),
    ]
    assert group.problems() == []
    queue = group.state.queues[KEY]
    assert (queue.log_start_offset, queue.log_end_offset) == (0, 7)
    assert (queue.compaction.compacted_to, queue.compaction.gaps_to) == (7, 7)
    assert queue.compaction.tombstones == 1
    assert [group.read(offset)[0][0] for offset in range(7)] == [2, 2, 2, 4, 4, 5, 6]
    before = queue.bytes
    assert group.compact() == 1, "the end of a pass is noted"
    assert queue.bytes == before
    assert len(queue.extents) == 3


def test_what_loses_all_messages_is_stood_for_by_its_neighbour_or_a_mark() -> None:
    group = CompactedGroup()
    for _ in range(6):
        group.send([(b"a", b"x"), (b"b", b"y")])
    group.send([(b"z", b"x")])
    group.compact(run_extents=4)
    queue = group.state.queues[KEY]
    assert [offset for offset, _ in group.read()] == [10, 11, 12]
    assert len(queue.extents) == 4, "a mark for each run, and what stays"
    group.compact(run_extents=100)
    assert len(queue.extents) == 3, "marks that stand side by side become one"
    extents = list(queue.extents_from(0, 1 << 40))
    group.compact(run_extents=100)
    assert list(queue.extents_from(0, 1 << 40)) == extents, "a mark is no reason to write"
    for _ in range(3):
        group.send([(b"z", b"x"), (b"a", b"1"), (b"b", b"2")])
    group.compact(run_extents=100)
    assert len(queue.extents) == 2, "a mark takes the place of everything in front"
    assert group.problems() == []


def test_a_mark_may_be_all_that_is_left() -> None:
    group = CompactedGroup()
    group.send([(b"a", b"1")])
    group.send([(b"a", None)])
    group.compact()
    group.now_us += 2 * MINUTE_US
    group.compact()
    queue = group.state.queues[KEY]
    assert group.read() == []
    assert (len(queue.extents), queue.log_end_offset, queue.compaction.tombstones) == (1, 2, 0)
    group.send([(b"b", b"1")])
    assert group.read() == [(2, (b"b", b"1"))]


def test_a_tombstone_stays_as_long_as_older_readers_may_need_it() -> None:
    group = CompactedGroup()
    group.send([(b"a", b"1")])
    group.send([(b"a", None)])
    group.now_us += 100 * MINUTE_US  # nobody has compacted meanwhile
    group.compact()
    assert group.read() == [(1, (b"a", None))], "the older message was there just now"
    group.now_us += TOMBSTONE_MS * 1000 - 1
    group.compact()
    assert group.read() == [(1, (b"a", None))]
    group.now_us += TOMBSTONE_MS * 1000
    group.compact()
    assert group.read() == []
    assert group.problems(gone=True) == []


def test_a_record_that_takes_tombstones_too_early_has_no_effect() -> None:
    group = CompactedGroup()
    group.send([(b"a", b"1")])
    group.send([(b"a", None)])
    group.compact()
    assert group.compact(tombstones_below=2) == 0
    assert group.read() == [(1, (b"a", None))]


def test_marks_are_few() -> None:
    group = CompactedGroup()
    queue = group.state.queues[KEY]
    for number in range(200):
        group.send([(b"k", b"%d" % number)])
        group.send([(b"l%d" % number, None)])
        group.now_us += 1_000_000
        group.compact(run_extents=1000)
        assert len(queue.compaction.marks) <= 20
    horizon = queue.compaction.horizon(group.now_us, TOMBSTONE_MS)
    assert 250 <= horizon <= 290, "of about two minutes and a quarter ago"
    assert group.problems(gone=True) == []


def test_what_is_younger_than_the_lag_stays() -> None:
    group = CompactedGroup(lag_ms=60_000)
    group.send([(b"a", b"1")])
    group.now_us += MINUTE_US
    group.send([(b"a", b"2")])
    group.compact()
    assert len(group.read()) == 2, "its newer message is too young"
    assert group.state.queues[KEY].compaction.compacted_to == 1
    group.now_us += MINUTE_US
    group.compact()
    assert [offset for offset, _ in group.read()] == [1]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_a_reader_ends_with_the_newest_values(seed: int) -> None:
    chance = random.Random(seed)
    group = CompactedGroup()
    for number in range(60):
        what = chance.random()
        if what < 0.6:
            codec = chance.choice(list(Codec))
            group.send(rows(chance, number), producer=chance.randrange(1, 4), codec=codec)
        elif what < 0.9:
            group.compact(run_extents=chance.randrange(1, 9))
            assert group.older() == []
        elif what < 0.93:
            end = group.state.queues[KEY].log_end_offset
            start = chance.randrange(end + 1)
            group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=start)))
            group.new_master()
        else:
            group.now_us += chance.randrange(2 * MINUTE_US)
        assert group.problems(gone=True) == []
    replayed = group.replayed()
    assert replayed.digest() == group.state.digest()
    assert group.read(state=replayed) == group.read()
    again = type(replayed).from_bytes(b"".join(replayed.to_parts()))
    assert again.digest() == replayed.digest()


@pytest.mark.parametrize("what", ["trim", "settings", "another pass"])
def test_a_record_that_comes_too_late_has_no_effect(what: str) -> None:
    group = CompactedGroup()
    for number in range(4):
        group.send([(b"a", b"%d" % number), (b"b", b"%d" % number)])
    came: list[str] = []

    def between() -> None:
        if came:
            return
        came.append(what)
        if what == "trim":
            group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=3)))
        elif what == "settings":
            settings = common_pb2.TopicSettings()
            alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
            group.apply(control(alter_topic=alter))
        else:
            group.compact()

    assert group.compact(run_extents=100, between=between) == 0
    assert group.problems() == []
    assert group.state.queues[KEY].log_end_offset == 8


def test_a_batch_that_becomes_too_large_is_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    group = CompactedGroup()
    group.send([(b"k%d" % number, b"v" * 100) for number in range(100)])
    group.send([(b"k5", b"w")])
    monkeypatch.setattr("semel.protos.columns.BODY_BYTES_MAX", 8_000)
    group.compact()
    queue = group.state.queues[KEY]
    assert len(queue.extents) == 3
    assert group.problems() == []
    group.send([(b"k6", b"w"), (b"k99", b"w")])
    group.compact(run_extents=1)
    assert group.problems() == []
    assert group.older() == []


# --- planted bugs --------------------------------------------------------------------------------


def loaded() -> CompactedGroup:
    group = CompactedGroup()
    for number in range(5):
        group.send([(b"a", b"%d" % number), (b"b%d" % number, b"x")])
    return group


class Later(NewestOffsets):
    """Believes that newer messages are there than there are."""

    def of(self, columns: Any) -> Any:
        found = super().of(columns)
        return np.where(found >= 0, found + 2, found)


def test_a_table_that_is_wrong_is_caught() -> None:
    group = loaded()
    wrong = Later(SEED, 100)
    for extent in group.state.queues[KEY].extents_from(0, 1 << 40):
        columns, offsets = group.columns(extent)
        assert columns is not None
        wrong.add(columns, offsets)
    group.compact(newest=wrong)
    assert any("key b'a' ends with" in problem for problem in group.problems())


def test_an_offset_beyond_the_range_is_caught() -> None:
    """The newest message of the key was not read: it might never be committed."""
    group = loaded()
    wrong = group.newest(0, 10)
    columns, offsets = group.columns(group.state.queues[KEY].extents_from(0, 1)[0])
    assert columns is not None
    wrong.add(columns, offsets + 100)
    group.compact(newest=wrong)
    assert group.problems() != []


def test_a_shifted_offset_is_caught() -> None:
    def shifted(run: CompactedRun) -> CompactedRun:
        first, *rest = run.batches
        moved = replace(first, base_offset=first.base_offset + 1)
        return replace(run, batches=(moved, *rest))

    with pytest.raises(StateDiverged, match="does not fit"):
        loaded().compact(spoil=shifted)


def test_a_span_that_is_too_long_is_caught() -> None:
    def long(run: CompactedRun) -> CompactedRun:
        first, *rest = run.batches
        return replace(run, batches=(replace(first, span=first.span + 1), *rest))

    with pytest.raises(StateDiverged, match="do not stand for"):
        loaded().compact(spoil=long)


def test_a_batch_that_is_missing_is_caught() -> None:
    with pytest.raises(StateDiverged, match="does not fit"):
        loaded().compact(spoil=lambda run: replace(run, batches=run.batches[1:]))


def test_a_lost_tombstone_is_caught() -> None:
    group = CompactedGroup()
    group.send([(b"a", b"1")])
    group.send([(b"a", None)])
    group.compact()
    assert group.problems() == []
    group.now_us += 2 * MINUTE_US
    group.compact()
    assert group.problems() != [], "a tombstone that is gone is told, unless it may be"
