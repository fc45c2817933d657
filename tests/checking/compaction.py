"""Judges compacted queues by what was stored in them, and by the records of the log.

How it works. What a queue was given is known from the log, whatever compaction did to it since:
each message with its offset. What it holds now is read from a node. So it is plain what must be
there: the newest message of each key, and every message without a key, each at the offset that it
was given. Only a tombstone may be missing: one that is old enough by the records of the log.

Not here: what was stored (`raw_log.py`), reading nodes (`tests/world/tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.v1 import common_pb2, control_pb2
from tests.checking.moves import Did, Job, Journeys, Places
from tests.checking.stored import Queue

Message: TypeAlias = tuple[bytes | None, bytes | None]
"""Key and value."""
Rows: TypeAlias = Mapping[int, Message]
"""Messages by offset."""


@dataclass(slots=True)
class Purges:
    """Up to where tombstones may be gone, by the COMPACT records of a queue."""

    tombstone_us: int
    passes: list[tuple[int, int]] = field(default_factory=list)
    """Offset and log time of the end of each pass."""
    below: int = 0
    """Tombstones below this offset may be gone."""
    ended: int = 0
    """Passes that ended in this log."""

    def on_record(self, record: control_pb2.Compact, time_us: int) -> Iterator[str]:
        """Takes the next record, and yields what is wrong with it."""
        old = [at for at, ended_us in self.passes if ended_us + self.tombstone_us <= time_us]
        if record.tombstones_below > max(old, default=0):
            yield (
                f"tombstones below {record.tombstones_below} are removed at {time_us}, the passes"
                f" were {self.passes}"
            )
        self.below = max(self.below, record.tombstones_below)
        if record.compacted_to:
            self.passes.append((record.compacted_to, time_us))
            self.ended += 1


def purges_of(
    logs: Mapping[int, Mapping[int, bytes]], tombstone_ms: int, problems: list[str]
) -> dict[Queue, Purges]:
    """Reads the COMPACT records of the entries of all broker groups, by group and index. A queue
    that moves has the passes of its source, which keep their age."""
    journeys = Journeys()
    logged = [_Log(frames, Places(group, journeys), tombstone_ms) for group, frames in logs.items()]
    while left := [log for log in logged if log.go_on(problems)]:
        if not any(log.moved_on for log in left):
            problems.append("queues were activated that nobody has sealed")
            break
    found: dict[Queue, Purges] = {}
    for log in logged:
        for queue, purges in log.found.items():
            known = found.setdefault(queue, Purges(purges.tombstone_us))
            known.below = max(known.below, purges.below)
            known.ended += purges.ended
    return found


class _Log:
    """The entries of one broker group."""

    def __init__(self, frames: Mapping[int, bytes], places: Places, tombstone_ms: int) -> None:
        self.found: dict[Queue, Purges] = {}
        self.moved_on = True
        self._tombstone_us = tombstone_ms * 1000
        self._places = places
        self._shifts: dict[Job, int] = {}
        """By how much a source's times are earlier."""
        self._left = [
            (decode_frame_header(frames[index]).time_us, bytes(payload))
            for index in sorted(frames)
            for _, kind, payload in iter_records(frames[index])
            if kind is RecordKind.CONTROL
        ]
        self._left.reverse()

    def go_on(self, problems: list[str]) -> bool:
        """Reads as far as other logs do not have to be read first; whether anything is left."""
        self.moved_on = False
        while self._left:
            time_us, payload = self._left[-1]
            record = control_pb2.ControlRecord.FromString(payload)
            if record.HasField("move_queue"):
                move, luggage = record.move_queue, self._places.journeys.luggage
                job = (int(move.queue.topic_id), int(move.queue.queue_id)), int(move.job)
                if self._places.opens(move) and job not in luggage:
                    return True
                self._on_move(move, job, time_us)
            else:
                self._on_record(record, time_us, problems)
            self._left.pop()
            self.moved_on = True
        return False

    def _on_move(self, move: control_pb2.MoveQueue, job: Job, time_us: int) -> None:
        if move.step == control_pb2.MOVE_STEP_INGEST:
            self._shifts.setdefault(job, time_us - move.source_time_us)
        did, luggage = self._places.on_step(move), self._places.journeys.luggage
        if did is Did.SEALED:
            luggage[job] = list(self._of(job[0]).passes)
        elif did is Did.ACTIVATED:
            came: Any = luggage[job]
            shift_us = self._shifts.get(job, 0)
            self._of(job[0]).passes = [(offset, at + shift_us) for offset, at in came]

    def _on_record(
        self, record: control_pb2.ControlRecord, time_us: int, problems: list[str]
    ) -> None:
        match record.WhichOneof("record"):
            case "create_queue":
                self._places.on_created(_queue(record.create_queue.queue))
            case "delete_queue":
                self._places.on_deleted(_queue(record.delete_queue.queue))
            case "split_queue":
                topic = int(record.split_queue.queue.topic_id)
                for child in record.split_queue.children:
                    self._places.on_created((topic, int(child.queue_id)))
            case "compact":
                queue = _queue(record.compact.queue)
                if not self._places.rests(queue):  # else it has no effect
                    problems += self._of(queue).on_record(record.compact, time_us)

    def _of(self, queue: Queue) -> Purges:
        return self.found.setdefault(queue, Purges(self._tombstone_us))


