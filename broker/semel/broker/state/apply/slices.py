"""The slice of a queue: everything but its messages, as it is sent when the queue moves.

How it works. A slice holds the queue without its extents, its rows with their windows, the names of
their producers, its consumer groups and its delayed batches with their cancelled rows, each in the
canonical bytes of the state. The messages are copied before, batch by batch. The slice says how
many extents there are, how many bytes they have and where they begin and end, and it names each
delayed batch, so that an incomplete copy is noticed before it takes effect. What the object store
has is not copied: the slice has the pointer to its manifest. How far the queue is compacted, and
what it has lost of what was in memory, is part of the queue's bytes.

Invariants
1. A frozen queue gives the same slice on every node of its group.
2. A queue that was read from a slice gives the same slice again.

Not here: when a queue is frozen and what becomes of a slice (`moves.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from semel.broker.state.apply.codec import Reader, joined
from semel.broker.state.apply.compacted import Compaction
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.extents import Extents
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.moved_origins import Origins, read_origins
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queues import QueueState
from semel.protos.errors import CorruptSegment
from semel.protos.levels import COMPACTED_MOVE_LEVEL
from semel.protos.v1 import control_pb2

SLICE_VERSION: Final = 4
"""Version of the state whose bytes it contains."""
SLICE_WITH_METADATA: Final = 6
"""The version if a consumer group has metadata; broker groups below level 6 cannot read it."""
SLICE_WITH_DELAYED: Final = 8
"""The version if batches are delayed; broker groups below level 8 cannot read it."""
SLICE_WITH_STATE: Final = 9
"""The version if the queue has a manifest, is or was compacted, or is in memory; broker groups
below level 9 cannot read it."""
_WITH_METADATA: Final = (SLICE_WITH_METADATA, SLICE_WITH_DELAYED, SLICE_WITH_STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A slice that was read."""

    queue: QueueState
    """The queue without its extents; its `bytes` is their total length."""
    producers: SequenceTable
    groups: ConsumerGroups
    extents: int
    """How many extents the queue has."""
    delayed: DelayedQueue
    """Its delayed batches, where they are at the source; may be empty."""
    origins: Origins
    """Origins of those that came to the source with an earlier move."""

    def misfit(self, copied: QueueState, *, parts: bool) -> str | None:
        """The first fault of a copy after a trim to where the queue's extents begin; None if it is
        whole.

        Copies are dense and each has its own CRC, so it is enough to compare counts and bounds.
        With `parts`, batches of which messages are cancelled are copied without those: their
        lengths differ.
        """
        queue = self.queue
        if copied.log_end_offset != queue.log_end_offset:
            return f"it ends at {copied.log_end_offset}, not {queue.log_end_offset}"
        copied.trim(queue.local_start)
        found = (copied.local_start, len(copied.extents))
        wanted = (queue.local_start, self.extents)
        if found != wanted:
            return f"it has start and extents {found}, not {wanted}"
        if not parts and copied.bytes != queue.bytes:
            return f"it has {copied.bytes} bytes, not {queue.bytes}"
        if self.extents and copied.last_append_us != queue.last_append_us:
            return f"its newest batch is of {copied.last_append_us}, not {queue.last_append_us}"
        return None


def make_slice(
    queue: QueueState,
    producers: SequenceTable,
    groups: ConsumerGroups,
    delays: Delays,
    level: int = 0,
) -> bytes:
    """The slice of a frozen queue, in a log at feature level `level`."""
    delayed = delays.queues.get(queue.key)
    bare = queue.bare()
    own_groups = groups.only(queue.key)
    version = SLICE_WITH_METADATA if own_groups.has_metadata else SLICE_VERSION
    if delayed is not None:
        version = SLICE_WITH_DELAYED
    compacted = queue.settings.compaction is not None or queue.compaction != Compaction()
    compacted = compacted and level >= COMPACTED_MOVE_LEVEL
    if queue.tier.number or compacted or queue.in_memory:
        version = SLICE_WITH_STATE
    metadata = version in _WITH_METADATA
    return control_pb2.QueueSlice(
        version=version,
        queue=b"".join(bare.parts(_version_of_queue(version))),
        rows=b"".join(producers.only(queue.key).parts()),
        groups=b"".join(own_groups.parts(metadata=metadata)),
        extents=len(queue.extents),
        delayed=b"" if delayed is None else joined(delayed.parts(cancelled=True)),
        delayed_batches=0 if delayed is None else delayed.batches,
        origins=delays.origins.of(queue.key).tobytes() if delayed is not None else b"",
    ).SerializeToString(deterministic=True)


def read_slice(data: bytes) -> Slice:
    """The inverse of `make_slice`. Raises CorruptSegment."""
    try:
        message = control_pb2.QueueSlice.FromString(data)
    except DecodeError as error:
        raise CorruptSegment(f"not a slice of a queue: {error}") from error
    if message.version not in (SLICE_VERSION, *_WITH_METADATA):
        raise CorruptSegment(
            f"a slice of version {message.version}, known are {SLICE_VERSION},"
            f" {', '.join(map(str, _WITH_METADATA))}: upgrade this group"
        )
    queue_reader, rows, groups, delayed = (
        Reader(part) for part in (message.queue, message.rows, message.groups, message.delayed)
    )
    found = Slice(
        queue=QueueState.read_parts(queue_reader, _version_of_queue(message.version)),
        producers=SequenceTable.read_parts(rows),
        groups=ConsumerGroups.read_parts(groups, metadata=message.version in _WITH_METADATA),
        extents=message.extents,
        delayed=(
            DelayedQueue.read_parts(delayed, message.delayed_batches, cancelled=True)
            if message.delayed_batches
            else DelayedQueue()
        ),
        origins=read_origins(message.origins),
    )
    for reader in (queue_reader, rows, groups, delayed):
        reader.finish()
    found.queue.extents = Extents()
    return found


def _version_of_queue(version: int) -> int:
    """The version of the queue's own bytes in a slice of this version."""
    return version if version >= SLICE_WITH_STATE else SLICE_VERSION
