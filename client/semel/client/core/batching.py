"""Chunks of messages as they are sent, and the parts, of one queue each, that become batches.

How it works. A *chunk* holds consecutive messages of one topic: Python lists that grow by one
message per call, or Arrow arrays given in bulk. Routing a chunk sorts its rows by queue, once and
vectorised, and cuts them into *parts*, each of which becomes one batch. A handle finds its message
again through the chunk: row -> place in the sorted order -> part -> outcome.

Invariants
1. Rows of one queue keep their order, within a part and from part to part.
2. Every row is in exactly one part. A part is at most `batch_bytes` large unless it is one message.
   All rows of a chunk, and so of a part, are due at the same time.
3. With source positions the queue of a row is a pure function of its key or position. Rows at or
   below the queue's last sequence when the producer was opened are *skipped*: their parts are
   settled as duplicates and never sent.
4. A thread that reads a chunk of another thread reads `parts` before `order`: see
   `core/splitting.py`.

Not here: bytes (`core/encoding.py`), sequences and retries (`core/sequences.py`), who may append to
a chunk (`producer/intake.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from semel.client.core.batch_context import has_room
from semel.client.core.dropped_rows import DroppedRows
from semel.client.core.due_in_second import DueInSecond
from semel.client.core.message_ids import routing_keys
from semel.client.core.routing import TopicRoute
from semel.protos.arrays import (
    Array,
    binary_array,
    header_buffers,
    number_array,
    offsets_of,
    row_numbers,
    valid_of,
)
from semel.protos.batch import MESSAGE_BYTES_MAX
from semel.protos.columns import Columns
from semel.protos.errors import UnknownQueue
from semel.protos.few_rows import FEW_ROWS_MAX, FewRows
from semel.protos.ids import QueueKey
from semel.protos.slots import slot_of_key, slots_of_column, slots_of_keys, slots_of_positions
from semel.protos.values import value

ROW_BYTES: Final = 8
"""Bytes that a row costs beside its contents, for the sizes of parts."""
NO_QUEUE: Final = -1
"""The number in a chunk's `queues` of a message that did not name a queue."""

Rows = npt.NDArray[np.int64]


@value
class Outcome:
    """The outcome of one part."""

    base_offset: int = -1
    """Offset of the first row that is not trimmed; -1 when not known."""
    base_sequence: int = -1
    """Sequence of the first row that is not trimmed."""
    append_time_us: int = 0
    duplicate: bool = False
    trimmed: int = 0
    """Number of rows at the front that were stored before, at offsets not known any more."""
    error: Exception | None = None
    dropped: DroppedRows | None = None
    """Rows that were not stored because their ids were known: the others have the offsets from
    `base_offset` on."""
    due_in_second: DueInSecond | None = None
    """The load of a delayed part's second, as the broker told it."""


class Part:
    """Rows of a chunk that share a queue and a batch."""

    __slots__ = (
        "bytes",
        "chunk",
        "columns",
        "count",
        "first",
        "outcome",
        "positions",
        "queue",
    )

    def __init__(self, chunk: Chunk, queue: QueueKey, first: int, count: int, size: int) -> None:
        self.chunk = chunk
        self.queue = queue
        self.first = first
        """Place of its first row in the chunk's order."""
        self.count = count
        self.bytes = size
        self.columns: Columns | FewRows | None = None
        """The contents; dropped once they are encoded."""
        self.positions: Rows | None = None
        """Sequences of its rows, with source positions."""
        self.outcome: Outcome | None = None


