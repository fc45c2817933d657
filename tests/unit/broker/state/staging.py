"""A broker group that takes part in transactions, for the state's tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from semel.broker.state import (
    Accepted,
    CommitsStaged,
    LockGranted,
    Refused,
    Staged,
    TransactionApplied,
)
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader, decode_header
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import QueueKey
from semel.protos.levels import LEVEL_MAX
from semel.protos.staging import STAGER_EPOCH, STAGER_ID_MIN, batch_digest
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref

A, B, C = STAGER_ID_MIN + 1, STAGER_ID_MIN + 2, STAGER_ID_MIN + 3
HOUR_MS = 3_600_000


class Stage(Group):
    """At the newest feature level, or another; every step is an entry of its own."""

    def __init__(self, *, queues: Iterable[QueueKey] = (KEY,), level: int = LEVEL_MAX) -> None:
        super().__init__(queues=queues)
        self.raise_level(level)

    def step(self, **step: Any) -> Any:
        """The step's result, or the error with which it was refused, at admission or at apply."""
        record = transaction_records_pb2.TransactionRecord(**step)
        decision = self.admission.admit_transaction(record)
        if isinstance(decision, Refused):
            return decision.error
        self.entry.append(control(transaction=record))
        result = self.commit()[-1]
        if isinstance(result, TransactionApplied):
            return result.error or result.value
        return result

    def open(
        self,
        stager: int = A,
        *,
        txn: str = "t",
        epoch: int = 0,
        session: int = 1,
        keys: Iterable[QueueKey] = (KEY,),
        writer: int = 0,
        ttl_ms: int = HOUR_MS,
    ) -> Any:
        return self.step(
            open_stager=transaction_records_pb2.OpenStager(
                transaction_id=txn,
                epoch=epoch,
                stager_id=stager,
                writer=writer,
                session=session,
                ttl_ms=ttl_ms,
                queues=[ref(key) for key in keys],
            )
        )

    def stage(self, head: BatchHeader) -> SemelError | str:
        """ "staged", "duplicate" or the error."""
        decision = self.admission.admit_staged(head, time_us=self.now_us)
        if isinstance(decision, Refused):
            return decision.error
        if not isinstance(decision, Accepted):
            return "duplicate"
        _, parts = batch_record(head, -1, self.now_us, self.term)
        self.entry.append((RecordKind.STAGED, parts))
        result = self.commit()[-1]
        assert isinstance(result, Staged)
        return result.error or ("duplicate" if result.duplicate else "staged")

    def pin(
        self,
        *winners: transaction_records_pb2.Winner,
        txn: str = "t",
        epoch: int = 0,
        attempt: int = 1,
        coordinator: int = 1,
    ) -> Any:
        return self.step(
            pin=transaction_records_pb2.PinTransaction(
                transaction_id=txn,
                epoch=epoch,
                attempt=attempt,
                coordinator=coordinator,
                winners=winners,
            )
        )

    def publish(self, *, txn: str = "t", epoch: int = 0, attempt: int = 1) -> Any:
        return self.step(
            publish=transaction_records_pb2.PublishTransaction(
                transaction_id=txn, epoch=epoch, attempt=attempt
            )
        )

    def contents(self, key: QueueKey = KEY) -> list[int]:
        """Content numbers of the queue's messages by offset, read from the log itself; asserts that
        offsets are dense."""
        queue = self.state.queues[key]
        found: list[int] = []
        for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
            assert extent.base_offset == queue.log_start_offset + len(found)
            records = {
                at: payload for at, _, payload in iter_records(self.frames[extent.index - 1])
            }
            batch = decode_header(records[extent.position], BROKER_HEADER_BYTES)
            assert batch.queue_key == key
            assert extent.count == batch.count
            found += [batch.content_crc] * extent.count
        assert queue.log_end_offset == queue.log_start_offset + len(found)
        return found


def staged(
    stager: int, base: int, count: int = 1, *, crc: int = 1, session: int = 1, key: QueueKey = KEY
) -> BatchHeader:
    """A batch of a stager."""
    return header(
        base - 1,
        base,
        base + count - 1,
        producer=stager,
        epoch=STAGER_EPOCH,
        session=session,
        crc=crc,
        key=key,
    )


