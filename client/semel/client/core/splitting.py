"""Divides the parts of a queue that was split into parts of its children.

How it works. The rows of a part go to the children by slot, as `core/batching.py` would have routed
them. Rows that may go anywhere go to one child together. The chunk's order changes only within the
part's own places, so that every handle still finds its message.

Invariants
1. Rows of one child keep their order. A part is divided only when its queue certainly does not hold
   its rows and never will.
2. Readers of a chunk on other threads see either the old parts, among which the divided one has no
   outcome, or the new parts with the new order: the order is replaced before the parts are.

Not here: what is certain (`core/sequences.py`), fences of the children (`producer/producer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from semel.client.core.batching import (
    Outcome,
    Part,
    Rows,
    row_sizes,
    take_rows,
)
from semel.client.core.message_ids import routing_keys
from semel.protos.batch import decode_header
from semel.protos.columns import Columns, decode_columns
from semel.protos.few_rows import FewRows
from semel.protos.ids import QueueKey
from semel.protos.slots import queue_for_slots, slot_of_key, slots_of_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """The facts about one child of a queue that dividing parts needs."""

    key: QueueKey
    slot_start: int
    last_sequence: int
    """With source positions, the child stores rows at or below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """The rows of one part that the parent did not store."""

    part: Part
    columns: Columns | None
    """The rows that are left; None for a position mark."""
    stored: int = 0
    """Number of rows in front of them that the parent has."""
    base_sequence: int = -1
    """Sequence of the part's first row; -1 if it was never encoded."""


def of_waiting(part: Part) -> Inheritance:
    """Returns the rows of a part that was never encoded."""
    columns = part.columns
    if isinstance(columns, FewRows):
        columns = Columns.of_few(columns)
    return Inheritance(part=part, columns=columns)


def of_encoded(part: Part, payload: bytes, trimmed: int) -> Inheritance:
    """Returns the rows of a part that was encoded, of which `trimmed` rows were cut off."""
    header = decode_header(payload)
    columns = decode_columns(payload, header) if part.count else None
    return Inheritance(
        part=part,
        columns=columns and _without_sequences(columns),
        stored=trimmed,
        base_sequence=header.base_sequence - trimmed,
    )


def divide(
    inheritance: Inheritance, heirs: Sequence[Heir], anywhere: int, *, by_id: bool = False
) -> list[Part]:
    """Puts new parts into the chunk in place of the part and returns them. Parts that are stored
    already have their outcome.

    `heirs` are sorted by slot; `anywhere` is the index of the one for rows that may go anywhere.
    `by_id`: the topic compares ids, so rows without a key go by their ids.
    """
    part = inheritance.part
    assert part.outcome is None, "a part with an outcome is not taken apart"
    made = (
        _marks(part, heirs)
        if inheritance.columns is None
        else _rows(inheritance, heirs, anywhere, by_id)
    )
    chunk = part.chunk
    assert chunk.parts is not None
    place = next(at for at, each in enumerate(chunk.parts) if each is part)
    chunk.open_parts += sum(each.outcome is None for each in made) - 1
    chunk.parts = [*chunk.parts[:place], *made, *chunk.parts[place + 1 :]]
    return made


def _marks(part: Part, heirs: Sequence[Heir]) -> list[Part]:
    assert part.positions is not None
    made = []
    for heir in heirs:
        mark = Part(part.chunk, heir.key, part.first, 0, 0)
        mark.positions = part.positions
        if int(part.positions[0]) <= heir.last_sequence:
            mark.outcome = Outcome(duplicate=True)
        made.append(mark)
    return made


def _rows(
    inheritance: Inheritance, heirs: Sequence[Heir], anywhere: int, by_id: bool
) -> list[Part]:
    part, columns, stored = inheritance.part, inheritance.columns, inheritance.stored
    assert columns is not None
    chunk, count = part.chunk, part.count - stored
    positions = None if part.positions is None else part.positions[stored:]
    found = columns.keys
    if by_id and columns.message_ids is not None:
        found = routing_keys(found, columns.message_ids)
    keys = [None] * count if found is None else found.to_pylist()
    owners = _owners(keys, positions, heirs, anywhere)
    if positions is not None:
        lasts = np.array([heir.last_sequence for heir in heirs], np.int64)
        owners = owners + len(heirs) * (positions <= lasts[owners])
    turned = np.argsort(owners, kind="stable")
    owners = owners[turned]
    columns = take_rows(columns, turned)
    if positions is not None:
        positions = positions[turned]
    first = part.first + stored
    order = np.arange(chunk.count, dtype=np.int64) if chunk.order is None else chunk.order.copy()
    order[first : first + count] = order[first : first + count][turned]
    made = []
    if stored:
        made.append(_done(part, part.first, stored, part.queue, inheritance.base_sequence))
        made[-1].positions = None if part.positions is None else part.positions[:stored]
    bounds = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), count]
    sizes = np.concatenate(([0], np.cumsum(row_sizes(columns))))
    for low, high in pairwise(bounds):
        owner = int(owners[low])
        heir = heirs[owner % len(heirs)]
        if owner >= len(heirs):
            assert positions is not None
            new = _done(part, first + low, high - low, heir.key, int(positions[low]))
        else:
            size = int(sizes[high] - sizes[low])
            new = Part(chunk, heir.key, first + low, high - low, size)
            new.columns = columns.slice(low, high)
        new.positions = None if positions is None else positions[low:high]
        made.append(new)
    chunk.order = order
    return made


def _owners(
    keys: list[bytes | None], positions: Rows | None, heirs: Sequence[Heir], anywhere: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the index of each row's heir. Rows that were sent to the parent by its number,
    whatever their slot, go to the first or the last heir: rows of one key stay together."""
    starts = [heir.slot_start for heir in heirs]
    free = np.array([key is None for key in keys], bool)
    slots = np.array([0 if key is None else slot_of_key(key) for key in keys], np.int64)
    if positions is not None:
        slots = np.where(free, slots_of_positions(positions), slots)
        free[:] = False
    owners = np.clip(queue_for_slots(starts, slots), 0, len(heirs) - 1)
    return np.where(free, anywhere, owners)


def _done(part: Part, first: int, count: int, queue: QueueKey, base_sequence: int) -> Part:
    done = Part(part.chunk, queue, first, count, 0)
    done.outcome = Outcome(duplicate=True, base_sequence=base_sequence)
    return done


def _without_sequences(columns: Columns) -> Columns:
    """Returns the rows as they were before they were encoded; the part keeps the positions."""
    return Columns(
        values=columns.values,
        keys=columns.keys,
        headers=columns.headers,
        timestamps=columns.timestamps,
        message_ids=columns.message_ids,
        context=columns.context,
    )
