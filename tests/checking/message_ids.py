"""What the log says about message ids, from its records alone, and what producers were told.

How it works. The CHECK_IDS and EVICT_IDS records and the batches of one broker group's committed
log are read in their order, with plain dicts of whole ids and contents and none of the broker's
fingerprints, indexes and rules. A dropped message is in no log; what was sent under its sequence
is known from those who sent it.

What is checked
1. No id is stored while a message with it is in the window; arrivals have no gap.
2. A message is dropped only because of a message in the window that has its id: as a duplicate if
   the content is the same (or the topic keeps the first), as a conflict if it is not.
3. Each message of a batch is stored with the id and content with which it was sent, or dropped.
4. A window forgets only what is too old, or too much for its bytes. Those who run the log say
   whether more may be forgotten, see `IdTopic.forgotten`.
5. An acknowledgement names the place of each stored message, and of each dropped one the verdict
   and the place of the first message with its id.
6. Each message that a transaction stages and publishes is stored, or dropped for one with its id
   that is in the window or is published with it. It was sent as it was staged first.

Not here: what nodes have in their indexes (`tests/world/parts/ids.py`), queues (`raw_log.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_broker_header
from semel.protos.columns import decode_columns
from semel.protos.delays import is_delayed
from semel.protos.dropped import DROPPED, SAME_TRANSACTION, Dropped, Verdict, read_answer
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2
from tests.checking.raw_log import Queue

ID_BYTES = 40
"""What one id counts in a window, as the documentation says."""


class Message(NamedTuple):
    """A message, as far as ids go."""

    message_id: bytes | None
    value: bytes
    key: bytes | None = None


class Place(NamedTuple):
    """Where a message is; it has no offset if it was delayed."""

    queue_id: int
    offset: int
    due_us: int


class BatchName(NamedTuple):
    """Names one batch for good."""

    queue: Queue
    producer_id: int
    epoch: int
    session: int
    base_sequence: int


class Arrival(NamedTuple):
    """A stored message with an id."""

    message: Message
    place: Place
    time_us: int
    """Log time of its entry."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The acknowledgement of a batch."""

    name: BatchName
    base_offset: int
    dropped: bytes


@dataclass(slots=True)
class StoredBatch:
    """What became of a batch."""

    base_offset: int
    sequences: list[int]
    """Those of the stored messages."""
    dropped: list[Dropped]


class Forgotten(NamedTuple):
    """An eviction that neither bytes nor time explain."""

    entry: int
    first_arrival: int
    explained: int
    """Arrivals below this may be forgotten."""


