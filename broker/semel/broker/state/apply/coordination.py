"""Transactions as their coordinator knows them: whose they are, and how far.

How it works. One row a transaction id. BEGIN gives out an *attempt*, a number that never comes
again in this group; from then on no older attempt can be decided, so whatever those had pinned may
be thrown away. DECIDE for the newest attempt is the commit. The next epoch begins only once the
decided one is published on every participant.

    open attempt   begin: a new one         decide: committed     abort: none is open
    none open      begin: a new one         decide: aborted       abort: stays so
    not published  begin: come back         decide: stays so      abort: says "committed"

Invariants
1. `epoch` never falls, and at most one attempt of each epoch is ever decided.
2. While `published` is False nothing begins, and the row is not forgotten.
3. There are never more rows than the master allows: whoever begins under a new id beyond that has
   the longest idle one forgotten by an entry before its own (`oldest`; the judge).

Format. docs/formats/state.md.

Not here: data (`staging.py`), asking and telling the participants (the node).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader, pack_text
from semel.protos.errors import (
    CorruptSegment,
    DedupStateExpired,
    SemelError,
    Throttled,
    TransactionAborted,
    TransactionConflict,
    TransactionFenced,
)
from semel.protos.v1 import transaction_records_pb2

NO_EPOCH: Final = -1
HEAD: Final = struct.Struct("<QqI")
ROW: Final = struct.Struct("<qQqQqII")
_GROUP: Final = struct.Struct("<I")
RETRY_MS: Final = 50


class Begun(NamedTuple):
    """What BEGIN found or made."""

    epoch: int
    """The one that was asked for."""
    attempt: int
    """0: the epoch is committed already."""
    last_epoch: int
    """Newest committed one; -1 for none."""


@dataclass(slots=True)
class Row:
    """One transaction id."""

    query_id: str
    epoch: int = NO_EPOCH
    """Newest decided one."""
    decided_attempt: int = 0
    begun_epoch: int = NO_EPOCH
    attempt: int = 0
    """The open one; 0 for none."""
    changed_us: int = 0
    published: bool = True
    """Of `epoch`, on every participant."""
    participants: tuple[int, ...] = ()
    """Broker groups of `epoch`."""


class Coordination:
    """All transactions that one broker group decides."""

    __slots__ = ("_closed", "_open", "forgotten_epoch", "next_attempt", "rows", "unpublished")

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.next_attempt = 1
        self.forgotten_epoch = NO_EPOCH
        """Highest epoch of all rows that were ever forgotten."""
        self.unpublished: dict[str, None] = {}
        """Those of `rows` whose epoch is not published everywhere, in the order of decision."""
        self._closed: OrderedDict[str, None] = OrderedDict()
        """Published ones without an open attempt, the longest idle first."""
        self._open: OrderedDict[str, None] = OrderedDict()
        """Published ones with an open attempt, the longest idle first."""

    def begin(
        self, record: transaction_records_pb2.BeginTransaction, now_us: int
    ) -> Begun | SemelError:
        """A new attempt, or why not."""
        name = record.transaction_id
        row = self.rows.get(name)
        asked = record.epoch if record.HasField("epoch") else None
        if row is None:
            if asked is not None and 0 < asked <= self.forgotten_epoch:
                return DedupStateExpired(
                    f"transaction {name!r} is not known, or was idle for so long that it was"
                    f" forgotten: whether epoch {asked} was committed is unknown. Find out from the"
                    " messages, then use another transaction id",
                    epoch_floor=min(self.forgotten_epoch, 0xFFFFFFFF),
                )
            row = Row(record.query_id)
        elif row.query_id != record.query_id:
            if row.epoch != NO_EPOCH:
                return TransactionConflict(
                    f"transaction {name!r} belongs to query {row.query_id!r}, which has committed"
                    f" up to epoch {row.epoch}; query {record.query_id!r} needs a transaction id of"
                    " its own",
                    owner=row.query_id,
                )
            row.query_id = record.query_id  # nothing was ever committed under the name
        epoch = row.epoch + 1 if asked is None else asked
        if epoch <= row.epoch:
            return Begun(epoch, 0, row.epoch)
        if not row.published:
            return Throttled(
                f"epoch {row.epoch} of transaction {name!r} is committed and not published"
                f" everywhere yet; epoch {epoch} begins after it",
                retry_after_ms=RETRY_MS,
            )
        self.rows[name] = row
        row.attempt, self.next_attempt = self.next_attempt, self.next_attempt + 1
        row.begun_epoch = epoch
        row.changed_us = now_us
        self._touch(name, row)
        return Begun(epoch, row.attempt, row.epoch)

    def decide(
        self, record: transaction_records_pb2.DecideTransaction, now_us: int
    ) -> SemelError | None:
        """Commits, or says why not. The same decision again changes nothing."""
        name = record.transaction_id
        row = self.rows.get(name)
        if row is not None and (row.epoch, row.decided_attempt) == (record.epoch, record.attempt):
            return None
        if row is not None and row.epoch > record.epoch:
            return TransactionFenced(
                f"epoch {row.epoch} of transaction {name!r} is committed by now; whether attempt"
                f" {record.attempt} had committed epoch {record.epoch} is not known any more"
            )
        if row is None or (not row.attempt and row.epoch < record.epoch):
            return TransactionAborted(
                f"epoch {record.epoch} of transaction {name!r} was aborted: its commit took too"
                " long, or an operator ended it. Nothing of it is stored; begin it again"
            )
        if (row.begun_epoch, row.attempt) != (record.epoch, record.attempt):
            return TransactionFenced(
                f"somebody has begun transaction {name!r} anew after attempt {record.attempt} at"
                f" epoch {record.epoch}. Nothing of that is stored"
            )
        row.epoch, row.decided_attempt = record.epoch, record.attempt
        row.attempt = 0
        row.changed_us = now_us
        row.participants = tuple(record.participants)
        row.published = not row.participants
        if not row.published:
            self.unpublished[name] = None
        self._touch(name, row)
        return None

    def abort(self, record: transaction_records_pb2.AbortTransaction, now_us: int) -> bool:
        """Whether the attempt is committed; if not, it never will be."""
        row = self.rows.get(record.transaction_id)
        if row is None:
            return False
        if record.attempt in (0, row.attempt) and row.attempt:
            row.attempt = 0
            row.changed_us = now_us
            self._touch(record.transaction_id, row)
        return bool(record.attempt) and row.decided_attempt == record.attempt

    def finish(self, record: transaction_records_pb2.FinishTransaction) -> None:
        """Every participant has published."""
        row = self.rows.get(record.transaction_id)
        if row is not None and row.epoch == record.epoch:
            row.published = True
            self.unpublished.pop(record.transaction_id, None)
            self._touch(record.transaction_id, row)

    def _touch(self, name: str, row: Row) -> None:
        """The row has changed: it is idle from now on."""
        self._closed.pop(name, None)
        self._open.pop(name, None)
        if row.published:
            (self._open if row.attempt else self._closed)[name] = None

    def idle(self, now_us: int, idle_us: int, count_max: int) -> list[str]:
        """Rows that may be forgotten because they were idle for too long."""
        found = (name for name, row in self.rows.items() if row.published)
        idle = sorted(
            (row.changed_us, name)
            for name in found
            if (row := self.rows[name]).changed_us + idle_us <= now_us
        )
        return [name for _, name in idle[:count_max]]

    def oldest(self, count: int, busy: Container[str]) -> list[str]:
        """So many rows that may be forgotten to make room for others, the longest idle first; those
        with an open attempt only when there are no others, `busy` ones never. An attempt whose row
        is forgotten cannot be decided: its commit is told that it is aborted."""
        names = (name for name in chain(self._closed, self._open) if name not in busy)
        return list(islice(names, count))

    def forget(self, names: Iterable[str]) -> None:
        """Ends rows, but no unpublished one. An open attempt can not be decided afterwards."""
        for name in names:
            row = self.rows.get(name)
            if row is not None and row.published:
                self.forgotten_epoch = max(self.forgotten_epoch, row.epoch)
                del self.rows[name]
                self._closed.pop(name, None)
                self._open.pop(name, None)

    def parts(self) -> list[bytes]:
        """Canonical bytes, rows by transaction id."""
        parts = [HEAD.pack(self.next_attempt, self.forgotten_epoch, len(self.rows))]
        for name in sorted(self.rows):
            row = self.rows[name]
            parts.append(
                ROW.pack(
                    row.epoch,
                    row.decided_attempt,
                    row.begun_epoch,
                    row.attempt,
                    row.changed_us,
                    row.published,
                    len(row.participants),
                )
                + b"".join(_GROUP.pack(group) for group in row.participants)
                + pack_text(name)
                + pack_text(row.query_id)
            )
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> Coordination:
        """The inverse of `parts`. Raises CorruptSegment."""
        made = cls()
        made.next_attempt, made.forgotten_epoch, count = reader.unpack(HEAD)
        for _ in range(count):
            epoch, decided, begun, attempt, changed_us, published, groups = reader.unpack(ROW)
            if published > 1:
                raise CorruptSegment(f"state has {published} where a transaction says 0 or 1")
            participants = tuple(reader.unpack(_GROUP)[0] for _ in range(groups))
            name = reader.text()
            made.rows[name] = Row(
                query_id=reader.text(),
                epoch=epoch,
                decided_attempt=decided,
                begun_epoch=begun,
                attempt=attempt,
                changed_us=changed_us,
                published=bool(published),
                participants=participants,
            )
            if not published:
                made.unpublished[name] = None
        for name, row in sorted(made.rows.items(), key=lambda each: (each[1].changed_us, each[0])):
            made._touch(name, row)
        return made
