"""The intake of a producer: any thread appends messages, which wait here for the I/O thread.

How it works. Each topic has one *open* chunk, which grows by a few list appends per message, and a
queue of *sealed* chunks. Beginning or sealing a chunk wakes the I/O thread; a single message does
not. The I/O thread takes a sealed chunk when it can send it, and the open chunk when its linger
time is over. All messages of a chunk are due at the same time: a message with another due time
seals the open chunk, and bulk calls are sorted by due time.

A caller that waits for room releases the lock. Meanwhile the topic may be deleted and forgotten.
Its intake is then marked as forgotten, and the caller continues with the intake that has the
topic's name now.

Invariants
1. A message is in exactly one chunk, and chunks leave in the order in which they were begun.
2. `buffered` counts every message that was appended and is not settled. It exceeds `buffer_bytes`
   by at most one message (or one bulk piece), except for asyncio callers, which must not be
   blocked. All producers of a client share a second limit, which is checked once per chunk.
3. After `close` or `fail` no message is accepted.
4. A chunk stays in `outstanding` until it is settled, at its deadline at the latest, wherever it
   waits. So nothing needs to know all the places where messages wait.

Not here: routing (`core/batching.py`), sending (`producer/producer.py`), the limit that all
producers share (`producer/memory.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, NamedTuple

import numpy as np

from semel.client.config import ProducerConfig
from semel.client.core.batching import (
    NO_QUEUE,
    ROW_BYTES,
    Chunk,
    Rows,
    cuts,
    message_sizes,
    take_rows,
)
from semel.client.core.dues import AT_ONCE, Run, bulk_runs
from semel.client.core.fields import (
    INT64_MAX,
    Headers,
    as_bytes,
    as_pairs,
    check_null_value,
    check_queue,
    check_time,
)
from semel.client.core.message_ids import NOT_COMPARED
from semel.client.producer.memory import ProducerMemory
from semel.client.transport.runtime import IO_THREAD
from semel.protos.batch import MESSAGE_BYTES_MAX
from semel.protos.columns import Columns
from semel.protos.errors import BufferFull, Closed, InvalidRequest, MessageTooLarge

SEAL_BYTES_MAX: Final = 4 << 20
"""Size limit in bytes of a chunk whose rows go to several queues, before it is routed."""


class Piece(NamedTuple):
    """A range of a bulk call's messages that goes into one chunk."""

    columns: Columns
    positions: Rows | None
    size: int
    due_us: int
    rows: Rows | None = None
    """Numbers of the messages in the call; None: they follow those of the piece before."""
    context: bytes | None = None
    """What each batch carries for all its messages."""
    settlement: Any = None  # what `append_piece` of a client that traces needs


class TopicIntake:
    """Messages of one topic that the I/O thread has not taken yet."""

    __slots__ = (
        "forgotten",
        "id_rules",
        "last_position",
        "message_bytes_max",
        "name",
        "open",
        "opened",
        "seal_bytes",
        "seal_bytes_routed",
        "sealed",
    )

    def __init__(self, name: str, batch_bytes: int) -> None:
        self.name = name
        self.open: Chunk | None = None
        self.sealed: deque[Chunk] = deque()
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.id_rules = NOT_COMPARED
        self.seal_bytes = batch_bytes
        self.seal_bytes_routed = batch_bytes
        """For chunks whose rows go to several queues."""
        self.last_position = -1
        self.opened = False
        """Limits and rules are the topic's own, and not the defaults."""
        self.forgotten = False
        """The topic was deleted: nothing takes what would be appended here."""

    @property
    def waiting(self) -> bool:
        return self.open is not None or bool(self.sealed)


