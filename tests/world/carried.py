"""What a cluster has of another one that is lost: judged queue by queue, and told to the checker.

How it works. What the lost cluster's log had, and what its clients had noted, is known. A *slice*
is all that is known of a queue besides its messages; each queue that comes back has one. So it can
be said of every sequence of a producer, and of every group's progress, whether it is as it must be.
The checker of the new cluster takes what has come back for a part of its log.

Not here: where slices come from (`lost_cluster.py`: a tier; `standby.py`: a mirror).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from semel.broker.state import RESTORE_JOB
from semel.broker.state.apply.slices import Slice
from semel.protos.ids import QueueKey
from tests.checking.delays import Waiting
from tests.checking.exactly_once import Restored
from tests.checking.history import Delivered, Granted, History, Outcome, Send
from tests.checking.moves import Did, Job, Journeys, Queue
from tests.checking.raw_log import Fold, Luggage, Producer
from tests.checking.stored import Row
from tests.world.clients import Loader
from tests.world.consumption import Told
from tests.world.folded import row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A cluster that is no more."""

    fold: Fold
    """What its logs say."""
    history: History
    loaders: Mapping[str, dict[int, Send]]
    """The notes of each loader."""


@dataclass(slots=True, kw_only=True)
class Carried:
    """What has come of a lost cluster, queue by queue."""

    left: Lost
    journeys: Journeys
    told: Told
    slices: dict[QueueKey, Slice] = field(default_factory=dict)

    def arrive(self, key: QueueKey, found: Slice) -> None:
        """A queue is about to be activated as the slice says."""
        rows = {(key, int(row.producer_id)): row_of(row) for row in found.producers.rows(key)}
        groups = {
            name: (state.token, state.owner, state.committed_offset)
            for name, _, state in found.groups.states()
        }
        self.journeys.luggage[key, RESTORE_JOB] = rows
        self.journeys.note(0, (key, RESTORE_JOB), Did.SEALED)
        queue = found.queue
        self.told.on_restored(key, RESTORE_JOB, queue.log_end_offset, queue.token_floor, groups)
        self.slices[key] = found

    # --- the verdict

    def wrong_rows(self, key: QueueKey, found: Slice) -> str:
        """The first row of the sequence table that does not fit the messages up to the slice's end;
        empty without any."""
        end, expired = found.queue.log_end_offset, found.queue.expired
        last = {int(row.producer_id): row.last_sequence for row in found.producers.rows(key)}
        for row in self.left.fold.rows:
            if row.queue != key or (row.queue, row.producer_id) in self.left.fold.expired:
                continue  # a row that began anew knows nothing of what was before
            known = last.get(row.producer_id)
            if known is None:
                if row.offset < end and not expired.floor_of(row.producer_id):
                    return f"nobody knows the producer of {row}, which is there"
            elif (row.offset < end) != (row.sequence <= known) and not self.waits(found, row):
                what = "is lost" if row.offset >= end else "is there"
                return f"producer {row.producer_id} stands at {known}, and {row} {what}"
        return ""

    def waits(self, found: Slice, row: Row) -> bool:
        """Whether a message that got its offset later may have waited when the slice was made."""
        return False

    def wrong_groups(self, key: QueueKey, found: Slice) -> str:
        """The first group that is further than it was, or than there is; empty without any."""
        for name, _, state in found.groups.states():
            commits = self.left.fold.commits
            reached = max((each[3] for each in commits if each[:2] == (name, key)), default=0)
            if state.committed_offset > min(reached, found.queue.log_end_offset):
                return f"group {name} stands at {state.committed_offset}, it had read {reached}"
        return ""

    # --- what the checker of the new cluster has to know

    def restored(self) -> Restored:
        """What the new cluster has of the lost one."""
        luggage: dict[Job, Luggage] = {}
        topics: dict[int, str] = {}
        for key, found in self.slices.items():
            queue = found.queue
            place: Queue = (int(key.topic_id), int(key.queue_id))
            producers = {
                int(row.producer_id): Producer(row.epoch, row.session, row.last_sequence)
                for row in found.producers.rows(key)
            }
            lost = {producer for at, producer in self.left.fold.producers if at == place}
            luggage[place, RESTORE_JOB] = Luggage(
                queue.log_end_offset,
                0,
                lost - producers.keys(),
                producers,
                self.waiting(key),
            )
            topics[place[0]] = queue.topic
        rows = list(self.rows())
        return Restored(rows=rows, luggage=luggage, topics=topics)

    def waiting(self, key: QueueKey) -> Waiting:
        """The delayed batches of a queue."""
        return Waiting({})

    def rows(self) -> Iterator[Row]:
        """The messages that came back."""
        return (row for row in self.left.fold.rows if self.is_back(row.queue, row.offset))

    def is_back(self, queue: tuple[int, int] | None, offset: int) -> bool:
        """Whether the message at an offset came back."""
        ends = {key: found.queue.log_end_offset for key, found in self.slices.items()}
        return queue is not None and offset < ends.get(queue, 0)  # type: ignore[call-overload]

    def digests(self) -> set[str]:
        """The messages that are stored, or wait, in the new cluster."""
        return {row.digest for row in self.rows()}

    def take_notes(self, history: History, loaders: Iterable[Loader]) -> None:
        """The new cluster's history begins with what clients have noted of messages that are back.
        Loaders remember what they have begun, and know of none of those that are lost."""
        back = self.digests()
        own = {loader.name for loader in loaders}
        for note in self.left.history.notes:
            match note:
                case Send() if note.producer in own or note.digest not in back:
                    continue
                case Delivered() if not self.is_back(note.queue, note.offset):
                    continue
                case Send() | Delivered() | Granted():
                    history.add(note)
        for loader in loaders:
            for position, send in self.left.loaders.get(loader.name, {}).items():
                if send.digest not in back:
                    send.outcome, send.ended_s = Outcome.UNKNOWN, None
                    send.queue, send.offset, send.sequence = None, -1, -1
                loader.notes[position] = history.begin_send(send)
