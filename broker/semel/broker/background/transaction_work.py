"""Finishes transactions whose client may never return: publishes, settles, ends and forgets them.

How it works. The replicated state holds everything that has yet to happen, so each new master goes
on where the last one was:

    a decided epoch that is not published everywhere   tell the participants, then log FINISH
    a pin that is older than `transaction_pin_ms`      ask the coordinator, which may abort it
    a stager whose time is over                        log its end
    a transaction that was idle for very long          forget it

A commit does not wait for the next look: `redrive` begins with the decision.

Invariants
1. Only the coordinator's decision ends a pin: it is published if that was commit, else dropped.
2. FINISH is logged only after every participant has said that its part is published and durable.

Not here: the rules (`state/`), a publication itself (`publication.py`), the calls as clients see
them (`server/transactions_service.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from semel.broker.background.publication import Publications
from semel.broker.config import BrokerConfig
from semel.broker.control_plane.group_calls import GroupCalls
from semel.broker.replica.replica import Replica
from semel.broker.state import Pin, TransactionApplied
from semel.protos.errors import NotMaster, SemelError, TransactionAborted
from semel.protos.v1 import control_pb2, transaction_records_pb2

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.2
FORGET_LOOK_S: Final = 60.0
CALL_S: Final = 5.0
PAUSE_MAX_S: Final = 5.0
AT_ONCE_MAX: Final = 1_000


class Dropped(NamedTuple):
    """How many messages a publication has dropped because their ids were known."""

    duplicates: int
    conflicts: int
    """Those that had other content than the first."""


class TransactionWork:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, config: BrokerConfig, replica: Replica, calls: GroupCalls) -> None:
        self._config = config
        self._replica = replica
        self._calls = calls
        self._publications = Publications(replica)
        self._working: dict[str, asyncio.Task[bool]] = {}
        """Tasks under way, by what they do about which transaction: each at most once."""
        self._dropped: dict[tuple[str, int], dict[int, Dropped]] = {}
        """By transaction and epoch, then by broker group, for the answer to the commit; the oldest
        are forgotten."""
        self._published: dict[tuple[str, int], Dropped] = {}
        """By transaction and attempt, for the coordinator, whose calls do not wait as long as a
        publication may take; the oldest are forgotten."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """After a failure: when to try again, and the pause after that; in seconds."""

    async def submit(self, **step: Any) -> Any:
        """The result of a step once it is applied. Raises its refusal, NotMaster, Throttled."""
        record = transaction_records_pb2.TransactionRecord(**step)
        result = await self._replica.submit_control(control_pb2.ControlRecord(transaction=record))
        if isinstance(result, TransactionApplied):
            if result.error is not None:
                raise result.error
            return result.value
        return result

    # --- coordinator ------------------------------------------------------------------------

    async def redrive(self, transaction_id: str) -> bool:
        """Publishes a decided epoch; True once it is published everywhere.

        The work goes on when the call is cancelled.
        """
        return await asyncio.shield(
            self._once(f"publish {transaction_id}", self._publish_everywhere(transaction_id))
        )

    async def _publish_everywhere(self, transaction_id: str) -> bool:
        row = self._replica.state.transactions.coordination.rows.get(transaction_id)
        if row is None or row.published:
            return True
        epoch, attempt, groups = row.epoch, row.decided_attempt, tuple(row.participants)
        record = transaction_records_pb2.PublishTransaction(
            transaction_id=transaction_id, epoch=epoch, attempt=attempt
        )
        results = await asyncio.gather(
            *(self._publish_on(group, record) for group in groups),
            return_exceptions=True,
        )
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, Dropped):
                self._note((transaction_id, epoch), group, result)
            else:
                if not isinstance(result, SemelError):
                    raise result
                logger.info(
                    "not published yet transaction=%s epoch=%d error=%s",
                    transaction_id,
                    epoch,
                    result,
                )
        if any(isinstance(result, BaseException) for result in results):
            return False
        await self.submit(
            finish=transaction_records_pb2.FinishTransaction(
                transaction_id=transaction_id, epoch=epoch
            )
        )
        return True

    async def _publish_on(
        self, group: int, record: transaction_records_pb2.PublishTransaction
    ) -> Dropped:
        if group == self._config.group_id:
            return await self.publish(record)
        reply = await self._calls.call(group, "Publish", record, CALL_S)
        return Dropped(reply.duplicates, reply.conflicts)

    def take_dropped(self, transaction_id: str, epoch: int) -> Dropped:
        """What the publications have dropped, as far as this node knows; it is told once."""
        found = self._dropped.pop((transaction_id, epoch), {}).values()
        return Dropped(
            sum(each.duplicates for each in found), sum(each.conflicts for each in found)
        )

    def _note(self, name: tuple[str, int], group: int, dropped: Dropped) -> None:
        if not any(dropped):
            return
        logger.info(
            "messages with known ids dropped transaction=%s epoch=%d duplicates=%d conflicts=%d",
            *(*name, dropped.duplicates, dropped.conflicts),
        )
        self._dropped.setdefault(name, {})[group] = dropped
        if len(self._dropped) > AT_ONCE_MAX:  # nobody asks about those that were never answered
            del self._dropped[next(iter(self._dropped))]

    # --- participant ------------------------------------------------------------------------

    async def publish(self, record: transaction_records_pb2.PublishTransaction) -> Dropped:
        """Returns once the attempt's pin is published, and what was dropped of it, as far as this
        node has published it. Every call returns the same.

        The work goes on when the call is cancelled. Raises SemelError.
        """
        await self._replica.confirm_read()
        name, attempt = record.transaction_id, record.attempt
        if self._replica.state.transactions.staging.pin_of(name, attempt) is not None:
            work = self._publish_here(record)
            await asyncio.shield(self._once(f"publish here {name} {attempt}", work))
        return self._published.get((name, attempt), Dropped(0, 0))

    async def _publish_here(self, record: transaction_records_pb2.PublishTransaction) -> bool:
        asked = transaction_records_pb2.PublishTransaction()
        asked.CopyFrom(record)
        try:
            published = await self._publications.publish(asked)
        except TransactionAborted:
            return True  # another call has ended its pin
        dropped = Dropped(published.duplicates, published.conflicts)
        if any(dropped):
            self._published[record.transaction_id, record.attempt] = dropped
            if len(self._published) > AT_ONCE_MAX:
                del self._published[next(iter(self._published))]
        return True

    async def settle(self, transaction_id: str) -> bool:
        """Asks the coordinator about a pin and obeys its decision; True if no pin is left."""
        return await asyncio.shield(
            self._once(f"settle {transaction_id}", self._settle(transaction_id))
        )

    async def _settle(self, transaction_id: str) -> bool:
        pin = self._replica.state.transactions.staging.pins.get(transaction_id)
        if pin is None:
            return True
        if await self._is_committed(pin):
            await self.publish(
                transaction_records_pb2.PublishTransaction(
                    transaction_id=transaction_id, epoch=pin.epoch, attempt=pin.attempt
                )
            )
        else:
            logger.info("transaction aborted transaction=%s epoch=%d", transaction_id, pin.epoch)
            await self.submit(
                drop_pin=transaction_records_pb2.DropPin(
                    transaction_id=transaction_id, attempt=pin.attempt
                )
            )
        return True

    async def _is_committed(self, pin: Pin) -> bool:
        record = transaction_records_pb2.AbortTransaction(
            transaction_id=pin.transaction_id, attempt=pin.attempt
        )
        if pin.coordinator == self._config.group_id:
            (committed,) = await self.submit(abort=record)
            return bool(committed)
        reply = await self._calls.call(pin.coordinator, "Abort", record, CALL_S)
        return bool(reply.committed)

    # --- the background task ----------------------------------------------------------------

    def _once(self, name: str, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        """The task that does this work now; a new one if there is none."""
        task = self._working.get(name)
        if task is not None and not task.done():
            work.close()
            return task
        task = self._working[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._on_done(name, done))
        return task

    def _on_done(self, name: str, task: asyncio.Task[bool]) -> None:
        if self._working.get(name) is task:
            del self._working[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is None and task.result():
            self._pauses.pop(name, None)
            return
        if error is not None and not isinstance(error, SemelError):
            logger.error("transaction not looked after what=%s", name, exc_info=error)
        now = asyncio.get_running_loop().time()
        _, pause = self._pauses.get(name, (0.0, LOOK_S))
        self._pauses[name] = now + pause, min(2 * pause, PAUSE_MAX_S)

    def _look(self, name: str, work: Coroutine[Any, Any, bool]) -> None:
        not_before, _ = self._pauses.get(name, (0.0, 0.0))
        if asyncio.get_running_loop().time() < not_before:
            work.close()
        else:
            self._once(name, work)

    async def run(self) -> None:
        """Ends only by cancellation."""
        forget_at = 0.0
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if not self._replica.is_master:
                    self._pauses.clear()
                    continue
                self._look_at_pins()
                for name in list(self._replica.state.transactions.coordination.unpublished):
                    self._look(f"publish {name}", self._publish_everywhere(name))
                await self._end_expired()
                now = asyncio.get_running_loop().time()
                if now >= forget_at:
                    forget_at = now + FORGET_LOOK_S
                    await self._forget_idle()
        finally:
            for task in list(self._working.values()):
                task.cancel()

    def _look_at_pins(self) -> None:
        patience_us = self._config.transaction_pin_ms * 1000
        now_us = self._replica.log_time_us()
        for pin in list(self._replica.state.transactions.staging.pins.values()):
            if pin.pinned_us + patience_us <= now_us:
                name = pin.transaction_id
                self._look(f"settle {name}", self._settle(name))

    async def _end_expired(self) -> None:
        staging = self._replica.state.transactions.staging
        expired = staging.expired(self._replica.log_time_us(), AT_ONCE_MAX)
        if expired:
            logger.info("staged batches given up, their time is over stagers=%d", len(expired))
            drop = transaction_records_pb2.DropStagers(stager_ids=expired, expired_only=True)
            await self._quietly(drop_stagers=drop)

    async def _forget_idle(self) -> None:
        config = self._config
        idle = self._replica.state.transactions.coordination.idle(
            self._replica.log_time_us(),
            config.transaction_idle_ms * 1000,
            AT_ONCE_MAX,
        )
        if idle:
            await self._quietly(
                forget=transaction_records_pb2.ForgetTransactions(transaction_ids=idle)
            )

    async def _quietly(self, **step: Any) -> None:
        try:
            await self.submit(**step)
        except NotMaster:
            pass  # the next master does it
        except SemelError as error:
            logger.warning("not done, it is tried again step=%s error=%s", list(step), error)
