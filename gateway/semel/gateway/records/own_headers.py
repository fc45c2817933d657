"""Semel's own fields of a message, which Kafka's clients give and see as headers.

| header | value | field |
|---|---|---|
| `semel-deliver-at` | milliseconds since 1970 in digits, or RFC 3339 | when the message is due |
| `semel-message-id` | bytes | the message's id |

On the way in both leave the headers, and on the way out they stand behind the others, with the due
time in digits. A header's value may be null in Kafka and not in Semel: it is stored empty, and the
header `semel-null-headers`, the last of its message, has the places of the nulls (`0,2`). On the
way out the nulls are back and it is gone. Nobody but the gateway may write it.
"""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.client.core.message_ids import check_ids
from semel.gateway.records.field_places import Numbers
from semel.gateway.records.record_errors import InvalidRecords
from semel.protos.arrow_arrays import HEADERS_TYPE
from semel.protos.errors import InvalidRequest

DELIVER_AT: Final = "semel-deliver-at"
MESSAGE_ID: Final = "semel-message-id"
NULL_HEADERS: Final = "semel-null-headers"
_OWN: Final = pa.array([DELIVER_AT, MESSAGE_ID, NULL_HEADERS])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_DIGITS: Final = re.compile(r"\d{1,15}", re.ASCII)
_NULL_PLACES: Final = re.compile(rb"\d{1,7}(,\d{1,7})*")


class TakenHeaders(NamedTuple):
    """What the headers of a batch say."""

    headers: pa.Array | None
    """HEADERS_TYPE; None if no record has a header that is left."""
    deliver_at_us: Numbers | None
    """0 for at once. None if no record names a time."""
    message_ids: pa.Array | None
    """binary. None if no record has one."""


def take_out(lists: Numbers, names: pa.Array, values: pa.Array) -> TakenHeaders:
    """Returns the headers of a batch without Semel's own, and what those say.

    `lists` has the count + 1 offsets of the records' headers in `names` (string) and `values`
    (binary, with nulls). Raises InvalidRecords.
    """
    kinds = pc.index_in(names, value_set=_OWN)
    if kinds.null_count == len(kinds) and not values.null_count:
        return TakenHeaders(_lists(lists, names, values), None, None)
    own = kinds.fill_null(len(_OWN)).to_numpy()
    if (own == 2).any():
        raise InvalidRecords(f"the header {NULL_HEADERS} is the gateway's to write")
    rows = np.repeat(np.arange(len(lists) - 1), np.diff(lists))
    dues = _column(DELIVER_AT, own == 0, rows, values, len(lists) - 1)
    ids = _column(MESSAGE_ID, own == 1, rows, values, len(lists) - 1)
    if ids is not None:
        try:
            check_ids(ids)
        except InvalidRequest as error:
            raise InvalidRecords(f"header {MESSAGE_ID}: {error.message}") from error
    kept = own == len(_OWN)
    lists = np.concatenate(([0], np.cumsum(kept)))[lists]
    mask = pa.array(kept)
    names, values = names.filter(mask), values.filter(mask)
    if values.null_count:
        headers = _without_nulls(lists, names, values)
    else:
        headers = _lists(lists, names, values) if len(names) else None
    return TakenHeaders(headers, None if dues is None else _times(dues), ids)


def due_time_us(text: bytes) -> int:
    """Returns the time that the header `semel-deliver-at` names, in microseconds since 1970.

    Raises InvalidRecords.
    """
    said = text.decode("ascii", "replace")
    if _DIGITS.fullmatch(said):
        return int(said) * 1000
    try:
        if _RFC_3339.fullmatch(said):
            found = (datetime.fromisoformat(said.upper()) - _EPOCH) // timedelta(microseconds=1)
            return max(found, 0)
    except (ValueError, OverflowError):
        pass  # such as the 31st of February
    raise InvalidRecords(
        f"header {DELIVER_AT} is {said[:64]!r}: give milliseconds since 1970, or a time with a zone"
        " such as 2030-01-31T12:00:00Z"
    )


def put_back_nulls(
    headers: list[list[tuple[str, bytes]]],
) -> list[list[tuple[str, bytes | None]]]:
    """Returns the headers of messages as their producers sent them, with nulls."""
    return [_with_nulls(pairs) for pairs in headers]


def _lists(lists: Numbers, names: pa.Array, values: pa.Array) -> pa.Array:
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    offsets = pa.py_buffer(lists.astype(np.int32))
    return pa.Array.from_buffers(HEADERS_TYPE, len(lists) - 1, [None, offsets], children=[pairs])


def _column(
    name: str, marked: np.ndarray, rows: Numbers, values: pa.Array, count: int
) -> pa.Array | None:
    """Returns the value of a header in each record, null for a record without it."""
    places = np.flatnonzero(marked)
    if not len(places):
        return None
    owners = rows[places]
    if (owners[1:] == owners[:-1]).any():
        raise InvalidRecords(f"a record has the header {name} twice")
    found = np.zeros(count, np.int64)
    found[owners] = places
    absent = np.ones(count, np.bool_)
    absent[owners] = False
    column = values.take(pa.array(found, mask=absent))
    if column.null_count != count - len(places):
        raise InvalidRecords(f"a record has the header {name} without a value")
    return column


def _times(dues: pa.Array) -> Numbers:
    """Returns the due time of each record. Batches have few different ones."""
    coded = dues.dictionary_encode()
    known = [due_time_us(text) for text in coded.dictionary.to_pylist()]
    times: Numbers = np.array([*known, 0], np.int64)
    places: Numbers = coded.indices.fill_null(len(known)).to_numpy()
    return times.take(places)


def _without_nulls(lists: Numbers, names: pa.Array, values: pa.Array) -> pa.Array:
    """Returns headers some of whose values are null, each null stored as the module says."""
    pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    bounds = lists.tolist()
    found = []
    for start, end in itertools.pairwise(bounds):
        own = pairs[start:end]
        nulls = ",".join(str(place) for place, (_, value) in enumerate(own) if value is None)
        stored = [(name, value or b"") for name, value in own]
        if nulls:
            stored.append((NULL_HEADERS, nulls.encode()))
        found.append([{"key": name, "value": value} for name, value in stored])
    return pa.array(found, HEADERS_TYPE)


def _with_nulls(pairs: list[tuple[str, bytes]]) -> list[tuple[str, bytes | None]]:
    whole: list[tuple[str, bytes | None]] = [*pairs]
    if not pairs or pairs[-1][0] != NULL_HEADERS or not _NULL_PLACES.fullmatch(pairs[-1][1]):
        return whole
    places = {int(place) for place in pairs[-1][1].split(b",")}
    del whole[-1]
    if max(places) >= len(whole) or any(pairs[place][1] for place in places):
        return [*pairs]  # it is not the gateway's
    return [(name, None if at in places else value) for at, (name, value) in enumerate(whole)]
