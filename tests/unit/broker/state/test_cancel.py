"""A delayed message is taken out once, before it is due, and its id can be used again."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup import looked_up
from semel.broker.server.copied_records import read_copies
from semel.broker.state import (
    Accepted,
    BatchVerifier,
    DueHistogram,
    Refused,
    State,
    StateDiverged,
    TableVerifier,
    make_slice,
    read_slice,
)
from semel.broker.state.admission import delay_admission
from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.id_windows import IdWindow
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_broker_header
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptSegment, Throttled
from semel.protos.ids import QueueKey
from semel.protos.v1 import control_pb2
from tests.kit.cancelling import CancelGroup
from tests.kit.id_group import OTHER
from tests.kit.state_log import KEY, control, ref

SECOND_US = 1_000_000


def messages(*ids: bytes) -> list[tuple[bytes | None, bytes]]:
    return [(each, b"value of " + each) for each in ids]


@pytest.fixture
def group() -> CancelGroup:
    """Messages a to e are due in five seconds."""
    made = CancelGroup()
    made.produce_ids(messages(b"x"))
    made.produce_ids(messages(*(b"%c" % each for each in b"abcde")), due_us=due(made, 5))
    return made


def due(group: CancelGroup, seconds: float) -> int:
    return group.now_us + int(seconds * SECOND_US)


def release(group: CancelGroup, seconds: float = 5) -> None:
    group.now_us += int(seconds * SECOND_US)
    group.release()


@pytest.mark.parametrize(
    ("cancelled", "stretches"),
    [
        (b"a", [(1, 4)]),
        (b"e", [(0, 4)]),
        (b"c", [(0, 2), (3, 2)]),
        (b"bd", [(0, 1), (2, 1), (4, 1)]),
        (b"cb", [(0, 1), (3, 2)]),
        (b"ade", [(1, 2)]),
    ],
)
def test_only_the_cancelled_rows_are_left_out(
    group: CancelGroup, cancelled: bytes, stretches: list[tuple[int, int]]
) -> None:
    for each in cancelled:
        assert group.cancel(b"%c" % each) == Accepted()
    left = [b"%c" % each for each in b"abcde" if each not in cancelled]
    assert group.delayed() == left
    assert group.state.delays.messages == group.state.delays.queues[KEY].messages == len(left)
    group.same_everywhere()
    release(group)
    assert group.delivered() == [b"x", *left]
    extents = group.state.queues[KEY].extents_from(1, 1 << 40)
    assert [(each.first_row, each.count) for each in extents] == stretches
    assert not group.state.delays.queues
    group.same_everywhere()


def test_a_record_with_several_extents_is_live_once(group: CancelGroup) -> None:
    group.cancel(b"c")
    release(group)
    everything = list(group.state.live_records(0, 1 << 40))
    assert len(everything) == len(set(everything)) == 2
    group.state.queues[KEY].trim(4)
    assert list(group.state.live_records(0, 1 << 40)) == everything[1:]


def test_a_batch_whose_last_message_is_cancelled_is_gone(group: CancelGroup) -> None:
    group.produce_ids(messages(b"y"), due_us=due(group, 3))
    for each in b"abcde":
        group.cancel(b"%c" % each)
    assert (group.state.delays.batches, group.delayed()) == (1, [b"y"])
    assert len(list(group.state.live_records(0, 1 << 40))) == 2
    group.cancel(b"y")
    assert not group.state.delays.queues
    assert (group.state.delays.batches, group.state.delays.messages) == (0, 0)
    assert group.state.delays.bytes == 0
    group.same_everywhere()
    release(group)
    assert group.delivered() == [b"x"]
    assert group.state.delays.due(group.now_us, 10) == []


def test_the_queue_is_due_when_its_next_batch_is(group: CancelGroup) -> None:
    group.produce_ids(messages(b"y"), due_us=due(group, 3))
    group.cancel(b"y")
    group.now_us += 4 * SECOND_US
    assert group.state.delays.due(group.now_us, 10) == []
    group.now_us += SECOND_US
    assert group.state.delays.due(group.now_us, 10) == [KEY]


def test_a_cancelled_id_can_be_sent_again(group: CancelGroup) -> None:
    first = group.place(b"c")
    group.cancel(b"c")
    again = group.produce_ids(messages(b"c", b"d"), producer=2)
    assert again.checked.decision.count == 1
    assert group.delivered() == [b"x", b"c"]
    assert group.place(b"c") != first
    duplicate = group.produce_ids(messages(b"c"), producer=2)
    assert duplicate.checked.decision.duplicates == 1
    release(group)
    assert group.delivered() == [b"x", b"c", b"a", b"b", b"d", b"e"]
    found = group.find(b"c")
    assert found is not None
    assert found.offset == 1


def test_a_cancelled_id_can_be_delayed_and_cancelled_again(group: CancelGroup) -> None:
    for seconds in (9, 7, 8):
        group.cancel(b"c")
        group.produce_ids(messages(b"c"), due_us=due(group, seconds))
    assert len(group.window.cancelled) == 3
    assert group.delayed() == [b"a", b"b", b"d", b"e", b"c"]


def test_the_id_is_free_from_the_moment_the_cancellation_is_accepted(group: CancelGroup) -> None:
    early = group.batch(messages(b"c"), producer=2)
    seen = group.look_up(early)
    assert group.cancel(b"c", commit=False) == Accepted()
    decision = group.send(early, seen, commit=False)
    assert decision.checked.decision.count == 1
    group.commit()
    assert group.delivered() == [b"x", b"c"]
    group.same_everywhere()


def test_a_lost_cancellation_leaves_the_id_known(group: CancelGroup) -> None:
    group.cancel(b"c", commit=False)
    group.new_master()
    again = group.produce_ids(messages(b"c"), producer=2)
    assert again.checked.decision.duplicates == 1
    assert group.delayed() == [b"a", b"b", b"c", b"d", b"e"]
    assert group.cancel(b"c") == Accepted()


def test_of_two_cancellations_in_flight_the_second_is_to_look_again(group: CancelGroup) -> None:
    record = group.cancel_record(b"c")
    assert record is not None
    assert group.submit(record, commit=False) == Accepted()
    for _ in range(2):
        refused = group.submit(record, commit=False)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, Throttled)
        group.commit()
    assert group.find(b"c") is None
    assert group.delayed() == [b"a", b"b", b"d", b"e"]


@pytest.mark.parametrize("commit", [False, True])
def test_a_release_behind_a_cancellation_leaves_the_message_out(
    group: CancelGroup, commit: bool
) -> None:
    group.cancel(b"b", commit=commit)
    group.now_us += 5 * SECOND_US  # the next entry
    record = group.admission.propose_release(KEY, now_us=group.now_us)
    assert record is not None
    assert (record.batches, record.messages) == (1, 4)
    if group.entry:
        group.now_us -= 5 * SECOND_US
        group.commit()
        group.now_us += 5 * SECOND_US
    group.entry.append(control(release_delayed=record))
    group.commit()
    assert group.delivered() == [b"x", b"a", b"c", b"d", b"e"]


def test_a_release_takes_no_batch_that_is_about_to_be_gone(group: CancelGroup) -> None:
    group.produce_ids(messages(b"y"), due_us=due(group, 5))
    for each in b"abcde":
        group.cancel(b"%c" % each, commit=False)
    entry, group.entry = group.entry, []
    record = group.admission.propose_release(KEY, now_us=due(group, 5))
    assert record is not None
    assert (record.batches, record.messages) == (1, 1)
    group.entry = entry
    group.commit()
    group.now_us += 5 * SECOND_US
    group.entry.append(control(release_delayed=record))
    group.commit()
    assert group.delivered() == [b"x", b"y"]


def test_nothing_is_cancelled_that_is_due(group: CancelGroup) -> None:
    record = group.cancel_record(b"b")
    assert record is not None
    group.now_us += 5 * SECOND_US
    assert isinstance(group.submit(record), Refused)
    group.release(commit=False)
    assert isinstance(group.submit(record), Refused)
    group.commit()
    assert isinstance(group.submit(record), Refused)
    assert group.delivered() == [b"x", b"a", b"b", b"c", b"d", b"e"]
    found = group.find(b"b")
    assert found is not None
    assert found.offset == 2


def test_the_window_drops_what_is_cancelled_with_itself(group: CancelGroup) -> None:
    group.cancel(b"a")
    group.cancel(b"e")
    assert list(group.window.cancelled) == [1, 5]
    group.apply(control(evict_ids=control_pb2.EvictIds(topic_id=KEY.topic_id, first_arrival=2)))
    assert list(group.window.cancelled) == [5]
    record = control_pb2.CancelDelayed(queue=ref(), due_us=due(group, 5), ordinal=0, row=0)
    assert isinstance(group.submit(record), Refused)


CHANGES: list[dict[str, Any]] = [
    {"queue": ref(OTHER)},
    {"due_us": 1},
    {"ordinal": 1},
    {"row": 5},
    {"row": 0},  # is cancelled
    {"entry": 1},
    {"arrival": 6},
    {"arrival": 1},  # is cancelled
]


@pytest.mark.parametrize("change", CHANGES)
def test_apply_halts_on_a_record_that_does_not_fit(
    group: CancelGroup, change: dict[str, Any]
) -> None:
    group.cancel(b"a")
    record = group.cancel_record(b"b")
    assert record is not None
    changed = control_pb2.CancelDelayed()
    changed.CopyFrom(record)
    for name, value in change.items():
        changed.ClearField(name)
        changed.MergeFrom(control_pb2.CancelDelayed(**{name: value}))
    assert isinstance(group.submit(changed, commit=False), Refused)
    with pytest.raises(StateDiverged):
        group.apply(control(cancel_delayed=changed))


def test_apply_halts_on_a_cancellation_of_what_is_due(group: CancelGroup) -> None:
    record = group.cancel_record(b"b")
    group.now_us += 5 * SECOND_US
    with pytest.raises(StateDiverged):
        group.apply(control(cancel_delayed=record))


def test_figures_do_not_count_what_is_cancelled(group: CancelGroup) -> None:
    group.produce_ids(messages(b"y", b"z"), due_us=due(group, 8))
    group.cancel(b"c")
    group.cancel(b"z")
    queue = group.state.delays.queues[KEY]
    histogram = DueHistogram([due(group, 6)], 1 << 60)
    histogram.add(queue.packed(None, 100), queue.cancelled)
    assert [(each.batches, each.messages) for each in histogram.figures] == [(1, 4), (1, 1)]
    assert [len(queue.page(None, None, most, 1 << 20)[0]) for most in (4, 5)] == [1, 2]


# --- bytes --------------------------------------------------------------------------------------


def test_a_malformed_state_is_refused(group: CancelGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    group.cancel(b"c")
    rows = group.state.delays.queues[KEY].cancelled
    for wrong in ([5], [3, 2], [2, 2], [0, 1, 2, 3, 4]):
        rows.batches[0][:] = type(rows.batches[0])("I", wrong)
        with pytest.raises(CorruptSegment):
            State.from_bytes(b"".join(group.state.to_parts()))
    rows.batches[0][:] = type(rows.batches[0])("I", [2])
    rows.batches[9] = rows.batches[0]
    with pytest.raises(CorruptSegment):
        State.from_bytes(b"".join(group.state.to_parts()))
    del rows.batches[9]
    cancelled = group.window.cancelled
    for wrong in ([6], [3, 2], [2, 2]):
        group.window.cancelled = type(cancelled)("Q", wrong)
        with pytest.raises(CorruptSegment):
            State.from_bytes(b"".join(group.state.to_parts()))


# --- verify -------------------------------------------------------------------------------------


def recompute(group: CancelGroup, key: QueueKey = KEY) -> tuple[TableVerifier, Any]:
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    queue, delayed = group.state.queues[key], group.state.delays.queues.get(key)
    verifier = BatchVerifier(key, queue.log_start_offset, queue.log_end_offset, gaps=True)
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        stored = group.payload(extent.index, extent.position)
        verifier.feed(
            extent.base_offset, extent.count, stored, extent.first_row, extent.append_time_us
        )
    for each in delayed or ():
        assert delayed is not None
        stored = group.payload(each.entry, each.position)
        gone = each.messages - delayed.left(each)
        verifier.feed_delayed(each.entry, each.messages, stored, gone)
    verifier.hold_against(table.windows(key))
    return table, verifier.finish()


def test_the_verifiers_follow(group: CancelGroup) -> None:
    group.cancel(b"b")
    group.cancel(b"c")
    table, report = recompute(group)
    assert (report.ok, report.messages, report.delayed) == (True, 1, 3)
    assert not table.problems
    (extent,) = group.state.delays.queues[KEY]
    assert table.cancelled == {(KEY, extent.entry): 2}
    release(group)
    group.produce_ids(messages(b"b"))
    table, report = recompute(group)
    assert (report.problems, report.ok, report.messages, report.delayed) == ((), True, 5, 0)
    assert table.log_end_offset(KEY) == group.state.queues[KEY].log_end_offset
    assert not table.problems


def test_a_batch_that_is_released_twice_is_noticed(group: CancelGroup) -> None:
    group.cancel(b"c")
    release(group)
    queue = group.state.queues[KEY]
    extent = queue.extents_from(1, 1)[0]
    queue.append(2, extent.index, extent.position, extent.length, extent.append_time_us)
    _, report = recompute(group)
    assert not report.ok


def test_a_message_that_is_cancelled_twice_or_late_is_noticed(group: CancelGroup) -> None:
    record = group.cancel_record(b"b")
    for each in (b"b", b"c"):
        group.cancel(each)
    group.frames.append(group.frames[-1])
    table = TableVerifier()
    frames = list(group.frames[:-1])
    for frame in frames:
        table.feed(frame)
    assert not table.problems
    assert record is not None
    table._control(control_pb2.ControlRecord(cancel_delayed=record), group.now_us)
    assert "cancelled twice" in table.problems[-1]
    record.row = 4
    table._control(control_pb2.ControlRecord(cancel_delayed=record), record.due_us)
    assert "was due" in table.problems[-1]


# --- moves --------------------------------------------------------------------------------------


def test_a_queue_with_cancelled_messages_is_copied_without_them(group: CancelGroup) -> None:
    for each in (b"a", b"d"):
        group.cancel(each)
    release(group)
    log: Any = group
    queue = group.state.queues[KEY]
    extents = queue.extents_from(0, 1 << 40)
    copied, ids = queue.bare(), []
    copied.log_end_offset = copied.bytes = 0
    verifier = BatchVerifier(KEY, 0, queue.log_end_offset, gaps=True)
    for stored in read_copies(log, extents):
        head = decode_broker_header(stored)
        data = stored[BROKER_HEADER_BYTES:]
        batch = check_batch(data)
        assert head.base_offset == copied.log_end_offset
        copied.append(batch.count, 1, 0, len(stored), head.append_time_us)
        found = decode_columns(data, batch).message_ids
        assert found is not None
        ids += found.to_pylist()
        verifier.feed(head.base_offset, batch.count, stored, 0, head.append_time_us)
    assert ids == group.delivered() == [b"x", b"b", b"c", b"e"]
    report = verifier.finish()
    assert (report.problems, report.ok) == ((), True)
    slice_ = read_slice(
        make_slice(queue, group.state.producers, group.state.groups, group.state.delays)
    )
    assert slice_.misfit(copied, parts=True) is None
    assert "bytes" in str(slice_.misfit(copied, parts=False))
    copied.append(1, 1, 0, 1, copied.last_append_us)
    assert slice_.misfit(copied, parts=True) is not None


# --- against a model ----------------------------------------------------------------------------


@dataclass
class Model:
    """Messages by id, as a dict would hold them: due times of delayed ones, queues as lists."""

    waiting: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    """Queue, due time and order of each delayed message."""
    queues: dict[int, list[bytes]] = field(default_factory=lambda: {0: [], 1: []})
    order: int = 0
    applied: int = 0
    """What has a lower order is applied."""

    @property
    def known(self) -> set[bytes]:
        return {*self.waiting, *(each for queue in self.queues.values() for each in queue)}

    def send(self, queue: int, ids: list[bytes], due_us: int) -> None:
        for each in dict.fromkeys(ids):
            if each not in self.known:
                if due_us:
                    self.waiting[each] = queue, due_us, self.order
                    self.order += 1
                else:
                    self.queues[queue].append(each)

    def release(self, queue: int, now_us: int) -> None:
        due_now = sorted(
            (due_us, order, each)
            for each, (where, due_us, order) in self.waiting.items()
            if where == queue and due_us <= now_us and order < self.applied
        )
        for _, _, each in due_now:
            del self.waiting[each]
            self.queues[queue].append(each)


STEPS = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(0, 1),
        st.lists(st.integers(0, 12), min_size=1, max_size=6),
        st.integers(0, 4),
    ),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
    st.tuples(st.just("release"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(1, 3)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("write")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_is_sent_cancelled_and_released_agrees_with_a_model(steps: list[Any]) -> None:
    """Records in flight count: cancellations, releases and batches of one id may be accepted
    in every order before the first of them is applied, or all of them are lost."""
    group, model = CancelGroup(), Model()
    keys = KEY, OTHER
    kept = deepcopy(model), dict(group.last)

    def commit() -> None:
        nonlocal kept
        group.commit()
        model.applied = model.order
        kept = deepcopy(model), dict(group.last)

    for step in steps:
        match step:
            case ("send", queue, numbers, seconds):
                ids = [b"%d" % number for number in numbers]
                due_us = due(group, seconds) if seconds else 0
                data = group.batch(messages(*ids), key=keys[queue], due_us=due_us)
                assert isinstance(group.send(data, commit=False), Accepted)
                model.send(queue, ids, due_us)
            case ("cancel", number):
                wanted = b"%d" % number
                place = model.waiting.get(wanted)
                may = place and place[1] > group.now_us and place[2] < model.applied
                accepted = group.cancel(wanted, commit=False) == Accepted()
                assert accepted == bool(may)
                if accepted:
                    del model.waiting[wanted]
            case ("release", queue):
                if group.release(keys[queue], commit=False) is not None:
                    model.release(queue, group.now_us)
            case ("wait", seconds):
                group.close()
                group.now_us += seconds * SECOND_US
            case ("commit",):
                commit()
            case ("restart",):
                commit()
                group.state = State.from_bytes(b"".join(group.state.to_parts()))
                group.new_master()
            case ("lose",):
                group.new_master()
                model, group.last = deepcopy(kept[0]), dict(kept[1])
            case ("write",):
                commit()
                group.index.freeze(group.window.next_arrival)
                while group.index.maintain(group.window.first_arrival):
                    pass
    commit()
    group.same_everywhere()
    for number, key in enumerate(keys):
        assert group.delivered(key) == model.queues[number]
        assert sorted(group.delayed(key)) == sorted(
            each for each, (queue, _, _) in model.waiting.items() if queue == number
        )
        table, report = recompute(group, key)
        assert (report.problems, table.problems) == ((), [])
    for each in (b"%d" % number for number in range(13)):
        assert (group.find(each) is not None) == (each in model.known)


def forgets_what_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(looked_up, "counting", lambda arrivals, _: arrivals >= 0)


def releases_what_is_being_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delay_admission, "left", lambda delays, queue, each: delays.left(queue.key, each))


def cancels_what_is_due(patch: pytest.MonkeyPatch) -> None:
    whole = Delays.to_cancel
    patch.setattr(Delays, "to_cancel", lambda self, record, _: whole(self, record, 0))


def releases_cancelled_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CancelledRows, "stretches", lambda *_: [(0, 2)])


def forgets_the_arrival(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdWindow, "cancel", lambda *_: None)


def leaves_lost_cancellations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CancelGroup, "new_master", lambda self: setattr(self, "entry", []))


SENT: list[Any] = [("send", 0, [1, 2], 1), ("commit",)]


@pytest.mark.parametrize(
    ("plant", "steps"),
    [
        (forgets_what_is_cancelled, [("cancel", 1), ("send", 0, [1], 0)]),
        (releases_what_is_being_cancelled, [("cancel", 1), ("wait", 1), ("release", 0)]),
        (cancels_what_is_due, [("wait", 1), ("cancel", 1)]),
        (releases_cancelled_rows, [("cancel", 1), ("wait", 1), ("release", 0)]),
        (forgets_the_arrival, [("cancel", 1), ("commit",), ("send", 0, [1], 0)]),
        (leaves_lost_cancellations, [("cancel", 1), ("lose",), ("cancel", 1)]),
    ],
)
def test_the_model_notices_a_planted_bug(
    plant: Any, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    walk: Any = test_whatever_is_sent_cancelled_and_released_agrees_with_a_model
    walk.hypothesis.inner_test(SENT + steps)
    plant(monkeypatch)
    with pytest.raises((AssertionError, StateDiverged)):
        walk.hypothesis.inner_test(SENT + steps)
