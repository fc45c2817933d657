"""Hands the delayed batches of queues that were split to their children.

How it works. While something is delayed, the master looks ten times a second for queues that were
split and still have delayed batches. It takes the first batches of the one whose first batch is due
soonest: about a megabyte, or one batch. A reader thread reads and parts them, and one entry puts
the parts into the children, in the place of the batches. If a message is cancelled meanwhile the
entry is refused, and the batches are read again.

What is due, or will be within `SOON_US`, is parted as fast as it goes, for the children release
nothing that comes after it. The rest has a budget of bytes a second, and half of the time: batches
of a few messages cost more by their number.

Nothing is remembered between entries but what the replicated state holds, so the next master goes
on where this one was.

A batch that cannot be read stops its queue: what comes before it is handed over, and nothing behind
it. `stuck` names it for metrics and `semel doctor`. It goes on once the batch is repaired, or once
an operator gives it up (`server/parting_calls.py`).

Invariants
1. Only what is applied is read.
2. One piece is in memory at a time: its batches and their parts.

Not here: which rows a child gets (`semel.protos.parted_rows`), how an entry is decided and applied
(`state/admission/part_admission.py`, `state/apply/parted.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final, NamedTuple

from semel.broker.background.delayed_release import LOOK_S, QUEUES_MAX
from semel.broker.log import Log
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.state import PARTED_BATCHES_MAX, DelayedExtent, State, rows_crc
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header
from semel.protos.errors import CorruptBatch, CorruptSegment, NotMaster, SemelError, Throttled
from semel.protos.ids import QueueKey
from semel.protos.parted_rows import Heir, part_rows
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1 << 20
"""One entry takes batches of so many bytes, or one larger one."""
PIECE_PARTS: Final = 128
"""And so many parts, or one batch: the loop applies them within some milliseconds."""
BYTES_PER_SECOND: Final = 16 << 20
"""Budget for what is not due soon: it must not take the disk from producers."""
SOON_US: Final = 10_000_000
PAUSE_S: Final = 1.0
"""Pause after an error."""


class Piece(NamedTuple):
    """The next batches of a queue that was split."""

    key: QueueKey
    heirs: tuple[Heir, ...]
    extents: tuple[DelayedExtent, ...]
    cancelled: tuple[tuple[int, ...], ...]
    """The cancelled rows of each."""
    by_id: bool


class Stuck(NamedTuple):
    """The next batch of a queue that was split, which could not be handed over."""

    extent: DelayedExtent
    reason: str


class DelayedParting:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._stuck: dict[QueueKey, Stuck] = {}
        """As the last look found them."""

    @property
    def stuck(self) -> dict[QueueKey, Stuck]:
        """The queues whose next batch this node, as master, could not hand over."""
        if not self._replica.is_master:
            return {}
        held = self._replica.state.delays.queues
        return {
            key: one
            for key, one in self._stuck.items()
            if key in held and held[key].first_place == one.extent[:2]
        }

    @property
    def waiting_batches(self) -> int:
        """Batches of queues that were split which are still to be handed over."""
        delays = self._replica.state.delays
        return sum(delays.queues[key].batches for key in delays.sealed)

    async def run(self) -> None:
        """Ends only by cancellation."""
        replica = self._replica
        while True:
            await replica.applier.delaying.wait()
            await asyncio.sleep(LOOK_S)
            failed: set[QueueKey] = set()
            while replica.is_master and (piece := next_piece(replica.state, failed)) is not None:
                try:
                    await self._part(piece)
                    self._stuck.pop(piece.key, None)
                except Throttled:
                    await asyncio.sleep(LOOK_S)  # messages were cancelled, say: read again
                except NotMaster:
                    break  # the next master does it
                except (SemelError, OSError) as error:
                    failed.add(piece.key)
                    known = self._stuck.get(piece.key)
                    self._stuck[piece.key] = stuck = Stuck(piece.extents[0], str(error))
                    if stuck != known:
                        logger.error(
                            "delayed batches not handed to the children of a split, it is tried"
                            " again queue=%s error=%s",
                            piece.key,
                            error,
                        )
            if failed:
                await asyncio.sleep(PAUSE_S)

    async def _part(self, piece: Piece) -> None:
        replica, loop = self._replica, asyncio.get_running_loop()
        began_s = loop.time()
        record, parts = await replica.in_reader(parts_of(replica.log, piece))
        await replica.submit_control(
            control_pb2.ControlRecord(part_delayed=record), parted=tuple(parts)
        )
        extents = piece.extents[: len(record.batches)]
        until_us = extents[-1].due_us - replica.log_time_us()
        if until_us <= 0:
            replica.release_due(QUEUES_MAX)
        if until_us > SOON_US:
            size = sum(extent.length for extent in extents)
            await asyncio.sleep(max(size / BYTES_PER_SECOND, loop.time() - began_s))


def next_piece(state: State, but_not: Collection[QueueKey] = ()) -> Piece | None:
    """The next batches to part; None if no queue that was split has any, some left aside."""
    delays = state.delays
    wanting = [(delays.queues[key].first_place, key) for key in delays.sealed if key not in but_not]
    if not wanting:
        return None
    _, key = min(wanting)
    queue, children = delays.queues[key], state.queues[key].children
    batches_max = min(PARTED_BATCHES_MAX, max(1, PIECE_PARTS // len(children)))
    extents: list[DelayedExtent] = []
    size = 0
    for extent in islice(queue, batches_max):
        size += extent.length
        if extents and size > PIECE_BYTES:
            break
        extents.append(extent)
    return Piece(
        key=key,
        heirs=tuple(Heir(*child) for child in children),
        extents=tuple(extents),
        cancelled=tuple(tuple(queue.cancelled.rows(extent.ordinal)) for extent in extents),
        by_id=key.topic_id in state.id_windows.topics,
    )


def parts_of(
    log: Log, piece: Piece
) -> Callable[[], tuple[control_pb2.PartDelayed, Sequence[tuple[int, bytes]]]]:
    """Work for a reader thread: the record, and append time and bytes of each part in front of it.

    If a batch cannot be read, the record has those in front of it. It raises CorruptBatch and
    CorruptSegment if that is the first one.
    """

    def work() -> tuple[control_pb2.PartDelayed, Sequence[tuple[int, bytes]]]:
        record = control_pb2.PartDelayed(queue=queue_ref(piece.key))
        found: list[tuple[int, bytes]] = []
        for extent, rows in zip(piece.extents, piece.cancelled, strict=True):
            where = extent.entry, extent.position, extent.length
            try:
                stored = read_batch(log, where, f"a batch that is due at {extent.due_us} is")
                time_us = decode_broker_header(stored).append_time_us
                data = stored[BROKER_HEADER_BYTES:]
                parts = part_rows(data, rows, piece.heirs, by_id=piece.by_id)
            except (CorruptBatch, CorruptSegment):
                if not record.batches:
                    raise
                break
            found += [(time_us, part) for _, part in parts]
            record.batches.add(
                due_us=extent.due_us,
                ordinal=extent.ordinal,
                entry=extent.entry,
                position=extent.position,
                parts=len(parts),
                cancelled=len(rows),
                cancelled_crc=rows_crc(rows),
            )
        return record, found

    return work
