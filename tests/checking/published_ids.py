"""What the log says about the ids of transactions, from its records alone.

How it works. Batches are staged as they are sent. What is kept of one behind a decision takes its
place, in an entry of its own or in front of the publication, which names all batches that it takes.

What is checked, beside what `message_ids.py` checks
1. Each message that a transaction stages and publishes is stored, or dropped for one with its id
   that is in the window or is published with it. It was sent as it was staged first.
2. A publication tells of each batch as many ids as it has, and takes it once.

Not here: which transactions are published (`tests/world/notary.py`), in which order (`staged.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.delays import is_delayed
from semel.protos.dropped import DROPPED, SAME_TRANSACTION, Dropped, Verdict
from semel.protos.frames import RecordKind, iter_records
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.checking.id_topics import Arrival, BatchName, IdTopic
from tests.checking.message_ids import IdLog, StoredBatch, messages_in, name_of
from tests.checking.moved_ids import Message, Place
from tests.checking.stored import Queue

At = tuple[int, int]
"""Entry and position of a record."""


def staged_messages(frames: Iterable[bytes]) -> set[Message]:
    """All messages that are staged in these frames."""
    return {
        message
        for frame in frames
        for _, kind, payload in iter_records(frame)
        if kind is RecordKind.STAGED
        for message in messages_in(bytes(payload))[0]
    }


class TransactionIdLog(IdLog):
    """The ids of one broker group's log, with those of transactions."""

    def __init__(
        self,
        group: int,
        sent: Mapping[tuple[BatchName, int], Message],
        messages: Collection[Message] = (),
    ) -> None:
        super().__init__(group, sent, messages)
        self.published: set[tuple[str, int]] = set()
        """Transactions and epochs."""
        self.rewritten = 0
        """Batches that were replaced before their publication."""
        self.by_reference = 0
        """Batches with ids that were published where they lay."""
        self._staged: dict[At, bytes] = {}
        self._here: list[At] = []
        """The places of what is kept of batches in the entry that is read."""
        self._originals: dict[BatchName, set[int]] = {}
        """Sequences of each batch as it was staged."""
        self._lost: dict[BatchName, list[Dropped]] = {}
        """Messages of those that were dropped."""
        self._same: list[tuple[BatchName, int]] = []
        """Messages that were dropped for another one of their transaction, which is not published
        yet."""

    def _on_staged(
        self, position: int, payload: bytes, checked: control_pb2.CheckIds | None
    ) -> None:
        self._staged[self._index, position] = payload
        name = name_of(payload)
        if checked is not None:
            self._here = [at for at in self._here if at[0] == self._index]
            self._here.append((self._index, position))
            self._on_kept(name, payload, checked)
        elif name not in self._originals:  # else it is sent again
            messages, sequences = messages_in(payload)
            self._originals[name] = set(sequences)
            self._sent |= {
                (name, each): message for each, message in zip(sequences, messages, strict=True)
            }

    def _on_kept(self, name: BatchName, payload: bytes, checked: control_pb2.CheckIds) -> None:
        topic = self.topics.get(name.queue[0])
        if topic is None or name not in self._originals:
            self._wrong(f"{name} is rewritten, and was never staged for a topic that compares ids")
            return
        lost = self._lost.setdefault(name, [])
        for sequence, first in np.frombuffer(checked.dropped, DROPPED).tolist():
            if first in (SAME_TRANSACTION, -1 - SAME_TRANSACTION):
                self._same.append((name, sequence))
                verdict = Verdict.DUPLICATE if first > 0 else Verdict.CONFLICT
                lost.append(Dropped(sequence, -1, 0, -1, verdict))
                self.duplicates += first > 0
                self.conflicts += first < 0
            else:
                lost.append(self._dropped(topic, name, sequence, first))
        _, sequences = messages_in(payload)
        gone = {each.sequence for each in lost}
        if self._originals[name] != {*sequences, *gone} or gone & {*sequences}:
            self._wrong(f"{name} had {self._originals[name]}; kept are {sequences}, dropped {gone}")

    def _on_transaction(
        self, step: transaction_records_pb2.TransactionRecord, time_us: int
    ) -> None:
        here = [at for at in self._here if at[0] == self._index]
        if step.HasField("publish"):
            self._on_published(step.publish, here, time_us)
        elif step.HasField("rewrite"):
            self.rewritten += len(here)

    def _on_published(
        self, record: transaction_records_pb2.PublishTransaction, here: list[At], time_us: int
    ) -> None:
        self.published.add((record.transaction_id, record.epoch))
        ends = {
            (int(part.queue.topic_id), int(part.queue.queue_id)): part.base_offset
            for part in record.parts
        }
        told = {each.topic_id for each in record.ids}
        if told != {topic_id for topic_id, _ in ends if topic_id in self.topics}:
            self._wrong(f"ids of topics {told} are published, parts are {ends}")
        for each in record.ids:
            topic = self.topics.get(each.topic_id)
            if topic is None:
                continue
            if problem := topic.begin(each.first_arrival):
                self._wrong(problem)
            own = (at for at in here if name_of(self._staged[at]).queue[0] == each.topic_id)
            for ids, entry, position in zip(each.ids, each.entries, each.positions, strict=True):
                at = (entry, position) if entry else next(own, None)
                if at is None or at not in self._staged:
                    self._wrong(f"there is no batch in entry {entry} at {position}")
                    continue
                self.by_reference += bool(entry and ids)
                self._on_published_batch(topic, at, ids, ends, time_us)
        for name, sequence in self._same:
            message, topic = self._sent[name, sequence], self.topics.get(name.queue[0])
            if (
                topic is not None
                and name in self.batches
                and message.message_id not in topic.newest
            ):
                self._wrong(f"loss: {message} was dropped, and no other one of its transaction is")
        self._same = [each for each in self._same if each[0] not in self.batches]

    def _on_published_batch(
        self, topic: IdTopic, at: At, ids: int, ends: dict[Queue, int], time_us: int
    ) -> None:
        payload = self._staged[at]
        header = check_batch(payload, BROKER_HEADER_BYTES)
        name = name_of(payload)
        if name in self.batches:
            self._wrong(f"{name} is published twice")
        messages, sequences = messages_in(payload)
        before = topic.next_arrival
        base_offset = -1 if is_delayed(header) else ends[name.queue]
        for row, message in enumerate(messages):
            place = Place(name.queue[1], base_offset + row, 0)
            if is_delayed(header):
                place = Place(name.queue[1], -1, header.deliver_at_us)
            sent = name, sequences[row]
            if message.message_id is not None:
                arrival = Arrival(message, place, time_us, at[0], row, sent, self._index)
                self._on_stored(topic, arrival)
            if self._sent.get(sent) != message:
                self._wrong(f"{message} of {name} was staged as another one")
        if not is_delayed(header):
            ends[name.queue] += len(messages)
        if topic.next_arrival - before != ids:
            self._wrong(f"{ids} ids of {name} arrive, it has {topic.next_arrival - before}")
        lost = self._lost.pop(name, [])
        if self._originals.get(name) != {*sequences, *(each.sequence for each in lost)}:
            self._wrong(f"loss: of {name} are stored {sequences} and dropped {lost}")
        self.batches[name] = StoredBatch(base_offset, sequences, lost)
