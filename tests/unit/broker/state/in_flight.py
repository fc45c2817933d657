"""A master whose entries stay unapplied as long as a test likes: any two requests meet in flight.

How it works. `Master` is the production's `Proposer` with its admission, over the state alone: what
it accepts becomes an entry at once, and is applied when the test says so. `REQUESTS` are of
every kind about the same few queues, producers, transactions and names, so that any two of them may
be about the same thing; `BEGINNINGS` are states in which each of them may be accepted.

Not here: what must hold (`test_in_flight.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from semel.broker.replica.proposer import Proposer
from semel.broker.state import Admission, ApplyResult, State, TableVerifier, make_slice
from semel.protos.batch import BatchHeader
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import STAGED_COMMITS_LEVEL
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import control_pb2
from semel.protos.v1 import transaction_records_pb2 as steps
from tests.kit.state_log import START_US, Group, batch_record, header, ref
from tests.kit.state_log import control as log_control
from tests.unit.broker.state.staging import HOUR_MS, staged, winner

FIRST, SECOND, CHILD, SIBLING, THIRD = (
    QueueKey(TopicId(7), QueueId(number)) for number in (0, 1, 10, 11, 12)
)
LEVEL: Final = STAGED_COMMITS_LEVEL
SECOND_US: Final = 1_000_000
STAGER, OTHER_STAGER = STAGER_ID_MIN + 1, STAGER_ID_MIN + 2
Request = Callable[["Master"], None]
Result = TypeVar("Result")


class _Nobody:
    """A listener that hears of batches, and tells nobody."""

    def ack(self, *_: object) -> None: ...

    def refuse(self, *_: object) -> None: ...


class Master:
    """A master of a group of one. Needs a running loop."""

    def __init__(self, data: bytes = b"", **limits: int) -> None:
        self.state = State.from_bytes(data) if data else State()
        self.term = self.state.applied_term + 1
        self.now_us = max(START_US, self.state.log_time_us + SECOND_US)
        self.tables = TableVerifier(self.state)
        """Follows the log as `semel verify` does."""
        self.frames: list[tuple[int, bytes]] = []
        """Entries in flight."""
        self._fold([(RecordKind.NOOP, ())])
        self.admission = Admission(self.state, term=self.term, **limits)  # type: ignore[arg-type]
        self.proposer = Proposer(self.admission)

    def _fold(self, records: Any) -> list[ApplyResult]:
        frame, _ = build_frame(self.state.applied_index + 1, self.term, self.now_us, records)
        self.tables.feed(frame)
        return self.state.apply_frame(frame)

    def propose(self) -> bool:
        """What was asked for becomes an entry in flight, if anything of it is accepted."""
        index = self.state.applied_index + len(self.frames) + 1
        entry = self.proposer.next_entry(index, self.term, self.now_us, 0, 1 << 20)
        if entry is None:
            return False
        frame, _ = build_frame(index, self.term, self.now_us, entry.records)
        self.frames.append((index, frame))
        return True

    def apply(self) -> None:
        """All that is in flight is committed and applied; then what that led to."""
        while self.frames or self.propose():
            index, frame = self.frames.pop(0)
            self.tables.feed(frame)
            self.proposer.on_applied(index, self.state.apply_frame(frame))

    def ask(self, request: Request) -> bool:
        """Whether the request is accepted, and in flight now."""
        request(self)
        return self.propose()

    def control(self, **record: Any) -> None:
        future = self.proposer.submit_control(control_pb2.ControlRecord(**record))
        future.add_done_callback(lambda done: done.exception())

    def batch(self, head: BatchHeader) -> None:
        data = head.encode() + bytes(head.body_length)
        self.proposer.submit_batch(head, data, _Nobody())

    def transaction(self, **step: Any) -> None:
        self.control(transaction=steps.TransactionRecord(**step))

    @property
    def data(self) -> bytes:
        return b"".join(self.state.to_parts())


# --- requests -------------------------------------------------------------------------------------


def control(**record: Any) -> Request:
    return lambda master: master.control(**record)


def step(**fields: Any) -> Request:
    return lambda master: master.transaction(**fields)


def create(key: QueueKey) -> control_pb2.CreateQueue:
    return control_pb2.CreateQueue(queue=ref(key), topic="orders", slot_end=65_536)


def split(key: QueueKey, *children: QueueKey) -> Request:
    record = control_pb2.SplitQueue(queue=ref(key))
    for number, child in enumerate(children):
        lo, hi = (65_536 * at // len(children) for at in (number, number + 1))
        record.children.add(queue_id=child.queue_id, slot_start=lo, slot_end=hi)
    return control(split_queue=record)


def fence(epoch: int, *keys: QueueKey) -> Request:
    queues = [ref(key) for key in keys]
    return control(fence=control_pb2.Fence(queues=queues, producer_id=1, epoch=epoch))


def batch(key: QueueKey, previous: int, *, late_s: float | None = None) -> Request:
    def request(master: Master) -> None:
        due_us = 0 if late_s is None else master.now_us + int(late_s * SECOND_US)
        master.batch(header(previous, key=key, due_us=due_us))

    return request


def staged_batch(stager: int, key: QueueKey) -> Request:
    return lambda master: master.batch(staged(stager, 0, key=key))


def open_stager(stager: int, *keys: QueueKey, epoch: int = 0) -> Request:
    return step(
        open_stager=steps.OpenStager(
            transaction_id="t",
            epoch=epoch,
            stager_id=stager,
            session=1,
            ttl_ms=HOUR_MS,
            queues=[ref(key) for key in keys],
        )
    )


def pin(attempt: int, stager: int, *keys: QueueKey) -> Request:
    record = steps.PinTransaction(transaction_id="t", attempt=attempt, coordinator=1)
    record.winners.append(winner(stager, {key: [staged(stager, 0, key=key)] for key in keys}))
    return step(pin=record)


def publish(attempt: int) -> Request:
    return step(publish=steps.PublishTransaction(transaction_id="t", attempt=attempt))


def move(name: str, key: QueueKey, job: int = 1, **fields: Any) -> Request:
    number: Any = control_pb2.MoveStep.Value(f"MOVE_STEP_{name}")
    return control(
        move_queue=control_pb2.MoveQueue(
            queue=ref(key), job=job, group_id=2, step=number, create=create(key), **fields
        )
    )


@cache
def slice_of(key: QueueKey) -> bytes:
    """The slice of a queue that stored one batch, and trimmed it."""
    group = Group(queues=(key,))
    group.fence(keys=(key,))
    group.produce(header(-1, key=key))
    group.apply(log_control(trim=control_pb2.Trim(queue=ref(key), log_start_offset=1)))
    state = group.state
    return make_slice(state.queues[key], state.producers, state.groups, state.delays)


def part(key: QueueKey) -> Request:
    return move("PART", key, offset=0, part=slice_of(key))


def ingest(key: QueueKey) -> Request:
    data = slice_of(key)
    return move("INGEST", key, offset=len(data), digest=hashlib.sha256(data).digest())


def copy(key: QueueKey) -> Request:
    _, parts = batch_record(header(-1, key=key), 0, START_US, 1)

    def request(master: Master) -> None:
        future = master.proposer.submit_copy(b"".join(bytes(each) for each in parts))
        future.add_done_callback(lambda done: done.exception())

    return request


def expire(key: QueueKey) -> Request:
    return lambda master: master.proposer.submit_expiry(
        key, now_us=master.now_us, idle_ms=0, rows_max=0
    )


def _groups() -> dict[str, Request]:
    lock: dict[str, Any] = {"group": "g", "queue": ref(FIRST)}
    acquire = control_pb2.AcquireLock(**lock, member_id="m", lock_ms=1_000, session_ms=1_000)
    commit = control_pb2.QueueCommit(queue=ref(FIRST), token=1, offset=1)
    return {
        "acquire": control(acquire_lock=acquire),
        "release lock": control(release_lock=control_pb2.ReleaseLock(**lock, token=1)),
        "commit": control(commit_offsets=control_pb2.CommitOffsets(group="g", commits=[commit])),
        "reset": control(reset_offset=control_pb2.ResetOffset(**lock, offset=0)),
        "delete group": control(delete_group=control_pb2.DeleteGroup(group="g")),
        "delete group on a queue": control(
            delete_group=control_pb2.DeleteGroup(group="g", queues=[ref(FIRST)])
        ),
    }


def _transactions() -> dict[str, Request]:
    decide = steps.DecideTransaction(transaction_id="t", attempt=1, participants=[1])
    commits = steps.StageCommits(transaction_id="t", epoch=0, stager_id=STAGER, group="g")
    commits.commits.add(queue=ref(FIRST), token=1, offset=1)
    return {
        "stage commits": step(stage_commits=commits),
        "open": open_stager(STAGER, FIRST, SECOND),
        "open another": open_stager(OTHER_STAGER, FIRST),
        "open on a child": open_stager(OTHER_STAGER, CHILD),
        "stage": staged_batch(STAGER, FIRST),
        "stage another": staged_batch(OTHER_STAGER, FIRST),
        "stage elsewhere": staged_batch(STAGER, SECOND),
        "stage on a child": staged_batch(OTHER_STAGER, CHILD),
        "pin 1": pin(1, STAGER, FIRST),
        "pin 2": pin(2, STAGER, FIRST),
        "pin another": pin(2, OTHER_STAGER, FIRST),
        "publish 1": publish(1),
        "publish 2": publish(2),
        "drop pin": step(drop_pin=steps.DropPin(transaction_id="t", attempt=1)),
        "drop stagers": step(drop_stagers=steps.DropStagers(stager_ids=[STAGER, OTHER_STAGER])),
        "begin": step(begin=steps.BeginTransaction(transaction_id="t", query_id="q", epoch=0)),
        "decide": step(decide=decide),
        "abort": step(abort=steps.AbortTransaction(transaction_id="t")),
        "finish": step(finish=steps.FinishTransaction(transaction_id="t")),
        "forget": step(forget=steps.ForgetTransactions(transaction_ids=["t"])),
    }


def _moves() -> dict[str, Request]:
    made = {
        f"{name.lower()} {key.queue_id} {job}": move(name, key, job)
        for name in ("BEGIN", "SEAL", "FORWARD", "UNSEAL", "ABORT", "ACTIVATE")
        for key, job in ((FIRST, 1), (FIRST, 2), (CHILD, 1))
    }
    return made | {
        "floor": move("FLOOR", CHILD, offset=1),
        "part": part(CHILD),
        "ingest": ingest(CHILD),
        "copy": copy(CHILD),
    }


REQUESTS: Mapping[str, Request] = {
    **{
        f"create {key.queue_id}": control(create_queue=create(key))
        for key in (FIRST, CHILD, SIBLING)
    },
    **{
        f"delete {key.queue_id}": control(delete_queue=control_pb2.DeleteQueue(queue=ref(key)))
        for key in (FIRST, SECOND, CHILD)
    },
    "alter": control(alter_topic=control_pb2.AlterTopic(topic_id=7)),
    "split 0": split(FIRST, CHILD, SIBLING),
    "split 0 in another way": split(FIRST, CHILD, SIBLING, THIRD),
    "split 1": split(SECOND, CHILD, SIBLING),
    "split 1 beside it": split(SECOND, SIBLING, THIRD),
    "split a child": split(CHILD, SIBLING, THIRD),
    "fence": fence(1, FIRST, SECOND),
    "fence higher": fence(2, FIRST),
    "fence a child": fence(1, CHILD),
    "fence a child higher": fence(2, CHILD),
    "batch": batch(FIRST, 0),
    "batch elsewhere": batch(SECOND, 0),
    "batch on a child": batch(CHILD, 0),
    "batch on a new child": batch(CHILD, -1),
    "late batch": batch(FIRST, 0, late_s=0.0),
    "late batch on a child": batch(CHILD, 0, late_s=0.0),
    "release": lambda master: master.proposer.submit_release(FIRST),
    "release of a child": lambda master: master.proposer.submit_release(CHILD),
    "expire": expire(FIRST),
    "expire a child": expire(CHILD),
    "trim": control(trim=control_pb2.Trim(queue=ref(FIRST), log_start_offset=1)),
    "trim a child": control(trim=control_pb2.Trim(queue=ref(CHILD), log_start_offset=1)),
    "raise level": control(feature_level=control_pb2.FeatureLevel(level=LEVEL)),
    **_groups(),
    **_transactions(),
    **_moves(),
}

_BASE = ("raise level", "create 0", "create 1", "fence", "first batch", "first batch elsewhere")
_SETTING_UP: Mapping[str, Request] = {
    **REQUESTS,
    "create 1": control(create_queue=create(SECOND)),
    "first batch": batch(FIRST, -1),
    "first batch elsewhere": batch(SECOND, -1),
}
_PINNED = ("begin", "open", "stage", "pin 1")
_READY = ("begin 10 1", "floor", "part", "ingest")
BEGINNINGS: Mapping[str, Sequence[str]] = {
    "nothing": ("raise level",),
    "plain": (*_BASE, "acquire"),
    "begun": (*_BASE, "begin", "open", "stage"),
    "staged everywhere": (*_BASE, "begin", "open", "open another", "stage", "stage elsewhere"),
    "pinned": (*_BASE, *_PINNED),
    "pinned, and a rival": (*_BASE, *_PINNED, "open another", "stage another"),
    "pinned by the second": (*_BASE, "begin", "open another", "stage another", "pin another"),
    "decided": (*_BASE, *_PINNED, "decide"),
    "delayed": (*_BASE, "late batch"),
    "frozen": (*_BASE, "acquire", "seal 0 1"),
    "away": (*_BASE, "seal 0 1", "forward 0 1"),
    "split": (*_BASE, "split 0"),
    "incoming": (*_BASE, "begin 10 1", "floor"),
    "ready": (*_BASE, *_READY),
    "arrived": (*_BASE, *_READY, "activate 10 1"),
    "arrived, delayed": (*_BASE, *_READY, "activate 10 1", "late batch on a child"),
    "three queues": (*_BASE, "create 10", "fence a child", "open", "open on a child"),
}


async def beginning(name: str) -> bytes:
    """The state's bytes after these requests, one after the other."""
    master = Master()
    for request in BEGINNINGS[name]:
        assert master.ask(_SETTING_UP[request]), f"{request} is refused in {name!r}"
        master.apply()
    return master.data


def meet(data: bytes, requests: Sequence[Request]) -> tuple[Master, list[bool]]:
    """The requests are decided one after the other, each in flight if it is accepted, and then all
    is applied. Raises whatever halts a node."""
    master = Master(data)
    accepted = [master.ask(request) for request in requests]
    master.apply()
    return master, accepted


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """On a loop of its own."""
    return asyncio.run(coroutine)