@dataclass(slots=True)
class IdTopic:
    """The ids of one topic."""

    settings: common_pb2.IdDedup
    first_arrival: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    """All since the window began, by arrival."""
    newest: dict[bytes, int] = field(default_factory=dict)
    """The last arrival of each id."""
    forgotten: list[Forgotten] = field(default_factory=list)
    """They are right only if all nodes have lost the ids."""

    def held(self) -> dict[bytes, int]:
        """The arrivals of the ids in the window."""
        first = self.first_arrival
        return {name: arrival for name, arrival in self.newest.items() if arrival >= first}

    def explained(self, now_us: int) -> int:
        """Arrivals below this are too many, or too old."""
        ids_max = max(1, self.settings.window_bytes * SLOT_COUNT // (SLOT_COUNT * ID_BYTES))
        too_many = max(self.first_arrival, len(self.arrivals) - ids_max)
        if not self.settings.keep_ms:
            return too_many
        too_old, end_us = too_many, now_us - self.settings.keep_ms * 1_000
        while too_old < len(self.arrivals) and self.arrivals[too_old].time_us <= end_us:
            too_old += 1
        return too_old


class IdLog:
    """The ids of one broker group's log. Give it all frames in order, then `judge`."""

    def __init__(self, sent: Mapping[tuple[BatchName, int], Message]) -> None:
        """`sent` has all messages that were ever sent, by batch and sequence."""
        self.topics: dict[int, IdTopic] = {}
        self.batches: dict[BatchName, StoredBatch] = {}
        self.problems: list[str] = []
        self.duplicates = 0
        self.conflicts = 0
        self.evicted = 0
        self.published: set[tuple[str, int]] = set()
        """Transactions and epochs."""
        self.rewritten = 0
        """Batches that were replaced before their publication."""
        self.by_reference = 0
        """Batches with ids that were published where they lay."""
        self._sent = dict(sent)
        self._staged: dict[tuple[int, int], bytes] = {}
        """Batches of transactions, by entry and position."""
        self._originals: dict[BatchName, set[int]] = {}
        """Sequences of each batch as it was staged."""
        self._lost: dict[BatchName, list[Dropped]] = {}
        """Messages of those that were dropped."""
        self._same: list[tuple[BatchName, int]] = []
        """Messages that were dropped for another one of their transaction, which is not published
        yet."""
        self._where = ""

    def read(self, frames: Mapping[int, bytes]) -> IdLog:
        """Reads the frames from index 1 on."""
        for index in range(1, max(frames, default=0) + 1):
            self._where = f"entry {index}"
            time_us = decode_frame_header(frames[index]).time_us
            checked: control_pb2.CheckIds | None = None
            here: list[bytes] = []
            for position, kind, payload in iter_records(frames[index]):
                if kind is RecordKind.STAGED:
                    if checked is None:
                        self._on_staged((index, position), bytes(payload))
                    else:
                        self._on_kept((index, position), bytes(payload), checked)
                        here.append(bytes(payload))
                    checked = None
                elif kind is RecordKind.BATCH:
                    self._on_batch(payload, checked, time_us)
                    checked = None
                elif kind is RecordKind.CONTROL:
                    record = control_pb2.ControlRecord.FromString(bytes(payload))
                    match record.WhichOneof("record"):
                        case "check_ids":
                            checked = record.check_ids
                        case "transaction" if record.transaction.HasField("publish"):
                            self._on_published(record.transaction.publish, here, time_us)
                        case "transaction" if record.transaction.HasField("rewrite"):
                            self.rewritten += len(here)
                        case "evict_ids":
                            self._on_evicted(record.evict_ids, index, time_us)
                        case "create_queue":
                            made = record.create_queue
                            self._configure(made.queue.topic_id, made.settings)
                        case "alter_topic":
                            altered = record.alter_topic
                            self._configure(altered.topic_id, altered.settings)
        return self

    def _configure(self, topic_id: int, settings: common_pb2.TopicSettings) -> None:
        if not settings.HasField("dedup"):
            self.topics.pop(topic_id, None)
        elif topic_id in self.topics:
            self.topics[topic_id].settings = settings.dedup
        else:
            self.topics[topic_id] = IdTopic(settings.dedup)

    def _on_evicted(self, record: control_pb2.EvictIds, index: int, time_us: int) -> None:
        topic = self.topics.get(record.topic_id)
        if topic is None or record.first_arrival <= topic.first_arrival:
            return
        explained = topic.explained(time_us)
        if record.first_arrival > explained:
            topic.forgotten.append(Forgotten(index, record.first_arrival, explained))
        self.evicted += record.first_arrival - topic.first_arrival
        topic.first_arrival = record.first_arrival

    def _on_batch(
        self, payload: memoryview, checked: control_pb2.CheckIds | None, time_us: int
    ) -> None:
        placed = decode_broker_header(payload)
        header = check_batch(payload, BROKER_HEADER_BYTES)
        topic = self.topics.get(header.topic_id)
        if topic is None or (checked is None and not header.count):
            return
        queue = int(header.topic_id), int(header.queue_id)
        name = BatchName(
            queue, int(header.producer_id), header.epoch, header.session, header.base_sequence
        )
        if checked is None:
            self._wrong(f"{name} is stored without a decision about its ids")
            return
        messages, sequences = _messages(bytes(payload))
        delayed = is_delayed(header)
        if checked.first_arrival != len(topic.arrivals):
            self._wrong(f"ids arrive as {checked.first_arrival}, not {len(topic.arrivals)}")
        for at, message in enumerate(messages):
            place = Place(queue[1], placed.base_offset + at, 0)
            if delayed:
                place = Place(queue[1], -1, header.deliver_at_us)
            self._on_stored(topic, message, place, time_us)
            if self._sent.get((name, sequences[at])) != message:
                self._wrong(f"{message} of {name} was sent as another one, or by nobody")
        entry = StoredBatch(placed.base_offset, sequences, [])
        for sequence, first in np.frombuffer(checked.dropped, DROPPED).tolist():
            entry.dropped.append(self._dropped(topic, name, sequence, first))
        self.batches[name] = entry
        told = sorted([*sequences, *(each.sequence for each in entry.dropped)])
        if told != list(range(header.base_sequence, header.base_sequence + checked.count)):
            self._wrong(f"{name} had {checked.count} messages; stored or dropped are {told}")

    # --- transactions -----------------------------------------------------------------------

    def _on_staged(self, at: tuple[int, int], payload: bytes) -> None:
        """A batch as a stager has sent it, perhaps not for the first time."""
        self._staged[at] = payload
        name = _name(payload)
        if name not in self._originals:
            messages, sequences = _messages(payload)
            self._originals[name] = set(sequences)
            self._sent |= {
                (name, each): message for each, message in zip(sequences, messages, strict=True)
            }

    def _on_kept(self, at: tuple[int, int], payload: bytes, checked: control_pb2.CheckIds) -> None:
        self._staged[at] = payload
        name = _name(payload)
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
        _, sequences = _messages(payload)
        gone = {each.sequence for each in lost}
        if self._originals[name] != {*sequences, *gone} or gone & {*sequences}:
            self._wrong(f"{name} had {self._originals[name]}; kept are {sequences}, dropped {gone}")

    def _on_published(
        self,
        record: transaction_records_pb2.PublishTransaction,
        here: Sequence[bytes],
        time_us: int,
    ) -> None:
        self.published.add((record.transaction_id, record.epoch))
        ends = {
            (part.queue.topic_id, part.queue.queue_id): part.base_offset for part in record.parts
        }
        told = {each.topic_id for each in record.ids}
        if told != {topic_id for topic_id, _ in ends if topic_id in self.topics}:
            self._wrong(f"ids of topics {told} are published, parts are {ends}")
        for each in record.ids:
            topic = self.topics.get(each.topic_id)
            if topic is None:
                continue
            if each.first_arrival != len(topic.arrivals):
                self._wrong(f"ids arrive as {each.first_arrival}, not {len(topic.arrivals)}")
            own = (payload for payload in here if _name(payload).queue[0] == each.topic_id)
            for ids, entry, position in zip(each.ids, each.entries, each.positions, strict=True):
                payload = self._staged.get((entry, position)) if entry else next(own, None)
                if payload is None:
                    self._wrong(f"there is no batch in entry {entry} at {position}")
                    continue
                self.by_reference += bool(entry and ids)
                self._on_published_batch(topic, payload, ids, ends, time_us)
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
        self, topic: IdTopic, payload: bytes, ids: int, ends: dict[Queue, int], time_us: int
    ) -> None:
        header = check_batch(payload, BROKER_HEADER_BYTES)
        name = _name(payload)
        if name in self.batches:
            self._wrong(f"{name} is published twice")
        messages, sequences = _messages(payload)
        before = len(topic.arrivals)
        base_offset = -1 if is_delayed(header) else ends[name.queue]
        for at, message in enumerate(messages):
            place = Place(name.queue[1], base_offset + at, 0)
            if is_delayed(header):
                place = Place(name.queue[1], -1, header.deliver_at_us)
            self._on_stored(topic, message, place, time_us)
            if self._sent.get((name, sequences[at])) != message:
                self._wrong(f"{message} of {name} was staged as another one")
        if not is_delayed(header):
            ends[name.queue] += len(messages)
        if len(topic.arrivals) - before != ids:
            self._wrong(f"{ids} ids of {name} arrive, it has {len(topic.arrivals) - before}")
        lost = self._lost.pop(name, [])
        if self._originals.get(name) != {*sequences, *(each.sequence for each in lost)}:
            self._wrong(f"loss: of {name} are stored {sequences} and dropped {lost}")
        self.batches[name] = StoredBatch(base_offset, sequences, lost)

    # --- messages ---------------------------------------------------------------------------

    def _on_stored(self, topic: IdTopic, message: Message, place: Place, time_us: int) -> None:
        if message.message_id is None:
            return
        known = topic.newest.get(message.message_id, -1)
        if known >= topic.first_arrival:
            self._wrong(
                f"{message} is stored at {place}, and arrived as {known} in the window from"
                f" {topic.first_arrival} on"
            )
        topic.newest[message.message_id] = len(topic.arrivals)
        topic.arrivals.append(Arrival(message, place, time_us))

    def _dropped(self, topic: IdTopic, name: BatchName, sequence: int, first: int) -> Dropped:
        verdict = Verdict.DUPLICATE if first >= 0 else Verdict.CONFLICT
        arrival = first if first >= 0 else -1 - first
        message = self._sent.get((name, sequence))
        what = f"{message}, {sequence} of {name}, was dropped as a {verdict.name.lower()}"
        if not topic.first_arrival <= arrival < len(topic.arrivals):
            self._wrong(f"{what} of {arrival}, which is not in the window")
            return Dropped(sequence, -1, 0, -1, verdict)
        kept, place, _ = topic.arrivals[arrival]
        same = message == kept or topic.settings.keep_first
        if message is None or message.message_id != kept.message_id:
            self._wrong(f"loss: {what} of {kept}")
        elif same != (verdict is Verdict.DUPLICATE):
            self._wrong(f"{what} of {kept}")
        self.duplicates += verdict is Verdict.DUPLICATE
        self.conflicts += verdict is Verdict.CONFLICT
        return Dropped(sequence, place.offset, place.due_us, place.queue_id, verdict)

    def judge(self, answers: Iterable[Answer]) -> None:
        """Compares what producers were told with what is stored."""
        for answer in answers:
            stored = self.batches.get(answer.name)
            self._where = f"the answer to {answer.name}"
            if stored is None:
                self._wrong("is an acknowledgement of a batch that is not stored: loss")
                continue
            if stored.sequences and answer.base_offset != stored.base_offset:
                self._wrong(f"names offset {answer.base_offset}, not {stored.base_offset}")
            told = read_answer(answer.dropped)
            if told != sorted(stored.dropped):
                self._wrong(f"says that {told} were dropped, and not {stored.dropped}")

    def _wrong(self, what: str) -> None:
        self.problems.append(f"{self._where}: {what}")


def _name(payload: bytes) -> BatchName:
    header = check_batch(payload, BROKER_HEADER_BYTES)
    queue = int(header.topic_id), int(header.queue_id)
    return BatchName(
        queue, int(header.producer_id), header.epoch, header.session, header.base_sequence
    )


def _messages(payload: bytes) -> tuple[list[Message], list[int]]:
    """The messages of a stored batch, and their sequences."""
    header = check_batch(payload, BROKER_HEADER_BYTES)
    if not header.count:
        return [], []
    columns = decode_columns(payload[BROKER_HEADER_BYTES:], header)
    nothing = [None] * header.count
    messages = [
        Message(*row)
        for row in zip(
            nothing if columns.message_ids is None else columns.message_ids.to_pylist(),
            columns.values.to_pylist(),
            nothing if columns.keys is None else columns.keys.to_pylist(),
            strict=True,
        )
    ]
    if columns.sequences is not None:
        return messages, columns.sequences.to_pylist()
    return messages, list(range(header.base_sequence, header.base_sequence + header.count))
