"""Known holes of exactly-once produce: each one closed here, and open again with the bug planted.

The holes were found in Kafka, Pulsar, NATS, Redpanda, librdkafka and Fluss; the table in
`docs/testing.md` says which. Scenarios run against the real admission, apply, batch codec and send
window; `tests/unit/broker/state` and `tests/unit/client` have the walks that look for what nobody
knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from semel.broker.state import (
    Accepted,
    Admission,
    Duplicate,
    FenceApplied,
    Refused,
    State,
)
from semel.broker.state.admission.pending import PendingState
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.rows import ENTRY, Row
from semel.client.core.sequences import SendWindow
from semel.protos import batch, errors
from semel.protos.batch import BatchHeader, check_batch
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Term, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2
from tests.kit.send_window import RenamesInDoubt, World, run
from tests.kit.state_log import KEY, Group, control, header, ref
from tests.known_bugs.planting import breaks_when_planted

OTHER = QueueKey(TopicId(7), QueueId(1))
MINUTE_US = 60_000_000


def fenced_group() -> Group:
    group = Group(queues=(KEY, OTHER))
    group.fence(keys=(KEY, OTHER), name="loader")
    return group


def error_of(decision: object) -> type[Exception] | None:
    return type(decision.error) if isinstance(decision, Refused) else None


def test_a_batch_whose_append_failed_is_not_taken_for_stored() -> None:
    """Pulsar #5218, NATS #6415: the sequence was recorded before the message was."""

    def scenario() -> None:
        group = fenced_group()
        lost = header(-1, last=9)
        assert isinstance(group.produce(lost, commit=False), Accepted)
        group.new_master()
        assert group.produce(lost) == Accepted(Offset(0)), "lost"
        assert group.state.queues[KEY].log_end_offset == 10

    def plant(patch: pytest.MonkeyPatch) -> None:
        accept = Admission._accept

        def recorded_first(self: Admission, head: BatchHeader, *rest: Any) -> Any:
            decision = accept(self, head, *rest)
            stored = self._state.producers.find(head.queue_key, head.producer_id)
            assert stored is not None
            if isinstance(decision, Accepted):
                base, last = head.base_sequence, head.last_sequence
                stored.append(base, last, decision.base_offset, head.count, head.content_crc, 0)
            return decision

        patch.setattr(Admission, "_accept", recorded_first)

    breaks_when_planted(scenario, plant, match="lost")


def test_a_new_master_does_not_admit_before_it_has_replayed() -> None:
    """Redpanda #13614: an entry of the old master is committed and not applied yet."""

    def scenario() -> None:
        group = fenced_group()
        stored = header(-1, last=9)
        group.produce(stored)
        behind = State()
        for frame in group.frames[:-1]:
            behind.apply_frame(frame)
        try:
            admission = Admission(behind, term=Term(2))
        except AssertionError:
            admission = None  # the node that asked too early halts
        assert admission is None or not isinstance(
            admission.admit_batch(stored, 0, time_us=0), Accepted
        ), "twice"
        noop, _ = build_frame(len(group.frames) + 1, 2, group.now_us, [(RecordKind.NOOP, [])])
        behind.apply_frame(group.frames[-1])
        behind.apply_frame(noop)
        assert Admission(behind, term=Term(2)).admit_batch(stored, 0, time_us=0) == Duplicate(
            Offset(0)
        )

    def plant(patch: pytest.MonkeyPatch) -> None:
        begin = Admission.__init__

        def at_once(self: Admission, state: State, *, term: Term, **options: Any) -> None:
            begin(self, state, term=Term(state.applied_term), **options)

        patch.setattr(Admission, "__init__", at_once)

    breaks_when_planted(scenario, plant, match="twice")


def test_trimmed_messages_are_still_duplicates() -> None:
    """KIP-360, Redpanda #29623: the state went with the messages that retention removed."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=10)))
        assert group.produce(header(-1, last=9)) == Duplicate(Offset(0)), "forgotten"
        assert group.state.queues[KEY].log_end_offset == 10

    def plant(patch: pytest.MonkeyPatch) -> None:
        trim = State._trim

        def with_rows(self: State, record: control_pb2.Trim) -> Any:
            for row in list(self.producers.rows(queue_key_of(record.queue))):
                self.producers.remove(row.queue_key, row.producer_id)
            return trim(self, record)

        patch.setattr(State, "_trim", with_rows)

    breaks_when_planted(scenario, plant, match="forgotten")


def test_a_late_retry_after_expiry_is_refused_and_not_stored_again() -> None:
    """Redpanda #22670: idle or surplus producers were evicted, and came back as new ones."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
        assert record is not None
        group.entry.append(control(expire_producers=record))
        group.commit()
        assert error_of(group.produce(header(-1, last=9))) is errors.DedupStateExpired
        assert error_of(group.fence()) is errors.DedupStateExpired, "taken for a new producer"
        assert isinstance(group.fence(epoch=2, after_expiry=True), FenceApplied)
        assert error_of(group.produce(header(-1, last=9))) is errors.ProducerFenced

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Expired, "may_open", lambda self, producer_id, epoch, after_expiry: True)

    breaks_when_planted(scenario, plant, match="new producer")