class Chunk:
    """Messages of one topic in the order in which they were sent."""

    __slots__ = (
        "bytes",
        "context",
        "count",
        "created_us",
        "deadline",
        "due_us",
        "headers",
        "inverse",
        "keys",
        "message_bytes_max",
        "message_ids",
        "open_parts",
        "order",
        "outcome",
        "parts",
        "positions",
        "queues",
        "timestamps",
        "told",
        "topic",
        "values",
        "waiters",
    )

    def __init__(self, topic: str, created_us: int, deadline: float, due_us: int = 0) -> None:
        self.topic = topic
        self.created_us = created_us
        self.deadline = deadline
        """A time on the shell's clock."""
        self.due_us = due_us
        """The due time of all its messages, in microseconds since 1970; 0 for at once."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.count = 0
        self.bytes = 0
        self.values: Any = []
        self.keys: Any = None
        self.headers: Any = None
        self.timestamps: Any = None
        self.message_ids: Any = None
        self.positions: Any = None
        self.queues: Any = None
        """A list with one number per row, one number for all rows, or None."""
        self.context: bytes | None = None
        """What each batch of a bulk call carries for all its messages."""
        self.parts: list[Part] | None = None
        """None until routed."""
        self.order: Rows | None = None
        """Rows sorted by queue; None keeps them as they are."""
        self.inverse: tuple[Rows, Rows] | None = None
        """The order, and the place that it gives each row."""
        self.open_parts = 0
        """Number of parts without an outcome."""
        self.outcome: Outcome | None = None
        """The outcome of all rows, when the chunk failed before it was routed."""
        self.told = False
        """A handle has shown its holder a failure of the chunk."""
        self.waiters: list[Callable[[], None]] = []
        """Callables to call once each, when a part is settled."""

    @property
    def settled(self) -> bool:
        """Every row has an outcome."""
        return self.outcome is not None or (self.parts is not None and not self.open_parts)

    def outcome_of(self, row: int) -> tuple[Outcome, Part | None, int] | None:
        """Returns a row's outcome, part and place in the part; None while it is not settled."""
        if self.outcome is not None:
            return self.outcome, None, row
        parts = self.parts
        if parts is None:
            return None
        place, order = row, self.order
        if order is not None:
            known = self.inverse
            if known is None or known[0] is not order:
                inverse = np.empty(self.count, np.int64)
                inverse[order] = np.arange(self.count)
                known = self.inverse = order, inverse
            place = int(known[1][row])
        low, high = 0, len(parts)
        while high - low > 1:
            middle = (low + high) // 2
            if parts[middle].first <= place:
                low = middle
            else:
                high = middle
        part = parts[low]
        return None if part.outcome is None else (part.outcome, part, place - part.first)

    def outcomes(self, start: int, end: int) -> list[tuple[int, Outcome]] | None:
        """Returns (number of rows, outcome) pairs for rows `[start, end)`, or None while one row
        has no outcome."""
        if self.outcome is not None:
            return [(end - start, self.outcome)]
        parts = self.parts
        if parts is None:
            return None
        order = self.order
        if order is None or end - start == self.count:
            ranges = [
                (min(end, part.first + part.count) - max(start, part.first), part) for part in parts
            ]
            if order is not None:
                ranges = [(part.count, part) for part in parts]
        else:
            wanted = (order >= start) & (order < end)
            ranges = [
                (int(np.count_nonzero(wanted[part.first : part.first + part.count])), part)
                for part in parts
            ]
        found = [(count, part.outcome) for count, part in ranges if count > 0]
        if any(outcome is None for _, outcome in found):
            return None
        return [(count, outcome) for count, outcome in found if outcome is not None]

    def dropped(self, start: int, end: int) -> tuple[Rows, Rows]:
        """Returns those of rows `[start, end)` that duplicate another message by its id, and those
        that conflict with one, in no certain order. The rows have outcomes."""
        found: tuple[list[Rows], list[Rows]] = ([], [])
        for part in self.parts or ():
            dropped = None if part.outcome is None else part.outcome.dropped
            if dropped is None:
                continue
            places = part.first + dropped.places
            rows = places if self.order is None else self.order[places]
            wanted = (rows >= start) & (rows < end)
            conflicts = dropped.is_conflict
            found[0].append(rows[wanted & ~conflicts])
            found[1].append(rows[wanted & conflicts])
        empty = np.empty(0, np.int64)
        return np.concatenate([empty, *found[0]]), np.concatenate([empty, *found[1]])

    def settle(self, part: Part, outcome: Outcome) -> None:
        """Gives a part its outcome. The first outcome stands."""
        if part.outcome is not None:
            return
        part.outcome = outcome
        part.columns = None
        self.open_parts -= 1
        self.wake()

    def fail(self, error: Exception) -> None:
        """Settles every row that is not settled yet."""
        if self.parts is None:
            if self.outcome is None:
                self.outcome = Outcome(error=error)
                self.forget()
                self.wake()
            return
        for part in self.parts:
            self.settle(part, Outcome(error=error))

    def forget(self) -> None:
        """Drops the messages' contents."""
        self.values = self.keys = self.headers = self.timestamps = self.message_ids = None
        self.queues = None

    def wake(self) -> None:
        """Calls the callables that wait for a part to be settled."""
        waiters, self.waiters = self.waiters, []
        # A copy: a thread whose wait is over may remove its callable from this list meanwhile.
        for waiter in tuple(waiters):
            waiter()


