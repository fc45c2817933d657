"""One transactional id at the gateway that coordinates it: Kafka's requests as Semel's steps.

How it works. What is true is at the brokers. Each request first asks the coordinating broker group
how far the id is (`standing.py`), and goes on from there. So another gateway may take over at any
moment, or two may work at a time: each step is granted or refused in the brokers' log. What is kept
here only saves questions: which queues are open, and the timeout.

    InitProducerId       BEGIN the next incarnation, give up what is staged, commit that epoch empty
    AddPartitionsToTxn   BEGIN the next transaction if none is open, OPEN a stager for each queue
    AddOffsetsToTxn      BEGIN likewise
    EndTxn, commit       PIN what is staged, DECIDE the attempt that AddPartitionsToTxn has begun
    EndTxn, abort        BEGIN the epoch behind it, give up what is staged, commit that epoch empty

A transaction is given up by a committed epoch, not by its absence: so an EndTxn that is sent again
finds what became of the first one, and a transaction that brokers have ended by themselves is told
apart from one that the client has ended.

Invariants
1. A transaction is committed with all queues that were opened for it, and all offsets, or not at
   all. Each has a stager of its own, so one that is empty shows that something is gone, also to a
   gateway that has just taken over.
2. After an InitProducerId was answered, nothing of an older incarnation is committed.
3. An EndTxn is answered with success only if that is what became of the transaction.

Not here: how brokers are asked (`coordination/broker_ledger.py`), whose turn it is
(`coordination/transaction_service.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.gateway.transactions.ledger import Attempt, Found, Ledger, Stage
from semel.gateway.transactions.numbers import (
    INCARNATIONS,
    after_abort,
    epoch_of,
    first_incarnation,
    incarnation_of,
    is_transaction,
    kafka_epoch_of,
    next_transaction,
    producer_id_of,
    stager_id_of,
    timed_incarnation,
)
from semel.gateway.transactions.standing import (
    Producer,
    Row,
    Standing,
    refusal,
    repeated_end,
    standing_of,
)
from semel.protos.errors import (
    DedupStateExpired,
    SemelError,
    TransactionAborted,
    TransactionFenced,
)
from semel.protos.ids import QueueKey

ATTEMPTS: Final = 8
"""How often a request begins anew because somebody else was faster."""
TIMEOUT_MS_UNKNOWN: Final = 900_000
"""The timeout of a producer whose gateway has gone before it said it to a broker."""
UNOPENED_US: Final = 1_000_000
"""A transaction without a stager is so young, or its stager is gone: none lives shorter."""


class Initialised(NamedTuple):
    """The answer to InitProducerId."""

    error: ErrorCode
    producer_id: int = -1
    epoch: int = -1


@dataclass(slots=True)
class _Open:
    """The open transaction, as far as it is known."""

    epoch: int
    timeout_ms: int
    queues: set[QueueKey] = field(default_factory=set)
    pinned: list[Stage] | None = None
    """What a commit without an answer has pinned, perhaps."""


class TransactionCoordinator:
    """See the module's text. One call at a time."""

    def __init__(self, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        self.producer_id = producer_id_of(transaction_id)
        self._timeout_ms = TIMEOUT_MS_UNKNOWN
        self._open: _Open | None = None
        self._entitled = False
        """Whether a step that needs the right to the id was granted: it is not, to who only sees
        it."""
        self._raised: tuple[int, int] | None = None
        """The incarnation that was given last, and Kafka's epoch that was shown for it."""

    @property
    def open_timeout_ms(self) -> int | None:
        """How long the open transaction may last; None if none is known to be open."""
        return None if self._open is None else self._open.timeout_ms

    @property
    def open_epoch(self) -> int:
        """Epoch of the open transaction; -1 if none is known to be open."""
        return -1 if self._open is None else self._open.epoch

    # --- incarnations -----------------------------------------------------------------------------

    async def initialise(
        self, ledger: Ledger, timeout_ms: int, shown: tuple[int, int] | None = None
    ) -> Initialised:
        """Answers InitProducerId. `shown` is the producer id and epoch that a client raises by
        itself. Raises SemelError."""
        await ledger.check_level()
        row = await ledger.row()
        if shown is not None and not self._may_raise(row, shown):
            return Initialised(ErrorCode.invalid_producer_epoch)
        given = await self._raise(ledger, row)
        if given is None:
            return Initialised(ErrorCode.concurrent_transactions)
        self._timeout_ms = timeout_ms
        self._raised = None if shown is None else (incarnation_of(given), shown[1])
        return Initialised(ErrorCode.none, self.producer_id, kafka_epoch_of(given))

    def _may_raise(self, row: Row, shown: tuple[int, int]) -> bool:
        """Whether the epoch is the newest, or this is the request again that has raised it."""
        producer = Producer(self.transaction_id, *shown)
        if standing_of(row, producer) not in (Standing.FENCED, Standing.UNKNOWN):
            return True
        return self._raised == (incarnation_of(row.newest), shown[1])

    async def _raise(self, ledger: Ledger, row: Row) -> int | None:
        """Begins an incarnation; returns its epoch, or None if others were faster again and
        again."""
        incarnation = first_incarnation(incarnation_of(row.newest), row.log_time_us)
        for _ in range(ATTEMPTS):
            if incarnation >= INCARNATIONS:
                return None
            epoch = epoch_of(incarnation, 0)
            try:
                begun = await self._begin(ledger, epoch)
                if begun.number:
                    self._open = None
                    await self._end_older(ledger, epoch)
                    await ledger.commit(begun, ())
                    return epoch
            except DedupStateExpired:  # another id with a higher epoch was forgotten just now
                incarnation = max(incarnation + 1, timed_incarnation(row.log_time_us))
                continue
            except (TransactionFenced, TransactionAborted):
                pass
            row = await ledger.row()
            incarnation = incarnation_of(row.newest) + 1
        return None

    async def expire(self, ledger: Ledger) -> None:
        """The time of the open transaction is over: its producer is fenced. Raises SemelError."""
        row = await ledger.row()
        known = self._open
        if known is None:
            return
        if row.begun_epoch == known.epoch and row.epoch < known.epoch:
            await self._raise(ledger, row)
        self._open = None

    async def _begin(self, ledger: Ledger, epoch: int) -> Attempt:
        begun = await ledger.begin(epoch)
        self._entitled = True
        return begun

    async def _check_right(self, ledger: Ledger, row: Row) -> None:
        """Raises PermissionDenied for who may not use the id. What is committed is begun no more,
        so asking for it changes nothing."""
        if not self._entitled:
            await self._begin(ledger, row.epoch)

    # --- what belongs to a transaction ------------------------------------------------------------

    async def add(
        self, ledger: Ledger, producer: Producer, queues: Iterable[QueueRoute]
    ) -> ErrorCode:
        """Answers AddPartitionsToTxn, and without queues AddOffsetsToTxn. Raises SemelError."""
        for _ in range(ATTEMPTS):
            row = await ledger.row()
            standing = standing_of(row, producer)
            if (refused := refusal(standing)) is not ErrorCode.none:
                return refused
            await self._check_right(ledger, row)
            if standing is Standing.ENDED:
                epoch = next_transaction(row.epoch)
                if not (await self._begin(ledger, epoch)).number:
                    continue
                self._open = _Open(epoch, self._timeout_ms)
            elif not await self._recall(ledger, row):
                return refusal(Standing.LOST)
            known = self._open
            assert known is not None
            if standing is Standing.ONGOING and row.age_us > known.timeout_ms * 1000:
                await self.expire(ledger)
                return refusal(Standing.FENCED)
            missing = {
                stager_id_of(self.transaction_id, known.epoch, queue.key): queue
                for queue in queues
                if queue.key not in known.queues
            }
            if missing:
                await ledger.open(known.epoch, known.timeout_ms, missing)
                known.queues |= {queue.key for queue in missing.values()}
            return ErrorCode.none
        return ErrorCode.concurrent_transactions

    async def _recall(self, ledger: Ledger, row: Row) -> bool:
        """Learns what is open, unless it is known. Returns False if the stager may be gone."""
        if self._open is not None and self._open.epoch == row.begun_epoch:
            return True
        found = await ledger.find()
        if any(pinned.epoch == row.begun_epoch for pinned in found.pinned):
            return False  # it is being committed: nothing is added any more
        return self._learn(row, _of(found, row.begun_epoch))

    def _learn(self, row: Row, mine: list[Stage]) -> bool:
        """Takes in what is open. Returns False if something of it is gone, or may be."""
        if any(stage.lost for stage in mine):
            return False
        queues = {key for each in mine for key in each.queues}
        known = self._open
        if known is not None and known.epoch == row.begun_epoch:
            return known.queues <= queues
        if not mine and row.age_us > UNOPENED_US:
            return False
        timeout_ms = max((stage.timeout_ms for stage in mine), default=self._timeout_ms)
        self._open = _Open(row.begun_epoch, timeout_ms, queues)
        return True

    # --- ends -------------------------------------------------------------------------------------

    async def end(self, ledger: Ledger, producer: Producer, committed: bool) -> ErrorCode:
        """Answers EndTxn. Raises SemelError; the same request again finds out what became of it."""
        for _ in range(ATTEMPTS):
            row = await ledger.row()
            standing = standing_of(row, producer)
            if standing in (Standing.UNKNOWN, Standing.FENCED):
                return refusal(standing)
            await self._check_right(ledger, row)
            if standing is Standing.ENDED:
                self._open = None
                if repeated_end(row, committed) is ErrorCode.none:
                    await ledger.published(row.epoch)
                return repeated_end(row, committed)
            if not committed:
                if await self._abort(ledger, row):
                    self._open = None
                    return ErrorCode.none
            elif standing is Standing.LOST or not await self._commit(ledger, row):
                return refusal(Standing.LOST)
        return ErrorCode.concurrent_transactions

    async def _commit(self, ledger: Ledger, row: Row) -> bool:
        """Tries to commit; the row tells what became of it. Returns False if the transaction is
        not whole."""
        known = self._open
        if known is not None and known.epoch != row.begun_epoch:
            known = self._open = None
        begun = Attempt(row.begun_epoch, row.attempt, row.epoch)
        stages = None if known is None else known.pinned
        if stages is None:
            found = await ledger.find()
            stages = _of(found, row.begun_epoch)
            # Another gateway has begun to commit, and may be dead. It looked whether all is there
            # before it pinned anything, and a pin takes the stagers away that have nothing.
            winners = [
                stage
                for pinned in found.pinned
                if pinned.epoch == row.begun_epoch
                for stage in pinned.stages
            ]
            stages += winners
            if known is not None and winners:
                if any(stage.lost for stage in stages):
                    return False
            elif not self._learn(row, stages):
                return False
            known = self._open
            assert known is not None
            if row.age_us > known.timeout_ms * 1000:
                return False
            known.pinned = stages
        try:
            await ledger.commit(begun, stages)
        except (TransactionFenced, TransactionAborted):
            if known is not None:
                known.pinned = None
            newest = await ledger.row()
            if (newest.epoch, newest.begun_epoch, newest.attempt) == (
                row.epoch,
                row.begun_epoch,
                row.attempt,
            ):
                return False
        return True

    async def _abort(self, ledger: Ledger, row: Row) -> bool:
        """Gives the begun transaction up. Returns False if somebody else was faster."""
        epoch = row.begun_epoch
        if is_transaction(epoch):
            epoch = after_abort(epoch)
        begun = await self._begin(ledger, epoch)
        if not begun.number:
            return False
        await self._end_older(ledger, epoch)
        try:
            await ledger.commit(begun, ())
        except (TransactionFenced, TransactionAborted):
            return False
        return True

    async def _end_older(self, ledger: Ledger, epoch: int) -> None:
        """Gives up what is staged below an epoch that was begun. What is left somewhere ends with
        its time: it cannot be committed any more."""
        try:
            found = await ledger.find()
        except SemelError:
            return
        await ledger.drop([stage for stage in found.stages if stage.epoch < epoch])


def _of(found: Found, epoch: int) -> list[Stage]:
    return [stage for stage in found.stages if stage.epoch == epoch]