def test_replicas_expire_the_same_rows_whatever_their_clocks_say() -> None:
    """NATS #6486: every replica went by its own clock."""

    def scenario() -> None:
        group = fenced_group()
        group.now_us += 10 * MINUTE_US
        group.fence(producer=2)
        record = group.admission.propose_expiry(
            KEY, now_us=group.now_us, idle_ms=60_000, rows_max=9
        )
        assert record is not None
        assert list(record.producer_ids) == [1]
        group.entry.append(control(expire_producers=record))
        group.commit()
        assert group.replayed().digest() == group.state.digest(), "replicas differ"

    def plant(patch: pytest.MonkeyPatch) -> None:
        clocks = iter(range(0, 10**18, 10**15))

        def by_the_clock(self: State, record: control_pb2.ExpireProducers) -> Any:
            key = queue_key_of(record.queue)
            own_us = self.log_time_us + next(clocks)
            for producer in self.producers.expirable(key, own_us, 60_000, 9):
                self.producers.remove(key, producer)
            return group_done

        group_done = State()._expire_producers(control_pb2.ExpireProducers())
        patch.setattr(State, "_expire_producers", by_the_clock)

    breaks_when_planted(scenario, plant, match="replicas differ|overlay and applied state")


def test_a_backfill_of_old_messages_does_not_expire_its_own_producer() -> None:
    """Expiry by the records' own timestamps; the messages here are of 1970."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        expired = group.admission.propose_expiry(
            KEY, now_us=group.now_us, idle_ms=60_000, rows_max=9
        )
        assert expired is None, "killed by its own messages"

    def plant(patch: pytest.MonkeyPatch) -> None:
        append: Any = Row.append

        def by_timestamp(self: Row, *fields: int) -> None:
            append(self, *fields[:-1], header(-1).max_timestamp_us)

        patch.setattr(Row, "append", by_timestamp)

    breaks_when_planted(scenario, plant, match="killed by its own")


def test_an_open_batch_is_never_renamed_before_its_fate_is_known() -> None:
    """KAFKA-14034, Redpanda #3039, librdkafka #4953: an epoch bump renamed what was in flight."""

    def scenario() -> None:
        world = World(positions=False)
        stored_unanswered = [("add", 3), ("transmit", 3), ("arrive", 0), ("lose_stream", 0)]
        run(world, stored_unanswered)
        assert world.queue.stored == world.sent, "stored twice"

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SendWindow, "on_stream_lost", RenamesInDoubt.on_stream_lost)

    breaks_when_planted(scenario, plant, match="stored twice")


def test_a_fence_tells_all_that_an_older_session_stored() -> None:
    """The broker's half of it: what the reply does not name can never land."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        group.produce(header(9, last=19), commit=False)
        row = group.fence(session=1).rows[0]
        assert [entry.base_offset for entry in row.window] == [0, 10]
        late = group.produce(header(19), commit=False)
        assert error_of(late) is errors.ProducerFenced, "landed after the fence"

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = Admission.admit_batch

        def lenient(self: Admission, head: BatchHeader, now_ms: float, *, time_us: int) -> Any:
            row = self._state.producers.find(head.queue_key, head.producer_id)
            if row is not None:
                head = replace(head, epoch=row.epoch, session=row.session)
            return original(self, head, now_ms, time_us=time_us)

        patch.setattr(Admission, "admit_batch", lenient)

    breaks_when_planted(scenario, plant, match="landed after the fence")


def test_a_retry_whose_first_answer_was_lost_is_no_gap() -> None:
    """Fluss #2826: later batches were acknowledged, the retry was out of order for ever."""

    def scenario() -> None:
        group = fenced_group()
        for base in range(0, 50, 10):
            group.produce(header(base - 1, last=base + 9))
        assert group.produce(header(-1, last=9)) == Duplicate(Offset(0)), "never answered"
        assert group.produce(header(49, last=59)) == Accepted(Offset(50))

    def plant(patch: pytest.MonkeyPatch) -> None:
        def gap_first(self: Admission, head: Any, queue: Any, row: Any, *at: Any) -> Any:
            error = errors.OutOfOrderSequence("a gap", last_sequence=row.last)
            return Refused(error)

        patch.setattr(Admission, "_decide_unchained", gap_first)

    breaks_when_planted(scenario, plant, match="never answered")


