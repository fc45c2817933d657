"""Topics that compare message ids store each id once: admission, apply and index work together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup.looked_up import LookedUp
from semel.broker.state import (
    Accepted,
    Admission,
    Duplicate,
    DuplicateInFlight,
    LookUpIds,
    Refused,
    StateDiverged,
    TableVerifier,
    batch_record_parts,
)
from semel.broker.state.apply.id_windows import ID_BYTES
from semel.broker.state.apply.results import IdsChecked
from semel.protos.batch import check_batch
from semel.protos.dropped import DROPPED, Verdict, read_answer
from semel.protos.errors import InvalidRequest, SequenceConflict, Throttled, UnsupportedVersion
from semel.protos.frames import RecordKind, build_frame, decode_frame_header, iter_records
from semel.protos.ids import Offset, QueueKey, Term
from semel.protos.levels import ID_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.id_checks import check_slave, dropped_of, verify
from tests.kit.id_group import OTHER, WINDOW_BYTES, IdGroup, dedup
from tests.kit.state_log import KEY, Group, control, ref


def test_a_known_id_is_not_stored_again_whoever_sends_it() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2"), (None, b"3")])
    again = group.produce_ids([(b"c", b"4"), (b"a", b"1"), (None, b"3")], producer=2)
    assert dropped_of(again) == [(1, 0, 0, Verdict.DUPLICATE)]
    assert again.base_offset == 3
    elsewhere = group.produce_ids([(b"b", b"2"), (b"d", b"5")], key=OTHER)
    assert dropped_of(elsewhere) == [(0, 0, 1, Verdict.DUPLICATE)]
    assert group.stored() == [
        (b"a", b"1"),
        (b"b", b"2"),
        (None, b"3"),
        (b"c", b"4"),
        (None, b"3"),
    ]
    assert group.stored(OTHER) == [(b"d", b"5")]
    window = group.window
    assert (window.ids, window.duplicates, window.conflicts) == (4, 2, 0)


def test_other_content_under_a_known_id_is_a_conflict_for_that_message_alone() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    decision = group.produce_ids([(b"a", b"other"), (b"b", b"2"), (b"b", b"x")])
    assert dropped_of(decision) == [
        (1, 0, 0, Verdict.CONFLICT),
        (3, 0, 1, Verdict.CONFLICT),
    ]
    assert group.stored() == [(b"a", b"1"), (b"b", b"2")]
    assert (group.window.duplicates, group.window.conflicts) == (0, 2)


def test_a_topic_may_keep_the_first_whatever_comes_later() -> None:
    group = IdGroup(keep_first=True)
    group.produce_ids([(b"a", b"1")])
    decision = group.produce_ids([(b"a", b"other")])
    assert dropped_of(decision) == [(1, 0, 0, Verdict.DUPLICATE)]


def test_a_batch_of_duplicates_only_moves_the_sequences_on() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    first = group.batch([(b"b", b"2"), (b"a", b"1")])
    decision = group.send(first)
    assert (decision.base_offset, decision.checked.decision.count) == (2, 0)
    assert group.send(first, commit=False) == Duplicate(Offset(2), dropped=True)
    after = group.produce_ids([(b"c", b"3")])
    assert after.base_offset == 2
    assert group.state.queues[KEY].log_end_offset == 3


def test_retries_are_recognised_by_what_was_sent() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    whole, part = group.batch([(b"b", b"2"), (b"c", b"3")]), None
    assert isinstance(group.send(whole), Accepted)
    part = group.batch([(b"a", b"1"), (b"d", b"4")])
    assert isinstance(group.send(part, commit=False), Accepted)
    assert isinstance(group.send(part), DuplicateInFlight)
    group.commit()
    assert group.send(whole) == Duplicate(Offset(1))
    assert group.send(part) == Duplicate(Offset(3), dropped=True)
    other = group.batch([(b"a", b"1"), (b"e", b"5")], previous=2)
    refused = group.send(other)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, SequenceConflict)


def test_ids_in_flight_count_and_are_lost_with_their_entries() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    early = group.batch([(b"b", b"2")], producer=2)
    seen = group.look_up(early)
    group.send(group.batch([(b"b", b"2")]), commit=False)
    decision = group.send(early, seen, commit=False)
    assert dropped_of(decision) == [(0, 0, 1, Verdict.DUPLICATE)]
    group.last.clear()
    group.last[KEY, 1] = 0
    group.new_master()
    assert group.window.ids == 1
    assert dropped_of(group.produce_ids([(b"b", b"2")])) == []
    assert group.stored() == [(b"a", b"1"), (b"b", b"2")]


def test_a_delayed_message_is_found_by_its_due_time() -> None:
    group = IdGroup()
    due_us = group.now_us + 5_000_000
    decision = group.produce_ids([(b"a", b"1"), (b"b", b"2")], due_us=due_us)
    assert decision.base_offset == -1
    again = group.produce_ids([(b"b", b"2")], producer=2)
    (answer,) = read_answer(again.checked.decision.answer)
    assert (answer.offset, answer.due_us, answer.queue_id) == (-1, due_us, 0)
    nothing = group.produce_ids([(b"a", b"1")], producer=2, due_us=due_us)
    assert nothing.base_offset == 0
    assert group.state.delays.messages == 2


def test_the_window_forgets_in_the_order_of_arrival() -> None:
    group = IdGroup()
    ids_max = WINDOW_BYTES // ID_BYTES // 2
    group.state.queues[OTHER].slot_start = 32_768
    group.state.queues[KEY].slot_end = 0
    group.produce_ids([(b"%d" % number, b"") for number in range(ids_max + 500)])
    group.evict()
    early = group.batch([(b"7", b""), (b"499", b""), (b"500", b"")], producer=2)
    decision = group.send(early, commit=False)
    assert [each.sequence for each in read_answer(decision.checked.decision.answer)] == [2]
    group.commit()
    assert group.window.first_arrival == 500
    assert group.window.ids == ids_max + 2
    assert dropped_of(group.produce_ids([(b"7", b"")])) != []


def test_a_batch_without_its_look_up_waits_for_it() -> None:
    group = IdGroup()
    data = group.batch([(b"a", b"1")])
    decision = group.admission.admit_batch(check_batch(data), 0, time_us=group.now_us)
    assert isinstance(decision, LookUpIds)
    assert isinstance(group.send(data), Accepted)
    # A duplicate of the producer needs none.
    again = group.admission.admit_batch(check_batch(data), 0, time_us=group.now_us)
    assert again == Duplicate(Offset(0))


def test_a_look_up_that_memory_has_outrun_is_repeated() -> None:
    group = IdGroup()
    data = group.batch([(b"a", b"1")], producer=2)
    seen = group.look_up(data)
    group.produce_ids([(b"b", b"2")])
    group.index.freeze(1)
    assert group.index.maintain(0)
    assert isinstance(group.send(data, seen), LookUpIds)
    assert isinstance(group.send(data), Accepted)


# --- settings -----------------------------------------------------------------------------------


def create_of(key: QueueKey, given: common_pb2.IdDedup | None) -> control_pb2.CreateQueue:
    settings = common_pb2.TopicSettings(dedup=given)
    return control_pb2.CreateQueue(queue=ref(key), topic="t", slot_end=65_536, settings=settings)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"window_bytes": WINDOW_BYTES - 1}, "window of 1048575 bytes"),
        ({"window_bytes": 1 << 62}, "window of"),
        ({"keep_ms": -2}, "kept for -2 ms"),
        ({"seed": b"short"}, "seed of 5 bytes"),
        ({"seed": b"another seed 16b"}, "another seed"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], text: str) -> None:
    group = IdGroup()
    alter = control_pb2.AlterTopic(
        topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(dedup=dedup(**given))
    )
    decision = group.admission.queues.admit_alter_topic(alter)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequest)
    assert text in str(decision.error)


def test_windows_need_the_feature_level() -> None:
    record = create_of(KEY, dedup())
    low = Group(queues=())
    low.admission = Admission(low.state, term=Term(1))
    decision = low.admission.queues.admit_create_queue(record)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, UnsupportedVersion)
    low.raise_level(ID_LEVEL)
    allowed = Admission(low.state, term=Term(1)).queues.admit_create_queue(record)
    assert isinstance(allowed, Accepted)


def alter(group: IdGroup, given: common_pb2.IdDedup | None, *, commit: bool = True) -> Any:
    record = control_pb2.AlterTopic(
        topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(dedup=given)
    )
    decision = group.admission.queues.admit_alter_topic(record)
    if isinstance(decision, Accepted):
        group.entry.append(control(alter_topic=record))
        if commit:
            group.commit()
    return decision


def test_batches_wait_while_comparing_begins_or_ends() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    assert isinstance(alter(group, None, commit=False), Accepted)
    data = group.batch([(b"a", b"1")], producer=2)
    refused = group.send(data)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, Throttled)
    contrary = alter(group, dedup(), commit=False)
    assert isinstance(contrary, Refused)
    assert isinstance(contrary.error, Throttled)
    group.commit()
    assert group.state.id_windows.topics == {}
    assert group.state.id_windows.may_have_dropped(KEY.topic_id)
    plain = group.admission.admit_batch(check_batch(data), 0, time_us=group.now_us)
    assert plain == Accepted(Offset(1))


def test_changed_settings_keep_the_ids() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    assert isinstance(alter(group, dedup(keep_first=True, keep_ms=5)), Accepted)
    assert (group.window.settings.keep_first, group.window.settings.keep_ms) == (True, 5)
    assert dropped_of(group.produce_ids([(b"a", b"x")])) == [(1, 0, 0, Verdict.DUPLICATE)]


def test_the_window_ends_with_the_last_queue_of_the_topic() -> None:
    group = IdGroup()
    for key, left in ((KEY, True), (OTHER, False)):
        record = control_pb2.DeleteQueue(queue=ref(key))
        group.admission.queues.admit_delete_queue(record)
        group.entry.append(control(delete_queue=record))
        group.commit()
        assert (KEY.topic_id in group.state.id_windows.topics) is left
        assert group.state.id_windows.may_have_dropped(KEY.topic_id) is left


# --- apply --------------------------------------------------------------------------------------


def check_of(group: IdGroup, **other: Any) -> control_pb2.CheckIds:
    given = {
        "queue": ref(KEY),
        "producer_id": 1,
        "base_sequence": 0,
        "count": 1,
        "content_crc": 1,
        "ids": 1,
        **other,
    }
    return control_pb2.CheckIds(**given)


def record_of(group: IdGroup) -> Any:
    data = group.batch([(b"a", b"1")])
    parts = batch_record_parts(
        data, base_offset=Offset(0), append_time_us=group.now_us, term=Term(group.term)
    )
    return RecordKind.BATCH, parts


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ref(OTHER)},
        {"producer_id": 2},
        {"base_sequence": 1},
        {"count": 2},
        {"count": 2, "conflicts": 2},
        {"ids": 2},
        {"first_arrival": 1},
        {"queue": common_pb2.QueueRef(topic_id=99)},
    ],
)
def test_apply_halts_when_the_decision_does_not_fit_the_batch(wrong: dict[str, Any]) -> None:
    group = IdGroup()
    with pytest.raises(StateDiverged):
        group.apply(control(check_ids=check_of(group, **wrong)), record_of(group))


def test_apply_halts_for_a_batch_without_a_decision_and_for_a_decision_without_a_batch() -> None:
    for records in ("batch", "check", "check and noop"):
        group = IdGroup()
        given = {
            "batch": [record_of(group)],
            "check": [control(check_ids=check_of(group))],
            "check and noop": [control(check_ids=check_of(group)), (RecordKind.NOOP, [])],
        }[records]
        with pytest.raises(StateDiverged):
            group.apply(*given)


def test_apply_tells_which_ids_arrive() -> None:
    group = IdGroup()
    results = group.apply(control(check_ids=check_of(group)), record_of(group))
    assert results[0] == IdsChecked(topic_id=KEY.topic_id, first_arrival=0, ids=1)


# --- everything together ------------------------------------------------------------------------

IDS = st.none() | st.integers(0, 15)
BATCHES = st.tuples(
    st.just("batch"),
    st.lists(st.tuples(IDS, st.integers(0, 1)), min_size=1, max_size=8),
    st.sampled_from([KEY, OTHER]),
    st.sampled_from([1, 2]),
)
EVENTS = st.one_of(
    BATCHES,
    st.sampled_from([("commit",), ("lose",), ("freeze",), ("maintain",), ("look",), ("drop",)]),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=150, deadline=None)
def test_the_log_holds_each_id_once_and_a_slave_has_the_same_index(events: list[Any]) -> None:
    group = IdGroup()
    waiting: list[tuple[bytes, LookedUp]] = []
    for event in events:
        match event:
            case "batch", drawn, key, producer:
                messages = [
                    (None if each is None else b"%d" % each, b"v%d" % content)
                    for each, content in drawn
                ]
                data = group.batch(messages, key=key, producer=producer)
                if waiting and waiting[-1][0] is data:
                    continue
                decision = group.send(data, commit=False)
                assert isinstance(decision, Accepted | Refused)
            case ("look",):
                data = group.batch([(b"3", b"v0"), (b"9", b"v1")], producer=1)
                waiting.append((data, group.look_up(data)))
            case ("drop",) if waiting:
                data, seen = waiting.pop()
                if check_batch(data).previous_sequence == group.last.get((KEY, 1), -1):
                    assert isinstance(group.send(data, seen, commit=False), Accepted | LookUpIds)
            case ("commit",):
                group.commit()
            case ("lose",):
                group.new_master()
                rows = group.state.producers
                for key in (KEY, OTHER):
                    for producer in (1, 2):
                        row = rows.lookup(key, producer)
                        assert row is not None
                        group.last[key, producer] = row.last_sequence
                waiting.clear()
            case ("freeze",):
                group.index.freeze(group.window.next_arrival)
            case ("maintain",):
                group.index.maintain(0)
    group.commit()
    assert group.admission.ids._windows == {}
    stored = group.stored() + group.stored(OTHER)
    ids = [each for each, _ in stored if each is not None]
    assert len(ids) == len(set(ids)) == group.window.ids
    state = group.replayed()
    assert state.digest() == group.state.digest()
    check_slave(group)
    verify(group)


def test_the_log_says_what_was_dropped() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    decision = group.produce_ids([(b"b", b"2"), (b"c", b"3"), (b"a", b"x")])
    record = decision.checked.record
    assert (record.count, record.ids, record.first_arrival) == (3, 1, 2)
    logged = np.frombuffer(record.dropped, DROPPED)
    assert logged.tolist() == [(2, 1), (4, -1)]


def test_the_verifiers_follow_a_log_with_dropped_messages_from_any_entry_on() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    group.produce_ids([(b"b", b"2"), (b"c", b"3")], producer=2)
    group.produce_ids([(b"a", b"1")])
    for start in range(len(group.frames) + 1):
        verify(group, start)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producer_id", 9),
        ("base_sequence", 7),
        ("count", 5),
        ("first_arrival", 1),
        ("duplicates", 1),
    ],
)
def test_a_decision_that_does_not_fit_its_batch_is_a_problem(name: str, value: int) -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    table = TableVerifier()
    for frame in group.frames[:-1]:
        table.feed(frame)
    head = decode_frame_header(group.frames[-1])
    (_, _, check), (_, _, batch) = iter_records(group.frames[-1])
    record = control_pb2.ControlRecord.FromString(bytes(check))
    setattr(record.check_ids, name, value)
    records: list[Any] = [
        (RecordKind.CONTROL, [record.SerializeToString()]),
        (RecordKind.BATCH, [bytes(batch)]),
    ]
    table.feed(build_frame(head.index, head.term, head.time_us, records)[0])
    assert any("decision about the ids" in problem for problem in table.problems)


def test_a_batch_without_a_decision_is_a_problem() -> None:
    group = IdGroup()
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    frame, _ = build_frame(len(group.frames) + 1, 1, group.now_us, [record_of(group)])
    table.feed(frame)
    assert any("nothing was decided" in problem for problem in table.problems)
