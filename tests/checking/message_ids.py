"""What the log says about message ids, from its records alone, and what producers were told.

How it works. The records CHECK_IDS, EVICT_IDS and CANCEL_DELAYED, the steps of moves and the
batches of one broker group's committed log are read in their order, with plain dicts of whole ids
and contents and none of the broker's fingerprints, indexes and rules. A dropped message is in no
log; what was sent under its sequence is known from those who sent it.

What is checked
1. No id is stored while a message with it is in the window and not cancelled; arrivals have no gap.
2. A message is dropped only because of the newest message with its id, in the window and not
   cancelled: as a duplicate if the content is the same (or the topic keeps the first), as a
   conflict if it is not.
3. Each message of a batch is stored with the id and content with which it was sent, or dropped.
4. A window forgets only what is too old, or too much for its bytes. Those who run the log say
   whether more may be forgotten, see `IdTopic.forgotten`.
5. An acknowledgement names the place of each stored message, and of each dropped one the verdict
   and the place of the first message with its id.
6. What is cancelled is a delayed message in the window, under its own arrival and in its own batch,
   and was not cancelled before.
7. Ids that move with a queue arrive here as they were at the other group (`moved_ids.py`). What was
   known here of its delayed messages, when it was here earlier, does not count any more.

Not here: transactions (`published_ids.py`), what nodes have in their indexes
(`tests/world/id_indexes.py`), queues and what is due when (`raw_log.py`), what those who cancel are
told (`cancel_answers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_broker_header
from semel.protos.columns import decode_columns
from semel.protos.delays import is_delayed
from semel.protos.dropped import DROPPED, Dropped, Verdict, read_answer
from semel.protos.frames import RecordKind, decode_frame_header, iter_records
from semel.protos.levels import DELAYED_MOVE_LEVEL
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2
from tests.checking.id_topics import Arrival, BatchName, Forgotten, IdTopic, MessageName
from tests.checking.moved_ids import (
    Known,
    Message,
    MovesOfIds,
    Place,
    Source,
    Taken,
    Translator,
    judge_moved,
)
from tests.checking.moves import At, Did, Journeys, Places
from tests.checking.stored import Queue


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


class Moving(NamedTuple):
    """A queue is on its way from or to a group."""

    topic_id: int
    job: tuple[Queue, int]
    entry: int
    end: int | None = None
    """The entry that ends it."""


class IdLog:
    """The ids of one broker group's log. Give it all frames in order."""

    def __init__(
        self,
        group: int,
        sent: Mapping[tuple[BatchName, int], Message],
        messages: Collection[Message] = (),
    ) -> None:
        """`sent` has all messages that were ever sent, by batch and sequence, and `messages` those
        that were staged in any group: their ids may move here."""
        self.moves = MovesOfIds()
        self.moving: list[Moving] = []
        self.parents: dict[Queue, Queue] = {}
        self._places = Places(group, Journeys())
        self._slots: dict[Queue, int] = {}
        """Slots of the queues that are here, or on their way here."""
        self._translators: dict[bytes, Translator] = {}
        self.topics: dict[int, IdTopic] = {}
        self.batches: dict[BatchName, StoredBatch] = {}
        self.problems: list[str] = []
        self.duplicates = 0
        self.conflicts = 0
        self.evicted = 0
        self.used_again = 0
        """Ids that were stored again after their message was cancelled."""
        self.cancelled: set[tuple[BatchName, int]] = set()
        """Messages that will never be delivered, by batch and sequence."""
        self._sent = dict(sent)
        self._messages = messages
        self._where = ""
        self._index = self._level = 0
        self.homes: dict[Queue, list[tuple[int, int | None]]] = {}
        """From which entry to which one each queue was here, or is here."""
        self._parted: dict[tuple[int, int, int], bytes] = {}
        """Parts of delayed batches, by the number of the child, entry and number of the batch."""
        self.handed: dict[MessageName, Queue] = {}
        """The child to which each message went that was delayed when its queue was split."""
        self._copies: dict[tuple[int, int], bytes] = {}
        """Copies of delayed batches, by entry and number."""
        self._begun: dict[tuple[Queue, int], int] = {}
        """The entry with which each move to this group has begun."""
        self._open: set[tuple[Queue, int]] = set()
        """Moves whose ids may come."""
        self.all_windows: dict[int, list[IdTopic]] = {}

    def read(self, frames: Mapping[int, bytes]) -> IdLog:
        """Reads the frames from index 1 on."""
        for index in range(1, max(frames, default=0) + 1):
            self._where, self._index = f"entry {index}", index
            time_us = decode_frame_header(frames[index]).time_us
            checked: control_pb2.CheckIds | None = None
            parts: list[bytes] = []
            for position, kind, payload in iter_records(frames[index]):
                if kind is RecordKind.BATCH:
                    self._on_batch(payload, checked, time_us)
                    checked = None
                elif kind is RecordKind.STAGED:
                    self._on_staged(position, bytes(payload), checked)
                    checked = None
                elif kind is RecordKind.PARTED:
                    parts.append(bytes(payload))
                elif kind is RecordKind.COPY:
                    placed = decode_broker_header(payload)
                    if placed.base_offset < 0:
                        self._copies[index, int(placed.term)] = bytes(payload)
                elif kind is RecordKind.CONTROL:
                    record = control_pb2.ControlRecord.FromString(bytes(payload))
                    match record.WhichOneof("record"):
                        case "check_ids":
                            checked = record.check_ids
                        case "transaction":
                            self._on_transaction(record.transaction, time_us)
                        case "evict_ids":
                            self._on_evicted(record.evict_ids, time_us)
                        case "cancel_delayed":
                            self._on_cancelled(record.cancel_delayed)
                        case "part_delayed":
                            for batch in record.part_delayed.batches:
                                for _ in range(batch.parts):
                                    part = parts.pop(0)
                                    self._on_part(record.part_delayed, batch.ordinal, part)
                        case "create_queue":
                            made = record.create_queue
                            queue = int(made.queue.topic_id), int(made.queue.queue_id)
                            self._places.on_created(queue)
                            self._come(queue)
                            self._slots.setdefault(queue, made.slot_end - made.slot_start)
                            self._configure(made.queue.topic_id, made.settings)
                        case "delete_queue":
                            gone = record.delete_queue.queue
                            self._places.on_deleted((gone.topic_id, gone.queue_id))
                            self._go((gone.topic_id, gone.queue_id))
                            self._slots.pop((gone.topic_id, gone.queue_id), None)
                            self._maybe_forget(gone.topic_id)
                        case "split_queue":
                            self._on_split(record.split_queue)
                        case "move_queue":
                            self._on_step(record.move_queue, time_us)
                        case "feature_level":
                            self._level = max(self._level, record.feature_level.level)
                        case "alter_topic":
                            altered = record.alter_topic
                            if any(altered.topic_id == queue[0] for queue in self._places.here):
                                self._configure(altered.topic_id, altered.settings)
        return self

    def _on_staged(
        self, position: int, payload: bytes, checked: control_pb2.CheckIds | None
    ) -> None:
        """A batch of a transaction, or what is kept of one."""

    def _on_transaction(
        self, step: transaction_records_pb2.TransactionRecord, time_us: int
    ) -> None:
        """A step of a transaction."""

    def _on_split(self, split: control_pb2.SplitQueue) -> None:
        parent = int(split.queue.topic_id), int(split.queue.queue_id)
        if parent in self.parents.values():
            return
        self._slots.pop(parent, None)
        for child in split.children:
            queue = parent[0], child.queue_id
            self.parents[queue] = parent
            self._places.on_created(queue)
            self._come(queue)
            self._slots[queue] = child.slot_end - child.slot_start
        self._count_slots(parent[0])

    def _on_part(self, record: control_pb2.PartDelayed, ordinal: int, part: bytes) -> None:
        parent, name = (int(record.queue.topic_id), int(record.queue.queue_id)), name_of(part)
        self._parted[name.queue[1], self._index, ordinal] = part
        for sequence in messages_in(part)[1]:
            sent = parent, name.producer_id, name.epoch, name.session, sequence
            self.handed[sent] = name.queue

    def _on_step(self, step: control_pb2.MoveQueue, time_us: int) -> None:
        queue = int(step.queue.topic_id), int(step.queue.queue_id)
        job, topic_id = (queue, step.job), queue[0]
        if step.step == control_pb2.MOVE_STEP_IDS:
            self._on_moved(step, job, time_us)
        elif step.step == control_pb2.MOVE_STEP_SUPERSEDE:
            self._on_superseded(step, job)
        did = self._places.on_step(step)
        if did in (Did.BEGUN, Did.SEALED):
            self.moving.append(Moving(topic_id, job, self._index))
        elif did is not Did.NOTHING:
            self.moving += [
                each._replace(end=self._index)
                for each in self.moving
                if each.job == job and each.end is None
            ]
            self.moving = [each for each in self.moving if each.job != job or each.end is not None]
        if did is Did.BEGUN:
            self._slots[queue] = step.create.slot_end - step.create.slot_start
            self._begun[job] = self._index
            self._configure(topic_id, step.create.settings, moves=True)
        elif did is Did.SEALED and topic_id in self.topics:
            topic = self.topics[topic_id]
            self.moves.sealed_at[job] = self._index
            known = {arrival: topic.at(arrival) for arrival in topic.held().values()}
            self.moves.sealed[job] = {
                arrival: Known(each.message, each.place)
                for arrival, each in known.items()
                if each.place.queue_id == queue[1]
            }
        elif did is Did.ACTIVATED:
            if step.HasField("create"):
                self._configure(topic_id, step.create.settings)
            self.moves.activated.append(job)
            self._come(queue)
            if job not in self._open:
                self._check_superseded(job)
        elif did in (Did.FORWARDED, Did.DROPPED):
            if did is Did.FORWARDED and topic_id in self.topics:
                self.moves.left[job] = self.topics[topic_id].first_arrival
            self._go(queue)
            self._slots.pop(queue, None)
            self._maybe_forget(topic_id)

    def _come(self, queue: Queue) -> None:
        found = self.homes.setdefault(queue, [])
        if not found or found[-1][1] is not None:
            found.append((self._index, None))

    def _go(self, queue: Queue) -> None:
        if (found := self.homes.get(queue)) and found[-1][1] is None:
            found[-1] = found[-1][0], self._index

    def _on_superseded(self, step: control_pb2.MoveQueue, job: tuple[Queue, int]) -> None:
        topic = self.topics.get(job[0][0])
        if topic is None or self._places.places.get(job[0]) != (At.INCOMING, job[1]):
            return
        if job in self._open:
            return
        if step.last:
            self._open.add(job)
        for arrival in np.frombuffer(step.arrivals, "<u8").tolist():
            if not topic.has(arrival):
                continue
            place = topic.at(arrival).place
            if place.queue_id != job[0][1] or not place.due_us:
                self._wrong(f"{topic.at(arrival)} is superseded by the move {job}")
            topic.superseded.setdefault(arrival, self._index)
        if step.last:
            self._check_superseded(job)

    def _check_superseded(self, job: tuple[Queue, int]) -> None:
        """Checks that delayed messages count only if their ids come with the move."""
        topic = self.topics.get(job[0][0])
        if topic is None or self._level < DELAYED_MOVE_LEVEL:
            return
        for number in topic.held().values():
            found = topic.at(number)
            mine = found.place.queue_id == job[0][1] and found.place.due_us
            if mine and found.arrived < self._begun[job]:
                self._wrong(f"{found} still counts when the move {job} brings its queue back")

    def _on_moved(self, step: control_pb2.MoveQueue, job: tuple[Queue, int], time_us: int) -> None:
        topic = self.topics.get(job[0][0])
        if topic is None or topic.settings.seed != step.seed:
            self._wrong(f"ids arrive for {job[0]}, which are of no window here")
            return
        translator = self._translators.get(step.seed)
        if translator is None:
            translator = self._translators[step.seed] = Translator(
                step.seed, [*self._sent.values(), *self._messages]
            )
        ids = translator.read(step)
        if ids and (problem := topic.begin(step.first_arrival)):
            self._wrong(problem)
        covered = range(step.ids_from, step.ids_to)
        self.moves.taken.append(Taken(self._index, job, step.group_id, covered, ids))
        for message, place in ids:
            if message is None or message.message_id is None:
                self._wrong(f"the id of a message arrives that nobody has sent, at {place}")
                return
            topic.newest[message.message_id] = topic.next_arrival
            topic.arrivals.append(
                Arrival(message, place, time_us, self._index, -1, None, self._index)
            )

    def _maybe_forget(self, topic_id: int) -> None:
        """A window ends with the last queue of its topic that is here, or on its way."""
        self._count_slots(topic_id)
        if not any(queue[0] == topic_id for queue in self._queues()):
            topic = self.topics.pop(topic_id, None)
            if topic is not None:
                topic.evictions.append((self._index, topic.next_arrival))

    def _queues(self) -> set[Queue]:
        places = self._places
        incoming = {queue for queue, (at, _) in places.places.items() if at is At.INCOMING}
        return places.here | incoming

    def _count_slots(self, topic_id: int) -> None:
        topic = self.topics.get(topic_id)
        if topic is not None:
            count = sum(slots for queue, slots in self._slots.items() if queue[0] == topic_id)
            topic.slots.append((self._index, count))

    def windows(self, topic_id: int) -> list[IdTopic]:
        """The windows that the topic has had, the newest last."""
        return self.all_windows.get(topic_id, [])

    def _configure(
        self, topic_id: int, settings: common_pb2.TopicSettings, *, moves: bool = False
    ) -> None:
        if not settings.HasField("dedup"):
            self.topics.pop(topic_id, None)
        elif topic_id in self.topics:
            self.topics[topic_id].settings = settings.dedup
        else:
            topic = self.topics[topic_id] = IdTopic(settings.dedup)
            earlier = self.all_windows.setdefault(topic_id, [])
            topic.floor = max((each.next_arrival for each in earlier), default=0)
            if moves:
                topic.base = None
            earlier.append(topic)
        self._count_slots(topic_id)

    def _on_evicted(self, record: control_pb2.EvictIds, time_us: int) -> None:
        topic = self.topics.get(record.topic_id)
        if topic is None or record.first_arrival <= topic.first_arrival:
            return
        explained = topic.explained(time_us, self._index)
        if record.first_arrival > explained:
            topic.forgotten.append(Forgotten(self._index, record.first_arrival, explained))
        self.evicted += record.first_arrival - topic.first_arrival
        topic.first_arrival = record.first_arrival
        topic.evictions.append((self._index, record.first_arrival))

    def _on_cancelled(self, record: control_pb2.CancelDelayed) -> None:
        topic = self.topics.get(record.queue.topic_id)
        if topic is None or not topic.has(record.arrival):
            self._wrong(f"{record.arrival} is cancelled, and is not in a window")
            return
        found = topic.at(record.arrival)
        told = Place(record.queue.queue_id, -1, record.due_us), record.entry, record.row
        if found.sent is None and (copy := self._copies.get((record.entry, record.ordinal))):
            messages, sequences = messages_in(copy)
            if messages[record.row] == found.message:
                sent = name_of(copy), sequences[record.row]
                found = found._replace(entry=record.entry, row=record.row, sent=sent)
                topic.arrivals[record.arrival - (topic.base or 0)] = found
        place = record.queue.queue_id, record.entry, record.ordinal
        if (part := self._parted.get(place)) is not None:
            messages, sequences = messages_in(part)
            same = messages[record.row] == found.message
            if same and found.sent is not None:
                same = sequences[record.row] == found.sent[1]
            if same and found.place.due_us == record.due_us:
                told = found.place, found.entry, found.row
        if (found.place, found.entry, found.row) != told:
            self._wrong(f"{told} is cancelled as {found}")
        if record.arrival in topic.cancelled:
            self._wrong(f"{found} is cancelled twice")
        topic.cancelled[record.arrival] = self._index
        if found.sent is not None:
            self.cancelled.add(found.sent)

    def _on_batch(
        self, payload: memoryview, checked: control_pb2.CheckIds | None, time_us: int
    ) -> None:
        placed = decode_broker_header(payload)
        header = check_batch(payload, BROKER_HEADER_BYTES)
        topic = self.topics.get(header.topic_id)
        if topic is None or (checked is None and not header.count):
            return
        name = name_of(payload)
        queue = name.queue
        if checked is None:
            self._wrong(f"{name} is stored without a decision about its ids")
            return
        messages, sequences = messages_in(bytes(payload))
        delayed = is_delayed(header)
        if problem := topic.begin(checked.first_arrival):
            self._wrong(problem)
        for at, message in enumerate(messages):
            place = Place(queue[1], placed.base_offset + at, 0)
            if delayed:
                place = Place(queue[1], -1, header.deliver_at_us)
            sent = name, sequences[at]
            if message.message_id is not None:
                self._on_stored(
                    topic, Arrival(message, place, time_us, self._index, at, sent, self._index)
                )
            if self._sent.get(sent) != message:
                self._wrong(f"{message} of {name} was sent as another one, or by nobody")
        entry = StoredBatch(placed.base_offset, sequences, [])
        for sequence, first in np.frombuffer(checked.dropped, DROPPED).tolist():
            entry.dropped.append(self._dropped(topic, name, sequence, first))
        self.batches[name] = entry
        told = sorted([*sequences, *(each.sequence for each in entry.dropped)])
        if told != list(range(header.base_sequence, header.base_sequence + checked.count)):
            self._wrong(f"{name} had {checked.count} messages; stored or dropped are {told}")

    def _on_stored(self, topic: IdTopic, arrival: Arrival) -> None:
        name = arrival.message.message_id
        assert name is not None
        known = topic.known(name)
        if known is not None:
            self._wrong(
                f"{arrival.message} is stored at {arrival.place}, and arrived as {known} in the"
                f" window from {topic.first_arrival} on"
            )
        self.used_again += topic.newest.get(name, -1) in topic.cancelled
        topic.newest[name] = topic.next_arrival
        topic.arrivals.append(arrival)

    def _dropped(self, topic: IdTopic, name: BatchName, sequence: int, first: int) -> Dropped:
        verdict = Verdict.DUPLICATE if first >= 0 else Verdict.CONFLICT
        arrival = first if first >= 0 else -1 - first
        message = self._sent.get((name, sequence))
        what = f"{message}, {sequence} of {name}, was dropped as a {verdict.name.lower()}"
        if not topic.has(arrival):
            self._wrong(f"{what} of {arrival}, which is not in the window")
            return Dropped(sequence, -1, 0, -1, verdict)
        kept, place = topic.at(arrival)[:2]
        same = message == kept or topic.settings.keep_first
        if message is None or message.message_id is None or message.message_id != kept.message_id:
            self._wrong(f"loss: {what} of {kept}")
        elif arrival in topic.cancelled or arrival in topic.superseded:
            self._wrong(f"loss: {what} of {kept}, which was cancelled, or may have been")
        elif arrival != topic.newest[message.message_id]:
            self._wrong(f"{what} of {arrival}, and the id has arrived since")
        elif same != (verdict is Verdict.DUPLICATE):
            self._wrong(f"{what} of {kept}")
        self.duplicates += verdict is Verdict.DUPLICATE
        self.conflicts += verdict is Verdict.CONFLICT
        return Dropped(sequence, place.offset, place.due_us, place.queue_id, verdict)

    def _wrong(self, what: str) -> None:
        self.problems.append(f"{self._where}: {what}")