class Intake:
    """The intake of one producer."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        wake: Callable[[], None],
        open_topic: Callable[[str], object] | None,
        memory: ProducerMemory | None = None,
    ) -> None:
        """`wake` is called from any thread. `open_topic` may block; it is called before the first
        message of a topic is appended. `memory` is shared by all producers of the client."""
        self._config = config
        self._positions = config.source_positions
        self._wake = wake
        self._woken = False
        self._open_topic = open_topic
        self._topics: dict[str, TopicIntake] = {}
        """All topics from which the I/O thread takes chunks."""
        self._opened: dict[str, TopicIntake] = {}
        """The topics that need not be opened before a message is appended."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._limit = config.buffer_bytes
        self._memory = memory or ProducerMemory()
        self._told = 0
        """The value of `buffered` that `_memory` was told last."""
        self._timeout = config.delivery_timeout_ms / 1000
        self._failure: Exception | None = None
        self.told = False
        """A caller was told the failure."""
        self.buffered = 0
        self.outstanding: dict[int, Chunk] = {}
        """Chunks that are not settled, by identity, oldest first."""
        self._released = 0
        """Number of messages in settled chunks."""

    # --- any thread -----------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        timestamp_us: int | None,
        queue: int | None,
        position: int | None,
        block: bool,
        due_us: int = AT_ONCE,
        message_id: bytes | None = None,
    ) -> tuple[Chunk, int]:
        """Appends one message and returns its chunk and row. `rare_fields` gives the last two.

        Raises InvalidRequest, MessageTooLarge, BufferFull, Closed, or the producer's failure.
        """
        intake = self._opened.get(topic)
        if intake is None:
            intake = self._begin_topic(topic)
        if value is None:
            check_null_value(key)
            size = 0
        else:
            if type(value) is not bytes:
                value = as_bytes("value", value)
            size = len(value)
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes("key", key)
            size += len(key)
        if headers is not None:
            headers, header_bytes = as_pairs(headers)
            size += header_bytes
        if timestamp_us is not None:
            check_time(timestamp_us)
        if queue is not None:
            check_queue(queue)
        if size > intake.message_bytes_max:
            raise MessageTooLarge(
                f"message of {size} bytes for topic {topic!r}; the limit is"
                f" {intake.message_bytes_max}",
                limit_bytes=intake.message_bytes_max,
            )
        size += ROW_BYTES
        if message_id is not None:
            rules, id_bytes = intake.id_rules, len(message_id)
            if not 0 < id_bytes <= rules.bytes_max or rules.groups > 1:
                rules.check_one(message_id, key, queue)
            size += id_bytes
        with self._lock:
            if self._failure is not None:
                self.told = True
                raise self._failure.with_traceback(None)
            chunk = intake.open
            begins = chunk is None or due_us != chunk.due_us
            if self.buffered >= self._limit or (begins and self._crowded):
                self._wait_for_room(block)
            if intake.forgotten:
                intake = self._intake_of(topic)
            if self._positions or position is not None:
                self._check_position(intake, position)
            chunk, wake = intake.open, False
            if chunk is None or due_us != chunk.due_us:
                chunk, wake = self._begin(intake, due_us), True
            if chunk.message_ids is not None:
                chunk.message_ids.append(message_id)
            elif message_id is not None:
                chunk.message_ids = [None] * chunk.count
                chunk.message_ids.append(message_id)
            row = chunk.count
            chunk.values.append(value)
            if chunk.keys is not None:
                chunk.keys.append(key)
            elif key is not None:
                chunk.keys = [None] * row
                chunk.keys.append(key)
            if headers is not None or chunk.headers is not None:
                _append(chunk, "headers", headers or (), ())
            if timestamp_us is not None or chunk.timestamps is not None:
                stamp = chunk.created_us if timestamp_us is None else timestamp_us
                _append(chunk, "timestamps", stamp, chunk.created_us)
            if queue != chunk.queues:  # one number as long as all go to one queue
                _mix_queues(chunk, queue)
            if position is not None:
                chunk.positions.append(position)
                intake.last_position = position
            chunk.count = row + 1
            chunk.bytes += size
            self.buffered += size
            if chunk.bytes >= intake.seal_bytes and (
                chunk.bytes >= intake.seal_bytes_routed
                or not (self._positions or self._by_key(intake, chunk))
            ):
                intake.sealed.append(chunk)
                intake.open = None
                wake = True
                self._tell()
            if wake and not self._woken:
                self._woken = True
            else:
                wake = False
        if wake:
            self._wake()
        return chunk, row

    def bulk_pieces(
        self,
        topic: str,
        values: Any,
        keys: Any,
        headers: Any,
        timestamps_us: Any,
        positions: Any,
        deliver_at: Any = None,
        message_ids: Any = None,
    ) -> tuple[TopicIntake, list[Piece]]:
        """Checks many messages and cuts them into pieces of about one chunk and one due time.

        Raises like `append`, before any message is appended.
        """
        intake = self._opened.get(topic)
        if intake is None:
            intake = self._begin_topic(topic)
        columns = Columns.from_arrow(
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps_us,
            message_ids=message_ids,
        )
        count = len(columns)
        numbers = None if positions is None else _numbers(positions, count)
        order, runs = None, [Run(AT_ONCE, 0, count)]
        if deliver_at is not None:
            now_us, in_place = time.time_ns() // 1000, positions is not None
            order, runs = bulk_runs(deliver_at, count, now_us, in_place=in_place)
        if (numbers is not None) != self._positions and count:
            self._check_position(intake, None if numbers is None else int(numbers[0]))
        if not count:
            return intake, []
        sizes = message_sizes(columns)
        row = int(np.argmax(sizes))
        largest = int(sizes[row])
        if largest > intake.message_bytes_max:
            raise MessageTooLarge(
                f"message {row} of the call has {largest} bytes;"
                f" the limit for topic {topic!r} is {intake.message_bytes_max}",
                limit_bytes=intake.message_bytes_max,
            )
        if columns.message_ids is not None:
            sizes += intake.id_rules.check_many(columns.message_ids, columns.keys, False)
        if order is not None:
            columns, sizes = take_rows(columns, order), sizes[order]
        routed = self._positions or self._by_key(intake, columns)
        limit = intake.seal_bytes_routed if routed else intake.seal_bytes
        ends = np.concatenate(([0], np.cumsum(sizes + ROW_BYTES)))
        return intake, [
            Piece(
                columns.slice(start, end),
                None if numbers is None else numbers[start:end],
                int(ends[end] - ends[start]),
                run.due_us,
                None if order is None else order[start:end],
            )
            for run in runs
            for start, end in cuts(ends, run.start, run.end, limit)
        ]

    def append_piece(
        self,
        intake: TopicIntake,
        piece: Piece,
        queue: int | None,
        block: bool,
    ) -> tuple[Chunk, int, int]:
        """Appends one piece of a bulk call; returns its chunk, first row and end. Raises like
        `append`."""
        columns, positions, size, due_us = piece[:4]
        with self._lock:
            if self._failure is not None:
                self.told = True
                raise self._failure.with_traceback(None)
            if self.buffered >= self._limit or self._crowded:
                self._wait_for_room(block)
            if intake.forgotten:
                intake = self._intake_of(intake.name)
            if positions is not None:
                self._check_position(intake, int(positions[0]))
                intake.last_position = int(positions[-1])
            chunk = self._begin(intake, due_us)
            intake.open = None
            intake.sealed.append(chunk)
            chunk.values = columns.values
            chunk.keys = columns.keys
            chunk.headers = columns.headers
            chunk.timestamps = columns.timestamps
            chunk.message_ids = columns.message_ids
            chunk.positions = positions
            chunk.context = piece.context
            chunk.queues = queue
            chunk.count = len(columns)
            chunk.bytes = size
            self.buffered += size
            self._tell()
            wake = not self._woken
            self._woken = True
        if wake:
            self._wake()
        return chunk, 0, chunk.count

    def on_bulk_given_up(self, pieces: Sequence[Piece], error: BaseException) -> None:
        """Hears which pieces of a bulk call are not appended. A no-op unless it traces."""

    @property
    def messages(self) -> int:
        """Number of messages appended so far, summed over chunks: a counter per message is slow."""
        with self._lock:
            return self._released + sum(chunk.count for chunk in self.outstanding.values())

    def snapshot(self) -> list[Chunk]:
        """Returns the chunks that are not settled."""
        with self._lock:
            return list(self.outstanding.values())

    def failure(self) -> Exception | None:
        """Returns why no message is accepted any more, or None."""
        return self._failure

    def shut(self) -> None:
        """Accepts no further message; messages appended so far stay on their way."""
        with self._room:
            if self._failure is None:
                self._failure = Closed("the producer is closed")
            self._room.notify_all()

    # --- the I/O thread -------------------------------------------------------------------------

    def on_woken(self) -> list[TopicIntake]:
        """Returns the topics with chunks to take; later messages call `wake` again."""
        with self._lock:
            self._woken = False
            return [intake for intake in self._topics.values() if intake.waiting]

    def take(self, intake: TopicIntake, *, open_too: bool) -> Chunk | None:
        """Takes the next chunk of a topic; the open one only with `open_too`."""
        with self._lock:
            if intake.sealed:
                return intake.sealed.popleft()
            if open_too and intake.open is not None:
                chunk = intake.open
                intake.open = None
                self._tell()
                return chunk
            return None

    def release(self, chunk: Chunk) -> None:
        """Frees the bytes of a chunk that is settled."""
        others: list[threading.Condition] = []
        with self._room:
            if self.outstanding.pop(id(chunk), None) is not None:
                self.buffered -= chunk.bytes
                self._released += chunk.count
                others = self._tell()
                self._room.notify_all()
        for room in others:
            if room is not self._room:
                with room:
                    room.notify_all()

    def has_room(self) -> bool:
        """The buffer has room. The limit of all producers counts only against a producer that
        buffers something: without that it has no acknowledgement to wait for."""
        return self.buffered < self._limit and not (self.buffered and self._crowded)

    def fail(self, error: Exception) -> list[Chunk]:
        """Accepts no further message and returns the chunks that were not taken yet."""
        with self._room:
            if self._failure is None:
                self._failure = error
            left: list[Chunk] = []
            for intake in self._topics.values():
                left += intake.sealed
                intake.sealed.clear()
                if intake.open is not None:
                    left.append(intake.open)
                    intake.open = None
            self._room.notify_all()
            return left

    def expired(self, now: float) -> list[Chunk]:
        """Returns the chunks past their deadline, wherever they wait. Nothing takes them from here
        any more, and nothing is appended to them."""
        with self._lock:
            found = list(takewhile(lambda chunk: chunk.deadline <= now, self.outstanding.values()))
            for chunk in found:
                if chunk.parts is None:
                    self._withdraw(chunk)
            return found

    # --- inside ---------------------------------------------------------------------------------

    @property
    def _crowded(self) -> bool:
        """All producers of the client together hold too much for this one to accept more."""
        return not self._memory.has_room(self.buffered)

    def _tell(self) -> list[threading.Condition]:
        """Reports the buffered bytes to `_memory`, once per chunk, with the lock held. Returns the
        conditions to notify once the lock is released."""
        change, self._told = self.buffered - self._told, self.buffered
        return self._memory.add(change)

    @staticmethod
    def _by_key(intake: TopicIntake, given: Chunk | Columns) -> bool:
        """Keys, or ids that are compared, may send the rows to several queues."""
        compared = intake.id_rules.compared and given.message_ids is not None
        return compared or given.keys is not None

    def _begin(self, intake: TopicIntake, due_us: int) -> Chunk:
        """Begins the chunk that takes the next messages; the one before is complete."""
        if intake.open is not None:
            intake.sealed.append(intake.open)
        deadline = time.monotonic() + self._timeout
        chunk = Chunk(intake.name, time.time_ns() // 1000, deadline, due_us)
        if self._positions:
            chunk.positions = []
        intake.open = chunk
        self.outstanding[id(chunk)] = chunk
        return chunk

    def _withdraw(self, chunk: Chunk) -> None:
        intake = self._topics.get(chunk.topic)
        if intake is None:
            return
        if intake.open is chunk:
            intake.open = None
        else:
            with suppress(ValueError):
                intake.sealed.remove(chunk)

    def _begin_topic(self, topic: str) -> TopicIntake:
        if not isinstance(topic, str) or not topic:
            raise InvalidRequest(f"topic must be a name, not {topic!r}")
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._open_topic is not None:
            self._open_topic(topic)
        with self._lock:
            intake = self._opened[topic] = self._intake_of(topic)
            return intake

    def topic(self, topic: str) -> TopicIntake:
        """Returns the intake of one topic."""
        with self._lock:
            return self._intake_of(topic)

    def _intake_of(self, topic: str) -> TopicIntake:
        """Returns the intake of one topic, made if missing. Called with the lock held."""
        intake = self._topics.get(topic)
        if intake is None:
            intake = self._topics[topic] = TopicIntake(topic, self._config.batch_bytes)
        return intake

    def forget(self, topic: str) -> None:
        """The topic must be opened again before the next message."""
        with self._lock:
            self._opened.pop(topic, None)
            intake = self._topics.get(topic)
            if intake is not None:
                intake.opened = False
                if not intake.waiting:
                    intake.forgotten = True
                    del self._topics[topic]

    def _check_position(self, intake: TopicIntake, position: int | None) -> None:
        if not self._positions:
            raise InvalidRequest("position needs producer(name, source_positions=True)")
        if position is None:
            raise InvalidRequest("a producer with source_positions needs a position a message")
        if position.__class__ is not int or not 0 <= position <= INT64_MAX:
            raise InvalidRequest(f"position must be a whole number from 0, not {position!r}")
        if position <= intake.last_position:
            raise InvalidRequest(
                f"position {position} for topic {intake.name!r} does not rise:"
                f" the last one was {intake.last_position}"
            )

    def _wait_for_room(self, block: bool) -> None:
        """Called with the lock held; releases it while waiting."""
        if self._config.buffer_full == "raise":
            own = self.buffered >= self._limit
            raise BufferFull(
                f"{self.buffered} bytes wait for their acknowledgement; buffer_bytes is"
                f" {self._limit}"
                if own
                else f"{self._memory.held} bytes of all producers of the client wait for their"
                f" acknowledgement; its buffer_bytes is {self._memory.limit}"
            )
        if threading.current_thread().name == IO_THREAD:
            raise BufferFull("a callback must not wait for room in the buffer")
        if not block:
            return
        self._memory.begin_wait(self._room)
        try:
            while self.buffered >= self._limit or self._crowded:
                self._room.wait(0.5)
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
        finally:
            self._memory.end_wait(self._room)


def _numbers(positions: Any, count: int) -> Rows:
    """Checks and returns the source positions of a bulk call."""
    try:
        numbers: Rows = np.asarray(positions, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"positions must be whole numbers: {error}") from error
    if numbers.shape != (count,):
        raise InvalidRequest(f"{numbers.size} positions for {count} values")
    if count and (numbers[0] < 0 or bool((np.diff(numbers) <= 0).any())):
        raise InvalidRequest("positions must rise from message to message, from 0")
    return numbers


def _append(chunk: Chunk, name: str, item: Any, default: Any) -> None:
    column = getattr(chunk, name)
    if column is None:
        column = [default] * chunk.count
        setattr(chunk, name, column)
    column.append(item)


def _mix_queues(chunk: Chunk, queue: int | None) -> None:
    if not chunk.count:
        chunk.queues = queue
        return
    if not isinstance(chunk.queues, list):
        before = NO_QUEUE if chunk.queues is None else chunk.queues
        chunk.queues = [before] * chunk.count
    chunk.queues.append(NO_QUEUE if queue is None else queue)
