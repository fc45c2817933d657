"""A log of one node whose queue is compacted, and a checker that knows only what was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from semel.broker.compaction import CompactedRun, NewestOffsets, RunBuilder
from semel.broker.state import Accepted, Compacted, Extent, State
from semel.client.message import Rows
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BrokerHeader,
    Codec,
    check_batch,
)
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.compacted_rows import offsets_of_rows
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, QueueKey, Term
from semel.protos.levels import COMPACTION_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, control, ref

Row = tuple[bytes | None, bytes | None]
"""Key and value."""
SEED = bytes(range(16))
TOMBSTONE_MS = 60_000


class CompactedGroup(Group):
    """One queue, `KEY`, of a topic that is compacted."""

    def __init__(self, *, tombstone_ms: int = TOMBSTONE_MS, lag_ms: int = 0) -> None:
        self._last: dict[int, int] = {}
        super().__init__(queues=())
        self.raise_level(COMPACTION_LEVEL)
        compaction = common_pb2.Compaction(tombstone_ms=tombstone_ms, lag_ms=lag_ms)
        self.create(KEY, compaction=compaction)
        self.sent: list[Row] = []
        """All messages in the order of their offsets."""
        self.fenced: set[int] = set()

    def send(self, rows: Sequence[Row], *, producer: int = 1, codec: Codec = Codec.NONE) -> None:
        """Stores one batch."""
        if producer not in self.fenced:
            self.fenced.add(producer)
            self.fence(producer=producer)
        last = self._last.get(producer, -1)
        keys = pa.array([key for key, _ in rows], pa.binary())
        columns = Columns(
            values=pa.array([value for _, value in rows], pa.binary()),
            keys=keys if keys.null_count < len(keys) else None,
        )
        batch = encode_batch(
            columns,
            topic_id=KEY.topic_id,
            queue_id=KEY.queue_id,
            producer_id=producer,
            epoch=1,
            session=0,
            previous_sequence=last,
            base_sequence=last + 1,
            last_sequence=last + len(rows),
            timestamp_us=self.now_us,
            codec=codec,
        )
        decision = self.admission.admit_batch(check_batch(batch), 0, time_us=self.now_us)
        assert isinstance(decision, Accepted), decision
        head = BrokerHeader(decision.base_offset, self.now_us, Term(self.term))
        self.entry.append((RecordKind.BATCH, [head.encode(), batch]))
        self.commit()
        self._last[producer] = last + len(rows)
        self.sent += rows

    def compact(
        self,
        *,
        run_extents: int = 3,
        tombstones_below: int | None = None,
        newest: NewestOffsets | None = None,
        spoil: Callable[[CompactedRun], CompactedRun] = lambda run: run,
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """One pass over the queue, in runs of so many extents; returns the records that had an
        effect."""
        queue = self.state.queues[KEY]
        settings = queue.settings.compaction
        assert settings is not None
        if tombstones_below is None:
            tombstones_below = queue.compaction.horizon(self.now_us, settings.tombstone_ms)
        end = queue.compaction_target(self.now_us)
        start = max(queue.compaction.compacted_to, queue.log_start_offset)
        if newest is None:
            newest = self.newest(start, end)
        at, tombstones, done = queue.log_start_offset, 0, 0
        while True:
            extents = [
                extent
                for extent in queue.extents_from(at, 1 << 40)[:run_extents]
                if extent.base_offset + extent.count <= end
            ]
            record = control_pb2.Compact(queue=ref(), tombstones_below=tombstones_below)
            builder = RunBuilder(newest, tombstones_below)
            found = CompactedRun(0, end, b"", ())
            if extents:
                run = queue.extents.run(extents[0].base_offset, len(extents), queue.log_end_offset)
                assert run is not None
                for extent in extents:
                    builder.add(extent, self.stored(extent))
                found = spoil(builder.finish())
                record.places_crc = run.crc
                if found.changes:
                    record.from_offset, record.to_offset = found.from_offset, found.to_offset
                    record.fates = found.fates
            tombstones += builder.tombstones
            over = not extents or found.to_offset >= end
            if over:
                record.compacted_to, record.tombstones = end, tombstones
            between()
            done += self.put(record, found if record.fates else None)
            at = found.to_offset
            if over:
                return done

    def put(self, record: control_pb2.Compact, run: CompactedRun | None) -> bool:
        """Appends a COMPACT record with what it needs; whether it had an effect."""
        for made in run.batches if run is not None else ():
            head = BrokerHeader(
                Offset(made.base_offset), made.append_time_us, Term(self.term), made.span
            )
            self.entry.append((RecordKind.COMPACTED, [head.encode(), made.batch]))
        self.entry.append(control(compact=record))
        result = self.commit()[-1]
        assert isinstance(result, Compacted)
        return result.done

    def newest(self, start: int, end: int) -> NewestOffsets:
        """The keys of `[start, end)`."""
        found = NewestOffsets(SEED, 1 << 20)
        queue = self.state.queues[KEY]
        for extent in queue.extents_from(start, 1 << 40):
            if extent.base_offset >= end:
                break
            columns, offsets = self.columns(extent)
            if columns is not None:
                offsets[offsets < start] = -1
                found.add(columns, offsets)
        return found

    def columns(self, extent: Extent) -> tuple[Columns | None, Any]:
        """Decoded columns and offsets of one extent."""
        data = self.stored(extent)[BROKER_HEADER_BYTES:]
        header = check_batch(data)
        if header.flags & BatchFlags.POSITION_MARK:
            return None, None
        columns = decode_columns(data, header)
        args = extent.base_offset, extent.first_row, extent.count
        return columns, offsets_of_rows(columns, *args)

    def stored(self, extent: Extent) -> bytes:
        return self.payload(extent.index, extent.position)

    def read(self, offset: int | None = None, state: State | None = None) -> list[tuple[int, Row]]:
        """Offset, key and value of all messages from `offset` on, as the client reads them."""
        queue = (state or self.state).queues[KEY]
        at = queue.log_start_offset if offset is None else offset
        found: list[tuple[int, Row]] = []
        end = at
        for extent in queue.extents_from(at, 1 << 40):
            skip = max(0, at - extent.base_offset)
            rows = Rows(
                "t",
                QueueKey(*KEY),
                memoryview(self.stored(extent)),
                extent.base_offset + skip,
                extent.first_row + skip,
                extent.first_row + extent.count,
            )
            assert rows.base_offset == end, "extents leave no offset out"
            end = rows.end_offset
            found += [(each.offset, (each.key, each.value)) for each in rows.messages()]
        assert end == queue.log_end_offset
        return found

    def problems(self, *, gone: bool = False) -> list[str]:
        """What a reader from the start would find wrong. With `gone` old tombstones may be gone."""
        found, problems = self.read(), []
        start = self.state.queues[KEY].log_start_offset
        offsets = [offset for offset, _ in found]
        if offsets != sorted(set(offsets)):
            problems.append("offsets do not rise")
        problems += [
            f"offset {offset} is {row}, {self.sent[offset]} was sent"
            for offset, row in found
            if self.sent[offset] != row
        ]
        newest = {key: (at, value) for at, (key, value) in enumerate(self.sent) if key is not None}
        read = {key: (at, value) for at, (key, value) in found if key is not None}
        for key, (at, value) in newest.items():
            if at >= start and read.get(key) != (at, value):
                if gone and value is None and key not in read:
                    continue
                problems.append(f"key {key!r} ends with {read.get(key)}, not with {(at, value)}")
        keyless = {at for at, (key, _) in enumerate(self.sent) if key is None and at >= start}
        if not keyless <= set(offsets):
            problems.append("a message without a key is gone")
        return problems

    def older(self) -> list[int]:
        """Offsets of messages below `compacted_to` of whose keys there are newer ones below it."""
        end = self.state.queues[KEY].compaction.compacted_to
        rows = [(at, key) for at, (key, _) in self.read() if at < end and key is not None]
        last = {key: at for at, key in rows}
        return [at for at, key in rows if last[key] != at]