def test_one_old_message_does_not_drop_the_new_ones_of_its_batch() -> None:
    """Pulsar #6273: a batch that begins with a stored message was called a duplicate."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        mixed = group.produce(header(8, last=14))
        assert error_of(mixed) is errors.PartialOverlap, "dropped as a whole"
        assert group.produce(header(9, last=14)) == Accepted(Offset(10))

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = Admission._decide_from_applied

        def by_the_first(self: Admission, head: Any, row: Any) -> Any:
            known = row.applied is not None and head.base_sequence <= row.applied.last_sequence
            return Duplicate(Offset(-1)) if known else original(self, head, row)

        patch.setattr(Admission, "_decide_from_applied", by_the_first)

    breaks_when_planted(scenario, plant, match="dropped as a whole")


def test_every_batch_in_flight_is_found_after_a_restart_from_a_checkpoint() -> None:
    """Kafka: the snapshot kept the last batch only, an earlier retry was refused for ever."""

    def scenario() -> None:
        group = fenced_group()
        for base in range(0, 640, 10):
            group.produce(header(base - 1, last=base + 9))
        group.state = State.from_bytes(b"".join(group.state.to_parts()))
        group.new_master()
        for base in range(0, 640, 10):
            decision = group.produce(header(base - 1, last=base + 9))
            assert decision == Duplicate(Offset(base)), "not remembered"

    def plant(patch: pytest.MonkeyPatch) -> None:
        pack = Row.pack

        def newest_only(self: Row, producer_id: int) -> bytes:
            window, self.window = self.window, self.window[-ENTRY.size :]
            packed = pack(self, producer_id)
            self.window = window
            return packed

        patch.setattr(Row, "pack", newest_only)

    breaks_when_planted(scenario, plant, match="not remembered")


def test_a_zombie_that_begins_at_zero_again_is_fenced() -> None:
    """Kafka and others: sequence 0 was always taken for a new beginning."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, last=9))
        group.fence(epoch=2)
        zombie = group.produce(header(-1, last=4, crc=9), commit=False)
        assert error_of(zombie) is errors.ProducerFenced, "the zombie wrote"
        # The same name after a restart, without a session of its own: no new beginning.
        again = group.produce(header(-1, last=9, epoch=2, crc=9))
        assert error_of(again) is errors.SequenceConflict
        # A request that was delayed on an old connection.
        group.fence(epoch=2, session=1)
        late = group.produce(header(9, last=19, epoch=2))
        assert error_of(late) is errors.ProducerFenced

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = Admission.admit_batch

        def zero_begins_anew(self: Admission, head: BatchHeader, now_ms: float, **rest: Any) -> Any:
            if not head.base_sequence:
                queue = self._pending.queue(head.queue_key)
                assert queue is not None
                return self._accept(head, queue, self._pending.row(queue, head.producer_id), None)
            return original(self, head, now_ms, **rest)

        patch.setattr(Admission, "admit_batch", zero_begins_anew)

    breaks_when_planted(scenario, plant, match="the zombie wrote")


def test_sequences_end_and_do_not_wrap() -> None:
    """A 32-bit sequence wraps to 0 after days of load, and its batches look old."""

    def scenario() -> None:
        group = fenced_group()
        largest = (1 << 63) - 1
        stored = group.produce(header(-1, base=largest - 1, last=largest, count=2))
        assert stored == Accepted(Offset(0))
        row = group.state.producers.find(KEY, ProducerId(1))
        assert row is not None
        assert row.last_sequence == largest, "wrapped"
        wrapped = header(largest - 1, base=largest, last=largest, crc=5)
        data = replace(wrapped, base_sequence=0, last_sequence=0).encode()  # type: ignore[arg-type]
        with pytest.raises(errors.CorruptBatch, match="do not rise"):
            check_batch(data + bytes(wrapped.body_length))

    def plant(patch: pytest.MonkeyPatch) -> None:
        append = Row.append

        def of_32_bits(self: Row, base: int, last: int, *rest: int) -> None:
            append(self, base & 0xFFFF_FFFF, last & 0xFFFF_FFFF, *rest)

        patch.setattr(Row, "append", of_32_bits)

    breaks_when_planted(scenario, plant, match="wrapped|overlay and applied state")


