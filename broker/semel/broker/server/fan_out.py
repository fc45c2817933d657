"""Many readers that wait at the end of one queue: each reply is built once, and written to all.

How it works. A standing poll without a consumer group that waits for its queues to grow joins the
*crowd* of each of them. When a queue grows its crowd is served in a row: the first poll at an
offset has the reply built, the others at the same offset get the same bytes behind a head of their
own. No task wakes for it, and no timer is set. A reader that keeps up costs one write.

A crowd is served some polls at a time, and the loop does other work in between: the next message
of a producer does not wait until 200 readers have the last one. After a round that took its time
the crowd rests for as long, so it takes half of the loop at most; nearly all of that are the
kernel's sends. A queue that grows meanwhile is served again from where each poll is then: readers
get more messages at a time, and not more replies, when many of them wait or messages are many.

A poll leaves the crowd, and its own task goes on, for whatever else: its bytes or its time are used
up, a quota limits it, its client does not read, what it wants is not in the tail cache, the queue
was split or moved away, or this node is not the master any more.

Invariants
1. A reply is written whole, in one step, and only to a stream that is not full.
2. A poll is in a crowd only while its task waits, and nobody else moves its offsets then.
3. Replies are kept until the next round of the crowd, and at most `_REPLIES_MAX` of them.

Not here: polls that are answered one by one (`server/fetch.py`), one queue's part of a reply
(`server/queue_reader.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from semel.broker.replica.clock import monotonic_us
from semel.broker.replica.fetch_waiters import Growth, QueueWatchers, finish
from semel.broker.server.queue_reader import QueueReader
from semel.protos.errors import SemelError
from semel.protos.ids import QueueKey
from semel.protos.metrics import Histogram
from semel.protos.streams import FetchReplies
from semel.protos.v1 import broker_pb2

SLICE: Final = 16
"""Polls that are served before the loop does other work: a quarter of a millisecond of sends."""
_REPLIES_MAX: Final = 4
"""More offsets than that are hardly ever wanted in one round."""
_REST_US_MIN: Final = 1_000
"""After a round that took less, no rest: timers are hardly more exact."""
BYTES_MAX: Final = 64 << 10
"""Larger replies are for the poll's own task, which waits until they have left."""


class FanOutNode(Protocol):
    """The node, as this module needs it."""

    def check_master(self) -> None: ...

    @property
    def watchers(self) -> QueueWatchers: ...


class CrowdPoll(Protocol):
    """A standing poll that waits."""

    @property
    def request(self) -> broker_pb2.FetchRequest: ...

    @property
    def deadline(self) -> float: ...

    @property
    def limited(self) -> bool:
        """A quota may limit what is read."""
        ...

    standing: int
    ended: bool


class CrowdOutlet(Protocol):
    """The stream of a poll."""

    def write_now(self, reply: bytes) -> bool:
        """Writes a reply; False, and nothing is written, if that might have to wait."""
        ...


class FanOutCounters(Protocol):
    """Totals of all streams."""

    messages: int
    bytes: int
    seconds: Histogram


class _Member(NamedTuple):
    """A poll in the crowd of one queue."""

    poll: CrowdPoll
    wanted: broker_pb2.FetchQueue
    """What it wants of the queue."""
    out: CrowdOutlet
    waits: Growth
    """What its task waits for."""


class _Reply(NamedTuple):
    """What polls at one offset get."""

    replies: FetchReplies
    next_offset: int
    messages: int
    size: int
    """Bytes of the stored batches."""


class FanOut:
    """The crowds of all queues of a node."""

    def __init__(
        self, node: FanOutNode, reader: QueueReader, counters: FanOutCounters, bytes_max: int
    ) -> None:
        """A reply has at most `bytes_max` bytes of batches, and at most `BYTES_MAX`."""
        self.node = node
        self.reader = reader
        self.counters = counters
        self.bytes_max = min(bytes_max, BYTES_MAX)
        self._crowds: dict[QueueKey, _Crowd] = {}

    @contextmanager
    def joined(
        self, poll: CrowdPoll, keys: Sequence[QueueKey], out: CrowdOutlet, waits: Growth
    ) -> Iterator[None]:
        """The poll is in the crowds of its queues, of which there is nothing new. `waits` is done
        when its task is to look again."""
        for key, wanted in zip(keys, poll.request.queues, strict=True):
            crowd = self._crowds.get(key)
            if crowd is None:
                crowd = self._crowds[key] = _Crowd(self, key)
            crowd.members[waits] = _Member(poll, wanted, out, waits)
        try:
            yield
        finally:
            for key in keys:
                crowd = self._crowds[key]
                crowd.members.pop(waits, None)
                if not crowd.members:
                    crowd.close()
                    del self._crowds[key]


