"""What the checker says of transactions: a good one passes, each way to spoil one is found."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.broker.state import batch_record_parts
from semel.protos.columns import Columns, encode_batch
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, Term
from semel.protos.v1 import common_pb2
from semel.protos.v1 import transaction_records_pb2 as records
from tests.checking.exactly_once import Violation, check
from tests.checking.history import Outcome, Send, digest_of
from tests.checking.raw_log import NodeLog
from tests.checking.test_exactly_once import REF, START_US, Run

STAGER = 1 << 62
NAME = "closing"
VALUES = (b"a", b"b", b"c")


class Teller(Run):
    """A run whose one client commits a transaction of three messages in two batches."""

    def __init__(self, *, queues: bool = True) -> None:
        super().__init__(queues=queues)
        self.open(1, REF)

    def step(self, **step: object) -> None:
        record = records.TransactionRecord(**step)  # type: ignore[arg-type]
        self.control(transaction=record)

    def open(self, session: int, *refs: common_pb2.QueueRef) -> None:
        self.staged = -1
        self.step(
            open_stager=records.OpenStager(
                transaction_id=NAME, stager_id=STAGER, session=session, ttl_ms=1_000, queues=refs
            )
        )

    def stage(
        self, *values: bytes, session: int = 1, previous: int | None = None, queue: int = 0
    ) -> None:
        previous = self.staged if previous is None else previous
        batch = encode_batch(
            Columns(values=pa.array(values, pa.binary())),
            topic_id=7,
            queue_id=queue,
            producer_id=STAGER,
            epoch=1,
            session=session,
            previous_sequence=previous,
            base_sequence=previous + 1,
            last_sequence=previous + len(values),
            timestamp_us=START_US,
        )
        parts = batch_record_parts(
            batch, base_offset=Offset(0), append_time_us=START_US, term=Term(1)
        )
        self._frame(RecordKind.STAGED, *parts)
        self.staged = max(self.staged, previous + len(values))

    def pin(self, *, epoch: int = 0, attempt: int = 1) -> None:
        winner = records.Winner(
            stager_id=STAGER, parts=[records.StagedPart(queue=REF, batches=2, messages=3)]
        )
        self.step(
            pin=records.PinTransaction(
                transaction_id=NAME, epoch=epoch, attempt=attempt, winners=[winner]
            )
        )

    def publish(
        self,
        *,
        attempt: int = 1,
        base_offset: int = 0,
        messages: int = 3,
        ref: common_pb2.QueueRef = REF,
    ) -> None:
        part = records.PublishedPart(queue=ref, base_offset=base_offset, messages=messages)
        self.step(
            publish=records.PublishTransaction(
                transaction_id=NAME, epoch=0, attempt=attempt, parts=[part]
            )
        )

    def sent(self, outcome: Outcome = Outcome.OK) -> None:
        for number, value in enumerate(VALUES):
            note = Send(
                client="t1",
                number=number,
                digest=digest_of(value),
                began_s=1.0,
                ended_s=2.0,
                outcome=outcome,
                transaction="t1/0",
            )
            self.history.add(note)

    def problems(self) -> str:
        frames = dict(enumerate(self.frames, 1))
        log = NodeLog(node=1, frames=frames, commit_index=len(frames))
        try:
            check(self.history, [log])
        except Violation as violation:
            return str(violation)
        return ""


def test_what_is_staged_for_a_queue_after_it_was_split_is_refused() -> None:
    """And staged for its child, by another session of the same stager."""
    run = Teller()
    run.split()
    run.stage(*VALUES)
    child = common_pb2.QueueRef(topic_id=7, queue_id=1)
    run.open(2, child)
    run.stage(*VALUES, session=2, queue=1)
    run.pin()
    run.publish(ref=child)
    run.sent()
    assert run.problems() == ""


def _whole(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"c")
    run.pin()
    run.publish()
    run.sent()


def _a_resent_batch(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"a", b"b", previous=-1)
    run.stage(b"c", session=0)  # of a life that was fenced
    run.stage(b"c", previous=1)
    run.pin()
    run.publish()
    run.sent()


def _one_that_was_given_up(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.sent(Outcome.FAIL)


@pytest.mark.parametrize("good", [_whole, _a_resent_batch, _one_that_was_given_up])
def test_a_good_run_passes(good: Callable[[Teller], None]) -> None:
    run = Teller()
    good(run)
    assert run.problems() == ""


def _never_published(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.stage(b"c")
    run.pin()
    run.sent()


def _published_in_part(run: Teller) -> None:
    run.stage(b"a", b"b")
    run.pin()
    run.publish(messages=2)
    run.sent(Outcome.UNKNOWN)


def _published_though_given_up(run: Teller) -> None:
    _whole(run)
    for send in run.history.of(Send):
        send.outcome = Outcome.FAIL


def _published_twice(run: Teller) -> None:
    _whole(run)
    run.publish(base_offset=3, messages=0)


def _published_without_a_pin(run: Teller) -> None:
    run.stage(*VALUES)
    run.publish()
    run.sent()


def _published_for_another_attempt(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin(attempt=2)
    run.publish(attempt=1)
    run.sent()


def _published_at_another_offset(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin()
    run.publish(base_offset=1)
    run.sent()


def _published_more_than_staged(run: Teller) -> None:
    run.stage(*VALUES)
    run.pin()
    run.publish(messages=4)
    run.sent()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (_never_published, "loss: message 0 of t1"),
        (_published_in_part, "torn: of transaction t1/0 2 of 3 messages are stored"),
        (_published_though_given_up, "failed for certain, and is stored"),
        (_published_twice, "epoch 0 of transaction closing is published twice"),
        (_published_without_a_pin, "is published, pinned is -1"),
        (_published_for_another_attempt, "is published, pinned is -1"),
        (_published_at_another_offset, "at 1, not 0"),
        (_published_more_than_staged, "4 messages of closing are published, 3 were staged"),
    ],
)
def test_a_spoilt_run_is_found(bad: Callable[[Teller], None], said: str) -> None:
    run = Teller()
    bad(run)
    assert said in run.problems()
