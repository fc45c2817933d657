"""A queue with delayed messages is split: each is delivered once, in order, never early.

All of it is one file, because every test stands on the same parent, children and history.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.state import Accepted, Refused, State, StateDiverged, entries_of, move_refusal
from semel.broker.state.admission import part_admission, queue_admission
from semel.broker.state.apply import parted, state_machine
from semel.broker.state.apply.delayed_extent import DelayedPlace
from semel.protos import parted_rows
from semel.protos.errors import InvalidRequest, Throttled, UnsupportedVersion
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import DELAYED_MOVE_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.parting import PartingGroup, verify_as_of
from tests.kit.state_log import KEY, control, ref

SECOND_US = 1_000_000
LOW, HIGH = QueueKey(TopicId(7), QueueId(2)), QueueKey(TopicId(7), QueueId(3))
"""The children of `KEY`."""


def ids(*numbers: int) -> list[bytes]:
    return [b"m%d" % number for number in numbers]


@pytest.fixture
def group() -> PartingGroup:
    """Messages are due in 5, 3 and 5 seconds."""
    made = PartingGroup()
    for first, seconds in ((0, 5), (8, 3), (16, 5)):
        made.delay(*ids(*range(first, first + 8)), due_us=made.now_us + seconds * SECOND_US)
    return made


def error_of(verdict: Any) -> Exception:
    assert isinstance(verdict, Refused), verdict
    return verdict.error


# --- the split, and what is parted --------------------------------------------------------------


def test_a_split_leaves_the_batches_and_they_are_parted_in_their_order(group: PartingGroup) -> None:
    before = list(group.state.delays.queues[KEY])
    assert group.split() == Accepted()
    assert list(group.state.delays.queues[KEY]) == before
    assert group.state.delays.sealed == {KEY}
    assert group.part_all() == 1
    assert group.state.delays.sealed == set()
    assert list(group.state.delays.queues) == [LOW, HIGH]
    assert (group.state.delays.messages, group.state.delays.batches) == (24, 6)
    for key in (LOW, HIGH):
        found = [(each.due_us, each.ordinal) for each in group.state.delays.queues[key]]
        assert found == [(each.due_us, each.ordinal) for each in before]
    group.same_everywhere()
    assert group.problems() == []
    group.now_us += 5 * SECOND_US
    group.release_all()
    assert group.problems(everything_due=True) == []
    group.same_everywhere()


def test_the_parts_are_before_what_the_child_has_taken_itself(group: PartingGroup) -> None:
    due_us = group.now_us + 5 * SECOND_US
    group.split()
    group.delay(*ids(*range(30, 40)), due_us=due_us)
    group.part_all()
    group.now_us = due_us
    group.release_all()
    assert group.problems(everything_due=True) == []
    for key in (LOW, HIGH):
        numbers = [int(each[1:]) for each in group.delivered(key)]
        assert numbers == sorted(numbers, key=lambda each: (each // 8 != 1, each))


def test_a_child_releases_nothing_that_comes_after_what_its_parent_holds(
    group: PartingGroup,
) -> None:
    group.split()
    now_us = group.now_us
    group.delay(*ids(*range(30, 40)), due_us=now_us + SECOND_US)
    group.delay(*ids(*range(40, 50)), due_us=now_us + 4 * SECOND_US)
    group.now_us = now_us + 6 * SECOND_US
    group.release_all()
    released = {each for key in (LOW, HIGH) for each in group.delivered(key)}
    assert released == set(ids(*range(30, 40))), "what is due before the parent's first batch"
    group.note()
    group.part_all()
    group.release_all()
    assert group.problems(everything_due=True) == []


def test_the_parent_releases_nothing(group: PartingGroup) -> None:
    group.split()
    group.now_us += 6 * SECOND_US
    assert group.release(KEY) is None
    record = control_pb2.ReleaseDelayed(
        queue=ref(), until_us=group.now_us, batches=1, messages=8, below_ordinal=100
    )
    with pytest.raises(StateDiverged):
        group.apply(control(release_delayed=record))


def test_a_release_in_flight_takes_the_same_batches_whatever_is_parted_before_it(
    group: PartingGroup,
) -> None:
    group.split()
    group.delay(*ids(*range(30, 40)), due_us=group.now_us + SECOND_US)
    group.now_us += 6 * SECOND_US
    made = group.next_part()
    assert group.put(made, commit=False) == Accepted()
    group.release_all(commit=False)
    group.commit()
    assert len(group.delivered(LOW)) + len(group.delivered(HIGH)) == 10
    group.release_all()
    assert group.problems(everything_due=True) == []


def test_one_record_is_in_flight_and_a_lost_one_is_made_again(group: PartingGroup) -> None:
    group.split()
    made = group.next_part()
    assert group.put(made, commit=False) == Accepted()
    assert isinstance(error_of(group.put(made)), Throttled)
    group.new_master()
    assert group.state.delays.sealed == {KEY}
    assert group.put(group.next_part()) == Accepted()
    assert isinstance(error_of(group.put(made)), Throttled), "nothing is left to part"
    assert group.problems() == []


def test_a_restart_knows_which_queues_hold_what_is_not_theirs(group: PartingGroup) -> None:
    group.split()
    again = State.from_bytes(b"".join(group.state.to_parts()))
    assert again.delays.sealed == {KEY}
    child = again.queues[LOW]
    assert parted.held_before(again.queues, again.delays, child) == DelayedPlace(
        group.now_us + 3 * SECOND_US, 1
    )


# --- cancelled messages -------------------------------------------------------------------------


def test_cancelled_messages_stay_out(group: PartingGroup) -> None:
    for each in ids(0, 7, 9):
        assert group.cancel(each) == Accepted()
        group.sent[each].cancelled = True
    group.split()
    assert group.cancel(ids(17)[0]) == Accepted(), "the parent still has it"
    group.sent[ids(17)[0]].cancelled = True
    group.part_all()
    assert group.state.delays.messages == 20
    assert group.problems() == []
    assert group.cancel(ids(18)[0]) == Accepted(), "the child has it"
    group.sent[ids(18)[0]].cancelled = True
    group.same_everywhere()
    group.now_us += 6 * SECOND_US
    group.release_all()
    assert group.problems(everything_due=True) == []


def test_rows_that_are_cancelled_stay_so_in_a_part_that_has_all(group: PartingGroup) -> None:
    low = [each for each in ids(*range(100, 140)) if group_slot_is_low(each)][:5]
    group.delay(*low, due_us=group.now_us + 9 * SECOND_US)
    for each in low[:2]:
        assert group.cancel(each) == Accepted()
        group.sent[each].cancelled = True
    group.split()
    group.part_all()
    queue = group.state.delays.queues[LOW]
    assert [queue.cancelled.count(each.ordinal) for each in queue] == [0, 0, 0, 2]
    seconds = group.state.delays.seconds.load(7, (group.now_us + 9 * SECOND_US) // SECOND_US)
    assert seconds.messages == 3
    group.same_everywhere()
    assert group.problems() == []


def group_slot_is_low(message_id: bytes) -> bool:
    made = PartingGroup()
    made.split()
    return made.owner(message_id) == LOW


def test_a_batch_is_read_again_if_a_message_of_it_is_cancelled_meanwhile(
    group: PartingGroup,
) -> None:
    group.split()
    made = group.next_part()
    assert group.cancel(ids(0)[0], commit=False) == Accepted()
    assert isinstance(error_of(group.put(made)), Throttled), "in flight"
    group.commit()
    assert isinstance(error_of(group.put(made)), Throttled), "applied"
    group.sent[ids(0)[0]].cancelled = True
    assert group.put(group.next_part()) == Accepted()
    assert group.problems() == []


def test_a_message_that_is_being_parted_is_cancelled_where_it_goes(group: PartingGroup) -> None:
    group.split()
    record = group.cancel_record(ids(0)[0])
    assert record is not None
    group.put(group.next_part(), commit=False)
    assert isinstance(error_of(group.submit(record)), Throttled)
    group.commit()
    assert isinstance(error_of(group.submit(record)), Throttled), "it is not there any more"
    assert group.cancel(ids(0)[0]) == Accepted()
    group.sent[ids(0)[0]].cancelled = True
    assert group.problems() == []


def test_a_parted_message_is_found_by_its_id(group: PartingGroup) -> None:
    group.split()
    group.part_all()
    for waits in (True, False):
        for each in ids(*range(24)):
            found = group.find(each)
            assert found is not None
            assert found.candidate.queue_key == group.owner(each)
            assert (found.candidate.extent is None) == waits
        group.now_us += 6 * SECOND_US
        group.release_all()
    origins = group.state.delays.origins.of(LOW)
    assert len(origins) == 3
    assert len(set(origins["entry"].tolist())) == 1
    assert entries_of(origins, int(origins["origin"][0])) == [int(origins["entry"][0])]


# --- given up -----------------------------------------------------------------------------------


def next_given_up(group: PartingGroup) -> control_pb2.GiveUpDelayed:
    held = group.state.delays.queues[KEY]
    first = next(iter(held))
    return control_pb2.GiveUpDelayed(
        queue=ref(),
        due_us=first.due_us,
        ordinal=first.ordinal,
        entry=first.entry,
        position=first.position,
        messages=held.left(first),
    )


def test_what_is_given_up_is_gone_on_every_node_and_no_more_than_that(group: PartingGroup) -> None:
    assert group.cancel(b"m9") == Accepted()
    group.split()
    record = next_given_up(group)
    assert record.messages == 7
    assert group.admission.queues.admit_give_up(record) == Accepted()
    group.apply_control(give_up_delayed=record)
    assert [each.ordinal for each in group.state.delays.queues[KEY]] == [0, 2]
    assert (group.state.delays.messages, group.state.delays.batches) == (16, 2)
    group.same_everywhere()
    group.part_all()
    group.now_us += 6 * SECOND_US
    group.release_all()
    delivered = {each for key in (LOW, HIGH) for each in group.delivered(key)}
    assert delivered == set(ids(*range(8), *range(16, 24)))
    for key in group.state.queues:
        assert group.verify(key).ok, group.verify(key)


def test_when_everything_was_given_up_the_queue_holds_nothing_and_is_verified(
    group: PartingGroup,
) -> None:
    group.split()
    before = group.state.applied_index
    while KEY in group.state.delays.sealed:
        record = next_given_up(group)
        assert group.admission.queues.admit_give_up(record) == Accepted()
        group.apply_control(give_up_delayed=record)
    assert group.state.delays.batches == 0
    assert group.split(LOW) == Accepted(), "its children are free"
    group.same_everywhere()
    for key in group.state.queues:
        assert group.verify(key).ok, group.verify(key)
    assert verify_as_of(group, before)[KEY.queue_id].delayed == 24, "as they were then"


@pytest.mark.parametrize("field", ["due_us", "ordinal", "entry", "position", "messages"])
def test_another_batch_than_the_next_one_is_not_given_up(group: PartingGroup, field: str) -> None:
    group.split()
    record = next_given_up(group)
    setattr(record, field, getattr(record, field) + 1)
    assert isinstance(error_of(group.admission.queues.admit_give_up(record)), Throttled)
    with pytest.raises(StateDiverged, match="not the next batch"):
        group.apply(control(give_up_delayed=record))


def test_nothing_is_given_up_while_it_is_parted_or_cancelled_or_of_a_queue_that_is_whole(
    group: PartingGroup,
) -> None:
    record = next_given_up(group)
    assert isinstance(error_of(group.admission.queues.admit_give_up(record)), Throttled)
    group.split()
    assert group.cancel(b"m9", commit=False) == Accepted()
    assert isinstance(error_of(group.admission.queues.admit_give_up(record)), Throttled)
    group.commit()
    assert group.put(group.next_part(), commit=False) == Accepted()
    assert isinstance(error_of(group.admission.queues.admit_give_up(record)), Throttled)
    group.commit()
    assert group.state.delays.sealed == set()


def test_nothing_of_a_queue_that_is_whole_can_be_given_up(group: PartingGroup) -> None:
    with pytest.raises(StateDiverged, match="not the next batch"):
        group.apply(control(give_up_delayed=next_given_up(group)))


def test_while_a_batch_is_given_up_it_is_neither_parted_nor_cancelled(group: PartingGroup) -> None:
    group.split()
    made = group.next_part()
    record = next_given_up(group)
    assert group.admission.queues.admit_give_up(record) == Accepted()
    assert isinstance(error_of(group.put(made)), Throttled)
    assert isinstance(error_of(group.cancel(b"m9")), Throttled)
    group.apply_control(give_up_delayed=record)
    assert group.part_all() == 1


# --- splits and moves meanwhile -----------------------------------------------------------------


def test_a_child_is_neither_split_nor_moved_until_everything_is_parted(group: PartingGroup) -> None:
    group.split()
    state = group.state
    error = error_of(group.split(LOW))
    assert isinstance(error, Throttled)
    assert "handed to its children" in str(error)
    with pytest.raises(StateDiverged):
        group.apply(control(split_queue=split_of_low()))
    refusal = move_refusal(state.queues, state.queues[LOW], state.delays, 9, ())
    assert isinstance(refusal, InvalidRequest)
    assert "24 delayed messages of queue 0" in str(refusal)


def split_of_low() -> control_pb2.SplitQueue:
    record = control_pb2.SplitQueue(queue=ref(LOW))
    record.children.add(queue_id=8, slot_start=0, slot_end=16_384)
    record.children.add(queue_id=9, slot_start=16_384, slot_end=32_768)
    return record


def test_a_child_can_be_split_and_moved_afterwards(group: PartingGroup) -> None:
    group.split()
    group.part_all()
    state = group.state
    moved = state.queues, state.queues[LOW], state.delays, 9
    assert move_refusal(*moved, ()) is None
    refusal = move_refusal(*moved, state.id_windows.topics)
    assert "delayed messages of queue 0, whose ids lead there" in str(refusal)
    assert group.split(LOW) == Accepted()
    assert group.state.delays.sealed == {LOW}
    group.part_all()
    for each in ids(*range(24)):
        found = group.find(each)
        assert found is not None
        assert found.candidate.queue_key == group.owner(each)
    group.now_us += 6 * SECOND_US
    group.release_all()
    assert group.problems(everything_due=True) == []
    for key in group.state.queues:
        assert group.verify(key).ok, group.verify(key)
    moved = state.queues, state.queues[HIGH], state.delays, 9
    assert move_refusal(*moved, state.id_windows.topics) is None, "all are delivered"
    group.delay(*ids(*range(60, 70)), due_us=group.now_us + SECOND_US)
    assert move_refusal(*moved, state.id_windows.topics) is None, "these are its own"


def test_below_the_level_a_split_waits_until_everything_is_delivered() -> None:
    group = PartingGroup(level=DELAYED_MOVE_LEVEL)
    group.delay(*ids(1, 2), due_us=group.now_us + SECOND_US)
    assert isinstance(error_of(group.split()), Throttled)
    record = control_pb2.PartDelayed(queue=ref())
    assert isinstance(error_of(group.admission.queues.admit_part(record)), UnsupportedVersion)
    with pytest.raises(StateDiverged):
        group.apply(control(part_delayed=record))
    given_up = next_given_up(group)
    assert isinstance(error_of(group.admission.queues.admit_give_up(given_up)), UnsupportedVersion)
    with pytest.raises(StateDiverged):
        group.apply(control(give_up_delayed=given_up))


def test_nothing_is_parted_for_a_child_that_is_being_deleted(group: PartingGroup) -> None:
    group.split()
    made = group.next_part()
    delete = control_pb2.DeleteQueue(queue=ref(LOW))
    assert isinstance(group.admission.queues.admit_delete_queue(delete), Accepted)
    group.entry.append(control(delete_queue=delete))
    assert isinstance(error_of(group.put(made)), Throttled)
    group.commit()
    assert isinstance(error_of(group.put(group.next_part())), Throttled)
    group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
    assert group.state.delays.sealed == set()
    assert group.next_part() is None


# --- what apply checks --------------------------------------------------------------------------


def spoil_ordinal(record: Any, parts: Any) -> None:
    record.batches[0].ordinal += 1


def spoil_cancelled(record: Any, parts: Any) -> None:
    record.batches[0].cancelled_crc ^= 1


def spoil_parts(record: Any, parts: Any) -> None:
    parts.pop()


def spoil_order(record: Any, parts: Any) -> None:
    parts[0], parts[1] = parts[1], parts[0]


def spoil_rows(record: Any, parts: Any) -> None:
    record.batches[0].parts = 1
    del parts[1]


def spoil_names(record: Any, parts: Any) -> None:
    record.ClearField("batches")


def spoil_queue(record: Any, parts: Any) -> None:
    record.queue.queue_id = LOW.queue_id


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_ordinal,
        spoil_cancelled,
        spoil_parts,
        spoil_order,
        spoil_rows,
        spoil_names,
        spoil_queue,
    ],
)
def test_a_record_that_does_not_fit_halts_the_node(
    group: PartingGroup, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.split()
    record, parts = group.next_part()
    parts = list(parts)
    spoil(record, parts)
    monkeypatch.setattr(queue_admission, "admit_part", lambda *_: Accepted())
    with pytest.raises(StateDiverged):
        group.put((record, parts))


def test_parts_without_a_record_halt_the_node(group: PartingGroup) -> None:
    group.split()
    made = group.next_part()
    group.put(made, commit=False)
    group.entry.pop()
    with pytest.raises(StateDiverged, match="parts of no delayed batch"):
        group.apply(*group.entry)


# --- verification -------------------------------------------------------------------------------


def test_verify_finds_every_sequence_once(group: PartingGroup) -> None:
    group.produce_ids([(b"n1", b"at once")])
    group.sent[b"n1"] = group.sent[ids(0)[0]].__class__(99, 0)
    group.delay(*ids(*range(30, 34)), due_us=group.now_us + 2 * SECOND_US)
    group.split()
    group.delay(*ids(*range(40, 50)), due_us=group.now_us + 2 * SECOND_US)
    for _ in range(2):
        for key in (KEY, LOW, HIGH):
            report = group.verify(key)
            assert report.ok, report
        group.part_all()
    group.now_us += 6 * SECOND_US
    group.release_all()
    assert sum(group.verify(key).messages for key in (KEY, LOW, HIGH)) == len(group.sent)
    for key in (KEY, LOW, HIGH):
        assert group.verify(key).ok


def test_verify_says_the_same_of_an_entry_whatever_was_parted_since(group: PartingGroup) -> None:
    for each in ids(0, 9):
        assert group.cancel(each) == Accepted()
    group.split()
    index = group.state.applied_index
    before = verify_as_of(group, index)
    assert (before[0].delayed, before[0].messages) == (22, 0)
    group.part_all()
    assert group.cancel(ids(17)[0]) == Accepted()
    steps = [group.state.applied_index]
    group.now_us += 4 * SECOND_US
    group.release_all()
    steps.append(group.state.applied_index)
    group.now_us += 4 * SECOND_US
    group.release_all()
    for step in (index, *steps, group.state.applied_index):
        found = verify_as_of(group, step)
        assert not [each for one in found.values() for each in one.problems]
        assert all(each.table_matches for each in found.values())
        waiting = {number: each.delayed for number, each in found.items() if each.delayed}
        if step == index:
            assert waiting == {0: 22}
        assert sum(waiting.values()) + sum(each.messages for each in found.values()) == (
            22 if step == index else 21
        )


def test_verify_tells_a_part_that_is_there_twice(
    group: PartingGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.split()
    monkeypatch.setattr(parted.Delays, "remove", lambda *_: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(state_machine, "apply_part", under_new_ordinals(parted.apply_part))
    assert group.put(group.next_part()) == Accepted()
    assert group.put(group.next_part()) == Accepted()
    report = group.verify(LOW)
    assert report.duplicates > 0
    assert any("twice among what the queue got" in each for each in report.problems)


def under_new_ordinals(original: Any) -> Any:
    def apply_part(record: Any, queues: Any, delays: Any, parts: Any, index: int) -> Any:
        real = delays.insert

        class Spoiled:
            def __getattr__(self, name: str) -> Any:
                return getattr(delays, name)

            def insert(self, key: Any, extent: Any) -> None:
                real(key, extent._replace(ordinal=delays.next_ordinal))
                delays.next_ordinal += 1

        return original(record, queues, Spoiled(), parts, index)

    return apply_part


# --- any history --------------------------------------------------------------------------------


class History:
    """Splits, parts, cancels, releases and lost masters in an order that a seed determines."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.group = PartingGroup()
        self.made: Any = None
        self.count = 0

    def run(self, steps: int) -> None:
        for _ in range(3):
            self.delay()
        for _ in range(steps):
            self.random.choice(self.RULES)(self)
        group = self.group
        self.settle()
        assert group.problems() == []
        group.same_everywhere()
        group.part_all()
        group.now_us += 10 * SECOND_US
        group.release_all()
        assert group.problems(everything_due=True) == []
        for key in group.state.queues:
            report = group.verify(key)
            assert report.ok, report
        group.same_everywhere()

    def delay(self) -> None:
        self.settle()
        found = ids(*range(self.count, self.count + self.random.randint(1, 8)))
        self.count += len(found)
        seconds = self.random.randint(0, 6)
        self.group.delay(*found, due_us=self.group.now_us + seconds * SECOND_US + 1)

    def split(self) -> None:
        self.settle()
        leaves = self.group.leaves()
        if len(leaves) < 5:
            self.group.split(self.random.choice(leaves), ways=self.random.randint(2, 3))

    def read(self) -> None:
        self.made = self.group.next_part()

    def put(self) -> None:
        if self.made is not None:
            self.group.put(self.made, commit=self.random.random() < 0.5)

    def part(self) -> None:
        self.settle()
        if (made := self.group.next_part()) is not None:
            assert self.group.put(made) == Accepted()

    def cancel(self) -> None:
        each = ids(self.random.randrange(self.count))[0]
        if self.group.cancel(each, commit=False) == Accepted():
            if self.random.random() < 0.5:
                self.put()
            self.settle()
            self.group.sent[each].cancelled = True

    def release(self) -> None:
        self.group.release_all(commit=self.random.random() < 0.5)

    def wait(self) -> None:
        self.settle()
        self.group.now_us += self.random.randint(1, 3) * SECOND_US

    def lose(self) -> None:
        self.group.new_master()

    def settle(self) -> None:
        self.group.commit()
        self.group.note()

    RULES = (delay, delay, split, read, put, part, cancel, cancel, release, release, wait, lose)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=30, deadline=None)
