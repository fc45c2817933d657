"""Recomputes the exactly-once promise of one queue from its stored batches.

How it works. There are two readers. The caller, a thread that reads the disk, feeds both. They are
independent of apply and admission: they use plain dicts and share no rules with them. This one,
`BatchVerifier`, reads the stored batches of a queue from its start to its end, even if the entries
around them are gone. It checks that offsets are dense, that every CRC is good, that each producer's
sequences rise without a repetition, contiguous ones without a gap, and that incarnations never go
back.

For a child of a split it starts from what the parent had stored: whatever is in both was stored
twice. Batches that a transaction published were stored without offsets, and the sequences of their
stager begin at 0 in each queue. Delayed batches were stored without offsets, too: they come late
(and never early), or are fed last if they have none yet. Of such a batch single messages may have
been cancelled: then its rows come in stretches. Compacted batches say which offsets their messages
have; chains may have gaps where they are.

Invariants
1. A message counts as a duplicate if its sequence is not above the last one of its producer, and
   the row cannot have expired in between (which the queue's floor says).
2. `ok` means: no duplicate, nothing missing, no problem of any kind.

Not here: the sequence table (`table_verifier.py`), chains of batches (`chains.py`), reading files
(`semel.broker.server.verification`), comparing nodes (the console).
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.state.apply.expired import Expired
from semel.broker.state.verify.chains import Chains
from semel.broker.state.verify.moved_tables import (
    Entry,
    window_problems,
)
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    check_batch,
    decode_broker_header,
    decode_header,
)
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import offsets_of_rows
from semel.protos.delays import is_delayed
from semel.protos.errors import CorruptBatch
from semel.protos.ids import QueueKey
from semel.protos.staging import STAGER_ID_MIN

PROBLEMS_MAX: Final = 20
_OFFSET: Final = struct.Struct("<q")
_WINDOW: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """The result of reading one queue."""

    queue_key: QueueKey
    log_start_offset: int
    log_end_offset: int
    messages: int
    duplicates: int
    missing: int
    """Offsets without a readable message, and sequences that a chain skips."""
    digest: bytes
    """SHA-256 over the offset (i64) and the stored batch of each extent."""
    problems: tuple[str, ...]
    """The first problems, for people to read."""
    delayed: int = 0
    """Messages that are stored and have no offsets yet; `messages` does not count them."""

    @property
    def ok(self) -> bool:
        return not (self.duplicates or self.missing or self.problems)


class BatchVerifier:
    """Reads the extents of one queue in the order of their offsets."""

    def __init__(
        self,
        key: QueueKey,
        log_start_offset: int,
        log_end_offset: int,
        *,
        expired: Expired | None = None,
        inherited: Mapping[int, tuple[int, int]] | None = None,
        parent_expired: Expired | None = None,
        gaps: bool = False,
        gaps_to: int = 0,
    ) -> None:
        """`expired` is that of the queue, or a copy.

        For a child of a split, `inherited` says with which epoch and last sequence the row of each
        producer ended in the parent, and `parent_expired` whose row there has expired. `gaps` says
        that whole batches may have been dropped because of their message ids, or cancelled, or
        handed to children: a producer's sequences may then have gaps. Compaction may have removed
        messages below `gaps_to`.
        """
        gaps = gaps or gaps_to > log_start_offset
        self._key = key
        self._start = log_start_offset
        self._end = log_end_offset
        self._next = log_start_offset
        self._expired = expired or Expired()
        self._chains = Chains(
            log_start_offset,
            self._expired.highest_epoch(),
            inherited or {},
            parent_expired or Expired(),
            gaps=gaps,
        )
        self._messages = 0
        self._delayed = 0
        self._duplicates = 0
        self._missing = 0
        self._digest = hashlib.sha256()
        self._problems: list[str] = []
        self._gaps = gaps
        self._gaps_to = gaps_to
        self._spans_end = False
        """The newest extent is a compacted batch, which may stand for offsets beyond the end."""
        self._stretch: tuple[BatchHeader, int] | None = None
        """The delayed batch that was read last, and one past the last row that was read of it."""
        self._newest: dict[int, deque[Entry]] = {}
        """The newest batches of each producer, as many as a window holds."""
        self._ended: dict[int, int] = {}
        """Offset of each producer's newest batch that only an expired row had to remember."""

    def feed(
        self,
        offset: int,
        count: int,
        stored: bytes,
        first_row: int = 0,
        append_time_us: int | None = None,
        *,
        parts: bool = False,
    ) -> None:
        """Reads the next extent: offsets `[offset, offset + count)` and its stored batch.

        `append_time_us` says when it got the offsets. `parts`: the batch's entry has parts of
        delayed batches, which the queue got from the one that was split. The first extent may begin
        below the queue's start.
        """
        self._feed(offset, count, stored, first_row, append_time_us, parts=parts)

    def feed_headers(
        self, offset: int, count: int, headers: bytes, held: bytes | None, append_time_us: int
    ) -> None:
        """Reads the next extent of a queue in memory: the headers of its batch, from the log, and
        what the node holds of it, headers and body, or None.

        Nodes may hold other bodies, which are no part of the digest.
        """
        if held is not None:
            if held[: len(headers)] != headers:
                self._problem(f"offset {offset}: the batch in memory is that of another record")
            try:
                check_batch(held, BROKER_HEADER_BYTES)
            except CorruptBatch as error:
                self._problem(f"offset {offset}, in memory: {error}")
        self._feed(offset, count, headers, 0, append_time_us, bare=True)

    def _feed(
        self,
        offset: int,
        count: int,
        stored: bytes,
        first_row: int,
        append_time_us: int | None,
        *,
        bare: bool = False,
        parts: bool = False,
    ) -> None:
        """`stored` of a batch in memory is `bare`: it has no body."""
        self._digest.update(_OFFSET.pack(offset))
        self._digest.update(stored)
        begin = max(offset, self._start) if self._next == self._start else offset
        if begin > self._next:
            self._missing += begin - self._next
            self._problem(f"offsets {self._next} to {begin - 1} are missing")
        elif begin < self._next:
            self._duplicates += self._next - begin
            self._problem(f"offsets {begin} to {self._next - 1} are stored twice")
        self._next = max(self._next, offset + count)
        try:
            head = decode_broker_header(stored)
            check = decode_header if bare else check_batch
            batch = check(stored, BROKER_HEADER_BYTES)
        except CorruptBatch as error:
            self._missing += count
            self._problem(f"offset {offset}: {error}")
            return
        if batch.queue_key != self._key:
            self._problem(f"offset {offset} holds a batch of {batch.queue_key}")
        self._spans_end = bool(batch.flags & BatchFlags.OFFSET)
        if self._spans_end:
            self._compacted(offset, count, begin, stored, first_row)
            return
        self._messages += offset + count - begin
        # Published and delayed batches were stored, as a whole, before they had offsets.
        delayed = is_delayed(batch)
        waited = head.base_offset == -1 and (delayed or batch.producer_id >= STAGER_ID_MIN)
        begun = self._begun(batch, first_row) if delayed else False
        self._stretch = (batch, first_row + count) if delayed else None
        base: int = head.base_offset
        if waited and (delayed or not first_row):
            base = offset - first_row  # rows that were cancelled before it was due are left out
        if base + first_row != offset or first_row + count > batch.count:
            self._problem(
                f"offset {offset}, {count} rows from {first_row}: the batch there says"
                f" {head.base_offset}, {batch.count} rows"
            )
        if batch.epoch <= self._expired.floor_of(batch.producer_id):
            self._ended[batch.producer_id] = offset
        if offset < self._gaps_to:
            pass  # those around it may be gone, so no window can be held against it
        elif not delayed:  # the table never learns the offset of a delayed batch
            self._newest.setdefault(batch.producer_id, deque(maxlen=_WINDOW)).append(
                (batch.base_sequence, batch.last_sequence, offset, batch.count, batch.content_crc)
            )
        elif append_time_us is not None and append_time_us < batch.deliver_at_us:
            self._problem(f"offset {offset}: delivered before its time, {batch.deliver_at_us}")
        if begun:
            return  # the chain has the batch as a whole
        self._follow(f"offset {offset}", batch, delayed=delayed, parts=parts)

    def _follow(self, where: str, batch: BatchHeader, *, delayed: bool, parts: bool) -> None:
        floor = self._expired.floor_of(batch.producer_id)
        if delayed and parts and self._chains.may_be_part(batch, floor):
            found = self._chains.follow_part(where, batch)
        else:
            found = self._chains.follow(where, batch, delayed=delayed)
        for problem in found:
            self._problem(problem)

    def _compacted(
        self, offset: int, count: int, begin: int, stored: bytes, first_row: int
    ) -> None:
        """Reads a batch of which compaction has removed messages. It is no link of a chain."""
        self._stretch = None
        head = decode_broker_header(stored)
        data = stored[BROKER_HEADER_BYTES:]
        batch = check_batch(data)
        if offset + count > self._gaps_to:
            self._problem(f"offset {offset}: compacted, though there are no gaps that far")
        if (head.base_offset, head.span, first_row) != (offset, count, 0):
            self._problem(
                f"offset {offset}, {count} offsets: the compacted batch there says"
                f" {head.base_offset}, {head.span}"
            )
        if batch.flags & BatchFlags.POSITION_MARK:
            return
        try:
            columns = decode_columns(data, batch)
        except CorruptBatch as error:
            self._problem(f"offset {offset}: {error}")
            return
        offsets = offsets_of_rows(columns, offset, 0, count)
        if (offsets < 0).any():
            self._problem(f"offset {offset}: compacted messages have offsets of other batches")
        self._messages += int((offsets >= begin).sum())

    def _begun(self, batch: BatchHeader, first_row: int) -> bool:
        """Whether this is a later stretch of the delayed batch that was read last. Between two
        stretches there is a cancelled row: what begins nearer was released twice."""
        return (
            self._stretch is not None and self._stretch[0] == batch and first_row > self._stretch[1]
        )

    def feed_delayed(
        self, index: int, count: int, stored: bytes, cancelled: int = 0, *, parts: bool = False
    ) -> None:
        """Reads a delayed batch of `count` rows without offsets, of entry `index`; `cancelled` of
        them will not be delivered. `parts` is as in `feed`. Call it after all extents."""
        try:
            head = decode_broker_header(stored)
            batch = check_batch(stored, BROKER_HEADER_BYTES)
        except CorruptBatch as error:
            self.miss_delayed(index, count, str(error))
            return
        if batch.queue_key != self._key or head.base_offset != -1 or not is_delayed(batch):
            self._problem(f"entry {index} holds no delayed batch of the queue")
        if batch.count != count:
            self._problem(
                f"entry {index}: {count} messages are delayed, the batch has {batch.count}"
            )
        self._delayed += batch.count - cancelled
        self._follow(f"entry {index}", batch, delayed=True, parts=parts)

    def miss_delayed(self, index: int, count: int, why: str) -> None:
        """Reports a delayed batch that cannot be read."""
        self._missing += count
        self._problem(f"entry {index}, {count} delayed messages: {why}")

    def hold_against(self, windows: Mapping[int, list[Entry]]) -> None:
        """Compares with the windows of the sequence table, after every extent was fed."""
        start = max(self._start, self._gaps_to)
        for problem in window_problems(windows, self._newest, start, self._ended):
            self._problem(problem)
        if self._start or self._gaps:
            return  # delayed batches may have been released and trimmed, or cancelled as a whole
        for producer, window in sorted(windows.items()):
            for base, last, offset, count, _ in window:
                if offset < 0 and count and not self._chains.knows(producer, base, last):
                    self._missing += count
                    self._problem(
                        f"the window of producer {producer} remembers {base} to {last} as delayed,"
                        " but the queue does not have them"
                    )

    def _problem(self, text: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(text)

    def finish(self) -> QueueReport:
        """The report, after every extent was fed."""
        if self._next < self._end:
            self._missing += self._end - self._next
            self._problem(f"offsets {self._next} to {self._end - 1} are missing")
        elif self._next > self._end and not self._spans_end:
            self._problem(f"offsets {self._end} to {self._next - 1} lie beyond the end")
        for problem in self._chains.finish():
            self._problem(problem)
        return QueueReport(
            queue_key=self._key,
            log_start_offset=self._start,
            log_end_offset=self._end,
            messages=self._messages,
            duplicates=self._duplicates + self._chains.duplicates,
            missing=self._missing + self._chains.missing,
            digest=self._digest.digest(),
            problems=tuple(self._problems),
            delayed=self._delayed,
        )