def test_a_buffer_that_was_used_again_is_noticed() -> None:
    """KAFKA-19012: a batch landed in another topic. The CRCs cover queue, producer and bytes."""
    head = header(-1, last=9)
    good = head.encode() + bytes(head.body_length)
    other = replace(head, queue_id=QueueId(1)).encode()

    def scenario() -> None:
        assert check_batch(good) == head
        for at in range(len(good)):
            if at < len(other) and other[at] != good[at]:
                reused = good[:at] + other[at : at + 1] + good[at + 1 :]
            else:
                reused = good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :]
            try:
                found = check_batch(reused)
            except errors.CorruptBatch:
                continue
            raise AssertionError(f"byte {at} is another, and it passes as {found.queue_key}")

    def plant(patch: pytest.MonkeyPatch) -> None:
        """The header's CRC begins behind the queue, as a CRC over the payload does."""
        value = google_crc32c.value

        class Partial:
            @staticmethod
            def value(data: bytes) -> int:
                return int(value(data if len(data) != batch.HEADER_CRC_AT else good[: len(data)]))

        patch.setattr(batch, "google_crc32c", Partial)

    breaks_when_planted(scenario, plant, match="passes as")


def test_a_queue_without_a_row_accepts_nothing() -> None:
    """A queue that was moved, split or created anew: a retry must not meet an empty table."""

    def scenario() -> None:
        group = Group(queues=(KEY, OTHER))
        group.fence()
        group.produce(header(-1, last=9))
        elsewhere = group.produce(header(-1, last=9, key=OTHER))
        assert error_of(elsewhere) is errors.DedupStateExpired, "stored in both"
        assert group.state.queues[OTHER].log_end_offset == 0

    def plant(patch: pytest.MonkeyPatch) -> None:
        row_of = PendingState.row

        def made_on_the_way(self: PendingState, queue: Any, producer_id: ProducerId) -> Any:
            row = row_of(self, queue, producer_id)
            if not row.exists:
                row.exists, row.epoch, row.session = True, 1, 0
                self._state.producers.create(queue.key, producer_id, Row(1, 0, 0))
            return row

        patch.setattr(PendingState, "row", made_on_the_way)

    breaks_when_planted(scenario, plant, match="stored in both")


def test_a_retry_meets_the_table_of_the_parent_or_of_the_child() -> None:
    """A queue that is split while a loader is away, which then sends everything again."""

    def scenario() -> None:
        group = fenced_group()
        group.apply(control(feature_level=control_pb2.FeatureLevel(level=2)))
        group.produce(header(-1, last=9))
        children = [
            control_pb2.ChildQueue(queue_id=5, slot_start=0, slot_end=9),
            control_pb2.ChildQueue(queue_id=6, slot_start=9, slot_end=65_536),
        ]
        split = control_pb2.SplitQueue(queue=ref(KEY), children=children)
        assert isinstance(group.admission.queues.admit_split(split), Accepted)
        group.entry.append(control(split_queue=split))
        group.commit()
        assert isinstance(group.produce(header(-1, last=9)), Duplicate)
        child = QueueKey(KEY.topic_id, QueueId(5))
        group.fence(epoch=2, keys=(child,), name="loader")
        again = group.produce(header(-1, last=9, epoch=2, key=child))
        assert isinstance(again, Duplicate), "stored in both"

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SequenceTable, "inherit", lambda *_: None)

    breaks_when_planted(scenario, plant, match="stored in both")


def test_lower_sequences_of_a_second_writer_are_refused_and_not_dropped() -> None:
    """Pulsar: what a second thread of the same name sent was called a duplicate and was gone."""

    def scenario() -> None:
        group = fenced_group()
        group.produce(header(-1, base=10, last=19, count=10))
        second = group.produce(header(-1, base=3, last=3, crc=8))
        assert error_of(second) is errors.OutOfOrderSequence, "dropped silently"
        same = group.produce(header(-1, base=10, last=19, count=10, crc=8))
        assert error_of(same) is errors.SequenceConflict

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = Admission._decide_unchained

        def lower_is_old(self: Admission, head: Any, queue: Any, row: Any, *at: Any) -> Any:
            if row.applied is not None and head.last_sequence <= row.applied.last_sequence:
                return Duplicate(Offset(-1))
            return original(self, head, queue, row, *at)

        patch.setattr(Admission, "_decide_unchained", lower_is_old)

    breaks_when_planted(scenario, plant, match="dropped silently")
