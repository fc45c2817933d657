"""Queues of another cluster, which are copied here and may be promoted: how each step is applied.

How it works. A mirrored queue is hidden, like one that moves here (`moves.py`), and takes the same
COPY records. The steps of its mirror:

    MIRROR     → MIRRORED   it begins, or a program with a higher epoch goes on
    FLOOR                   the source's log begins here by now
    PART …                  a slice, which the source has made as of some applied entry
    SETTLE                  the slice is whole, and all that it counts is here
    PROMOTE    → HERE       an ordinary queue, as the settled slice says
    UNMIRROR                what came is dropped

The copy is mostly ahead of the settled slice. What lies behind the slice's end is dropped with the
promotion: so rows, windows, offsets of groups and delayed batches fit the messages, without a
guess about any of them.

Whoever held a token of a lock at the source may be alive, and so may its producers. So tokens rise
by TOKEN_STEP with the promotion; the epochs of producers are the controllers' matter.

Invariants
1. `settled` is a slice that the source had, and everything that it counts is here, except what the
   source has given up since (FLOOR).
2. A program of a lower epoch changes nothing but copies, which are taken in their order alone.
3. All copies are of one cluster.
4. What cannot be copied exactly is refused: queues that are compacted, in memory or tiered, and
   topics that compare message ids.

Not here: the order of the steps (`server/mirrors_service.py`), which queues are promoted (the
client's `core/mirroring.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.state.apply.compacted import Compaction
from semel.broker.state.apply.move_home import Home
from semel.broker.state.apply.move_places import Incoming, Mirror, MoveState, Place
from semel.broker.state.apply.queues import SLOTS, QueueSettings, QueueState
from semel.broker.state.apply.restored import RESTORE_JOB, TOKEN_STEP
from semel.broker.state.apply.slices import Slice, read_slice
from semel.protos.errors import CorruptSegment, InvalidRequest, SemelError, StaleGeneration
from semel.protos.ids import QueueKey
from semel.protos.levels import MIRROR_LEVEL
from semel.protos.v1 import control_pb2
from semel.protos.v1.common_pb2 import STORAGE_MEMORY, TopicSettings

SLICE_BYTES_MAX: Final = 256 << 20


class Known(Protocol):
    """What a broker group knows of queues that come and go (`Moves`)."""

    places: dict[QueueKey, Place]
    incoming: dict[QueueKey, Incoming]

    def wrong(self, record: control_pb2.MoveQueue, key: QueueKey) -> InvalidRequest:
        """The error for a step that does not fit."""

    def set(self, key: QueueKey, state: MoveState, job: int) -> None:
        """Notes the state of a queue that comes from no broker group of this cluster."""

    def forget(self, key: QueueKey) -> None:
        """Forgets a queue."""


def mirror_step(
    moves: Known, record: control_pb2.MoveQueue, key: QueueKey, level: int
) -> _Step | None:
    """The rule of a mirror's step; None if it is one of a move."""
    if level < MIRROR_LEVEL:
        return None
    place = moves.places.get(key)
    if record.step in OWN_STEPS or (place is not None and place.state is MoveState.MIRRORED):
        return _STEPS.get(record.step, _alien)
    return None


def settings_refusal(settings: TopicSettings) -> str | None:
    """Why a topic with these settings cannot be mirrored; None if it can."""
    for what, found in (
        ("is compacted", settings.HasField("compaction")),
        ("is in memory", settings.storage == STORAGE_MEMORY),
        ("compares message ids", settings.HasField("dedup")),
        ("is tiered", settings.tier_after_ms > 0),
    ):
        if found:
            return f"a topic that {what} cannot be mirrored"
    return None


def slice_refusal(queue: QueueState) -> str | None:
    """Why a queue cannot be mirrored; None if it can."""
    for what, found in (
        ("is compacted, or was", queue.settings.compaction or queue.compaction != Compaction()),
        ("is in memory", queue.in_memory),
        ("has messages in an object store, or had", queue.tier.number),
    ):
        if found:
            return f"queue {queue.key.queue_id} of {queue.topic!r} {what}: it cannot be mirrored"
    return None


def settle_refusal(moves: Known, record: control_pb2.MoveQueue, key: QueueKey) -> SemelError | None:
    """Why a SETTLE would be refused; None if it would not.

    The admission asks, too, so that the log holds hardly any refused SETTLE: `semel verify` cannot
    tell one whose slice does not fit.
    """
    found = _mirrored(moves, record, key)
    return found if isinstance(found, SemelError) else _slice_refusal(found, record, key)


def _slice_refusal(
    incoming: Incoming, record: control_pb2.MoveQueue, key: QueueKey
) -> SemelError | None:
    if _is_settled(_mirror_of(incoming), record.digest):
        return None  # nothing has changed at the source, or the step is repeated
    if hashlib.sha256(incoming.slice).digest() != record.digest:
        return InvalidRequest(f"the slice of queue {key.queue_id} is incomplete")
    try:
        slice_ = read_slice(incoming.slice)
    except CorruptSegment as error:
        return InvalidRequest(f"the slice of queue {key.queue_id} cannot be read: {error}")
    reason = slice_refusal(slice_.queue) or _misfit(slice_, incoming)
    if reason is None:
        return None
    return InvalidRequest(f"the slice of queue {key.queue_id} does not fit: {reason}")


