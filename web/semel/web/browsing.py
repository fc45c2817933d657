"""Reading a bounded piece of a topic: forwards from a place, or backwards from the newest.

How it works. A reader without a group reads up to a number of messages that fit, or until the
*budget* of messages, bytes and time is used up, and says how far it came: the *cursor*, the next
offset by queue. So a search through millions of messages is many short requests, each of which says
how much it has looked at, and none of which blocks anybody.

Backwards it reads windows in front of the cursor, each twice as large as the one before, and takes
the newest of all queues together: of each queue a suffix, so that nothing is left out between two
pages.

Invariant: pages that follow one another show each message that fits exactly once, in every queue in
the order of the offsets.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semel.client import AsyncClient, Message
from semel.client.admin.descriptions import QueueDescription, TopicDescription
from semel.protos.errors import InvalidRequest, TimedOut, UnknownQueue
from semel.protos.slots import slot_of_key

LIMIT: Final = 50
LIMIT_MAX: Final = 200
QUEUES_MAX: Final = 64
"""More queues are not read together: one has to be chosen."""
MESSAGES_MAX: Final = 20_000
BYTES_MAX: Final = 32 << 20
SECONDS_MAX: Final = 1.0
POLL_MESSAGES: Final = 500
POLL_S: Final = 0.5
SILENT_S: Final = 5.0
"""If nothing comes for so long, the cluster is away."""
FETCH_BYTES: Final = 1 << 20
WINDOW_MAX: Final = 5_000
_FEW: Final = 200
"""Number of messages that are looked at without a thread of their own."""

Cursor = dict[int, int]
"""The next offset by queue; backwards the end of what is left."""
Keeps = Callable[[Message], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one request has found."""

    messages: list[Message]
    scanned: int
    """Messages that were looked at."""
    left: int
    """Offsets that are left to look at, from the cursor on."""
    cursor: Cursor


