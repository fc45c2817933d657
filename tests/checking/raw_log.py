"""Derives the content of the nodes' logs from their raw frames alone.

How it works. The frames of all nodes are laid over each other: up to a node's commit index its
frame of an index must be the same as everybody's. The union is read from index 1 to the highest
commit, batch by batch, into rows with their offsets, with plain dicts and none of the broker's
rules: only the format's decoders are shared.

Each broker group has a log of its own. `fold_groups` reads them side by side: where a queue that
has moved is activated, a log waits until the other one has sealed it, and goes on with the rows and
the end that the queue had there. `merged` joins the results of all groups: a queue has there what
it had in each group, one behind the other.

Invariants checked here
1. Frames are byte-identical up to the commit; indexes are dense, terms never fall.
2. Offsets of a queue are dense and rise, every CRC holds.
3. Per (queue, producer): incarnations never go back, and every batch is chained to the one before.
   Only a fence makes a row, or a split, which copies the parent's. A queue that was split gets
   nothing more.
4. A queue is of one group at a time, which alone stores batches, fences and expiries of it; copies
   are what the other group stored, byte for byte, all of it; moves are decided once (`moves.py`).

Not here: what clients saw (`exactly_once.py`), what the nodes say their states are (`states.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    check_batch,
    decode_broker_header,
    decode_header,
)
from semel.protos.delays import is_delayed
from semel.protos.errors import CorruptBatch, CorruptFrame
from semel.protos.frames import RecordKind, check_frame, iter_records
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2
from tests.checking.delays import Delayed, DelayedBatch, Waiting
from tests.checking.moves import Did, Job, Journeys, Places
from tests.checking.staged import Staged, StagedBatch
from tests.checking.stored import Queue, Row, Stored, rows_of, stored, stored_part

Table: TypeAlias = dict[tuple[Queue, int], tuple[int, int, int]]
"""(epoch, session, last sequence) by queue and producer id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """One node at the end of a run."""

    node: int
    frames: Mapping[int, bytes]
    """Whole frames by index; any range."""
    commit_index: int
    applied_index: int = 0
    state: bytes | None = None
    """Canonical bytes of its state at `applied_index`."""
    group: int = 1
    """Its broker group."""


@dataclass(slots=True)
class Producer:
    epoch: int
    session: int
    last: int


@dataclass(frozen=True, slots=True)
class Luggage:
    """The things that a sealed queue takes along."""

    end_offset: int
    append_us: int
    expired: set[int]
    rows: dict[int, Producer]
    waiting: Waiting


@dataclass(slots=True)
class Fold:
    """The content of a committed log."""

    last_index: int = 0
    rows: list[Row] = field(default_factory=list)
    end_offsets: dict[Queue, int] = field(default_factory=dict)
    start_offsets: dict[Queue, int] = field(default_factory=dict)
    append_us: dict[Queue, int] = field(default_factory=dict)
    """Append time of each queue's newest message."""
    topics: dict[int, str] = field(default_factory=dict)
    """Names by topic id."""
    producers: dict[tuple[Queue, int], Producer] = field(default_factory=dict)
    expired: set[tuple[Queue, int]] = field(default_factory=set)
    """Producers whose row has ended in a queue, ever."""
    commits: set[tuple[str, Queue, int, int]] = field(default_factory=set)
    """(group, queue, token, offset) of every commit record, granted or not."""
    resets: set[tuple[str, Queue]] = field(default_factory=set)
    tables: dict[int, Table] = field(default_factory=dict)
    """The sequence table at the indexes asked for."""
    parents: dict[Queue, Queue] = field(default_factory=dict)
    """The parent of each queue that a split made."""
    problems: list[str] = field(default_factory=list)
    places: Places | None = None
    """Effects of moves on this group's queues, in a cluster with several broker groups."""
    batches: dict[tuple[Queue, int], Stored] = field(default_factory=dict)
    """Stored batches by queue and base offset; only where queues move."""
    copies: list[tuple[Queue, int, tuple[Stored, Stored]]] = field(default_factory=list)
    """Each as a whole, and as what a part of a batch becomes."""
    staged: Staged = field(default_factory=Staged)
    """Batches that transactions have staged."""
    delayed: Delayed = field(default_factory=Delayed)

    def lineage(self, queue: Queue) -> list[Queue]:
        """The queue behind those it descends from, the oldest first."""
        found = [queue]
        while found[0] in self.parents:
            found.insert(0, self.parents[found[0]])
        return found


