"""Recomputes queues and sequence tables from this node's own log while the node serves.

How it works. One step on the loop copies the facts to check against: each queue's extents up to the
entry asked for, and the digests of the live table. A thread then reads every stored batch and every
entry from disk or cache and feeds the verifiers of `state/verify/`; while messages are being
stored it rests three quarters of the time. Progress and finished queues stream back while it works.

Two tables are compared. The table as of the entry asked for is the same on every node, whatever
came since; the caller compares it between nodes. The table as of the newest applied entry must
equal the live table of this node.

If a topic compares message ids, the whole log that is left is read for them, from its first entry
on, also before the checkpoint at which the tables begin.

Not here: the checks (`state/verify/`), comparing nodes (the client's admin).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from typing import Final

import numpy as np

from semel.broker.compaction import NewestOffsets
from semel.broker.log import IndexUnavailable, Log
from semel.broker.memory import BodyStore
from semel.broker.replica.pools import Courtesy
from semel.broker.replica.replica import Replica
from semel.broker.server.stored_ids import StoredIds
from semel.broker.state import (
    RECORD_BYTES,
    BatchVerifier,
    DelayedExtent,
    Extent,
    QueueReport,
    QueueState,
    State,
    TableVerifier,
)
from semel.broker.state.apply.delayed_block import FrozenBlock, each_extent, thawed
from semel.broker.state.apply.delayed_extent import Rows
from semel.broker.state.apply.expired import Expired
from semel.broker.state.apply.extents import Extents
from semel.broker.state.verify.moved_tables import Entry
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    check_batch,
    decode_header,
)
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import offsets_of_rows
from semel.protos.delays import is_delayed
from semel.protos.errors import CorruptBatch, CorruptSegment, InvalidRequest, StorageError
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

_REPORT_BYTES: Final = 32 << 20
_FRAMES_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A queue as it was when the check began."""

    key: QueueKey
    log_start_offset: int
    """First offset of which the log has extents; only the object store has those below."""
    log_end_offset: int
    expired: Expired
    held: Extents
    """All that it had."""
    extents: tuple[Extent, ...]
    """Those from `log_start_offset` on, once the thread has taken them out."""
    waiting: Sequence[FrozenBlock]
    """Batches without offsets."""
    delayed: Rows
    """The same, once the thread has unpacked them."""
    released: tuple[DelayedExtent, ...]
    """Those that have been given offsets since."""
    cancelled: dict[int, int]
    """How many of their messages are cancelled, by the ordinals of the batches."""
    inherited: dict[int, tuple[int, int]]
    """For a child: epoch and last sequence of each row that its parent ended with."""
    parent_expired: Expired
    """For a child: the producers whose row in the parent has expired."""
    parted: Container[int]
    """For a child: the entries that may have parts of its parent's delayed batches."""
    gaps: bool
    gaps_to: int
    """Compaction may have removed messages below this offset."""
    compacted_to: int
    """Below this offset each key has one message."""
    compactions: int
    """How many records have compacted the queue so far."""
    window_begin: int | None
    """Where the topic's window of message ids begins; None if it compares none."""
    live_table_digest: bytes
    bodies: BodyStore | None
    """Where the bodies are, if the queue is in memory."""
    lost: int
    """How many of its offsets are lost."""


async def verify_queues(
    replica: Replica, keys: Sequence[QueueKey], index: int
) -> AsyncIterator[broker_pb2.VerifyQueuesReply]:
    """Reports on `keys` as of entry `index` (0: the newest applied one), which is applied.

    Raises InvalidRequest when that entry is older than this node can recompute.
    """
    applied = replica.state.applied_index
    index = index or applied
    assert index <= applied
    wanted = [_capture(replica, key) for key in keys]
    loop = asyncio.get_running_loop()
    base = await loop.run_in_executor(replica.pools.scans, _base, replica.log, index)
    replies: asyncio.Queue[broker_pb2.VerifyQueuesReply | None] = asyncio.Queue()
    gone = False

    def report(reply: broker_pb2.VerifyQueuesReply) -> None:
        if gone:
            raise _CallerGone
        loop.call_soon_threadsafe(replies.put_nowait, reply)

    def work() -> None:
        try:
            courtesy = Courtesy(lambda: replica.log.last_index)
            _verify(replica.log, wanted, base, index, applied, courtesy, report)
        except _CallerGone:
            return  # nobody waits for this work any more
        finally:
            loop.call_soon_threadsafe(replies.put_nowait, None)

    working = loop.run_in_executor(replica.pools.scans, work)
    try:
        while (reply := await replies.get()) is not None:
            yield reply
        await working
    finally:
        gone = True


class _CallerGone(Exception):
    """Stop reading."""


