"""Delayed messages, their releases and cancellations, folded from the log's records alone.

How it works. Every batch with a delivery time waits from the entry that stored it, or published it,
until a release takes it: by due time, then in the order in which they came to wait, which the whole
broker group counts. A release names how many it takes, and how many had come when it was
admitted. A cancellation takes one message out of a batch; with its last one the batch is gone.

When a queue moves, copies come to the other group under the numbers of the batches. When the queue
is activated there, what waited when it was sealed waits on, with the numbers that it had: those
that came are the same, byte for byte, and numbers go on above them.

When a queue is split its batches wait on, and releases of its children take nothing that comes
after the first of them. A record hands them to the children, in the parts in front of it.

Invariants checked here
1. What is released waited, was due by the time that the release names, and that time had come.
2. It is the first that waited, and as many messages as the release says, none that was cancelled.
3. What is cancelled waited, had not been cancelled, and was not due at the time of the entry.
4. Of what waits in a queue that is activated, there is a copy.
5. Each message of a batch that is parted, but for the cancelled ones, is in one part, with its
   sequence; a message with a key in that of the child that has the key's slot.

Not here: offsets (`raw_log.py`), ids that are free again (`message_ids.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from semel.protos.batch import BatchHeader
from semel.protos.columns import decode_columns
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.slots import slot_of_key
from semel.protos.v1 import control_pb2
from tests.checking.history import digest_of
from tests.checking.stored import sequences_of


@dataclass(frozen=True, slots=True)
class DelayedBatch:
    """A batch that waits for its time."""

    header: BatchHeader
    body: bytes
    index: int
    cancelled: set[int] = field(default_factory=set)
    """Rows."""

    def stretches(self) -> Iterator[range]:
        """The rows that are left, as they get offsets one after the other."""
        begin = 0
        for row in (*sorted(self.cancelled), self.header.count):
            if row > begin:
                yield range(begin, row)
            begin = row + 1

    @property
    def left(self) -> int:
        """How many messages are not cancelled."""
        return self.header.count - len(self.cancelled)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits in a queue when it is sealed for a move."""

    batches: dict[tuple[int, int], DelayedBatch]
    """By due time and number."""


