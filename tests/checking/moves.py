"""Follows moves of queues between broker groups by the groups' logs alone.

How it works. `Places` follows the steps in one group's log and says which of them have changed
anything there, by rules of its own: of the broker it shares only the records. `Journeys` has
what all groups of a run say together. The follower of a log leaves there what a queue has when it
is sealed, and takes it from there when the queue is activated.

A queue of another cluster is mirrored by steps of one job for all such queues: copies come, and
slices, of which the newest that is whole *settles*. A promotion activates the queue as the settled
slice says, without the copies behind its end.

Invariants checked here
1. A queue that a job activates was sealed by that job, and never goes on at the source, nor is
   dropped at the target.
2. A queue that a job forwards was activated by that job.
3. Only one group seals a queue for a job.

Not here: batches, rows and locks (`raw_log.py`, `tests/world`).
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TypeAlias

from semel.protos.v1 import control_pb2

Queue: TypeAlias = tuple[int, int]
Job: TypeAlias = tuple[Queue, int]
"""A queue and the number of its move."""


class At(StrEnum):
    """A group's part in the move of a queue."""

    HERE = "here"
    AWAY = "away"
    FROZEN = "frozen"
    HELD = "held"
    """Copied, and not compacted meanwhile."""
    INCOMING = "incoming"


class Did(StrEnum):
    """The change that a step has made."""

    NOTHING = "nothing"
    BEGUN = "begun"
    HELD = "held"
    SEALED = "sealed"
    ACTIVATED = "activated"
    FORWARDED = "forwarded"
    GOES_ON = "goes on"
    """The source goes on after a move that was given up."""
    DROPPED = "dropped"
    """The target dropped the copies after a move that was given up."""


class Journeys:
    """All moves of one run."""

    def __init__(self) -> None:
        self.luggage: dict[Job, object] = {}
        """What each queue had when it was sealed."""
        self.resting: dict[Job, object] = {}
        """How far the compaction of each queue was when a job held it."""
        self.done: dict[Did, set[Job]] = {did: set() for did in Did}
        self._sealed_at: dict[Job, int] = {}

    def note(self, group: int, job: Job, did: Did) -> None:
        self.done[did].add(job)
        if did is Did.SEALED:
            self._sealed_at.setdefault(job, group)

    def problem(self) -> str:
        """The first error; empty when there is none. Ask only when the causes of everything that
        was read were read too, in whichever group's log they are."""
        done = self.done
        for job in sorted(done[Did.ACTIVATED] & (done[Did.GOES_ON] | done[Did.DROPPED])):
            return f"move {job} is activated, and given up"
        for job in sorted(done[Did.ACTIVATED] - done[Did.SEALED]):
            return f"move {job} is activated, and nobody has sealed the queue"
        for job in sorted(done[Did.FORWARDED] - done[Did.ACTIVATED]):
            return f"move {job} is forwarded, and nobody has activated the queue"
        return ""