def _capture(replica: Replica, key: QueueKey) -> _Wanted:
    state = replica.state
    queue, window = state.queues[key], state.id_windows.topics.get(key.topic_id)
    delayed = state.delays.queues.get(key)
    return _Wanted(
        key=key,
        log_start_offset=queue.local_start,
        log_end_offset=queue.log_end_offset,
        expired=queue.expired.copy(),
        held=queue.extents.copied(),
        extents=(),
        waiting=delayed.frozen() if delayed else (),
        delayed=thawed(()),
        released=(),
        cancelled={
            ordinal: len(rows)
            for ordinal, rows in (delayed.cancelled.batches if delayed else {}).items()
        },
        inherited=_inherited(state, queue),
        parent_expired=_parent_expired(state, queue),
        parted=_parted(state, queue),
        gaps=state.id_windows.may_have_dropped(key.topic_id) or _has_parted(state, queue),
        gaps_to=queue.compaction.gaps_to,
        compacted_to=queue.compaction.compacted_to,
        compactions=queue.compaction.records,
        window_begin=None if window is None else window.first_arrival,
        live_table_digest=state.producers.queue_digest(key),
        bodies=replica.bodies if queue.in_memory else None,
        lost=sum(each.to_offset - each.from_offset for each in queue.lost.ranges),
    )


class _Everything:
    def __contains__(self, entry: object) -> bool:
        return True


def _has_moved(state: State, key: QueueKey) -> bool:
    """Whether it has come from another log, or may have: then it is not known which of its entries
    have parts. Those of batches that were released before it came are noted nowhere."""
    return key in state.moves.places


def _parted(state: State, queue: QueueState) -> Container[int]:
    """The entries in which a child of a split has, or may have, parts of its parent's delayed
    batches. Its own batches are told from them by their sequences, too."""
    if queue.parent is None:
        return frozenset()
    if _has_moved(state, queue.key):
        return _Everything()
    return frozenset(state.delays.origins.of(queue.key)["entry"].tolist())


def _has_parted(state: State, queue: QueueState) -> bool:
    """Whether delayed batches of a queue that was split may be in its children, or the queue is a
    child that has moved away from its parent, whose rows would tell where its chains begin."""
    topic_id = queue.key.topic_id
    if queue.parent is not None and QueueKey(topic_id, QueueId(queue.parent)) not in state.queues:
        return True
    if queue.children and _has_moved(state, queue.key):
        return True
    keys = [QueueKey(topic_id, QueueId(child.queue_id)) for child in queue.children]
    known = state.delays.origins.queues
    return any(key not in state.queues or key in known or _has_moved(state, key) for key in keys)


def _inherited(state: State, queue: QueueState) -> dict[int, tuple[int, int]]:
    """Epoch and last sequence of each row that a child got from its parent.

    The rows of a sealed parent do not change; they only expire.
    """
    if queue.parent is None:
        return {}
    parent = QueueKey(queue.key.topic_id, QueueId(queue.parent))
    rows = state.producers.rows(parent)
    return {row.producer_id: (row.epoch, row.last_sequence) for row in rows if row.window}


def _parent_expired(state: State, queue: QueueState) -> Expired:
    """The producers whose row in a child's parent has expired: what it ended with is not known."""
    if queue.parent is None:
        return Expired()
    parent = state.queues.get(QueueKey(queue.key.topic_id, QueueId(queue.parent)))
    return Expired() if parent is None else parent.expired.copy()


def _base(log: Log, index: int) -> State | None:
    """The state at which recomputing begins: None if the whole log is there, else the newest
    checkpoint's."""
    if log.first_index == 1:
        return None
    checkpoint = log.checkpoint
    if checkpoint is None or checkpoint.index > index:
        at = "none" if checkpoint is None else str(checkpoint.index)
        raise InvalidRequest(
            f"the sequence table as of entry {index} cannot be recomputed: the log begins at "
            f"{log.first_index} and the newest checkpoint is {at}; ask for a newer entry"
        )
    return State.from_bytes(checkpoint.payload)


