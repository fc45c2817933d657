"""Moving queues between broker groups: what each group knows of it, and every step, at apply.

How it works. A move is a job with a number; the controllers drive it and decide it. The *source*
has the queue, the *target* gets it. Each group keeps one *place* a queue that ever took part:

    target   BEGIN → INCOMING   hidden: takes COPY records and pieces of the slice
             INGEST → READY     copies and slice are whole and fit each other
             ACTIVATE → HERE    an ordinary queue, with rows, windows, offsets and tokens
             ABORT → AWAY       what came is dropped
    source   SEAL → FROZEN      nothing changes any more; the locks have ended
             FORWARD → AWAY     dropped; whoever asks is sent to the target
             UNSEAL → HERE      goes on as if nothing had been

Everything is granted or refused here, the same on every node, and each step may come again. So no
request that is late, repeated, or of a controller that was replaced can do harm.

Invariants
1. Of one queue, jobs only rise: a step of a job that is over, or older, changes nothing.
2. A queue that is FROZEN has the same slice until it is forwarded or goes on.
3. FORWARD is granted to a FROZEN queue only, ACTIVATE to a READY one only; that only one of
   FORWARD and UNSEAL, and only one of ACTIVATE and ABORT, is ever asked for is the decision of the
   controllers' store.
4. An incoming queue is in no other table: nobody reads, writes, locks or splits it.

Format. docs/formats/state.md.

Not here: the slice (`slices.py`), when to do what (the controller), fetching (`../moving.py`).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.extents import Extents
from semel.broker.state.apply.locks import ConsumerGroups, unknown_queue
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queues import SLOTS, QueueSettings, QueueState
from semel.broker.state.apply.results import MoveApplied
from semel.broker.state.apply.slices import Slice, read_slice
from semel.broker.state.apply.splits import ancestors
from semel.broker.state.apply.transactions import Transactions
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header, decode_header
from semel.protos.errors import (
    CorruptSegment,
    InvalidRequest,
    QueueMoved,
    SemelError,
    Throttled,
)
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2

SEALED_RETRY_MS: Final = 25
"""About as long as a sealed queue needs to reach its new group."""
_PLACE: Final = struct.Struct("<QIIIQ")
_COUNT: Final = struct.Struct("<I")


class MoveState(IntEnum):
    """What a group is to a queue that takes, or took, part in a move."""

    HERE = 1
    """The job is over and the queue lives here."""
    AWAY = 2
    """The job is over and the queue lives at the other group."""
    FROZEN = 3
    """Source: sealed, its fate is not known here."""
    INCOMING = 4
    """Target: copies come."""
    READY = 5
    """Target: everything is here."""


class Place(NamedTuple):
    """One queue's newest job, as one group knows it."""

    state: MoveState
    job: int
    group_id: int
    """The other group."""


class Incoming:
    """A queue on its way here."""

    __slots__ = ("queue", "slice")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        """With the extents of the copies."""
        self.slice = b""
        """What came of the serialized slice."""


class Home(Protocol):
    """The replicated state, as a step needs it."""

    queues: dict[QueueKey, QueueState]
    producers: SequenceTable
    groups: ConsumerGroups
    feature_level: int
    transactions: Transactions
    delays: Delays


