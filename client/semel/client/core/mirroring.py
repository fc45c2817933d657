"""What a mirror asks next of a queue's source, and what it brings to the target.

How it works. `QueueMirror` holds what the target said last: how far the copy is. Everything follows
from that and from the newest answer of the source, so a mirror that begins anew goes on where the
copy ends. Its turns alternate:

    next_read → (the source) → on_read → (the target) → on_written

A slice (all that is known of a queue besides its messages) is asked for from time to time; one that
is larger than an answer comes in pieces, and is begun anew if the source does not have it any more.

`TopicMirror` holds the queues of a topic, and says which slices have to wait: that of a queue that
was split settles after those of its children, and splits settle in the order of the numbers that
they gave. So the queues that a promotion sees are numbered from 0 on, and own every slot once. A
queue that has no slice yet, and was split in its turn, need not keep to that order: its parent
waits for it, and no promotion sees it before.

Invariants
1. The target gets nothing that was not asked for from where its copy ends.
2. The slice of a queue that was split is brought only if all its children have one.

Not here: calls (`mirror/topic_copy.py`), what brokers do with them (the broker's
`state/apply/mirrored.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import controller_pb2, mirrors_pb2
from semel.protos.v1.metadata_pb2 import MirroredQueue, MirroredTopic

POLL_S: Final = 0.1
"""How long to wait after an answer that reached the source's end; twice as long after each further
one that tells nothing, up to `settle_s`."""
READ_BYTES_MAX: Final = 4 << 20
READ_BYTES_MIN: Final = 64 << 10
"""Bytes to ask for: fewer after a failure, which a slow link may have been, then more again."""


@dataclass(slots=True)
class _Slice:
    """A slice of which pieces are still to come."""

    digest: bytes
    length: int
    offset: int
    """Where the next piece begins."""
    ordinal_to: int
    time_us: int
    child_ids: tuple[int, ...]


@dataclass(slots=True)
class QueueMirror:
    """One queue. All times are monotonic seconds of the mirror, unless they end in `_us`."""

    key: QueueKey
    cluster_id: str
    """Id of the source."""
    settle_s: float
    """A slice is asked for about so often."""
    parent: int | None = None
    status: mirrors_pb2.MirroredQueueStatus | None = None
    """What the target said last; None: it has to be asked."""
    settled: bool = False
    """There is a slice that would be promoted."""
    settled_end: int = 0
    """Where the queue ends by it."""
    source_end: int = 0
    """Where the source's queue ended, as far as it was told."""
    source_us: int = 0
    """The source's time when it was told."""
    current_us: int = 0
    """What would be promoted is what the source had at this time of its own."""
    delayed_left: int = 0
    """Bytes of delayed batches that are not copied, as far as told."""
    child_ids: tuple[int, ...] = ()
    """The queues that its split made, by the settled slice."""
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Ids and epochs of named producers that were met and that the target was not told."""
    due: float = 0.0
    """When the next turn is due."""
    trouble: str = ""
    """Why the newest turn failed; empty: it did not."""
    _told_at: float = 0.0
    """When the source was asked last."""
    _bytes: int = READ_BYTES_MAX
    _idle_s: float = POLL_S
    _settle_due: float = 0.0
    _coming: _Slice | None = None

    @property
    def lag(self) -> int:
        """How many messages of the source a promotion would not have, as far as is known."""
        return max(0, self.source_end - self.settled_end)

    def lag_s(self, now: float) -> float | None:
        """How old what would be promoted is; None if nothing would be, or nobody was asked."""
        if not self.settled or not self.source_us:
            return None
        return max(0, self.source_us - self.current_us) / 1_000_000 + max(0.0, now - self._told_at)

    def on_begun(self, status: mirrors_pb2.MirroredQueueStatus) -> None:
        """The target says where the copy is; the source is asked from there."""
        self._take(status)
        if status.settled_child_ids:
            self.child_ids = tuple(status.settled_child_ids)
        self._coming = None

    def _take(self, status: mirrors_pb2.MirroredQueueStatus) -> None:
        self.status = status
        self.settled, self.settled_end = bool(status.settled_digest), status.settled_end_offset
        self.current_us = max(self.current_us, status.settled_us)

    def next_read(self, now: float) -> mirrors_pb2.ReadMirroredRequest:
        """What to ask the source."""
        status, coming = self.status, self._coming
        assert status is not None, "the target was asked"
        request = mirrors_pb2.ReadMirroredRequest(
            cluster_id=self.cluster_id, queue=queue_ref(self.key)
        )
        if coming is not None:
            request.slice_digest, request.slice_offset = coming.digest, coming.offset
            return request
        request.offset, request.ordinal = status.log_end_offset, status.ordinal
        request.max_bytes = self._bytes
        request.slice_wanted = now >= self._settle_due or not self.settled
        request.settled_digest = status.settled_digest
        return request

    def on_read(
        self, now: float, read: mirrors_pb2.ReadMirroredReply, *, may_settle: bool
    ) -> mirrors_pb2.ReadMirroredReply | None:
        """What to bring to the target; None: nothing.

        `may_settle` says whether a slice that names `read.child_ids` may be settled now.
        """
        coming, self.trouble = self._coming, ""
        self._bytes = min(READ_BYTES_MAX, 2 * self._bytes)
        if coming is not None:
            return self._on_piece(now, coming, read)
        assert self.status is not None, "the target was asked"
        self.source_end, self.source_us = read.log_end_offset, read.source_time_us
        self._told_at = now
        self.delayed_left = read.delayed_bytes_left
        for producer in read.producers:
            self.producers[producer.name] = producer.producer_id, producer.epoch
        told = sum(map(len, read.batches)) + sum(map(len, read.delayed))
        self._idle_s = POLL_S if told or read.slice_bytes else min(2 * self._idle_s, self.settle_s)
        if read.slice_digest or not told:
            self.due = now + self._idle_s
        if read.slice_digest:
            self._settle_due = now + self.settle_s
            if read.slice_digest == self.status.settled_digest:
                self.current_us = read.source_time_us
        if read.slice_bytes and not may_settle:
            read.slice_part, read.slice_digest, read.slice_bytes = b"", b"", 0
        if read.slice_bytes:
            self._coming = _Slice(
                read.slice_digest,
                read.slice_bytes,
                len(read.slice_part),
                read.ordinal_to,
                read.source_time_us,
                tuple(read.child_ids),
            )
        moved = read.log_start_offset > self.status.log_start_offset
        return read if told or moved or read.slice_digest else None

    def _on_piece(
        self, now: float, coming: _Slice, read: mirrors_pb2.ReadMirroredReply
    ) -> mirrors_pb2.ReadMirroredReply | None:
        if read.slice_digest != coming.digest or not read.slice_part:
            self._coming = None  # the source has another master by now: begin anew
            self._settle_due = now
            return None
        coming.offset += len(read.slice_part)
        read.ordinal_to, read.source_time_us = coming.ordinal_to, coming.time_us
        return read

    def on_written(self, status: mirrors_pb2.MirroredQueueStatus) -> None:
        """The target has taken what was brought."""
        coming = self._coming
        self._take(status)
        if coming is not None and coming.offset == coming.length:
            self._coming = None
            if status.settled_digest == coming.digest:
                self.child_ids, self.current_us = coming.child_ids, coming.time_us

    def on_failed(self, now: float, wait_s: float, trouble: str) -> None:
        """A call failed, so that nobody knows whether it took effect: the target is asked anew."""
        self.status, self._coming = None, None
        self.trouble = trouble
        self._bytes = max(READ_BYTES_MIN, self._bytes // 4)
        self._settle_due = now
        self.due = now + wait_s


class TopicMirror:
    """The queues of one topic, as its source told of it last."""

    def __init__(self, route: controller_pb2.TopicRoute, cluster_id: str, settle_s: float) -> None:
        self.name = route.name
        self.topic_id = route.topic_id
        self.settings = route.settings
        self.queues: list[QueueMirror] = []
        """By number."""
        self.groups: dict[int, int] = {}
        """The broker group of each queue at the source."""
        self.children: dict[int, list[int]] = {}
        """The queues that splits made, by the one that was split."""
        self.problem = ""
        """Why it cannot be copied now; empty: it can."""
        self._cluster_id = cluster_id
        self._settle_s = settle_s

    def on_route(self, route: controller_pb2.TopicRoute) -> list[MirroredQueue]:
        """All queues as the target's controllers are told of them.

        Of two splits at once the later one may be told first: what it made waits for the numbers
        below it.
        """
        self.settings = route.settings
        found = {queue.queue_id: queue for queue in (*route.queues, *route.sealed)}
        self.groups = {number: queue.group_id for number, queue in found.items()}
        self.children = {}
        for number, queue in sorted(found.items()):
            if queue.HasField("parent_id"):
                self.children.setdefault(queue.parent_id, []).append(number)
        told: list[MirroredQueue] = []
        while len(told) in found:
            queue = found[len(told)]
            parent = queue.parent_id if queue.HasField("parent_id") else None
            told.append(
                MirroredQueue(
                    queue_id=queue.queue_id,
                    slot_start=queue.slot_start,
                    slot_end=queue.slot_end,
                    parent_id=parent,
                )
            )
            if len(told) > len(self.queues):
                key = QueueKey(route.topic_id, queue.queue_id)  # type: ignore[arg-type]
                self.queues.append(
                    QueueMirror(key, self._cluster_id, self._settle_s, parent=parent)
                )
        return told

    def may_settle(self, child_ids: Sequence[int]) -> bool:
        """Whether the slice of a queue that was split into these may be settled."""
        if not child_ids:
            return True
        if any(number >= len(self.queues) for number in child_ids):
            return False
        if not all(self.queues[number].settled for number in child_ids):
            return False
        split = self.queues[child_ids[0]].parent
        assert split is not None, "a split has made it"
        queue = self.queues[split]
        if queue.parent is not None and not queue.settled:
            return True  # no promotion sees it before its own parent's split has settled
        earlier = (number for number, made in self.children.items() if min(made) < min(child_ids))
        return all(self.queues[number].child_ids for number in earlier)

    @property
    def lag(self) -> int:
        """How many messages of the source a promotion would not have, as far as is known."""
        return sum(queue.lag for queue in self.queues)

    @property
    def trouble(self) -> str:
        """Why the newest turn of a queue failed; empty: none did."""
        return next((queue.trouble for queue in self.queues if queue.trouble), "")

    def lag_s(self, now: float) -> float | None:
        """How old the oldest of what would be promoted is; None if a queue would be missing."""
        ages = [queue.lag_s(now) for queue in self.queues]
        if not ages or None in ages:
            return None
        return max(age for age in ages if age is not None)


def promotion(
    topic: MirroredTopic, statuses: Iterable[mirrors_pb2.MirroredQueueStatus]
) -> list[MirroredQueue]:
    """The queues of a topic that are promoted, by number, each with its slice; those that a split
    made which is not settled are none of them. Raises InvalidRequest if one has no slice."""
    known = {status.queue.queue_id: status for status in statuses}
    wanted = [queue.queue_id for queue in topic.queues if not queue.HasField("parent_id")]
    made = {}
    for number in wanted:  # it grows
        status = known.get(number)
        if status is not None and status.promoted:
            made[number] = topic.queues[number]  # as it was decided
            wanted.extend(topic.queues[number].child_ids)
            continue
        if status is None or not status.settled_digest:
            raise InvalidRequest(
                f"queue {number} of topic {topic.topic.name!r} is not copied whole yet: nothing can"
                " be promoted of it. Wait for the mirror, or drop the topic"
            )
        wanted.extend(status.settled_child_ids)
        given = topic.queues[number]
        made[number] = MirroredQueue(
            queue_id=number,
            slot_start=given.slot_start,
            slot_end=given.slot_end,
            parent_id=given.parent_id if given.HasField("parent_id") else None,
            child_ids=status.settled_child_ids,
            digest=status.settled_digest,
            log_end_offset=status.settled_end_offset,
            source_time_us=status.settled_us,
            delayed_messages=status.delayed_messages,
            groups=status.groups,
            producers=len(status.producers),
        )
    for number in range(len(made)):
        if number not in made:  # a mirror was about to settle several splits, one behind the other
            raise InvalidRequest(
                f"queue {number} of topic {topic.topic.name!r} is not copied whole yet, and later"
                " ones are. Wait for the mirror, or drop the topic"
            )
    return [made[number] for number in sorted(made)]