def name_of(payload: bytes | memoryview) -> BatchName:
    """The name of a stored batch."""
    header = check_batch(payload, BROKER_HEADER_BYTES)
    queue = int(header.topic_id), int(header.queue_id)
    return BatchName(
        queue, int(header.producer_id), header.epoch, header.session, header.base_sequence
    )


def messages_in(payload: bytes) -> tuple[list[Message], list[int]]:
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


def judge_answers(answers: Iterable[Answer], logs: Iterable[IdLog]) -> Iterator[str]:
    """Compares what producers were told with what is stored, in whichever log of those read."""
    batches = {name: batch for log in logs for name, batch in log.batches.items()}
    for answer in answers:
        where, stored = f"the answer to {answer.name}", batches.get(answer.name)
        if stored is None:
            yield f"{where} is an acknowledgement of a batch that is not stored: loss"
            continue
        if stored.sequences and answer.base_offset != stored.base_offset:
            yield f"{where} names offset {answer.base_offset}, not {stored.base_offset}"
        told = read_answer(answer.dropped)
        if told != sorted(stored.dropped):
            yield f"{where} says that {told} were dropped, and not {stored.dropped}"


def judge_moves(logs: Mapping[int, IdLog]) -> Iterator[str]:
    """Compares the ids that groups have got with those that the other group had."""
    windows = {
        group: {topic_id: list(map(_source, some)) for topic_id, some in log.all_windows.items()}
        for group, log in logs.items()
    }
    parents = {child: parent for log in logs.values() for child, parent in log.parents.items()}
    return judge_moved({group: log.moves for group, log in logs.items()}, windows, parents)


def _source(topic: IdTopic) -> Source:
    arrivals = [Known(each.message, each.place) for each in topic.arrivals]
    return Source(topic.base or 0, arrivals, topic.cancelled, topic.superseded)
