"""A queue of a lost cluster, made of what the object store has of it.

How it works. The facts of a queue have its slice as of some moment (`slices.py`), and name the
manifest that it had then. What lies above that manifest's end was in the brokers alone, and is
lost: the restored queue ends there. `restore_slice` cuts the slice accordingly, and what comes out
is a slice again. It enters the log by the steps of a move (`moves.py`), from nowhere and under the
lowest of all job numbers: so a queue is restored only where there is none, and every step may be
repeated.

A row of the sequence table must say of each sequence what is true now: stored if it is in the
manifest, not stored if it is lost. The windows of the rows have the offsets of the newest batches,
so a row can be cut where the first lost batch is. Where the window does not reach that far, where a
batch was delayed, or where a split hides the offset, nothing can be known: such a row *expires*.
Its producer has to be opened anew, and is told that what it stored last is unknown.

Whoever held a token or an epoch of the lost cluster may still be alive. So tokens and epochs of the
new one begin far above all that the lost one can have given out since the facts were noted.

Invariants
1. No sequence counts as stored whose message is lost, and none as not stored whose message is in
   the manifest, unless its row expires.
2. No group's offset lies above the end.

Not here: facts (`semel.tier`), the steps (`background/queue_restore.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.extents import Extents
from semel.broker.state.apply.id_windows import IdSettings
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queues import QueueSettings
from semel.broker.state.apply.results import ProducerState, WindowEntry
from semel.broker.state.apply.rows import ENTRY, WINDOW_BATCHES, Row
from semel.broker.state.apply.slices import Slice, make_slice, read_slice
from semel.protos.ids import NO_SEQUENCE
from semel.protos.v1 import common_pb2

RESTORE_JOB: Final = 1
"""The job of a restore: controllers give moves numbers above 2**32."""
TOKEN_STEP: Final = 1 << 32
"""More fencing tokens than a group can have been given of a queue since its facts were noted."""


class RestoredSlice(NamedTuple):
    """The cut slice, and what the cut means."""

    slice: bytes
    source: Slice
    """As it was."""
    log_end_offset: int
    producers: int
    """Rows that are left."""
    reopened: int
    """Rows that expire."""
    groups: int
    groups_back: int
    """Groups whose offset lay above the end."""


def restore_slice(
    data: bytes, *, released: bool, ancestors_whole: bool, level: int
) -> RestoredSlice:
    """Cuts a slice at the end of its manifest. Raises CorruptSegment.

    `released` says that messages of the queue may have been delayed and have offsets by now;
    `ancestors_whole`, that nothing is lost of the queues from which it was split. `level` is the
    feature level of the log that is to have the queue.
    """
    found, source = read_slice(data), read_slice(data)
    queue, key = found.queue, found.queue.key
    known_end = queue.log_end_offset
    end = max(queue.tier.end if queue.tier.number else 0, queue.log_start_offset)
    queue.extents, queue.bytes = Extents(), 0
    queue.local_start = queue.log_end_offset = end
    queue.token_floor += TOKEN_STEP

    lossy = end < known_end
    unknown = not ancestors_whole or bool(found.delayed.batches) or (released and lossy)
    rows = SequenceTable()
    reopened = 0
    for row in found.producers.rows(key):
        cut = None if unknown else cut_row(row, end if lossy else None)
        if cut is None:
            reopened += 1
            queue.expired.add(row.producer_id, row.epoch, stored=row.last_sequence != NO_SEQUENCE)
        else:
            rows.create(key, row.producer_id, cut)
            rows.set_name(row.producer_id, row.name)

    groups = back = 0
    for _, _, state in found.groups.states():
        groups += 1
        back += state.committed_offset > end
        state.committed_offset = min(state.committed_offset, end)
        state.owner, state.generation = "", 0  # generations are the controllers', who begin anew
        state.token += TOKEN_STEP
        if lossy:  # it may speak of messages that are lost, by offsets that others will get
            state.metadata, state.metadata_version = b"", 0
    made = make_slice(queue, rows, found.groups, Delays(), level)
    return RestoredSlice(made, source, end, rows.row_count, reopened, groups, back)


def cut_row(row: ProducerState, end: int | None) -> Row | None:
    """The row without what it stored at `end` or above, None: without nothing. Returns None if
    nobody can tell."""
    kept: list[WindowEntry] = []
    for entry in row.window:
        if end is not None and not entry.inherited:
            if entry.base_offset < 0:
                return None  # it was delayed: it may be below the end, or above
            if entry.base_offset + entry.sent > end:
                break
        kept.append(entry)
    if not kept and row.window and len(row.window) == WINDOW_BATCHES:
        return None  # the newest batch that is not lost is older than the window
    last = kept[-1].last_sequence if kept else NO_SEQUENCE
    window = b"".join(
        ENTRY.pack(
            entry.base_sequence,
            entry.last_sequence,
            entry.base_offset,
            entry.count,
            entry.content_crc,
        )
        for entry in kept
    )
    return Row(row.epoch, row.session, row.last_time_us, last_sequence=last, window=window)


def settings_message(settings: QueueSettings, ids: IdSettings | None) -> common_pb2.TopicSettings:
    """The topic's settings, as `QueueSettings.from_message` and `IdSettings.from_message` read
    them; of a topic in the log that is not compacted, as tiered ones are."""
    made = common_pb2.TopicSettings(
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        message_bytes_max=settings.message_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
        delay_per_second_max=settings.delay_per_second_max,
        tier_after_ms=settings.tier_after_ms,
        local_retention_ms=settings.local_retention_ms,
        storage=common_pb2.STORAGE_LOG,
    )
    if ids is not None:
        made.dedup.window_bytes = ids.window_bytes
        made.dedup.keep_ms = max(0, ids.keep_ms)
        made.dedup.keep_first = ids.keep_first
        made.dedup.seed = ids.seed
    return made
