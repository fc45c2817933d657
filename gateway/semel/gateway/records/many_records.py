"""Finds the fields of many records at once with numpy.

How it works. Only the length of a record says where the next one begins, so these are read one
after the other, in the shortest loop there is. Where records have one length, a whole run of them
is found by one comparison. From then on a call of numpy reads one field of all records. Headers
are read in rounds, the first of each record and so on; where few records have one left, those are
read one by one.

Invariants
1. It finds what `few_records.py` finds, and refuses what that refuses.
2. A place is used only after it was compared with the end of its record. A read that goes too far
   until then gives some number (`varint_columns.read`).

Format. `docs/formats/kafka-records.md`, "Record".
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from semel.gateway.records.few_records import read_field, read_varint
from semel.gateway.records.field_places import NO_FIELD, Numbers, Places, RecordFields
from semel.gateway.records.record_errors import CorruptRecords
from semel.gateway.records.varint_columns import LONG_BYTES_MAX, is_single, read

MANY_RECORDS: Final = 32
"""From this number of records on this module takes less time than `few_records.py`."""
_BLOCK: Final = 32
"""The lengths that are read before a run is looked for."""
_ALIKE: Final = 4
"""A run is looked for behind so many records of one length."""
_RUN: Final = 32
"""A shorter run costs more than it saves."""
_ROUND: Final = 20
"""Fewer records are not worth a round of headers."""

# The bytes of a record whose length is one byte, and of one whose length is two: by its first byte
# and by its second. None for other lengths: adding it raises TypeError.
_ONE: Final[list[Any]] = [None if byte > 0x7F or byte & 1 else byte // 2 + 1 for byte in range(256)]
_LOW: Final[list[Any]] = [None if byte & 1 else (byte & 0x7F) // 2 + 2 for byte in range(256)]
_HIGH: Final[list[Any]] = [None if byte > 0x7F else byte << 6 for byte in range(256)]

# The bytes of the offset deltas 0, 1, 2 and so on, up to the first one with three.
_ONES: Final = 64
_TWOS: Final = 8192
_NUMBERS: Final = np.arange(_TWOS) << 1
_WIDTHS: Final = np.where(_NUMBERS < 0x80, 1, 2)
_FIRST: Final = np.where(_NUMBERS < 0x80, _NUMBERS, _NUMBERS | 0x80).astype(np.uint8).tobytes()
_SECOND: Final = (_NUMBERS[_ONES:] >> 7).astype(np.uint8).tobytes()

_Bytes = npt.NDArray[np.uint8]
_NO_NUMBERS: Final = np.empty(0, np.int64)
_NONE: Final = Places(_NO_NUMBERS, _NO_NUMBERS, False)


def parse_many(data: bytes | memoryview, count: int) -> RecordFields:
    """Returns the fields of `count` records, which fill the bytes. Raises CorruptRecords."""
    try:
        return _parse(bytes(data), count)  # of which single bytes are read in half the time
    except IndexError as error:
        raise CorruptRecords("the last record is cut") from error


def _parse(data: bytes, count: int) -> RecordFields:
    view = np.frombuffer(data, np.uint8)
    bounds = _bounds(data, view, count)
    ends = bounds[1:]
    at = _behind_lengths(view, bounds[:-1])
    time_deltas, at = read(view, at + 1, LONG_BYTES_MAX)  # behind the attributes
    at = _behind_numbers(view, at)
    keys, at = _fields(view, at)
    values, at = _fields(view, at)
    lists = np.zeros(count + 1, np.int64)
    names = header_values = _NONE
    if view.take(at, mode="clip").tobytes() == bytes(count):
        at = at + 1
    else:
        counts, at = read(view, at)
        if (at > ends).any() or counts.min() < 0 or (counts > ends - at).any():
            raise CorruptRecords("a record has another length than its fields")
        np.cumsum(counts, out=lists[1:])
        names, header_values, at = _headers(data, view, at, ends, lists)
    if at.tobytes() != ends.tobytes():
        raise CorruptRecords("a record has another length than its fields")
    return RecordFields(time_deltas, keys, values, lists, names, header_values)


def _bounds(data: bytes, view: _Bytes, count: int) -> Numbers:
    """Returns where each record begins, with its length, and where the last one ends. Raises
    CorruptRecords unless that is the end of the bytes; IndexError."""
    found: list[int] = []
    runs: list[Numbers] = []
    one, low, high, append = _ONE, _LOW, _HIGH, found.append
    at = row = 0
    patience, try_at = 1, 0
    while row < count:
        before = len(found)
        try:
            for _ in range(min(_BLOCK, count - row)):
                append(at)
                byte = data[at]
                if byte < 0x80:
                    at += one[byte]
                else:
                    at += low[byte] + high[data[at + 1]]
        except TypeError:
            length, start = read_varint(data, at)
            if length < 0:
                raise CorruptRecords(f"a record claims {length} bytes") from None
            at = start + length
        row += len(found) - before
        if row < try_at or len(found) < _ALIKE or not _alike(found[-_ALIKE:], at):
            continue
        step = at - found[-1]
        run = _run(view, found[-1], at, step, count - row)
        runs += (np.array(found, np.int64), np.arange(at, at + run * step, step))
        found.clear()
        row += run
        at += run * step
        if run < _RUN:
            patience *= 2
            try_at = row + patience * _BLOCK
    if at != len(data):
        raise CorruptRecords(f"the records have {at} bytes, and their batch {len(data)}")
    found.append(at)
    if not runs:
        return np.array(found, np.int64)
    return np.concatenate((*runs, np.array(found, np.int64)))


def _alike(heads: list[int], end: int) -> bool:
    """Whether these records, the last of which ends at `end`, have one length."""
    step = end - heads[-1]
    return all(after - head == step for head, after in pairwise(heads))


def _run(view: _Bytes, model: int, at: int, step: int, rows_max: int) -> int:
    """Returns how many records from `at` on begin with the same length as the one at `model`."""
    rows = min(rows_max, max(len(view) - at, 0) // step)
    end = at + rows * step
    same = np.ones(rows, np.bool_)
    place = 0
    while True:
        byte = view[model + place]
        same &= view[at + place : end : step] == byte
        if byte < 0x80:
            break
        place += 1
    return rows if same.all() else int(same.argmin())


def _behind_lengths(view: _Bytes, heads: Numbers) -> Numbers:
    """Returns where the lengths of records end."""
    first = view.take(heads)
    if is_single(first):
        return heads + 1
    second = view.take(heads + 1, mode="clip")
    more = first > 0x7F
    return heads + 1 + more if is_single(second * more) else read(view, heads)[1]


def _behind_numbers(view: _Bytes, at: Numbers) -> Numbers:
    """Returns where the offset deltas end, which are 0, 1, 2 and so on. Raises CorruptRecords."""
    count = len(at)
    if count <= len(_FIRST):
        # Their bytes are known.
        first = view.take(at, mode="clip").tobytes()
        second = view.take(at[_ONES:] + 1, mode="clip").tobytes()
        if first == _FIRST[:count] and second == _SECOND[: max(count - _ONES, 0)]:
            return at + _WIDTHS[:count]
    numbers, after = read(view, at)
    wrong = numbers != np.arange(count)
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptRecords(f"record {row} has the offset delta {numbers[row]}")
    return after


def _fields(view: _Bytes, at: Numbers) -> tuple[Places, Numbers]:
    """Returns the places of the fields whose lengths are at `at`, and their ends."""
    first = view.take(at, mode="clip").tobytes()
    code, width = first[0], 1
    alike = first == first[:1] * len(first)
    if alike and code > 0x7F:
        second = view.take(at + 1, mode="clip").tobytes()
        alike = second[0] < 0x80 and second == second[:1] * len(second)
        code, width = code & 0x7F | second[0] << 7, 2
    if alike:  # one length, as constant payloads have
        length = code >> 1 ^ -(code & 1)
        if length < NO_FIELD:
            raise CorruptRecords(f"a field claims {length} bytes")
        starts = at + width
        after = starts + length if length > 0 else starts
        return Places(starts, np.full(len(at), length, np.int64), length < 0), after
    lengths, starts = read(view, at)
    least = lengths.min()
    if least >= 0:
        return Places(starts, lengths, False), starts + lengths
    if least < NO_FIELD:
        raise CorruptRecords(f"a field claims {least} bytes")
    return Places(starts, lengths, True), starts + np.maximum(lengths, 0)


def _headers(
    data: bytes, view: _Bytes, at: Numbers, ends: Numbers, lists: Numbers
) -> tuple[Places, Places, Numbers]:
    """Returns names and values of the headers that begin at `at`, and where each record's end."""
    name_starts, name_lengths, value_starts, value_lengths = np.empty((4, lists[-1]), np.int64)
    at = at.copy()
    place = lists[:-1].copy()
    """The place of the next header of each record."""
    rows = np.flatnonzero(place < lists[1:])
    while len(rows) >= _ROUND:
        names, after = _fields(view, at[rows])
        if names.has_nulls:
            raise CorruptRecords("a header has no name")
        values, after = _fields(view, after)
        if (after > ends[rows]).any():
            raise CorruptRecords("a header leads out of its record")
        where = place[rows]
        name_starts[where], name_lengths[where], _ = names
        value_starts[where], value_lengths[where], _ = values
        at[rows] = after
        place[rows] += 1
        rows = rows[place[rows] < lists[rows + 1]]
    for row in rows.tolist():
        first, last, reached, end = (int(each[row]) for each in (place, lists[1:], at, ends))
        names_of: tuple[list[int], list[int]] = ([], [])
        values_of: tuple[list[int], list[int]] = ([], [])
        for _ in range(last - first):
            reached = read_field(data, reached, end, *names_of)
            if names_of[1][-1] < 0:
                raise CorruptRecords("a header has no name")
            reached = read_field(data, reached, end, *values_of)
        name_starts[first:last], name_lengths[first:last] = names_of
        value_starts[first:last], value_lengths[first:last] = values_of
        at[row] = reached
    names = Places(name_starts, name_lengths, False)
    return names, Places(value_starts, value_lengths, bool((value_lengths < 0).any())), at
