"""Two groups of the state's tests, and every step of a move between them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from semel.broker.state import (
    Accepted,
    MoveApplied,
    NumberedDelays,
    State,
    TableVerifier,
    header_of_copy,
    make_slice,
)
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import Offset, QueueKey
from semel.protos.levels import MOVE_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, control, ref

NAMES = {1: "left", 2: "right"}


class Home(Group):
    """A broker group with a number; `tables` follows its log as `semel verify` does."""

    def __init__(
        self,
        number: int,
        *,
        queues: tuple[Any, ...] = (),
        key: QueueKey = KEY,
        at_level: int = MOVE_LEVEL,
    ) -> None:
        self.number = number
        self.key = key
        """The queue that moves."""
        self.tables = TableVerifier()
        super().__init__(queues=queues)
        level = control_pb2.FeatureLevel(level=at_level)
        assert isinstance(self.admission.admit_feature_level(level), Accepted)
        self.entry.append(control(feature_level=level))
        self.commit()

    def apply(self, *records: Any) -> Any:
        results = super().apply(*records)
        self.tables.feed(self.frames[-1])
        return results

    def restart(self) -> None:
        """Goes on from a checkpoint, as a new master."""
        data = b"".join(self.state.to_parts())
        self.state = State.from_bytes(data)
        assert b"".join(self.state.to_parts()) == data
        self.tables = TableVerifier(self.state)
        self.new_master()

    def step(self, name: str, job: int, other: int, **fields: Any) -> SemelError | None:
        """Takes one step; the refusal, if any, at admission or at apply."""
        record = control_pb2.MoveQueue(
            queue=ref(self.key),
            job=job,
            group_id=other,
            step=f"MOVE_STEP_{name}",
            **fields,
        )
        self.commit()
        decision = self.admission.queues.admit_move(record)
        if not isinstance(decision, Accepted):
            return decision.error
        self.entry.append(control(move_queue=record))
        result = self.commit()[-1]
        assert isinstance(result, MoveApplied)
        return result.error

    def stored(self, offset: int) -> bytes:
        """The stored batch at an offset."""
        (extent,) = self.state.queues[self.key].extents_from(offset, 1)
        for position, _, payload in iter_records(self.frames[extent.index - 1]):
            if position == extent.position:
                assert len(payload) == extent.length
                head = decode_broker_header(payload)
                head = replace(head, base_offset=Offset(extent.base_offset))
                if head.append_time_us < extent.append_time_us:
                    head = replace(head, append_time_us=extent.append_time_us)
                return head.encode() + bytes(payload[BROKER_HEADER_BYTES:])
        raise AssertionError(extent)


def begin(source: Home, target: Home, job: int) -> SemelError | None:
    create = control_pb2.CreateQueue(queue=ref(source.key), topic="orders", slot_end=65_536)
    return target.step("BEGIN", job, source.number, create=create)


def copy_some(source: Home, target: Home, batches: int) -> None:
    """Copies the next few batches, as far as both groups have the queue."""
    key = source.key
    for _ in range(batches):
        incoming, queue = target.state.moves.incoming.get(key), source.state.queues.get(key)
        if incoming is None or queue is None:
            return
        at = incoming.queue.log_end_offset
        if at < queue.local_start:
            extents = queue.extents_from(queue.local_start, 1)
            at = extents[0].base_offset if extents else queue.local_start
            job = target.state.moves.places[key].job
            if at > incoming.queue.log_end_offset:
                target.step("FLOOR", job, source.number, offset=at)
        if at >= queue.log_end_offset:
            return
        target.commit()
        target.entry.append((RecordKind.COPY, [source.stored(max(at, queue.local_start))]))
        target.commit()


def copy_delayed(source: Home, target: Home, bytes_max: int = 1 << 20) -> None:
    """Copies a page of delayed batches."""
    delayed = source.state.delays.queues.get(source.key)
    copies = target.state.moves.incoming[source.key].delayed
    table = None if delayed is None else delayed.table()
    listed = NumberedDelays.of(source.key, table)
    for extent in listed.page(delayed, copies.below_ordinal, bytes_max).extents:
        stored = source.payload(extent.entry, extent.position)
        head = header_of_copy(decode_broker_header(stored), extent.ordinal)
        target.commit()
        target.entry.append((RecordKind.COPY, [head.encode(), stored[BROKER_HEADER_BYTES:]]))
    target.commit()


def bring_slice(source: Home, target: Home, job: int, data: bytes | None = None) -> Any:
    """All that is left of a frozen queue; what INGEST said."""
    copy_some(source, target, 1 << 20)
    copy_delayed(source, target)
    if data is None:
        state = source.state
        data = make_slice(state.queues[source.key], state.producers, state.groups, state.delays)
    for at in range(0, len(data), 100):
        error = target.step("PART", job, source.number, offset=at, part=data[at : at + 100])
        if error is not None:
            return error
    digest = hashlib.sha256(data).digest()
    return target.step("INGEST", job, source.number, offset=len(data), digest=digest)


def move(source: Home, target: Home, job: int = 1) -> None:
    """A whole move without a failure."""
    assert begin(source, target, job) is None
    copy_some(source, target, 3)
    assert source.step("SEAL", job, target.number) is None
    assert bring_slice(source, target, job) is None
    assert target.step("ACTIVATE", job, source.number) is None
    assert source.step("FORWARD", job, target.number) is None
