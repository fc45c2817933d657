"""Commits of a consumer: progress made durable at the brokers, or in the user's own database.

How it works. Every call is about *spans* that the caller was given (`reading/outstanding.py`). A
span counts only while the lock under which it was given out is held. Otherwise it is lost, and the
caller is told. Messages to be retried or rejected are copied first (`dead_letters/retrying.py`).
Then follows the commit, under the token of the span.

With offsets in the user's database the brokers learn of progress afterwards, in the background: lag
and hand-overs depend on it, correctness does not. A lock that this finds lost is forgotten like any
other; messages given out under it meanwhile are recognised by their token.

Invariants
1. A commit carries the token under which its messages were given out. The broker, or the row in the
   database, refuses stale tokens.
2. Code after an await uses only values taken before it: a lock may be lost, and the queue acquired
   again, during any await.

Not here: SQL (`consumer/sql_offsets.py`, `api/sql_transaction.py`), which locks are held
(`consumer/locks.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from semel.client.consumer.locks import Locks
from semel.client.consumer.sql_offsets import Progress
from semel.client.consumer.start_offsets import StoredOffsets
from semel.client.dead_letters.retrying import Retrying
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.outstanding import Span
from semel.client.transport.cluster import Cluster
from semel.protos.errors import FencedError, InvalidRequest, LockLost, SemelError, from_detail
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

TELL_AGAIN_S: Final = 1.0
"""Pause after brokers did not answer a background report of progress."""
TOLD_TIMEOUT_S: Final = 1.0
"""Seconds for which a closing consumer waits for that report before it releases its locks."""


class Settled(NamedTuple):
    """The result of a commit."""

    committed: list[Span]
    lost: list[Span]
    """Spans whose lock is lost: another member gets their messages."""
    problem: SemelError | None
    """The error to raise. Spans in neither list may be committed again."""


class _Due(NamedTuple):
    """A span whose lock is held."""

    span: Span
    queue: FeedQueue
    to: int
    """The next offset to store: after the span, and after the offsets skipped right behind it."""


class Commits:
    """Progress of one member. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        locks: Locks,
        retrying: Retrying,
        stored: StoredOffsets | None,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._locks = locks
        self._retrying = retrying
        self._stored = stored
        self._behind: dict[FeedQueue, int] = {}
        """Progress that is stored in the user's database and not yet reported to the brokers."""
        self._telling: asyncio.Task[None] | None = None

    async def commit(self, spans: Sequence[Span]) -> Settled:
        """Makes spans durable, each by itself."""
        due, lost, problem = await self._prepare(spans)
        refused = await self.store({one.queue: one.to for one in due if one.to > one.queue.done})
        committed = [one for one in due if one.queue not in refused]
        for one in due:
            error = refused.get(one.queue)
            if error is not None:
                problem = error
                if isinstance(error, LockLost):
                    lost.append(one.span)
        self._on_durable({one.queue: one.to for one in committed})
        return Settled([one.span for one in committed], lost, problem)

    async def progress(self, spans: Sequence[Span]) -> list[Progress]:
        """Makes the copies and returns the progress for a transaction to store. All or nothing:
        results of messages that belong to another owner must not be stored.

        Raises LockLost and whatever copying raises.
        """
        assert self._stored is not None
        due, _, problem = await self._prepare(spans)
        if problem is not None:
            raise problem
        return [
            Progress(
                self._stored.place(one.queue),
                one.span.token,
                one.queue.done,
                max(one.queue.done, one.to),
            )
            for one in due
        ]

    def on_stored(self, progress: Iterable[Progress]) -> None:
        """A transaction has committed: reports its progress to the brokers in the background."""
        for place, token, _, offset in progress:
            key = QueueKey(TopicId(place.topic_id), QueueId(place.queue_id))
            queue = self._locks.find(key, token)
            if queue is not None:
                queue.done = max(queue.done, offset)
                self._retrying.on_stored(queue, offset)
                self._behind[queue] = offset
        self._locks.on_progress()
        if self._behind and (self._telling is None or self._telling.done()):
            self._telling = self._cluster.spawn(self._tell(), "semel-consumer-tell")

    async def _tell(self) -> None:
        while self._behind:
            behind, self._behind = self._behind, {}
            refused = await self.store(behind)
            self._on_durable(behind)
            for queue, error in refused.items():
                logger.info("brokers not told group=%s error=%s", self._group, error.message)
                if error.retriable and self._locks.holds(queue):
                    # Perhaps nothing else is ever stored in the queue, and others wait for its end.
                    self._behind.setdefault(queue, behind[queue])
            if refused and self._behind:
                await asyncio.sleep(TELL_AGAIN_S)

    async def told(self) -> None:
        """Returns once the background reports have reached the brokers, or the time is over."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=TOLD_TIMEOUT_S)

    async def store(self, offsets: Mapping[FeedQueue, int]) -> dict[FeedQueue, SemelError]:
        """Commits next offsets at the brokers, each under the token of its queue's lock. Returns
        the errors of those that are not, or perhaps not, committed."""
        by_group: dict[GroupId, list[tuple[FeedQueue, int]]] = {}
        for queue, offset in offsets.items():
            by_group.setdefault(queue.group_id, []).append((queue, offset))
        found = await asyncio.gather(
            *(self._store_at(group_id, some) for group_id, some in by_group.items())
        )
        return {queue: error for refused in found for queue, error in refused.items()}

    async def _store_at(
        self, group_id: GroupId, offsets: Sequence[tuple[FeedQueue, int]]
    ) -> dict[FeedQueue, SemelError]:
        request = broker_pb2.CommitRequest(group=self._group)
        for queue, offset in offsets:
            queue.tried = max(queue.tried, offset)
            commit = request.commits.add(
                queue=queue_ref(queue.key), token=queue.token, offset=offset
            )
            self._retrying.renew_record(commit, queue, offset)
        try:
            reply = await self._cluster.call_master(group_id, "Commit", request)
        except SemelError as error:
            return {queue: error for queue, _ in offsets}
        refused: dict[FeedQueue, SemelError] = {}
        for (queue, offset), outcome in zip(offsets, reply.outcomes, strict=True):
            refusal = from_detail(outcome.error) if outcome.HasField("error") else None
            if isinstance(refusal, InvalidRequest) and offset < queue.tried:
                # A broker refuses to lower the progress: a commit that was cancelled, or got no
                # answer, was carried out, and has reached further than this one.
                refusal = None
            if refusal is None:
                queue.done = max(queue.done, offset)
                continue
            refused[queue] = refusal
            if isinstance(refusal, LockLost):
                self._locks.on_lost(queue.key, queue.token)
        self._locks.on_progress()
        return refused

    # --- copies ---------------------------------------------------------------------------------

    async def _prepare(
        self, spans: Iterable[Span]
    ) -> tuple[list[_Due], list[Span], SemelError | None]:
        """Makes the copies. Returns spans that may be stored, spans that are lost, and an error.

        A queue whose copies failed is released and acquired again: the next acquisition finds out
        which copies are stored.
        """
        due: list[_Due] = []
        lost: list[Span] = []
        problem: SemelError | None = None
        for span in spans:
            queue = self._locks.find(span.key, span.token)
            if queue is None:
                lost.append(span)
                problem = _lost(span)
            else:
                due.append(_Due(span, queue, span.end))
        # Both before the await: a queue without notes may get some meanwhile.
        plain = [self._reach_of(one) for one in due if not self._retrying.noted(one.queue)]
        noted = [one for one in due if self._retrying.noted(one.queue)]
        results = await asyncio.gather(
            *(self._retrying.publish(one.queue, one.to) for one in noted), return_exceptions=True
        )
        ready: list[_Due] = []
        for one, result in [*((one, one.to) for one in plain), *zip(noted, results, strict=True)]:
            held = self._locks.holds(one.queue)
            if isinstance(result, int) and held:
                ready.append(one._replace(to=result))
                continue
            if isinstance(result, SemelError) and held and not isinstance(result, FencedError):
                problem = result
            elif isinstance(result, (int, SemelError)):
                problem = _lost(one.span)  # its copies end with the lock, whatever they say of that
            else:
                raise result
            lost.append(one.span)
            self._locks.on_lost(one.queue.key, one.queue.token)
        return ready, lost, problem

    def _reach_of(self, one: _Due) -> _Due:
        return one._replace(to=self._retrying.covered(one.queue, one.to))

    def _on_durable(self, offsets: Mapping[FeedQueue, int]) -> None:
        for queue, to in offsets.items():
            self._retrying.on_committed(queue, to)


def _lost(span: Span) -> LockLost:
    return LockLost(
        f"the lock of queue {span.key.queue_id} of topic {span.topic!r} was lost with offsets"
        f" {span.start} to {span.end} uncommitted; they are delivered again"
    )
