"""Large transactions on topics that compare message ids: batches of which messages are dropped are
rewritten before the publication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.broker.dedup.pinned_ids import PinnedIds
from semel.broker.state import (
    KnownIds,
    LookUpIds,
    Refused,
    State,
    StateDiverged,
    TableVerifier,
    TransactionIds,
)
from semel.protos.dropped import Verdict
from semel.protos.errors import TransactionAborted
from semel.protos.frames import RecordKind, build_frame, iter_records
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.kit.id_checks import check_slave, dropped_of
from tests.kit.id_group import OTHER
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.id_staging import IdStage, same, staged_extents
from tests.unit.broker.state.staging import B

KNOWN = KnownIds(0, [[]], keep_first=False)
"""A window that holds everything."""


def large(group: IdStage) -> None:
    """Four batches are pinned: one that is new, two with known ids, one of duplicates alone."""
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    group.stage_ids([(b"x", b"8"), (None, b"9"), (b"y", b"7")])
    group.stage_ids([(b"a", b"1"), (b"z", b"6"), (b"b", b"other")])
    group.stage_ids([(b"z", b"6"), (b"u", b"5")])
    group.stage_ids([(b"a", b"1"), (b"b", b"2")], key=OTHER)
    group.pin_ids()


def test_what_is_kept_is_rewritten_before_a_large_publication() -> None:
    group = IdStage()
    large(group)
    before, size = staged_extents(group), group.state.transactions.staging.bytes
    looked_up = group.look_up_pinned(small=False)
    assert isinstance(group.publish_ids(looked_up=looked_up)[0], LookUpIds)
    assert group.rewrite_ids("t", looked_up) == 3
    after = staged_extents(group)
    assert after[0] == before[0]
    assert [each.messages for each in after] == [3, 1, 1, 0]
    assert [each.base_sequence for each in after] == [each.base_sequence for each in before]
    staging = group.state.transactions.staging
    assert staging.bytes == sum(each.length for each in after) != size
    assert sorted(group.state.live_records(2, 1 << 40))[-4:] == sorted(each[:3] for each in after)
    window, pin = group.window, staging.pins["t"]
    assert (window.ids, window.duplicates, window.conflicts) == (2, 4, 1)
    assert (pin.duplicates, pin.conflicts) == (4, 1)
    same(group)
    assert isinstance(group.publish_ids(looked_up=looked_up)[0], LookUpIds), "other batches"
    assert group.publish_large() == 0
    assert (group.published.duplicates, group.published.conflicts) == (4, 1)
    assert group.published.arrived == ((KEY.topic_id, 2, 4),)
    assert group.stored()[2:] == [
        (b"x", b"8"),
        (None, b"9"),
        (b"y", b"7"),
        (b"z", b"6"),
        (b"u", b"5"),
    ]
    assert group.stored(OTHER) == []
    assert (group.window.ids, group.window.duplicates) == (6, 4)
    assert staging.bytes == 0
    again = group.produce_ids([(b"u", b"5"), (b"y", b"7")], producer=2)
    assert dropped_of(again) == [(0, 0, 6, Verdict.DUPLICATE), (1, 0, 4, Verdict.DUPLICATE)]
    same(group)
    check_slave(group)


@pytest.mark.parametrize("bytes_max", [1, 400, 1 << 20])
def test_as_many_batches_are_rewritten_in_an_entry_as_fit(bytes_max: int) -> None:
    group = IdStage()
    large(group)
    entries = group.rewrite_ids("t", group.look_up_pinned(small=False), bytes_max)
    assert entries == {1: 3, 400: 2, 1 << 20: 1}[bytes_max]
    assert group.publish_large() == 0
    same(group)


def test_another_master_goes_on_with_what_is_rewritten() -> None:
    group = IdStage()
    large(group)
    looked_up = group.look_up_pinned(small=False)
    (pinned,) = looked_up.topics.values()
    assert isinstance(pinned, PinnedIds)
    first, *_ = pinned.rewrites(group.read, group.known, 1)
    group.take(rewrite(), TransactionIds(rewrites=first))
    assert isinstance(group.publish_ids(looked_up=looked_up)[0], Refused), "it is in flight"
    group.commit()
    group.take(rewrite(), TransactionIds(rewrites=first))
    assert not group.entry, "it is not there any more"
    group.new_master()
    data = b"".join(group.state.to_parts())
    assert State.from_bytes(data).transactions.staging.pins["t"].duplicates == 1
    assert group.publish_large() == 2
    assert (group.published.duplicates, group.published.conflicts) == (4, 1)
    assert len(group.stored()) == 7
    same(group)
    check_slave(group)


def test_what_arrives_during_the_rewriting_is_dropped_as_well() -> None:
    group = IdStage()
    large(group)
    looked_up = group.look_up_pinned(small=False)
    group.produce_ids([(b"y", b"7"), (b"v", b"4"), (b"u", b"else")], producer=2)
    assert group.rewrite_ids("t", looked_up) == 3
    assert isinstance(group.publish_ids(looked_up=looked_up)[0], LookUpIds)
    again = group.look_up_pinned(small=False)
    group.produce_ids([(b"x", b"8")], producer=2)
    assert isinstance(group.publish_ids(looked_up=again)[0], LookUpIds)
    assert group.publish_large() == 2
    assert group.stored()[-2:] == [(None, b"9"), (b"z", b"6")]
    assert (group.published.duplicates, group.published.conflicts) == (6, 2)
    same(group)
    check_slave(group)


@pytest.mark.parametrize("cancelled", [True, False])
def test_nothing_is_dropped_for_what_is_not_known_any_more(cancelled: bool) -> None:
    """Between the look-up and the rewrite the window has moved, or a message was cancelled."""
    group = IdStage()
    large(group)
    looked_up = group.look_up_pinned(small=False)
    if cancelled:
        group.window.cancelled.append(0)
    else:
        group.window.first_arrival = 1
    (pinned,) = looked_up.topics.values()
    assert isinstance(pinned, PinnedIds)
    old = [rewrite for some in pinned.rewrites(group.read, KNOWN, 1 << 20) for rewrite in some]
    accepted, decision, _ = group.take(rewrite(), TransactionIds(rewrites=old))
    assert not accepted
    assert isinstance(decision, LookUpIds)


def test_delayed_batches_are_rewritten_and_stay_delayed() -> None:
    group = IdStage()
    due_us = group.now_us + 5_000_000
    group.produce_ids([(b"a", b"1")])
    group.stage_ids([(b"a", b"1"), (b"d", b"4")], due_us=due_us)
    group.stage_ids([(b"a", b"1")], due_us=due_us)
    group.stage_ids([(b"e", b"5")])
    group.stage_ids([(b"f", b"6")], due_us=due_us)
    group.pin_ids()
    assert group.publish_large() == 2
    assert group.state.delays.messages == 2
    assert group.stored() == [(b"a", b"1"), (b"e", b"5")]
    again = group.produce_ids([(b"d", b"4")], producer=2)
    assert dropped_of(again) == [(0, 0, -1, Verdict.DUPLICATE)]
    check_slave(group)
    group.now_us = due_us
    group.release()
    assert group.stored()[2:] == [(b"d", b"4"), (b"f", b"6")]


def rewrite() -> Any:
    return transaction_records_pb2.TransactionRecord(
        rewrite=transaction_records_pb2.RewriteBatches(transaction_id="t", attempt=1)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda check, step: step.__setattr__("attempt", 2),
        lambda check, step: step.__setattr__("transaction_id", "u"),
        lambda check, step: check.__setattr__("base_sequence", 4),
        lambda check, step: check.__setattr__("content_crc", 4),
        lambda check, step: check.__setattr__("count", 4),
        lambda check, step: check.__setattr__("ids", 1),
        lambda check, step: check.__setattr__("first_arrival", 2),
        lambda check, step: check.__setattr__("producer_id", B),
        lambda check, step: check.__setattr__("duplicates", 3),
        lambda check, step: check.__setattr__("dropped", b""),
    ],
)
def test_apply_halts_if_a_rewrite_does_not_fit(change: Callable[[Any, Any], None]) -> None:
    for broken in (True, False):
        group = IdStage()
        large(group)
        (pinned,) = group.look_up_pinned(small=False).topics.values()
        assert isinstance(pinned, PinnedIds)
        first, *_ = pinned.rewrites(group.read, group.known, 1)
        group.take(rewrite(), TransactionIds(rewrites=first))
        (_, (check,)), staged, (_, (step,)) = group.entry
        decision = control_pb2.ControlRecord.FromString(bytes(check))
        record = control_pb2.ControlRecord.FromString(bytes(step))
        if broken:
            change(decision.check_ids, record.transaction.rewrite)
        records = (
            control(check_ids=decision.check_ids),
            staged,
            control(transaction=record.transaction),
        )
        if broken:
            with pytest.raises(StateDiverged):
                group.apply(*records)
        else:
            group.apply(*records)


def test_a_rewrite_without_a_pin_is_refused() -> None:
    group = IdStage()
    large(group)
    (pinned,) = group.look_up_pinned(small=False).topics.values()
    assert isinstance(pinned, PinnedIds)
    first, *_ = pinned.rewrites(group.read, group.known, 1)
    group.publish_large()
    accepted, decision, _ = group.take(rewrite(), TransactionIds(rewrites=first))
    assert not accepted
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, TransactionAborted)


def told(group: IdStage, change: Callable[[Any], None]) -> str:
    """What the verifier of tables says when the last entry is another one."""
    verifier = TableVerifier()
    for frame in group.frames[:-1]:
        verifier.feed(frame)
    records: list[Any] = []
    for _, kind, payload in iter_records(group.frames[-1]):
        if kind is RecordKind.CONTROL:
            record = control_pb2.ControlRecord.FromString(bytes(payload))
            change(record)
            records.append((kind, [record.SerializeToString()]))
        else:
            records.append((kind, [payload]))
    verifier.feed(build_frame(len(group.frames), group.term, group.now_us, records)[0])
    return "; ".join(verifier.problems)


def test_the_verifier_finds_publications_whose_ids_do_not_fit() -> None:
    group = IdStage()
    large(group)
    group.publish_large()
    assert told(group, lambda record: None) == ""

    def late(record: Any) -> None:
        record.transaction.publish.ids[0].first_arrival += 1

    def without(record: Any) -> None:
        del record.transaction.publish.ids[:]

    assert "published ids arrive as 3, the next one was 2" in told(group, late)
    assert "nothing was decided about ids of topics [7]" in told(group, without)


@pytest.mark.parametrize(
    "change",
    [
        lambda check: check.__setattr__("base_sequence", 4),
        lambda check: check.__setattr__("producer_id", B),
        lambda check: check.__setattr__("count", 4),
        lambda check: check.__setattr__("ids", 1),
        lambda check: check.__setattr__("first_arrival", 2),
        lambda check: check.__setattr__("duplicates", 3),
    ],
)
def test_the_verifier_finds_rewrites_that_do_not_fit(change: Callable[[Any], None]) -> None:
    group = IdStage()
    large(group)
    group.rewrite_ids("t", group.look_up_pinned(small=False))

    def alter(record: Any) -> None:
        if record.HasField("check_ids"):
            change(record.check_ids)

    assert "a transaction: the decision about the ids of" in told(group, alter)