def _is_settled(mirror: Mirror, digest: bytes) -> bool:
    return bool(mirror.settled) and hashlib.sha256(mirror.settled).digest() == digest


def promoted_slice(data: bytes) -> Slice:
    """The settled slice as it is promoted: nobody holds a lock, and tokens begin far above all that
    the source can have given out."""
    found = read_slice(data)
    found.queue.token_floor += TOKEN_STEP
    for _, _, state in found.groups.states():
        state.owner, state.generation = "", 0  # generations are the controllers'
        state.token += TOKEN_STEP
    return found


def _misfit(found: Slice, incoming: Incoming) -> str | None:
    queue, copied = found.queue, incoming.queue
    if queue.key != copied.key:
        return f"it is that of queue {queue.key}"
    end = queue.log_end_offset
    if end > copied.log_end_offset or not copied.is_extent_edge(end):
        return f"it ends at {end}, and the copy at {copied.log_end_offset}"
    if copied.local_start <= queue.local_start:
        extents = _first_at(copied, end) - _first_at(copied, queue.local_start, whole=False)
        if extents != found.extents:
            return f"it has {found.extents} batches, and the copy {extents}"
    if incoming.delayed.left(found.delayed) is None:
        return f"not all of its {found.delayed.batches} delayed batches are here"
    return None


def _first_at(queue: QueueState, offset: int, *, whole: bool = True) -> int:
    """Ordinal of the first extent at `offset` or above; with `whole` False of the one that covers
    it."""
    extents = queue.extents
    if not len(extents) or offset >= queue.log_end_offset:
        return extents.total
    ordinal = extents.find_offset(offset)
    return ordinal + (whole and extents.base_offset(ordinal) < offset)


def _cut(queue: QueueState, end: int) -> None:
    """Drops what is at `end`, an extent's edge, or above."""
    ordinal = _first_at(queue, end)
    queue.bytes = queue.extents.bytes_before(ordinal)
    queue.extents.cut(ordinal)
    queue.log_end_offset = min(queue.log_end_offset, end)
    queue.log_start_offset = min(queue.log_start_offset, queue.log_end_offset)
    queue.local_start = min(queue.local_start, queue.log_end_offset)


# --- steps --------------------------------------------------------------------------------------


def _alien(
    moves: Known, record: control_pb2.MoveQueue, key: QueueKey, home: Home
) -> SemelError | None:
    """A step of a move, for a queue that is mirrored."""
    return moves.wrong(record, key)


def _mirror_of(incoming: Incoming) -> Mirror:
    """The mirror of a queue that is mirrored."""
    assert incoming.mirror is not None
    return incoming.mirror


def _mirrored(moves: Known, record: control_pb2.MoveQueue, key: QueueKey) -> Incoming | SemelError:
    """The queue, for a step of the program that goes on with it."""
    place, incoming = moves.places.get(key), moves.incoming.get(key)
    if place is None or place.state is not MoveState.MIRRORED or incoming is None:
        return moves.wrong(record, key)
    mirror = _mirror_of(incoming)
    if record.mirror_epoch != mirror.epoch:
        return _fenced(key, record.mirror_epoch, mirror)
    return incoming


def _fenced(key: QueueKey, epoch: int, mirror: Mirror) -> StaleGeneration:
    return StaleGeneration(
        f"another mirror goes on with queue {key.queue_id}, by epoch {mirror.epoch}; this one has"
        f" {epoch}, and ends"
    )


def _begin(
    moves: Known, record: control_pb2.MoveQueue, key: QueueKey, home: Home
) -> SemelError | None:
    create = record.create
    reason = settings_refusal(create.settings)
    if reason is not None:
        return InvalidRequest(f"{create.topic!r}: {reason}")
    settings = QueueSettings.from_message(create.settings, home.feature_level)
    known = moves.incoming.get(key)
    if known is not None and known.mirror is not None:
        mirror = known.mirror
        if record.source != mirror.source:
            return InvalidRequest(
                f"queue {key.queue_id} is a copy of one of cluster {mirror.source}, not"
                f" {record.source}"
            )
        if record.mirror_epoch < mirror.epoch:
            return _fenced(key, record.mirror_epoch, mirror)
        if record.mirror_epoch > mirror.epoch:
            mirror.epoch, known.slice = record.mirror_epoch, b""
        known.queue.alter(settings)
        return None
    if key in home.queues:
        return InvalidRequest(f"queue {key.queue_id} of {create.topic!r} lives here already")
    if key in moves.places:
        return moves.wrong(record, key)
    if not 0 <= create.slot_start < create.slot_end <= SLOTS:
        return InvalidRequest(
            f"queue {key.queue_id} cannot own slots {create.slot_start} to {create.slot_end}"
        )
    incoming = moves.incoming[key] = Incoming(
        QueueState(key, create.topic, create.slot_start, create.slot_end, settings)
    )
    incoming.mirror = Mirror(record.source, record.mirror_epoch)
    moves.set(key, MoveState.MIRRORED, RESTORE_JOB)
    return None


