"""The master's decisions about queues: creating, deleting, splitting, moving, trimming, tiering.

Invariants
1. A queue whose split is accepted accepts nothing more, and only an applied split is answered with
   QueueSealed: a request that gets this answer is not stored in the queue and never will be.
2. A queue that a move has sealed does not change, and its refusals are never final: the move may
   end here or at the new broker group.
3. Two records in flight never make the same queue: whatever an accepted, unapplied record makes is
   refused to all others (`pending.py`). No queue is made that a move has brought elsewhere.
4. Of two manifests that follow the same one, one is accepted.

Not here: batches and fences (`admission.py`), how the records are applied
(`state/apply/state_machine.py`, `state/apply/moves.py`).
"""

from __future__ import annotations

from semel.broker.state.admission.decisions import Accepted, ControlDecision, Refused, retry_later
from semel.broker.state.admission.delay_admission import held_by_delays
from semel.broker.state.admission.id_admission import IdAdmission
from semel.broker.state.admission.part_admission import admit_give_up, admit_part
from semel.broker.state.admission.pending import (
    PendingQueue,
    PendingState,
    RecordUse,
    TierPointer,
    TopicIds,
)
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.mirrored import OWN_STEPS, settle_refusal
from semel.broker.state.apply.parted import held_above
from semel.broker.state.apply.queues import SLOTS, QueueSettings, QueueState
from semel.broker.state.apply.splits import children_of, invalid_split_reason, sealed_error
from semel.broker.state.apply.state_machine import State
from semel.protos.errors import InvalidRequest, OffsetOutOfRange
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import (
    COMPACTED_MOVE_LEVEL,
    COMPACTION_LEVEL,
    DELAY_LIMIT_LEVEL,
    DELAYED_MOVE_LEVEL,
    DELAYED_SPLIT_LEVEL,
    MEMORY_LEVEL,
    MIRROR_LEVEL,
    MOVE_LEVEL,
    SPLIT_LEVEL,
    TIER_LEVEL,
    lacking,
)
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, control_pb2


