"""All that Kafka's clients ask about transactional ids, answered on a cluster.

How it works. A transactional id is coordinated by one of the gateways that are there, which its
name chooses among them: all gateways that know each other choose the same, and when one goes, the
ids of the others stay where they are. Nothing depends on it but speed: what is true is at the
brokers, which decide between two that work at a time (`transactions/coordinator.py`).

A transaction that takes longer than its client has said is ended, and its producer fenced. That is
the work of the gateway that has begun it, with the rights of whoever has begun it; if either is
gone, brokers give up what is staged when its time is over.

Not here: the steps (`transactions/`), Kafka's messages (`handlers/transaction_handlers.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.gateway.coordination.broker_ledger import SLACK_MS, BrokerLedger
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.staged_in import StagedIn
from semel.gateway.dispatch import GatewayPlace, Gateways
from semel.gateway.refusals import error_code
from semel.gateway.transactions.coordinator import (
    TIMEOUT_MS_UNKNOWN,
    Initialised,
    TransactionCoordinator,
)
from semel.gateway.transactions.standing import Producer, Standing, refusal, standing_of
from semel.protos.errors import PermissionDenied, QueueSealed, SemelError
from semel.protos.ids import GroupId
from semel.protos.staging import TRANSACTION_ID_CHARACTERS_MAX, TTL_MS_MAX
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
TICK_S: Final = 0.25
IDLE_S: Final = 600.0
"""An id that nobody has asked for in so long is forgotten here; the brokers know it."""
IDS_MAX: Final = 100_000
"""Transactional ids that one gateway keeps in mind."""
TIMEOUT_MS_MAX: Final = TTL_MS_MAX - SLACK_MS


class TransactionRefused(Exception):
    """A request about a transactional id cannot be served here."""

    def __init__(
        self, code: ErrorCode, resource: str = "", split: control_pb2.SplitQueue | None = None
    ) -> None:
        """`resource` is what the caller has no right to, as rules name it; `split` is one that
        whoever has asked did not know."""
        super().__init__(code.name)
        self.code = code
        self.resource = resource
        self.split = split


class _Coordinated:
    """One transactional id at this gateway, as one caller may use it."""

    def __init__(self, transaction_id: str, caller: Caller) -> None:
        self.coordinator = TransactionCoordinator(transaction_id)
        self.caller = caller
        self.turn = asyncio.Lock()
        self.used_s = time.monotonic()
        self.timed_epoch = -1
        self.ends_s = 0.0
        """When the transaction `timed_epoch` has lasted too long."""


class TransactionService:
    """See the module's text. Lives on the gateway's event loop."""

    def __init__(self, own: Caller, gateways: Gateways) -> None:
        """`own` is the gateway itself."""
        self._own = own
        self._gateways = gateways
        self._ids: dict[tuple[str, Caller], _Coordinated] = {}
        """By id and caller. What one does, who may perhaps do nothing, changes nothing for another:
        two that use one id are to each other like two gateways."""
        self._risen: set[GroupId] = set()
        """Broker groups that are at the feature level of transactions: they never go back."""
        self._task: asyncio.Task[None] | None = None
        self._expiring: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._watch(), name="semel-kafka-transactions"
        )

    async def close(self) -> None:
        """Ends what runs by itself."""
        tasks = [task for task in (self._task, *self._expiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def id_count(self) -> int:
        """Transactional ids that this gateway has in mind."""
        return len(self._ids)

    # --- who coordinates --------------------------------------------------------------------------

    async def find(self, transaction_id: str) -> GatewayPlace:
        """Returns where the id is coordinated. Raises TransactionRefused."""
        _check_name(transaction_id)
        return _chosen(transaction_id, await self._gateways.checked())

    # --- requests ---------------------------------------------------------------------------------

    async def initialise(
        self,
        transaction_id: str,
        timeout_ms: int,
        shown: tuple[int, int] | None,
        caller: Caller | None,
    ) -> Initialised:
        """Answers InitProducerId. Raises TransactionRefused."""
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise TransactionRefused(ErrorCode.invalid_transaction_timeout)
        return await self._in_turn(
            transaction_id,
            caller,
            lambda coordinator, ledger: coordinator.initialise(ledger, timeout_ms, shown),
        )

    async def add(
        self, producer: Producer, queues: Iterable[QueueRoute], caller: Caller | None
    ) -> ErrorCode:
        """Answers AddPartitionsToTxn, and without queues AddOffsetsToTxn. Raises
        TransactionRefused."""
        return await self._in_turn(
            producer.transaction_id,
            caller,
            lambda coordinator, ledger: coordinator.add(ledger, producer, queues),
        )

    async def staged_in(self, producer: Producer, caller: Caller | None) -> StagedIn:
        """Returns the producer's open transaction, whichever gateway coordinates it. Raises
        TransactionRefused."""
        caller = caller or self._own
        _check_name(producer.transaction_id)
        ledger = self._ledger(caller, producer.transaction_id)
        try:
            found = await caller.session.await_run(ledger.find())
        except SemelError as error:
            raise _refused(error) from error
        row = found.row
        standing = standing_of(row, producer)
        if standing is Standing.ENDED:
            raise TransactionRefused(ErrorCode.invalid_txn_state)
        if (code := refusal(standing)) is not ErrorCode.none:
            raise TransactionRefused(code)
        # Only stagers of queues are sure to tell the transaction's own timeout.
        known = [
            one.timeout_ms for one in found.stages if one.epoch == row.begun_epoch and one.queues
        ]
        return StagedIn(
            producer.transaction_id,
            row.begun_epoch,
            timeout_ms=max(known, default=TIMEOUT_MS_UNKNOWN),
            ttl_ms=SLACK_MS + max(known, default=TIMEOUT_MS_MAX),
        )

    async def end(self, producer: Producer, committed: bool, caller: Caller | None) -> ErrorCode:
        """Answers EndTxn. Raises TransactionRefused."""
        return await self._in_turn(
            producer.transaction_id,
            caller,
            lambda coordinator, ledger: coordinator.end(ledger, producer, committed),
        )

    async def _in_turn(
        self,
        transaction_id: str,
        caller: Caller | None,
        call: Callable[[TransactionCoordinator, BrokerLedger], Awaitable[_Result]],
    ) -> _Result:
        caller = caller or self._own
        _check_name(transaction_id)
        if _chosen(transaction_id, self._gateways.present) != self._gateways.own:
            self._ids.pop((transaction_id, caller), None)
            raise TransactionRefused(ErrorCode.not_coordinator)
        one = self._ids.get((transaction_id, caller))
        if one is None:
            if len(self._ids) >= IDS_MAX:
                self._forget_idle(0.0)
            one = self._ids[transaction_id, caller] = _Coordinated(transaction_id, caller)
        one.used_s = time.monotonic()
        # Whoever asks may go away; the steps go on, and the next request waits for them.
        work = asyncio.get_running_loop().create_task(self._work(one, caller, call))
        try:
            return await asyncio.shield(work)
        except SemelError as error:
            logger.info("transaction failed id=%s error=%s", transaction_id, error.message)
            raise _refused(error) from error

    async def _work(
        self,
        one: _Coordinated,
        caller: Caller,
        call: Callable[[TransactionCoordinator, BrokerLedger], Awaitable[_Result]],
    ) -> _Result:
        session = caller.session
        async with one.turn:
            ledger = self._ledger(caller, one.coordinator.transaction_id)

            async def on_its_loop() -> _Result:
                return await call(one.coordinator, ledger)

            try:
                return await session.await_run(on_its_loop())
            finally:
                one.used_s = time.monotonic()
                self._time(one)

    def _ledger(self, caller: Caller, transaction_id: str) -> BrokerLedger:
        return BrokerLedger(
            caller.session.cluster, caller.transactions, transaction_id, self._risen
        )

    # --- time -------------------------------------------------------------------------------------

    def _time(self, one: _Coordinated) -> None:
        epoch, timeout_ms = one.coordinator.open_epoch, one.coordinator.open_timeout_ms
        if timeout_ms is not None and epoch != one.timed_epoch:
            one.timed_epoch, one.ends_s = epoch, time.monotonic() + timeout_ms / 1000

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for (name, _), one in list(self._ids.items()):
                epoch = one.coordinator.open_epoch
                if epoch >= 0 and epoch == one.timed_epoch and now >= one.ends_s:
                    one.ends_s = now + 1.0  # the next try, if this one fails
                    task = asyncio.get_running_loop().create_task(self._expire(name, one, epoch))
                    self._expiring.add(task)
                    task.add_done_callback(self._expiring.discard)
            self._forget_idle(IDLE_S)

    async def _expire(self, name: str, one: _Coordinated, epoch: int) -> None:
        async def call(coordinator: TransactionCoordinator, ledger: BrokerLedger) -> None:
            if coordinator.open_epoch == epoch:
                await coordinator.expire(ledger)

        try:
            await self._work(one, one.caller, call)
        except SemelError as error:
            logger.info("transaction failed id=%s error=%s", name, error.message)
        else:
            logger.info("transaction took too long id=%s", name)

    def _forget_idle(self, idle_s: float) -> None:
        now = time.monotonic()
        for key, one in list(self._ids.items()):
            idle = now - one.used_s >= idle_s and one.coordinator.open_epoch < 0
            # Who is gone can end nothing any more; brokers do when the time is over.
            if (idle or one.caller.is_gone) and not one.turn.locked():
                del self._ids[key]


def _chosen(transaction_id: str, present: Iterable[GatewayPlace]) -> GatewayPlace:
    """Returns the gateway whose name goes best with the id: who comes or goes moves no other."""

    def weight(place: GatewayPlace) -> bytes:
        text = f"{place.host}:{place.port} {transaction_id}".encode()
        return hashlib.sha256(text).digest()

    return max(present, key=weight)


def _check_name(transaction_id: str) -> None:
    fits = 0 < len(transaction_id) <= TRANSACTION_ID_CHARACTERS_MAX
    if not fits or not transaction_id.isprintable():
        raise TransactionRefused(ErrorCode.invalid_request)


def _refused(error: SemelError) -> TransactionRefused:
    if isinstance(error, QueueSealed):
        split = control_pb2.SplitQueue.FromString(error.split_record)
        return TransactionRefused(error_code(error), split=split)
    if not isinstance(error, PermissionDenied):
        retriable = ErrorCode.coordinator_not_available
        return TransactionRefused(retriable if error.retriable else error_code(error))
    if not error.resource:  # an older broker does not say what is lacking
        return TransactionRefused(ErrorCode.transactional_id_authorization_failed)
    return TransactionRefused(error_code(error), error.resource)
