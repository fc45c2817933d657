"""Moves of queues between broker groups: what each group knows, and how each step is applied.

How it works. A move is a job with a number. The controllers decide on it and drive it. The *source*
has the queue, the *target* gets it. Each broker group keeps one *place* for each queue that ever
took part in a move:

    target   BEGIN → INCOMING   hidden: takes copies, message ids and pieces of the slice
             INGEST → READY     copies and slice are complete and fit each other
             ACTIVATE → HERE    an ordinary queue, with rows, windows, offsets and tokens
             ABORT → AWAY       the copies and the slice are dropped
             MIRROR … PROMOTE   a queue of another cluster (`mirrored.py`)
    source   HOLD → HELD        compaction rests; needed for queues that are compacted
             SEAL → FROZEN      nothing changes any more; the locks are released
             FORWARD → AWAY     the queue is dropped; requests are sent to the target
             UNSEAL → HERE      the queue continues as if it had never been sealed

Each step is granted or refused here, with the same result on every node, and may be repeated. So a
request that is late or repeated, or that comes from a replaced controller, does no harm.

Invariants
1. The jobs of a queue only rise: a step of a job that is over, or of an older job, changes nothing.
2. A FROZEN queue has the same slice until it is forwarded or unsealed.
3. Only a FROZEN queue is forwarded, and only a READY one is activated. The controllers' store
   ensures that of FORWARD and UNSEAL only one is ever requested, and the same for ACTIVATE and
   ABORT.
4. An incoming queue is in no other table: nobody can read, write, lock or split it.
5. What a queue in memory has lost at the source is lost at the target. Nothing is ingested of which
   the target has lost what the source has.
6. A compacted queue is copied by the job that holds it, from HOLD to SEAL. Else a tombstone could
   be removed before it is copied, after the message that it hides was.

Format. docs/formats/state.md.

Not here: which queues cannot move (`move_refusals.py`), the slice (`slices.py`), the admission of a
SEAL (`state/admission/queue_admission.py`), the order of the steps (the controller), fetching
copies (`semel.broker.background.queue_copy`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Final

from semel.broker.state.apply.codec import Part, Reader
from semel.broker.state.apply.delayed_copies import ordinal_of_copy
from semel.broker.state.apply.delayed_extent import LIVE_FIELDS, DelayedExtent, Rows
from semel.broker.state.apply.id_windows import IdSettings, arrivals_from
from semel.broker.state.apply.locks import unknown_queue
from semel.broker.state.apply.lost_offsets import RECORD_BYTES
from semel.broker.state.apply.mirrored import mirror_step
from semel.broker.state.apply.move_home import Home
from semel.broker.state.apply.move_ids import begin_ids, ids_misfit, supersede_ids, take_ids
from semel.broker.state.apply.move_places import TAKING, Incoming, MoveState, Place
from semel.broker.state.apply.move_refusals import held_here, move_refusal, unheld
from semel.broker.state.apply.queues import SLOTS, QueueSettings, QueueState
from semel.broker.state.apply.results import MoveApplied
from semel.broker.state.apply.slices import read_slice
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    decode_broker_header,
    decode_header,
)
from semel.protos.delays import is_delayed
from semel.protos.errors import (
    CorruptSegment,
    InvalidRequest,
    QueueMoved,
    SemelError,
    Throttled,
)
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import COMPACTED_MOVE_LEVEL, DELAYED_MOVE_LEVEL, ID_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2

SEALED_RETRY_MS: Final = 25
"""About the time that a sealed queue takes to reach its new group."""
_PLACE: Final = struct.Struct("<QIIIQ")
_COUNT: Final = struct.Struct("<I")


class Moves:
    """Everything that one broker group knows about moves."""

    __slots__ = ("incoming", "places")

    def __init__(self) -> None:
        self.places: dict[QueueKey, Place] = {}
        self.incoming: dict[QueueKey, Incoming] = {}

    # --- questions --------------------------------------------------------------------------

    def absent(self, key: QueueKey) -> SemelError:
        """The error for a queue that is not here: it moved away, or it never was here."""
        place = self.places.get(key)
        if place is None or place.state in _SOURCE:
            return unknown_queue(key)
        # Until the queue is activated here, its source answers for it.
        return QueueMoved(
            f"queue {key.queue_id} lives on broker group {place.group_id}; ask there",
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            group_id=place.group_id,
        )

    def frozen(self, key: QueueKey) -> Throttled | None:
        """Why the queue must not change now: a move has sealed it. None if none has."""
        place = self.places.get(key)
        if place is None or place.state is not MoveState.FROZEN:
            return None
        return Throttled(
            f"queue {key.queue_id} is on its way to broker group {place.group_id}; ask again",
            retry_after_ms=SEALED_RETRY_MS,
        )

    def barred(self, key: QueueKey, queue: QueueState | None) -> SemelError | None:
        """Why a move bars consumer groups from the queue; None if no move does."""
        if queue is not None:
            return self.frozen(key)
        return self.absent(key) if key in self.places else None

    @property
    def frozen_count(self) -> int:
        """How many queues are sealed now."""
        return sum(place.state is MoveState.FROZEN for place in self.places.values())

    @property
    def settling(self) -> bool:
        """Whether any slice is fixed or on its way here; then no consumer group can be deleted."""
        coming = (incoming for incoming in self.incoming.values() if incoming.mirror is None)
        return self.frozen_count > 0 or any(incoming.slice for incoming in coming)

    # --- changes ----------------------------------------------------------------------------

    def apply(self, record: control_pb2.MoveQueue, home: Home) -> MoveApplied:
        """Applies one step. The caller has checked the feature level."""
        key = queue_key_of(record.queue)
        step = mirror_step(self, record, key, home.feature_level) or _STEPS.get(record.step)
        if record.step == control_pb2.MOVE_STEP_HOLD and home.feature_level < COMPACTED_MOVE_LEVEL:
            step = None
        error: SemelError | None
        if step is None:
            error = InvalidRequest(f"queue {key.queue_id}: a move has no step {record.step}")
        else:
            error = step(self, record, key, home)
        if error is None and record.step in _LEAVING:
            self.forget_window(key.topic_id, home)
        incoming = self.incoming.get(key)
        return MoveApplied(
            step=record.step,
            queue_key=key,
            error=error,
            copied_offset=-1 if incoming is None else incoming.queue.log_end_offset,
        )

    def forget_window(self, topic_id: int, home: Home) -> None:
        """Forgets the ids of a topic that has no queue here any more, and none on its way."""
        if home.queues.has_topic(topic_id):
            return
        if not any(key.topic_id == topic_id for key in self.incoming):
            home.id_windows.forget(topic_id)

    def _over(self, record: control_pb2.MoveQueue, key: QueueKey) -> InvalidRequest | None:
        """Why a job cannot begin here; None if it is newer than every job so far."""
        place = self.places.get(key)
        if place is None or record.job > place.job:
            return None
        return InvalidRequest(
            f"move {record.job} of queue {key.queue_id} is over; {place.job} is known here"
        )

    def wrong(self, record: control_pb2.MoveQueue, key: QueueKey) -> InvalidRequest:
        """The error for a step that does not fit."""
        place = self.places.get(key)
        known = "nothing" if place is None else f"{place.state.name} by move {place.job}"
        name = control_pb2.MoveStep.Name(record.step)
        return InvalidRequest(
            f"{name} of move {record.job} does not fit queue {key.queue_id}: here is {known}"
        )

    def _is(self, record: control_pb2.MoveQueue, key: QueueKey, *states: MoveState) -> bool:
        place = self.places.get(key)
        return place is not None and place.job == record.job and place.state in states

    def _set(self, record: control_pb2.MoveQueue, key: QueueKey, state: MoveState) -> None:
        self.places[key] = Place(state, record.job, record.group_id)

    def set(self, key: QueueKey, state: MoveState, job: int) -> None:
        """Notes a queue that comes from no broker group of this cluster."""
        self.places[key] = Place(state, job, 0)

    # Steps at the source.

    def holds(self, key: QueueKey, job: int) -> bool:
        """Whether the job keeps the queue from being compacted, so that it may copy it."""
        place = self.places.get(key)
        held = MoveState.HELD, MoveState.FROZEN
        return place is not None and place.job == job and place.state in held

    def _hold(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self.holds(key, record.job):
            return None
        queue = home.queues.get(key)
        if queue is None:
            return self.absent(key)
        level = home.feature_level
        busy = self._over(record, key) or self.frozen(key)
        error = busy or move_refusal(home.queues, queue, home.delays, level, home.id_windows.topics)
        if error is None:
            queue.held = True
            self._set(record, key, MoveState.HELD)
        return error

    def _seal(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        error = self.seal_refusal(record, key, home)
        if error is None:
            home.queues[key].frozen, home.queues[key].held = True, False
            home.groups.release_all(key)
            self._set(record, key, MoveState.FROZEN)
        return error

    def seal_refusal(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        """Why the job cannot seal the queue; None if it can, or if it has done so.

        The admission asks, too, so that the log holds hardly any refused SEAL.
        """
        if self._is(record, key, MoveState.FROZEN):
            return None
        queue = home.queues.get(key)
        if queue is None:
            return self.absent(key)
        level, held_by_it = home.feature_level, self.holds(key, record.job)
        busy = None if held_by_it else self._over(record, key) or self.frozen(key)
        error = busy or move_refusal(home.queues, queue, home.delays, level, home.id_windows.topics)
        if error is None and queue.settings.compaction is not None and not held_by_it:
            error = unheld(queue, record.job)
        if error is None and (held := held_here(home.delays, key, level)) is not None:
            error = Throttled(f"not sealed: {held}; ask again", retry_after_ms=SEALED_RETRY_MS)
        if error is None and home.transactions.staging.is_pinned(key):
            error = Throttled(
                f"a transaction is being committed to queue {key.queue_id}; ask again",
                retry_after_ms=SEALED_RETRY_MS,
            )
        return error

    def _unseal(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.AWAY):
            return self.wrong(record, key)
        if self._over(record, key) and not self.holds(key, record.job):
            return None  # it was unsealed before, or a later move is under way
        queue = home.queues.get(key)
        if queue is None:
            return None  # deleted
        # The SEAL of this job may not have come yet. If it comes later, it is refused.
        queue.frozen = queue.held = False
        self._set(record, key, MoveState.HERE)
        return None

    def _forward(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.AWAY):
            return None
        if not self._is(record, key, MoveState.FROZEN):
            return self.wrong(record, key)
        del home.queues[key]
        home.producers.remove_queue(key)
        home.groups.remove_queue(key)
        home.transactions.staging.remove_queue(key)  # nothing is pinned; stagers begin again
        home.delays.remove_queue(key)
        self._set(record, key, MoveState.AWAY)
        return None

    # Steps at the target.

    def _begin(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self._is(record, key, MoveState.INCOMING, MoveState.READY):
            return None
        create = record.create
        if not 0 <= create.slot_start < create.slot_end <= SLOTS:
            return InvalidRequest(
                f"queue {key.queue_id} cannot own slots {create.slot_start} to {create.slot_end}"
            )
        if key in home.queues:
            return InvalidRequest(f"queue {key.queue_id} is on this broker group already")
        error = self._over(record, key)
        if error is None:
            settings = QueueSettings.from_message(create.settings, home.feature_level)
            self.incoming[key] = Incoming(
                QueueState(key, create.topic, create.slot_start, create.slot_end, settings)
            )
            if home.feature_level >= ID_LEVEL:
                ids = IdSettings.from_message(create.settings)
                # Queues of the topic may have lived here before, under the same seed.
                first_arrival = arrivals_from(home.applied_index + 1)
                home.id_windows.configure(key.topic_id, ids, first_arrival)
            begin_ids(home.id_windows, key, home.feature_level, known=key in self.places)
            self._set(record, key, MoveState.INCOMING)
        return error

    def _floor(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if not self._is(record, key, MoveState.INCOMING):
            return self.wrong(record, key)
        queue = self.incoming[key].queue
        if record.offset > queue.log_end_offset:
            queue.begin_at(record.offset)
        else:
            queue.trim(record.offset)
        return None

    def copy(
        self, index: int, position: int, payload: memoryview, level: int, *, bare: bool = False
    ) -> MoveApplied:
        """Applies a COPY record, or a `bare` one, MEMORY_COPY: the next batch of an incoming queue,
        or the next delayed one. Any other changes nothing.

        Of a queue in memory, a COPY has both headers alone and says that the body is lost. `level`
        is the feature level of the log. Raises CorruptBatch.
        """
        head = decode_broker_header(payload)
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        key, length = batch.queue_key, batch.stored_length
        place, incoming = self.places.get(key), self.incoming.get(key)
        error: SemelError | None = None
        if place is None or incoming is None or place.state not in TAKING:
            error = InvalidRequest(f"queue {key.queue_id} takes no copies here")
        elif (
            level >= DELAYED_MOVE_LEVEL
            and (ordinal := ordinal_of_copy(head)) is not None
            and is_delayed(batch)
            and batch.count
            and len(payload) == length
        ):
            extent = DelayedExtent(
                batch.deliver_at_us, ordinal, index, position, len(payload), batch.count
            )
            error = incoming.delayed.add(extent)
        elif (
            head.base_offset != incoming.queue.log_end_offset
            or head.append_time_us < incoming.queue.last_append_us
            or not (batch.count or head.span)
            or bool(head.span) != bool(batch.flags & BatchFlags.OFFSET)
            or len(payload) != (RECORD_BYTES if incoming.queue.in_memory else length)
            or (bare and not incoming.queue.in_memory)
        ):
            error = InvalidRequest(
                f"a copy of offset {head.base_offset} does not follow the end of queue"
                f" {key.queue_id}, {incoming.queue.log_end_offset}"
            )
        else:
            count = head.span or batch.count
            incoming.queue.append(count, index, position, length, head.append_time_us)
            if incoming.queue.in_memory and not bare:
                incoming.queue.lose(head.base_offset, head.base_offset + count)
            if head.span:
                incoming.queue.compaction.gaps_to = incoming.queue.log_end_offset
        return MoveApplied(
            step=0,
            queue_key=key,
            error=error,
            copied_offset=-1 if incoming is None else incoming.queue.log_end_offset,
        )

    def lose(self, key: QueueKey, from_offset: int, to_offset: int) -> None:
        """Applies a LOSE_MEMORY record to a queue on its way here, if it has come so far."""
        incoming = self.incoming.get(key)
        if incoming is not None and to_offset <= incoming.queue.log_end_offset:
            incoming.queue.lose(from_offset, to_offset)

    def _part(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self._is(record, key, MoveState.READY):
            return None
        if not self._is(record, key, MoveState.INCOMING):
            return self.wrong(record, key)
        incoming = self.incoming[key]
        end = record.offset + len(record.part)
        if record.offset == len(incoming.slice):
            incoming.slice += record.part
        elif incoming.slice[record.offset : end] != record.part:
            return InvalidRequest(
                f"byte {record.offset} of the slice of queue {key.queue_id} does not follow the"
                f" {len(incoming.slice)} bytes that are here"
            )
        return None

    def _ids(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        """Notes how far the ids are copied; the window has taken them in either way."""
        if not self._is(record, key, MoveState.INCOMING):
            return self.wrong(record, key)
        return take_ids(home.id_windows, key, record, home.feature_level)

    def _supersede(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if not self._is(record, key, MoveState.INCOMING):
            return self.wrong(record, key)
        if home.feature_level >= DELAYED_MOVE_LEVEL:
            supersede_ids(home.id_windows, key, record)
        return None

    def _ingest(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.READY):
            return None
        if not self._is(record, key, MoveState.INCOMING):
            return self.wrong(record, key)
        lacking = ids_misfit(home.id_windows, key, record.ids_to, home.feature_level)
        if lacking is not None:
            return lacking
        incoming = self.incoming[key]
        digest = hashlib.sha256(incoming.slice).digest()
        if (len(incoming.slice), digest) != (record.offset, record.digest):
            return InvalidRequest(f"the slice of queue {key.queue_id} is incomplete")
        try:
            found = read_slice(incoming.slice)
        except CorruptSegment as error:
            return InvalidRequest(f"the slice of queue {key.queue_id} cannot be read: {error}")
        reason = found.misfit(incoming.queue, parts=home.feature_level >= ID_LEVEL)
        delayed = found.delayed, found.origins
        if reason is None and incoming.delayed.arrived(*delayed) is None:
            reason = f"not all of its {found.delayed.batches} delayed batches are here"
        compaction = found.queue.compaction
        if reason is None and compaction.marks and not record.source_time_us:
            reason = "it does not say how late it is at the source"
        if reason is None:
            reason = incoming.queue.lost.misfit(found.queue.lost)
        if reason is not None:
            return InvalidRequest(f"the copy of queue {key.queue_id} is incomplete: {reason}")
        shift_us = home.log_time_us - record.source_time_us
        gaps_to = incoming.queue.compaction.gaps_to
        incoming.queue.compaction = compaction.dated(shift_us, gaps_to)
        self._set(record, key, MoveState.READY)
        return None

    def _activate(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.HERE):
            return None
        if not self._is(record, key, MoveState.READY):
            return self.wrong(record, key)
        incoming = self.incoming.pop(key)
        found = read_slice(incoming.slice)
        queue = found.queue
        queue.extents = incoming.queue.extents
        queue.bytes = incoming.queue.bytes
        queue.compaction = incoming.queue.compaction
        for lost in incoming.queue.lost.ranges:
            queue.lose(*lost)
        if record.HasField("create"):
            level = home.feature_level
            queue.alter(QueueSettings.from_message(record.create.settings, level))
            if home.feature_level >= ID_LEVEL:
                ids = IdSettings.from_message(record.create.settings)
                home.id_windows.replace(key.topic_id, ids)
        home.queues[key] = queue
        home.producers.adopt(key, found.producers)
        home.groups.adopt(key, found.groups)
        arrived = incoming.delayed.arrived(found.delayed, found.origins)
        assert arrived is not None, "it was complete when it became ready"
        home.delays.adopt(key, *arrived, incoming.delayed.below_ordinal)
        home.id_windows.copied.pop(key, None)
        self._set(record, key, MoveState.HERE)
        return None

    def _abort(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self._is(record, key, MoveState.HERE):
            return self.wrong(record, key)
        running = self._is(record, key, MoveState.INCOMING, MoveState.READY)
        if not running and (self._over(record, key) or key in home.queues):
            return None
        # The BEGIN of this job may not have come yet. If it comes later, it is refused.
        self.incoming.pop(key, None)
        home.id_windows.copied.pop(key, None)
        self._set(record, key, MoveState.AWAY)
        return None

    def forget(self, key: QueueKey) -> None:
        """Forgets a queue that was deleted, wherever it lived."""
        self.places.pop(key, None)
        self.incoming.pop(key, None)

    def digest(self) -> bytes:
        """SHA-256 of all places.

        It changes with each step that brings, seals or drops a queue. Jobs only rise and a job
        never returns to an earlier state, so no digest occurs twice.
        """
        places = (self._pack(key) for key in sorted(self.places))
        return hashlib.sha256(b"".join(places)).digest()

    def _pack(self, key: QueueKey) -> bytes:
        place = self.places[key]
        return _PLACE.pack(*key, place.state, place.group_id, place.job)

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self, version: int) -> list[Part]:
        """Canonical bytes in a state of this version: places by queue, each followed by its
        incoming queue if it has one."""
        parts: list[Part] = [_COUNT.pack(len(self.places))]
        for key in sorted(self.places):
            parts.append(self._pack(key))
            incoming = self.incoming.get(key)
            if incoming is not None:
                parts += incoming.parts(version)
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, queues: dict[QueueKey, QueueState], version: int) -> Moves:
        """The inverse of `parts`; also marks the frozen ones of `queues`. Raises CorruptSegment."""
        moves = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, queue_id, state, group_id, job = reader.unpack(_PLACE)
            key = QueueKey(TopicId(topic_id), QueueId(queue_id))
            if state not in set(MoveState):
                raise CorruptSegment(f"state {state} of moved queue {key} is unknown")
            place = Place(MoveState(state), job, group_id)
            moves.places[key] = place
            if place.state is MoveState.FROZEN:
                if key not in queues:
                    raise CorruptSegment(f"queue {key} is frozen, but it is not here")
                queues[key].frozen = True
            elif place.state is MoveState.HELD:
                if key not in queues:
                    raise CorruptSegment(f"queue {key} is held, but it is not here")
                queues[key].held = True
            elif place.state in (MoveState.READY, *TAKING):
                mirrored = place.state is MoveState.MIRRORED
                moves.incoming[key] = Incoming.read_parts(reader, version, mirrored=mirrored)
        return moves

    def stored(self) -> Iterator[QueueState]:
        """The incoming queues by number; their copies are live records."""
        return (self.incoming[key].queue for key in sorted(self.incoming))

    def delayed_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of copies of delayed batches in entries `[lo_index, hi_index)`,
        which are live, too."""
        for rows in self.delayed_in_entries(lo_index, hi_index):
            yield from rows[LIVE_FIELDS].tolist()

    def delayed_in_entries(self, lo_index: int, hi_index: int) -> Iterator[Rows]:
        """The extents of such copies."""
        for key in sorted(self.incoming):
            yield from self.incoming[key].delayed.queue.in_entries(lo_index, hi_index)

    @property
    def delayed_bytes(self) -> int:
        """Total length of the copies of delayed batches."""
        return sum(incoming.delayed.queue.bytes for incoming in self.incoming.values())


