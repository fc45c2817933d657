"""The stored batches of topics in memory that this node has: headers and bodies, by their records.

How it works. A batch comes with the entry that holds its record, before the entry is acknowledged:
from this node's own proposer, or beside the frame from the master. It is found by the index of the
entry and the position of the record, as in the log, and goes when its entry is truncated, or when
the state says that its offsets are trimmed, lost or deleted, or that its queue has moved away.
Batches of a queue that moves here are kept in the same way. A node that starts has none and pulls
those that its state names (`background/memory_bodies.py`); `missing_to` says up to which entry it
has to look.

Invariants
1. A batch that is here belongs to the entry that the log has at that index: it was put there
   together with it, or its header was compared with the log's.
2. `bytes` is the total length of all batches.

Not here: the bytes on the wire (`memory/carried.py`), which offsets are lost
(`state/apply/lost_offsets.py`), how much may be here (`background/memory_bounds.py`).
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from semel.broker.memory.carried import Carried
from semel.broker.state import ApplyResult, Done, Extent, MoveApplied, QueueState, State
from semel.protos.ids import QueueId, QueueKey, TopicId

_PLACED: Final = struct.Struct("<q48xQII")
"""Base offset, topic, queue and count of a stored batch."""
_ENDS_OFFSETS: Final = frozenset({"trim", "delete_queue", "lose_memory"})
"""Names of the records, in control.proto, after which batches of their queue may go; so they may
after every step of a move, and after a copy that was refused."""


class Lacking(NamedTuple):
    """A batch that is live by the state, and not here."""

    key: QueueKey
    extent: Extent


class BodyStore:
    """The batches of one node. One thread changes it; any thread may call `get`."""

    def __init__(self, last_index: int) -> None:
        """`last_index` is the log's: nothing is known of the entries up to there."""
        self._entries: dict[int, dict[int, bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._queues: dict[QueueKey, list[tuple[int, int, int]]] = {}
        """A heap for each queue: end offset, entry and position of each batch. Of those that were
        truncated some may be left."""
        self.bytes = 0
        self.topics: Counter[int] = Counter()
        """Total length of the batches of each topic."""
        self.bounds: dict[int, int] = {}
        """How many bytes of a topic this broker group is to have, as of a moment ago."""
        self.known_from = last_index + 1
        """An entry from here on that has no batches here has no MEMORY records with bodies."""
        self.missing_to = last_index
        """Entries up to here may have bodies that are not here; 0 if all are here."""

    def get(self, index: int, position: int) -> bytes | None:
        """Broker header and batch of a record; None if it is not here."""
        entry = self._entries.get(index)
        return None if entry is None else entry.get(position)

    def entry_bytes(self, index: int) -> int:
        """Total length of the batches of an entry."""
        return self._sizes.get(index, 0)

    def put(self, index: int, position: int, stored: bytes) -> None:
        """Takes the stored batch of a record that is in the log."""
        entry = self._entries.setdefault(index, {})
        if position in entry:
            return
        entry[position] = stored
        self._sizes[index] = self._sizes.get(index, 0) + len(stored)
        self.bytes += len(stored)
        base_offset, topic_id, queue_id, count = _PLACED.unpack_from(stored)
        self.topics[topic_id] += len(stored)
        key = QueueKey(TopicId(topic_id), QueueId(queue_id))
        heapq.heappush(self._queues.setdefault(key, []), (base_offset + count, index, position))

    def put_carried(self, index: int, carried: Sequence[Carried]) -> None:
        """Takes what came with an entry that was just appended."""
        for one in carried:
            if one.stored is None:
                self.missing_to = max(self.missing_to, index)
                self.known_from = max(self.known_from, index + 1)
            else:
                self.put(index, one.position, one.stored)

    def put_again(self, index: int, carried: Sequence[Carried], state: State) -> None:
        """Takes what came with an entry that the log has already, if the state still wants it."""
        for one in carried:
            if one.stored is None or self.get(index, one.position) is not None:
                continue
            if index > state.applied_index or is_wanted(state, index, one.position, one.stored):
                self.put(index, one.position, one.stored)

    def truncate(self, from_index: int) -> None:
        """Drops the batches of the entries at and above `from_index`."""
        if self.bytes:
            for index in [index for index in self._entries if index >= from_index]:
                self._drop_entry(index)
        self.known_from = min(self.known_from, max(from_index, 1))
        self.missing_to = min(self.missing_to, from_index - 1)

    def clear(self, last_index: int) -> None:
        """A snapshot has taken the place of the log, which ends at `last_index`: all batches are
        pulled again."""
        self._entries.clear()
        self._sizes.clear()
        self._queues.clear()
        self.topics.clear()
        self.bytes = 0
        self.known_from, self.missing_to = last_index + 1, last_index

    def on_applied(self, state: State, results: Sequence[ApplyResult]) -> None:
        """An entry was applied: what it trims, loses or deletes goes."""
        for result in results:
            if isinstance(result, MoveApplied):
                if not (result.step or result.error):
                    continue
            elif not isinstance(result, Done) or result.what not in _ENDS_OFFSETS:
                continue
            key = result.queue_key
            if key is not None and key in self._queues:
                trimmed = isinstance(result, Done) and result.what == "trim"
                self._follow(key, state, only_trimmed=trimmed)

    def lacking(self, state: State) -> Iterator[Lacking | None]:
        """The batches that are live by the state, not lost, and not here, queue by queue, newest
        last. Now and then it yields None, so that the caller can do something else; it reads the
        state as it is then."""
        looked = 0
        for key in [queue.key for queue in state.stored_queues() if queue.in_memory]:
            offset = -1
            while (queue := state.holding(key)) is not None:
                offset = max(offset, queue.log_start_offset)
                extents = queue.extents_from(offset, _LOOK_BYTES)
                if not extents:
                    break
                for extent in extents:
                    looked += 1
                    if self.get(extent.index, extent.position) is None:
                        if queue.lost.end_at(max(extent.base_offset, queue.log_start_offset)):
                            continue
                        yield Lacking(key, extent)
                    if not looked % _LOOKED_AT_ONCE:
                        yield None
                offset = extents[-1].base_offset + extents[-1].count

    def _follow(self, key: QueueKey, state: State, *, only_trimmed: bool) -> None:
        """Drops what the state no longer wants of a queue."""
        heap, queue = self._queues[key], state.holding(key)
        start = -1 if queue is None else queue.log_start_offset
        while heap and heap[0][0] <= start:
            self._drop(*heapq.heappop(heap)[1:])
        if not only_trimmed:
            kept = []
            for one in heap:
                # Of what is not applied yet, the queue may be another one: it left, and comes back.
                if one[1] > state.applied_index or _is_live(queue, *one):
                    kept.append(one)
                else:
                    self._drop(*one[1:])
            heapq.heapify(kept)
            self._queues[key] = heap = kept
        if not heap:
            del self._queues[key]

    def _drop(self, index: int, position: int) -> None:
        entry = self._entries.get(index)
        stored = None if entry is None else entry.pop(position, None)
        if entry is None or stored is None:
            return  # it was truncated
        self._sizes[index] -= len(stored)
        self._uncount(stored)
        if not entry:
            self._drop_entry(index)
            self.known_from = max(self.known_from, index + 1)

    def _drop_entry(self, index: int) -> None:
        for stored in self._entries.pop(index).values():
            self._uncount(stored)
        del self._sizes[index]

    def _uncount(self, stored: bytes) -> None:
        self.bytes -= len(stored)
        topic_id = _PLACED.unpack_from(stored)[1]
        self.topics[topic_id] -= len(stored)
        if not self.topics[topic_id]:
            del self.topics[topic_id]

    def records_of(self, index: int) -> bool:
        """Whether the entry may have MEMORY records with bodies."""
        return index < self.known_from or index in self._entries

    def records_from(self, index: int) -> bool:
        """Whether any entry from this one on may have some."""
        return index < self.known_from or bool(self._entries)


_LOOK_BYTES: Final = 64 << 20
_LOOKED_AT_ONCE: Final = 2_048


def is_wanted(state: State, index: int, position: int, stored: bytes) -> bool:
    """Whether the state has the batch of a record whose entry is applied, and its offsets are
    neither trimmed nor lost."""
    base_offset, topic_id, queue_id, count = _PLACED.unpack_from(stored)
    queue = state.holding(QueueKey(TopicId(topic_id), QueueId(queue_id)))
    return _is_live(queue, base_offset + count, index, position)


def _is_live(queue: QueueState | None, end_offset: int, index: int, position: int) -> bool:
    """Whether a record of an applied entry, with a batch that ends at an offset, has a place in the
    queue, and is neither trimmed nor lost."""
    if queue is None or not queue.log_start_offset < end_offset <= queue.log_end_offset:
        return False
    if queue.lost.end_at(end_offset - 1) is not None:
        return False
    extent = queue.extents_from(end_offset - 1, 1)[0]
    return (extent.index, extent.position) == (index, position)
