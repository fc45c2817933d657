"""A small run whose client commits one transaction, made to be spoilt."""

from __future__ import annotations

import pyarrow as pa

from semel.broker.state import batch_record_parts
from semel.protos.columns import Columns, encode_batch
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, Term
from semel.protos.v1 import common_pb2
from semel.protos.v1 import transaction_records_pb2 as records
from tests.checking.exactly_once import Violation, check
from tests.checking.history import Outcome, Send, digest_of
from tests.checking.raw_log import NodeLog
from tests.checking.small_run import REF, START_US, Run

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
