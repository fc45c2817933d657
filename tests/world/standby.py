"""What a cluster has of the source of its mirror, step by step as its log has it.

How it works. Each step of a mirror is looked at before it is folded. From the records alone it is
known which slices have settled, and by which ones queues were promoted. When the source is gone,
what its log had committed is held against each of them: so a slice must be one that the source had,
whatever has become of the mirror and of both clusters meanwhile.

Invariants
1. A slice settles only when all messages that it counts are here; that of a queue which was split
   only after slices of its children. Of two slices of a queue the later one is not behind: neither
   in messages, nor in what producers and groups have done.
2. By its rows each message of the source up to its end is stored, and none behind, except delayed
   ones that wait. No group is further than it was, or than there are messages.
3. Of each delayed batch that a promoted slice names there is a copy.

Not here: copies, which are compared byte by byte, and the history of clients (`tests/checking`);
who copies and promotes (`two_sites.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from semel.broker.state import ordinal_of_copy, read_slice
from semel.broker.state.apply.mirrored import promoted_slice
from semel.broker.state.apply.slices import Slice
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch, decode_broker_header
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2
from tests.checking.delays import DelayedBatch, Waiting, messages_of
from tests.checking.exactly_once import Restored
from tests.checking.history import Outcome, Send
from tests.checking.moves import Places
from tests.checking.raw_log import Fold
from tests.checking.stored import Row
from tests.world.carried import Carried
from tests.world.consumption import Consumption
from tests.world.folded import require
from tests.world.world import World

Place = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Standby(Carried):
    """The copies of another cluster's queues."""

    world: World
    places: Places
    """Queues that come and go, by the log of the target."""
    consumption: Consumption
    """Groups, by the log of the target."""
    source: Consumption
    """Groups, by the log of the source."""
    frames: Mapping[int, bytes]
    """The target's committed entries."""
    settled: dict[QueueKey, list[Slice]] = field(default_factory=dict)
    """All slices that have settled, in their order."""
    on_copied: Callable[[str], None] = lambda _: None
    """Hears the name of each step of a mirror."""

    def on_step(self, step: control_pb2.MoveQueue) -> None:
        """Takes a step before it is folded. Raises InvariantError."""
        key = queue_key_of(step.queue)
        name = control_pb2.MoveStep.Name(step.step).removeprefix("MOVE_STEP_").lower()
        self.world.count(f"mirror: {name}")
        if (data := self.places.settles(step)) is not None:
            self._on_settled(key, read_slice(data))
        elif (data := self.places.promotes(step)) is not None:
            found = promoted_slice(data)
            end, copied = found.queue.log_end_offset, self.places.ends[key]
            self.world.seen["mirror: message behind the promoted slice"] += copied - end
            self.places.ends[key] = end  # copies behind it are dropped
            self.arrive(key, found)
            if found.queue.parent is not None:
                parent = QueueKey(key.topic_id, QueueId(found.queue.parent))
                self.consumption.on_child(key, parent)
        self.on_copied(name)

    def _on_settled(self, key: QueueKey, found: Slice) -> None:
        known = self.settled.setdefault(key, [])
        end, copied = found.queue.log_end_offset, self.places.ends[key]
        require(end <= copied, f"queue {key} settles at {end}, and its copies end at {copied}")
        for child in found.queue.children:
            require(
                QueueKey(key.topic_id, QueueId(child.queue_id)) in self.settled,
                f"queue {key} settles as split, and its child {child.queue_id} has no slice",
            )
        for name, _, state in found.groups.states():
            reached = self.source.progress(name, key)
            require(
                state.committed_offset <= reached,
                f"group {name} has read {state.committed_offset} of queue {key} by its slice, and"
                f" {reached} at the source",
            )
        for old in known[-1:]:
            before = old.queue.log_end_offset
            require(end >= before, f"queue {key} settles at {end} after {before}")
            lasts = {row.producer_id: row.last_sequence for row in found.producers.rows(key)}
            for row in old.producers.rows(key):
                require(
                    lasts.get(row.producer_id, -1) >= row.last_sequence,
                    f"producer {row.producer_id} of queue {key} falls back with a slice, from"
                    f" {row.last_sequence} to {lasts.get(row.producer_id)}",
                )
            for name, _, state in old.groups.states():
                later = found.groups.lookup(name, key)
                require(
                    later is not None and later.committed_offset >= state.committed_offset,
                    f"group {name} falls back in queue {key} with a slice",
                )
        known.append(found)

    def is_whole(self, queues: int) -> bool:
        """Whether a slice has settled of each of the queues that the topic began with: then it can
        be promoted."""
        return set(range(queues)) <= {int(key.queue_id) for key in self.settled}

    # --- the verdict

    def wrong(self) -> str:
        """The first contradiction between a slice and what the source had; empty without any."""
        for key, known in self.settled.items():
            for number, found in enumerate(known):
                if problem := self.wrong_rows(key, found) or self.wrong_groups(key, found):
                    return f"slice {number} of queue {key}: {problem}"
        copies = self._delayed_copies()
        for key, found in self.slices.items():
            for due_us, ordinal in _delayed_in(found):
                if (key, ordinal) not in copies:
                    return f"of queue {key} the batch {ordinal}, due at {due_us}, never came"
        return ""

    def waits(self, found: Slice, row: Row) -> bool:
        return row.offset >= found.queue.log_end_offset and row.digest in self._due()

    def missing(self, fold: Fold) -> str:
        """The first message that a promoted slice counts and the target does not have, when nothing
        waits any more; empty without any."""
        there = {row.digest for row in fold.rows}
        for digest in sorted(self.digests()):
            if digest not in there:
                return f"a message of the source counts as stored and is not here: {digest}"
        return ""

    def lost(self) -> list[str]:
        """The messages that the source acknowledged and the target does not count as stored."""
        here = self.digests()
        sends: list[Send] = self.left.history.of(Send)
        return [
            send.digest for send in sends if send.outcome is Outcome.OK and send.digest not in here
        ]

    # --- what the checker of the target has to know

    def restored(self) -> Restored:
        return replace(Carried.restored(self), batches=self.left.fold.batches)

    def digests(self) -> set[str]:
        """The messages that a promoted slice counts: those up to its end, and those that wait."""
        found = {row.digest for row in self.rows()}
        for queue, sequence, producer, digest in self._ever_delayed():
            home = self._home(queue)
            if home is not None and sequence <= self._last(home, producer):
                found.add(digest)
        return found

    def waiting(self, key: QueueKey) -> Waiting:
        copies = self._delayed_copies()
        named = [place for place in _delayed_in(self.slices[key]) if (key, place[1]) in copies]
        return Waiting({place: copies[key, place[1]] for place in named})

    def _due(self) -> set[str]:
        sends: list[Send] = self.left.history.of(Send)
        return {send.digest for send in sends if send.due_us}

    def _ever_delayed(self) -> Iterator[tuple[Place, int, int, str]]:
        """Queue, sequence, producer and digest of each delayed message that the source ever had,
        where it was last."""
        due, fold = self._due(), self.left.fold
        for row in fold.rows:
            if row.digest in due:
                yield row.queue, row.sequence, row.producer_id, row.digest
        for key, held in fold.delayed.waiting.items():
            for batch in held.values():
                for sequence, _, digest in messages_of(batch):
                    place = int(key.topic_id), int(key.queue_id)
                    yield place, sequence, int(batch.header.producer_id), digest

    def _home(self, queue: Place) -> QueueKey | None:
        """The promoted queue that has what is said to be in this one: itself, or the newest one
        that it descends from."""
        for topic_id, number in reversed(self.left.fold.lineage(queue)):
            key = QueueKey(TopicId(topic_id), QueueId(number))
            if key in self.slices:
                return key
        return None

    def _last(self, key: QueueKey, producer: int) -> int:
        rows = self.slices[key].producers.rows(key)
        return max((row.last_sequence for row in rows if row.producer_id == producer), default=-1)

    def _delayed_copies(self) -> dict[tuple[QueueKey, int], DelayedBatch]:
        """The first copy of each delayed batch, by queue and ordinal."""
        found: dict[tuple[QueueKey, int], DelayedBatch] = {}
        for index, frame in sorted(self.frames.items()):
            for _, kind, payload in iter_records(frame):
                if kind is not RecordKind.COPY:
                    continue
                ordinal = ordinal_of_copy(decode_broker_header(payload))
                if ordinal is None:
                    continue
                header = check_batch(payload, BROKER_HEADER_BYTES)
                batch = DelayedBatch(header, bytes(payload[BROKER_HEADER_BYTES:]), index)
                found.setdefault((header.queue_key, ordinal), batch)
        return found


def _delayed_in(found: Slice) -> list[tuple[int, int]]:
    """Due time and ordinal of each delayed batch of a slice."""
    table = found.delayed.table()
    return [(int(due), int(at)) for due, at in zip(table["due_us"], table["ordinal"], strict=True)]
