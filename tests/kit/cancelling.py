"""An IdGroup whose delayed messages are found by their ids and cancelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semel.broker.replica.message_ids import IdPlace
from semel.broker.server.stored_rows import FoundRow, candidates, read_row
from semel.broker.state import Accepted, ApplyResult, State
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.ids import QueueId, QueueKey
from semel.protos.v1 import control_pb2
from tests.kit.id_group import IdGroup
from tests.kit.state_log import KEY, Record, control, ref


class CancelGroup(IdGroup):
    """Also reads what is stored, message by message, and may have several entries in flight."""

    def __init__(self) -> None:
        self.flying: list[tuple[int, list[Record]]] = []
        """Time and records of entries that are appended and not applied."""
        super().__init__()

    @property
    def next_index(self) -> int:
        return super().next_index + len(self.flying)

    def close(self) -> None:
        """Makes one entry of what is accepted so far."""
        if self.entry:
            self.flying.append((self.now_us, self.entry))
            self.entry = []

    def commit(self) -> list[ApplyResult]:
        self.close()
        now_us, flying, results = self.now_us, self.flying, []
        self.flying = []
        for self.now_us, self.entry in flying:
            results = super().commit()
        self.now_us = now_us
        return results

    def new_master(self) -> None:
        self.flying = []
        super().new_master()

    def read_record(self, index: int, position: int, length: int) -> bytes:
        stored = self.payload(index, position)
        assert len(stored) == length
        return stored

    def place(self, message_id: bytes) -> IdPlace | None:
        """Where the newest message with the id came."""
        keys = self.fingerprints.keys(pa.array([message_id], pa.binary()))
        first = self.window.first_arrival
        search = self.index.search_disk(self.index.search_memory(keys, first), keys, first)
        if not len(search.hits.rows):
            return None
        found = self.index.places_of(search.hits.arrivals)
        return IdPlace(int(search.hits.arrivals[0]), *(int(each[0]) for each in found))

    def find(self, message_id: bytes) -> FoundRow | None:
        """The message, where it is stored."""
        place = self.place(message_id)
        if place is None or self.window.is_cancelled(place.arrival):
            return None
        key = QueueKey(KEY.topic_id, QueueId(place.queue_id))
        log: Any = self
        return read_row(log, candidates(self.state, key, place), message_id, place.due_us)

    def cancel_record(self, message_id: bytes) -> control_pb2.CancelDelayed | None:
        """The record that cancels the message, as the applied state knows it."""
        place, found = self.place(message_id), self.find(message_id)
        if place is None or found is None or found.candidate.extent is not None:
            return None
        return control_pb2.CancelDelayed(
            queue=ref(found.candidate.queue_key),
            due_us=place.due_us,
            ordinal=found.candidate.ordinal,
            row=found.row,
            arrival=place.arrival,
            entry=found.candidate.entry,
        )

    def cancel(self, message_id: bytes, *, commit: bool = True) -> Any:
        """The decision about a cancellation; None if the message is not delayed (any more)."""
        record = self.cancel_record(message_id)
        return None if record is None else self.submit(record, commit=commit)

    def submit(self, record: control_pb2.CancelDelayed, *, commit: bool = True) -> Any:
        decision = self.admission.admit_cancel(record, time_us=self.now_us)
        if isinstance(decision, Accepted):
            self.entry.append(control(cancel_delayed=record))
            if commit:
                self.commit()
        return decision

    def delivered(self, key: QueueKey = KEY) -> list[bytes]:
        """The ids in a queue by offset, read from the log; asserts that offsets are dense."""
        queue = self.state.queues[key]
        found: list[bytes] = []
        end = queue.log_start_offset
        for extent in queue.extents_from(end, 1 << 40):
            assert extent.base_offset == end
            end += extent.count
            found += self._ids(extent.index, extent.position)[extent.first_row :][: extent.count]
        assert end == queue.log_end_offset
        return found

    def delayed(self, key: QueueKey = KEY) -> list[bytes]:
        """The ids that wait in a queue, by due time, read from the log."""
        found: list[bytes] = []
        queue = self.state.delays.queues.get(key)
        for extent in queue or ():
            assert queue is not None
            rows = np.ones(extent.messages, np.bool_)
            rows[list(queue.cancelled.rows(extent.ordinal))] = False
            ids = self._ids(extent.entry, extent.position)
            found += [each for each, kept in zip(ids, rows, strict=True) if kept]
        return found

    def _ids(self, index: int, position: int) -> list[bytes]:
        data = self.payload(index, position)[BROKER_HEADER_BYTES:]
        ids = decode_columns(data, check_batch(data)).message_ids
        assert ids is not None
        return [bytes(each) for each in ids.to_pylist()]

    def same_everywhere(self) -> None:
        """Asserts that a replay and a restart have the same state."""
        data = b"".join(self.state.to_parts())
        assert b"".join(State.from_bytes(data).to_parts()) == data
        assert self.replayed().digest() == self.state.digest()