def _verify(
    log: Log,
    wanted: Sequence[_Wanted],
    base: State | None,
    index: int,
    applied: int,
    courtesy: Courtesy,
    report: Callable[[broker_pb2.VerifyQueuesReply], None],
) -> None:
    """Runs in a thread of its own."""
    wanted = [_with_extents(one, courtesy) for one in wanted]
    total = sum(extent.length for one in wanted for extent in one.extents)
    total += sum(int(one.delayed["length"].sum(dtype=np.int64)) for one in wanted)
    table = TableVerifier(base)
    digests: dict[QueueKey, bytes] = {}
    windows: dict[QueueKey, dict[int, list[Entry]]] = {}
    broken: list[str] = []
    late: Counter[QueueKey] = Counter()
    """How many delayed messages were cancelled after entry `index`, or handed to children: they
    count as delayed."""
    ids = _stored_ids(log, wanted, table.index, courtesy)
    try:
        for frame in _frames(log, table.index + 1, index + 1, courtesy):
            table.feed(frame)
            if ids is not None:
                ids.feed(frame)
        digests = {one.key: table.queue_digest(one.key) for one in wanted}
        wanted = [_cut(log, one, table.log_end_offset(one.key), index) for one in wanted]
        windows = {one.key: table.windows(one.key) for one in wanted}
        cancelled_before, parted_before = Counter(table.cancelled), Counter(table.parted)
        for frame in _frames(log, index + 1, applied + 1, courtesy):
            table.feed(frame)
        for (key, entry), count in (table.cancelled - cancelled_before).items():
            late[key] += count if entry <= index else 0
        for (key, entry), count in (table.parted - parted_before).items():
            late[key] += count if entry <= index else 0
    except StorageError as error:
        broken.append(f"the sequence table cannot be recomputed: {error}")
    twice = {} if ids is None else ids.finish()
    id_problems = [] if ids is None else ids.problems
    done = reported = 0

    def progress(length: int) -> None:
        nonlocal done, reported
        courtesy.maybe_rest()
        done += length
        if done - reported >= _REPORT_BYTES:
            reported = done
            report(broker_pb2.VerifyQueuesReply(bytes_read=done, bytes_total=total, index=index))

    for one in wanted:
        found = _read_queue(log, one, windows.get(one.key, {}), progress)
        problems = [*found.problems, *table.problems, *id_problems, *broken]
        queue = broker_pb2.VerifiedQueue(
            queue=queue_ref(one.key),
            log_start_offset=found.log_start_offset,
            log_end_offset=found.log_end_offset,
            messages=found.messages,
            duplicates=found.duplicates,
            missing=found.missing,
            digest=found.digest,
            table_digest=digests.get(one.key, b""),
            table_matches=(not broken and table.queue_digest(one.key) == one.live_table_digest),
            problems=problems,
            delayed=found.delayed + late[one.key],
            id_duplicates=twice.get(one.key, 0),
            compactions=one.compactions,
            lost=one.lost,
        )
        report(
            broker_pb2.VerifyQueuesReply(
                bytes_read=done, bytes_total=total, index=index, queues=[queue]
            )
        )


def _with_extents(one: _Wanted, courtesy: Courtesy) -> _Wanted:
    """With `extents` taken out of `held`, and `delayed` out of what waits."""
    extents: list[Extent] = []
    if one.log_start_offset < one.log_end_offset:
        begin = one.held.find_offset(one.log_start_offset)
        for extent in one.held.read(begin, one.log_end_offset):
            extents.append(extent)
            courtesy.maybe_rest()
    return replace(one, extents=tuple(extents), delayed=thawed(one.waiting), waiting=())


def _stored_ids(
    log: Log, wanted: Sequence[_Wanted], index: int, courtesy: Courtesy
) -> StoredIds | None:
    """The ids of the entries that the log still has up to `index`; None if no topic compares
    ids."""
    begins = {
        int(one.key.topic_id): one.window_begin for one in wanted if one.window_begin is not None
    }
    if not begins:
        return None
    read = partial(_published, log)
    found = StoredIds(begins, secrets.token_bytes(16), read)
    try:
        for frame in _frames(log, log.first_index, index + 1, courtesy):
            found.feed(frame)
    except StorageError:  # cleaned meanwhile, or damaged: it begins at the checkpoint
        found = StoredIds(begins, secrets.token_bytes(16), read)
    return found


def _published(log: Log, entry: int, position: int, length: int) -> bytes | None:
    """A batch that a transaction has published; None if it was trimmed since, or is damaged: then
    the queue's verifier misses its messages."""
    try:
        return bytes(log.read_record(entry, position, length))
    except (StorageError, IndexUnavailable, InvalidRequest):
        return None