def route(
    chunk: Chunk,
    topic: TopicRoute,
    *,
    sticky: int,
    batch_bytes: int,
    resume: Rows | None,
) -> list[Part]:
    """Cuts a chunk into parts, which become its `parts`, and returns those to be sent.

    `sticky` is the index in `topic.queues` for messages that may go anywhere. `resume` is given
    with source positions only: the last sequence of each queue when the producer was opened.
    Raises InvalidRequest for a column that cannot be stored, or ids that the topic cannot compare;
    UnknownQueue.
    """
    given = _few_rows(chunk) or _columns(chunk)
    count = chunk.count
    positions: Rows | None = None
    if resume is not None:
        positions = np.asarray(chunk.positions, np.int64)
        chunk.positions = None
    owners = _owners(chunk, _routing_keys(chunk, given, topic), positions, topic, sticky)
    queues = len(topic.queues)
    if isinstance(owners, int) and positions is not None and resume is not None:
        owners = np.full(count, owners, np.int32)
    if not isinstance(owners, int) and positions is not None and resume is not None:
        owners = owners + queues * (positions <= resume[owners])
    if not isinstance(owners, int) and (owners == owners[0]).all():
        owners = int(owners[0])
    if isinstance(owners, int) and owners < queues and chunk.bytes <= batch_bytes:
        # The path of a single awaited message: there is nothing to sort or to cut.
        part = Part(chunk, topic.queues[owners].key, 0, count, chunk.bytes)
        part.columns = given
        _add_context(part, topic)
        part.positions = positions
        chunk.forget()
        chunk.open_parts = 1
        chunk.parts = [part]
        return [part]
    columns = Columns.of_few(given) if isinstance(given, FewRows) else given
    chunk.forget()
    if isinstance(owners, int):
        runs = [(owners, 0, count)]
    else:
        order = _stable_order(owners)
        chunk.order = order
        columns = take_rows(columns, order)
        positions = positions[order] if positions is not None else None
        sorted_owners = owners[order]
        bounds = np.flatnonzero(np.diff(sorted_owners)) + 1
        starts = [0, *bounds.tolist()]
        runs = [
            (int(sorted_owners[start]), start, end)
            for start, end in zip(starts, [*starts[1:], count], strict=True)
        ]
    sizes = np.concatenate(([0], np.cumsum(row_sizes(columns))))
    parts: list[Part] = []
    to_send: list[Part] = []
    for owner, start, end in runs:
        key = topic.queues[owner % queues].key
        if owner >= queues:
            part = Part(chunk, key, start, end - start, 0)
            part.outcome = Outcome(duplicate=True)
            part.positions = positions[start:end] if positions is not None else None
            parts.append(part)
            continue
        for low, high in cuts(sizes, start, end, batch_bytes):
            part = Part(chunk, key, low, high - low, int(sizes[high] - sizes[low]))
            part.columns = columns if high - low == count else columns.slice(low, high)
            _add_context(part, topic)
            part.positions = positions[low:high] if positions is not None else None
            parts.append(part)
            to_send.append(part)
    chunk.open_parts = len(to_send)
    chunk.parts = parts
    return to_send


def _add_context(part: Part, topic: TopicRoute) -> None:
    """Has the batch of a bulk call's part carry the context of the call."""
    context, columns = part.chunk.context, part.columns
    if context is None or not isinstance(columns, Columns):
        return
    if has_room(columns, context, topic, part.bytes):
        part.columns = replace(columns, context=context)


def _stable_order(owners: npt.NDArray[np.integer[Any]]) -> Rows:
    """Returns the rows by owner; those of one owner keep their order. numpy sorts short numbers by
    their digits, in a tenth of the time."""
    if int(owners.max()) <= np.iinfo(np.uint16).max:
        owners = owners.astype(np.uint16)
    return np.argsort(owners, kind="stable")


def _few_rows(chunk: Chunk) -> FewRows | None:
    """Returns the messages of a chunk that can do without Arrow; None for any other chunk."""
    if (
        chunk.count > FEW_ROWS_MAX
        or type(chunk.values) is not list
        or chunk.headers is not None
        or chunk.timestamps is not None
        or chunk.positions is not None
        or None in chunk.values
        or (chunk.keys is not None and None in chunk.keys)
        or (chunk.message_ids is not None and None in chunk.message_ids)
    ):
        return None
    return FewRows(chunk.values, chunk.keys, chunk.message_ids)


def _columns(chunk: Chunk) -> Columns:
    if type(chunk.values) is list and chunk.headers is None:
        # The intake has checked them one by one.
        return Columns(
            values=binary_array(chunk.values),
            keys=None if chunk.keys is None else binary_array(chunk.keys),
            timestamps=None if chunk.timestamps is None else number_array(chunk.timestamps),
            message_ids=None if chunk.message_ids is None else binary_array(chunk.message_ids),
        )
    return Columns.from_arrow(
        chunk.values,
        keys=chunk.keys,
        headers=chunk.headers,
        timestamps=chunk.timestamps,
        message_ids=chunk.message_ids,
    )


