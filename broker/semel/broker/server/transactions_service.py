"""The gRPC service `Transactions`: steps that clients and other broker groups ask for.

How it works. Each call becomes a step in the log and is answered once that is applied; every call
may be repeated. No call is taken before the feature level of the log allows it.

Not here: the rules (`state/`), a master's background work (`background/transaction_work.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.broker.background.transaction_work import TransactionWork
from semel.broker.config import BrokerConfig
from semel.broker.control_plane.group_calls import GroupCalls
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_group
from semel.broker.server.lock_calls import check_metadata
from semel.broker.server.transactions_described import described
from semel.broker.state import CommitsStaged
from semel.protos.errors import InvalidRequest, SemelError, to_detail
from semel.protos.levels import STAGED_COMMITS_LEVEL, TRANSACTION_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.staging import (
    EPOCH_END,
    STAGER_ID_END,
    STAGER_ID_MIN,
    TRANSACTION_ID_CHARACTERS_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from semel.protos.v1 import (
    broker_pb2,
    transaction_records_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)

QUEUES_MAX: Final = 10_000
RECORD_BYTES_MAX: Final = 4 << 20
STAGERS_MAX: Final = 100_000


class TransactionsService(transactions_pb2_grpc.TransactionsServicer):
    """Serves semel.protos.v1.Transactions on one replica."""

    def __init__(
        self, config: BrokerConfig, replica: Replica, work: TransactionWork, calls: GroupCalls
    ) -> None:
        self._config = config
        self._replica = replica
        self._work = work
        self._calls = calls

    async def Open(  # noqa: N802
        self, request: transaction_records_pb2.OpenStager, context: object
    ) -> transactions_pb2.OpenStagerReply:
        _check_name(request.transaction_id)
        _check_epoch(request.epoch)
        _check_stagers([request.stager_id])
        if not TTL_MS_MIN <= request.ttl_ms <= TTL_MS_MAX:
            raise InvalidRequest(
                f"ttl_ms is {request.ttl_ms}, it must be between {TTL_MS_MIN} and {TTL_MS_MAX}"
            )
        keys = [queue_key_of(queue) for queue in request.queues]
        if len(keys) > QUEUES_MAX or len(set(keys)) != len(keys):
            raise InvalidRequest(f"a stager names up to {QUEUES_MAX} queues, each once")
        # One without queues stages commits only.
        await self._replica.require_level(TRANSACTION_LEVEL if keys else STAGED_COMMITS_LEVEL)
        lasts = await self._work.submit(open_stager=request)
        return transactions_pb2.OpenStagerReply(last_sequences=lasts)

    async def StageCommits(  # noqa: N802
        self, request: transaction_records_pb2.StageCommits, context: object
    ) -> transactions_pb2.StageCommitsReply:
        _check_name(request.transaction_id)
        _check_epoch(request.epoch)
        _check_stagers([request.stager_id])
        check_group(request.group)
        if not request.commits or len(request.commits) > QUEUES_MAX:
            raise InvalidRequest(f"1 to {QUEUES_MAX} commits are staged at once")
        check_metadata(request.group, request.commits)
        await self._replica.require_level(STAGED_COMMITS_LEVEL)
        if (clock := self._replica.lock_clock) is not None:
            now_ms = monotonic_ms()
            for commit in request.commits:  # whoever commits is alive, as with Commit
                clock.on_renewed(request.group, queue_key_of(commit.queue), commit.token, now_ms)
        result = await self._work.submit(stage_commits=request)
        assert isinstance(result, CommitsStaged)
        if result.error is not None:
            raise result.error
        reply = transactions_pb2.StageCommitsReply()
        for commit, outcome in zip(request.commits, result.outcomes, strict=True):
            error = None if outcome.error is None else to_detail(outcome.error)
            reply.outcomes.append(broker_pb2.CommitOutcome(queue=commit.queue, error=error))
        return reply

    async def Drop(  # noqa: N802
        self, request: transaction_records_pb2.DropStagers, context: object
    ) -> transactions_pb2.DropStagersReply:
        _check_stagers(request.stager_ids)
        await self._replica.confirm_read()
        known = self._replica.state.transactions.staging.stagers
        present = [number for number in request.stager_ids if number in known]
        if not present:
            return transactions_pb2.DropStagersReply()
        (dropped,) = await self._work.submit(
            drop_stagers=transaction_records_pb2.DropStagers(stager_ids=present)
        )
        return transactions_pb2.DropStagersReply(dropped=dropped)

    async def Pin(  # noqa: N802
        self, request: transactions_pb2.PinRequest, context: object
    ) -> transactions_pb2.PinReply:
        pin = request.pin
        _check_name(pin.transaction_id)
        _check_epoch(pin.epoch)
        _check_stagers([winner.stager_id for winner in pin.winners])
        if not pin.attempt or not pin.coordinator or not pin.winners:
            raise InvalidRequest("a pin names an attempt, the coordinator's group and winners")
        if pin.ByteSize() > RECORD_BYTES_MAX:
            raise InvalidRequest(
                f"the winners' list has {pin.ByteSize():,} bytes, at most {RECORD_BYTES_MAX:,} are"
                " taken: write with fewer tasks, or to fewer queues"
            )
        await self._replica.require_level(TRANSACTION_LEVEL)
        self._calls.learn(request.known)
        await self._work.submit(pin=pin)
        return transactions_pb2.PinReply()

    async def Publish(  # noqa: N802
        self, request: transaction_records_pb2.PublishTransaction, context: object
    ) -> transactions_pb2.PublishReply:
        _check_name(request.transaction_id)
        dropped = await self._work.publish(request)
        return transactions_pb2.PublishReply(
            duplicates=dropped.duplicates, conflicts=dropped.conflicts
        )

    async def Settle(  # noqa: N802
        self, request: transactions_pb2.SettleRequest, context: object
    ) -> transactions_pb2.SettleReply:
        _check_name(request.transaction_id)
        await self._replica.confirm_read()
        settled = await self._work.settle(request.transaction_id)
        return transactions_pb2.SettleReply(settled=settled)

    async def Begin(  # noqa: N802
        self, request: transaction_records_pb2.BeginTransaction, context: object
    ) -> transactions_pb2.BeginReply:
        _check_name(request.transaction_id)
        if request.query_id:
            _check_name(request.query_id, "query id")
        if request.HasField("epoch"):
            _check_epoch(request.epoch)
        await self._replica.require_level(TRANSACTION_LEVEL)
        row = self._replica.state.transactions.coordination.rows.get(request.transaction_id)
        if row is not None and not row.published:
            await self._work.redrive(request.transaction_id)
        epoch, attempt, last_epoch = await self._work.submit(begin=request)
        return transactions_pb2.BeginReply(epoch=epoch, attempt=attempt, last_epoch=last_epoch)

    async def Decide(  # noqa: N802
        self, request: transactions_pb2.DecideRequest, context: object
    ) -> transactions_pb2.DecideReply:
        decide = request.decide
        _check_name(decide.transaction_id)
        _check_epoch(decide.epoch)
        if not decide.attempt:
            raise InvalidRequest("a decision names the attempt that Begin has given out")
        if list(decide.participants) != sorted(set(decide.participants)):
            raise InvalidRequest("the participants of a transaction stand by rising number")
        await self._replica.require_level(TRANSACTION_LEVEL)
        self._calls.learn(request.known)
        await self._work.submit(decide=decide)
        try:
            published = await self._work.redrive(decide.transaction_id)
        except SemelError:
            published = False  # it is committed in any case; the next look goes on
        reply = transactions_pb2.DecideReply(published=published)
        if published:
            dropped = self._work.take_dropped(decide.transaction_id, decide.epoch)
            reply.duplicates, reply.conflicts = dropped
        return reply

    async def Abort(  # noqa: N802
        self, request: transaction_records_pb2.AbortTransaction, context: object
    ) -> transactions_pb2.AbortReply:
        _check_name(request.transaction_id)
        await self._replica.require_level(TRANSACTION_LEVEL)
        (committed,) = await self._work.submit(abort=request)
        return transactions_pb2.AbortReply(committed=bool(committed))

    async def Describe(  # noqa: N802
        self, request: transactions_pb2.DescribeTransactionsRequest, context: object
    ) -> transactions_pb2.DescribeTransactionsReply:
        await self._replica.confirm_read()
        return described(
            self._replica.state.transactions,
            request,
            staged_bytes_max=self._config.staged_bytes_max,
            log_time_us=self._replica.log_time_us(),
            level=self._replica.state.feature_level,
        )


def _check_name(name: str, what: str = "transaction id") -> None:
    if not 0 < len(name) <= TRANSACTION_ID_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"a {what} has 1 to {TRANSACTION_ID_CHARACTERS_MAX} printable characters: {name[:60]!r}"
        )


def _check_epoch(epoch: int) -> None:
    if epoch >= EPOCH_END:
        raise InvalidRequest(f"epoch {epoch} is out of range")


def _check_stagers(numbers: Sequence[int]) -> None:
    if not numbers or len(numbers) > STAGERS_MAX:
        raise InvalidRequest(f"1 to {STAGERS_MAX:,} stagers are named at once, not {len(numbers)}")
    for number in numbers:
        if not STAGER_ID_MIN <= number < STAGER_ID_END:
            raise InvalidRequest(f"stager id {number} is out of range")
