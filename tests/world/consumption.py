"""Checks consumer groups by the log, and by what members are granted and given.

How it works. A model of locks and progress follows the committed entries, one record after the
other, and each node's state is compared with it wherever the node has applied something. What
members are granted and given is looked at when it reaches them.

Invariants
1. A token has one owner over all broker groups, and a member is granted only what a log granted it.
2. Under a token messages come in order and without a gap, beginning at the progress at which the
   token was granted: nothing is skipped, and what a former owner has committed is not processed
   again.
3. A commit counts under the current token of a held lock only, whatever the broker thought of it.
4. A commit that was staged with a transaction counts in the entry that gives the transaction's
   messages their offsets, and at no other time. It never takes progress back, unless it says so.
   Whoever acquires the lock with `drop_staged` ends it, and waits while it is pinned.

Not here: what is staged (`staged_progress.py`), the sequence table (`folded.py`), the same at the
end of a run (`tests/checking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2
from tests.checking.history import Delivered, Granted
from tests.world import staged_progress
from tests.world.staged_progress import Place, Queues, StagedError, StagedProgress

Seen = tuple[int, str, int] | None
"""Token, owner, committed offset; None: the group is deleted."""


class ConsumptionError(AssertionError):
    """A group has skipped something, or may process it twice."""


class Told:
    """What members were granted and given, over all broker groups of a run."""

    def __init__(self) -> None:
        self.starts: dict[QueueKey, int] = {}
        """First offset of each queue that is not trimmed."""
        self.sealed: dict[tuple[QueueKey, int], _Sealed] = {}
        """What a queue that moves had when it was sealed, by queue and job."""
        self._granted: dict[tuple[Place, int], tuple[str, int]] = {}
        """The owner that the log names, and the progress that it was given, by token."""
        self._owners: dict[tuple[Place, int], str] = {}
        """The client that was told that the token is its own, by token."""
        self._following: dict[tuple[Place, int], int] = {}

    def on_token(self, place: Place, token: int, owner: str, committed: int) -> None:
        """Notes a token that a log grants. Raises ConsumptionError if it was granted before."""
        if (place, token) in self._granted:
            raise ConsumptionError(f"token {token} of {place} is granted a second time")
        self._granted[place, token] = owner, committed

    def on_restored(
        self,
        key: QueueKey,
        job: int,
        end: int,
        floor: int,
        groups: Mapping[str, tuple[int, str, int]],
    ) -> None:
        """A queue of a lost cluster is about to come, with its end and what groups had of it."""
        locks = {group: _Lock(*seen) for group, seen in groups.items()}
        self.sealed[key, job] = _Sealed(end, floor, locks)

    def on_granted(self, note: Granted) -> None:
        """Raises ConsumptionError."""
        place = note.group, QueueKey(TopicId(note.queue[0]), QueueId(note.queue[1]))
        granted = self._granted.get((place, note.token))
        if granted is None:
            raise ConsumptionError(f"{note} is a grant that no log holds")
        if self._owners.setdefault((place, note.token), note.client) != note.client:
            raise ConsumptionError(f"{note}: the token is {self._owners[place, note.token]}'s")
        low, high = max(granted[1], 0), max(granted[1], self.starts.get(place[1], 0))
        if not low <= note.committed_offset <= high:
            raise ConsumptionError(f"{note} begins where progress stood at {granted[1]}")
        self._following.setdefault((place, note.token), note.committed_offset)

    def on_delivered(self, note: Delivered) -> None:
        """Raises ConsumptionError."""
        place = note.group, QueueKey(TopicId(note.queue[0]), QueueId(note.queue[1]))
        if self._owners.get((place, note.token)) != note.client:
            raise ConsumptionError(f"{note} reached another than the token's owner")
        due = self._following[place, note.token]
        if not (note.offset == due or due < note.offset <= self.starts.get(place[1], 0)):
            raise ConsumptionError(f"{note} came where offset {due} was due")
        self._following[place, note.token] = note.offset + 1


@dataclass(slots=True)
class _Lock:
    token: int = 0
    owner: str = ""
    committed: int = -1
    generation: int = 0

    @property
    def seen(self) -> Seen:
        return self.token, self.owner, self.committed


@dataclass(frozen=True, slots=True)
class _Sealed:
    end: int
    floor: int
    locks: dict[str, _Lock]
    """By consumer group."""


class Consumption:
    """All consumer groups, as the log of one broker group has them."""

    def __init__(self, told: Told) -> None:
        self.refused_commits = 0
        self.published = 0
        """Commits that publications have stored."""
        self.told = told
        self._locks: dict[Place, _Lock] = {}
        self._ends: dict[QueueKey, int] = {}
        self._floors: dict[QueueKey, int] = {}
        """Highest token that a deleted group had: a group that begins anew gets higher ones."""
        self._frozen: set[QueueKey] = set()
        self._parents: dict[QueueKey, QueueKey] = {}
        """The parent of each queue that a split made."""
        self.staged = StagedProgress(
            Queues(
                is_here=self._ends.__contains__,
                is_frozen=self._frozen.__contains__,
                is_split=lambda key: key in self._parents.values(),
            )
        )
        """Progress that waits for its transaction."""
        self.stagers: dict[int, staged_progress.Seen] = {}
        """Stagers that have changed since `take_stagers` was called, as they are now."""

    # --- what is committed, in the order of the log

    def on_queue(self, key: QueueKey) -> None:
        self._ends.setdefault(key, 0)

    def on_queue_gone(self, key: QueueKey) -> None:
        self._ends.pop(key, None)
        self._note(self.staged.on_queue_gone(key))

    def on_split(self, split: control_pb2.SplitQueue) -> None:
        """A group that has read the parent begins the children at their start, when it has read all
        of the parent. The first split of a queue counts."""
        parent = key_of(split.queue)
        if parent in self._parents.values():
            return
        for number in split.children:
            child = QueueKey(parent.topic_id, QueueId(number.queue_id))
            self._parents[child] = parent
            self._ends[child] = 0
            for group, key in list(self._locks):
                if key == parent:
                    self._locks[group, child] = _Lock(committed=0)

    @property
    def committed(self) -> int:
        """What all groups have committed of all queues, added up."""
        return sum(lock.committed for lock in self._locks.values())

    def progress(self, group: str, key: QueueKey) -> int:
        """What a group has committed of a queue; -1 for nothing."""
        lock = self._locks.get((group, key))
        return -1 if lock is None else lock.committed

    def on_child(self, child: QueueKey, parent: QueueKey) -> None:
        """A queue comes from another cluster, where a split has made it."""
        self._parents[child] = parent

    def on_sealed(self, key: QueueKey, job: int) -> dict[Place, Seen]:
        """A queue begins to move: its locks have ended, and nothing changes in it."""
        locks = self._locks_of(key)
        for lock in locks.values():
            lock.owner = ""
        self._frozen.add(key)
        copies = {group: replace(lock) for group, lock in locks.items()}
        self.told.sealed[key, job] = _Sealed(self._ends[key], self._floors.get(key, 0), copies)
        return {(group, key): lock.seen for group, lock in locks.items()}

    def on_goes_on(self, key: QueueKey) -> None:
        """A move was given up."""
        self._frozen.discard(key)

    def on_forwarded(self, key: QueueKey) -> dict[Place, Seen]:
        """A queue has left this broker group, with all progress. It may come back without a group
        that was deleted meanwhile."""
        self._frozen.discard(key)
        del self._ends[key]
        self._floors.pop(key, None)
        places = [(group, key) for group in self._locks_of(key)]
        for place in places:
            del self._locks[place]
        self._note(self.staged.on_queue_gone(key))
        return dict.fromkeys(places)

    def on_activated(self, key: QueueKey, job: int, copied: int) -> dict[Place, Seen]:
        """A queue has come with `copied` messages and all progress. Raises ConsumptionError."""
        sealed = self.told.sealed[key, job]
        if sealed.end != copied:
            raise ConsumptionError(
                f"queue {key} is activated with copies up to {copied}, and was sealed at"
                f" {sealed.end}"
            )
        self._ends[key], self._floors[key] = sealed.end, sealed.floor
        for group, lock in sealed.locks.items():
            self._locks[group, key] = replace(lock)
        return {(group, key): lock.seen for group, lock in sealed.locks.items()}

    def _locks_of(self, key: QueueKey) -> dict[str, _Lock]:
        return {group: lock for (group, queue), lock in self._locks.items() if queue == key}

    def _unread(self, group: str, key: QueueKey) -> bool:
        """Whether the group has not committed all of a queue that this one descends from."""
        while (parent := self._parents.get(key)) is not None:
            key = parent
            end = self._ends.get(parent, 0)
            lock = self._locks.get((group, parent))
            if self.told.starts.get(parent, 0) < end and (lock is None or lock.committed < end):
                return True
        return False

    def on_batch(self, key: QueueKey, count: int) -> None:
        self._ends[key] += count

    def on_trim(self, key: QueueKey, start: int) -> None:
        starts = self.told.starts
        starts[key] = max(starts.get(key, 0), start)

    def on_record(self, record: control_pb2.ControlRecord) -> dict[Place, Seen]:
        """What the record has changed."""
        match record.WhichOneof("record"):
            case "acquire_lock":
                return self._acquire(record.acquire_lock)
            case "release_lock":
                place = record.release_lock.group, key_of(record.release_lock.queue)
                lock = self._locks.get(place)
                if lock is not None and lock.token == record.release_lock.token:
                    lock.owner = ""
                    return {place: lock.seen}
            case "reset_offset":
                return self._reset(record.reset_offset)
            case "commit_offsets":
                commits = record.commit_offsets
                places = [(commits.group, key_of(one.queue)) for one in commits.commits]
                for place, one in zip(places, commits.commits, strict=True):
                    self._commit(place, one)
                return {place: self._locks[place].seen for place in places if place in self._locks}
            case "delete_group":
                named = {key_of(queue) for queue in record.delete_group.queues}
                return self._delete(record.delete_group.group, named)
            case "feature_level":
                self.staged.level = record.feature_level.level
        return {}

    def take_stagers(self) -> dict[int, staged_progress.Seen]:
        """The stagers that the entry has changed, as they are now."""
        taken, self.stagers = self.stagers, {}
        return taken

    def _note(self, numbers: Iterable[int]) -> None:
        self.stagers |= self.staged.seen(numbers)

    def on_step(
        self, step: transaction_records_pb2.TransactionRecord, now_us: int
    ) -> dict[Place, Seen]:
        """What the step of a transaction has changed. Raises ConsumptionError."""
        staged = self.staged
        match step.WhichOneof("step"):
            case "open_stager":
                staged.on_open(step.open_stager, now_us)
            case "stage_commits":
                self._note(staged.on_commits(step.stage_commits, now_us, self._may_stage))
            case "pin":
                self._note(staged.on_pin(step.pin))
            case "drop_pin":
                return self._ended(staged.places(step.drop_pin), staged.on_drop_pin(step.drop_pin))
            case "drop_stagers":
                places = staged.places(step.drop_stagers)
                return self._ended(places, staged.on_drop_stagers(step.drop_stagers, now_us))
            case "publish":
                return self._publish(step.publish)
        return {}

    def _ended(self, places: Iterable[Place], numbers: Iterable[int]) -> dict[Place, Seen]:
        """Stagers have ended, and the progress that they may have had is where it was."""
        self._note(numbers)
        return {place: self._locks[place].seen for place in places if place in self._locks}

    def _may_stage(self, place: Place, commit: transaction_records_pb2.StagedCommit) -> bool:
        lock = self._locks.get(place)
        if lock is None or not lock.owner or lock.token != commit.token:
            self.refused_commits += 1
            return False
        least = 0 if commit.may_lower else lock.committed
        return place[1] in self._ends and least <= commit.offset <= self._ends[place[1]]

    def _publish(self, record: transaction_records_pb2.PublishTransaction) -> dict[Place, Seen]:
        for part in record.parts:
            self.on_batch(key_of(part.queue), part.messages)
        try:
            winners = self.staged.on_publish(record)
        except StagedError as error:
            raise ConsumptionError(str(error)) from None
        touched: dict[Place, Seen] = {}
        for number, commits in winners:
            self._note([number])
            for place in sorted(commits):
                lock, commit = self._locks.get(place), commits[place]
                if lock is not None and (commit.may_lower or commit.offset >= lock.committed):
                    lock.committed = commit.offset
                    touched[place] = lock.seen
                    self.published += 1
        return touched

    def _delete(self, group: str, only: set[QueueKey]) -> dict[Place, Seen]:
        self._note(self.staged.on_group_deleted(group, only))
        places = [
            place for place in self._locks if place[0] == group and (not only or place[1] in only)
        ]
        for place in places:
            token = self._locks.pop(place).token
            self._floors[place[1]] = max(self._floors.get(place[1], 0), token)
        return dict.fromkeys(places)

    def _lock(self, place: Place) -> _Lock:
        """The group's lock on the queue, or a new one."""
        return self._locks.get(place) or _Lock(token=self._floors.get(place[1], 0))

    def _acquire(self, record: control_pb2.AcquireLock) -> dict[Place, Seen]:
        place = record.group, key_of(record.queue)
        lock = self._lock(place)
        if (
            place[1] not in self._ends
            or place[1] in self._frozen
            or 0 < record.generation < lock.generation
            or lock.owner not in ("", record.member_id)
            or (self._unread(*place) and not record.beside_parents)
            or (record.drop_staged and self.staged.is_pinned(place))
        ):
            return {}
        if record.drop_staged:
            self._note(self.staged.on_place_dropped(place))
        self._locks[place] = lock
        lock.token += 1
        lock.owner = record.member_id
        lock.generation = max(lock.generation, record.generation)
        self.told.on_token(place, lock.token, lock.owner, lock.committed)
        return {place: lock.seen}

    def _reset(self, record: control_pb2.ResetOffset) -> dict[Place, Seen]:
        place = record.group, key_of(record.queue)
        end = self._ends.get(place[1])
        if end is None or place[1] in self._frozen or not 0 <= record.offset <= end:
            return {}
        lock = self._locks[place] = self._lock(place)
        lock.token += 1
        lock.owner, lock.committed = "", record.offset
        return {place: lock.seen}

    def _commit(self, place: Place, commit: control_pb2.QueueCommit) -> None:
        lock = self._locks.get(place)
        current = lock is not None and lock.owner != "" and lock.token == commit.token
        if lock is None or not current or place[1] not in self._ends:
            self.refused_commits += 1
            return
        least = 0 if commit.may_lower else max(0, lock.committed)
        if least <= commit.offset <= self._ends[place[1]]:
            lock.committed = commit.offset  # -1: about metadata alone


def key_of(ref: common_pb2.QueueRef) -> QueueKey:
    return queue_key_of(ref)
