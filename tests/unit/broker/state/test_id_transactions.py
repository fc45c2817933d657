"""Transactions on topics that compare message ids: decided when they are published."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.state import (
    Accepted,
    LookUpIds,
    Refused,
    StateDiverged,
    TransactionIds,
)
from semel.broker.state.apply import staging
from semel.protos.dropped import SAME_TRANSACTION, Verdict
from semel.protos.errors import Throttled, TransactionAborted
from semel.protos.frames import RecordKind
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.id_checks import check_slave, dropped_of, verify
from tests.kit.id_group import OTHER, dedup
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.id_staging import IdStage, dropped, same, staged_extents
from tests.unit.broker.state.staging import A, B, Stage, group_with

IDS = st.one_of(st.none(), st.integers(0, 9).map(lambda number: b"%d" % number))
VALUES = st.sampled_from([b"1", b"2"])


def test_a_publication_drops_what_is_stored_already_and_what_comes_twice_in_it() -> None:
    group = IdStage()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    group.stage_ids([(b"x", b"8"), (b"a", b"1"), (None, b"9"), (b"b", b"other")])
    group.stage_ids([(b"x", b"8"), (b"y", b"7")])
    group.stage_ids([(b"z", b"6"), (b"y", b"7")], key=OTHER)
    assert group.window.ids == 2
    group.pin_ids()
    decision, kept = group.publish_ids()
    assert isinstance(decision, Accepted)
    assert dropped(kept) == [
        [(1, 0), (3, -2)],
        [(4, SAME_TRANSACTION)],
        [(1, SAME_TRANSACTION)],
    ]
    assert group.stored()[2:] == [(b"x", b"8"), (None, b"9"), (b"y", b"7")]
    assert group.stored(OTHER) == [(b"z", b"6")]
    window = group.window
    assert (window.ids, window.duplicates, window.conflicts) == (5, 3, 1)
    assert len(window.dropped) == 0
    assert group.state.transactions.staging.bytes == 0
    again = group.produce_ids([(b"y", b"7"), (b"z", b"6")], producer=2)
    assert dropped_of(again) == [(0, 0, 4, Verdict.DUPLICATE), (1, 1, 0, Verdict.DUPLICATE)]
    same(group)


def test_ids_of_a_transaction_count_from_its_publication_on() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1"), (b"b", b"2")])
    group.pin_ids()
    assert dropped_of(group.produce_ids([(b"a", b"1")])) == []
    _, kept = group.publish_ids()
    assert dropped(kept) == [[(0, 0)]]
    assert group.stored() == [(b"a", b"1"), (b"b", b"2")]
    same(group)


def test_of_two_transactions_in_flight_the_one_that_is_published_first_wins() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1"), (b"b", b"2")], stager=A, txn="one")
    group.stage_ids([(b"b", b"2"), (b"c", b"3")], stager=B, txn="two")
    group.pin_ids(A, txn="one")
    group.pin_ids(B, txn="two")
    early = group.look_up_pinned("one")
    _, kept = group.publish_ids("two", commit=False)
    assert dropped(kept) == []
    _, kept = group.publish_ids("one", early, commit=False)
    assert dropped(kept) == [[(1, 0)]]
    group.commit()
    assert group.stored() == [(b"b", b"2"), (b"c", b"3"), (b"a", b"1")]
    same(group)


def test_delayed_messages_are_known_from_the_commit_on_and_released_later() -> None:
    group = IdStage()
    due_us = group.now_us + 5_000_000
    group.produce_ids([(b"a", b"1")])
    group.stage_ids([(b"a", b"1"), (b"d", b"4")], due_us=due_us)
    group.stage_ids([(b"a", b"1")], due_us=due_us)
    group.stage_ids([(b"e", b"5")])
    group.pin_ids()
    _, kept = group.publish_ids()
    assert [batch.base_offset for batch in kept] == [-1, 1]
    assert group.state.delays.messages == 1
    assert group.stored() == [(b"a", b"1"), (b"e", b"5")]
    again = group.produce_ids([(b"d", b"4")], producer=2)
    assert dropped_of(again) == [(0, 0, -1, Verdict.DUPLICATE)]
    group.now_us = due_us
    group.release()
    assert group.stored()[2:] == [(b"d", b"4")]


def test_batches_of_which_nothing_is_dropped_are_published_where_they_lie() -> None:
    group = IdStage()
    group.produce_ids([(b"a", b"3")])
    group.stage_ids([(None, b"1"), (None, b"2")])
    group.stage_ids([(b"b", b"3"), (None, b"4"), (b"c", b"5")])
    group.stage_ids([(b"d", b"6"), (b"a", b"3")])
    group.pin_ids()
    pinned = staged_extents(group)
    _, kept = group.publish_ids()
    assert dropped(kept) == [[(6, 0)]]
    extents = list(group.state.queues[KEY].extents_from(1, 1 << 40))
    assert [extent.count for extent in extents] == [2, 3, 1]
    assert [extent[:2] for extent in pinned[:2]] == [
        (extent.index, extent.position) for extent in extents[:2]
    ]
    assert extents[2].index == len(group.frames)
    assert group.published.arrived == ((KEY.topic_id, 1, 3),)
    again = group.produce_ids([(b"c", b"5"), (b"d", b"6")], producer=2)
    assert dropped_of(again) == [(0, 0, 5, Verdict.DUPLICATE), (1, 0, 6, Verdict.DUPLICATE)]
    same(group)
    check_slave(group)


def test_a_transaction_of_duplicates_only_stores_nothing() -> None:
    group = IdStage()
    group.produce_ids([(b"a", b"1")])
    group.stage_ids([(b"a", b"1")])
    group.pin_ids()
    decision, _ = group.publish_ids()
    assert isinstance(decision, Accepted)
    assert group.stored() == [(b"a", b"1")]
    assert not group.state.transactions.staging.pins
    same(group)


def test_without_a_look_up_that_holds_nothing_is_published() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1")])
    group.stage_ids([(b"b", b"2")])
    group.pin_ids()
    old = group.look_up_pinned()
    for number in range(3):
        assert isinstance(group.publish_ids(looked_up=TransactionIds())[0], LookUpIds)
        group.produce_ids([(b"%d" % each, b"") for each in range(60 * number, 60 * number + 60)])
        group.index.freeze(group.window.next_arrival)
        while group.index.maintain(0):
            pass
    before = group.index.end_arrival
    assert isinstance(group.publish_ids(looked_up=old)[0], LookUpIds)
    assert group.index.end_arrival == before == group.window.next_arrival
    assert isinstance(group.publish_ids()[0], Accepted)
    assert group.stored()[-2:] == [(b"a", b"1"), (b"b", b"2")]


def test_a_lost_publication_takes_its_ids_along_and_is_done_again() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1"), (b"b", b"2")])
    group.pin_ids()
    group.publish_ids(commit=False)
    assert group.index.end_arrival == 2
    group.new_master()
    assert group.index.end_arrival == 0
    group.produce_ids([(b"b", b"2")])
    _, kept = group.publish_ids()
    assert dropped(kept) == [[(1, 0)]]
    assert group.stored() == [(b"b", b"2"), (b"a", b"1")]
    same(group)


def test_what_arrives_after_the_look_up_is_dropped_from_a_small_transaction() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    group.stage_ids([(b"b", b"2"), (b"b", b"4"), (b"d", b"5")])
    group.pin_ids()
    looked_up = group.look_up_pinned()
    group.produce_ids([(b"e", b"6"), (b"b", b"2"), (b"d", b"other")])
    _, kept = group.publish_ids(looked_up=looked_up)
    assert dropped(kept) == [[(1, 1)], [(3, 1), (4, -2), (5, -3)]]
    assert group.stored()[3:] == [(b"a", b"1"), (b"c", b"3")]
    assert (group.published.duplicates, group.published.conflicts) == (2, 2)
    same(group)
    check_slave(group)


def test_ids_are_held_back_for_a_publication_that_would_never_end() -> None:
    group = IdStage()
    group.stage_ids([(b"a", b"1")])
    group.pin_ids()
    looked_up = group.look_up_pinned()
    group.admission.ids.hold([KEY.topic_id])
    group.admission.ids.hold([KEY.topic_id])
    group.admission.ids.release([KEY.topic_id])
    refused = group.produce_ids([(b"a", b"1")])
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, Throttled)
    assert group.stage_ids([(b"c", b"1")], stager=B, txn="u") == "staged"
    assert isinstance(group.publish_ids(looked_up=looked_up)[0], Accepted)
    for _ in range(2):  # one more than it was held
        group.admission.ids.release([KEY.topic_id])
    group.admission.ids.hold([8])
    assert dropped_of(group.produce_ids([(b"a", b"1")])) == [(0, 0, 0, Verdict.DUPLICATE)]


def test_a_message_whose_first_one_is_cancelled_or_forgotten_is_kept() -> None:
    group = IdStage()
    due_us = group.now_us + 5_000_000
    group.produce_ids([(b"a", b"1"), (b"b", b"2")], due_us=due_us)
    group.stage_ids([(b"a", b"1"), (b"b", b"2")])
    group.pin_ids()
    looked_up = group.look_up_pinned()
    group.window.cancelled.append(1)
    _, kept = group.publish_ids(looked_up=looked_up, commit=False)
    assert dropped(kept) == [[(0, 0)]]


@pytest.mark.parametrize("limit", ["BYTES", "MESSAGES", "BATCHES"])
def test_a_commit_of_too_much_is_refused_before_it_is_decided(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = IdStage()
    for number in range(2):
        group.stage_ids([(b"a %d" % number, b"1"), (b"b %d" % number, b"1")])
    given = {"BYTES": 100, "MESSAGES": 3, "BATCHES": 1}[limit]
    monkeypatch.setattr(staging, f"CHECKED_{limit}_MAX", given)
    error = group.pin_ids()
    assert isinstance(error, TransactionAborted)
    assert "smaller transactions" in str(error)
    assert not group.state.transactions.staging.pins
    monkeypatch.setattr(staging, f"CHECKED_{limit}_MAX", 1 << 20)
    assert group.pin_ids() == ()


def test_a_topic_without_ids_has_no_such_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHECKED_MESSAGES_MAX", 1)
    group, won = group_with(5)
    assert group.pin(won) == ()


def test_a_topic_does_not_begin_to_compare_while_messages_of_it_are_staged() -> None:
    group, won = group_with(2)
    record = control_pb2.AlterTopic(
        topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(dedup=dedup())
    )

    def refused(group: Stage) -> None:
        decision = group.admission.queues.admit_alter_topic(record)
        assert isinstance(decision, Refused)
        assert isinstance(decision.error, Throttled)
        assert "transaction" in str(decision.error)

    refused(group)
    group.pin(won)
    refused(group)
    group.publish()
    assert isinstance(group.admission.queues.admit_alter_topic(record), Accepted)


STEPS = st.one_of(
    st.tuples(
        st.just("produce"),
        st.lists(st.tuples(IDS, VALUES), min_size=1, max_size=4),
        st.sampled_from([1, 2]),
        st.sampled_from([KEY, OTHER]),
    ),
    st.tuples(
        st.just("stage"),
        st.sampled_from([A, B]),
        st.lists(st.tuples(IDS, VALUES), min_size=1, max_size=4),
        st.sampled_from([KEY, OTHER]),
    ),
    st.tuples(
        st.sampled_from(["pin", "look up", "look up large", "publish", "rewrite"]),
        st.sampled_from([A, B]),
    ),
    st.tuples(st.sampled_from(["commit", "freeze", "maintain", "new master"])),
)


@given(steps=st.lists(STEPS, max_size=40), keep_first=st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_id_is_stored_once_whatever_comes_in_between(
    steps: list[Any], keep_first: bool
) -> None:
    group = IdStage(keep_first=keep_first)
    names = {A: "one", B: "two"}
    pinned: set[int] = set()
    looked_up: dict[int, Any] = {}
    sent: dict[int, set[bytes]] = {A: set(), B: set()}
    accepted: set[bytes] = set()
    certain: set[bytes] = set()
    for step in steps:
        match step:
            case ("produce", messages, producer, key):
                if isinstance(group.produce_ids(messages, producer=producer, key=key), Accepted):
                    accepted.update(each for each, _ in messages if each is not None)
            case ("stage", stager, messages, key) if stager not in pinned:
                group.commit()
                group.stage_ids(messages, stager=stager, txn=names[stager], key=key)
                sent[stager].update(each for each, _ in messages if each is not None)
            case ("pin", stager) if stager in group.staged and stager not in pinned:
                group.commit()
                assert group.pin_ids(stager, txn=names[stager]) == ()
                pinned.add(stager)
            case ("look up", stager) if names[stager] in group.state.transactions.staging.pins:
                looked_up[stager] = group.look_up_pinned(names[stager])
            case ("look up large", stager) if (
                names[stager] in group.state.transactions.staging.pins
            ):
                looked_up[stager] = group.look_up_pinned(names[stager], small=False)
            case ("rewrite", stager) if (
                names[stager] in group.state.transactions.staging.pins and stager in looked_up
            ):
                group.rewrite_ids(names[stager], looked_up[stager])
            case ("publish", stager) if names[stager] in group.state.transactions.staging.pins:
                found = looked_up.get(stager)
                decision, _ = group.publish_ids(names[stager], found, commit=False)
                if isinstance(decision, Accepted):
                    accepted |= sent[stager]
            case ("commit",):
                group.commit()
            case ("freeze",):
                group.index.freeze(group.window.next_arrival)
            case ("maintain",):
                group.index.maintain(0)
            case ("new master",):
                accepted.clear()
                group.new_master()
                looked_up.clear()  # it names the term in which it was made
                group.last = {
                    (key, producer): row.last_sequence
                    for key in (KEY, OTHER)
                    for producer in (1, 2)
                    if (row := group.state.producers.lookup(key, producer)) is not None
                }
        if not group.entry:
            certain |= accepted
    group.commit()
    certain |= accepted
    assert group.admission.ids._windows == {}
    ids = [each for each, _ in group.stored() + group.stored(OTHER) if each is not None]
    assert len(ids) == len(set(ids)) == group.window.ids == group.index.end_arrival
    assert certain <= set(ids), "lost"
    assert group.replayed().digest() == group.state.digest()
    check_slave(group)
    verify(group)


def entry_of(group: IdStage) -> list[Any]:
    """The records of a publication of three batches, accepted and not applied: of the first two
    messages are dropped."""
    group.produce_ids([(b"a", b"1"), (b"c", b"1")])
    group.stage_ids([(b"a", b"1")])
    group.stage_ids([(b"b", b"2"), (b"c", b"3")])
    group.stage_ids([(b"d", b"2")])
    group.pin_ids()
    group.publish_ids(commit=False)
    records, group.entry = group.entry, []
    assert [kind for kind, _ in records] == [
        RecordKind.CONTROL,
        RecordKind.STAGED,
        RecordKind.CONTROL,
        RecordKind.STAGED,
        RecordKind.CONTROL,
    ]
    return records


@pytest.mark.parametrize(
    "chosen",
    [
        (0, 1, 2, 3),  # no publication
        (2, 3, 0, 1, 4),  # in another order
        (0, 3, 4),  # a decision about another batch
        (0, 2, 3, 4),  # a decision without a batch
        (1, 2, 3, 4),  # a batch without a decision
        (4,),  # a publication without them
        (0, 1, 4),  # a publication without one of them
    ],
)
def test_apply_halts_if_the_records_do_not_fit(chosen: tuple[int, ...]) -> None:
    group = IdStage()
    records = entry_of(group)
    with pytest.raises(StateDiverged):
        group.apply(*[records[at] for at in chosen])


def changed(record: Any, **fields: Any) -> Any:
    """A publication with other ids."""
    whole = control_pb2.ControlRecord.FromString(bytes(record[1][0]))
    (topic,) = whole.transaction.publish.ids
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(topic, name)[:]
            getattr(topic, name).extend(value)
        else:
            setattr(topic, name, value)
    return control(transaction=whole.transaction)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_id": 8},
        {"first_arrival": 1},
        {"first_arrival": 3},
        {"ids": [0, 1]},
        {"ids": [0, 1, 2]},
        {"ids": [1, 1, 1]},
        {"entries": [0, 0, 0]},
        {"entries": [0, 0]},
        {"positions": [0, 0, 1]},
        {"lengths": [0, 0, 8]},
        {"lengths": [0, 0]},
    ],
)
def test_apply_halts_if_other_ids_are_published(fields: dict[str, Any]) -> None:
    group = IdStage()
    records = entry_of(group)
    with pytest.raises(StateDiverged):
        group.apply(*records[:-1], changed(records[-1], **fields))
    group = IdStage()
    records = entry_of(group)
    group.apply(*records[:-1], changed(records[-1]))


def test_a_publication_without_its_ids_halts() -> None:
    group = IdStage()
    records = entry_of(group)
    whole = control_pb2.ControlRecord.FromString(bytes(records[-1][1][0]))
    del whole.transaction.publish.ids[:]
    with pytest.raises(StateDiverged):
        group.apply(*records[:-1], control(transaction=whole.transaction))
