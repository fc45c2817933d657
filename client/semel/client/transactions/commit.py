"""Commits of transactions: begin, pin, decide, and how to settle a doubtful outcome.

How it works. One broker group coordinates. BEGIN returns an attempt, PIN fixes on every participant
which batches are published, DECIDE is the commit; after it the brokers publish by themselves. Every
step may be repeated, so a lost reply is handled by another call.

The coordinator is the group with the lowest number. If groups with lower numbers were added, the
client searches the group that knows the transaction, so every commit under an id finds its past.

Invariants
1. A commit succeeds only after DECIDE was applied, and returns only once every participant has
   published.
2. After a failed commit the attempt is aborted, unless DECIDE may have been applied. Then the error
   says that the outcome is unknown, and the same call again settles it.

Not here: staging (`transactions/staging.py`), the API (`api/aio_transactions.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from semel.client.transactions.staging import SERVICE, StageReceipt
from semel.client.transactions.transaction_info import (
    TransactionInfo,
    TransactionPart,
    TransactionProgress,
)
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import says_little
from semel.protos.errors import (
    FencedError,
    InvalidRequest,
    SemelError,
    TransactionAborted,
    TransactionFenced,
    Unavailable,
)
from semel.protos.ids import GroupId
from semel.protos.staging import coordinator_of
from semel.protos.v1 import common_pb2, transaction_records_pb2, transactions_pb2

CLEAN_UP_S: Final = 2.0
PUBLISH_POLL_S: Final = 0.05
COORDINATORS_MAX: Final = 10_000
"""Number of transaction ids whose coordinator is remembered."""


class Begun(NamedTuple):
    """One attempt at an epoch."""

    epoch: int
    attempt: int
    """The attempt's number; 0 if the epoch is committed already."""
    last_epoch: int
    """Newest committed epoch; -1 for none."""


class Committed(NamedTuple):
    """A committed epoch."""

    epoch: int
    messages: int
    """Messages in the receipts."""
    replayed: bool
    """It was committed before; the receipts' messages are not stored again."""
    duplicates: int = 0
    """Messages that are not stored again, because their topic compares message ids and had them. 0
    if that is not known: the commit was replayed, or a broker had to finish it by itself."""
    conflicts: int = 0
    """Messages that are not stored, because their topic has their ids with other content; likewise
    0 if that is not known."""


