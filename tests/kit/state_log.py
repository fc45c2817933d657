"""A log of one node for the state's tests: frames of batches whose bodies are zeros."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import google_crc32c

from semel.broker.state import (
    Accepted,
    Admission,
    ApplyResult,
    BatchDecision,
    State,
    batch_record_parts,
)
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    Codec,
    decode_header,
)
from semel.protos.frames import RecordKind, build_frame, iter_records
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from semel.protos.v1 import common_pb2, control_pb2

KEY = QueueKey(TopicId(7), QueueId(0))
START_US = 1_700_000_000_000_000
BODY = bytes(16)

Record = tuple[RecordKind, list[bytes | memoryview]]


def ref(key: QueueKey = KEY) -> common_pb2.QueueRef:
    return common_pb2.QueueRef(topic_id=key.topic_id, queue_id=key.queue_id)


def header(
    previous: int,
    base: int | None = None,
    last: int | None = None,
    *,
    count: int | None = None,
    producer: int = 1,
    epoch: int = 1,
    session: int = 0,
    crc: int = 1,
    key: QueueKey = KEY,
    body: bytes = BODY,
    due_us: int = 0,
) -> BatchHeader:
    """Contiguous by default; with a `count` it has source positions, with 0 it is a mark."""
    base = previous + 1 if base is None else base
    last = base if last is None else last
    flags = 0
    if count == 0:
        flags, body = BatchFlags.POSITION_MARK, b""
    elif count is not None or base != previous + 1:
        flags = BatchFlags.SOURCE_POSITIONS | BatchFlags.SEQUENCE
    count = last - base + 1 if count is None else count
    body = body if count < len(body) // 4 else bytes(4 * count + 8) if count else b""
    return BatchHeader(
        codec=Codec.NONE,
        flags=flags,
        body_length=len(body),
        uncompressed_length=len(body),
        body_crc=google_crc32c.value(body),
        content_crc=crc,
        topic_id=key.topic_id,
        queue_id=key.queue_id,
        count=count,
        producer_id=ProducerId(producer),
        epoch=epoch,
        session=session,
        previous_sequence=Sequence(previous),
        base_sequence=Sequence(base),
        last_sequence=Sequence(last),
        first_timestamp_us=0,
        max_timestamp_us=0,
        deliver_at_us=due_us,
    )


def control(**record: Any) -> Record:
    message = control_pb2.ControlRecord(**record)
    return RecordKind.CONTROL, [message.SerializeToString()]


def batch_record(head: BatchHeader, base_offset: int, time_us: int, term: int) -> Record:
    data = head.encode() + bytes(head.body_length)
    parts = batch_record_parts(
        data, base_offset=Offset(base_offset), append_time_us=time_us, term=Term(term)
    )
    return RecordKind.BATCH, parts


def unapplied_count(admission: Admission) -> int:
    """Number of accepted records that are not applied."""
    return len(admission._pending._unapplied)


class Group:
    """One master whose entries commit at once, unless a test keeps them in `entry`."""

    def __init__(self, *, queues: Iterable[QueueKey] = (KEY,), term: int = 1) -> None:
        self.state = State()
        self.frames: list[bytes] = []
        self.term = term
        self.now_us = START_US
        self.entry: list[Record] = []
        self.apply((RecordKind.NOOP, []))
        self.admission = Admission(self.state, term=Term(term))
        for key in queues:
            self.create(key)

    def apply(self, *records: Record) -> list[ApplyResult]:
        frame, _ = build_frame(len(self.frames) + 1, self.term, self.now_us, list(records))
        self.frames.append(frame)
        return self.state.apply_frame(frame)

    def commit(self) -> list[ApplyResult]:
        """Everything accepted so far becomes one entry, committed and applied."""
        if not self.entry:
            return []
        records, self.entry = self.entry, []
        results = self.apply(*records)
        self.admission.on_applied(results)
        return results

    def new_master(self) -> None:
        """The old master's unapplied entries are lost."""
        self.entry = []
        self.term += 1
        self.apply((RecordKind.NOOP, []))
        self.admission = Admission(self.state, term=Term(self.term))

    def create(self, key: QueueKey, **settings: Any) -> None:
        record = control_pb2.CreateQueue(
            queue=ref(key),
            topic="orders",
            slot_start=0,
            slot_end=65_536,
            settings=common_pb2.TopicSettings(**settings),
        )
        assert isinstance(self.admission.queues.admit_create_queue(record), Accepted)
        self.entry.append(control(create_queue=record))
        self.commit()

    def fence(
        self,
        *,
        producer: int = 1,
        epoch: int = 1,
        session: int = 0,
        keys: Iterable[QueueKey] = (KEY,),
        name: str = "",
        after_expiry: bool = False,
        commit: bool = True,
    ) -> Any:
        """Returns the decision, or the fence's result once it is applied."""
        record = control_pb2.Fence(
            queues=[ref(key) for key in keys],
            producer_id=producer,
            epoch=epoch,
            session=session,
            name=name,
            after_expiry=after_expiry,
        )
        decision = self.admission.admit_fence(record)
        if isinstance(decision, Accepted):
            self.entry.append(control(fence=record))
            if commit:
                return self.commit()[-1]
        return decision

    def produce(
        self, head: BatchHeader, *, commit: bool = True, now_ms: float = 0
    ) -> BatchDecision:
        decision = self.admission.admit_batch(head, now_ms, time_us=self.now_us)
        if isinstance(decision, Accepted):
            self.entry.append(batch_record(head, decision.base_offset, self.now_us, self.term))
            if commit:
                self.commit()
        return decision

    def raise_level(self, level: int) -> None:
        self.entry.append(control(feature_level=control_pb2.FeatureLevel(level=level)))
        self.commit()

    def release(
        self, key: QueueKey = KEY, *, batches_max: int = 1_000, commit: bool = True
    ) -> control_pb2.ReleaseDelayed | None:
        """The release that the admission proposes now; None when it proposes none."""
        record = self.admission.propose_release(key, now_us=self.now_us, batches_max=batches_max)
        if record is not None:
            self.entry.append(control(release_delayed=record))
            if commit:
                self.commit()
        return record

    def stored_batches(self, key: QueueKey = KEY) -> list[tuple[int, BatchHeader]]:
        """Offset and header of each of the queue's batches, read from the log; asserts that offsets
        are dense."""
        queue = self.state.queues[key]
        found = []
        end = queue.log_start_offset
        for extent in queue.extents_from(end, 1 << 40):
            assert extent.base_offset == end
            batch = decode_header(self.payload(extent.index, extent.position), BROKER_HEADER_BYTES)
            assert (batch.queue_key, batch.count) == (key, extent.count)
            found.append((end, batch))
            end += extent.count
        assert queue.log_end_offset == end
        return found

    def payload(self, index: int, position: int) -> bytes:
        """A record of the log."""
        records = {at: bytes(data) for at, _, data in iter_records(self.frames[index - 1])}
        return records[position]

    def replayed(self) -> State:
        """A second node that applies all frames."""
        state = State()
        for frame in self.frames:
            state.apply_frame(frame)
        return state