class _Crowd:
    """The polls that wait for one queue."""

    def __init__(self, fan_out: FanOut, key: QueueKey) -> None:
        self.members: dict[Growth, _Member] = {}
        """In order of arrival."""
        self._fan_out = fan_out
        self._key = key
        self._round: deque[Growth] = deque()
        """Those that are still to be served in this round."""
        self._serving: asyncio.Handle | None = None
        self._again = False
        """The queue has grown since this round began."""
        self._spent_us = 0
        """What this round has taken so far."""
        self._rested_us = 0
        """Monotonic time from which on the next round may begin."""
        self._replies: dict[tuple[int, int, int], _Reply] = {}
        self._grown = self._watch()

    def close(self) -> None:
        """The crowd is empty."""
        self._fan_out.node.watchers.unwatch([self._key], self._grown)
        self._grown.cancel()
        if self._serving is not None:
            self._serving.cancel()

    def _watch(self) -> Growth:
        grown = self._fan_out.node.watchers.watch([self._key])
        grown.add_done_callback(self._on_grown)
        return grown

    def _on_grown(self, grown: Growth) -> None:
        watchers = self._fan_out.node.watchers
        watchers.unwatch([self._key], grown)
        if grown.cancelled() or not self.members:
            return
        self._grown = self._watch()
        if self._serving is not None:
            self._again = True
        else:
            self._begin_rested()

    def _begin_rested(self) -> None:
        """Begins a round, at once or when the crowd has rested."""
        left_us = self._rested_us - monotonic_us()
        if left_us > 0:
            self._serving = asyncio.get_running_loop().call_later(left_us / 1e6, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._again = False
        self._spent_us = 0
        self._replies.clear()
        self._round.extend(self.members)
        self._serve()

    def _serve(self) -> None:
        """Serves the next polls of the round."""
        began_us = monotonic_us()
        self._serving = None
        is_master = self._is_master()
        for _ in range(min(SLICE, len(self._round))):
            member = self.members.get(self._round.popleft())
            if member is None:
                continue  # it has left
            may_answer = is_master or member.poll.request.any_replica
            if not (may_answer and self._answer(member)):
                finish(member.waits)
        ended_us = monotonic_us()
        self._spent_us += ended_us - began_us
        if self._round:
            self._serving = asyncio.get_running_loop().call_soon(self._serve)
            return
        if self._spent_us >= _REST_US_MIN:
            self._rested_us = ended_us + self._spent_us
        if self._again:
            self._serving = asyncio.get_running_loop().call_soon(self._begin_rested)

    def _is_master(self) -> bool:
        try:
            self._fan_out.node.check_master()
        except SemelError:
            return False
        return True

    def _answer(self, member: _Member) -> bool:
        """Writes one reply, if the queue has something for the poll; False if its task has to look
        after that, or if nothing more is to follow."""
        poll, wanted = member.poll, member.wanted
        if poll.ended or member.waits.done():
            return True  # another queue of the poll was served last
        if self._fan_out.reader.nothing_for(wanted, self._key):
            return True
        if poll.limited:
            return False
        reply = self._reply(wanted, poll.request.max_bytes)
        if reply is None:
            return False
        standing = poll.standing - reply.size
        more = standing > 0 and asyncio.get_running_loop().time() < poll.deadline
        if not member.out.write_now(reply.replies.to(poll.request.correlation_id, more=more)):
            return False
        wanted.offset = reply.next_offset
        poll.standing = standing
        poll.ended = not more
        counters = self._fan_out.counters
        counters.messages += reply.messages
        counters.bytes += reply.size
        return more

    def _reply(self, wanted: broker_pb2.FetchQueue, max_bytes: int) -> _Reply | None:
        """The reply to polls that are where this one is; None if it is not for the crowd."""
        most = self._fan_out.bytes_max
        room = min(max_bytes or most, wanted.max_bytes or most, most)
        end = self._fan_out.reader.end_of(self._key)
        place = wanted.offset, room, end
        known = self._replies.get(place)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = self._fan_out.reader.read_cached(wanted, self._key, room)
        size = 0 if found is None else sum(map(len, found.batches))
        if found is None or size > BYTES_MAX:
            return None
        made = _Reply(
            FetchReplies(found.result, found.batches),
            found.next_offset,
            found.next_offset - wanted.offset,
            size,
        )
        self._fan_out.counters.seconds.observe(loop.time() - began_s)
        if len(self._replies) >= _REPLIES_MAX:
            del self._replies[next(iter(self._replies))]
        self._replies[place] = made
        return made