@dataclass(slots=True)
class Delayed:
    """Delayed messages of one broker group."""

    waiting: dict[QueueKey, dict[tuple[int, int], DelayedBatch]] = field(default_factory=dict)
    """Waiting batches by due time and number."""
    came: int = 0
    children: dict[QueueKey, dict[QueueKey, range]] = field(default_factory=dict)
    """The slots of each child of a queue that was split."""
    copies: dict[tuple[QueueKey, int], dict[int, DelayedBatch]] = field(default_factory=dict)
    """By queue and move: batches that came from another group, by number."""

    def on_batch(self, batch: DelayedBatch) -> None:
        """Adds a batch that waits."""
        held = self.waiting.setdefault(batch.header.queue_key, {})
        held[batch.header.deliver_at_us, self.came] = batch
        self.came += 1

    def sealed(self, key: QueueKey) -> Waiting:
        """What waits in a queue that is sealed."""
        waiting = self.waiting.get(key, {}).items()
        return Waiting({at: replace(each, cancelled=set(each.cancelled)) for at, each in waiting})

    def on_copy(self, key: QueueKey, job: int, number: int, batch: DelayedBatch) -> None:
        """A copy has come. It counts if its number is above those before it."""
        copies = self.copies.setdefault((key, job), {})
        if number > max(copies, default=-1):
            copies[number] = batch

    def activate(self, key: QueueKey, job: int, waiting: Waiting) -> Iterator[str]:
        """What waited goes on to wait here; yields what is wrong."""
        copies, held = self.copies.pop((key, job), {}), {}
        for place, batch in waiting.batches.items():
            copy = copies.get(place[1])
            if copy is None or (copy.header, copy.body) != (batch.header, batch.body):
                yield f"of {batch.header} of {key}, which waits until {place[0]}, {copy} came"
                continue
            held[place] = replace(copy, cancelled=set(batch.cancelled))
        self.came = max([self.came, *(number + 1 for number in copies)])
        self.waiting[key] = held

    def on_split(self, split: control_pb2.SplitQueue) -> None:
        """Notes the children of a queue."""
        key = queue_key_of(split.queue)
        self.children[key] = {
            QueueKey(key.topic_id, QueueId(each.queue_id)): range(each.slot_start, each.slot_end)
            for each in split.children
        }

    def part(self, record: control_pb2.PartDelayed, parts: list[DelayedBatch]) -> Iterator[str]:
        """Batches go to children; yields what is wrong."""
        key, left = queue_key_of(record.queue), list(parts)
        held, children = self.waiting.get(key, {}), self.children.get(key, {})
        for each in record.batches:
            place = each.due_us, each.ordinal
            found = [left.pop(0) for _ in range(min(each.parts, len(left)))]
            if not held or place != min(held) or held[place].index != each.entry:
                yield f"the batch at {place} of {key} is parted, and does not wait first"
                continue
            batch = held.pop(place)
            cancelled = set() if len(found) == 1 else batch.cancelled
            sent = [row for at, row in enumerate(messages_of(batch)) if at not in cancelled]
            got = [row for part in found for row in messages_of(part)]
            if sorted(sent, key=repr) != sorted(got, key=repr):
                yield f"of {batch.header} the parts have {len(got)} messages, {len(sent)} waited"
            for part in found:
                child, mine = part.header.queue_key, children.get(part.header.queue_key)
                others = [one for one in children.values() if one is not mine]
                misled = any(
                    name is not None and any(slot_of_key(name) in slots for slots in others)
                    for _, name, _ in messages_of(part)
                )
                same = "topic_id", "producer_id", "epoch", "session", "deliver_at_us"
                differs = any(
                    getattr(part.header, name) != getattr(batch.header, name) for name in same
                )
                if mine is None or misled or differs:
                    yield f"{part.header} is no part of {batch.header} for {child}"
                taking = self.waiting.setdefault(child, {})
                if place in taking:
                    yield f"{child} has two batches at {place}"
                if len(found) == 1:
                    part.cancelled.update(batch.cancelled)
                taking[place] = part
        if left:
            yield f"{len(left)} parts are of no batch"

    def first_above(self, key: QueueKey) -> tuple[int, int] | None:
        """The first that waits in a queue that this one descends from; None if nothing does."""
        above = [parent for parent, children in self.children.items() if key in children]
        found = [min(self.waiting[each]) for each in above if self.waiting.get(each)]
        found += [place for each in above if (place := self.first_above(each)) is not None]
        return min(found, default=None)

    def on_deleted(self, queue: tuple[int, int]) -> None:
        """Forgets a queue that is gone, with all that waited in it."""
        for key in [key for key in self.waiting if tuple(map(int, key)) == queue]:
            del self.waiting[key]

    def cancel(self, record: control_pb2.CancelDelayed, time_us: int) -> str:
        """Takes a message out; returns what is wrong, empty if nothing is."""
        held = self.waiting.get(queue_key_of(record.queue), {})
        place = record.due_us, record.ordinal
        batch = held.get(place)
        what = f"row {record.row} of the batch of entry {record.entry} that is due at {place[0]}"
        if batch is None or batch.index != record.entry or record.row >= batch.header.count:
            return f"{what} is cancelled, and does not wait"
        if record.row in batch.cancelled:
            return f"{what} is cancelled twice"
        batch.cancelled.add(record.row)
        if not batch.left:
            del held[place]
        if record.due_us <= time_us:
            return f"late: {what} is cancelled at {time_us}"
        return ""

    def release(
        self, record: control_pb2.ReleaseDelayed, time_us: int
    ) -> Iterator[tuple[DelayedBatch, range] | str]:
        """The rows of batches that get offsets, in order; or a text that says what is wrong."""
        key = queue_key_of(record.queue)
        held = self.waiting.get(key, {})
        known = sorted(place for place in held if place[1] < record.below_ordinal)
        chosen = known[: record.batches]
        found = [held.pop(place) for place in chosen]
        messages = sum(batch.left for batch in found)
        if (len(found), messages) != (record.batches, record.messages):
            yield (
                f"{record.batches} batches of {key} with {record.messages} messages are released,"
                f" {len(found)} waited with {messages} that are not cancelled"
            )
        if record.until_us > time_us:
            yield f"early: at {time_us} what is due by {record.until_us} is released in {key}"
        first = self.first_above(key)
        if chosen and first is not None and chosen[-1] > first:
            yield f"out of order: {chosen[-1]} of {key} is released, its parent still has {first}"
        if chosen and chosen[-1][0] > record.until_us:
            yield f"early: what is due at {chosen[-1][0]} is released by {record.until_us} in {key}"
        for batch in found:
            for rows in batch.stretches():
                yield batch, rows


def messages_of(batch: DelayedBatch) -> list[tuple[int, bytes | None, str]]:
    """Sequence, key and digest of each message."""
    columns = decode_columns(batch.body, batch.header)
    count = batch.header.count
    keys = [None] * count if columns.keys is None else columns.keys.to_pylist()
    values, sequences = columns.values.to_pylist(), sequences_of(columns, batch.header)
    return [
        (sequence, key, digest_of(value, key))
        for sequence, key, value in zip(sequences, keys, values, strict=True)
    ]