class QueueAdmission:
    """Decides about queues as they will be once everything accepted is applied."""

    def __init__(self, state: State, pending: PendingState, ids: IdAdmission) -> None:
        self._state = state
        self._pending = pending
        self._ids = ids

    def sealed(self, key: QueueKey) -> QueueState | None:
        """The queue if a split of it is applied, and thus certain; else None."""
        queue = self._state.queues.get(key)
        return queue if queue is not None and queue.sealed else None

    def ended(self, queue: PendingQueue) -> Refused | None:
        """Refuses new records of a queue that is split or sealed by a move; None if it is neither.

        The refusal because of a split is final only after the split is applied: until then the
        split may be lost, and the queue continue.
        """
        sealed = self.sealed(queue.key)
        if sealed is not None:
            return Refused(sealed_error(sealed))
        if queue.splitting:
            return retry_later("the queue is being split")
        return self.moving(queue)

    def moving(self, queue: PendingQueue) -> Refused | None:
        """Refuses changes of a queue that a move has sealed, never finally; None if none has."""
        if queue.sealing:
            return retry_later("the queue is being sealed for a move")
        frozen = self._state.moves.frozen(queue.key)
        return None if frozen is None else Refused(frozen)

    def bars_cancel(self, queue: PendingQueue) -> Refused | None:
        """Refuses to cancel delayed messages of a queue; None if nothing bars it.

        A queue that was split has them until they are handed to its children. Who finds that it has
        them no longer is told to look again.
        """
        split = self.sealed(queue.key) is not None
        if split and self._state.feature_level >= DELAYED_SPLIT_LEVEL:
            return self.moving(queue)
        return self.ended(queue)

    def admit_part(self, record: control_pb2.PartDelayed) -> ControlDecision:
        """Hands delayed batches of a queue that was split to its children, as the PARTED records
        that stand in front of it in its entry."""
        queue = self._pending.queue(queue_key_of(record.queue))
        if queue is None:
            return Refused(self._state.absent(queue_key_of(record.queue)))
        return self.moving(queue) or admit_part(self._state, self._pending, queue, record)

    def admit_give_up(self, record: control_pb2.GiveUpDelayed) -> ControlDecision:
        """Ends a delayed batch of a queue that was split, without parts."""
        queue = self._pending.queue(queue_key_of(record.queue))
        if queue is None:
            return Refused(self._state.absent(queue_key_of(record.queue)))
        return self.moving(queue) or admit_give_up(self._state, self._pending, queue, record)

    def admit_create_queue(self, record: control_pb2.CreateQueue) -> ControlDecision:
        """Idempotent. Refused if malformed, or while another queue has or gets this number."""
        key = queue_key_of(record.queue)
        if not 0 <= record.slot_start < record.slot_end <= SLOTS or key.topic_id >> 63:
            return Refused(
                InvalidRequest(
                    f"queue {key} cannot own slots {record.slot_start} to {record.slot_end}"
                )
            )
        if (lacks := self._lacks(record.settings)) is not None:
            return lacks
        names: tuple[TopicIds, ...] = ()
        queue = self._pending.queue(key)
        if queue is not None and (refused := self.moving(queue)) is not None:
            return refused  # the queue may be gone when the record is applied, and live elsewhere
        if queue is None:
            if self._pending.is_deleting(key):
                return retry_later("the queue is being deleted")
            if self._pending.is_coming(key):
                return retry_later("a split or a move is making the queue, or gives it up")
            if key in self._state.moves.places:
                return Refused(self._state.absent(key))
            named = self._ids.admit_settings(key.topic_id, record.settings)
            if isinstance(named, Refused):
                return named
            names = named
            settings = QueueSettings.from_message(record.settings, self._state.feature_level)
            queue = PendingQueue(
                key, 0, settings.batch_bytes_max, Expired(), in_memory=settings.memory_bytes > 0
            )
        self._pending.use(RecordUse.CREATE, (queue,), (), names)
        return Accepted()

    def admit_delete_queue(self, record: control_pb2.DeleteQueue) -> ControlDecision:
        """Idempotent. From now on the queue is unknown to all further decisions. A record that says
        that the store knows of the deletion is refused if the queue is here."""
        key = queue_key_of(record.queue)
        if record.noted and (refused := self._not_deleted(key)) is not None:
            return refused
        queue = self._pending.queue_or_deleting(key) or PendingQueue(key, 0, 0, Expired())
        queue.deleted = True
        self._pending.use(RecordUse.DELETE, (queue,), (), self._ids.ends_with(key.topic_id))
        return Accepted()

    def _not_deleted(self, key: QueueKey) -> Refused | None:
        if self._state.feature_level < TIER_LEVEL:
            return Refused(lacking(TIER_LEVEL, self._state.feature_level, "the broker group"))
        if self._pending.queue(key) is not None or self._pending.is_coming(key):
            return Refused(InvalidRequest(f"queue {key} was not deleted"))
        return None

    def admit_split(self, record: control_pb2.SplitQueue) -> ControlDecision:
        """Idempotent once it is applied. Refused if malformed, or split in another way."""
        key = queue_key_of(record.queue)
        queue, children = self._pending.queue(key), children_of(record)
        names = tuple(QueueKey(key.topic_id, QueueId(child.queue_id)) for child in children)
        if queue is None:
            return Refused(self._state.absent(key))
        if (refused := self.moving(queue)) is not None:
            return refused
        if self._state.feature_level < SPLIT_LEVEL:
            return Refused(lacking(SPLIT_LEVEL, self._state.feature_level, "the broker group"))
        applied = self._state.queues.get(key)
        if queue.splitting and (applied is None or not applied.sealed):
            return retry_later("the queue is being split")
        if applied is None:
            return retry_later("the queue is being created")
        if not applied.sealed:
            bound = self._pinned(queue) or self._delayed(queue, applied)
            if bound is not None:
                return bound
        if applied.sealed:
            if applied.children != children:
                return Refused(sealed_error(applied))
            names = ()
        else:
            reason = invalid_split_reason(
                children, key.queue_id, applied.slot_start, applied.slot_end
            )
            if reason is not None:
                return Refused(InvalidRequest(f"queue {key.queue_id}: {reason}"))
            for child in names:
                if (taken := self._taken(child)) is not None:
                    return taken
        queue.splitting = True
        self._pending.use(RecordUse.SPLIT, (queue,), (), names)
        return Accepted()

    def admit_move(self, record: control_pb2.MoveQueue) -> ControlDecision:
        """Steps are decided at apply, but after an accepted SEAL the queue accepts no change."""
        key = queue_key_of(record.queue)
        if self._state.feature_level < MOVE_LEVEL:
            return Refused(lacking(MOVE_LEVEL, self._state.feature_level, "the broker group"))
        if record.step == control_pb2.MOVE_STEP_IDS:
            return self._ids.admit_moved(record) or Accepted()
        if record.step == control_pb2.MOVE_STEP_HOLD:
            level = self._state.feature_level
            if level < COMPACTED_MOVE_LEVEL:
                return Refused(lacking(COMPACTED_MOVE_LEVEL, level, "the broker group"))
            return Accepted()
        if record.step in OWN_STEPS:
            return self._admit_mirror(record, key)
        if record.step == control_pb2.MOVE_STEP_SEAL:
            queue = self._pending.queue(key)
            if queue is None:
                return Refused(self._state.absent(key))
            if queue.splitting and self.sealed(key) is None:
                return retry_later("the queue is being split")
            if queue.sealing:
                return retry_later("the queue is being sealed already")
            bound = self._pinned(queue)
            if bound is None and self._state.feature_level < DELAYED_MOVE_LEVEL:
                bound = held_by_delays(self._state.delays, queue)
            if bound is not None:
                return bound
            if (error := self._state.moves.seal_refusal(record, key, self._state)) is not None:
                return Refused(error)
            queue.sealing = True
            self._pending.use(RecordUse.SEAL, (queue,), ())
        elif record.step in (control_pb2.MOVE_STEP_BEGIN, control_pb2.MOVE_STEP_ACTIVATE):
            if (lacks := self._lacks(record.create.settings)) is not None:
                return lacks
            begin = record.step == control_pb2.MOVE_STEP_BEGIN
            ids: tuple[TopicIds, ...] = ()
            if begin or record.HasField("create"):
                named = self._ids.admit_settings(
                    key.topic_id, record.create.settings, replace=not begin
                )
                if isinstance(named, Refused):
                    return named
                ids = named
            if begin:
                self._pending.use(RecordUse.BEGIN, (), (), (key, *ids))
            else:
                self._pending.use(RecordUse.ACTIVATE, (), (), ids)
        elif record.step == control_pb2.MOVE_STEP_FORWARD:
            self._pending.use(RecordUse.FORWARD, (), (), self._ids.ends_with(key.topic_id))
        elif record.step == control_pb2.MOVE_STEP_ABORT:
            ends = self._ids.ends_with(key.topic_id)
            self._pending.use(RecordUse.ABORT_MOVE, (), (), (key, *ends))
        return Accepted()

    def _admit_mirror(self, record: control_pb2.MoveQueue, key: QueueKey) -> ControlDecision:
        """What a mirrored queue may be is decided at apply; it compares no message ids."""
        level = self._state.feature_level
        if level < MIRROR_LEVEL:
            return Refused(lacking(MIRROR_LEVEL, level, "the broker group"))
        if record.step == control_pb2.MOVE_STEP_PROMOTE:
            self._pending.use(RecordUse.ACTIVATE, (), ())
        elif record.step == control_pb2.MOVE_STEP_MIRROR:
            self._pending.use(RecordUse.BEGIN, (), (), (key,))
        elif record.step == control_pb2.MOVE_STEP_UNMIRROR:
            self._pending.use(RecordUse.ABORT_MOVE, (), (), (key,))
        elif (error := settle_refusal(self._state.moves, record, key)) is not None:
            return Refused(error)
        return Accepted()

    def admit_trim(self, record: control_pb2.Trim) -> ControlDecision:
        """A queue can be trimmed up to its applied end."""
        key = queue_key_of(record.queue)
        queue, pending = self._state.queues.get(key), self._pending.queue(key)
        if queue is None or pending is None:
            return Refused(self._state.absent(key))
        if (refused := self.moving(pending)) is not None:
            return refused
        if not 0 <= record.log_start_offset <= queue.log_end_offset:
            return Refused(
                OffsetOutOfRange(
                    f"queue {key.queue_id} cannot start at {record.log_start_offset}",
                    log_start_offset=queue.log_start_offset,
                    log_end_offset=queue.log_end_offset,
                )
            )
        return Accepted()

    def admit_compact(self, record: control_pb2.Compact) -> ControlDecision:
        """Whether the run is still there is decided at apply: a trim may come first."""
        if self._state.feature_level < COMPACTION_LEVEL:
            return Refused(lacking(COMPACTION_LEVEL, self._state.feature_level, "the broker group"))
        pending = self._pending.queue(queue_key_of(record.queue))
        if pending is None:
            return Refused(self._state.absent(queue_key_of(record.queue)))
        return self.moving(pending) or Accepted()

    def admit_tiered(self, record: control_pb2.Tiered) -> ControlDecision:
        """Compare-and-set: it must follow the applied pointer, with no other one in flight. Every
        offset below `tier_end` is applied, so none can be lost."""
        pending = self._tierable(record.queue)
        if isinstance(pending, Refused):
            return pending
        if self._pending.changes_tier(pending.key):
            return retry_later("another manifest of the queue is being decided")
        queue = self._state.queues.get(pending.key)
        if queue is None:
            return retry_later("the queue is being created")
        reason = queue.tier.misfit(record, queue.log_start_offset, queue.log_end_offset)
        if reason is None and not queue.is_extent_edge(record.tier_end):
            reason = f"it ends at {record.tier_end}, in the middle of a batch"
        if reason is None and queue.settings.compaction is not None:
            reason = "the topic is compacted"
        if reason is not None:
            return Refused(
                InvalidRequest(
                    f"queue {pending.key.queue_id} of {queue.topic!r} has {queue.tier}; manifest"
                    f" {record.number} does not follow: {reason}. Begin anew with what the state"
                    " says"
                )
            )
        self._pending.use(RecordUse.TIERED, (pending,), (), (TierPointer(pending.key),))
        return Accepted()

    def admit_forget(self, record: control_pb2.Forget) -> ControlDecision:
        """Extents are given up only for what the applied manifest has."""
        pending = self._tierable(record.queue)
        if isinstance(pending, Refused):
            return pending
        queue = self._state.queues.get(pending.key)
        if queue is None or not 0 <= record.local_start <= queue.tier.end:
            tier = "nothing" if queue is None else str(queue.tier)
            return Refused(
                InvalidRequest(
                    f"queue {pending.key.queue_id} has {tier} in the object store, and cannot"
                    f" forget up to {record.local_start}"
                )
            )
        return Accepted()

    def _tierable(self, reference: common_pb2.QueueRef) -> PendingQueue | Refused:
        """The queue, unless it is away or sealed by a move, or the log's level is too low."""
        key, level = queue_key_of(reference), self._state.feature_level
        if level < TIER_LEVEL:
            return Refused(lacking(TIER_LEVEL, level, "the broker group"))
        pending = self._pending.queue(key)
        if pending is None:
            return Refused(self._state.absent(key))
        if pending.in_memory:
            return Refused(InvalidRequest(f"queue {key.queue_id} is of a topic in memory"))
        return self.moving(pending) or pending

    def admit_lose_memory(self, record: control_pb2.LoseMemory) -> ControlDecision:
        """Applied offsets of a queue in memory may be lost, again and again, also of one that is on
        its way here. Of a sealed one nothing changes: its slice says what is lost."""
        key = queue_key_of(record.queue)
        queue, pending = self._state.holding(key), self._pending.queue(key)
        if queue is None:
            return Refused(self._state.absent(key))
        if pending is not None and (refused := self.moving(pending)) is not None:
            return refused
        if not queue.in_memory:
            return Refused(InvalidRequest(f"queue {key.queue_id} is in the log, not in memory"))
        if not 0 <= record.from_offset < record.to_offset <= queue.log_end_offset:
            return Refused(
                OffsetOutOfRange(
                    f"queue {key.queue_id} has no offsets {record.from_offset} to"
                    f" {record.to_offset} to lose",
                    log_start_offset=queue.log_start_offset,
                    log_end_offset=queue.log_end_offset,
                )
            )
        return Accepted()

    def admit_alter_topic(self, record: control_pb2.AlterTopic) -> ControlDecision:
        """New settings take effect when they are applied.

        Refused, never finally, while a queue of the topic is sealed: its settings are in the slice.
        """
        settings = QueueSettings.from_message(record.settings)
        if settings.retention_ms < -1 or settings.retention_bytes < -1:
            return Refused(InvalidRequest("retention must be -1 (no limit) or a positive number"))
        if (lacks := self._lacks(record.settings)) is not None:
            return lacks
        wanted = record.settings.storage == common_pb2.STORAGE_MEMORY
        for key, applied in self._state.queues.items():
            if key.topic_id == record.topic_id and applied.in_memory is not wanted:
                return Refused(
                    InvalidRequest(
                        f"topic {applied.topic!r} is in {'the log' if wanted else 'memory'} for its"
                        " whole life: make another topic"
                    )
                )
        for key in (*self._pending.sealing, *self._state.moves.places):
            queue = self._pending.queue(key) if key.topic_id == record.topic_id else None
            if queue is not None and (refused := self.moving(queue)) is not None:
                return refused
        named = self._ids.admit_settings(record.topic_id, record.settings)
        if isinstance(named, Refused):
            return named
        self._pending.use(RecordUse.ALTER, (), (), named)
        return Accepted()

    def _lacks(self, settings: common_pb2.TopicSettings) -> Refused | None:
        """Refuses settings that the log's feature level does not have; None if it has them."""
        level = self._state.feature_level
        if settings.delay_per_second_max > 0 and level < DELAY_LIMIT_LEVEL:
            return Refused(lacking(DELAY_LIMIT_LEVEL, level, "the broker group"))
        if settings.tier_after_ms and level < TIER_LEVEL:
            return Refused(lacking(TIER_LEVEL, level, "the broker group"))
        if settings.storage == common_pb2.STORAGE_MEMORY:
            if level < MEMORY_LEVEL:
                return Refused(lacking(MEMORY_LEVEL, level, "the broker group"))
            if settings.HasField("compaction") or settings.HasField("dedup"):
                return Refused(
                    InvalidRequest(
                        "a topic in memory is neither compacted nor compares message ids"
                    )
                )
            if settings.tier_after_ms:
                return Refused(InvalidRequest("a topic in memory has no tier in an object store"))
        return None

    def _taken(self, key: QueueKey) -> Refused | None:
        """Refuses a new queue under a number that a queue has here, or had before it moved away.

        The refusal is final only after that queue's record is applied. None if the number is free.
        """
        if key in self._state.queues or key in self._state.moves.places:
            return Refused(InvalidRequest(f"queue {key.queue_id} exists already"))
        if self._pending.is_coming(key) or self._pending.queue_or_deleting(key) is not None:
            return retry_later(f"queue {key.queue_id} is being made or deleted")
        return None

    def _delayed(self, queue: PendingQueue, applied: QueueState) -> Refused | None:
        """Refuses a split because of delayed messages: below the level that can part them, those of
        the queue; from there on, those that its own parent still has to hand to it."""
        state = self._state
        if state.feature_level < DELAYED_SPLIT_LEVEL:
            return held_by_delays(state.delays, queue)
        held = held_above(state.queues, state.delays, applied)
        return None if held is None else retry_later(held)

    def _pinned(self, queue: PendingQueue) -> Refused | None:
        """Refuses a split or SEAL while a transaction is being committed to the queue."""
        if self._pending.may_pin or self._state.transactions.staging.is_pinned(queue.key):
            return retry_later("a transaction is being committed to the queue")
        return None