def _routing_keys(
    chunk: Chunk, given: Columns | FewRows, topic: TopicRoute
) -> Array | list[bytes] | None:
    """Returns what determines the queues of rows: their keys or, if the topic compares ids, the
    ids of rows without a key. Raises InvalidRequest."""
    if given.message_ids is None or not topic.id_rules.compared:
        return given.keys
    named = chunk.queues
    if isinstance(given, FewRows):
        keys: Any = given.keys or [None] * chunk.count
        queues = named if isinstance(named, list) else [named] * chunk.count
        for message_id, key, queue in zip(given.message_ids, keys, queues, strict=True):
            topic.id_rules.check_one(message_id, key, None if queue == NO_QUEUE else queue)
        return given.message_ids if given.keys is None else given.keys
    if isinstance(named, list):
        named = np.array(named) != NO_QUEUE
    elif named is not None:
        named = True
    else:
        named = False
    topic.id_rules.check_many(given.message_ids, given.keys, named)
    return routing_keys(given.keys, given.message_ids)


def _owners(
    chunk: Chunk,
    keys: Array | list[bytes] | None,
    positions: Rows | None,
    topic: TopicRoute,
    sticky: int,
) -> Any:
    """Returns the index of each row's queue in `topic.queues`; one number if all rows share it."""
    named = chunk.queues
    if isinstance(named, int):
        return _place(topic, named)
    if keys is None and positions is None:
        owners: Any = sticky
    elif keys is None:
        assert positions is not None
        owners = topic.queues_of_slots(slots_of_positions(positions))
    elif positions is None and isinstance(keys, list) and len(keys) == 1:
        owners = topic.queue_of_slot(slot_of_key(keys[0]))  # without numpy's calls
    elif positions is not None or isinstance(keys, list) or not keys.null_count:
        owners = topic.queues_of_slots(slots_of_keys(keys, positions))
    else:
        keyed = topic.queues_of_slots(slots_of_column(keys))
        owners = np.where(valid_of(keys), keyed, np.int32(sticky))
    if named is not None:
        places = np.array(
            [NO_QUEUE if queue == NO_QUEUE else _place(topic, queue) for queue in named],
            np.int32,
        )
        owners = np.where(places == NO_QUEUE, owners, places)
    return owners


def _place(topic: TopicRoute, queue_id: int) -> int:
    place = topic.position_of(queue_id)
    if place is None:
        found = topic.find(queue_id)
        if found is not None:
            raise UnknownQueue(
                f"queue {queue_id} of topic {topic.name!r} was split and takes nothing new;"
                f" open are {', '.join(str(queue.key.queue_id) for queue in topic.queues)}"
            )
        raise UnknownQueue(f"topic {topic.name!r} has no queue {queue_id}")
    return place


def take_rows(columns: Columns, order: Rows) -> Columns:
    """Returns the rows in another order."""
    indices = row_numbers(order)

    def taken(column: Array | None) -> Array | None:
        return None if column is None else column.take(indices)

    return Columns(
        values=taken(columns.values),
        keys=taken(columns.keys),
        headers=taken(columns.headers),
        timestamps=taken(columns.timestamps),
        message_ids=taken(columns.message_ids),
        context=columns.context,
    )


def row_sizes(columns: Columns) -> Rows:
    """Returns about how many bytes each message takes in a batch."""
    sizes = message_sizes(columns) + ROW_BYTES
    if columns.message_ids is not None:
        sizes += np.diff(offsets_of(columns.message_ids))
    return sizes


def message_sizes(columns: Columns) -> Rows:
    """Returns the bytes of each message's value, key and headers, which the size limit counts."""
    sizes = np.diff(offsets_of(columns.values)).astype(np.int64)
    if columns.keys is not None:
        sizes += np.diff(offsets_of(columns.keys))
    if columns.headers is not None:
        lists, names, _, values, _ = header_buffers(columns.headers)
        sizes += np.diff(names[lists]) + np.diff(values[lists])
    return sizes


def cuts(sizes: Rows, start: int, end: int, limit: int) -> list[tuple[int, int]]:
    """Returns consecutive ranges of rows, each as large as the limit allows, but at least a row."""
    cuts = []
    while start < end:
        stop = int(np.searchsorted(sizes, sizes[start] + limit, side="right")) - 1
        stop = min(end, max(start + 1, stop))
        cuts.append((start, stop))
        start = stop
    return cuts
