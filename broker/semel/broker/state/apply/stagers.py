"""Stagers and pins of a participant: what they hold, and their canonical bytes.

How it works. A *stager* holds batches of one writer, queue by queue, and progress of consumer
groups. A *pin* names the stagers that win.

Format. docs/formats/state.md.

Not here: the rules (`staging.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader, pack_text
from semel.broker.state.apply.staged_commits import (
    Place,
    StagedCommit,
    pack_commits,
    read_commits,
)
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NO_SEQUENCE, QueueId, QueueKey, TopicId
from semel.protos.levels import DELAY_LEVEL, ID_LEVEL, STAGED_COMMITS_LEVEL

STAGER: Final = struct.Struct("<QQIQqII")
STAGED_QUEUE: Final = struct.Struct("<QIIqQQI")
STAGED_EXTENT: Final = struct.Struct("<qqIIqI")
DUE: Final = struct.Struct("<q")
PIN: Final = struct.Struct("<QQIqI")
DROPPED: Final = struct.Struct("<QQ")
_ID: Final = struct.Struct("<Q")


class StagedExtent(NamedTuple):
    """One staged batch: in the log, and without offsets."""

    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int
    base_sequence: int
    content_crc: int
    due_us: int = 0
    """When its messages are due after the publication; 0 if at once."""


@dataclass(slots=True)
class StagedQueue:
    """The batches that one stager has staged for one queue."""

    session: int
    last_sequence: int = NO_SEQUENCE
    messages: int = 0
    digest: int = 0
    extents: list[StagedExtent] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Total length of its stored batches."""
        return sum(extent.length for extent in self.extents)


@dataclass(slots=True)
class Stager:
    """One writer's attempt at its part of a transaction."""

    stager_id: int
    transaction_id: str
    epoch: int
    writer: int
    ttl_us: int
    expires_us: int
    """Log time at which it ends if it is not pinned."""
    pinned: bool = False
    queues: dict[QueueKey, StagedQueue] = field(default_factory=dict)
    session: int = 0
    """The highest one under which it was opened, from feature level 10 on."""
    commits: dict[Place, StagedCommit] = field(default_factory=dict)
    """Progress of consumer groups, which the publication stores."""

    @property
    def messages(self) -> int:
        """How many messages its batches have."""
        return sum(queue.messages for queue in self.queues.values())

    @property
    def bytes(self) -> int:
        """Total length of its stored batches."""
        return sum(queue.bytes for queue in self.queues.values())


@dataclass(slots=True)
class Pin:
    """The winners of one transaction, which wait for the coordinator's decision."""

    transaction_id: str
    epoch: int
    attempt: int
    coordinator: int
    """The broker group that decides."""
    pinned_us: int
    winners: tuple[int, ...]
    """Stager ids in the order of publication."""
    duplicates: int = 0
    """Messages that were dropped from its batches because their ids were known."""
    conflicts: int = 0
    """Those whose ids were known with other content."""


def pack_stager(stager: Stager, version: int) -> bytes:
    """Returns the canonical bytes of a version of the state."""
    dues = version >= DELAY_LEVEL
    head = STAGER.pack(
        stager.stager_id,
        stager.epoch,
        stager.writer,
        stager.ttl_us,
        stager.expires_us,
        stager.pinned,
        len(stager.queues),
    )
    parts = [head, pack_text(stager.transaction_id)]
    for key in sorted(stager.queues):
        staged = stager.queues[key]
        parts.append(
            STAGED_QUEUE.pack(
                key.topic_id,
                key.queue_id,
                staged.session,
                staged.last_sequence,
                staged.messages,
                staged.digest,
                len(staged.extents),
            )
        )
        for extent in staged.extents:
            parts.append(STAGED_EXTENT.pack(*extent[:-1]))
            if dues:
                parts.append(DUE.pack(extent.due_us))
    if version >= STAGED_COMMITS_LEVEL:
        parts.append(pack_commits(stager.session, stager.commits))
    return b"".join(parts)


def read_stager(reader: Reader, version: int) -> Stager:
    """Returns the stager whose bytes come next. Raises CorruptSegment."""
    dues = version >= DELAY_LEVEL
    number, epoch, writer, ttl_us, expires_us, pinned, count = reader.unpack(STAGER)
    if pinned > 1:
        raise CorruptSegment(f"state has {pinned} where a stager says 0 or 1")
    stager = Stager(number, reader.text(), epoch, writer, ttl_us, expires_us, bool(pinned))
    for _ in range(count):
        topic_id, queue_id, session, last, messages, digest, extents = reader.unpack(STAGED_QUEUE)
        stager.queues[QueueKey(TopicId(topic_id), QueueId(queue_id))] = StagedQueue(
            session,
            last,
            messages,
            digest,
            [
                StagedExtent(*reader.unpack(STAGED_EXTENT), *(reader.unpack(DUE) if dues else ()))
                for _ in range(extents)
            ],
        )
    if version >= STAGED_COMMITS_LEVEL:
        stager.session, stager.commits = read_commits(reader)
    return stager


def pack_pin(pin: Pin, version: int) -> bytes:
    """Returns the canonical bytes of a version of the state."""
    head = PIN.pack(pin.epoch, pin.attempt, pin.coordinator, pin.pinned_us, len(pin.winners))
    if version >= ID_LEVEL:
        head += DROPPED.pack(pin.duplicates, pin.conflicts)
    return head + b"".join(map(_ID.pack, pin.winners)) + pack_text(pin.transaction_id)


def read_pin(reader: Reader, version: int) -> Pin:
    """Returns the pin whose bytes come next. Raises CorruptSegment."""
    epoch, attempt, coordinator, pinned_us, count = reader.unpack(PIN)
    dropped = reader.unpack(DROPPED) if version >= ID_LEVEL else (0, 0)
    winners = tuple(reader.unpack(_ID)[0] for _ in range(count))
    return Pin(reader.text(), epoch, attempt, coordinator, pinned_us, winners, *dropped)
