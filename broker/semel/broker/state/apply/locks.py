"""Consumer groups: the progress and the fenced lock of each (group, queue).

How it works. Everything is decided here, at apply, with the same result on every node: who holds
the lock of a queue, which token is current, which commit counts. There is no clock here. The master
notices that an owner is gone and proposes a ReleaseLock record (`state/lock_clock.py`).

Invariants
1. The tokens of a (group, queue) only rise, also if the group is deleted and created again. Every
   grant and every reset raises the token.
2. A commit counts only under the current token, and only while that lock is held.
3. Only a reset lowers the progress, or the holder's commit if it says so (`may_lower`).
4. Progress that was staged with a transaction is stored at its publication, whoever holds the lock
   by then; it is lowered only if the commit says so.
5. Metadata is that of the newest commit under the newest token, by the owner's own version numbers,
   so a commit that arrives late does not replace newer metadata. Metadata outlives a reset: the
   work that it describes is done or under way, wherever the group continues.

Not here: members and assignment (the controller), timeouts (`state/lock_clock.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from semel.broker.state.apply.codec import Reader, pack_bytes, pack_text
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import (
    CommitOutcome,
    LockGranted,
    LockRefused,
    OffsetReset,
    Released,
)
from semel.broker.state.apply.staged_commits import StagedCommit
from semel.protos.errors import (
    InvalidRequest,
    LockLost,
    OffsetOutOfRange,
    ParentUnread,
    QueueLocked,
    SemelError,
    StaleGeneration,
    UnknownQueue,
)
from semel.protos.ids import QueueKey
from semel.protos.levels import METADATA_LEVEL
from semel.protos.v1 import control_pb2, transaction_records_pb2

METADATA_ONLY: Final = -1
"""Stands in place of the offset in a commit that is about metadata alone."""
_FIXED: Final = struct.Struct("<QIqQQII")
_VERSION: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")


@dataclass(slots=True, kw_only=True)
class GroupQueue:
    """The state of one group on one queue. Only `ConsumerGroups` changes it."""

    committed_offset: int = -1
    """The next offset to read; -1 if the group never committed here."""
    token: int
    """The newest token that was given out; it is current while `owner` is set."""
    owner: str = ""
    """The member that holds the lock; empty if nobody does."""
    generation: int = 0
    """The highest generation that was granted the lock."""
    lock_ms: int = 0
    session_ms: int = 0
    metadata: bytes = b""
    """What the group stores beside the offset."""
    metadata_version: int = 0
    """The owner's version number of the metadata; 0 if it is from an earlier owner."""