def _floor(incoming: Incoming, record: control_pb2.MoveQueue, key: QueueKey) -> SemelError | None:
    queue = incoming.queue
    if record.offset > queue.log_end_offset:
        queue.begin_at(record.offset)
    else:
        queue.trim(record.offset)
    return None


def _part(incoming: Incoming, record: control_pb2.MoveQueue, key: QueueKey) -> SemelError | None:
    if record.offset == 0:
        incoming.slice = record.part  # another slice, or the same from its beginning
    elif record.offset != len(incoming.slice):
        return InvalidRequest(
            f"byte {record.offset} of the slice of queue {key.queue_id} does not follow the"
            f" {len(incoming.slice)} bytes that are here"
        )
    elif record.offset + len(record.part) > SLICE_BYTES_MAX:
        return InvalidRequest(f"the slice of queue {key.queue_id} is too large")
    else:
        incoming.slice += record.part
    return None


def _settle(incoming: Incoming, record: control_pb2.MoveQueue, key: QueueKey) -> SemelError | None:
    mirror = _mirror_of(incoming)
    refusal = _slice_refusal(incoming, record, key)
    data, incoming.slice = incoming.slice, b""
    if refusal is not None:
        return refusal
    if _is_settled(mirror, record.digest):
        mirror.settled_us = max(mirror.settled_us, record.source_time_us)
        return None
    settled = read_slice(data)
    mirror.settled, mirror.settled_us = data, record.source_time_us
    mirror.settled_end = settled.queue.log_end_offset
    incoming.delayed.drop_below(record.ordinal_to, settled.delayed.table()["ordinal"])
    return None


def _promote(
    moves: Known, record: control_pb2.MoveQueue, key: QueueKey, home: Home
) -> SemelError | None:
    incoming = moves.incoming.get(key)
    mirror = None if incoming is None else incoming.mirror
    if incoming is None or mirror is None:
        place = moves.places.get(key)
        if key in home.queues and place is not None and place.job == RESTORE_JOB:
            return None  # it was promoted before
        return moves.wrong(record, key)
    if not _is_settled(mirror, record.digest):
        return InvalidRequest(f"queue {key.queue_id} has another slice by now: promote that one")
    found = promoted_slice(mirror.settled)
    queue, copied = found.queue, incoming.queue
    arrived = incoming.delayed.arrived(found.delayed, found.origins)
    assert arrived is not None, "it was complete when it settled"
    _cut(copied, queue.log_end_offset)
    copied.trim(queue.local_start)
    queue.extents, queue.bytes = copied.extents, copied.bytes
    queue.log_start_offset = queue.local_start = copied.local_start
    queue.alter(QueueSettings.from_message(record.create.settings, home.feature_level))
    del moves.incoming[key]
    home.queues[key] = queue
    home.producers.adopt(key, found.producers)
    home.groups.adopt(key, found.groups)
    home.delays.adopt(key, *arrived, incoming.delayed.below_ordinal)
    moves.set(key, MoveState.HERE, RESTORE_JOB)
    return None


def _unmirror(
    moves: Known, record: control_pb2.MoveQueue, key: QueueKey, home: Home
) -> SemelError | None:
    incoming = moves.incoming.get(key)
    if incoming is not None and incoming.mirror is not None:
        moves.forget(key)
    return None


def _followed(step: _FollowedStep) -> _Step:
    """The rule of a step that only the program takes which goes on with the queue."""

    def checked(
        moves: Known, record: control_pb2.MoveQueue, key: QueueKey, home: Home
    ) -> SemelError | None:
        found = _mirrored(moves, record, key)
        return found if isinstance(found, SemelError) else step(found, record, key)

    return checked


_Step = Callable[[Known, control_pb2.MoveQueue, QueueKey, Home], SemelError | None]
_FollowedStep = Callable[[Incoming, control_pb2.MoveQueue, QueueKey], SemelError | None]
OWN_STEPS: Final = (
    control_pb2.MOVE_STEP_MIRROR,
    control_pb2.MOVE_STEP_SETTLE,
    control_pb2.MOVE_STEP_PROMOTE,
    control_pb2.MOVE_STEP_UNMIRROR,
)
"""The steps that no move has."""
_STEPS: Final[dict[int, _Step]] = {
    control_pb2.MOVE_STEP_MIRROR: _begin,
    control_pb2.MOVE_STEP_FLOOR: _followed(_floor),
    control_pb2.MOVE_STEP_PART: _followed(_part),
    control_pb2.MOVE_STEP_SETTLE: _followed(_settle),
    control_pb2.MOVE_STEP_PROMOTE: _promote,
    control_pb2.MOVE_STEP_UNMIRROR: _unmirror,
}
