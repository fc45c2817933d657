"""What a cluster leaves behind when all of its machines are lost, and what may become of it.

How it works. The first of two lives of a world ends without a warning (`two_lives.py`). What its
logs had committed by then is known here, with all that its clients had noted, and so is what the
object store had. So it can be said of each queue that is restored from the store whether that is
as it must be: of every sequence of a producer, and of every group's progress.

Invariants
1. A restored queue ends where a manifest ends that its log had decided, and not before any whose
   pointer was in the store.
2. A producer's row names no sequence as stored whose message is lost, and all whose messages are
   there; else the row has expired.
3. No group has committed more than it had, nor more than there is.

Not here: what clients of the second life see (`tests/checking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from semel.broker.state import RESTORE_JOB, read_slice
from semel.broker.state.apply.slices import Slice
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2
from tests.checking.delays import Waiting
from tests.checking.exactly_once import Restored
from tests.checking.history import Delivered, Granted, History, Outcome, Send
from tests.checking.moves import Did, Job, Journeys, Queue
from tests.checking.raw_log import Fold, Luggage, Producer
from tests.world.clients import Loader
from tests.world.consumption import Told
from tests.world.folded import row_of
from tests.world.object_store import Held
from tests.world.tier_checks import Decided, TierChecks


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCluster:
    """All that is known of it."""

    at_s: float
    fold: Fold
    """What its logs say."""
    history: History
    loaders: Mapping[str, dict[int, Send]]
    """The notes of each loader."""
    objects: dict[str, list[Held]]
    """The versions of all objects in the store."""
    decided: Mapping[QueueKey, list[Decided]]
    """The manifests that its logs have decided."""
    published: Mapping[QueueKey, int]
    """End of the newest manifest of each queue whose pointer was in the store."""


def published_of(checks: TierChecks) -> dict[QueueKey, int]:
    """How far each queue's pointers in the store lead."""
    assert checks.store is not None
    found: dict[QueueKey, int] = {}
    for key, known in checks.decided.items():
        for each in known:
            if checks.store.now_object(each.pointer.name) is not None:
                found[key] = each.end
    return found