class ConsumerGroups:
    """All consumer groups of one broker group."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueKey, GroupQueue]] = {}

    def lookup(self, group: str, key: QueueKey) -> GroupQueue | None:
        """The live state of one group on one queue, to read only."""
        return self._groups.get(group, {}).get(key)

    @property
    def count(self) -> int:
        """The number of groups that have any state here."""
        return len(self._groups)

    def has(self, group: str) -> bool:
        """Whether the group has any state here."""
        return group in self._groups

    def names(self) -> list[str]:
        """The groups that have any state here, sorted."""
        return sorted(self._groups)

    def states(self, group: str | None = None) -> Iterator[tuple[str, QueueKey, GroupQueue]]:
        """The states of all groups, or of one group, by group, then queue."""
        for name in self.names() if group is None else [group]:
            queues = self._groups.get(name, {})
            for key in sorted(queues):
                yield name, key, queues[key]

    def copy_of(self, group: str) -> list[tuple[QueueKey, GroupQueue]]:
        """The states of one group in no particular order, safe to walk while the state changes."""
        return list(self._groups.get(group, {}).items())

    def held(self) -> Iterator[tuple[str, QueueKey, GroupQueue]]:
        """The states whose lock somebody holds."""
        return (state for state in self.states() if state[2].owner)

    def _at(self, group: str, queue: QueueState) -> GroupQueue:
        queues = self._groups.setdefault(group, {})
        if queue.key not in queues:
            queues[queue.key] = GroupQueue(token=queue.token_floor)
        return queues[queue.key]

    def inherit(self, key: QueueKey, children: list[QueueState]) -> None:
        """Prepares the children of a split for the groups that have read the parent.

        They begin the children at their start, however they begin queues that are new to them.
        """
        for group, queues in self._groups.items():
            if key in queues:
                for child in children:
                    self._at(group, child).committed_offset = 0

    def acquire(
        self,
        record: control_pb2.AcquireLock,
        key: QueueKey,
        queue: QueueState | None,
        unread: ParentUnread | None,
        barred: SemelError | None = None,
    ) -> LockGranted | LockRefused:
        """Grants the lock under a new token if it is free, or if the member holds it already.

        Refuses with `barred` if a move prevents it, and with `unread` if an ancestor of the queue
        is not read to its end.
        """
        error = barred
        state = self.lookup(record.group, key)
        if error is not None:
            pass
        elif queue is None:
            error = unknown_queue(key)
        elif not record.member_id:
            error = InvalidRequest("a lock needs a member_id")
        elif state is not None and 0 < record.generation < state.generation:
            error = StaleGeneration(
                f"generation {record.generation} of group {record.group!r} is over;"
                f" {state.generation} is known for queue {key.queue_id}"
            )
        elif state is not None and state.owner not in ("", record.member_id):
            error = QueueLocked(
                f"queue {key.queue_id} is locked by {state.owner!r} of group {record.group!r}",
                owner=state.owner,
            )
        elif unread is not None:
            error = unread
        if error is not None or queue is None:
            assert error is not None
            return LockRefused(group=record.group, queue_key=key, error=error)
        state = self._at(record.group, queue)
        state.token += 1
        state.owner = record.member_id
        state.generation = max(state.generation, record.generation)
        state.lock_ms = record.lock_ms
        state.session_ms = record.session_ms
        state.metadata_version = 0
        return LockGranted(
            group=record.group,
            queue_key=key,
            member_id=record.member_id,
            token=state.token,
            committed_offset=state.committed_offset,
            lock_ms=state.lock_ms,
            session_ms=state.session_ms,
            metadata=state.metadata,
        )

    def release(self, record: control_pb2.ReleaseLock, key: QueueKey) -> Released:
        """Releases the lock if it is held under this token."""
        state = self.lookup(record.group, key)
        released = state is not None and bool(state.owner) and state.token == record.token
        if state is not None and released:
            state.owner = ""
        return Released(group=record.group, queue_key=key, token=record.token, released=released)

    def commit(
        self,
        group: str,
        key: QueueKey,
        queue: QueueState | None,
        commit: control_pb2.QueueCommit,
        *,
        moved: bool = False,
        level: int = METADATA_LEVEL,
    ) -> CommitOutcome:
        """Stores the progress of the lock's holder. A queue that was `moved` away has no holder."""
        token, offset = commit.token, commit.offset
        has_metadata = level >= METADATA_LEVEL and commit.HasField("metadata")
        only_metadata = has_metadata and offset == METADATA_ONLY
        state = self.judge(group, key, queue, commit, moved=moved, only_metadata=only_metadata)
        if isinstance(state, SemelError):
            return CommitOutcome(key, offset, token, state)
        if not only_metadata:
            state.committed_offset = offset
        if has_metadata and commit.metadata_version > state.metadata_version:
            state.metadata = commit.metadata
            state.metadata_version = commit.metadata_version
        return CommitOutcome(key, offset, token, None)

    def judge(
        self,
        group: str,
        key: QueueKey,
        queue: QueueState | None,
        commit: control_pb2.QueueCommit | transaction_records_pb2.StagedCommit,
        *,
        moved: bool,
        only_metadata: bool = False,
    ) -> GroupQueue | SemelError:
        """What a commit changes, or why its sender may not commit."""
        token, offset = commit.token, commit.offset
        state = self.lookup(group, key)
        if queue is None and not moved:
            return unknown_queue(key)
        if queue is None or state is None or not state.owner or state.token != token:
            current = state.token if state is not None and state.owner else 0
            return LockLost(
                f"token {token} of group {group!r} for queue {key.queue_id} is not current"
                f" ({current})",
                current_token=current,
            )
        if not only_metadata and not 0 <= offset <= queue.log_end_offset:
            return _out_of_range(queue, offset)
        if not only_metadata and offset < state.committed_offset and not commit.may_lower:
            return InvalidRequest(
                f"group {group!r} has committed {state.committed_offset} of queue {key.queue_id};"
                f" {offset} needs a reset"
            )
        return state

    def commit_staged(self, group: str, key: QueueKey, commit: StagedCommit) -> bool:
        """Stores progress that was staged; False if it would be lowered, or the group is gone.

        Metadata that a later holder of the lock has stored stays.
        """
        state = self.lookup(group, key)
        if state is None or (commit.offset < state.committed_offset and not commit.may_lower):
            return False
        state.committed_offset = commit.offset
        if commit.metadata is not None:
            if state.token == commit.token and commit.metadata_version > state.metadata_version:
                state.metadata = commit.metadata
                state.metadata_version = commit.metadata_version
            elif not state.metadata_version:
                state.metadata = commit.metadata
        return True

    def reset(
        self, record: control_pb2.ResetOffset, key: QueueKey, queue: QueueState | None
    ) -> OffsetReset:
        """Sets the progress to any offset, unlocks, and raises the token to fence the owner."""
        error: SemelError | None = None
        token = 0
        if queue is None:
            error = unknown_queue(key)
        elif not 0 <= record.offset <= queue.log_end_offset:
            error = _out_of_range(queue, record.offset)
        else:
            state = self._at(record.group, queue)
            state.token += 1
            state.owner = ""
            state.committed_offset = record.offset
            token = state.token
        return OffsetReset(group=record.group, queue_key=key, token=token, error=error)

    def remove_group(
        self, group: str, queues: dict[QueueKey, QueueState], only: Collection[QueueKey] = ()
    ) -> int:
        """Deletes a group, on `only` these queues if any are named, and returns how many queues
        knew it.

        A new group of the same name starts above the tokens of this one.
        """
        states = self._groups.get(group, {})
        removed = [key for key in states if not only or key in only]
        for key in removed:
            queues[key].token_floor = max(queues[key].token_floor, states.pop(key).token)
        if not states:
            self._groups.pop(group, None)
        return len(removed)

    def release_all(self, key: QueueKey) -> None:
        """Releases every lock of a queue; the tokens stay as they are."""
        for queues in self._groups.values():
            if key in queues:
                queues[key].owner = ""

    def only(self, key: QueueKey) -> ConsumerGroups:
        """The groups of one queue; it shares their states."""
        made = ConsumerGroups()
        made._groups = {
            group: {key: queues[key]} for group, queues in self._groups.items() if key in queues
        }
        return made

    def adopt(self, key: QueueKey, other: ConsumerGroups) -> None:
        """Takes over the states of a queue that was moved here."""
        for group, queues in other._groups.items():
            if key in queues:
                self._groups.setdefault(group, {})[key] = queues[key]

    def remove_queue(self, key: QueueKey) -> None:
        """Removes a queue from all groups."""
        for group in list(self._groups):
            self._groups[group].pop(key, None)
            if not self._groups[group]:
                del self._groups[group]

    @property
    def has_metadata(self) -> bool:
        """Whether any group has metadata, which needs the format of `METADATA_LEVEL`."""
        return any(state.metadata for _, _, state in self.states())

    def parts(self, *, metadata: bool) -> list[bytes]:
        """Canonical bytes by group, then queue; `metadata` is in them from version 6 on."""
        states = list(self.states())
        parts = [_COUNT.pack(len(states))]
        for group, key, state in states:
            fixed = _FIXED.pack(
                key.topic_id,
                key.queue_id,
                state.committed_offset,
                state.token,
                state.generation,
                state.lock_ms,
                state.session_ms,
            )
            parts.append(fixed + pack_text(group) + pack_text(state.owner))
            if metadata:
                parts.append(_VERSION.pack(state.metadata_version) + pack_bytes(state.metadata))
        return parts

    @classmethod
    def read_parts(cls, reader: Reader, *, metadata: bool) -> ConsumerGroups:
        """The inverse of `parts`. Raises CorruptSegment."""
        groups = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, queue_id, committed, token, generation, lock_ms, session_ms = reader.unpack(
                _FIXED
            )
            queues = groups._groups.setdefault(reader.text(), {})
            state = queues[QueueKey(topic_id, queue_id)] = GroupQueue(
                committed_offset=committed,
                token=token,
                owner=reader.text(),
                generation=generation,
                lock_ms=lock_ms,
                session_ms=session_ms,
            )
            if metadata:
                (state.metadata_version,) = reader.unpack(_VERSION)
                state.metadata = reader.bytes()
        return groups


def unknown_queue(key: QueueKey) -> UnknownQueue:
    """The error for a queue that this broker group does not have."""
    return UnknownQueue(f"queue {key.queue_id} of topic {key.topic_id:#x} is not here")


def _out_of_range(queue: QueueState, offset: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"offset {offset} does not exist in queue {queue.key.queue_id} of {queue.topic!r}",
        log_start_offset=queue.log_start_offset,
        log_end_offset=queue.log_end_offset,
    )
