"""Finds messages that were stored twice under one message id, from the entries of the log alone.

How it works. Entries are fed in their order, from any one on. Each stored batch of a topic that
compares ids comes behind a CHECK_IDS record, which numbers the ids of its messages: their
*arrivals*. Batches of a transaction are those that its PUBLISH record names, which numbers their
ids; they lie in earlier entries, or in front of it. EVICT_IDS records say
where the window begins, CANCEL_DELAYED records which ids are free again. So it is exact which
message was stored although its id was in the window:

    a message with the arrival n is an *id duplicate* if an earlier entry, or an earlier row of its
    own batch, stores a message with the same id whose arrival is not below the window's beginning
    at that moment, and that was not cancelled before

Ids are compared by 128 bits of their own fingerprint, whose seed is chosen anew for each run, so
neither the index nor its seed is trusted. Before the first EVICT_IDS record of the log that is left
the beginning of the window is not known, but is not above that record's: that is what counts.
Windows are compared for each broker group by itself.

Invariants
1. What is reported is a duplicate. What is not may be one whose first message lies before the log
   that is left.

Not here: reading the log (`verification.py`), the decisions of masters (`semel.broker.dedup`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64, Fingerprints
from semel.broker.state import MOVED_ID_BYTES
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_header
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2, transaction_records_pb2

_UNKNOWN: Final = -1
"""In place of the beginning of a window that no record has told yet."""
Rows = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Window:
    """The ids that arrived while a topic compared ids without a break."""

    begin: int = _UNKNOWN
    keys: list[U64] = field(default_factory=list)
    """One block for each batch; its ids' arrivals, the window's beginning and the queue follow."""
    arrivals: list[Rows] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    next_arrival: int = _UNKNOWN
    cancelled: dict[int, int] = field(default_factory=dict)
    """By arrival of a cancelled message: the arrival from which on its id is free."""

    def evict(self, first_arrival: int) -> None:
        if self.begin == _UNKNOWN:
            self.begins = [first_arrival] * len(self.begins)
        self.begin = first_arrival

    def duplicates(self) -> dict[int, int]:
        """Number of id duplicates by queue. The beginning of the window is known."""
        if not self.keys:
            return {}
        sizes = [len(block) for block in self.arrivals]
        keys, arrivals = np.concatenate(self.keys), np.concatenate(self.arrivals)
        begins, queues = np.repeat(self.begins, sizes), np.repeat(self.queues, sizes)
        order = np.lexsort((arrivals, keys[:, 1], keys[:, 0]))
        keys, arrivals, begins = keys[order], arrivals[order], begins[order]
        # The newest earlier message with the id is the one before it in this order.
        again = (keys[1:] == keys[:-1]).all(axis=1) & (arrivals[:-1] >= begins[1:])
        for pair in np.flatnonzero(again & np.isin(arrivals[:-1], list(self.cancelled))).tolist():
            again[pair] = arrivals[pair + 1] < self.cancelled[int(arrivals[pair])]
        found, counts = np.unique(queues[order][1:][again], return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))


class StoredIds:
    """Reads entries, one after the other."""

    def __init__(
        self, begins: dict[int, int], seed: bytes, read: Callable[[int, int, int], bytes | None]
    ) -> None:
        """`begins` has the beginning of each window to look at, as it is after the last entry, by
        topic. `seed` has 16 random bytes. `read` returns the record at (entry, position) of a
        length; None if it is gone, because its messages were trimmed."""
        self.problems: list[str] = []
        self._begins = begins
        self._fingerprints = Fingerprints(seed)
        self._windows: dict[int, _Window] = {}
        self._read = read
        self._checked: control_pb2.CheckIds | None = None
        self._staged: list[bytes] = []
        """Batches of transactions in the entry without the messages that were dropped."""
        self._found: dict[QueueKey, int] = {}

    def feed(self, frame: bytes) -> None:
        """Reads the next entry."""
        index = decode_frame_header(frame).index
        self._staged.clear()
        for _, kind, payload in iter_records(frame):
            if kind is RecordKind.CONTROL:
                self._control(control_pb2.ControlRecord.FromString(bytes(payload)), index)
            elif self._checked is not None:
                record, self._checked = self._checked, None
                key = queue_key_of(record.queue)
                if kind is RecordKind.STAGED:
                    self._staged.append(bytes(payload))
                elif kind is RecordKind.BATCH:
                    self._stored(key, record.first_arrival, record.ids, bytes(payload), index)

    def _control(self, record: control_pb2.ControlRecord, index: int) -> None:
        if record.transaction.HasField("publish"):
            for topic in record.transaction.publish.ids:
                if topic.topic_id in self._begins:
                    self._publish(topic, index)
        elif record.HasField("check_ids"):
            if record.check_ids.queue.topic_id in self._begins:
                self._checked = record.check_ids
        elif record.HasField("evict_ids"):
            window = self._windows.setdefault(record.evict_ids.topic_id, _Window())
            window.evict(record.evict_ids.first_arrival)
        elif record.HasField("cancel_delayed"):
            cancel = record.cancel_delayed
            known = self._windows.get(cancel.queue.topic_id)
            if known is not None:
                known.cancelled[cancel.arrival] = max(known.next_arrival, cancel.arrival + 1)
        elif record.move_queue.ids:
            self._moved(record.move_queue)
        elif record.move_queue.arrivals:
            self._superseded(record.move_queue)
        elif record.HasField("alter_topic") and not record.alter_topic.settings.HasField("dedup"):
            self._end(record.alter_topic.topic_id)

    def _publish(self, topic: transaction_records_pb2.PublishedIds, index: int) -> None:
        arrival = topic.first_arrival
        here = (each for each in self._staged if _key(each).topic_id == topic.topic_id)
        columns = topic.ids, topic.entries, topic.positions, topic.lengths
        for ids, entry, position, length in zip(*columns, strict=True):
            payload = self._read(entry, position, length) if entry else next(here, None)
            if payload is not None:
                self._stored(_key(payload), arrival, ids, payload, index)
            elif not entry:
                self.problems.append(f"entry {index}: a published batch is not there")
            elif ids:  # it was trimmed, and its ids are not compared
                self._window_at(topic.topic_id, arrival).next_arrival = arrival + ids
            arrival += ids

    def _stored(self, key: QueueKey, arrival: int, ids: int, payload: bytes, index: int) -> None:
        try:
            self._batch(key, arrival, ids, payload, index)
        except (CorruptBatch, InvalidRequest) as error:
            self.problems.append(f"entry {index}: ids cannot be compared: {error}")

    def _moved(self, step: control_pb2.MoveQueue) -> None:
        """Ids arrive that are not compared: the messages are in another group's log."""
        topic_id = step.queue.topic_id
        if topic_id in self._begins:
            window = self._window_at(topic_id, step.first_arrival)
            window.next_arrival = step.first_arrival + len(step.ids) // MOVED_ID_BYTES

    def _superseded(self, step: control_pb2.MoveQueue) -> None:
        """Ids of messages that were delayed when their queue left, which comes back: they may have
        been cancelled elsewhere."""
        known = self._windows.get(step.queue.topic_id)
        if known is not None:
            for arrival in np.frombuffer(step.arrivals, "<u8").tolist():
                known.cancelled.setdefault(arrival, max(known.next_arrival, arrival + 1))

    def _window_at(self, topic_id: int, first_arrival: int) -> _Window:
        """The window in which ids arrive from `first_arrival` on: another one than before if the
        arrivals do not go on, because all queues of the topic had moved away."""
        window = self._windows.get(topic_id)
        if window is not None and window.next_arrival not in (_UNKNOWN, first_arrival):
            self._end(topic_id)
        return self._windows.setdefault(topic_id, _Window())

    def _batch(self, key: QueueKey, arrival: int, count: int, payload: bytes, index: int) -> None:
        if not count:
            return
        window = self._window_at(key.topic_id, arrival)
        window.next_arrival = arrival + count
        batch = payload[BROKER_HEADER_BYTES:]
        header = decode_header(payload, BROKER_HEADER_BYTES)
        if header.queue_key != key or not header.count:
            return  # the table's verifier says what does not fit
        check_batch(batch)
        ids = decode_columns(batch, header).message_ids
        ids = None if ids is None else ids.drop_null()
        if ids is None or len(ids) != count:
            self.problems.append(
                f"entry {index}: {0 if ids is None else len(ids)} messages with ids are stored, the"
                f" decision says {count}"
            )
            return
        window.keys.append(self._fingerprints.keys(ids))
        window.arrivals.append(arrival + np.arange(len(ids), dtype=np.int64))
        window.begins.append(window.begin)
        window.queues.append(key.queue_id)

    def _end(self, topic_id: int) -> None:
        """The topic ceases to compare ids; if it begins again, it does so with none."""
        window = self._windows.pop(topic_id, None)
        if window is None:
            return
        if window.begin == _UNKNOWN:
            return  # no record of the log told where it began
        self._count(topic_id, window)

    def _count(self, topic_id: int, window: _Window) -> None:
        for queue, count in window.duplicates().items():
            key = QueueKey(TopicId(topic_id), QueueId(queue))
            self._found[key] = self._found.get(key, 0) + count

    def finish(self) -> dict[QueueKey, int]:
        """Returns the number of id duplicates by the queue that stored them."""
        for topic_id, window in self._windows.items():
            if window.begin == _UNKNOWN:
                window.evict(self._begins.get(topic_id, 0))
            self._count(topic_id, window)
        self._windows.clear()
        return self._found


def _key(payload: bytes) -> QueueKey:
    return decode_header(payload, BROKER_HEADER_BYTES).queue_key
