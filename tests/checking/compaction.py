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
from typing import TypeAlias

from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.v1 import control_pb2
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


def purges_of(
    frames: Mapping[int, bytes], tombstone_ms: int, problems: list[str]
) -> dict[Queue, Purges]:
    """Reads the COMPACT records of a broker group's entries."""
    found: dict[Queue, Purges] = {}
    for index in sorted(frames):
        time_us = decode_frame_header(frames[index]).time_us
        for _, kind, payload in iter_records(frames[index]):
            if kind is not RecordKind.CONTROL:
                continue
            record = control_pb2.ControlRecord.FromString(bytes(payload))
            if record.HasField("compact"):
                ref = record.compact.queue
                queue = ref.topic_id, ref.queue_id
                purges = found.setdefault(queue, Purges(tombstone_ms * 1000))
                problems += purges.on_record(record.compact, time_us)
    return found


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
