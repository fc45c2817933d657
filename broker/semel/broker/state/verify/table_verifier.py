"""Rebuilds the sequence tables from the log alone, for `semel verify --exactly-once`.

How it works. `TableVerifier` reads whole entries from the state of a checkpoint (or from the first
entry) on. Its digests must equal `SequenceTable.queue_digest` at the same index. It also sees
position marks, which leave no batch behind, so it checks every link of every chain. It is
independent of apply and admission: it uses plain dicts and shares no rules with them.

Not here: the stored batches of a queue (`batch_verifier.py`), moved queues (`moved_tables.py`),
reading files (`semel.broker.server.verification`).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from semel.broker.state.apply.id_windows import MOVED_ID_BYTES
from semel.broker.state.apply.results import ProducerState
from semel.broker.state.apply.state_machine import State
from semel.broker.state.verify.batch_verifier import PROBLEMS_MAX
from semel.broker.state.verify.moved_tables import (
    DROPPED,
    Entry,
    Left,
    MovedTables,
)
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchHeader,
    decode_broker_header,
    decode_header,
)
from semel.protos.delays import is_delayed
from semel.protos.errors import CorruptBatch, CorruptSegment
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import DELAY_LEVEL, ID_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2

_ROW: Final = struct.Struct("<QIIqqI")
_ENTRY: Final = struct.Struct("<qqqII")
_WINDOW: Final = 64


@dataclass(slots=True)
class _TableRow:
    """A row as this reader rebuilds it."""

    epoch: int
    session: int
    last: int
    time_us: int
    window: list[Entry] = field(default_factory=list)


def _row_of(row: ProducerState) -> _TableRow:
    return _TableRow(
        row.epoch,
        row.session,
        row.last_sequence,
        row.last_time_us,
        [
            (e.base_sequence, e.last_sequence, e.base_offset, e.count, e.content_crc)
            for e in row.window
        ],
    )


class TableVerifier:
    """Rebuilds the sequence table from entries."""

    def __init__(self, start: State | None = None) -> None:
        """Starts with a copy of the table of `start`, or with an empty broker group."""
        self.index = start.applied_index if start else 0
        """The last entry that was read; the table is as of this index."""
        self.problems: list[str] = []
        """Broken chains, writes of fenced incarnations, batches without a row."""
        self._tables: dict[QueueKey, dict[int, _TableRow]] = {}
        self._ends: dict[QueueKey, int] = {}
        self._sealed: set[QueueKey] = set()
        self._level = start.feature_level if start else 0
        """The feature level of the log, from which delivery times and message ids count."""
        self._moved = MovedTables(start)
        self.cancelled: Counter[tuple[QueueKey, int]] = Counter()
        """How many delayed messages were cancelled in the entries that were read, by queue and
        entry that holds them."""
        self.parted: Counter[tuple[QueueKey, int]] = Counter()
        """How many delayed messages became those of children, or were given up, by queue and entry
        that held them."""
        self._parts: list[BatchHeader] = []
        """The parts of delayed batches in the entry that is being read."""
        self._cancelled: set[tuple[QueueKey, int, int]] = set()
        self._checked: control_pb2.CheckIds | None = None
        """The master's decision about the message ids of the batch in the next record."""
        self._arrivals: dict[int, int] = {}
        """By topic that compares ids: the arrival of the next one."""
        if start is not None:
            self._sealed = {key for key, queue in start.queues.items() if queue.sealed}
            self._ends = {key: queue.log_end_offset for key, queue in start.queues.items()}
            windows = start.id_windows.topics.items()
            self._arrivals = {topic_id: window.next_arrival for topic_id, window in windows}
            for row in start.producers.rows():
                self._tables.setdefault(row.queue_key, {})[row.producer_id] = _row_of(row)

    def feed(self, frame: bytes) -> None:
        """Reads the next entry. Raises CorruptSegment if it is not the next one, or damaged."""
        head = decode_frame_header(frame)
        if head.index != self.index + 1:
            raise CorruptSegment(f"entry {head.index} came after {self.index}")
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.BATCH or kind is RecordKind.MEMORY:
                self._batch(payload, head.time_us)
            elif kind is RecordKind.STAGED and self._checked is not None:
                checked, self._checked = self._checked, None
                self._kept_of_staged(decode_header(payload, BROKER_HEADER_BYTES), checked)
            elif kind is RecordKind.PARTED:
                self._parts.append(decode_header(payload, BROKER_HEADER_BYTES))
            elif kind is RecordKind.CONTROL:
                self._control(control_pb2.ControlRecord.FromString(bytes(payload)), head.time_us)
        self.index = head.index

    def _batch(self, payload: memoryview, time_us: int) -> None:
        try:
            offset = decode_broker_header(payload).base_offset
            batch = decode_header(payload, BROKER_HEADER_BYTES)
        except CorruptBatch as error:
            raise CorruptSegment(f"entry {self.index + 1}: {error}") from error
        checked, self._checked = self._checked, None
        key = batch.queue_key
        row = self._tables.get(key, {}).get(batch.producer_id)
        where = f"entry {self.index + 1}, queue {key.queue_id}, producer {batch.producer_id}"
        if row is None:
            self._problem(f"{where}: a batch without a row")
            return
        if (batch.epoch, batch.session) != (row.epoch, row.session):
            self._problem(f"{where}: a batch of an incarnation that is not the current one")
        if key in self._sealed:
            self._problem(f"{where}: a batch after the queue was split")
        if batch.previous_sequence != row.last:
            self._problem(
                f"{where}: {batch.base_sequence} does not follow {row.last}, the chain is broken"
            )
        delayed = self._level >= DELAY_LEVEL and is_delayed(batch)
        if offset != (-1 if delayed else self._ends.get(key)):
            self._problem(f"{where}: stored at {offset}, the end was {self._ends.get(key)}")
        if not delayed:
            self._ends[key] = offset + batch.count
        row.last = batch.last_sequence
        row.time_us = time_us
        count, content_crc = self._as_sent(batch, checked, where)
        entry = (batch.base_sequence, row.last, offset, count, content_crc)
        row.window = [*row.window, entry][-_WINDOW:]

    def _as_sent(
        self, batch: BatchHeader, record: control_pb2.CheckIds | None, where: str
    ) -> tuple[int, int]:
        """Count and CRC of a batch as its row remembers them."""
        if record is None:
            if batch.count and batch.topic_id in self._arrivals:
                self._problem(f"{where}: nothing was decided about the ids of a batch")
            return batch.count, batch.content_crc
        dropped = record.duplicates + record.conflicts
        following = self._arrivals.get(batch.topic_id, record.first_arrival)
        if (
            record.producer_id != batch.producer_id
            or record.base_sequence != batch.base_sequence
            or record.count != batch.count + dropped
            or record.first_arrival != following
        ):
            self._problem(
                f"{where}: the decision about the ids of {record.count} messages, {dropped} of"
                f" which were dropped, from arrival {record.first_arrival} on does not fit a batch"
                f" of {batch.count} when {following} is the next arrival"
            )
        self._arrivals[batch.topic_id] = record.first_arrival + record.ids
        return record.count + (DROPPED if dropped else 0), record.content_crc

    def _kept_of_staged(self, batch: BatchHeader, record: control_pb2.CheckIds) -> None:
        """Checks the rest of a batch of a transaction; its ids arrive with the publication."""
        dropped = record.duplicates + record.conflicts
        if (
            record.producer_id != batch.producer_id
            or record.base_sequence != batch.base_sequence
            or record.count != batch.count + dropped
            or record.first_arrival
            or record.ids
        ):
            self._problem(
                f"entry {self.index + 1}, a transaction: the decision about the ids of"
                f" {record.count} messages, {dropped} of which were dropped, does not fit a batch"
                f" of {batch.count}"
            )

    def _control(self, record: control_pb2.ControlRecord, time_us: int) -> None:
        if record.HasField("fence"):
            fence = record.fence
            for reference in fence.queues:
                rows = self._tables.setdefault(queue_key_of(reference), {})
                row = rows.setdefault(fence.producer_id, _TableRow(0, 0, -1, 0))
                if (fence.epoch, fence.session) < (row.epoch, row.session):
                    self._problem(f"entry {self.index + 1}: a fence goes back")
                row.epoch, row.session, row.time_us = fence.epoch, fence.session, time_us
        elif record.HasField("expire_producers"):
            rows = self._tables.get(queue_key_of(record.expire_producers.queue), {})
            for producer_id in record.expire_producers.producer_ids:
                rows.pop(producer_id, None)
        elif record.HasField("cancel_delayed"):
            self._cancel(record.cancel_delayed, time_us)
        elif record.HasField("part_delayed"):
            self._part(record.part_delayed)
        elif record.HasField("give_up_delayed"):
            given_up = record.give_up_delayed
            key = queue_key_of(given_up.queue)
            if key not in self._sealed:
                self._problem(
                    f"entry {self.index + 1}: {given_up} of a queue that nobody has split"
                )
            self.parted[key, given_up.entry] += given_up.messages
        elif record.HasField("check_ids"):
            self._checked = record.check_ids
        elif record.HasField("alter_topic"):
            self._compare(record.alter_topic.topic_id, record.alter_topic.settings)
        elif record.HasField("create_queue"):
            created = record.create_queue
            if queue_key_of(created.queue) not in self._ends:
                self._ends[queue_key_of(created.queue)] = 0
                self._compare(created.queue.topic_id, created.settings)
        elif record.HasField("split_queue"):
            self._split(record.split_queue)
        elif record.transaction.HasField("publish"):
            self._publish(record.transaction.publish)
        elif record.HasField("release_delayed"):
            self._release(record.release_delayed, time_us)
        elif record.HasField("feature_level"):
            self._level = max(self._level, record.feature_level.level)
        elif record.HasField("move_queue"):
            self._move(record.move_queue)
        elif record.HasField("delete_queue"):
            self._moved.forget(queue_key_of(record.delete_queue.queue))
            self._sealed.discard(queue_key_of(record.delete_queue.queue))
            self._ends.pop(queue_key_of(record.delete_queue.queue), None)
            self._forget_window(record.delete_queue.queue.topic_id)
            self._tables.pop(queue_key_of(record.delete_queue.queue), None)

    def _compare(self, topic_id: int, settings: common_pb2.TopicSettings) -> None:
        """A topic begins to compare message ids, goes on, or ceases."""
        if not settings.HasField("dedup"):
            self._arrivals.pop(topic_id, None)
        elif self._level >= ID_LEVEL:
            self._arrivals.setdefault(topic_id, 0)

    def _forget_window(self, topic_id: int) -> None:
        """A window ends with the last queue of its topic, unless another one is on its way here;
        then the arrivals go on, and the next record says where."""
        if not any(key.topic_id == topic_id for key in self._ends):
            self._arrivals.pop(topic_id, None)

    def _publish(self, record: transaction_records_pb2.PublishTransaction) -> None:
        """Staged batches get offsets; `BatchVerifier` reads the batches themselves."""
        for topic in record.ids:
            following = self._arrivals.get(topic.topic_id, topic.first_arrival)
            if topic.first_arrival != following:
                self._problem(
                    f"entry {self.index + 1}: published ids arrive as {topic.first_arrival}, the"
                    f" next one was {following}"
                )
            self._arrivals[topic.topic_id] = topic.first_arrival + sum(topic.ids)
        published = {part.queue.topic_id for part in record.parts}
        missing = published & self._arrivals.keys() - {topic.topic_id for topic in record.ids}
        if missing:
            self._problem(
                f"entry {self.index + 1}: nothing was decided about ids of topics {sorted(missing)}"
            )
        for part in record.parts:
            key = queue_key_of(part.queue)
            where = f"entry {self.index + 1}, queue {key.queue_id}"
            if key in self._sealed:
                self._problem(f"{where}: a transaction was published after the queue was split")
            if part.base_offset != self._ends.get(key):
                self._problem(
                    f"{where}: a transaction was published at {part.base_offset}, the end was"
                    f" {self._ends.get(key)}"
                )
            self._ends[key] = part.base_offset + part.messages

    def _release(self, record: control_pb2.ReleaseDelayed, time_us: int) -> None:
        """Delayed batches get offsets; `BatchVerifier` reads the batches themselves."""
        key = queue_key_of(record.queue)
        where = f"entry {self.index + 1}, queue {key.queue_id}"
        if record.until_us > time_us:
            self._problem(f"{where}: a release at {time_us} takes what is due by {record.until_us}")
        if key in self._sealed or record.base_offset != self._ends.get(key):
            self._problem(
                f"{where}: delayed messages were released at {record.base_offset}, the end was"
                f" {self._ends.get(key)}"
            )
        self._ends[key] = record.base_offset + record.messages

    def _cancel(self, record: control_pb2.CancelDelayed, time_us: int) -> None:
        """A message is taken out before it is due, so its id is no longer known."""
        key = queue_key_of(record.queue)
        where = f"entry {self.index + 1}, queue {key.queue_id}"
        if record.due_us <= time_us:
            self._problem(f"{where}: a message that was due at {record.due_us} is cancelled")
        if record.arrival >= self._arrivals.get(key.topic_id, 0):
            self._problem(f"{where}: a message is cancelled that never arrived: {record.arrival}")
        message = key, record.ordinal, record.row
        if message in self._cancelled:
            self._problem(f"{where}: row {record.row} of batch {record.ordinal} is cancelled twice")
        self._cancelled.add(message)
        self.cancelled[key, record.entry] += 1

    def _part(self, record: control_pb2.PartDelayed) -> None:
        """Delayed batches of a queue that was split become batches of its children. They are in
        nobody's chain: the queue's rows remember them as they were sent."""
        key = queue_key_of(record.queue)
        where = f"entry {self.index + 1}, queue {key.queue_id}"
        parts, self._parts = self._parts, []
        if key not in self._sealed or len(parts) != sum(each.parts for each in record.batches):
            self._problem(f"{where}: {len(parts)} parts of delayed batches that nobody has split")
            return
        for batch in record.batches:
            found, parts = parts[: batch.parts], parts[batch.parts :]
            if len({each.producer_id for each in found}) != 1 or any(
                each.deliver_at_us != batch.due_us for each in found
            ):
                self._problem(f"{where}: the parts of batch {batch.ordinal} are not of one batch")
            messages = sum(each.count for each in found)
            self.parted[key, batch.entry] += messages - batch.cancelled * (len(found) == 1)

    def _split(self, record: control_pb2.SplitQueue) -> None:
        """Children start with the rows of their parent, which know no offsets."""
        key = queue_key_of(record.queue)
        if key in self._sealed:
            return
        self._sealed.add(key)
        for child in record.children:
            rows = {
                producer_id: _TableRow(
                    row.epoch,
                    row.session,
                    row.last,
                    row.time_us,
                    [(0, row.last, -1, 0, 0)] if row.last >= 0 else [],
                )
                for producer_id, row in self._tables.get(key, {}).items()
            }
            child_key = QueueKey(key.topic_id, QueueId(child.queue_id))
            self._tables[child_key] = rows
            self._ends[child_key] = 0

    def _move(self, record: control_pb2.MoveQueue) -> None:
        key = queue_key_of(record.queue)
        if record.ids:
            following = self._arrivals.get(key.topic_id, record.first_arrival)
            if record.first_arrival != following:
                self._problem(
                    f"entry {self.index + 1}: moved ids arrive as {record.first_arrival}, the next"
                    f" one was {following}"
                )
            ids = len(record.ids) // MOVED_ID_BYTES
            self._arrivals[key.topic_id] = record.first_arrival + ids
        end = self._ends.get(key)
        found = self._moved.step(record, key, end, split=key in self._sealed)
        if isinstance(found, Left):
            if found.sealed_end != end:
                self._problem(f"entry {self.index + 1}: queue {key.queue_id} grew while sealed")
            self._ends.pop(key, None)
            self._tables.pop(key, None)
            self._forget_window(key.topic_id)
        elif found is not None:
            self._ends[key] = found.log_end_offset
            self._tables[key] = {row.producer_id: _row_of(row) for row in found.rows}
            if found.split:
                self._sealed.add(key)

    def windows(self, key: QueueKey) -> dict[int, list[Entry]]:
        """The windows of the queue's rows, by producer."""
        return {
            producer_id: list(row.window) for producer_id, row in self._tables.get(key, {}).items()
        }

    def _problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def log_end_offset(self, key: QueueKey) -> int:
        """End offset of the queue as of `index`; 0 if it does not exist."""
        return self._ends.get(key, 0)

    def queue_digest(self, key: QueueKey) -> bytes:
        """SHA-256 over the rows of the queue, equal to `SequenceTable.queue_digest`."""
        digest = hashlib.sha256()
        for producer_id, row in sorted(self._tables.get(key, {}).items()):
            digest.update(
                _ROW.pack(
                    producer_id, row.epoch, row.session, row.last, row.time_us, len(row.window)
                )
            )
            for entry in row.window:
                digest.update(_ENTRY.pack(*entry))
        return digest.digest()