def winner(
    stager: int, batches: Mapping[QueueKey, Iterable[BatchHeader]], *, commits: int = 0
) -> transaction_records_pb2.Winner:
    """What a stager says of itself after these batches."""
    made = transaction_records_pb2.Winner(stager_id=stager, commits=commits)
    for key, heads in sorted(batches.items()):
        heads = list(heads)
        made.parts.add(
            queue=ref(key),
            batches=len(heads),
            messages=sum(head.count for head in heads),
            digest=sum(batch_digest(head) for head in heads) % (1 << 64),
        )
    return made


def group_with(
    *batches: int, stager: int = A, epoch: int = 0, level: int = LEVEL_MAX
) -> tuple[Stage, transaction_records_pb2.Winner]:
    """A group where a stager has staged batches of so many messages, and the stager as a winner."""
    group = Stage(level=level)
    group.open(stager, epoch=epoch)
    heads, base = [], 0
    for crc, count in enumerate(batches, 1):
        heads.append(staged(stager, base, count, crc=crc))
        assert group.stage(heads[-1]) == "staged"
        base += count
    return group, winner(stager, {KEY: heads})


def begin(group: Stage, query: str = "q", **fields: object) -> object:
    record = transaction_records_pb2.BeginTransaction(transaction_id="t", query_id=query, **fields)  # type: ignore[arg-type]
    return group.step(begin=record)


def decide(group: Stage, epoch: int, attempt: int, participants: tuple[int, ...] = (1,)) -> object:
    record = transaction_records_pb2.DecideTransaction(
        transaction_id="t", epoch=epoch, attempt=attempt, participants=participants
    )
    return group.step(decide=record)


def abort(group: Stage, attempt: int) -> object:
    record = transaction_records_pb2.AbortTransaction(transaction_id="t", attempt=attempt)
    return group.step(abort=record)


def finish(group: Stage, epoch: int) -> object:
    record = transaction_records_pb2.FinishTransaction(transaction_id="t", epoch=epoch)
    return group.step(finish=record)


def acquire(
    group: Group,
    name: str = "g",
    *,
    member: str = "m",
    key: QueueKey = KEY,
    drop_staged: bool = False,
) -> Any:
    """What a member of a consumer group hears that wants a lock."""
    record = control_pb2.AcquireLock(
        group=name,
        queue=ref(key),
        member_id=member,
        lock_ms=500,
        session_ms=100,
        drop_staged=drop_staged,
    )
    (result,) = group.apply(control(acquire_lock=record))
    return result


def lock(group: Group, name: str = "g", **fields: Any) -> int:
    """The token of a lock that a member of a consumer group gets; `fields` as of `acquire`."""
    result = acquire(group, name, **fields)
    assert isinstance(result, LockGranted), result
    return result.token


def commits(
    *staged_commits: tuple[int, int],
    stager: int = A,
    name: str = "g",
    key: QueueKey = KEY,
    epoch: int = 0,
    **fields: Any,
) -> transaction_records_pb2.StageCommits:
    """Staged commits of (token, offset); `fields` are of each of them, or the session."""
    session = {"session": fields.pop("session")} if "session" in fields else {}
    return transaction_records_pb2.StageCommits(
        transaction_id="t",
        epoch=epoch,
        stager_id=stager,
        group=name,
        commits=[
            transaction_records_pb2.StagedCommit(
                queue=ref(key), token=token, offset=offset, **fields
            )
            for token, offset in staged_commits
        ],
        **session,
    )


def stage_commits(group: Stage, token: int, offset: int, **fields: Any) -> SemelError | None:
    """Stages one commit; None if it is granted."""
    result = group.step(stage_commits=commits((token, offset), **fields))
    if isinstance(result, SemelError):
        return result
    assert isinstance(result, CommitsStaged)
    if result.error is not None:
        return result.error
    (outcome,) = result.outcomes
    return outcome.error


def progress(group: Group, name: str = "g", *, key: QueueKey = KEY) -> int | None:
    """What a consumer group has committed of a queue; None if it has no state there."""
    found = group.state.groups.lookup(name, key)
    return None if found is None else found.committed_offset
