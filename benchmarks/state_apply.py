"""Cost of the replicated state machine: admit and apply a batch, memory, checkpoint bytes.

    python -m benchmarks.state_apply

Processor time, medians of several rounds, one producer on one queue.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable

from semel.broker.state import (
    Accepted,
    Admission,
    QueueSettings,
    QueueState,
    State,
    batch_record_parts,
)
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.rows import Row
from semel.protos.batch import BatchHeader, Codec, decode_header
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from semel.protos.v1 import common_pb2, control_pb2

KEY = QueueKey(TopicId(1), QueueId(0))
BATCHES = 4_000
PER_ENTRY = 16
ROUNDS = 5


def control(**record: object) -> tuple[RecordKind, list[bytes | memoryview]]:
    message = control_pb2.ControlRecord(**record)  # type: ignore[arg-type]
    return RecordKind.CONTROL, [message.SerializeToString()]


def new_state() -> State:
    """A state with one queue and one producer."""
    queue = common_pb2.QueueRef(topic_id=1)
    create = control_pb2.CreateQueue(queue=queue, topic="t", slot_end=65_536)
    fence = control_pb2.Fence(queues=[queue], producer_id=1, epoch=1)
    state = State()
    state.apply_frame(
        build_frame(1, 1, 1, [(RecordKind.NOOP, []), control(create_queue=create)])[0]
    )
    state.apply_frame(build_frame(2, 1, 1, [control(fence=fence)])[0])
    return state


def batches() -> list[bytes]:
    """Contiguous batches of ten messages."""
    made = []
    for at in range(BATCHES):
        head = BatchHeader(
            codec=Codec.NONE,
            flags=0,
            body_length=1_024,
            uncompressed_length=1_024,
            body_crc=0,
            content_crc=at,
            topic_id=KEY.topic_id,
            queue_id=KEY.queue_id,
            count=10,
            producer_id=ProducerId(1),
            epoch=1,
            session=0,
            previous_sequence=Sequence(10 * at - 1),
            base_sequence=Sequence(10 * at),
            last_sequence=Sequence(10 * at + 9),
            first_timestamp_us=0,
            max_timestamp_us=0,
            deliver_at_us=0,
        )
        made.append(head.encode() + bytes(1_024))
    return made


def admit_and_apply(data: list[bytes], per_entry: int) -> tuple[float, float, float]:
    """Microseconds per batch of admit, apply and on_applied."""
    state = new_state()
    admission = Admission(state, term=Term(1))
    headers = [decode_header(batch) for batch in data]
    spent = [0.0, 0.0, 0.0]
    clock = time.thread_time
    for begin in range(0, len(data), per_entry):
        end = begin + per_entry
        started = clock()
        decisions = [admission.admit_batch(head, 0, time_us=0) for head in headers[begin:end]]
        spent[0] += clock() - started
        records: list[tuple[RecordKind, list[bytes | memoryview]]] = []
        for decision, batch in zip(decisions, data[begin:end], strict=True):
            assert isinstance(decision, Accepted)
            parts = batch_record_parts(
                batch, base_offset=decision.base_offset, append_time_us=1, term=Term(1)
            )
            records.append((RecordKind.BATCH, parts))
        frame, _ = build_frame(state.applied_index + 1, 1, 1, records)
        started = clock()
        results = state.apply_frame(frame)
        spent[1] += clock() - started
        started = clock()
        admission.on_applied(results)
        spent[2] += clock() - started
    return spent[0] / len(data) * 1e6, spent[1] / len(data) * 1e6, spent[2] / len(data) * 1e6


def bytes_of(make: Callable[[], object]) -> int:
    """Memory that the constructed object keeps."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = make()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del kept
    return used


def filled_queue(extents: int) -> QueueState:
    queue = QueueState(KEY, "t", 0, 65_536, QueueSettings())
    for at in range(extents):
        queue.append(10, at // 16, 48, 1_184, at)
    return queue


def filled_table(rows: int, window: int) -> SequenceTable:
    table = SequenceTable()
    for number in range(1, rows + 1):
        row = Row(1_000, 0, 1_700_000_000_000_000)
        for at in range(window):
            row.append(1_000 + at, 1_000 + at, 1_000_000 + at, 1, at, 1_700_000_000_000_000)
        table.create(KEY, number, row)
    return table


def median_ms(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        work()
        spent.append(time.thread_time() - started)
    return statistics.median(spent) * 1e3


def main() -> None:
    data = batches()
    for per_entry in (1, PER_ENTRY):
        rounds = [admit_and_apply(data, per_entry) for _ in range(ROUNDS)]
        admission, apply, settle = (
            statistics.median(column) for column in zip(*rounds, strict=True)
        )
        print(
            f"{per_entry:3} batches an entry: admit {admission:5.2f} µs, apply {apply:5.2f} µs,"
            f" on_applied {settle:5.2f} µs a batch"
        )
    print(f"an extent: {bytes_of(lambda: filled_queue(102_400)) / 102_400:.1f} B")
    print(f"a row without a window: {bytes_of(lambda: filled_table(10_000, 0)) / 10_000:.0f} B")
    print(f"a row with a full window: {bytes_of(lambda: filled_table(2_000, 80)) / 2_000:.0f} B")
    state = new_state()
    state.queues[KEY] = filled_queue(100_000)
    print(f"to_parts of 100,000 extents: {median_ms(state.to_parts):.2f} ms")
    joined = b"".join(state.to_parts())
    print(f"from_bytes of them: {median_ms(lambda: State.from_bytes(joined)):.2f} ms")
    state.producers = filled_table(10_000, 64)
    print(f"to_parts with 10,000 full rows more: {median_ms(state.to_parts):.2f} ms")
    state.producers = filled_table(1_000_000, 1)
    started = time.thread_time()
    state.to_parts()
    first_ms = (time.thread_time() - started) * 1e3
    print(
        f"to_parts with 1,000,000 idle rows instead: {first_ms:.0f} ms the first time,"
        f" {median_ms(state.to_parts):.0f} ms from then on"
    )


if __name__ == "__main__":
    main()