class Moves:
    """All that one broker group knows of moves."""

    __slots__ = ("incoming", "places")

    def __init__(self) -> None:
        self.places: dict[QueueKey, Place] = {}
        self.incoming: dict[QueueKey, Incoming] = {}

    # --- questions --------------------------------------------------------------------------

    def absent(self, key: QueueKey) -> SemelError:
        """The error for a queue that this group does not have: gone elsewhere, or never here."""
        place = self.places.get(key)
        if place is None or place.state in (MoveState.HERE, MoveState.FROZEN):
            return unknown_queue(key)
        # Until it is activated here, the group that it comes from answers for it.
        return QueueMoved(
            f"queue {key.queue_id} lives on broker group {place.group_id}; ask there",
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            group_id=place.group_id,
        )

    def frozen(self, key: QueueKey) -> Throttled | None:
        """Why nothing may change in the queue while it moves; None when it may."""
        place = self.places.get(key)
        if place is None or place.state is not MoveState.FROZEN:
            return None
        return Throttled(
            f"queue {key.queue_id} is on its way to broker group {place.group_id}; ask again",
            retry_after_ms=SEALED_RETRY_MS,
        )

    def barred(self, key: QueueKey, queue: QueueState | None) -> SemelError | None:
        """Why a consumer group cannot have a queue; None when a move is no reason."""
        if queue is not None:
            return self.frozen(key)
        return self.absent(key) if key in self.places else None

    @property
    def frozen_count(self) -> int:
        """Queues that are sealed now."""
        return sum(place.state is MoveState.FROZEN for place in self.places.values())

    @property
    def settling(self) -> bool:
        """Some slice is fixed, or on its way here: consumer groups cannot be forgotten now."""
        return self.frozen_count > 0 or any(incoming.slice for incoming in self.incoming.values())

    # --- the fold ---------------------------------------------------------------------------

    def apply(self, record: control_pb2.MoveQueue, home: Home) -> MoveApplied:
        """One step. The caller has made sure that the group knows the rules."""
        key = queue_key_of(record.queue)
        step = _STEPS.get(record.step)
        error: SemelError | None
        if step is None:
            error = InvalidRequest(f"queue {key.queue_id}: a move has no step {record.step}")
        else:
            error = step(self, record, key, home)
        incoming = self.incoming.get(key)
        return MoveApplied(
            step=record.step,
            queue_key=key,
            error=error,
            copied_offset=-1 if incoming is None else incoming.queue.log_end_offset,
        )

    def _over(self, record: control_pb2.MoveQueue, key: QueueKey) -> InvalidRequest | None:
        """Why a job cannot begin here; None when it is newer than all that were."""
        place = self.places.get(key)
        if place is None or record.job > place.job:
            return None
        return InvalidRequest(
            f"move {record.job} of queue {key.queue_id} is over; {place.job} is known here"
        )

    def _wrong(self, record: control_pb2.MoveQueue, key: QueueKey) -> InvalidRequest:
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

    # The source.

    def _seal(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        error = self.seal_refusal(record, key, home)
        if error is None:
            home.queues[key].frozen = True
            home.groups.release_all(key)
            self._set(record, key, MoveState.FROZEN)
        return error

    def seal_refusal(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        """Why the job cannot seal the queue; None if it can, or has. For the judge, too, so that
        hardly any SEAL is in the log that was refused."""
        if self._is(record, key, MoveState.FROZEN):
            return None
        queue = home.queues.get(key)
        if queue is None:
            return self.absent(key)
        error = self._over(record, key) or self.frozen(key) or move_refusal(home.queues, queue)
        if error is None and (held := home.delays.held(key)) is not None:
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
            return self._wrong(record, key)
        if self._over(record, key) and not self._is(record, key, MoveState.FROZEN):
            return None  # it goes on already, or a later move is on
        queue = home.queues.get(key)
        if queue is None:
            return None  # deleted
        # Also of a job whose SEAL never came: it may be late, and is refused then.
        queue.frozen = False
        self._set(record, key, MoveState.HERE)
        return None

    def _forward(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.AWAY):
            return None
        if not self._is(record, key, MoveState.FROZEN):
            return self._wrong(record, key)
        del home.queues[key]
        home.producers.remove_queue(key)
        home.groups.remove_queue(key)
        home.transactions.staging.remove_queue(key)  # nothing is pinned: it is begun again
        self._set(record, key, MoveState.AWAY)
        return None

    # The target.

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
            settings = QueueSettings.from_message(create.settings)
            self.incoming[key] = Incoming(
                QueueState(key, create.topic, create.slot_start, create.slot_end, settings)
            )
            self._set(record, key, MoveState.INCOMING)
        return error

    def _floor(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if not self._is(record, key, MoveState.INCOMING):
            return self._wrong(record, key)
        queue = self.incoming[key].queue
        if record.offset > queue.log_end_offset:
            queue.extents = Extents()
            queue.bytes = 0
            queue.log_start_offset = queue.log_end_offset = record.offset
        else:
            queue.trim(record.offset)
        return None

    def copy(self, index: int, position: int, payload: memoryview) -> MoveApplied:
        """A COPY record: the next batch of an incoming queue; any other changes nothing.

        Raises CorruptBatch.
        """
        head = decode_broker_header(payload)
        batch = decode_header(payload, BROKER_HEADER_BYTES)
        key = batch.queue_key
        place, incoming = self.places.get(key), self.incoming.get(key)
        error: SemelError | None = None
        if place is None or incoming is None or place.state is not MoveState.INCOMING:
            error = InvalidRequest(f"queue {key.queue_id} takes no copies here")
        elif (
            head.base_offset != incoming.queue.log_end_offset
            or head.append_time_us < incoming.queue.last_append_us
            or not batch.count
            or len(payload) != BROKER_HEADER_BYTES + batch.batch_length
        ):
            error = InvalidRequest(
                f"a copy of offset {head.base_offset} does not follow the end of queue"
                f" {key.queue_id}, {incoming.queue.log_end_offset}"
            )
        else:
            incoming.queue.append(batch.count, index, position, len(payload), head.append_time_us)
        return MoveApplied(
            step=0,
            queue_key=key,
            error=error,
            copied_offset=-1 if incoming is None else incoming.queue.log_end_offset,
        )

    def _part(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self._is(record, key, MoveState.READY):
            return None
        if not self._is(record, key, MoveState.INCOMING):
            return self._wrong(record, key)
        incoming = self.incoming[key]
        end = record.offset + len(record.part)
        if record.offset == len(incoming.slice):
            incoming.slice += record.part
        elif incoming.slice[record.offset : end] != record.part:
            return InvalidRequest(
                f"byte {record.offset} of the slice of queue {key.queue_id} does not follow the"
                f" {len(incoming.slice)} that are here"
            )
        return None

    def _ingest(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.READY):
            return None
        if not self._is(record, key, MoveState.INCOMING):
            return self._wrong(record, key)
        incoming = self.incoming[key]
        digest = hashlib.sha256(incoming.slice).digest()
        if (len(incoming.slice), digest) != (record.offset, record.digest):
            return InvalidRequest(f"the slice of queue {key.queue_id} is not whole")
        try:
            found = read_slice(incoming.slice)
        except CorruptSegment as error:
            return InvalidRequest(f"the slice of queue {key.queue_id} cannot be read: {error}")
        reason = found.misfit(incoming.queue)
        if reason is not None:
            return InvalidRequest(f"the copy of queue {key.queue_id} is not whole: {reason}")
        self._set(record, key, MoveState.READY)
        return None

    def _activate(
        self, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        if self._is(record, key, MoveState.HERE):
            return None
        if not self._is(record, key, MoveState.READY):
            return self._wrong(record, key)
        incoming = self.incoming.pop(key)
        found = read_slice(incoming.slice)
        queue = found.queue
        queue.extents = incoming.queue.extents
        queue.bytes = incoming.queue.bytes
        if record.HasField("create"):
            queue.settings = QueueSettings.from_message(record.create.settings)
        home.queues[key] = queue
        home.producers.adopt(key, found.producers)
        home.groups.adopt(key, found.groups)
        self._set(record, key, MoveState.HERE)
        return None

    def _abort(self, record: control_pb2.MoveQueue, key: QueueKey, home: Home) -> SemelError | None:
        if self._is(record, key, MoveState.HERE):
            return self._wrong(record, key)
        running = self._is(record, key, MoveState.INCOMING, MoveState.READY)
        if not running and (self._over(record, key) or key in home.queues):
            return None
        # Also of a job whose BEGIN never came: it may be late, and is refused then.
        self.incoming.pop(key, None)
        self._set(record, key, MoveState.AWAY)
        return None

    def forget(self, key: QueueKey) -> None:
        """The queue is deleted, wherever it is."""
        self.places.pop(key, None)
        self.incoming.pop(key, None)

    def digest(self) -> bytes:
        """Of all places: another one after each step that brings a queue, seals or drops it. Jobs
        only rise, and a job does not come back to a state, so no digest ever comes again."""
        places = (self._pack(key) for key in sorted(self.places))
        return hashlib.sha256(b"".join(places)).digest()

    def _pack(self, key: QueueKey) -> bytes:
        place = self.places[key]
        return _PLACE.pack(*key, place.state, place.group_id, place.job)

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self) -> list[bytes]:
        """Canonical bytes: places by queue, each followed by what is on its way."""
        parts = [_COUNT.pack(len(self.places))]
        for key in sorted(self.places):
            parts.append(self._pack(key))
            incoming = self.incoming.get(key)
            if incoming is not None:
                parts += incoming.queue.parts(lineage=True)
                parts += [_COUNT.pack(len(incoming.slice)), incoming.slice]
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, queues: dict[QueueKey, QueueState]) -> Moves:
        """The inverse of `parts`; marks `queues` that are frozen. Raises CorruptSegment."""
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
                    raise CorruptSegment(f"queue {key} is frozen, and not here")
                queues[key].frozen = True
            elif place.state in (MoveState.INCOMING, MoveState.READY):
                incoming = moves.incoming[key] = Incoming(
                    QueueState.read_parts(reader, lineage=True)
                )
                incoming.slice = bytes(reader.take(reader.unpack(_COUNT)[0]))
        return moves

    def stored(self) -> Iterator[QueueState]:
        """Incoming queues, by number: their copies are needed."""
        return (self.incoming[key].queue for key in sorted(self.incoming))


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
}


def move_refusal(queues: dict[QueueKey, QueueState], queue: QueueState) -> SemelError | None:
    """Why a queue cannot leave this group, whatever the job; None when it can.

    The order of a split is kept by the locks of one group: its parent and its children stay
    together as long as the parent holds messages.
    """
    number = queue.key.queue_id
    if queue.children:
        return InvalidRequest(
            f"queue {number} of {queue.topic!r} was split; it stays until retention has emptied"
            " it. Move what was split off, once this one is empty"
        )
    for parent in ancestors(queues, queue):
        if parent.log_start_offset < parent.log_end_offset:
            return InvalidRequest(
                f"queue {number} of {queue.topic!r} came of queue {parent.key.queue_id}, which"
                f" still holds {parent.log_end_offset - parent.log_start_offset} messages that are"
                " read before it. Move it once retention has emptied that one"
            )
    return None


__all__ = ["Incoming", "MoveState", "Moves", "Place", "Slice"]