def overlay(logs: Sequence[NodeLog], problems: list[str]) -> dict[int, bytes]:
    """The committed frames by index; what differs between nodes is a problem."""
    union: dict[int, bytes] = {}
    owner: dict[int, int] = {}
    for log in logs:
        for index, frame in log.frames.items():
            if index > log.commit_index:
                continue
            if union.setdefault(index, frame) != frame:
                problems.append(
                    f"entry {index} is committed with other bytes on node {log.node} than on "
                    f"node {owner[index]}"
                )
            owner.setdefault(index, log.node)
    return union


def fold(frames: Mapping[int, bytes], tables_at: Collection[int] = ()) -> Fold:
    """Applies the committed frames of one broker group, which must be all from index 1 on."""
    result = Fold()
    for _ in _fold(result, frames, tables_at):
        pass
    return result


def fold_groups(
    logs: Mapping[int, tuple[Mapping[int, bytes], Collection[int]]],
    restored: Mapping[Job, Luggage] | None = None,
) -> dict[int, Fold]:
    """Applies the committed frames of several groups, each with the indexes to keep tables of.
    `restored` is what queues of a lost cluster have brought."""
    journeys = Journeys()
    for job, luggage in (restored or {}).items():
        journeys.luggage[job] = luggage
        journeys.note(0, job, Did.SEALED)
    folds = {group: Fold(places=Places(group, journeys)) for group in logs}
    running = {group: _fold(folds[group], *log) for group, log in logs.items()}
    while running:
        progress = False
        for group in list(running):
            before = folds[group].last_index
            if next(running[group], "end") == "end":
                del running[group]
                progress = True
            progress |= folds[group].last_index > before
        if not progress:
            for group in running:
                folds[group].problems.append(
                    f"entry {folds[group].last_index + 1} of group {group} activates a queue that"
                    " no other group has sealed"
                )
            break
    else:
        problem = journeys.problem()
        if problem:
            next(iter(folds.values())).problems.append(problem)
    return folds


def merged(folds: Mapping[int, Fold]) -> Fold:
    """Joins the results of several groups: a queue's offsets go on where they were before it
    moved."""
    result = Fold()
    for group, one in folds.items():
        result.last_index += one.last_index
        result.rows += one.rows
        for queue, end in one.end_offsets.items():
            result.end_offsets[queue] = max(result.end_offsets.get(queue, 0), end)
        for queue, start in one.start_offsets.items():
            result.start_offsets[queue] = max(result.start_offsets.get(queue, 0), start)
        result.expired |= one.expired
        result.commits |= one.commits
        result.resets |= one.resets
        result.parents |= one.parents
        result.topics |= one.topics
        result.batches |= one.batches
        result.problems += [f"group {group}: {problem}" for problem in one.problems]
    result.rows.sort(key=lambda row: (row.queue, row.offset))
    for group, one in folds.items():
        for queue, base_offset, copy in one.copies:
            found = result.batches.get((queue, base_offset))
            if found not in copy:
                result.problems.append(
                    f"group {group}: the copy of queue {queue} at {base_offset} is {copy}, and was"
                    f" stored as {found}"
                )
    return result


