"""What was released when: rows that grow coarser with age, so that a bounded number is enough.

How it works. A release adds one row for each second in which something of it was due, or adds to
the newest row of its queue, if that is of the same second: ten million messages of one second are
one row for each queue. Rows are kept in *tiers*, in the order of their releases. A tier that has
too many rows gives its older half to the next one, where all rows of a queue that were released in
the same minute, hour or day become one: first and last time, earliest offset, all messages, least
and most lateness. The last tier forgets its older half. So an hour of four busy queues is seen to
the second and a week to the hour, and a day of 16,000 queues at least to the day.

It is replicated like the messages themselves: every node has the same rows, after a change of
master and a restart as well. 131,072 rows of 80 bytes are 10 MiB, and no group has more.

Invariants
1. Every message that was released since the history began is in one row, until the last tier
   forgets it.
2. No tier has more than ROWS_MAX rows once a release is applied.
3. The rows follow from the releases alone: two nodes that applied the same entries have the same
   bytes. Rows of deleted queues stay until they are old.

Format. docs/formats/state.md.

Not here: releases (`delays.py`), the call that shows them (`server/delay_calls.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.due_seconds import SECOND_US, second_of
from semel.protos.errors import CorruptSegment
from semel.protos.ids import Offset, QueueId, QueueKey, TopicId

SPANS_S: Final = (1, 60, 3_600, 86_400)
"""The tiers: what is merged there, in seconds. Rows of the first one are of one due second."""
ROWS_MAX: Final = 32_768
ROW: Final = struct.Struct("<QIIqqqqqqqq")
_PACKED: Final = np.dtype(
    [
        ("topic_id", "<u8"),
        ("queue_id", "<u4"),
        ("span_s", "<u4"),
        ("due_first_us", "<i8"),
        ("due_last_us", "<i8"),
        ("released_first_us", "<i8"),
        ("released_last_us", "<i8"),
        ("base_offset", "<i8"),
        ("messages", "<i8"),
        ("late_min_us", "<i8"),
        ("late_max_us", "<i8"),
    ]
)
assert _PACKED.itemsize == ROW.size
_COUNT: Final = struct.Struct("<I")

_Rows = npt.NDArray[Any]


class ReleaseRow(NamedTuple):
    """Messages of one queue that were released in one second, or close to each other."""

    topic_id: int
    queue_id: int
    span_s: int
    """1: they were due in the same second. Else: they were released within the same 60, 3,600 or
    86,400 seconds."""
    due_first_us: int
    due_last_us: int
    released_first_us: int
    """Log time of the first release."""
    released_last_us: int
    base_offset: int
    """Offset of the message that was released first. The others may follow with gaps."""
    messages: int
    late_min_us: int
    late_max_us: int


class ReleaseHistory:
    """The releases of one broker group."""

    __slots__ = ("_newest", "_tiers")

    def __init__(self) -> None:
        self._tiers = [bytearray() for _ in SPANS_S]
        """Packed rows, by rising time of the first release."""
        self._newest: dict[QueueKey, int] = {}
        """Where in the first tier the newest row of a queue begins."""

    # --- changes ----------------------------------------------------------------------------

    def record(
        self, key: QueueKey, base_offset: Offset, dues: Iterable[tuple[int, int]], now_us: int
    ) -> None:
        """Adds a release at log time `now_us`: due times, rising, each with its messages."""
        fine, offset = self._tiers[0], base_offset
        for due_us, messages in dues:
            late_us = now_us - due_us
            at = self._newest.get(key)
            row = None if at is None else ReleaseRow(*ROW.unpack_from(fine, at))
            if at is None or row is None or second_of(row.due_first_us) != second_of(due_us):
                at = self._newest[key] = len(fine)
                fine += bytes(ROW.size)
                row = ReleaseRow(
                    *(key.topic_id, key.queue_id, SPANS_S[0]),
                    *(due_us, due_us, now_us, now_us, offset, 0, late_us, late_us),
                )
            changed = row._replace(
                due_first_us=min(row.due_first_us, due_us),
                due_last_us=max(row.due_last_us, due_us),
                released_last_us=now_us,
                messages=row.messages + messages,
                late_min_us=min(row.late_min_us, late_us),
                late_max_us=max(row.late_max_us, late_us),
            )
            ROW.pack_into(fine, at, *changed)
            offset = Offset(offset + messages)
        if len(fine) > ROWS_MAX * ROW.size:
            self._coarsen()

    def _coarsen(self) -> None:
        """Merges the older rows of every tier that has too many."""
        for tier, span_s in enumerate(SPANS_S[1:], 1):
            finer = self._tiers[tier - 1]
            if len(finer) <= ROWS_MAX * ROW.size:
                return
            cut = len(finer) - ROWS_MAX // 2 * ROW.size
            older = bytes(finer[:cut])
            del finer[:cut]
            if tier == 1:
                self._newest = {key: at - cut for key, at in self._newest.items() if at >= cut}
            merged = _merged(np.frombuffer(bytes(self._tiers[tier]) + older, _PACKED), span_s)
            self._tiers[tier] = bytearray(merged.tobytes())
        last = self._tiers[-1]
        if len(last) > ROWS_MAX * ROW.size:
            del last[: len(last) - ROWS_MAX // 2 * ROW.size]

    # --- questions --------------------------------------------------------------------------

    def newest(self, topic_id: int, since_us: int, count_max: int) -> list[ReleaseRow]:
        """Up to `count_max` rows of a topic with releases at or after `since_us`, the newest
        first."""
        found: list[ReleaseRow] = []
        for tier in self._tiers:
            rows = np.frombuffer(bytes(tier), _PACKED)
            mine = (rows["topic_id"] == topic_id) & (rows["released_last_us"] >= since_us)
            found += map(ReleaseRow._make, rows[mine][-count_max:].tolist())
        found.sort(key=_age, reverse=True)
        return found[:count_max]

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self) -> list[bytes]:
        """Canonical bytes: tier by tier, each with the number of its rows in front."""
        parts = []
        for tier in self._tiers:
            parts += [_COUNT.pack(len(tier) // ROW.size), bytes(tier)]
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> ReleaseHistory:
        """The inverse of `parts`. Raises CorruptSegment."""
        history = cls()
        for tier, span_s in enumerate(SPANS_S):
            count = reader.unpack(_COUNT)[0]
            data = bytearray(reader.take(count * ROW.size))
            spans = np.frombuffer(bytes(data), _PACKED)["span_s"]
            if count > ROWS_MAX or (spans != span_s).any():
                raise CorruptSegment(f"state holds {count} malformed rows of {span_s} s")
            history._tiers[tier] = data
        for at in range(0, len(history._tiers[0]), ROW.size):
            topic_id, queue_id, *_ = ROW.unpack_from(history._tiers[0], at)
            history._newest[QueueKey(TopicId(topic_id), QueueId(queue_id))] = at
        return history


def _merged(rows: _Rows, span_s: int) -> _Rows:
    """One row for each queue and span of time in which it released something."""
    span = rows["released_first_us"] // (span_s * SECOND_US)
    order = np.lexsort((rows["released_first_us"], span, rows["queue_id"], rows["topic_id"]))
    rows, span = rows[order], span[order]
    begins_one = np.ones(len(rows), np.bool_)
    for column in (rows["topic_id"], rows["queue_id"], span):
        begins_one[1:] &= column[1:] == column[:-1]
    begins_one[1:] = ~begins_one[1:]
    begins = np.flatnonzero(begins_one)
    found = rows[begins].copy()
    found["span_s"] = span_s
    for name, take in (
        ("due_first_us", np.minimum),
        ("due_last_us", np.maximum),
        ("released_last_us", np.maximum),
        ("messages", np.add),
        ("late_min_us", np.minimum),
        ("late_max_us", np.maximum),
    ):
        found[name] = take.reduceat(rows[name], begins)
    return found[np.argsort(found["released_first_us"], kind="stable")]


def _age(row: ReleaseRow) -> tuple[int, int, int]:
    return row.released_first_us, row.queue_id, row.base_offset
