"""Derives what transactions stage, pin and publish from the log's records alone.

How it works. Staged batches are chained from -1 on by stager and queue; a batch that does not
follow was refused by the broker, or sent twice. What is kept of a batch behind a decision about
message ids takes its place. A pin names the stagers whose batches win, in their
order. A publication publishes everything that they have staged, queue by queue, behind the queue's
end.

Invariants checked here
1. Published batches were pinned by exactly that attempt, and are all that was staged for it.
2. An epoch of a transaction is published once.

Not here: offsets (`raw_log.py`), whether a transaction is whole (`exactly_once.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from semel.protos.batch import BatchHeader
from semel.protos.delays import is_delayed
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import transaction_records_pb2


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch that waits for its offsets."""

    header: BatchHeader
    body: bytes
    index: int


@dataclass(slots=True)
class Staged:
    """Staged batches and pins of one broker group."""

    sessions: dict[tuple[int, QueueKey], int] = field(default_factory=dict)
    batches: dict[tuple[int, QueueKey], list[StagedBatch]] = field(default_factory=dict)
    pins: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Epoch and winners by transaction and attempt."""
    published: set[tuple[str, int]] = field(default_factory=set)

    def on_batch(self, batch: StagedBatch, *, kept: bool = False) -> list[str]:
        """A batch that a stager has sent, or what is `kept` of one, some messages of which are
        dropped because of their ids; returns what is wrong with it."""
        header = batch.header
        if kept:
            here = self._replace(batch)
            return [] if here else [f"{header.base_sequence} is kept, and was not staged"]
        place = (int(header.producer_id), header.queue_key)
        if header.session != self.sessions.get(place):
            return []
        chain = self.batches.setdefault(place, [])
        last = chain[-1].header.last_sequence if chain else -1
        if header.base_sequence > last and header.previous_sequence == last:
            chain.append(batch)
        return []

    def _replace(self, batch: StagedBatch) -> bool:
        header = batch.header
        chain = self.batches.get((int(header.producer_id), header.queue_key), [])
        for at, each in enumerate(chain):
            if each.header.base_sequence == header.base_sequence:
                chain[at] = batch
                return True
        return False

    def on_step(self, step: transaction_records_pb2.TransactionRecord) -> None:
        """Takes any step but a publication."""
        match step.WhichOneof("step"):
            case "open_stager":
                for ref in step.open_stager.queues:
                    place = (step.open_stager.stager_id, queue_key_of(ref))
                    session = max(step.open_stager.session, self.sessions.get(place, 0))
                    self.sessions[place] = session
            case "pin":
                pin = step.pin
                winners = tuple(winner.stager_id for winner in pin.winners)
                self.pins.setdefault((pin.transaction_id, pin.attempt), (pin.epoch, winners))

    def on_gone(self, queue: tuple[int, int]) -> None:
        """Forgets a queue that is deleted or has moved to another group: batches that were staged
        for it and are not pinned must be staged again, wherever it is."""
        for place in [place for place in self.sessions if tuple(map(int, place[1])) == queue]:
            del self.sessions[place]
            self.batches.pop(place, None)

    def publish(
        self, record: transaction_records_pb2.PublishTransaction
    ) -> Iterator[tuple[QueueKey, int, list[StagedBatch]] | str]:
        """Queue, base offset and batches of each part; or a text that says what is wrong."""
        name, epoch = record.transaction_id, record.epoch
        pinned_epoch, winners = self.pins.get((name, record.attempt), (-1, ()))
        if pinned_epoch != epoch:
            yield f"epoch {epoch} of transaction {name} is published, pinned is {pinned_epoch}"
        if (name, epoch) in self.published:
            yield f"epoch {epoch} of transaction {name} is published twice"
        self.published.add((name, epoch))
        parts = {queue_key_of(part.queue): part for part in record.parts}
        held = {
            queue for (stager, queue), some in self.batches.items() if stager in winners and some
        }
        if held != parts.keys():
            yield f"transaction {name} is published in {set(parts)}, staged are {held}"
        for queue, part in parts.items():
            batches = [  # but for those all messages of which were dropped
                batch
                for stager in winners
                for batch in self.batches.pop((stager, queue), [])
                if batch.header.count
            ]
            count = sum(batch.header.count for batch in batches if not is_delayed(batch.header))
            if count != part.messages:
                yield f"{part.messages} messages of {name} are published, {count} were staged"
            yield queue, part.base_offset, batches
