"""Queues that are compacted move: with their gaps and marks, and without passes meanwhile."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from semel.broker.state import Duplicate, MoveApplied, MoveState, State, make_slice, read_slice
from semel.broker.state.apply.compacted import Compaction, Mark
from semel.broker.state.apply.queues import QueueSettings, QueueState
from semel.client.message import Rows
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.errors import CorruptSegment, InvalidRequest, UnsupportedVersion
from semel.protos.frames import RecordKind
from semel.protos.ids import QueueKey
from semel.protos.levels import COMPACTED_MOVE_LEVEL, COMPACTION_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.compacting import TOMBSTONE_MS, CompactedGroup, Row
from tests.kit.state_log import KEY, control, ref
from tests.unit.broker.state.moving import Home, begin, copy_some

SETTINGS = common_pb2.TopicSettings(compaction=common_pb2.Compaction(tombstone_ms=TOMBSTONE_MS))
SECOND_US = 1_000_000


class Mover(CompactedGroup):
    """A broker group of a compacted topic; the first one has the queue."""

    step: Any = Home.step
    key = KEY

    def __init__(self, number: int, level: int = COMPACTED_MOVE_LEVEL) -> None:
        self.number = number
        super().__init__()
        if level > COMPACTION_LEVEL:
            self.raise_level(level)
        if number > 1:
            self.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
            self.new_master()

    def stored(self, what: Any) -> bytes:
        return Home.stored(self, what) if isinstance(what, int) else super().stored(what)  # type: ignore[arg-type]

    def alter(self, settings: common_pb2.TopicSettings) -> None:
        record = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
        self.apply(control(alter_topic=record))
        self.new_master()

    def restart(self) -> None:
        data = b"".join(self.state.to_parts())
        self.state = State.from_bytes(data)
        assert b"".join(self.state.to_parts()) == data
        self.new_master()

    @property
    def compaction(self) -> Compaction:
        return self.state.queues[KEY].compaction


def later(groups: tuple[Mover, ...], seconds: float) -> None:
    for group in groups:
        group.now_us += int(seconds * SECOND_US)


@pytest.fixture
def source() -> Mover:
    """`a` and `b0` have newer messages, `b1` a tombstone; one pass is over."""
    group = Mover(1)
    for number in range(6):
        group.send([(b"a", b"%d" % number), (b"b%d" % number, b"x"), (None, b"y")])
    group.send([(b"b0", b"z"), (b"b1", None)])
    group.compact(run_extents=4)
    group.send([(b"a", b"last")])
    return group


@pytest.fixture
def target() -> Mover:
    return Mover(2)


def bring(source: Mover, target: Mover, job: int = 1, *, time_us: int | None = None) -> Any:
    """All that is left of a frozen queue; what INGEST said."""
    copy_some(source, target, 1 << 20)  # type: ignore[arg-type]
    state = source.state
    level = state.feature_level
    parts = state.queues[KEY], state.producers, state.groups, state.delays
    data = make_slice(*parts, level)
    for at in range(0, len(data), 100):
        error = target.step("PART", job, source.number, offset=at, part=data[at : at + 100])
        assert error is None
    source_time_us = source.now_us if time_us is None else time_us
    digest = hashlib.sha256(data).digest()
    end = {"offset": len(data), "digest": digest, "source_time_us": source_time_us}
    return target.step("INGEST", job, source.number, **end)


def activate(source: Mover, target: Mover, job: int = 1) -> None:
    create = control_pb2.CreateQueue(
        queue=ref(), topic="orders", slot_end=65_536, settings=SETTINGS
    )
    assert target.step("ACTIVATE", job, source.number, create=create) is None
    assert source.step("FORWARD", job, target.number) is None
    target.sent, target.fenced, target._last = source.sent, source.fenced, source._last
    target.new_master()


def move(source: Mover, target: Mover, job: int = 1) -> None:
    assert source.step("HOLD", job, target.number) is None
    assert begin(source, target, job) is None  # type: ignore[arg-type]
    copy_some(source, target, 3)  # type: ignore[arg-type]
    assert source.step("SEAL", job, target.number) is None
    assert bring(source, target, job) is None
    activate(source, target, job)


def read(group: Any) -> list[tuple[int, Row]]:
    queue, found = group.state.queues[KEY], []
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        stored = memoryview(group.payload(extent.index, extent.position))
        end = extent.first_row + extent.count
        rows = Rows("t", QueueKey(*KEY), stored, extent.base_offset, extent.first_row, end)
        found += [(each.offset, (each.key, each.value)) for each in rows.messages()]
    return found


# --- what moves


def test_gaps_and_marks_move_there_and_back(source: Mover, target: Mover) -> None:
    before, known = source.read(), source.compaction.copy()
    assert before[0][0] > 0
    assert known.marks
    assert known.compacted_to
    move(source, target)
    target.restart()
    assert target.read() == before
    assert target.compaction == known
    assert target.state.queues[KEY].settings.compaction is not None
    assert target.problems() == []
    target.send([(b"a", b"newer"), (b"b2", None)])
    assert target.compact() > 0
    assert target.older() == []
    move(target, source, 2)
    source.restart()
    newest = {key: at for at, (key, _) in enumerate(source.sent) if key is not None}
    left = [
        (at, row) for at, row in enumerate(source.sent) if row[0] is None or newest[row[0]] == at
    ]
    assert source.read() == left
    assert source.compaction.records > known.records


def test_a_retry_of_a_batch_of_which_messages_are_gone_is_a_duplicate(
    source: Mover, target: Mover
) -> None:
    first = check_batch(source.stored(0), BROKER_HEADER_BYTES)
    (row,) = source.state.producers.rows(KEY)
    move(source, target)
    assert list(target.state.producers.rows(KEY)) == [row]
    sent = row.window[0]
    assert sent.base_offset == 0
    assert first.count < sent.count
    again = replace(
        first,
        flags=0,
        count=sent.count,
        base_sequence=sent.base_sequence,
        last_sequence=sent.last_sequence,
        content_crc=sent.content_crc,
    )
    assert target.produce(again) == Duplicate(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead_s", [-3_600, 0, 3_600], ids=["behind", "same", "ahead"])
def test_tombstones_keep_their_age_when_the_clocks_differ(
    source: Mover, target: Mover, ahead_s: int
) -> None:
    """The source's mark is 20 of 60 seconds old. The other group's clock says another time."""
    later((target,), ahead_s + 7_200)
    later((source,), 7_200)
    source.send([(b"c", b"1")])
    source.compact()
    later((source, target), 20)
    move(source, target)
    offset = target.compaction.compacted_to
    assert offset == target.state.queues[KEY].log_end_offset
    later((target,), 39)
    assert target.compaction.horizon(target.now_us, TOMBSTONE_MS) < offset
    later((target,), 1)
    assert target.compaction.horizon(target.now_us, TOMBSTONE_MS) == offset
    target.compact()
    assert (b"b1", None) not in [row for _, row in target.read()]
    assert target.problems(gone=True) == []


# --- passes rest meanwhile


def test_nothing_is_compacted_between_hold_and_seal(source: Mover, target: Mover) -> None:
    assert source.step("HOLD", 1, 2) is None
    before, records = source.read(), source.compaction.records
    assert source.compact() == 0
    source.restart()
    assert source.compact() == 0
    assert (source.read(), source.compaction.records) == (before, records)
    source.send([(b"a", b"while it is copied")])
    assert source.step("HOLD", 1, 2) is None, "it may be repeated"
    assert source.step("SEAL", 1, 2) is None
    assert source.compact() == 0
    source.restart()
    assert source.step("HOLD", 1, 2) is None
    assert source.state.moves.places[KEY].state is MoveState.FROZEN
    assert source.step("UNSEAL", 1, 2) is None
    assert source.compact() > 0


def test_a_move_that_is_given_up_lets_compaction_go_on(source: Mover) -> None:
    source.step("HOLD", 1, 2)
    assert source.step("UNSEAL", 1, 2) is None
    assert source.state.moves.places[KEY].state is MoveState.HERE
    error = source.step("HOLD", 1, 2)
    assert isinstance(error, InvalidRequest), "its job is over"
    source.restart()
    assert source.compact() > 0


def test_a_job_holds_only_what_it_may_move(source: Mover, target: Mover) -> None:
    assert source.step("HOLD", 2, 2) is None
    assert isinstance(source.step("HOLD", 1, 2), InvalidRequest), "an older job"
    assert isinstance(source.step("SEAL", 1, 2), InvalidRequest)
    assert source.step("HOLD", 3, 2) is None, "the newer job goes on"
    assert isinstance(source.step("SEAL", 2, 2), InvalidRequest)
    assert source.step("UNSEAL", 2, 2) is None, "it comes late"
    assert source.state.moves.holds(KEY, 3)
    assert source.state.queues[KEY].held
    assert source.step("SEAL", 3, 2) is None
    assert source.step("HOLD", 4, 2) is not None, "it is sealed"
    assert target.step("HOLD", 1, 1) is not None, "it is not here"


def test_a_compacted_queue_is_sealed_only_by_the_job_that_holds_it(source: Mover) -> None:
    error = source.step("SEAL", 1, 2)
    assert isinstance(error, InvalidRequest)
    assert "does not hold" in error.message
    source.alter(common_pb2.TopicSettings())
    assert source.step("SEAL", 1, 2) is None


def test_a_pass_that_is_under_way_has_no_effect_after_hold(source: Mover) -> None:
    """Its record was proposed before; it comes behind the HOLD in the log."""
    records, held = source.compaction.records, list[Any]()

    def hold() -> None:
        if not held:
            held.append(source.step("HOLD", 1, 2))

    assert source.compact(between=hold) == 0
    assert held == [None]
    assert source.compaction.records == records


def test_planted_without_hold_a_tombstone_is_missed(source: Mover, target: Mover) -> None:
    """The copy has the message that the tombstone hides, and the source removes both."""

    def run() -> list[str]:
        source.send([(b"d", b"1"), (b"e", b"1")])
        at = source.state.queues[KEY].log_end_offset
        assert source.step("HOLD", 1, 2) is None
        begin(source, target, 1)  # type: ignore[arg-type]
        copy_some(source, target, 99)  # type: ignore[arg-type]
        assert target.state.moves.incoming[KEY].queue.log_end_offset == at
        source.send([(b"d", None), (b"f", b"1")])
        source.compact()
        later((source, target), TOMBSTONE_MS / 1000)
        source.send([(b"g", b"1")])
        source.compact()
        assert source.step("SEAL", 1, 2) is None
        found = bring(source, target)
        if found is not None:
            return [f"the move fails: {found}"]
        activate(source, target)
        return target.problems(gone=True)

    compact = QueueState.compact

    def unheld(self: Any, *args: Any) -> bool:
        self.held = False  # the bug
        return compact(self, *args)

    with patch.object(QueueState, "compact", unheld):
        problems = run()
    assert any("key b'd' ends with" in each for each in problems), problems


# --- what is refused


def test_an_ingest_without_the_time_of_the_source_is_refused(source: Mover, target: Mover) -> None:
    source.step("HOLD", 1, 2)
    begin(source, target, 1)  # type: ignore[arg-type]
    source.step("SEAL", 1, 2)
    error = bring(source, target, time_us=0)
    assert isinstance(error, InvalidRequest)
    assert "how late" in error.message


def test_below_its_level_a_compacted_queue_does_not_move() -> None:
    source = Mover(1, COMPACTION_LEVEL)
    source.send([(b"a", b"1")])
    error = source.step("SEAL", 1, 2)
    assert isinstance(error, InvalidRequest)
    assert "--cleanup delete" in error.message
    assert isinstance(source.step("HOLD", 1, 2), UnsupportedVersion)
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step=control_pb2.MOVE_STEP_HOLD)
    before = b"".join(source.state.to_parts())
    (result,) = source.apply(control(move_queue=record))
    assert isinstance(result, MoveApplied)
    assert isinstance(result.error, InvalidRequest)
    assert "has no step" in result.error.message, "as for a program that does not know it"
    changed = State.from_bytes(before)
    assert changed.moves.places == source.state.moves.places


def test_gaps_move_along_below_the_level_once_compaction_is_off() -> None:
    source = Mover(1, COMPACTION_LEVEL)
    for number in range(6):
        source.send([(b"a", b"%d" % number), (b"b%d" % number, b"x")])
    source.compact()
    source.alter(common_pb2.TopicSettings())
    before = source.read()
    target = Home(2, at_level=COMPACTION_LEVEL)
    assert begin(source, target, 1) is None  # type: ignore[arg-type]
    copy_some(source, target, 3)  # type: ignore[arg-type]
    assert source.step("SEAL", 1, 2) is None
    assert bring(source, target, time_us=0) is None  # type: ignore[arg-type]
    target.restart()
    assert target.step("ACTIVATE", 1, 1) is None
    assert read(target) == before
    queue = target.state.queues[KEY]
    assert queue.compaction.gaps_to > 0
    assert (queue.compaction.compacted_to, queue.compaction.marks) == (0, [])


def test_a_topic_that_is_not_compacted_any_more_takes_no_marks_along(
    source: Mover, target: Mover
) -> None:
    source.step("HOLD", 1, 2)
    begin(source, target, 1)  # type: ignore[arg-type]
    source.step("SEAL", 1, 2)
    assert bring(source, target) is None
    create = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
    assert target.step("ACTIVATE", 1, 1, create=create) is None
    found = target.compaction
    assert (found.marks, found.tombstones, found.purged_to) == ([], 0, 0)
    assert found.gaps_to == source.compaction.gaps_to


def test_a_span_that_is_not_of_the_batch_is_not_taken(source: Mover, target: Mover) -> None:
    begin(source, target, 1)  # type: ignore[arg-type]
    plain = Mover(1)
    plain.send([(b"a", b"1")])
    stored = plain.stored(0)
    compacted = source.stored(0)
    wrong = compacted[:BROKER_HEADER_BYTES] + stored[BROKER_HEADER_BYTES:]
    target.entry.append((RecordKind.COPY, [wrong]))
    error = target.commit()[-1].error  # type: ignore[union-attr]
    assert isinstance(error, InvalidRequest)


# --- the slice


def test_a_slice_says_how_far_compaction_is_only_if_it_ever_began(source: Mover) -> None:
    state, queue = source.state, source.state.queues[KEY]
    parts = queue, state.producers, state.groups, state.delays
    found = read_slice(make_slice(*parts, COMPACTED_MOVE_LEVEL)).queue
    assert found.compaction == queue.compaction
    assert found.settings.compaction == queue.settings.compaction
    assert make_slice(*parts, COMPACTION_LEVEL) == make_slice(*parts)
    found = read_slice(make_slice(*parts)).queue
    assert (found.compaction, found.settings.compaction) == (Compaction(), None)
    parts = QueueState(KEY, "t", 0, 65_536, QueueSettings()), *parts[1:]
    assert make_slice(*parts, COMPACTED_MOVE_LEVEL) == make_slice(*parts)
    newer = control_pb2.QueueSlice.FromString(make_slice(*parts))
    newer.version = 10
    with pytest.raises(CorruptSegment, match="upgrade this group"):
        read_slice(newer.SerializeToString())


def test_marks_are_dated_by_their_age() -> None:
    known = Compaction(10, 8, 1, 5, 2, [Mark(4, 100), Mark(10, 200)])
    found = known.dated(-50, 9)
    assert found == Compaction(10, 9, 1, 5, 2, [Mark(4, 50), Mark(10, 150)])
    assert known.dated(0, 3) == known
    assert known.marks[0].time_us == 100


# --- all together


@pytest.mark.parametrize("seed", range(40))
def test_a_queue_that_moves_again_and_again_ends_with_the_newest_values(seed: int) -> None:
    """Sends, passes, moves there and back, moves that are given up and restarts, in any order."""
    chance = random.Random(seed)
    groups = Mover(1), Mover(2)
    home, job, stage = 0, 0, "none"
    for _ in range(60):
        here, there = groups[home], groups[1 - home]
        later(groups, chance.random() * 20)
        does = chance.choice(["send", "send", "compact", "move", "move", "give up", "restart"])
        if does == "send" and stage != "sealed":
            rows: list[Row] = [
                (chance.choice([None, *(b"k%d" % number for number in range(5))]), b"%d" % job)
                for _ in range(chance.randrange(1, 5))
            ]
            keyed = [(k, None if k is not None and chance.random() < 0.3 else v) for k, v in rows]
            here.send(keyed, producer=chance.randrange(1, 3))
        elif does == "compact" and here.state.queues[KEY].extents.total:
            done = here.compact(run_extents=chance.randrange(1, 5))
            assert not done or stage == "none"
        elif does == "restart":
            groups[chance.randrange(2)].restart()
        elif does == "give up" and stage != "none" and chance.random() < 0.5:
            assert here.step("UNSEAL", job, there.number) is None
            assert there.step("ABORT", job, here.number) is None
            stage = "none"
        elif does == "move" and stage == "none":
            job += 1
            assert here.step("HOLD", job, there.number) is None
            assert begin(here, there, job) is None  # type: ignore[arg-type]
            stage = "copying"
        elif does == "move" and stage == "copying":
            copy_some(here, there, chance.randrange(1, 4))  # type: ignore[arg-type]
            if chance.random() < 0.4:
                assert here.step("SEAL", job, there.number) is None
                stage = "sealed"
        elif does == "move":
            assert bring(here, there, job) is None
            activate(here, there, job)
            home, stage = 1 - home, "none"
        assert groups[home].problems(gone=True) == []
    owner = groups[home].state.queues[KEY]
    assert all(older < newer for older, newer in pairwise(owner.compaction.marks))