class TransactionCore:
    """All transactions of one client. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, GroupId] = {}

    # --- committing -----------------------------------------------------------------------------

    async def begin(self, transaction_id: str, query_id: str, epoch: int | None) -> Begun:
        """Begins a new attempt and ends older ones. Raises TransactionConflict, DedupStateExpired,
        InvalidRequest, Unavailable."""
        coordinator = await self.coordinator(transaction_id)
        request = transaction_records_pb2.BeginTransaction(
            transaction_id=transaction_id, query_id=query_id
        )
        if epoch is not None:
            request.epoch = epoch
        reply = await self._call(coordinator, "Begin", request)
        return Begun(reply.epoch, reply.attempt, reply.last_epoch)

    async def commit(
        self,
        transaction_id: str,
        query_id: str,
        epoch: int | None,
        receipts: Sequence[StageReceipt],
        begun: Begun | None = None,
    ) -> Committed:
        """Publishes the receipts' messages, all or nothing. Raises TransactionAborted,
        TransactionFenced, TransactionConflict; Unavailable or TimedOut when the outcome is unknown:
        the same call again settles it."""
        for receipt in receipts:
            if receipt.transaction_id != transaction_id or epoch not in (None, receipt.epoch):
                raise InvalidRequest(
                    f"a receipt of epoch {receipt.epoch} of transaction"
                    f" {receipt.transaction_id!r} cannot be committed with epoch {epoch} of"
                    f" {transaction_id!r}"
                )
        begun = begun or await self.begin(transaction_id, query_id, epoch)
        messages = sum(receipt.messages for receipt in receipts)
        if not begun.attempt:
            await self.published(transaction_id, begun.epoch)
            await self.drop(receipts)
            return Committed(begun.epoch, messages, replayed=True)
        coordinator = await self.coordinator(transaction_id)
        pins = _pins(transaction_id, begun, coordinator, receipts)
        try:
            await _all(
                self._call(
                    group,
                    "Pin",
                    transactions_pb2.PinRequest(pin=pin, known=self._known([coordinator])),
                )
                for group, pin in pins.items()
            )
        except SemelError as error:
            # Perhaps an earlier call, whose reply was lost, got further than this one.
            told = await self._fate(transaction_id, begun)
            if told is None:
                await self.published(transaction_id, begun.epoch)
                return Committed(begun.epoch, messages, replayed=False)
            await self._give_up(transaction_id, pins, receipts)
            raise (told if isinstance(told, TransactionFenced) else error) from told
        decide = transaction_records_pb2.DecideTransaction(
            transaction_id=transaction_id,
            epoch=begun.epoch,
            attempt=begun.attempt,
            participants=sorted(pins),
        )
        request = transactions_pb2.DecideRequest(decide=decide, known=self._known(pins))
        give_up = time.monotonic() + self._cluster.config.request_timeout_ms / 1000
        try:
            while not (reply := await self._call(coordinator, "Decide", request)).published:
                if time.monotonic() > give_up:
                    raise _unpublished(transaction_id, begun.epoch)
                await asyncio.sleep(PUBLISH_POLL_S)
        except (FencedError, TransactionAborted):
            await self._give_up(transaction_id, pins, receipts)
            raise
        return Committed(
            begun.epoch,
            messages,
            replayed=False,
            duplicates=reply.duplicates,
            conflicts=reply.conflicts,
        )

    async def _fate(self, transaction_id: str, begun: Begun) -> SemelError | None:
        """Aborts the attempt and returns the error that says why it never commits, or None if it is
        committed.

        Raises Unavailable when the coordinator does not answer: then the outcome is unknown.
        """
        name = f"epoch {begun.epoch} of transaction {transaction_id!r}"
        coordinator = await self.coordinator(transaction_id)
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=transaction_id)
        try:
            if await self.abort_attempt(transaction_id, begun.attempt):
                return None
            reply = await self._call(coordinator, "Describe", request)
        except SemelError as error:
            raise Unavailable(
                f"whether {name} is committed is not known ({error.message}); commit again"
            ) from error
        for row in reply.coordinated:
            if row.epoch > begun.epoch:
                return TransactionFenced(
                    f"somebody has committed epoch {row.epoch} of transaction {transaction_id!r}"
                    f" since; who committed epoch {begun.epoch} is not known any more"
                )
            if row.attempt or row.epoch == begun.epoch:
                return TransactionFenced(
                    f"somebody has begun {name} anew; nothing of it is stored by this program"
                )
        return TransactionAborted(f"{name} is aborted, nothing of it is stored")

    async def published(self, transaction_id: str, epoch: int) -> None:
        """Returns once a committed epoch is published everywhere. Raises Unavailable."""
        coordinator = await self.coordinator(transaction_id)
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=transaction_id)
        give_up = time.monotonic() + self._cluster.config.request_timeout_ms / 1000
        while True:
            reply = await self._call(coordinator, "Describe", request)
            if not any(row.epoch == epoch and not row.published for row in reply.coordinated):
                return
            if time.monotonic() > give_up:
                raise _unpublished(transaction_id, epoch)
            await asyncio.sleep(PUBLISH_POLL_S)

    # --- giving up ------------------------------------------------------------------------------

    async def abort(
        self, transaction_id: str, begun: Begun | None, receipts: Sequence[StageReceipt]
    ) -> bool:
        """Gives up what was staged, as far as the brokers answer; the rest ends by its time.
        Returns True, and gives up nothing, if the attempt was committed before."""
        if begun is not None and begun.attempt:
            with contextlib.suppress(SemelError):
                if await self.abort_attempt(transaction_id, begun.attempt):
                    return True
        await self.drop(receipts)
        return False

    async def drop(self, receipts: Iterable[StageReceipt]) -> None:
        """Gives staged batches up, as far as the brokers answer."""
        stagers: dict[GroupId, set[int]] = {}
        for receipt in receipts:
            for group in _groups_of(receipt):
                stagers.setdefault(group, set()).add(receipt.stager_id)
        await self.drop_stagers(stagers)

    async def drop_stagers(self, stagers: dict[GroupId, set[int]]) -> None:
        """Gives up the batches of stagers, listed by broker group, as far as the brokers answer."""
        await asyncio.gather(
            *(
                self._call(
                    group,
                    "Drop",
                    transaction_records_pb2.DropStagers(stager_ids=sorted(numbers)),
                    CLEAN_UP_S,
                )
                for group, numbers in stagers.items()
            ),
            return_exceptions=True,
        )

    async def abort_attempt(self, transaction_id: str, attempt: int) -> bool:
        """Returns whether an attempt is committed; if it is not, it never will be. Raises
        Unavailable."""
        coordinator = await self.coordinator(transaction_id)
        record = transaction_records_pb2.AbortTransaction(
            transaction_id=transaction_id, attempt=attempt
        )
        return bool((await self._call(coordinator, "Abort", record, CLEAN_UP_S)).committed)

    async def _give_up(
        self, transaction_id: str, pins: Iterable[GroupId], receipts: Sequence[StageReceipt]
    ) -> None:
        """Ends stages: pinned batches by the coordinator's decision, the rest at once, as far as
        brokers answer."""
        with contextlib.suppress(SemelError):
            await self._settle(transaction_id, pins, CLEAN_UP_S)
        await self.drop(receipts)

    async def _settle(
        self, transaction_id: str, groups: Iterable[GroupId], timeout_s: float | None = None
    ) -> None:
        request = transactions_pb2.SettleRequest(transaction_id=transaction_id)
        await _all(self._call(group, "Settle", request, timeout_s) for group in groups)

    # --- for operators --------------------------------------------------------------------------

    async def describe(self, transaction_id: str = "") -> list[TransactionInfo]:
        """Returns all transactions that a broker group knows, or one of them. Raises
        Unavailable."""
        return merged(await self.described(transaction_id))

    async def end(self, transaction_id: str) -> TransactionInfo | None:
        """Aborts every open step of a transaction, on every broker group. Returns what it was
        before, or None if no group knows it. What is committed stays, and is published."""
        before = await self.described(transaction_id)
        found = merged(before)
        if not found:
            return None
        await self.abort_attempt(transaction_id, 0)
        stagers = {
            group: {one.stager_id for one in reply.staged}
            for group, reply in before.items()
            if reply.staged
        }
        pinned = [group for group, reply in before.items() if reply.pinned]
        await self._settle(transaction_id, pinned)
        await self.drop_stagers(stagers)
        return found[0]

    async def coordinated(self, transaction_id: str) -> transactions_pb2.DescribeTransactionsReply:
        """Returns what the coordinating broker group knows. Raises Unavailable."""
        coordinator = await self.coordinator(transaction_id)
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=transaction_id)
        return await self._call(coordinator, "Describe", request)  # type: ignore[no-any-return]

    async def described(
        self, transaction_id: str
    ) -> dict[GroupId, transactions_pb2.DescribeTransactionsReply]:
        """Returns what every broker group knows. Raises Unavailable."""
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=transaction_id)
        groups = sorted(self._cluster.routes.groups())
        replies = await _all(self._call(group, "Describe", request) for group in groups)
        return dict(zip(groups, replies, strict=True))

    # --- the coordinator ------------------------------------------------------------------------

    async def coordinator(self, transaction_id: str) -> GroupId:
        """Returns the broker group that decides. Raises Unavailable."""
        known = self._coordinators.get(transaction_id)
        if known is not None:
            return known
        groups = sorted(self._cluster.routes.groups())
        if not groups:
            raise Unavailable("no broker group is known")
        chosen = coordinator_of(groups)
        request = transactions_pb2.DescribeTransactionsRequest(transaction_id=transaction_id)
        if len(groups) > 1 and not (await self._call(chosen, "Describe", request)).coordinated:
            replies = await self.described(transaction_id)
            past = [group for group in groups if replies[group].coordinated]
            chosen = past[0] if past else chosen
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[transaction_id] = chosen
        return chosen

    def _known(self, groups: Iterable[GroupId]) -> list[transactions_pb2.KnownGroup]:
        return [
            transactions_pb2.KnownGroup(
                group_id=group, addresses=self._cluster.routes.replicas(group)
            )
            for group in groups
        ]

    async def _call(
        self, group: GroupId, method: str, request: Any, timeout_s: float | None = None
    ) -> Any:
        return await self._cluster.call_master(group, method, request, timeout_s, service=SERVICE)


def _unpublished(transaction_id: str, epoch: int) -> Unavailable:
    return Unavailable(
        f"epoch {epoch} of transaction {transaction_id!r} is committed, but not every broker group"
        " has published it yet; they go on by themselves"
    )


async def _all(calls: Iterable[Any]) -> list[Any]:
    """Returns all answers, once every call has ended. Raises the most specific error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise min(failures, key=says_little)
    return results