class Places:
    """Queues that move, as one group's log says."""

    def __init__(self, group: int, journeys: Journeys) -> None:
        self.group = group
        self.journeys = journeys
        self.here: set[Queue] = set()
        """Queues that the group has, sealed ones too."""
        self.places: dict[Queue, tuple[At, int]] = {}
        """The group's part in each queue, with the newest job."""
        self.ends: dict[Queue, int] = {}
        """End of the copies of each incoming queue."""
        self.settled: dict[Queue, bytes] = {}
        """The slice that would be promoted, of each mirrored queue that has one."""
        self._mirrors: dict[Queue, int] = {}
        """For each mirrored queue the epoch of the program that goes on with it."""
        self._parts: dict[Queue, bytes] = {}
        """What has come of the next slice of a mirrored queue."""

    def frozen(self, queue: Queue) -> bool:
        """Whether nothing may change in the queue."""
        return queue in self.places and self.places[queue][0] is At.FROZEN

    def rests(self, queue: Queue) -> bool:
        """Whether the queue is not compacted now, because it is copied or sealed."""
        return queue in self.places and self.places[queue][0] in (At.HELD, At.FROZEN)

    def opens(self, step: control_pb2.MoveQueue) -> bool:
        """Whether the step needs what another group's log says: it activates the queue."""
        activates = step.step == control_pb2.MOVE_STEP_ACTIVATE and self._is(step, At.INCOMING)
        return activates or self.promotes(step) is not None

    def settles(self, step: control_pb2.MoveQueue) -> bytes | None:
        """The slice that a mirror's step settles; None if it is no such step, or no new slice."""
        data = self._parts.get(_queue(step), b"")
        new = self.settled.get(_queue(step)) != data
        whole = new and hashlib.sha256(data).digest() == step.digest
        ends = step.step == control_pb2.MOVE_STEP_SETTLE and self._goes_on(step)
        return data if ends and whole else None

    def promotes(self, step: control_pb2.MoveQueue) -> bytes | None:
        """The slice by which a mirror's step activates the queue; None if it does not."""
        data = self.settled.get(_queue(step))
        fits = data is not None and hashlib.sha256(data).digest() == step.digest
        return data if step.step == control_pb2.MOVE_STEP_PROMOTE and fits else None

    def on_created(self, queue: Queue) -> None:
        self.here.add(queue)

    def on_deleted(self, queue: Queue) -> None:
        self.here.discard(queue)
        self._forget(queue)

    def _forget(self, queue: Queue) -> None:
        for known in (self.places, self.ends, self.settled, self._mirrors, self._parts):
            known.pop(queue, None)

    def coming(self, queue: Queue) -> int | None:
        """The move that brings the queue here; None if none does."""
        at, job = self.places.get(queue, (At.HERE, 0))
        return job if at is At.INCOMING else None

    def on_copy(self, queue: Queue, base_offset: int, count: int) -> bool:
        """Whether the copy counts."""
        place = self.places.get(queue)
        if place is None or place[0] is not At.INCOMING or self.ends[queue] != base_offset:
            return False
        self.ends[queue] += count
        return True

    def on_step(self, step: control_pb2.MoveQueue) -> Did:
        queue = _queue(step)
        did, at = self._step(step, queue)
        if at is not None:
            self.places[queue] = at, step.job
        if did is Did.BEGUN:
            self.ends[queue] = 0
        elif did is Did.ACTIVATED:
            self.here.add(queue)
        elif did is Did.FORWARDED:
            self.here.discard(queue)
        self.journeys.note(self.group, (queue, step.job), did)
        return did

    def _is(self, step: control_pb2.MoveQueue, at: At) -> bool:
        return self.places.get(_queue(step)) == (at, step.job)

    def _goes_on(self, step: control_pb2.MoveQueue) -> bool:
        """Whether the step is one of the mirror that goes on with the queue."""
        return self._mirrors.get(_queue(step)) == step.mirror_epoch

    def _step(self, step: control_pb2.MoveQueue, queue: Queue) -> tuple[Did, At | None]:
        """The change that a step makes, and the group's new part in the queue, if that changes."""
        nothing = Did.NOTHING, None
        if queue in self._mirrors or step.step == control_pb2.MOVE_STEP_MIRROR:
            return self._mirror_step(step, queue)
        newest = self.places[queue][1] if queue in self.places else -1
        match step.step:
            case control_pb2.MOVE_STEP_HOLD:
                if queue in self.here and step.job > newest and not self.frozen(queue):
                    return Did.HELD, At.HELD
            case control_pb2.MOVE_STEP_SEAL:
                fits = step.job > newest or self._is(step, At.HELD)
                if queue in self.here and fits and not self.frozen(queue):
                    return Did.SEALED, At.FROZEN
            case control_pb2.MOVE_STEP_UNSEAL:
                rests = self._is(step, At.FROZEN) or self._is(step, At.HELD)
                if rests or (step.job > newest and queue in self.here):
                    return Did.GOES_ON, At.HERE
            case control_pb2.MOVE_STEP_FORWARD:
                if self._is(step, At.FROZEN):
                    return Did.FORWARDED, At.AWAY
            case control_pb2.MOVE_STEP_BEGIN:
                if step.job > newest and queue not in self.here:
                    return Did.BEGUN, At.INCOMING
            case control_pb2.MOVE_STEP_FLOOR:
                if self._is(step, At.INCOMING):
                    self.ends[queue] = max(self.ends[queue], step.offset)
            case control_pb2.MOVE_STEP_ACTIVATE:
                if self._is(step, At.INCOMING):
                    return Did.ACTIVATED, At.HERE
            case control_pb2.MOVE_STEP_ABORT:
                if self._is(step, At.INCOMING) or (step.job > newest and queue not in self.here):
                    return Did.DROPPED, At.AWAY
        return nothing

    def _mirror_step(self, step: control_pb2.MoveQueue, queue: Queue) -> tuple[Did, At | None]:
        """The same for the queue of another cluster, as long as it is not promoted."""
        match step.step:
            case control_pb2.MOVE_STEP_MIRROR if queue not in self._mirrors:
                if queue not in self.here and queue not in self.places:
                    self._mirrors[queue] = step.mirror_epoch
                    return Did.BEGUN, At.INCOMING
            case control_pb2.MOVE_STEP_MIRROR:
                if step.mirror_epoch > self._mirrors[queue]:
                    self._mirrors[queue] = step.mirror_epoch
                    self._parts.pop(queue, None)
            case control_pb2.MOVE_STEP_FLOOR if self._goes_on(step):
                self.ends[queue] = max(self.ends[queue], step.offset)
            case control_pb2.MOVE_STEP_PART if self._goes_on(step):
                before = b"" if step.offset == 0 else self._parts.get(queue, b"")
                if step.offset == len(before):
                    self._parts[queue] = before + step.part
            case control_pb2.MOVE_STEP_SETTLE if self._goes_on(step):
                if (data := self.settles(step)) is not None:
                    self.settled[queue] = data
                self._parts.pop(queue, None)
            case control_pb2.MOVE_STEP_PROMOTE if self.promotes(step) is not None:
                del self._mirrors[queue], self.settled[queue]
                return Did.ACTIVATED, At.HERE
            case control_pb2.MOVE_STEP_UNMIRROR:
                self._forget(queue)
        return Did.NOTHING, None


def _queue(step: control_pb2.MoveQueue) -> Queue:
    return int(step.queue.topic_id), int(step.queue.queue_id)