def _fold(result: Fold, frames: Mapping[int, bytes], tables_at: Collection[int]) -> Iterator[None]:
    """Yields as long as the next entry needs what another group's log says."""
    term = 0
    for index in range(1, max(frames, default=0) + 1):
        frame = frames.get(index)
        if frame is None:
            result.problems.append(f"committed entry {index} is on no node")
            return
        try:
            header = check_frame(frame)
        except CorruptFrame as error:
            result.problems.append(f"entry {index}: {error.message}")
            return
        if header.index != index or header.term < term:
            result.problems.append(
                f"entry {index} says index {header.index} and term {header.term} after {term}"
            )
        term, checked = header.term, False
        parts: list[DelayedBatch] = []
        for _, kind, payload in iter_records(frame):
            kept, checked = checked, False
            if kind in (RecordKind.BATCH, RecordKind.MEMORY):
                _fold_batch(result, index, payload, bare=kind is RecordKind.MEMORY)
            elif kind is RecordKind.STAGED:
                _fold_staged(result, index, payload, kept=kept)
            elif kind in (RecordKind.COPY, RecordKind.MEMORY_COPY):
                _fold_copy(result, index, payload)
            elif kind is RecordKind.PARTED:
                _fold_part(result, index, payload, parts)
            elif kind is RecordKind.CONTROL:
                control = control_pb2.ControlRecord.FromString(bytes(payload))
                if control.HasField("part_delayed"):
                    _fold_parted(result, control.part_delayed, parts)
                    parts = []
                while _waits(result, control):
                    yield
                checked = control.HasField("check_ids")
                _fold_control(result, control, header.time_us)
        if parts:
            result.problems.append(f"entry {index}: parts of no delayed batch")
        result.last_index = index
        if index in tables_at:
            result.tables[index] = {
                key: (row.epoch, row.session, row.last) for key, row in result.producers.items()
            }


def _fold_batch(result: Fold, index: int, payload: memoryview, *, bare: bool) -> None:
    """A batch of a topic in memory is `bare`: it has no body, so its messages are not known."""
    try:
        placed = decode_broker_header(payload)
        check = decode_header if bare else check_batch
        header = check(payload, BROKER_HEADER_BYTES)
    except CorruptBatch as error:
        result.problems.append(f"entry {index}: {error.message}")
        return
    queue = (int(header.topic_id), int(header.queue_id))
    who = f"producer {header.producer_id} in queue {queue}, entry {index}"
    row = result.producers.get((queue, header.producer_id))
    if queue in result.parents.values():
        result.problems.append(f"{who}: a batch after the queue was split")
    _check_home(result, queue, "a batch")
    if row is None:
        result.problems.append(f"{who}: a batch without a fence")
    elif (header.epoch, header.session) != (row.epoch, row.session):
        result.problems.append(
            f"{who}: a batch of incarnation {(header.epoch, header.session)} after a fence of "
            f"{(row.epoch, row.session)}"
        )
    elif header.previous_sequence != row.last or header.base_sequence <= row.last:
        result.problems.append(
            f"{who}: sequences {header.base_sequence} to {header.last_sequence} behind "
            f"{header.previous_sequence}, the queue has {row.last}"
        )
    if row is not None:
        row.last = max(row.last, header.last_sequence)
    if header.flags & BatchFlags.POSITION_MARK:
        return
    batch = bytes(payload[BROKER_HEADER_BYTES:])
    expected = -1 if is_delayed(header) else result.end_offsets.get(queue, 0)
    if placed.base_offset != expected:
        result.problems.append(f"{who}: base offset {placed.base_offset}, not {expected}")
    if is_delayed(header):
        result.delayed.on_batch(DelayedBatch(header, batch, index))
        return
    if bare:
        result.end_offsets[queue] = placed.base_offset + header.count
        return
    _store(result, queue, placed.base_offset, placed.append_time_us, header, batch, index)


def _fold_staged(result: Fold, index: int, payload: memoryview, *, kept: bool) -> None:
    try:
        header = check_batch(payload, BROKER_HEADER_BYTES)
    except CorruptBatch as error:
        result.problems.append(f"entry {index}: {error.message}")
        return
    if (int(header.topic_id), int(header.queue_id)) in result.parents.values():
        return  # refused when it is applied, as one that is sent twice
    batch = StagedBatch(header, bytes(payload[BROKER_HEADER_BYTES:]), index)
    result.problems += result.staged.on_batch(batch, kept=kept)


