"""The windows of message ids: how far back each topic of this broker group compares ids.

How it works. Every message with an id that a topic stores gets the next *arrival*, a number of its
own. The window is a half-open range of arrivals: ids below its beginning are forgotten. It is
bounded by bytes, optionally also by time, and an EVICT_IDS record moves its beginning. So nodes
agree about what the window holds without comparing a single id; the ids themselves are in the index
of each node (`semel.broker.dedup`), which follows the log.

A message that is cancelled before it is due takes its id with it. The index only grows, so the
window holds the arrivals of *cancelled* ids, and look-ups leave them out. So they do with ids that
are *superseded*: a queue that had left with delayed messages came back, and brings the ids of those
that were not cancelled elsewhere.

A window ends with the last queue of its topic that lives here. If one comes back, another window
begins, with the same seed: its arrivals are above all earlier ones, so that an index of the old
window, which a node may still have, is not taken for that of the new one.

A budget is for the whole topic. This broker group has the part of it that its queues have of the
slots. Log time at which messages arrived is known by *marks*, a few hundred of them in a window.

Invariants
1. `first_arrival <= next_arrival`, and neither falls.
2. Marks rise by arrival and by time. A window has a mark if and only if it has an id; the first one
   is not above its beginning, and says how old the oldest id may be. The second one is above it.
3. Cancelled arrivals are in the window, and rise; so are superseded ones.

Not here: which messages of a batch are duplicates (`state/admission/id_admission.py`), the ids.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.dropped_batches import BatchName, DroppedBatches
from semel.broker.state.apply.results import (
    DROPPED_FLAG,
    IdsChecked,
    IdsEvicted,
    StateDiverged,
)
from semel.protos.dropped import DROPPED
from semel.protos.errors import CorruptSegment
from semel.protos.id_dedup import SEED_BYTES
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import common_pb2, control_pb2

MOVED_ID_BYTES: Final = 40
"""Bytes of one id in an IDS step of a move."""
ID_BYTES: Final = 40
"""What one id counts in a window. The index needs less: 35 bytes on disk."""
MARKS_PER_WINDOW: Final = 512
_MARKS_MAX: Final = 4 * MARKS_PER_WINDOW
_EVICTIONS_PER_WINDOW: Final = 1_024
_COUNT: Final = struct.Struct("<I")
_TOPIC: Final = struct.Struct("<Q")
_COPIED: Final = struct.Struct("<QIQ")
_WAITING: Final = struct.Struct("<QqI")
WINDOW: Final = struct.Struct("<QqqI16sQQQQII")
MARK: Final = struct.Struct("<Qq")
_ENTRY_ARRIVALS: Final = 1 << 24
"""The entries of a log bring fewer ids than so many each: an entry has 8 MiB of messages at most,
and a publication takes what earlier entries have."""
ARRIVAL_BYTES: Final = 8
"""What a cancelled id takes in the state, until the window leaves it behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdSettings:
    """A topic's settings of dedup by id."""

    window_bytes: int
    """The budget of the whole topic; each id counts ID_BYTES."""
    keep_ms: int = -1
    """Ids older than this are forgotten; -1: only the bytes limit the window."""
    keep_first: bool = False
    """A message with a known id and other content is a duplicate, and no conflict."""
    seed: bytes = bytes(SEED_BYTES)
    """The secret of the fingerprints; it never changes while the topic compares ids."""

    @classmethod
    def from_message(cls, message: common_pb2.TopicSettings) -> IdSettings | None:
        """Reads a topic's settings; None if the topic compares no ids."""
        if not message.HasField("dedup"):
            return None
        dedup = message.dedup
        return cls(
            window_bytes=dedup.window_bytes,
            keep_ms=dedup.keep_ms or -1,
            keep_first=dedup.keep_first,
            seed=dedup.seed,
        )


class Mark(NamedTuple):
    """The log time at which an id arrived."""

    arrival: int
    time_us: int


