"""Transactions on their coordinator: who owns each transaction id, and how far its epochs are.

How it works. Each transaction id has one row. BEGIN gives out an *attempt*, a number that this
broker group uses only once. From then on no older attempt can be decided, so whatever older
attempts had pinned may be dropped. DECIDE for the newest attempt is the commit. The next epoch
begins only after the decided one is published on every participant.

    state of the row   begin          decide       abort
    open attempt       new attempt    committed    no open attempt
    no open attempt    new attempt    aborted      unchanged
    not published      retry later    unchanged    unchanged; answers "committed"

Invariants
1. `epoch` never falls, and at most one attempt of each epoch is ever decided.
2. While `published` is False no attempt begins, and the row is not forgotten.
3. There are never more rows than the master allows. If a BEGIN under a new id would exceed the
   limit, an earlier record of the log forgets the longest idle row (`oldest`, and
   `state/admission/transaction_admission.py`).

Format. docs/formats/state.md.

Not here: staged data (`staging.py`), messages to the participants
(`semel.broker.background.transaction_work`).
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
from semel.protos.levels import STAGED_COMMITS_LEVEL
from semel.protos.staging import TIMED_EPOCH_MIN
from semel.protos.v1 import transaction_records_pb2

NO_EPOCH: Final = -1
HEAD: Final = struct.Struct("<QqI")
TIMED: Final = struct.Struct("<q")
ROW: Final = struct.Struct("<qQqQqII")
_GROUP: Final = struct.Struct("<I")
RETRY_MS: Final = 50


class Begun(NamedTuple):
    """The result of a BEGIN that was granted."""

    epoch: int
    """The epoch that was asked for."""
    attempt: int
    """0 if the epoch is committed already."""
    last_epoch: int
    """The newest committed epoch; -1 if there is none."""


@dataclass(slots=True)
class Row:
    """The state of one transaction id."""

    query_id: str
    epoch: int = NO_EPOCH
    """The newest decided epoch."""
    decided_attempt: int = 0
    begun_epoch: int = NO_EPOCH
    attempt: int = 0
    """The open attempt; 0 if there is none."""
    changed_us: int = 0
    published: bool = True
    """Whether `epoch` is published on every participant."""
    participants: tuple[int, ...] = ()
    """The broker groups that take part in `epoch`."""


class Coordination:
    """All transactions that one broker group coordinates."""

    __slots__ = (
        "_closed",
        "_open",
        "forgotten_epoch",
        "forgotten_timed_epoch",
        "next_attempt",
        "rows",
        "unpublished",
    )

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.next_attempt = 1
        self.forgotten_epoch = NO_EPOCH
        """The highest epoch of all rows that were ever forgotten; from feature level 10 on without
        timed epochs, which would be above every number of a program."""
        self.forgotten_timed_epoch = NO_EPOCH
        """The highest timed one."""
        self.unpublished: dict[str, None] = {}
        """Ids whose epoch is not published everywhere, in the order of their decisions."""
        self._closed: OrderedDict[str, None] = OrderedDict()
        """Published ids without an open attempt, the longest idle first."""
        self._open: OrderedDict[str, None] = OrderedDict()
        """Published ids with an open attempt, the longest idle first."""

    def begin(
        self, record: transaction_records_pb2.BeginTransaction, now_us: int
    ) -> Begun | SemelError:
        """Begins a new attempt, or returns why it cannot."""
        name = record.transaction_id
        row = self.rows.get(name)
        asked = record.epoch if record.HasField("epoch") else None
        if row is None:
            if asked is not None and 0 < asked <= self._floor_of(asked):
                return DedupStateExpired(
                    f"transaction {name!r} is not known, or was idle for so long that it was"
                    f" forgotten: whether epoch {asked} was committed is unknown. Find out from the"
                    " messages, then use another transaction id",
                    epoch_floor=min(self._floor_of(asked), 0xFFFFFFFF),
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
        """Commits, or returns why it cannot. Repeating a decision changes nothing."""
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
                f"a newer attempt of transaction {name!r} has begun since attempt {record.attempt}"
                f" at epoch {record.epoch}. Nothing of the older attempt is stored"
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
        """Ends an open attempt. True if the attempt is committed; if not, it never will be."""
        row = self.rows.get(record.transaction_id)
        if row is None:
            return False
        if record.attempt in (0, row.attempt) and row.attempt:
            row.attempt = 0
            row.changed_us = now_us
            self._touch(record.transaction_id, row)
        return bool(record.attempt) and row.decided_attempt == record.attempt

    def finish(self, record: transaction_records_pb2.FinishTransaction) -> None:
        """Records that every participant has published."""
        row = self.rows.get(record.transaction_id)
        if row is not None and row.epoch == record.epoch:
            row.published = True
            self.unpublished.pop(record.transaction_id, None)
            self._touch(record.transaction_id, row)

    def _touch(self, name: str, row: Row) -> None:
        """Records that the row has changed: its idle time starts now."""
        self._closed.pop(name, None)
        self._open.pop(name, None)
        if row.published:
            (self._open if row.attempt else self._closed)[name] = None

    def idle(self, now_us: int, idle_us: int, count_max: int) -> list[str]:
        """Ids of rows that may be forgotten because they were idle for `idle_us`."""
        found = (name for name, row in self.rows.items() if row.published)
        idle = sorted(
            (row.changed_us, name)
            for name in found
            if (row := self.rows[name]).changed_us + idle_us <= now_us
        )
        return [name for _, name in idle[:count_max]]

    def oldest(self, count: int, busy: Container[str]) -> list[str]:
        """Up to `count` ids whose rows may be forgotten to make room, the longest idle first.

        Rows with an open attempt come after all others, and `busy` rows never come. An attempt
        whose row is forgotten cannot be decided any more: its commit is told that it is aborted.
        """
        names = (name for name in chain(self._closed, self._open) if name not in busy)
        return list(islice(names, count))

    def _floor_of(self, epoch: int) -> int:
        """Returns the highest epoch of its kind that was forgotten."""
        if epoch >= TIMED_EPOCH_MIN:
            return max(self.forgotten_epoch, self.forgotten_timed_epoch)
        return self.forgotten_epoch

    def forget(self, names: Iterable[str], level: int) -> None:
        """Removes published rows. Their open attempts cannot be decided any more."""
        for name in names:
            row = self.rows.get(name)
            if row is not None and row.published:
                if row.epoch >= TIMED_EPOCH_MIN and level >= STAGED_COMMITS_LEVEL:
                    self.forgotten_timed_epoch = max(self.forgotten_timed_epoch, row.epoch)
                else:
                    self.forgotten_epoch = max(self.forgotten_epoch, row.epoch)
                del self.rows[name]
                self._closed.pop(name, None)
                self._open.pop(name, None)

    def parts(self, version: int) -> list[bytes]:
        """Canonical bytes of a version of the state; rows are ordered by transaction id."""
        parts = [HEAD.pack(self.next_attempt, self.forgotten_epoch, len(self.rows))]
        if version >= STAGED_COMMITS_LEVEL:
            parts.append(TIMED.pack(self.forgotten_timed_epoch))
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
    def read_parts(cls, reader: Reader, version: int) -> Coordination:
        """The inverse of `parts`. Raises CorruptSegment."""
        made = cls()
        made.next_attempt, made.forgotten_epoch, count = reader.unpack(HEAD)
        if version >= STAGED_COMMITS_LEVEL:
            (made.forgotten_timed_epoch,) = reader.unpack(TIMED)
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