def _cut(log: Log, one: _Wanted, end: int, index: int) -> _Wanted:
    """The queue as it was at entry `index`, when it ended at `end`.

    The entry of an extent does not tell when the extent got its offsets: a transaction publishes
    batches that were stored before, and delayed batches are released later.
    """
    end = max(end, one.log_start_offset)
    extents = tuple(extent for extent in one.extents if extent.base_offset < end)
    released: list[DelayedExtent] = []
    cancelled = dict(one.cancelled)
    # A batch with cancelled messages has one extent for each stretch that is left.
    later = one.extents[len(extents) :] if one.bodies is None else ()
    for place, group in groupby(later, _record_of):
        parts = list(group)
        if parts[0].index <= index and (batch := _delayed(log, parts[0])):
            ordinal = -1 - len(released)
            released.append(DelayedExtent(batch.deliver_at_us, ordinal, *place, batch.count))
            cancelled[ordinal] = batch.count - sum(extent.count for extent in parts)
    return replace(
        one,
        log_end_offset=end,
        extents=extents,
        delayed=one.delayed[one.delayed["entry"] <= index],
        released=tuple(released),
        cancelled=cancelled,
    )


def _record_of(extent: Extent) -> tuple[int, int, int]:
    return extent.index, extent.position, extent.length


def _delayed(log: Log, extent: Extent) -> BatchHeader | None:
    """The header of a delayed batch; None for one that was not delayed, or is unreadable."""
    try:
        stored = log.read_record(extent.index, extent.position, extent.length)
        batch = decode_header(bytes(stored), BROKER_HEADER_BYTES)
    except (StorageError, IndexUnavailable, CorruptBatch):
        return None
    return batch if is_delayed(batch) else None


def _read_queue(
    log: Log,
    one: _Wanted,
    windows: dict[int, list[Entry]],
    progress: Callable[[int], None],
) -> QueueReport:
    verifier = BatchVerifier(
        one.key,
        one.log_start_offset,
        one.log_end_offset,
        expired=one.expired,
        inherited=one.inherited,
        parent_expired=one.parent_expired,
        gaps=one.gaps,
        gaps_to=one.gaps_to,
    )
    newest = NewestOffsets(secrets.token_bytes(16), 1 << 62)
    for extent in one.extents:
        if one.bodies is not None:
            _feed_headers(log, verifier, extent, one.bodies)
            progress(extent.length)
            continue
        try:
            stored = bytes(log.read_record(extent.index, extent.position, extent.length))
        except (StorageError, IndexUnavailable):
            continue  # the verifier counts the offsets as missing
        verifier.feed(
            extent.base_offset,
            extent.count,
            stored,
            extent.first_row,
            extent.append_time_us,
            parts=extent.index in one.parted,
        )
        if extent.base_offset < one.compacted_to:
            _add_keys(newest, extent, stored)
        progress(extent.length)
    for delayed in chain(each_extent(one.delayed), one.released):
        try:
            stored = bytes(log.read_record(delayed.entry, delayed.position, delayed.length))
        except (StorageError, IndexUnavailable) as error:
            verifier.miss_delayed(delayed.entry, delayed.messages, str(error))
            continue
        cancelled = one.cancelled.get(delayed.ordinal, 0)
        parts = delayed.entry in one.parted
        verifier.feed_delayed(delayed.entry, delayed.messages, stored, cancelled, parts=parts)
        progress(delayed.length)
    verifier.hold_against(windows)
    found = verifier.finish()
    if older := newest.older:
        text = f"{older} messages below {one.compacted_to} have newer ones of their keys there"
        found = replace(found, problems=(*found.problems, text))
    return found


def _feed_headers(log: Log, verifier: BatchVerifier, extent: Extent, bodies: BodyStore) -> None:
    """Feeds the headers of a batch in memory from the log, and its body if it is here."""
    try:
        headers = bytes(log.read_record(extent.index, extent.position, RECORD_BYTES))
    except (StorageError, IndexUnavailable):
        return  # the verifier counts the offsets as missing
    held = bodies.get(extent.index, extent.position)
    verifier.feed_headers(extent.base_offset, extent.count, headers, held, extent.append_time_us)


def _add_keys(newest: NewestOffsets, extent: Extent, stored: bytes) -> None:
    """Adds the keys of a compacted part's batch, unless it is damaged, which is told elsewhere."""
    try:
        data = stored[BROKER_HEADER_BYTES:]
        batch = check_batch(data)
        if not batch.flags & BatchFlags.POSITION_MARK:
            columns = decode_columns(data, batch)
            rows = extent.base_offset, extent.first_row, extent.count
            newest.add(columns, offsets_of_rows(columns, *rows))
    except CorruptBatch:
        return


def _frames(log: Log, lo: int, hi: int, courtesy: Courtesy) -> Iterator[bytes]:
    """Frames of the entries `[lo, hi)`. Raises CorruptSegment."""
    while lo < hi:
        try:
            end = log.fit(lo, hi, _FRAMES_BYTES)
            frames = log.read_frames(lo, end)
        except IndexUnavailable as error:
            raise CorruptSegment(f"entries were cleaned while they were read: {error}") from None
        for frame in frames:
            yield frame
            courtesy.maybe_rest()
        lo = end