class IdWindow:
    """The window of one topic."""

    __slots__ = (
        "cancelled",
        "conflicts",
        "dropped",
        "duplicates",
        "first_arrival",
        "marks",
        "next_arrival",
        "settings",
        "superseded",
    )

    def __init__(self, settings: IdSettings, first_arrival: int = 0) -> None:
        self.settings = settings
        self.first_arrival = first_arrival
        self.next_arrival = first_arrival
        self.duplicates = 0
        self.conflicts = 0
        self.marks: list[Mark] = []
        self.dropped = DroppedBatches()
        """For the answers to retries."""
        self.cancelled = array("Q")
        """Arrivals whose messages are cancelled, rising: their ids are not known any more."""
        self.superseded = array("Q")
        """Arrivals of delayed messages of a queue that came back, rising: not known either."""

    @property
    def ids(self) -> int:
        """How many ids the window holds."""
        return self.next_arrival - self.first_arrival

    @property
    def logical_bytes(self) -> int:
        """What they count."""
        return self.ids * ID_BYTES

    @property
    def oldest_us(self) -> int | None:
        """A log time that is not after the arrival of the oldest id; None for an empty window."""
        return self.marks[0].time_us if self.ids else None

    def ids_max(self, slots: int) -> int:
        """How many ids the window of a broker group with `slots` of the topic may hold."""
        return max(1, self.settings.window_bytes * slots // (SLOT_COUNT * ID_BYTES))

    def take(
        self, first_arrival: int, ids: int, duplicates: int, conflicts: int, now_us: int
    ) -> None:
        """Takes the ids of a batch in. Raises StateDiverged."""
        if first_arrival != self.next_arrival or min(ids, duplicates, conflicts) < 0:
            raise StateDiverged(
                f"{ids} ids arrive as {first_arrival}; the next one is {self.next_arrival}"
            )
        self.duplicates += duplicates
        self.conflicts += conflicts
        if ids:
            self._mark(now_us)
            self.next_arrival += ids

    def _mark(self, now_us: int) -> None:
        """Notes when the next id arrives, unless the last mark is near enough."""
        ids_max = self.settings.window_bytes // ID_BYTES
        if self.marks and self.ids:
            last = self.marks[-1]
            near = self.next_arrival - last.arrival < max(1, ids_max // MARKS_PER_WINDOW)
            if self.settings.keep_ms >= 0:
                near = near and now_us - last.time_us < (
                    self.settings.keep_ms * 1_000 // MARKS_PER_WINDOW
                )
            if near:
                return
        self.marks.append(Mark(self.next_arrival, now_us))
        if len(self.marks) > _MARKS_MAX:  # the settings were other ones
            del self.marks[1::2]

    def is_cancelled(self, arrival: int) -> bool:
        """Whether the message that arrived so is cancelled."""
        at = bisect_left(self.cancelled, arrival)
        return at < len(self.cancelled) and self.cancelled[at] == arrival

    def is_superseded(self, arrival: int) -> bool:
        """Whether the id that arrived so is superseded."""
        at = bisect_left(self.superseded, arrival)
        return at < len(self.superseded) and self.superseded[at] == arrival

    @property
    def gone(self) -> tuple[array[int], array[int]]:
        """Arrivals that do not count; each sequence rises."""
        return self.cancelled, self.superseded

    def supersede(self, arrivals: bytes) -> None:
        """Forgets ids, of which some may have been left behind or superseded before.

        Raises StateDiverged.
        """
        found = np.frombuffer(arrivals, "<u8")
        if len(found) and int(found.max()) >= self.next_arrival:
            raise StateDiverged(f"ids up to {found.max()} are superseded, not all have arrived")
        found = found[found >= np.uint64(self.first_arrival)]
        merged = np.union1d(np.frombuffer(self.superseded, np.uint64), found)
        self.superseded = array("Q", merged.astype(np.uint64).tobytes())

    def cancel(self, arrival: int) -> None:
        """Forgets the id of a message that is cancelled. Raises StateDiverged."""
        if not self.first_arrival <= arrival < self.next_arrival or self.is_cancelled(arrival):
            raise StateDiverged(
                f"the message that arrived as {arrival} is cancelled; the window is"
                f" [{self.first_arrival}, {self.next_arrival})"
            )
        self.cancelled.insert(bisect_left(self.cancelled, arrival), arrival)

    def evict(self, first_arrival: int) -> int:
        """Moves the beginning of the window, and returns how many ids it left behind.

        Raises StateDiverged.
        """
        if first_arrival > self.next_arrival:
            raise StateDiverged(
                f"ids below {first_arrival} are evicted; the next one is {self.next_arrival}"
            )
        evicted = max(0, first_arrival - self.first_arrival)
        self.first_arrival += evicted
        for arrivals in self.gone:
            del arrivals[: bisect_left(arrivals, self.first_arrival)]
        if not self.ids:
            self.marks.clear()
        else:
            at = bisect_right(self.marks, self.first_arrival, key=lambda mark: mark.arrival)
            del self.marks[: max(0, at - 1)]
        return evicted

    def eviction(self, first_arrival: int, next_arrival: int, slots: int, now_us: int) -> int:
        """Where the window should begin, with the arrivals as they will be once everything in
        flight is applied; `first_arrival` if it is well as it is.

        A window that is too large by a thousandth is left as it is.
        """
        ids_max = self.ids_max(slots)
        target = next_arrival - ids_max
        if target - first_arrival <= ids_max // _EVICTIONS_PER_WINDOW:
            target = first_arrival
        if self.settings.keep_ms >= 0:
            end_us = now_us - self.settings.keep_ms * 1_000
            at = bisect_right(self.marks, end_us, key=lambda mark: mark.time_us)
            if at:
                # Ids from this mark on may be younger, and those before it are older.
                target = max(target, self.marks[at - 1].arrival)
            if self.marks and at == len(self.marks) and self._is_idle(end_us):
                target = self.next_arrival
        return max(target, first_arrival)

    def _is_idle(self, end_us: int) -> bool:
        """Whether the ids since the last mark are too old as well: they arrived within a part of
        the time after it."""
        spread_us = self.settings.keep_ms * 1_000 // MARKS_PER_WINDOW
        return self.marks[-1].time_us + spread_us <= end_us

    def parts(self, topic_id: int, *, superseded: bool) -> list[bytes]:
        """Canonical bytes; `superseded` adds the superseded ids."""
        settings = self.settings
        head = WINDOW.pack(
            topic_id,
            settings.window_bytes,
            settings.keep_ms,
            settings.keep_first,
            settings.seed,
            self.first_arrival,
            self.next_arrival,
            self.duplicates,
            self.conflicts,
            len(self.marks),
            len(self.cancelled),
        )
        marks = [MARK.pack(*mark) for mark in self.marks]
        gone = [_COUNT.pack(len(self.superseded)), self.superseded.tobytes()] if superseded else []
        return [head, *marks, self.cancelled.tobytes(), *self.dropped.parts(), *gone]


class CopiedIds(NamedTuple):
    """How far the ids of a queue on its way here are copied, in arrivals of the source."""

    arrival: int = 0
    """Ids below it are here, but for those of messages that wait."""
    waiting: int = 0
    """Below it, those as well."""
    horizon_us: int = 0
    """The time after which what is due waits; 0 before the first ids have come, and below level 8.
    """
    open: bool = False
    """Those of the queue's delayed messages that this group knows from earlier do not count."""

    @property
    def is_open(self) -> bool:
        """Whether ids may come. Some have, if the log has risen to level 8 meanwhile."""
        return self.open or self.arrival > 0

    def take(self, record: control_pb2.MoveQueue) -> CopiedIds:
        """As it is with the ids of an IDS step."""
        if record.waiting:
            return self._replace(waiting=max(self.waiting, record.ids_to))
        waiting = self.waiting
        if waiting >= record.ids_from:  # nothing was left out below
            waiting = max(waiting, record.waits_from)
        arrival = max(self.arrival, record.ids_to)
        return self._replace(arrival=arrival, waiting=waiting, horizon_us=record.horizon_us)


def arrivals_from(entry: int) -> int:
    """An arrival above all that entries of the log before this one can have brought."""
    return entry * _ENTRY_ARRIVALS


class IdWindows:
    """The windows of all topics that compare ids."""

    __slots__ = ("checked", "copied", "ended", "topics", "version")

    def __init__(self) -> None:
        self.topics: dict[int, IdWindow] = {}
        self.copied: dict[QueueKey, CopiedIds] = {}
        """Queues on their way here."""
        self.ended: set[int] = set()
        """Topics that compared ids before and do not now: whole batches of theirs may have been
        dropped, so their producers' sequences have gaps."""
        self.checked: control_pb2.CheckIds | None = None
        """The decision about the ids of the batch in the next record of the entry; never set
        between entries, so it is no part of the state."""
        self.version = 0
        """Rises whenever a window begins or ends. It is no part of the state either."""

    def configure(self, topic_id: int, settings: IdSettings | None, first_arrival: int = 0) -> None:
        """Begins, changes or ends the window of a topic. A window that begins is empty, and its
        first id will arrive as `first_arrival`: messages that were stored before are not
        compared."""
        window = self.topics.get(topic_id)
        if settings is None:
            if self.topics.pop(topic_id, None) is not None:
                self.ended.add(topic_id)
                self.version += 1
        elif window is None:
            self.topics[topic_id] = IdWindow(settings, first_arrival)
            self.version += 1
            self.ended.discard(topic_id)
        elif settings.seed != window.settings.seed:
            raise StateDiverged(f"the seed of topic {topic_id} has changed")
        else:
            window.settings = settings

    def replace(self, topic_id: int, settings: IdSettings | None) -> None:
        """The same for a topic whose queues have all lived elsewhere meanwhile: its window may have
        ended there, and another one begun."""
        window = self.topics.get(topic_id)
        if window is not None and settings is not None and settings.seed != window.settings.seed:
            del self.topics[topic_id]
        self.configure(topic_id, settings)

    def forget(self, topic_id: int) -> None:
        """The topic has no queue here any more."""
        if self.topics.pop(topic_id, None) is not None:
            self.version += 1
        self.ended.discard(topic_id)

    def may_have_dropped(self, topic_id: int) -> bool:
        """Whether messages of the topic may have been dropped because of their ids."""
        return topic_id in self.topics or topic_id in self.ended

    def check(self, record: control_pb2.CheckIds) -> IdsChecked:
        """Keeps the decision for the batch that follows. Raises StateDiverged."""
        topic_id = record.queue.topic_id
        if topic_id not in self.topics:
            raise StateDiverged(f"topic {topic_id} compares no ids, and a batch of it is checked")
        self.checked = record
        return IdsChecked(topic_id, record.first_arrival, record.ids)

    def take_kept(
        self, queue_key: QueueKey, producer_id: int, base_sequence: int, count: int
    ) -> control_pb2.CheckIds:
        """Counts what was dropped of a batch of a transaction, of which `count` messages are kept,
        and returns the decision about it. The kept ids arrive with its publication.

        Raises StateDiverged.
        """
        record, self.checked = self.checked, None
        window = self.topics.get(queue_key.topic_id)
        if (
            record is None
            or window is None
            or not _fits(record, queue_key, producer_id, base_sequence, count)
            or record.ids
            or record.first_arrival
        ):
            raise _does_not_follow(queue_key, producer_id, base_sequence, count, record)
        window.duplicates += record.duplicates
        window.conflicts += record.conflicts
        return record

    def take(
        self, queue_key: QueueKey, producer_id: int, base_sequence: int, count: int, now_us: int
    ) -> tuple[int, int] | None:
        """Takes the ids of a batch in, of which `count` messages are stored.

        Returns what its row must remember of it, so that a retry is recognised: the number of
        messages that were sent, with DROPPED_FLAG if fewer are stored, and their content CRC. None
        if the topic compares no ids, and for a position mark of a producer, which has no messages
        to decide about. Raises StateDiverged.
        """
        record, self.checked = self.checked, None
        window = self.topics.get(queue_key.topic_id)
        if record is None and (window is None or not count):
            return None
        if (
            record is None
            or window is None
            or not _fits(record, queue_key, producer_id, base_sequence, count)
        ):
            raise _does_not_follow(queue_key, producer_id, base_sequence, count, record)
        window.take(record.first_arrival, record.ids, record.duplicates, record.conflicts, now_us)
        if count == record.count:
            return count, record.content_crc
        name = BatchName(queue_key.queue_id, producer_id, base_sequence)
        window.dropped.remember(name, record.dropped)
        return record.count | DROPPED_FLAG, record.content_crc

    def take_moved(self, record: control_pb2.MoveQueue, now_us: int) -> int:
        """Takes ids of a queue in that is on its way here, even if the move was given up meanwhile,
        and returns how many. Raises StateDiverged."""
        window = self.topics.get(record.queue.topic_id)
        if window is None or window.settings.seed != record.seed:
            raise StateDiverged(f"ids of topic {record.queue.topic_id} come from another window")
        count, rest = divmod(len(record.ids), MOVED_ID_BYTES)
        if rest:
            raise StateDiverged(f"moved ids have {len(record.ids)} bytes")
        window.take(record.first_arrival, count, 0, 0, now_us)
        return count

    def supersede(self, record: control_pb2.MoveQueue) -> None:
        """Forgets ids of a queue that comes back. Raises StateDiverged."""
        window = self.topics.get(record.queue.topic_id)
        if window is not None:
            window.supersede(record.arrivals)

    def cancel(self, topic_id: int, arrival: int) -> None:
        """Forgets the id of a message that is cancelled. Raises StateDiverged."""
        window = self.topics.get(topic_id)
        if window is None:
            raise StateDiverged(
                f"topic {topic_id} compares no ids, and a message of it is cancelled"
            )
        window.cancel(arrival)

    def evict(self, record: control_pb2.EvictIds) -> IdsEvicted:
        """Moves the beginning of a window. Raises StateDiverged."""
        window = self.topics.get(record.topic_id)
        if window is not None:  # the topic may have stopped comparing ids
            window.evict(record.first_arrival)
        return IdsEvicted(record.topic_id, record.first_arrival)

    def parts(self, *, superseded: bool) -> list[bytes]:
        """Canonical bytes: windows by rising topic, then the topics whose windows have ended, then
        how far the ids of incoming queues are copied. `superseded` adds what level 8 knows."""
        parts = [_COUNT.pack(len(self.topics))]
        for topic_id in sorted(self.topics):
            parts += self.topics[topic_id].parts(topic_id, superseded=superseded)
        parts.append(_COUNT.pack(len(self.ended)))
        parts += [_TOPIC.pack(topic_id) for topic_id in sorted(self.ended)]
        parts.append(_COUNT.pack(len(self.copied)))
        for key in sorted(self.copied):
            copied = self.copied[key]
            parts.append(_COPIED.pack(*key, copied.arrival))
            parts += [_WAITING.pack(*copied[1:])] if superseded else []
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, *, superseded: bool) -> IdWindows:
        """The inverse of `parts`. Raises CorruptSegment."""
        windows = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, size, keep_ms, keep_first, seed, *numbers = reader.unpack(WINDOW)
            settings = IdSettings(
                window_bytes=size, keep_ms=keep_ms, keep_first=bool(keep_first), seed=seed
            )
            window = windows.topics[topic_id] = IdWindow(settings)
            window.first_arrival, window.next_arrival = numbers[:2]
            window.duplicates, window.conflicts, marks, cancelled = numbers[2:]
            window.marks = [Mark(*reader.unpack(MARK)) for _ in range(marks)]
            window.cancelled.frombytes(bytes(reader.take(cancelled * ARRIVAL_BYTES)))
            window.dropped = DroppedBatches.read(reader)
            if superseded:
                gone = bytes(reader.take(reader.unpack(_COUNT)[0] * ARRIVAL_BYTES))
                window.superseded.frombytes(gone)
            _check(topic_id, window)
        for _ in range(reader.unpack(_COUNT)[0]):
            windows.ended.add(reader.unpack(_TOPIC)[0])
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, queue_id, arrival = reader.unpack(_COPIED)
            copied = CopiedIds(arrival)
            if superseded:
                waiting, horizon_us, is_open = reader.unpack(_WAITING)
                copied = CopiedIds(arrival, waiting, horizon_us, bool(is_open))
            windows.copied[QueueKey(TopicId(topic_id), QueueId(queue_id))] = copied
        return windows


def _fits(
    record: control_pb2.CheckIds,
    queue_key: QueueKey,
    producer_id: int,
    base_sequence: int,
    count: int,
) -> bool:
    """Whether a decision is about this batch, of which `count` messages are kept."""
    return (
        (record.queue.topic_id, record.queue.queue_id) == queue_key
        and (record.producer_id, record.base_sequence) == (producer_id, base_sequence)
        and record.count == count + record.duplicates + record.conflicts
        and record.ids <= count
        and len(record.dropped) == DROPPED.itemsize * (record.count - count)
    )


def _does_not_follow(
    queue_key: QueueKey,
    producer_id: int,
    base_sequence: int,
    count: int,
    record: control_pb2.CheckIds | None,
) -> StateDiverged:
    return StateDiverged(
        f"batch of {count} from {base_sequence} on of producer {producer_id} in {queue_key} does"
        f" not follow the decision about its ids: {record}"
    )


def _check(topic_id: int, window: IdWindow) -> None:
    first, following = window.first_arrival, window.next_arrival
    if (
        not 0 <= first <= following
        or _falls(window.marks)
        or any(
            gone and any(low >= high for low, high in pairwise((first - 1, *gone, following)))
            for gone in window.gone
        )
    ):
        raise CorruptSegment(f"state holds a malformed window of ids of topic {topic_id}")


def _falls(marks: Iterable[Mark]) -> bool:
    before = Mark(-1, -(1 << 63))
    for mark in marks:
        if mark.arrival <= before.arrival or mark.time_us < before.time_us:
            return True
        before = mark
    return False