def _queue(ref: common_pb2.QueueRef) -> Queue:
    return int(ref.topic_id), int(ref.queue_id)


def judge(
    sent: Rows, held: Sequence[tuple[int, Message]], *, start: int, purged: int, compacted_to: int
) -> Iterator[str]:
    """Yields the problems of a queue that was given `sent`, begins at `start` and holds `held`,
    when tombstones below `purged` may be gone."""
    offsets = [offset for offset, _ in held]
    if offsets != sorted(set(offsets)):
        yield f"offsets do not rise: {offsets}"
    for offset, message in held:
        if offset >= start and sent.get(offset) != message:
            yield f"offset {offset} has {message}, {sent.get(offset)} was stored there"
    there = dict(held)
    newest: dict[bytes, int] = {}
    for offset, (key, _) in sorted(sent.items()):
        if key is not None:
            newest[key] = offset
        elif offset >= start and offset not in there:
            yield f"the message at {offset} is gone, and it has no key"
    for key, offset in newest.items():
        if offset < start or offset in there:
            continue
        if sent[offset][1] is None and offset < purged:
            left = [at for at, (other, _) in held if other == key and at >= start]
            if left:
                yield f"the tombstone of {key!r} at {offset} is gone before its messages {left}"
            continue
        yield f"the newest message of {key!r}, at {offset}, is gone"
    seen: dict[bytes, int] = {}
    for offset, (key, _) in held:
        if key is None or not start <= offset < compacted_to:
            continue
        if key in seen:
            yield f"{key!r} has messages at {seen[key]} and {offset}, below {compacted_to}"
        seen[key] = offset


def judge_reading(
    sent: Rows, read: Mapping[bytes, bytes | None], *, start: int, end: int, purged: int
) -> Iterator[str]:
    """Yields the problems of somebody who read the queue from `start` to `end` and has in `read`
    the value of each key that came last. Tombstones below `purged` may have been gone, with their
    messages. Of a key with messages from `end` on any earlier value may be read, or none."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    later = {key for offset, (key, _) in sent.items() if offset >= end}
    read = {key: value for key, value in read.items() if key not in later}
    for offset, (key, value) in sorted(sent.items()):
        if key is not None and key not in later and start <= offset < end:
            newest[key] = offset, value
    for key, (offset, value) in newest.items():
        if key not in read and value is None and offset < purged:
            continue
        if key not in read or read[key] != value:
            yield f"a reader up to {end} ends with {read.get(key)!r} for {key!r}, not {value!r}"
    if more := read.keys() - newest.keys():
        yield f"a reader up to {end} has keys that nobody sent: {more}"
