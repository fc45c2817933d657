"""Transactions as programs use them, for asyncio.

`producer.transaction(id)` is for one program; `client.transactions` for writers in many processes
with one that commits.

The synchronous half, `api/sync_transactions.py`, is generated from this module by
`tools/unasync.py`, which explains the marks in the comments.

Not here: what happens (`api/transaction_work.py`, `transactions/commit.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from semel.client.api.transaction_work import (
    StageWork,
    TransactionProperties,
    TransactionWork,
    check_names,
)
from semel.client.config import ProducerConfig, build
from semel.client.core.dues import After, When
from semel.client.core.fields import Headers
from semel.client.producer.rare_fields import rare_fields
from semel.client.session import Session
from semel.client.transactions.commit import Committed
from semel.client.transactions.staging import TTL_MS_DEFAULT, StageCore, StageReceipt
from semel.client.transactions.transaction_info import TransactionInfo
from semel.protos.errors import SemelError

_BLOCKS: Final = False  # asyncio only
# sync: _BLOCKS: Final = True
"""Whether sending may block the caller while the buffer is full."""


class AsyncProducerTransaction(TransactionProperties):
    """Messages that become visible together, or never. Use it as an async context manager."""

    def __init__(self, session: Session, work: TransactionWork) -> None:
        super().__init__(work)
        self._session = session

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        queue: int | None = None,
        deliver_at: When | None = None,
        deliver_after: After | None = None,
        message_id: bytes | str | None = None,
    ) -> None:
        """Stages one message, awaiting room in the buffer. Raises like `Producer.send`.

        One with a due time becomes visible at that time, if the transaction is committed by then.
        """
        stage = self._work.open_stage()
        await _room(self._session, stage)  # asyncio only
        rare = rare_fields(deliver_at, deliver_after, message_id)
        stage.intake.append(topic, value, key, headers, timestamp_us, queue, None, _BLOCKS, *rare)

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps_us: Any = None,
        queue: int | None = None,
        deliver_at: Any = None,
        message_ids: Any = None,
    ) -> None:
        """Stages many messages: lists, or Arrow arrays. Raises like `Producer.send_many`."""
        stage = self._work.open_stage()
        await _append_many(
            self._session,
            stage,
            topic,
            values,
            keys,
            headers,
            timestamps_us,
            queue,
            deliver_at,
            message_ids,
        )

    async def commit(self) -> Committed:
        """Makes everything that was sent visible, all or nothing; leaving the context does it, too.

        May be called again, also after an error that says the outcome is unknown. Raises
        TransactionAborted (nothing is stored), TransactionFenced (another program has begun under
        the same id; nothing is stored), Unavailable or TimedOut (unknown: call it again).
        """
        return await self._session.await_run(self._work.commit())

    async def abort(self) -> None:
        """Gives up everything that was sent."""
        await self._session.await_run(self._work.abort())

    async def __aenter__(self) -> Self:
        await self._session.await_run(self._work.begin())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self._session.await_run(self._work.leave())
        else:
            with contextlib.suppress(SemelError):
                await self.abort()


class AsyncStage:
    """One writer's part of a transaction; `receipt` says what it has staged."""

    def __init__(self, session: Session, work: StageWork) -> None:
        self._session = session
        self._work = work
        self._given = False

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        queue: int | None = None,
        deliver_at: When | None = None,
        deliver_after: After | None = None,
        message_id: bytes | str | None = None,
    ) -> None:
        """Stages one message. See `AsyncProducerTransaction.send`."""
        self._session.check()
        stage = self._work.core
        await _room(self._session, stage)  # asyncio only
        rare = rare_fields(deliver_at, deliver_after, message_id)
        stage.intake.append(topic, value, key, headers, timestamp_us, queue, None, _BLOCKS, *rare)

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps_us: Any = None,
        queue: int | None = None,
        deliver_at: Any = None,
        message_ids: Any = None,
    ) -> None:
        """Stages many messages. See `AsyncProducerTransaction.send_many`."""
        self._session.check()
        await _append_many(
            self._session,
            self._work.core,
            topic,
            values,
            keys,
            headers,
            timestamps_us,
            queue,
            deliver_at,
            message_ids,
        )

    async def receipt(self) -> StageReceipt:
        """Returns once everything is staged, and closes the stage. Raises TransactionAborted."""
        receipt = await self._session.await_run(self._work.receipt())
        self._given = True
        return receipt

    async def abort(self) -> None:
        """Gives everything up; for a stage whose receipt nobody will commit."""
        await self._session.await_run(self._work.abort())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives up what was staged if there was an error, or no receipt was taken."""
        if kind is not None or not self._given:
            with contextlib.suppress(SemelError):
                await self.abort()


class AsyncTransactions:
    """Transactions with many writers, and reports on all transactions."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stage(
        self,
        transaction_id: str,
        epoch: int,
        *,
        writer: int = 0,
        ttl_ms: int = TTL_MS_DEFAULT,
        **options: Any,
    ) -> AsyncStage:
        """A writer's stage for one epoch; other options are the fields of `ProducerConfig`.

        `writer` orders what is published. An attempt at the same work is another stage; only those
        whose receipt is committed count. What nobody commits ends `ttl_ms` after its last batch.
        """
        self._session.check()
        config = build(ProducerConfig, options)
        work = StageWork(
            self._session, config, transaction_id, epoch, writer, blocking=_BLOCKS, ttl_ms=ttl_ms
        )
        return AsyncStage(self._session, work)

    async def commit(
        self, transaction_id: str, query_id: str, epoch: int, receipts: Iterable[StageReceipt]
    ) -> Committed:
        """Makes the messages of the receipts visible, all or nothing, and no others of the epoch.
        An epoch that is committed already is a success (`replayed`).

        Raises TransactionConflict when the id belongs to another query, TransactionAborted and
        TransactionFenced when nothing is stored, Unavailable or TimedOut when that is unknown: the
        same call again settles it.
        """
        check_names(transaction_id, query_id, epoch)
        named = [receipt for receipt in receipts if receipt.parts]
        core = self._session.transactions
        return await self._session.await_run(core.commit(transaction_id, query_id, epoch, named))

    async def abort(self, receipts: Iterable[StageReceipt]) -> None:
        """Gives up staged messages that no commit is about to publish, as far as brokers answer."""
        await self._session.await_run(self._session.transactions.drop(list(receipts)))

    async def list(self) -> list[TransactionInfo]:
        """Returns all transactions that the brokers know, by id. Raises Unavailable."""
        return await self._session.await_run(self._session.transactions.describe())

    async def describe(self, transaction_id: str) -> TransactionInfo | None:
        """Returns one transaction, or None if no broker knows it. Raises Unavailable."""
        check_names(transaction_id, "", None)
        core = self._session.transactions
        found = await self._session.await_run(core.describe(transaction_id))
        return next(iter(found), None)

    async def end(self, transaction_id: str) -> TransactionInfo | None:
        """Aborts every open step of a transaction and returns its state before. What is committed
        stays."""
        check_names(transaction_id, "", None)
        core = self._session.transactions
        return await self._session.await_run(core.end(transaction_id))


async def _append_many(
    session: Session,
    stage: StageCore,
    topic: str,
    values: Any,
    keys: Any,
    headers: Any,
    timestamps_us: Any,
    queue: int | None,
    deliver_at: Any,
    message_ids: Any,
) -> None:
    await session.await_run(stage.opened(topic))  # asyncio only
    opened, pieces = stage.intake.bulk_pieces(
        topic, values, keys, headers, timestamps_us, None, deliver_at, message_ids
    )
    done = 0
    try:
        for piece in pieces:
            await _room(session, stage)  # asyncio only
            stage.intake.append_piece(opened, piece, queue, _BLOCKS)
            done += 1
    except BaseException as error:
        stage.intake.on_bulk_given_up(pieces[done:], error)
        raise


async def _room(session: Session, stage: StageCore) -> None:  # asyncio only
    if not stage.intake.has_room():
        await session.await_run(stage.wait_room())