def _groups_of(receipt: StageReceipt) -> list[GroupId]:
    """Returns the broker groups that have staged something of a receipt, each once."""
    numbers = [*(part.group_id for part in receipt.parts), *(group for group, _ in receipt.commits)]
    return [GroupId(number) for number in dict.fromkeys(numbers)]


def _pins(
    transaction_id: str, begun: Begun, coordinator: GroupId, receipts: Sequence[StageReceipt]
) -> dict[GroupId, transaction_records_pb2.PinTransaction]:
    """Returns what each participant must pin, in the order of the writers."""
    pins: dict[GroupId, transaction_records_pb2.PinTransaction] = {}
    seen: set[int] = set()
    for receipt in sorted(receipts, key=lambda one: (one.writer, one.stager_id)):
        if receipt.stager_id in seen:
            raise TransactionAborted(
                f"two receipts of writer {receipt.writer} are the same: one is to be committed once"
            )
        seen.add(receipt.stager_id)
        if receipt.epoch != begun.epoch:
            raise InvalidRequest(
                f"messages were staged for epoch {receipt.epoch} of transaction"
                f" {transaction_id!r}; epoch {begun.epoch} is to be committed"
            )
        winners: dict[GroupId, transaction_records_pb2.Winner] = {}
        for number in _groups_of(receipt):
            pin = pins.setdefault(
                number,
                transaction_records_pb2.PinTransaction(
                    transaction_id=transaction_id,
                    epoch=begun.epoch,
                    attempt=begun.attempt,
                    coordinator=coordinator,
                ),
            )
            winners[number] = pin.winners.add(stager_id=receipt.stager_id)
        for group_id, commits in receipt.commits:
            winners[GroupId(group_id)].commits = commits
        for part in receipt.parts:
            winners[GroupId(part.group_id)].parts.add(
                queue=common_pb2.QueueRef(topic_id=part.topic_id, queue_id=part.queue_id),
                batches=part.batches,
                messages=part.messages,
                digest=part.digest,
            )
    return pins


