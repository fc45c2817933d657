"""The slice of a queue: everything but its messages, as it is sent when the queue moves.

How it works. A slice holds the queue without its extents, its rows with their windows, the names of
their producers and its consumer groups, each in the canonical bytes of the state. The messages are
copied before, batch by batch. The slice says how many extents there are, how many bytes they have
and where they begin and end, so that an incomplete copy is noticed before it takes effect.

Invariants
1. A frozen queue gives the same slice on every node of its group.
2. A queue that was read from a slice gives the same slice again.

Not here: when a queue is frozen and what becomes of a slice (`moves.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.extents import Extents
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queues import QueueState
from semel.protos.errors import CorruptSegment
from semel.protos.v1 import control_pb2

SLICE_VERSION: Final = 4
"""Version of the state whose bytes it contains."""
SLICE_WITH_METADATA: Final = 6
"""The version if a consumer group has metadata; broker groups below level 6 cannot read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A slice that was read."""

    queue: QueueState
    """The queue without its extents; its `bytes` is their total length."""
    producers: SequenceTable
    groups: ConsumerGroups
    extents: int
    """How many extents the queue has."""

    def misfit(self, copied: QueueState, *, parts: bool) -> str | None:
        """The first fault of a copy after a trim to the queue's start; None if it is whole.

        Copies are dense and each has its own CRC, so it is enough to compare counts and bounds.
        With `parts`, batches of which messages are cancelled are copied without those: their
        lengths differ.
        """
        queue = self.queue
        if copied.log_end_offset != queue.log_end_offset:
            return f"it ends at {copied.log_end_offset}, not {queue.log_end_offset}"
        copied.trim(queue.log_start_offset)
        found = (copied.log_start_offset, len(copied.extents))
        wanted = (queue.log_start_offset, self.extents)
        if found != wanted:
            return f"it has start and extents {found}, not {wanted}"
        if not parts and copied.bytes != queue.bytes:
            return f"it has {copied.bytes} bytes, not {queue.bytes}"
        if self.extents and copied.last_append_us != queue.last_append_us:
            return f"its newest batch is of {copied.last_append_us}, not {queue.last_append_us}"
        return None


def make_slice(queue: QueueState, producers: SequenceTable, groups: ConsumerGroups) -> bytes:
    """The slice of a frozen queue."""
    bare = queue.bare()
    own_groups = groups.only(queue.key)
    metadata = own_groups.has_metadata
    return control_pb2.QueueSlice(
        version=SLICE_WITH_METADATA if metadata else SLICE_VERSION,
        queue=b"".join(bare.parts(lineage=True)),
        rows=b"".join(producers.only(queue.key).parts()),
        groups=b"".join(own_groups.parts(metadata=metadata)),
        extents=len(queue.extents),
    ).SerializeToString(deterministic=True)


def read_slice(data: bytes) -> Slice:
    """The inverse of `make_slice`. Raises CorruptSegment."""
    try:
        message = control_pb2.QueueSlice.FromString(data)
    except DecodeError as error:
        raise CorruptSegment(f"not a slice of a queue: {error}") from error
    if message.version not in (SLICE_VERSION, SLICE_WITH_METADATA):
        raise CorruptSegment(
            f"a slice of version {message.version}, known are {SLICE_VERSION} and"
            f" {SLICE_WITH_METADATA}: upgrade this group"
        )
    queue_reader, rows, groups = (
        Reader(part) for part in (message.queue, message.rows, message.groups)
    )
    found = Slice(
        queue=QueueState.read_parts(queue_reader, lineage=True),
        producers=SequenceTable.read_parts(rows),
        groups=ConsumerGroups.read_parts(groups, metadata=message.version == SLICE_WITH_METADATA),
        extents=message.extents,
    )
    for reader in (queue_reader, rows, groups):
        reader.finish()
    found.queue.extents = Extents()
    return found