def test_any_history_delivers_each_message_once_in_order_and_none_early(seed: int) -> None:
    History(seed).run(20)


def parts_with_a_cancelled_row(patch: pytest.MonkeyPatch) -> None:
    real = parted_rows.part_rows
    patch.setattr(
        "semel.broker.background.delayed_parting.part_rows",
        lambda batch, _, *rest, **how: real(batch, (), *rest, **how),
    )
    patch.setattr(parted, "misfit", lambda *_: None)


def children_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("semel.broker.state.admission.admission.held_before", lambda *_: None)
    patch.setattr(state_machine, "held_before", lambda *_: None)


def cancels_race(patch: pytest.MonkeyPatch) -> None:
    real = part_admission._cancelled
    patch.setattr(part_admission, "_cancelled", lambda rows: (0, real(())[1]))


def parts_get_new_ordinals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_machine, "apply_part", under_new_ordinals(parted.apply_part))


def lose_a_part(patch: pytest.MonkeyPatch) -> None:
    real = parted.Delays.insert  # type: ignore[attr-defined]

    def insert(self: Any, key: Any, extent: Any) -> None:
        if extent.messages != 3:
            real(self, key, extent)

    patch.setattr(parted.Delays, "insert", insert)  # type: ignore[attr-defined]


def forget_who_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parted.Delays, "seal", lambda *_: None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "plant",
    [
        parts_with_a_cancelled_row,
        children_do_not_wait,
        cancels_race,
        parts_get_new_ordinals,
        lose_a_part,
        forget_who_waits,
    ],
)
def test_histories_find_planted_bugs(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StateDiverged, KeyError)):
        run_histories(150)


def run_histories(count: int) -> None:
    for seed in range(count):
        History(seed).run(20)