def merged(
    replies: dict[GroupId, transactions_pb2.DescribeTransactionsReply],
) -> list[TransactionInfo]:
    """Merges the groups' reports into one row per transaction."""
    found: dict[str, TransactionInfo] = {}

    def of(name: str) -> TransactionInfo:
        return found.setdefault(name, TransactionInfo(transaction_id=name))

    for group, reply in replies.items():
        now_us = reply.log_time_us
        for row in reply.coordinated:
            info = of(row.transaction_id)
            info.query_id = row.query_id
            info.coordinator = group
            info.last_epoch = row.epoch
            info.published = row.published
            info.unpublished_on = [] if row.published else list(row.participants)
            info.open_epoch = row.begun_epoch if row.attempt else None
            if row.attempt or not row.published:
                info.age_ms = max(info.age_ms, (now_us - row.changed_us) // 1000)
        for pin in reply.pinned:
            info = of(pin.transaction_id)
            info.parts.append(
                TransactionPart(group, "pinned", pin.epoch, pin.messages, pin.bytes, 1)
            )
            info.progress += _progress(group, "pinned", pin.winners)
            info.age_ms = max(info.age_ms, (now_us - pin.pinned_us) // 1000)
        staged: dict[tuple[str, int], list[Any]] = {}
        for one in reply.staged:
            staged.setdefault((one.transaction_id, one.epoch), []).append(one)
        for (name, epoch), ones in staged.items():
            of(name).progress += _progress(group, "staged", ones)
            of(name).parts.append(
                TransactionPart(
                    group,
                    "staged",
                    epoch,
                    sum(one.messages for one in ones),
                    sum(one.bytes for one in ones),
                    len(ones),
                )
            )
    return [found[name] for name in sorted(found)]


def _progress(
    group: GroupId, state: str, stagers: Iterable[transactions_pb2.StagedTransaction]
) -> list[TransactionProgress]:
    return [
        TransactionProgress(
            group, state, one.group, one.queue.topic_id, one.queue.queue_id, one.offset
        )
        for stager in stagers
        for one in stager.commits
    ]
