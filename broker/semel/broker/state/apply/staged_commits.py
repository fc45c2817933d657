"""Progress of consumer groups that is staged with a transaction: what a stager holds of it.

How it works. A staged commit is judged like an ordinary one when it is staged, and stored at the
publication of the transaction, in the same entry that gives messages their offsets. In between it
is held beside the stager's batches, by consumer group and queue; the last one counts.

Invariants
1. What comes late changes nothing: a commit that its group has numbered (`metadata_version`) is not
   replaced by one with a lower number under the same token.

Format. docs/formats/state.md.

Not here: stagers and pins (`staging.py`), who may commit (`locks.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sized
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader, pack_bytes, pack_text
from semel.broker.state.apply.queues import QueueState
from semel.protos.errors import CorruptSegment, InvalidRequest, SemelError
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import transaction_records_pb2

COMMIT_BYTES: Final = 200
"""What a staged commit costs in memory beside its texts."""
COMMITS_BYTES_MAX: Final = 64 << 20
"""What staged commits may cost on a broker group. They are in each checkpoint of its state."""
_COUNT: Final = struct.Struct("<I")
_COMMIT: Final = struct.Struct("<QIQqQI")
_HAS_METADATA, _MAY_LOWER = 1, 2

Place = tuple[str, QueueKey]
"""A consumer group and a queue."""


class StagedCommit(NamedTuple):
    """Progress that the publication stores."""

    token: int
    """The token of the lock under which it was staged."""
    offset: int
    metadata: bytes | None
    metadata_version: int
    may_lower: bool

    @classmethod
    def of(cls, commit: transaction_records_pb2.StagedCommit) -> StagedCommit:
        """The commit of a record."""
        metadata = commit.metadata if commit.HasField("metadata") else None
        return cls(commit.token, commit.offset, metadata, commit.metadata_version, commit.may_lower)

    def is_later_than(self, other: StagedCommit) -> bool:
        """Whether it was certainly made later, whichever of the two arrived first."""
        return (self.token, self.metadata_version) > (other.token, other.metadata_version)


def cost_of(group: str, metadata: Sized | None) -> int:
    """What a staged commit costs in memory, about."""
    return COMMIT_BYTES + len(group) + len(metadata or b"")


def cost_of_record(record: transaction_records_pb2.StageCommits) -> int:
    """What the commits of a record cost if all are granted."""
    return sum(cost_of(record.group, commit.metadata) for commit in record.commits)


class StagedPlaces:
    """Which stagers have progress of each consumer group and queue, and what all of it costs.

    Follows from the stagers, and so is in no checkpoint.
    """

    __slots__ = ("_stagers", "cost")

    def __init__(self) -> None:
        self.cost = 0
        self._stagers: dict[Place, list[int]] = {}

    def add(self, stager_id: int, place: Place, commit: StagedCommit) -> None:
        """Counts a commit of a stager that has none at the place."""
        self.cost += cost_of(place[0], commit.metadata)
        self._stagers.setdefault(place, []).append(stager_id)

    def remove(self, stager_id: int, place: Place, commit: StagedCommit) -> None:
        """The inverse of `add`."""
        self.cost -= cost_of(place[0], commit.metadata)
        stagers = self._stagers[place]
        stagers.remove(stager_id)
        if not stagers:
            del self._stagers[place]

    def at(self, place: Place) -> list[int]:
        """The stagers that have progress there."""
        return list(self._stagers.get(place, ()))


def unstageable(commit: transaction_records_pb2.StagedCommit) -> SemelError | None:
    """Why a commit cannot be staged, whatever the state; None if it can."""
    if commit.offset >= 0:
        return None
    return InvalidRequest(
        f"a staged commit of queue {commit.queue.queue_id} has the offset {commit.offset}"
    )


def left_queue(places: Iterable[Place], queues: Mapping[QueueKey, QueueState]) -> Place | None:
    """A place whose queue is about to leave this broker group; None if all stay."""
    for place in places:
        queue = queues.get(place[1])
        if queue is None or queue.frozen:
            return place
    return None


def pack_commits(session: int, commits: Mapping[Place, StagedCommit]) -> bytes:
    """Canonical bytes of a stager's session and commits, by consumer group, then queue."""
    parts = [_COUNT.pack(session), _COUNT.pack(len(commits))]
    for group, key in sorted(commits):
        commit = commits[group, key]
        flags = _HAS_METADATA * (commit.metadata is not None) | _MAY_LOWER * commit.may_lower
        parts.append(
            _COMMIT.pack(
                key.topic_id,
                key.queue_id,
                commit.token,
                commit.offset,
                commit.metadata_version,
                flags,
            )
        )
        parts.append(pack_text(group))
        if commit.metadata is not None:
            parts.append(pack_bytes(commit.metadata))
    return b"".join(parts)


def read_commits(reader: Reader) -> tuple[int, dict[Place, StagedCommit]]:
    """The inverse of `pack_commits`. Raises CorruptSegment."""
    (session,) = reader.unpack(_COUNT)
    commits: dict[Place, StagedCommit] = {}
    for _ in range(reader.unpack(_COUNT)[0]):
        topic_id, queue_id, token, offset, version, flags = reader.unpack(_COMMIT)
        if flags & ~(_HAS_METADATA | _MAY_LOWER):
            raise CorruptSegment(f"state has a staged commit with the flags {flags}")
        group = reader.text()
        metadata = reader.bytes() if flags & _HAS_METADATA else None
        commits[group, QueueKey(TopicId(topic_id), QueueId(queue_id))] = StagedCommit(
            token, offset, metadata, version, bool(flags & _MAY_LOWER)
        )
    return session, commits
