"""Parked batches: they arrived before their predecessor and wait for it, by producer.

How it works. Only the fact is kept here; the caller keeps the bytes under the key. A parked batch
is decided again when the last sequence of its row has reached its predecessor, or when its
incarnation was fenced or lost its row. In the latter cases the decision is the right error.

Invariants
1. At most 64 batches of a row, and `bytes_max` bytes altogether, wait for at most `park_ms`.
2. A key is returned once: by `take` or by `expire`.

Not here: the decision about a batch (`admission.py`).
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from semel.broker.state.admission.decisions import ParkKey
from semel.protos.batch import BatchHeader
from semel.protos.ids import ProducerId, QueueKey

PARKED_BATCHES_MAX: Final = 64


class _Waiting(NamedTuple):
    """One parked batch; the order is by predecessor, then by arrival."""

    previous: int
    serial: int
    incarnation: tuple[int, int]
    length: int
    key: ParkKey


class Parking:
    """All parked batches of a master, bounded in time, number and bytes."""

    def __init__(self, *, park_ms: int, bytes_max: int) -> None:
        self._park_ms = park_ms
        self._bytes_max = bytes_max
        self._rows: dict[tuple[QueueKey, int], list[_Waiting]] = {}
        self._deadlines: deque[tuple[float, ParkKey]] = deque()
        self._serial = 0
        self.count = 0
        self.bytes = 0

    def add(self, header: BatchHeader, now_ms: float) -> ParkKey | None:
        """Parks a batch and returns its key; None if there is no room."""
        queue_key, producer_id = header.queue_key, header.producer_id
        waiting = self._rows.get((queue_key, producer_id), [])
        length = header.batch_length
        if len(waiting) >= PARKED_BATCHES_MAX or self.bytes + length > self._bytes_max:
            return None
        self._rows[queue_key, producer_id] = waiting
        self._serial += 1
        key = ParkKey(queue_key, producer_id, header.previous_sequence, self._serial)
        incarnation = header.epoch, header.session
        heappush(
            waiting, _Waiting(header.previous_sequence, self._serial, incarnation, length, key)
        )
        self._deadlines.append((now_ms + self._park_ms, key))
        self.count += 1
        self.bytes += length
        return key

    def take(
        self,
        queue_key: QueueKey,
        producer_id: ProducerId,
        last: int | None,
        incarnation: tuple[int, int],
    ) -> ParkKey | None:
        """Removes the next batch of a row that can be decided again; None if there is none.

        Its predecessor is at or below `last`, or it has another incarnation than the row. With
        `last` None, every batch of the row can be decided.
        """
        waiting = self._rows.get((queue_key, producer_id))
        if not waiting:
            return None
        if last is None or waiting[0].previous <= last:
            found = heappop(waiting)
        else:
            others = [one for one in waiting if one.incarnation != incarnation]
            if not others:
                return None
            found = min(others)
            waiting.remove(found)
            heapify(waiting)
        self._drop(queue_key, producer_id, found)
        return found.key

    def has_overdue(self, now_ms: float) -> bool:
        """Whether any batch has waited for `park_ms`."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, key = self._deadlines[0]
            waiting = self._rows.get((key.queue_key, key.producer_id), ())
            if any(one.serial == key.serial for one in waiting):
                return True
            self._deadlines.popleft()  # it was taken in time
        return False

    def expire(self, now_ms: float) -> list[ParkKey]:
        """Removes the batches that have waited for `park_ms`, and returns their keys."""
        expired: list[ParkKey] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, key = self._deadlines.popleft()
            waiting = self._rows.get((key.queue_key, key.producer_id), [])
            for at, one in enumerate(waiting):
                if one.serial == key.serial:
                    del waiting[at]
                    heapify(waiting)
                    self._drop(key.queue_key, key.producer_id, one)
                    expired.append(key)
                    break
        return expired

    def _drop(self, queue_key: QueueKey, producer_id: ProducerId, one: _Waiting) -> None:
        self.count -= 1
        self.bytes -= one.length
        if not self._rows[queue_key, producer_id]:
            del self._rows[queue_key, producer_id]