def _fold_published(
    result: Fold, record: transaction_records_pb2.PublishTransaction, time_us: int
) -> None:
    for found in result.staged.publish(record):
        if isinstance(found, str):
            result.problems.append(found)
            continue
        queue, base_offset, batches = found
        _check_home(result, queue, "a publication")
        expected = result.end_offsets.get(queue, 0)
        if base_offset != expected:
            result.problems.append(
                f"{record.transaction_id} is published in {queue} at {base_offset}, not {expected}"
            )
        if queue in result.parents.values():
            result.problems.append(f"{record.transaction_id} is published after {queue} was split")
        append_us = _append_us(result, queue, time_us)
        for batch in batches:
            if is_delayed(batch.header):
                result.delayed.on_batch(DelayedBatch(batch.header, batch.body, batch.index))
                continue
            _store(result, queue, base_offset, append_us, batch.header, batch.body, batch.index)
            base_offset += batch.header.count


def _fold_released(result: Fold, record: control_pb2.ReleaseDelayed, time_us: int) -> None:
    queue = _queue(record.queue)
    where = f"entry {result.last_index + 1}"
    _check_home(result, queue, "a release")
    expected = result.end_offsets.get(queue, 0)
    if record.base_offset != expected or queue in result.parents.values():
        result.problems.append(
            f"{where}: delayed messages of {queue} are released at {record.base_offset}, not"
            f" {expected}, or after it was split"
        )
    base_offset, append_us = record.base_offset, _append_us(result, queue, time_us)
    for found in result.delayed.release(record, time_us):
        if isinstance(found, str):
            result.problems.append(f"{where}: {found}")
            continue
        batch, rows = found
        where_from = batch.header, batch.body, batch.index
        _store(result, queue, base_offset, append_us, *where_from, rows)
        base_offset += len(rows)


def _fold_cancelled(result: Fold, record: control_pb2.CancelDelayed, time_us: int) -> None:
    _check_home(result, _queue(record.queue), "a cancellation")
    if wrong := result.delayed.cancel(record, time_us):
        result.problems.append(f"entry {result.last_index + 1}: {wrong}")


def _fold_part(result: Fold, index: int, payload: memoryview, parts: list[DelayedBatch]) -> None:
    try:
        placed = decode_broker_header(payload)
        header = check_batch(payload, BROKER_HEADER_BYTES)
    except CorruptBatch as error:
        result.problems.append(f"entry {index}: {error.message}")
        return
    _check_home(result, (int(header.topic_id), int(header.queue_id)), "a part")
    if placed.base_offset != -1 or not is_delayed(header):
        result.problems.append(f"entry {index}: {header} is no part of a delayed batch")
    parts.append(DelayedBatch(header, bytes(payload[BROKER_HEADER_BYTES:]), index))


def _fold_parted(result: Fold, record: control_pb2.PartDelayed, parts: list[DelayedBatch]) -> None:
    where = f"entry {result.last_index + 1}"
    result.problems += [f"{where}: {each}" for each in result.delayed.part(record, parts)]


def _append_us(result: Fold, queue: Queue, time_us: int) -> int:
    """The append time of messages that get their offsets in an entry of this time: never before the
    newest message, which may have been dated, before a move, by a group whose clock was ahead."""
    return max(time_us, result.append_us.get(queue, 0))


def _store(
    result: Fold,
    queue: Queue,
    base_offset: int,
    append_us: int,
    header: BatchHeader,
    batch: bytes,
    index: int,
    rows: range | None = None,
) -> None:
    """The batch's messages, or those of `rows`, are those of the queue from the offset on."""
    result.append_us[queue] = append_us
    chosen = range(header.count) if rows is None else rows
    if result.places is not None:
        whole = len(chosen) == header.count
        result.batches[queue, base_offset] = (
            stored(batch, append_us) if whole else stored_part(batch, header, chosen, append_us)
        )
    result.rows += rows_of(queue, base_offset, header, batch, chosen, index)
    result.end_offsets[queue] = base_offset + len(chosen)