_SOURCE: Final = (MoveState.HERE, MoveState.HELD, MoveState.FROZEN, MoveState.MIRRORED)
"""States in which no other group has the queue."""
_LEAVING: Final = (control_pb2.MOVE_STEP_FORWARD, control_pb2.MOVE_STEP_ABORT)
_Step = Callable[[Moves, control_pb2.MoveQueue, QueueKey, Home], SemelError | None]
_STEPS: Final[dict[int, _Step]] = {
    control_pb2.MOVE_STEP_BEGIN: Moves._begin,
    control_pb2.MOVE_STEP_FLOOR: Moves._floor,
    control_pb2.MOVE_STEP_SEAL: Moves._seal,
    control_pb2.MOVE_STEP_PART: Moves._part,
    control_pb2.MOVE_STEP_INGEST: Moves._ingest,
    control_pb2.MOVE_STEP_ACTIVATE: Moves._activate,
    control_pb2.MOVE_STEP_FORWARD: Moves._forward,
    control_pb2.MOVE_STEP_UNSEAL: Moves._unseal,
    control_pb2.MOVE_STEP_ABORT: Moves._abort,
    control_pb2.MOVE_STEP_IDS: Moves._ids,
    control_pb2.MOVE_STEP_SUPERSEDE: Moves._supersede,
    control_pb2.MOVE_STEP_HOLD: Moves._hold,
}