@dataclass(slots=True)
class Comeback:
    """What comes of a lost cluster, step by step as the new one's log has it."""

    lost: LostCluster
    checks: TierChecks
    journeys: Journeys
    told: Told
    slices: dict[QueueKey, Slice] = field(default_factory=dict)
    _parts: dict[QueueKey, bytearray] = field(default_factory=dict)

    def on_step(self, step: control_pb2.MoveQueue) -> None:
        """Takes a step before it is folded."""
        key = queue_key_of(step.queue)
        if step.step == control_pb2.MOVE_STEP_PART:
            parts = self._parts.setdefault(key, bytearray())
            if step.offset == len(parts):
                parts += step.part
        elif step.step == control_pb2.MOVE_STEP_INGEST:
            self._on_whole(key, read_slice(bytes(self._parts[key])))

    def _on_whole(self, key: QueueKey, found: Slice) -> None:
        rows = {(key, int(row.producer_id)): row_of(row) for row in found.producers.rows(key)}
        groups = {
            name: (state.token, state.owner, state.committed_offset)
            for name, _, state in found.groups.states()
        }
        self.journeys.luggage[key, RESTORE_JOB] = rows
        self.journeys.note(0, (key, RESTORE_JOB), Did.SEALED)
        queue = found.queue
        self.told.on_restored(key, RESTORE_JOB, queue.log_end_offset, queue.token_floor, groups)
        if key not in self.slices:
            self._forget_manifests(key, queue.tier.number)
        self.slices[key] = found

    def _forget_manifests(self, key: QueueKey, number: int) -> None:
        """Newer manifests than the restored one are garbage now."""
        checks = self.checks
        kept = [each for each in checks.decided.get(key, []) if each.pointer.number <= number]
        if kept:
            kept[-1].replaced_s = None
        checks.decided[key] = kept
        names = {file.sha256 for each in kept for file in each.files}
        for place in [place for place in checks.files if place[0] == key]:
            if place[1] not in names:
                del checks.files[place]

    # --- the verdict

    def wrong(self) -> str:
        """The first contradiction between what came back and what was lost; empty without any."""
        for key, found in self.slices.items():
            problem = self._wrong_end(key, found) or self._wrong_rows(key, found)
            problem = problem or self._wrong_groups(key, found)
            if problem:
                return f"restored queue {key}: {problem}"
        return ""

    def _wrong_end(self, key: QueueKey, found: Slice) -> str:
        end, queue = found.queue.log_end_offset, found.queue
        ends = {each.end for each in self.lost.decided.get(key, ())} | {queue.log_start_offset}
        if end not in ends:
            return f"it ends at {end}, where no manifest did: {sorted(ends)}"
        least = self.lost.published.get(key, 0)
        return f"it ends at {end}, and {least} messages were tiered" if end < least else ""

    def _wrong_rows(self, key: QueueKey, found: Slice) -> str:
        end, expired = found.queue.log_end_offset, found.queue.expired
        last = {int(row.producer_id): row.last_sequence for row in found.producers.rows(key)}
        for row in self.lost.fold.rows:
            if row.queue != key or (row.queue, row.producer_id) in self.lost.fold.expired:
                continue  # a row that began anew knows nothing of what was before
            known = last.get(row.producer_id)
            if known is None:
                if row.offset < end and not expired.floor_of(row.producer_id):
                    return f"nobody knows the producer of {row}, which is there"
            elif (row.offset < end) != (row.sequence <= known):
                what = "is lost" if row.offset >= end else "is there"
                return f"producer {row.producer_id} stands at {known}, and {row} {what}"
        return ""

    def _wrong_groups(self, key: QueueKey, found: Slice) -> str:
        for name, _, state in found.groups.states():
            commits = self.lost.fold.commits
            reached = max((each[3] for each in commits if each[:2] == (name, key)), default=0)
            if state.committed_offset > min(reached, found.queue.log_end_offset):
                return f"group {name} stands at {state.committed_offset}, it had read {reached}"
        return ""

    # --- what the checker of the second life has to know

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
            lost = {producer for at, producer in self.lost.fold.producers if at == place}
            luggage[place, RESTORE_JOB] = Luggage(
                queue.log_end_offset, 0, lost - producers.keys(), producers, Waiting({})
            )
            topics[place[0]] = queue.topic
        rows = [row for row in self.lost.fold.rows if self._is_back(row.queue, row.offset)]
        return Restored(rows=rows, luggage=luggage, topics=topics)

    def _is_back(self, queue: tuple[int, int] | None, offset: int) -> bool:
        ends = {key: found.queue.log_end_offset for key, found in self.slices.items()}
        return queue is not None and offset < ends.get(queue, 0)  # type: ignore[call-overload]

    def take_notes(self, history: History, loaders: Iterable[Loader]) -> None:
        """The second life's history begins with what clients have noted of messages that are back.
        Loaders remember what they have begun, and know of none of those that are lost."""
        back = {row.digest for row in self.lost.fold.rows if self._is_back(row.queue, row.offset)}
        own = {loader.name for loader in loaders}
        for note in self.lost.history.notes:
            match note:
                case Send() if note.producer in own or note.digest not in back:
                    continue
                case Delivered() if not self._is_back(note.queue, note.offset):
                    continue
                case Send() | Delivered() | Granted():
                    history.add(note)
        for loader in loaders:
            for position, send in self.lost.loaders.get(loader.name, {}).items():
                if send.digest not in back:
                    send.outcome, send.ended_s = Outcome.UNKNOWN, None
                    send.queue, send.offset, send.sequence = None, -1, -1
                loader.notes[position] = history.begin_send(send)
