"""The work of a transaction of one program, and of one writer's stage, for both halves of the API.

How it works. Entering the context begins an attempt at the coordinator, which ends all other
attempts under the same id. Messages are staged under the epoch that the coordinator returned.
Leaving the context commits, or gives everything up.

| the program dies | then |
|---|---|
| before DECIDE | no message is ever visible; staged batches end by their time |
| after it | the brokers publish all of it; `last_epoch` under the same id shows that |

Not here: the API (`api/aio_transactions.py`, and what is generated from it).
"""

from __future__ import annotations

from semel.client.config import ProducerConfig
from semel.client.session import Session
from semel.client.transactions.commit import Begun, Committed
from semel.client.transactions.staging import TTL_MS_DEFAULT, StageCore, StageReceipt
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.staging import (
    EPOCH_END,
    TRANSACTION_ID_CHARACTERS_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
)


def check_names(transaction_id: object, query_id: object, epoch: object) -> None:
    """Raises InvalidRequest."""
    for what, name, least in (("transaction id", transaction_id, 1), ("query id", query_id, 0)):
        if (
            not isinstance(name, str)
            or not least <= len(name) <= TRANSACTION_ID_CHARACTERS_MAX
            or (name and not name.isprintable())
        ):
            raise InvalidRequest(
                f"a {what} has {least} to {TRANSACTION_ID_CHARACTERS_MAX} printable characters:"
                f" {name!r}"
            )
    if epoch is not None and (type(epoch) is not int or not 0 <= epoch < EPOCH_END):
        raise InvalidRequest(f"an epoch is a whole number from 0, not {epoch!r}")


def check_ttl(ttl_ms: object) -> None:
    """Raises InvalidRequest."""
    if type(ttl_ms) is not int or not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise InvalidRequest(f"ttl_ms is from one second to seven days, not {ttl_ms!r}")


class TransactionWork:
    """One epoch of one transaction. Its coroutines run on the I/O thread."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        transaction_id: str,
        query_id: str,
        epoch: int | None,
        *,
        blocking: bool,
        ttl_ms: int = TTL_MS_DEFAULT,
    ) -> None:
        check_names(transaction_id, query_id, epoch)
        check_ttl(ttl_ms)
        self.transaction_id = transaction_id
        self.begun: Begun | None = None
        self.stage: StageCore | None = None
        self.result: Committed | None = None
        self._session = session
        self._config = config
        self._query_id = query_id
        self._epoch = epoch
        self._blocking = blocking
        self._ttl_ms = ttl_ms
        self._core = session.transactions
        self._ended = False

    async def begin(self) -> None:
        """Begins the attempt. Raises SemelError."""
        if self.begun is not None:
            raise InvalidRequest("a transaction is entered once; make another one")
        self.begun = await self._core.begin(self.transaction_id, self._query_id, self._epoch)

    def open_stage(self) -> StageCore:
        """Returns the stage for messages. Raises InvalidRequest outside of the context, and when
        the epoch is committed."""
        if self.begun is None or self._ended or self.result is not None:
            raise InvalidRequest("messages are sent inside of `with producer.transaction(id) as t`")
        if not self.begun.attempt:
            raise InvalidRequest(
                f"epoch {self.begun.epoch} of transaction {self.transaction_id!r} is committed"
                " already: look at `t.committed` before sending"
            )
        if self.stage is None:
            self.stage = self._session.new_stage(
                self._config,
                self.transaction_id,
                self.begun.epoch,
                writer=0,
                ttl_ms=self._ttl_ms,
                blocking=self._blocking,
            )
        return self.stage

    async def commit(self) -> Committed:
        """Commits; a repeated call returns the same result. Raises like
        `TransactionCore.commit`."""
        if self.result is not None:
            return self.result
        if self.begun is None or self._ended:
            raise InvalidRequest("this transaction is not open")
        receipts: list[StageReceipt] = []
        if self.stage is not None:
            try:
                receipts.append(await self.stage.receipt())
            except SemelError:
                await self.abort()
                raise
        self.result = await self._core.commit(
            self.transaction_id,
            self._query_id,
            self.begun.epoch,
            [receipt for receipt in receipts if receipt.parts],
            self.begun,
        )
        self._close()
        return self.result

    async def abort(self) -> None:
        """Gives everything up, unless it is committed, perhaps by a call whose reply was lost."""
        if self.result is not None or self._ended or self.begun is None:
            return
        self._ended = True
        self._close()
        if await self._core.abort(self.transaction_id, self.begun, ()):
            messages = 0 if self.stage is None else (await self.stage.receipt()).messages
            self.result = Committed(self.begun.epoch, messages, replayed=False)
        elif self.stage is not None:
            await self._core.drop_stagers(await self.stage.stager.end())

    async def leave(self) -> None:
        """The context ends without an exception: commits, unless a call has committed or
        aborted."""
        if self.result is None and not self._ended:
            try:
                await self.commit()
            finally:
                self._close()

    def _close(self) -> None:
        if self.stage is not None:
            self.stage.close()


class TransactionProperties:
    """The state of a transaction as programs see it, in both halves of the API."""

    def __init__(self, work: TransactionWork) -> None:
        self._work = work

    @property
    def epoch(self) -> int:
        """The number of this transaction under its id; -1 before it is entered."""
        return -1 if self._work.begun is None else self._work.begun.epoch

    @property
    def last_epoch(self) -> int:
        """The newest epoch that was committed before this one; -1 for none."""
        return -1 if self._work.begun is None else self._work.begun.last_epoch

    @property
    def committed(self) -> bool:
        """It is committed: by this program, or before it was entered."""
        begun = self._work.begun
        return self._work.result is not None or (begun is not None and not begun.attempt)


class StageWork:
    """One writer's part of a transaction that somebody else commits."""

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        transaction_id: str,
        epoch: int,
        writer: int,
        *,
        blocking: bool,
        ttl_ms: int,
    ) -> None:
        check_names(transaction_id, "", epoch)
        check_ttl(ttl_ms)
        if type(writer) is not int or not 0 <= writer < 1 << 32:
            raise InvalidRequest(f"a writer is a whole number of 32 bits, not {writer!r}")
        self.core = session.new_stage(
            config, transaction_id, epoch, writer=writer, ttl_ms=ttl_ms, blocking=blocking
        )
        self._transactions = session.transactions

    async def receipt(self) -> StageReceipt:
        """Returns the receipt once everything is staged. Raises TransactionAborted."""
        receipt = await self.core.receipt()
        self.core.close()
        return receipt

    async def abort(self) -> None:
        """Gives everything up."""
        self.core.close()
        await self._transactions.drop_stagers(await self.core.stager.end())