def _fold_control(result: Fold, control: control_pb2.ControlRecord, time_us: int) -> None:
    """Every fence and expiry in the log counts: admission refuses before it proposes."""
    match control.WhichOneof("record"):
        case "fence":
            fence = control.fence
            for ref in fence.queues:
                key = (_queue(ref), fence.producer_id)
                _check_home(result, key[0], "a fence")
                row = result.producers.setdefault(key, Producer(0, -1, -1))
                if (fence.epoch, fence.session) < (row.epoch, row.session):
                    result.problems.append(
                        f"fence of {(fence.epoch, fence.session)} after "
                        f"{(row.epoch, row.session)} for producer and queue {key}"
                    )
                row.epoch, row.session = fence.epoch, fence.session
        case "transaction" if control.transaction.HasField("publish"):
            _fold_published(result, control.transaction.publish, time_us)
        case "transaction":
            result.staged.on_step(control.transaction)
        case "release_delayed":
            _fold_released(result, control.release_delayed, time_us)
        case "cancel_delayed":
            _fold_cancelled(result, control.cancel_delayed, time_us)
        case "create_queue":
            queue = _queue(control.create_queue.queue)
            result.topics[queue[0]] = control.create_queue.topic
            if result.places is not None:
                result.places.on_created(queue)
        case "move_queue" if result.places is not None:
            _fold_move(result, result.places, control.move_queue)
        case "expire_producers":
            _check_home(result, _queue(control.expire_producers.queue), "an expiry")
            for producer_id in control.expire_producers.producer_ids:
                place = (_queue(control.expire_producers.queue), producer_id)
                result.producers.pop(place, None)
                result.expired.add(place)
        case "split_queue":
            _fold_split(result, control.split_queue)
        case "delete_queue":
            queue = _queue(control.delete_queue.queue)
            _take_rows(result, queue)
            result.delayed.on_deleted(queue)
            result.staged.on_gone(queue)
            if result.places is not None:
                result.places.on_deleted(queue)
        case "tiered":
            queue = _queue(control.tiered.queue)
            start = max(result.start_offsets.get(queue, 0), control.tiered.tier_start)
            result.start_offsets[queue] = start
        case "trim":
            queue = _queue(control.trim.queue)
            start = max(result.start_offsets.get(queue, 0), control.trim.log_start_offset)
            result.start_offsets[queue] = start
        case "commit_offsets":
            for commit in control.commit_offsets.commits:
                result.commits.add(
                    (
                        control.commit_offsets.group,
                        _queue(commit.queue),
                        commit.token,
                        commit.offset,
                    )
                )
        case "reset_offset":
            result.resets.add((control.reset_offset.group, _queue(control.reset_offset.queue)))
        case "delete_group":
            group = control.delete_group.group
            named = {_queue(queue) for queue in control.delete_group.queues}
            result.resets |= {(group, queue) for queue in named or result.end_offsets}


def _take_rows(result: Fold, queue: Queue) -> None:
    for key in [key for key in result.producers if key[0] == queue]:
        del result.producers[key]


def _check_home(result: Fold, queue: Queue, what: str) -> None:
    places = result.places
    if places is not None and (queue not in places.here or places.frozen(queue)):
        result.problems.append(
            f"entry {result.last_index + 1}: {what} in queue {queue}, which is"
            f" {'sealed' if places.frozen(queue) else 'not'} here"
        )


def _waits(result: Fold, control: control_pb2.ControlRecord) -> bool:
    places, step = result.places, control.move_queue
    if places is None or control.WhichOneof("record") != "move_queue" or not places.opens(step):
        return False
    return (_queue(step.queue), step.job) not in places.journeys.luggage