class Budget:
    """How much one request may read."""

    def __init__(
        self,
        *,
        messages: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        seconds: float = SECONDS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages = messages
        self._bytes = bytes_max
        self._clock = clock
        self._ends_s = clock() + seconds

    def spend(self, messages: Sequence[Message]) -> None:
        """Notes what was read."""
        self._messages -= len(messages)
        self._bytes -= sum(len(message.value or b"") for message in messages)

    @property
    def left(self) -> bool:
        """Something may still be read."""
        return self._messages > 0 and self._bytes > 0 and self._clock() < self._ends_s


def parse_cursor(text: str) -> Cursor:
    """Returns the cursor that `print_cursor` wrote. Raises InvalidRequest."""
    found: Cursor = {}
    for part in filter(None, text.split(",")):
        queue, colon, offset = part.partition(":")
        if not (colon and queue.isdecimal() and offset.isdecimal() and len(part) < 40):
            raise InvalidRequest("the place in the address is not one of these pages")
        found[int(queue)] = int(offset)
    if len(found) > QUEUES_MAX:
        raise InvalidRequest(f"at most {QUEUES_MAX} queues are read together")
    return found


def print_cursor(cursor: Mapping[int, int]) -> str:
    """Returns the cursor as text for an address."""
    return ",".join(f"{queue}:{offset}" for queue, offset in sorted(cursor.items()))


def choose_queues(
    topic: TopicDescription, number: int | None, key: bytes | None
) -> list[QueueDescription]:
    """Returns the queues to read: one, those in which a key may be, or all. Raises UnknownQueue,
    and InvalidRequest for too many."""
    queues = topic.queues
    if number is not None:
        queues = [queue for queue in queues if queue.queue == number]
        if not queues:
            raise UnknownQueue(f"topic {topic.name!r} has no queue {number}")
    if key is not None:
        slot = slot_of_key(key)
        queues = [queue for queue in queues if queue.slot_start <= slot < queue.slot_end]
    if len(queues) > QUEUES_MAX:
        raise InvalidRequest(
            f"topic {topic.name!r} has {len(queues)} queues, and at most {QUEUES_MAX} are read"
            " together: choose one"
        )
    return queues


async def read_on(
    client: AsyncClient,
    topic: str,
    start: Cursor,
    ends: Cursor,
    keeps: Keeps | None,
    limit: int,
    budget: Budget,
) -> Found:
    """Reads forwards from `start`. Raises SemelError."""
    wanted = {queue: at for queue, at in start.items() if at < ends[queue]}
    cursor = dict(start)
    found: list[Message] = []
    scanned = 0
    if wanted:
        async with client.reader(
            topic,
            queues=list(wanted),
            start=wanted,
            end={queue: ends[queue] for queue in wanted},
            fetch_bytes=FETCH_BYTES,
            prefetch_bytes=4 * FETCH_BYTES,
            on_lost="skip",
        ) as reader:
            gives_up_s = time.monotonic() + SILENT_S
            while len(found) < limit and budget.left and not reader.finished:
                messages = await reader.poll(POLL_MESSAGES, POLL_S)
                budget.spend(messages)
                fit = await kept(messages, keeps)
                looked_at, fit = up_to(messages, fit, limit - len(found))
                scanned += looked_at
                found += fit
                at_end = {queue: ends[queue] for queue in wanted}  # behind gaps, too
                cursor |= at_end if reader.finished else reader.positions()
                for message in reversed(messages[looked_at:]):
                    cursor[message.queue] = message.offset
                if not messages and time.monotonic() > gives_up_s:
                    raise TimedOut(f"no message of {topic} came within {SILENT_S:g} s")
    return Found(messages=found, scanned=scanned, left=_between(cursor, ends), cursor=cursor)


async def read_back(
    client: AsyncClient,
    topic: str,
    starts: Cursor,
    before: Cursor,
    keeps: Keeps | None,
    limit: int,
    budget: Budget,
) -> Found:
    """Reads what is in front of `before`; the newest message is the first. Raises SemelError."""
    cursor = dict(before)
    tails: dict[int, list[Message]] = {queue: [] for queue in before}
    scanned, size = 0, max(limit, 1)
    while _between(starts, cursor) and budget.left:
        open_queues = [queue for queue, at in cursor.items() if at > starts[queue]]
        share = -(-size // len(open_queues))
        window = {queue: max(starts[queue], cursor[queue] - share) for queue in open_queues}
        ends = {queue: cursor[queue] for queue in open_queues}
        # A window is read whole or it does not count.
        got = await read_on(client, topic, window, ends, None, 1 << 30, _Whole())
        budget.spend(got.messages)
        scanned += got.scanned
        by_queue: dict[int, list[Message]] = {}
        for message in await kept(got.messages, keeps):
            by_queue.setdefault(message.queue, []).append(message)
        for queue, messages in by_queue.items():
            tails[queue] = messages + tails[queue]
        cursor |= window
        if sum(map(len, tails.values())) >= limit:
            break
        size = min(2 * size, WINDOW_MAX)
    newest = take_newest(tails, limit)
    for queue, messages in tails.items():
        if messages:  # some of them are left for the next page
            cursor[queue] = messages[-1].offset + 1
    return Found(messages=newest, scanned=scanned, left=_between(starts, cursor), cursor=cursor)


class _Whole(Budget):
    """No limit: a window is bounded by itself."""

    @property
    def left(self) -> bool:
        return True


def take_newest(tails: dict[int, list[Message]], limit: int) -> list[Message]:
    """Takes up to `limit` messages off the ends of the queues' lists, those with the latest times
    first."""
    heap = [(-messages[-1].timestamp_us, queue) for queue, messages in tails.items() if messages]
    heapq.heapify(heap)
    found: list[Message] = []
    while heap and len(found) < limit:
        _, queue = heapq.heappop(heap)
        messages = tails[queue]
        found.append(messages.pop())
        if messages:
            heapq.heappush(heap, (-messages[-1].timestamp_us, queue))
    return found


def up_to(messages: Sequence[Message], fit: list[Message], limit: int) -> tuple[int, list[Message]]:
    """Returns how many of the messages are looked at until `limit` of them fit, and those that
    do."""
    if len(fit) < limit:
        return len(messages), fit
    last = fit[limit - 1]
    return messages.index(last) + 1, fit[:limit]


async def kept(messages: Sequence[Message], keeps: Keeps | None) -> list[Message]:
    """Returns the messages that fit, without holding up the event loop."""
    if keeps is None:
        return list(messages)
    if len(messages) <= _FEW:
        return [message for message in messages if keeps(message)]
    return await asyncio.to_thread(lambda: [message for message in messages if keeps(message)])


def _between(starts: Mapping[int, int], ends: Mapping[int, int]) -> int:
    return sum(max(0, ends[queue] - start) for queue, start in starts.items() if queue in ends)
