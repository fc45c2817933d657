"""The replicated state machine: applies committed frames, one after the other, to one state.

How it works. `apply_frame` walks over the records of one Raft entry. The master's admission has
decided about batches, fences and releases of delayed batches before they were proposed. Here they
are checked again (incarnation, chain, offset, time), and a mismatch is `StateDiverged`, which halts
the node. Locks, commits and resets are decided here. Nothing else enters the state: no clock, no
file, no random number, no message.

Invariants
1. Two states that applied the same frames have the same canonical bytes, whether they replayed all
   frames or started with `from_bytes` at some index. The order of dicts never shows.
2. `applied_index` rises by one with each frame; `log_time_us` and `applied_term` never fall.
3. A record is applied completely, or the node halts.

Format. docs/formats/state.md.

It is all in one file because applying records and writing the canonical bytes of the whole state
change together: whatever is applied in one place and forgotten in the other would be lost at the
next checkpoint.

Not here: deciding about batches (`state/admission/admission.py`), where bytes lie on disk
(`semel.broker.log`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from semel.broker.state.apply import deleted_tiers
from semel.broker.state.apply.codec import CRC, CheckedParts, Part, Reader
from semel.broker.state.apply.compacted import Rewritten, rewritten
from semel.broker.state.apply.delays import COLUMN_FLAG, Delays
from semel.broker.state.apply.id_windows import IdSettings, IdWindows
from semel.broker.state.apply.live_records import LiveRecords
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.lost_offsets import RECORD_BYTES
from semel.broker.state.apply.moves import Moves
from semel.broker.state.apply.parted import (
    Parted,
    apply_give_up,
    apply_part,
    held_above,
    held_before,
    parted,
)
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queue_table import QueueTable
from semel.broker.state.apply.queues import SLOTS, Child, QueueSettings, QueueState
from semel.broker.state.apply.release_history import ReleaseHistory
from semel.broker.state.apply.results import (
    ApplyResult,
    BatchApplied,
    CommitApplied,
    Compacted,
    DelayedCancelled,
    DelayedGivenUp,
    DelayedParted,
    DelayedReleased,
    Done,
    FenceApplied,
    GroupDeleted,
    IdsChecked,
    IdsEvicted,
    LockGranted,
    Membership,
    MembershipApplied,
    NodeRef,
    OffsetReset,
    ProducerState,
    StateDiverged,
    TieredApplied,
)
from semel.broker.state.apply.rows import Outcome, OutcomeKind, Row
from semel.broker.state.apply.splits import children_of, invalid_split_reason, unread_error
from semel.broker.state.apply.transactions import Transactions
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    HEADER_BYTES,
    decode_broker_header,
    decode_header,
)
from semel.protos.crc import crc32c
from semel.protos.errors import CorruptBatch, CorruptFrame, CorruptSegment, SemelError
from semel.protos.frames import FrameHeader, RecordKind, decode_frame_header, iter_records
from semel.protos.ids import (
    Index,
    Offset,
    ProducerId,
    QueueId,
    QueueKey,
    Term,
)
from semel.protos.levels import (
    COMPACTION_LEVEL,
    DELAY_LEVEL,
    DELAY_LIMIT_LEVEL,
    DELAYED_MOVE_LEVEL,
    DELAYED_SPLIT_LEVEL,
    GROUP_QUEUES_LEVEL,
    HISTORY_LEVEL,
    ID_LEVEL,
    KAFKA_LEVEL,
    LEVEL_MAX,
    MEMORY_LEVEL,
    METADATA_LEVEL,
    MOVE_LEVEL,
    SPLIT_LEVEL,
    STAGED_COMMITS_LEVEL,
    TIER_LEVEL,
    TRANSACTION_LEVEL,
)
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2

STATE_MAGIC: Final = b"SMST"
_STORED: Final = struct.Struct("<qqQ8x6xHI8xIQIIQIIqqq16xq24x")
"""The fields of both headers of a stored batch that are needed here. Their CRCs were checked with
the frame, and a dataclass of all fields would double the cost of a batch."""
_CHECKED: Final = (RecordKind.BATCH, RecordKind.STAGED)
"""What may follow a decision about message ids."""
_HEAD: Final = struct.Struct("<4sIQQqI")
_MEMBERS: Final = struct.Struct("<QII")
_COUNT: Final = struct.Struct("<I")


class State:
    """The replicated state at `applied_index`."""

    __slots__ = (
        "_handlers",
        "_parted",
        "_rewritten",
        "applied_index",
        "applied_term",
        "delays",
        "deleted_tiers",
        "feature_level",
        "groups",
        "id_windows",
        "level_max",
        "log_time_us",
        "membership",
        "moves",
        "producers",
        "queues",
        "releases",
        "transactions",
    )

    def __init__(self, level_max: int = LEVEL_MAX) -> None:
        """`level_max`, the highest level whose rules this node knows, is no part of the state."""
        self.level_max = level_max
        self.applied_index = Index(0)
        self.applied_term = Term(0)
        self.log_time_us = 0
        self.feature_level = 0
        self.membership = Membership(index=Index(0))
        self.queues = QueueTable()
        self.producers = SequenceTable()
        self.groups = ConsumerGroups()
        self.transactions = Transactions()
        self.moves = Moves()
        self.delays = Delays()
        self.id_windows = IdWindows()
        self.releases = ReleaseHistory()
        self.deleted_tiers: set[QueueKey] = set()
        self._handlers: dict[str, Callable[..., ApplyResult]] = {
            "create_queue": self._create_queue,
            "delete_queue": self._delete_queue,
            "alter_topic": self._alter_topic,
            "split_queue": self._split_queue,
            "fence": self._fence,
            "trim": self._trim,
            "expire_producers": self._expire_producers,
            "acquire_lock": self._acquire_lock,
            "release_lock": self._release_lock,
            "commit_offsets": self._commit_offsets,
            "reset_offset": self._reset_offset,
            "delete_group": self._delete_group,
            "feature_level": self._raise_feature_level,
            "transaction": self._transaction,
            "move_queue": self._move_queue,
            "release_delayed": self._release_delayed,
            "check_ids": self._check_ids,
            "evict_ids": self._evict_ids,
            "cancel_delayed": self._cancel_delayed,
            "compact": self._compact,
            "tiered": self._tiered,
            "forget": self._forget,
            "lose_memory": self._lose_memory,
            "part_delayed": self._part_delayed,
            "give_up_delayed": self._give_up_delayed,
        }
        self._parted: list[Parted] = []
        """PARTED records of the entry that is being applied, for the PART_DELAYED behind them."""
        self._rewritten: list[Rewritten] = []
        """COMPACTED records of the entry that is being applied, for the COMPACT behind them."""

    # --- entries ----------------------------------------------------------------------------

    def apply_frame(self, frame: bytes) -> list[ApplyResult]:
        """Applies the next frame and returns one result for each of its records.

        The log has checked the frame (`check_frame`). Raises StateDiverged.
        """
        try:
            header = decode_frame_header(frame)
            self._check_header(header)
            self.log_time_us = header.time_us
            self.applied_term = header.term
            results: list[ApplyResult] = []
            for position, kind, payload in iter_records(frame):
                if self.id_windows.checked is not None and kind not in _CHECKED:
                    break
                match kind:
                    case RecordKind.BATCH:
                        results.append(self._apply_batch(header, position, payload))
                    case RecordKind.MEMORY:
                        self._check_level(MEMORY_LEVEL)
                        result = self._apply_batch(header, position, payload, in_memory=True)
                        results.append(result)
                    case RecordKind.CONTROL:
                        results.append(self._apply_control(payload))
                    case RecordKind.MEMBERSHIP:
                        results.append(self._apply_membership(header.index, payload))
                    case RecordKind.COPY | RecordKind.MEMORY_COPY:
                        bare = kind is RecordKind.MEMORY_COPY
                        self._check_level(MEMORY_LEVEL if bare else MOVE_LEVEL)
                        level, at = self.feature_level, (header.index, position)
                        results.append(self.moves.copy(*at, payload, level, bare=bare))
                    case RecordKind.NOOP:
                        results.append(Done(what="noop"))
                    case RecordKind.STAGED:
                        results.append(self._stage(header, position, payload))
                    case RecordKind.COMPACTED:
                        self._check_level(COMPACTION_LEVEL)
                        found = rewritten(header.index, position, payload, header.term)
                        self._rewritten.append(found)
                        results.append(Done(what="compacted", queue_key=found.key))
                    case RecordKind.PARTED:
                        self._check_level(DELAYED_SPLIT_LEVEL)
                        self._parted.append(parted(header.index, position, payload, header.term))
                        results.append(Done(what="parted"))
        except (CorruptFrame, CorruptBatch, DecodeError) as error:
            raise StateDiverged(f"entry {self.applied_index + 1}: {error}") from error
        if self.id_windows.checked is not None or self.transactions.unpublished:
            raise StateDiverged(f"entry {header.index} checks the ids of a batch and has none")
        if self._rewritten:
            raise StateDiverged(f"entry {header.index} has compacted batches for no queue")
        if self._parted:
            raise StateDiverged(f"entry {header.index} has parts of no delayed batch")
        self.applied_index = header.index
        return results

    def _check_header(self, header: FrameHeader) -> None:
        if header.index != self.applied_index + 1:
            raise StateDiverged(f"entry {header.index} after {self.applied_index}")
        if header.term < self.applied_term or header.time_us < self.log_time_us:
            raise StateDiverged(
                f"entry {header.index} goes back: term {header.term} after {self.applied_term},"
                f" time {header.time_us} after {self.log_time_us}"
            )

    def _apply_batch(
        self,
        frame: FrameHeader,
        position: int,
        payload: memoryview,
        *,
        in_memory: bool = False,
    ) -> BatchApplied:
        """A record that is `in_memory` has no body: the length of its extent is that of the whole
        stored batch all the same."""
        if len(payload) < _STORED.size:
            raise StateDiverged(
                f"entry {frame.index} at {position}: a batch of {len(payload)} bytes"
            )
        (
            base_offset,
            append_time_us,
            term,
            flags,
            body_length,
            content_crc,
            topic_id,
            queue_id,
            count,
            producer_id,
            epoch,
            session,
            previous,
            base,
            last,
            due_us,
        ) = _STORED.unpack_from(payload)
        if self.feature_level < DELAY_LEVEL:
            flags = due_us = 0  # it was admitted by a program that did not know delivery times
        queue = self.queues.get((topic_id, queue_id))  # type: ignore[call-overload]
        row = None if queue is None else self.producers.change(queue.key, producer_id)
        length = BROKER_HEADER_BYTES + HEADER_BYTES + body_length
        if (
            queue is None
            or row is None
            or epoch != row.epoch
            or session != row.session
            or previous != row.last_sequence
            or base <= previous
            or last < base
            or base_offset != (-1 if due_us else queue.log_end_offset)
            or flags & COLUMN_FLAG
            or queue.children
            or queue.frozen
            or term != frame.term
            or append_time_us < queue.last_append_us
            # A queue that was moved here may have batches that are later than this group's clock.
            or (append_time_us > frame.time_us and append_time_us != queue.last_append_us)
            or len(payload) != (RECORD_BYTES if in_memory else length)
            or queue.in_memory is not in_memory
            or (in_memory and due_us)
        ):
            raise StateDiverged(self._why_not(frame, position, payload))
        if self.id_windows.topics:
            found = self.id_windows.take(queue.key, producer_id, base, count, frame.time_us)
            sent, sent_crc = found or (count, content_crc)
            row.append(base, last, base_offset, sent, sent_crc, frame.time_us)
        else:
            row.append(base, last, base_offset, count, content_crc, frame.time_us)
        if due_us:
            self.delays.add(queue.key, due_us, frame.index, position, length, count)
        elif count:
            queue.append(count, frame.index, position, length, append_time_us)
        return BatchApplied(
            queue_key=queue.key,
            producer_id=producer_id,
            base_sequence=base,
            last_sequence=last,
            base_offset=base_offset,
            count=count,
            append_time_us=append_time_us,
        )

    def _why_not(self, frame: FrameHeader, position: int, payload: memoryview) -> str:
        stored = decode_broker_header(payload)
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        queue = self.queues.get(batch.queue_key)
        row = self.producers.lookup(batch.queue_key, batch.producer_id)
        return (
            f"entry {frame.index} at {position}: {batch} stored as {stored} does not follow {row},"
            f" end {None if queue is None else queue.log_end_offset}"
        )

    def _apply_membership(self, index: Index, payload: memoryview) -> MembershipApplied:
        record = control_pb2.MembershipRecord.FromString(bytes(payload))
        self.membership = Membership(
            index=index,
            voters=tuple(NodeRef.of(node) for node in record.voters),
            learners=tuple(NodeRef.of(node) for node in record.learners),
        )
        return MembershipApplied(membership=self.membership)

    def _apply_control(self, payload: memoryview) -> ApplyResult:
        record = control_pb2.ControlRecord.FromString(bytes(payload))
        name = record.WhichOneof("record")
        if name is None:
            raise StateDiverged(
                f"entry {self.applied_index + 1} has a control record that this version does not"
                " know; upgrade this node"
            )
        return self._handlers[name](getattr(record, name))

    # --- queues -----------------------------------------------------------------------------

    def _create_queue(self, record: control_pb2.CreateQueue) -> Done:
        key = queue_key_of(record.queue)
        if not 0 <= record.slot_start < record.slot_end <= SLOTS:
            raise StateDiverged(f"queue {key} has slots {record.slot_start} to {record.slot_end}")
        if key not in self.queues:
            # The admission refuses this while a move of the queue is known here. Logs of older
            # versions may hold it, and it has the same effect as ever: a replay must not halt.
            settings = self._settings(record.settings)
            self.queues[key] = QueueState(
                key, record.topic, record.slot_start, record.slot_end, settings
            )
            self._configure_ids(key.topic_id, record.settings)
        return Done(what="create_queue", queue_key=key)

    def _delete_queue(self, record: control_pb2.DeleteQueue) -> Done:
        key = queue_key_of(record.queue)
        if record.noted:
            self._check_level(TIER_LEVEL)
            self.deleted_tiers.discard(key)
            return Done(what="delete_queue", queue_key=key)
        if (queue := self.queues.pop(key, None)) is not None:
            if self.feature_level >= TIER_LEVEL and deleted_tiers.may_have_files(queue):
                self.deleted_tiers.add(key)
            self.producers.remove_queue(key)
            self.groups.remove_queue(key)
            self.transactions.staging.remove_queue(key)
            self.delays.remove_queue(key)
        self.moves.forget(key)
        self.id_windows.copied.pop(key, None)
        self.moves.forget_window(key.topic_id, self)
        return Done(what="delete_queue", queue_key=key)

    def _alter_topic(self, record: control_pb2.AlterTopic) -> Done:
        settings = self._settings(record.settings)
        for queue in self.queues.of_topic(record.topic_id):
            queue.alter(settings)  # also of one that a move has sealed, in an older log
            self._configure_ids(record.topic_id, record.settings)
        return Done(what="alter_topic")

    def _settings(self, settings: common_pb2.TopicSettings) -> QueueSettings:
        if settings.delay_per_second_max > 0:
            self._check_level(DELAY_LIMIT_LEVEL)
        return QueueSettings.from_message(settings, self.feature_level)

    def _configure_ids(self, topic_id: int, settings: common_pb2.TopicSettings) -> None:
        if self.feature_level >= ID_LEVEL:
            self.id_windows.configure(topic_id, IdSettings.from_message(settings))

    def _check_ids(self, record: control_pb2.CheckIds) -> IdsChecked:
        self._check_level(ID_LEVEL)
        return self.id_windows.check(record)

    def _evict_ids(self, record: control_pb2.EvictIds) -> IdsEvicted:
        self._check_level(ID_LEVEL)
        return self.id_windows.evict(record)

    def _split_queue(self, record: control_pb2.SplitQueue) -> Done:
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        children = children_of(record)
        if queue is None or queue.frozen or self.feature_level < SPLIT_LEVEL:
            raise StateDiverged(f"queue {key} cannot be split at level {self.feature_level}")
        if not queue.sealed or queue.children != children:
            reason = invalid_split_reason(children, key.queue_id, queue.slot_start, queue.slot_end)
            keys = [QueueKey(key.topic_id, QueueId(child.queue_id)) for child in children]
            bound = self.transactions.staging.is_pinned(key) or self._holds_delayed(queue)
            taken = any(child in self.queues for child in keys)
            if queue.sealed or reason or taken or bound:
                raise StateDiverged(f"queue {key} of {queue.children} cannot become {children}")
            queue.children = children
            made = [self._make_child(queue, child) for child in children]
            self.groups.inherit(key, made)
            self.delays.seal(key)
        return Done(what="split_queue", queue_key=key)

    def _holds_delayed(self, queue: QueueState) -> bool:
        """Whether delayed batches keep the queue from being split."""
        if self.feature_level < DELAYED_SPLIT_LEVEL:
            return queue.key in self.delays.queues
        return held_above(self.queues, self.delays, queue) is not None

    def _make_child(self, parent: QueueState, child: Child) -> QueueState:
        key = QueueKey(parent.key.topic_id, QueueId(child.queue_id))
        queue = QueueState(key, parent.topic, child.slot_start, child.slot_end, parent.settings)
        queue.parent = parent.key.queue_id
        queue.expired = parent.expired.copy()
        self.queues[key] = queue
        self.producers.inherit(parent.key, key)
        return queue

    def _move_queue(self, record: control_pb2.MoveQueue) -> ApplyResult:
        self._check_level(MOVE_LEVEL)
        moved_ids = 0
        if record.step == control_pb2.MOVE_STEP_IDS:
            self._check_level(ID_LEVEL)
            moved_ids = self.id_windows.take_moved(record, self.log_time_us)
        applied = self.moves.apply(record, self)
        if moved_ids:
            return replace(applied, first_arrival=record.first_arrival, ids=moved_ids)
        return applied

    def _trim(self, record: control_pb2.Trim) -> Done:
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        if queue is not None:
            if record.log_start_offset > queue.log_end_offset:
                raise StateDiverged(
                    f"queue {key} ends at {queue.log_end_offset}; it cannot start at"
                    f" {record.log_start_offset}"
                )
            queue.trim(record.log_start_offset)
        return Done(what="trim", queue_key=key)

    def _lose_memory(self, record: control_pb2.LoseMemory) -> Done:
        self._check_level(MEMORY_LEVEL)
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        if queue is not None:
            if not queue.in_memory or record.to_offset > queue.log_end_offset:
                raise StateDiverged(
                    f"queue {key} ends at {queue.log_end_offset}; it cannot lose"
                    f" {record.from_offset} to {record.to_offset} from memory"
                )
            queue.lose(record.from_offset, record.to_offset)
        else:
            self.moves.lose(key, record.from_offset, record.to_offset)
        return Done(what="lose_memory", queue_key=key)

    def _compact(self, record: control_pb2.Compact) -> Compacted:
        self._check_level(COMPACTION_LEVEL)
        key = queue_key_of(record.queue)
        batches, self._rewritten = self._rewritten, []
        queue = self.queues.get(key)
        done = queue is not None and queue.compact(record, batches, self.log_time_us)
        return Compacted(queue_key=key, done=done)

    def _tiered(self, record: control_pb2.Tiered) -> TieredApplied:
        queue = self._tiered_queue(record.queue)
        queue.move_tier(record)
        return TieredApplied(queue_key=queue.key, tier=queue.tier)

    def _forget(self, record: control_pb2.Forget) -> Done:
        queue = self._tiered_queue(record.queue)
        queue.forget(record.local_start)
        return Done(what="forget", queue_key=queue.key)

    def _tiered_queue(self, reference: common_pb2.QueueRef) -> QueueState:
        self._check_level(TIER_LEVEL)
        queue = self.queues.get(queue_key_of(reference))
        if queue is None or queue.frozen:
            raise StateDiverged(
                f"entry {self.applied_index + 1} is about the tier of queue"
                f" {queue_key_of(reference)}, which is {'sealed' if queue else 'not here'}"
            )
        return queue

    def _release_delayed(self, record: control_pb2.ReleaseDelayed) -> DelayedReleased:
        self._check_level(DELAY_LEVEL)
        queue = self.queues.get(queue_key_of(record.queue))
        before = None if queue is None else held_before(self.queues, self.delays, queue)
        entry = self.applied_index + 1, self.log_time_us
        released = self.delays.release(record, queue, *entry, before)
        if self.feature_level >= HISTORY_LEVEL:
            told = released.queue_key, Offset(released.base_offset), released.dues
            self.releases.record(*told, released.released_us)
        return released

    def _cancel_delayed(self, record: control_pb2.CancelDelayed) -> DelayedCancelled:
        self._check_level(ID_LEVEL)
        self.id_windows.cancel(record.queue.topic_id, record.arrival)
        return self.delays.cancel(record, self.applied_index + 1, self.log_time_us)

    def _part_delayed(self, record: control_pb2.PartDelayed) -> DelayedParted:
        self._check_level(DELAYED_SPLIT_LEVEL)
        parts, self._parted = self._parted, []
        entry = self.applied_index + 1
        return apply_part(record, self.queues, self.delays, parts, entry)

    def _give_up_delayed(self, record: control_pb2.GiveUpDelayed) -> DelayedGivenUp:
        self._check_level(DELAYED_SPLIT_LEVEL)
        return apply_give_up(record, self.queues, self.delays, self.applied_index + 1)

    # --- the sequence table -----------------------------------------------------------------

    def _fence(self, record: control_pb2.Fence) -> FenceApplied:
        incarnation = record.epoch, record.session
        producer_id = ProducerId(record.producer_id)
        rows: list[ProducerState] = []
        for reference in record.queues:
            key = queue_key_of(reference)
            queue = self.queues.get(key)
            row = self.producers.change(key, producer_id)
            if queue is None or (
                row is None
                and not queue.expired.may_open(
                    producer_id, record.epoch, after_expiry=record.after_expiry
                )
            ):
                raise StateDiverged(f"fence of producer {producer_id} by {incarnation} on {key}")
            if queue.frozen or (queue.sealed and (row is None or row.epoch != record.epoch)):
                raise StateDiverged(f"fence of producer {producer_id} by {incarnation} on {key}")
            if row is None:
                row = Row(record.epoch, record.session, self.log_time_us)
                self.producers.create(key, producer_id, row)
            elif incarnation < (row.epoch, row.session):
                raise StateDiverged(
                    f"fence of producer {producer_id} by {incarnation} on {key} after"
                    f" {(row.epoch, row.session)}"
                )
            row.fence(record.epoch, record.session, self.log_time_us)
        self.producers.set_name(producer_id, record.name)
        for reference in record.queues:
            copy = self.producers.lookup(queue_key_of(reference), producer_id)
            assert copy is not None
            rows.append(copy)
        return FenceApplied(rows=tuple(rows))

    def _expire_producers(self, record: control_pb2.ExpireProducers) -> Done:
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        if queue is not None:
            for producer_id in record.producer_ids:
                row = self.producers.remove(key, producer_id)
                if row is not None:
                    queue.expired.add(
                        producer_id,
                        max(row.epoch, record.epoch_floor),
                        stored=row.last_sequence >= 0,
                    )
        return Done(what="expire_producers", queue_key=key)

    # --- transactions -----------------------------------------------------------------------

    def _stage(self, frame: FrameHeader, position: int, payload: memoryview) -> ApplyResult:
        self._check_level(TRANSACTION_LEVEL)
        if self.id_windows.checked is not None:
            batch = decode_header(payload, BROKER_HEADER_BYTES)
            key, base = batch.queue_key, batch.base_sequence
            decision = self.id_windows.take_kept(key, batch.producer_id, base, batch.count)
            return self.transactions.stage_checked(payload, decision, frame.index, position)
        return self.transactions.stage(
            payload, self.queues, frame.index, position, self.log_time_us, self.feature_level
        )

    def _transaction(self, step: transaction_records_pb2.TransactionRecord) -> ApplyResult:
        self._check_level(TRANSACTION_LEVEL)
        entry = self.applied_index + 1, self.log_time_us, self.feature_level
        if step.HasField("stage_commits"):
            self._check_level(STAGED_COMMITS_LEVEL)
        return self.transactions.apply(
            step,
            self.queues,
            self.delays,
            *entry,
            self.id_windows.topics,
            groups=self.groups,
            moved=self.moves.places,
        )

    def _check_level(self, level: int) -> None:
        if self.feature_level < level:
            raise StateDiverged(
                f"entry {self.applied_index + 1} holds what needs feature level {level}; the log is"
                f" at {self.feature_level}"
            )

    # --- consumer groups --------------------------------------------------------------------

    def _acquire_lock(self, record: control_pb2.AcquireLock) -> ApplyResult:
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        unread = None
        if record.beside_parents:
            self._check_level(KAFKA_LEVEL)
        elif queue is not None and queue.parent is not None:
            unread = unread_error(self.queues, self.groups, record.group, queue)
        barred = self.moves.barred(key, queue)
        if not record.drop_staged:
            return self.groups.acquire(record, key, queue, unread, barred)
        self._check_level(STAGED_COMMITS_LEVEL)
        barred = barred or self.transactions.pinned_progress(record.group, key)
        result = self.groups.acquire(record, key, queue, unread, barred)
        if isinstance(result, LockGranted):
            self.transactions.drop_progress(record.group, key)
        return result

    def _release_lock(self, record: control_pb2.ReleaseLock) -> ApplyResult:
        return self.groups.release(record, queue_key_of(record.queue))

    def _commit_offsets(self, record: control_pb2.CommitOffsets) -> CommitApplied:
        outcomes = []
        for commit in record.commits:
            key = queue_key_of(commit.queue)
            queue = self.queues.get(key)
            outcomes.append(
                self.groups.commit(
                    record.group,
                    key,
                    queue,
                    commit,
                    moved=key in self.moves.places,
                    level=self.feature_level,
                )
            )
        return CommitApplied(group=record.group, outcomes=tuple(outcomes))

    def _reset_offset(self, record: control_pb2.ResetOffset) -> ApplyResult:
        key = queue_key_of(record.queue)
        queue = self.queues.get(key)
        barred = self.moves.barred(key, queue)
        if barred is not None:
            return OffsetReset(group=record.group, queue_key=key, token=0, error=barred)
        return self.groups.reset(record, key, queue)

    def _delete_group(self, record: control_pb2.DeleteGroup) -> GroupDeleted:
        if record.queues:
            self._check_level(GROUP_QUEUES_LEVEL)
        only = {queue_key_of(queue) for queue in record.queues}
        queues = self.groups.remove_group(record.group, self.queues, only)
        self.transactions.staging.remove_group(record.group, only)
        return GroupDeleted(queues=queues, moves_digest=self.moves.digest())

    def _raise_feature_level(self, record: control_pb2.FeatureLevel) -> Done:
        if record.level > self.level_max:
            raise StateDiverged(
                f"the log needs feature level {record.level}; this version knows"
                f" {self.level_max}; upgrade this node"
            )
        self.feature_level = max(self.feature_level, record.level)
        return Done(what="feature_level")

    # --- questions --------------------------------------------------------------------------

    def outcome(self, key: QueueKey, producer_id: ProducerId, sequence: int) -> Outcome:
        """The fate of one sequence; TOO_OLD if the row may have expired."""
        queue = self.queues.get(key)
        if (
            queue is not None
            and self.producers.find(key, producer_id) is None
            and queue.expired.floor_of(producer_id)
        ):
            return Outcome(OutcomeKind.TOO_OLD, -1, -1)
        return self.producers.outcome(key, producer_id, sequence)

    def live_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of every live record in entries `[lo_index, hi_index)`.

        First come the records of queues, by queue, then offset; then staged ones, then delayed
        ones, those of queues on their way here last. `length` is that of the payload.
        """
        for queue in self.stored_queues():
            yield from queue.live_records(lo_index, hi_index)
        yield from self.transactions.staging.live_records(lo_index, hi_index)
        yield from self.delays.live_records(lo_index, hi_index)
        yield from self.moves.delayed_records(lo_index, hi_index)

    def live_table(self, lo_index: int, hi_index: int) -> LiveRecords:
        """The same records, for whoever needs very many of them."""
        bounds = lo_index, hi_index
        staged = self.transactions.staging.live_records(*bounds)
        delayed = [*self.delays.in_entries(*bounds), *self.moves.delayed_in_entries(*bounds)]
        return LiveRecords.of(self.stored_queues(), staged, delayed, *bounds)

    def live_bytes_between(self, bounds: Sequence[int]) -> list[int]:
        """For each k the sum of the lengths of the live records in entries `[bounds[k],
        bounds[k + 1])`; bounds rise. A record with cancelled messages may count several times."""
        edges = np.array(bounds, np.int64)
        sums = np.zeros(len(bounds) - 1, np.int64)
        for queue in self.stored_queues():
            each = RECORD_BYTES if queue.in_memory else 0
            queue.extents.add_live_bytes(edges, sums, each)
        self.transactions.staging.add_live_bytes(edges, sums)
        self.delays.add_live_bytes(edges, sums)
        return [int(each) for each in sums]

    @property
    def live_bytes(self) -> int:
        """Total length in the log of the batches of queues, and of staged and delayed batches."""
        on_hold = self.transactions.staging.bytes + self.delays.bytes + self.moves.delayed_bytes
        queues = sum(queue.log_bytes for queue in self.queues.values())
        return queues + sum(queue.log_bytes for queue in self.moves.stored()) + on_hold

    def stored_queues(self) -> Iterator[QueueState]:
        """Every queue whose batches are live, including incoming ones of moves."""
        yield from (self.queues[key] for key in sorted(self.queues))
        yield from self.moves.stored()

    def holding(self, key: QueueKey) -> QueueState | None:
        """The queue whose batches are live here, whether it is here or on its way; None if it is
        neither."""
        queue = self.queues.get(key)
        if queue is None and (incoming := self.moves.incoming.get(key)) is not None:
            return incoming.queue
        return queue

    def live_slots(self, topic_id: int) -> int:
        """How many slots of a topic the queues of this broker group have, with those on their
        way here."""
        coming = (queue for queue in self.moves.stored() if queue.key.topic_id == topic_id)
        taking = (queue for queue in coming if not queue.sealed)
        return self.queues.slots_of(topic_id) + sum(
            queue.slot_end - queue.slot_start for queue in taking
        )

    def absent(self, key: QueueKey) -> SemelError:
        """The error for a queue that is not here: QueueMoved or UnknownQueue."""
        return self.moves.absent(key)

    # --- canonical bytes --------------------------------------------------------------------

    def to_parts(self) -> CheckedParts:
        """Canonical bytes in parts, as they are now; the last part is the CRC of all others. What
        is large is packed as long as nobody asks for it, so this is quick."""
        members = self.membership
        version = _version_of(self.feature_level)
        parts: list[Part] = [
            _HEAD.pack(
                STATE_MAGIC,
                version,
                self.applied_index,
                self.applied_term,
                self.log_time_us,
                self.feature_level,
            ),
            _MEMBERS.pack(members.index, len(members.voters), len(members.learners)),
        ]
        for node in members.voters + members.learners:
            parts.append(node.packed())
        parts.append(_COUNT.pack(len(self.queues)))
        for key in sorted(self.queues):
            parts += self.queues[key].parts(version)
        parts += self.producers.parts()
        parts += self.groups.parts(metadata=version >= METADATA_LEVEL)
        if version >= 3:
            parts += self.transactions.parts(version)
        if version >= MOVE_LEVEL:
            parts += self.moves.parts(version)
        if version >= DELAY_LEVEL:
            parts += self.delays.parts(
                cancelled=version >= ID_LEVEL, origins=version >= DELAYED_MOVE_LEVEL
            )
        if version >= ID_LEVEL:
            parts += self.id_windows.parts(superseded=version >= DELAYED_MOVE_LEVEL)
        if version >= HISTORY_LEVEL:
            parts += self.releases.parts()
        if version >= TIER_LEVEL:
            parts += deleted_tiers.parts_of(self.deleted_tiers)
        return CheckedParts(parts)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, level_max: int = LEVEL_MAX) -> State:
        """The state whose joined parts are `data`. Raises CorruptSegment."""
        if len(data) < _HEAD.size + CRC.size or data[:4] != STATE_MAGIC:
            raise CorruptSegment(f"not a replicated state: {len(data)} bytes, {bytes(data[:4])!r}")
        body = memoryview(data)[: -CRC.size]
        if crc32c(body) != CRC.unpack(data[-CRC.size :])[0]:
            raise CorruptSegment("replicated state is damaged: its CRC does not match")
        reader = Reader(body)
        _, version, index, term, time_us, level = reader.unpack(_HEAD)
        if version != _version_of(level) or level > level_max:
            raise CorruptSegment(
                f"replicated state has version {version} and feature level {level}; this program"
                f" knows level {level_max}; upgrade it"
            )
        state = cls(level_max)
        state.applied_index, state.applied_term = Index(index), Term(term)
        state.log_time_us, state.feature_level = time_us, level
        members_index, voters, learners = reader.unpack(_MEMBERS)
        state.membership = Membership(
            index=Index(members_index),
            voters=tuple(NodeRef.read(reader) for _ in range(voters)),
            learners=tuple(NodeRef.read(reader) for _ in range(learners)),
        )
        for _ in range(reader.unpack(_COUNT)[0]):
            queue = QueueState.read_parts(reader, version)
            state.queues[queue.key] = queue
        state.producers = SequenceTable.read_parts(reader)
        state.groups = ConsumerGroups.read_parts(reader, metadata=version >= METADATA_LEVEL)
        if version >= 3:
            state.transactions = Transactions.read_parts(reader, version)
        if version >= MOVE_LEVEL:
            state.moves = Moves.read_parts(reader, state.queues, version)
        if version >= DELAY_LEVEL:
            state.delays = Delays.read_parts(
                reader, cancelled=version >= ID_LEVEL, origins=version >= DELAYED_MOVE_LEVEL
            )
            for key, queue in state.queues.items():
                if queue.sealed:
                    state.delays.seal(key)
        if version >= ID_LEVEL:
            state.id_windows = IdWindows.read_parts(
                reader, superseded=version >= DELAYED_MOVE_LEVEL
            )
        if version >= HISTORY_LEVEL:
            state.releases = ReleaseHistory.read_parts(reader)
        if version >= TIER_LEVEL:
            state.deleted_tiers = deleted_tiers.read_keys(reader)
        reader.finish()
        return state

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes."""
        digest = hashlib.sha256()
        for part in self.to_parts():
            digest.update(part)
        return digest.digest()


def _version_of(level: int) -> int:
    """Version of the canonical bytes at a feature level.

    Nodes with an older and a newer program must keep the same bytes until the broker group has
    agreed on the newer rules.
    """
    return max(1, level)
