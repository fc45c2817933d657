"""What one broker group knows of a queue that takes part, or took part, in a move or a mirror.

Not here: how the steps of a move change it (`moves.py`), and those of a mirror (`mirrored.py`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Part, Reader, pack_text
from semel.broker.state.apply.delayed_copies import DelayedCopies
from semel.broker.state.apply.queues import QueueState
from semel.protos.levels import DELAYED_MOVE_LEVEL

_COUNT: Final = struct.Struct("<I")
_MIRROR: Final = struct.Struct("<QqqI")


class MoveState(IntEnum):
    """How a broker group relates to a queue that takes part, or took part, in a move."""

    HERE = 1
    """The job is over, and the queue lives here."""
    AWAY = 2
    """The job is over, and the queue lives on the other group."""
    FROZEN = 3
    """Source: the queue is sealed, and this group does not know yet where it will live."""
    INCOMING = 4
    """Target: copies arrive."""
    READY = 5
    """Target: everything has arrived."""
    HELD = 6
    """Source: the queue is copied, and is not compacted meanwhile."""
    MIRRORED = 7
    """Copies arrive from another cluster, until the queue is promoted."""


TAKING: Final = (MoveState.INCOMING, MoveState.MIRRORED)
"""States in which a queue takes copies."""


class Place(NamedTuple):
    """The newest job of a queue, as one broker group knows it."""

    state: MoveState
    job: int
    group_id: int
    """The other broker group."""


class Mirror:
    """All that this group knows of a queue of another cluster besides its copies."""

    __slots__ = ("epoch", "settled", "settled_end", "settled_us", "source")

    def __init__(self, source: str, epoch: int) -> None:
        self.source = source
        """Id of the cluster."""
        self.epoch = epoch
        """The program with this epoch goes on; those with lower ones are refused."""
        self.settled = b""
        """The serialized slice that would be promoted; all that it counts is here. Empty: none."""
        self.settled_end = 0
        """Where the queue ends by it."""
        self.settled_us = 0
        """When it was made, by the source's log time."""

    def parts(self) -> list[bytes]:
        """Canonical bytes."""
        fixed = _MIRROR.pack(self.epoch, self.settled_end, self.settled_us, len(self.settled))
        return [pack_text(self.source) + fixed, self.settled]

    @classmethod
    def read_parts(cls, reader: Reader) -> Mirror:
        """The inverse of `parts`. Raises CorruptSegment."""
        source = reader.text()
        epoch, end, settled_us, length = reader.unpack(_MIRROR)
        mirror = cls(source, epoch)
        mirror.settled_end, mirror.settled_us = end, settled_us
        mirror.settled = bytes(reader.take(length))
        return mirror


class Incoming:
    """A queue on its way here."""

    __slots__ = ("delayed", "mirror", "queue", "slice")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        """Holds the extents of the copies."""
        self.delayed = DelayedCopies()
        self.slice = b""
        """The part of the serialized slice that has arrived."""
        self.mirror: Mirror | None = None
        """Set if it comes from another cluster."""

    def parts(self, version: int) -> list[Part]:
        """Canonical bytes in a state of this version: from DELAYED_MOVE_LEVEL on with copies of
        delayed batches. It has no limits: it gets them with its slice."""
        parts: list[Part] = [*self.queue.parts(version, limits=False)]
        parts += [_COUNT.pack(len(self.slice)), self.slice]
        parts += self.delayed.parts() if version >= DELAYED_MOVE_LEVEL else []
        return [*parts, *([] if self.mirror is None else self.mirror.parts())]

    @classmethod
    def read_parts(cls, reader: Reader, version: int, *, mirrored: bool) -> Incoming:
        """The inverse of `parts`. Raises CorruptSegment."""
        incoming = cls(QueueState.read_parts(reader, version, limits=False))
        incoming.slice = bytes(reader.take(reader.unpack(_COUNT)[0]))
        if version >= DELAYED_MOVE_LEVEL:
            incoming.delayed = DelayedCopies.read_parts(reader)
        if mirrored:
            incoming.mirror = Mirror.read_parts(reader)
        return incoming