def _fold_copy(result: Fold, index: int, payload: memoryview) -> None:
    if result.places is None:
        return
    try:
        placed = decode_broker_header(payload)
        bare = len(payload) == BROKER_HEADER_BYTES + HEADER_BYTES  # of a topic in memory
        header = (decode_header if bare else check_batch)(payload, BROKER_HEADER_BYTES)
    except CorruptBatch as error:
        result.problems.append(f"entry {index}: {error.message}")
        return
    queue = (int(header.topic_id), int(header.queue_id))
    if placed.base_offset < 0:
        if (job := result.places.coming(queue)) is not None:
            batch = DelayedBatch(header, bytes(payload[BROKER_HEADER_BYTES:]), index)
            result.delayed.on_copy(header.queue_key, job, int(placed.term), batch)
        return
    counts = result.places.on_copy(queue, placed.base_offset, placed.span or header.count)
    if counts and not placed.span and not bare:  # else it is not what was stored (`compaction.py`)
        data, append_us = bytes(payload[BROKER_HEADER_BYTES:]), placed.append_time_us
        part = stored_part(data, header, range(header.count), append_us)
        result.copies.append((queue, placed.base_offset, (stored(data, append_us), part)))


def _fold_move(result: Fold, places: Places, step: control_pb2.MoveQueue) -> None:
    queue = _queue(step.queue)
    did = places.on_step(step)
    job = queue, step.job
    if did is Did.SEALED:
        rows = {
            key[1]: Producer(row.epoch, row.session, row.last)
            for key, row in result.producers.items()
            if key[0] == queue
        }
        places.journeys.luggage[job] = Luggage(
            result.end_offsets.get(queue, 0),
            result.append_us.get(queue, 0),
            {producer for key, producer in result.expired if key == queue},
            rows,
            result.delayed.sealed(queue_key_of(step.queue)),
        )
    elif did is Did.ACTIVATED:
        luggage = cast(Luggage, places.journeys.luggage[job])
        if step.step == control_pb2.MOVE_STEP_PROMOTE:  # copies behind the slice's end are dropped
            places.ends[queue] = min(places.ends[queue], luggage.end_offset)
        if places.ends[queue] != luggage.end_offset:
            result.problems.append(
                f"entry {result.last_index + 1}: queue {queue} is activated with copies up to"
                f" {places.ends[queue]}, and was sealed at {luggage.end_offset}"
            )
        result.end_offsets[queue] = luggage.end_offset
        result.append_us[queue] = luggage.append_us
        result.expired |= {(queue, producer) for producer in luggage.expired}
        for producer_id, row in luggage.rows.items():
            result.producers[queue, producer_id] = Producer(row.epoch, row.session, row.last)
        where = f"entry {result.last_index + 1}"
        wrong = result.delayed.activate(queue_key_of(step.queue), step.job, luggage.waiting)
        result.problems += [f"{where}: {each}" for each in wrong]
    elif did is Did.FORWARDED:
        _take_rows(result, queue)
        result.staged.on_gone(queue)
        result.delayed.on_deleted(queue)


def _fold_split(result: Fold, split: control_pb2.SplitQueue) -> None:
    """The first one of a queue counts."""
    parent = _queue(split.queue)
    if parent in result.parents.values():
        return
    result.delayed.on_split(split)
    rows = [(key[1], row) for key, row in result.producers.items() if key[0] == parent]
    for number in split.children:
        child = (parent[0], number.queue_id)
        if result.places is not None:
            result.places.on_created(child)
        result.parents[child] = parent
        for producer_id, row in rows:
            copied = Producer(row.epoch, row.session, row.last)
            result.producers[child, producer_id] = copied
        result.expired |= {(child, one) for queue, one in result.expired if queue == parent}


def _queue(ref: common_pb2.QueueRef) -> Queue:
    return int(ref.topic_id), int(ref.queue_id)
