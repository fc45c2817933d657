"""One queue's send window: the batches in flight, the next one to send, the meaning of an answer.

How it works. Batches are chained by `previous_sequence` and kept, with their bytes, until they are
settled. A batch in doubt is sent again unchanged, oldest first; the broker's sequence table
recognises a batch that it has. Only a FENCE with a higher session turns doubt into "not stored",
since nothing older can land after it. Then the remaining batches get new sequences after the
queue's last one.

    answer                          consequence
    committed, duplicate            Settled
    not master                      Moved: the stream searches the master, all batches go out again
    throttled, unavailable, ...     Retry: all batches go out again after a wait
    delay throttled                 like any other refusal, since waiting makes no room
    out of order                    Retry; for the oldest batch several times in a row: Fence
    partial overlap                 the stored rows are cut off, the rest goes out again
    dedup state expired             Fence(reopen): a new epoch first; a batch that is stored without
                                    some of its messages, whose ids were known, has failed
    queue moved                     Elsewhere: all batches go out again, to the new group
    queue sealed                    for the oldest batch: Sealed, with all batches that are left
    producer fenced                 Fatal
    any other refusal               Fence: the batch has failed, its successors are chained anew

Invariants
1. Batches go out in sequence order on any one stream, and `previous` of each is `last` of the one
   before it, or of the newest settled one.
2. A batch leaves the window only when it is settled: certainly stored, or certainly absent (a fence
   said so), or reported as unknown (its dedup state expired). Absence is never guessed.
3. No batch goes out while a fence is wanted.
4. A sealed queue accepts no batch, and each batch names the one before it. So when the oldest batch
   in flight is absent, all later ones are and will stay absent.
5. `in_flight` never holds more than `max_in_flight` batches.

Not here: bytes of batches (`core/encoding.py`), streams and clocks (`producer/lanes.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from semel.client.core.due_in_second import DueInSecond
from semel.client.core.encoding import rebase, trim
from semel.protos.errors import (
    DedupStateExpired,
    DiskFull,
    InternalError,
    NotMaster,
    OutOfOrderSequence,
    PartialOverlap,
    ProducerFenced,
    QueueMoved,
    QueueSealed,
    SemelError,
    SequenceConflict,
    Throttled,
    TimedOut,
    Unavailable,
)
from semel.protos.ids import ProducerId, Sequence
from semel.protos.v1 import control_pb2
from semel.protos.values import value

HEAD_REFUSALS_MAX: Final = 5
"""Number of "out of order" answers in a row for the oldest batch that lead to a fence."""


class InFlight:
    """A batch between its first transmission and its outcome."""

    __slots__ = (
        "base",
        "count",
        "error",
        "last",
        "open_answers",
        "payload",
        "previous",
        "queued",
        "refused",
        "sends",
        "size",
        "tag",
        "trimmed",
        "turned_away",
    )

    def __init__(
        self,
        *,
        previous: Sequence,
        base: Sequence,
        last: Sequence,
        count: int,
        payload: bytes,
        tag: object,
    ) -> None:
        self.previous = previous
        self.base = base
        self.last = last
        self.count = count
        """Number of rows left in it."""
        self.payload = payload
        self.size = len(payload)
        """Its first size, which credits count."""
        self.tag = tag
        """Owned by the shell; the window does not look at it."""
        self.sends = 0
        self.open_answers = 0
        """Number of transmissions on the present stream that are not answered yet."""
        self.queued = False
        """It waits to go out next."""
        self.refused = False
        """The last answer said that this transmission was certainly not stored."""
        self.error: SemelError | None = None
        """The error of its final refusal."""
        self.trimmed = 0
        """Number of rows cut off because they were stored before."""
        self.turned_away = False
        """The queue is sealed and does not hold it."""


@value
class Settled:
    """The batch is stored."""

    batch: InFlight
    base_offset: int
    """Offset of its first row; -1 when not known any more."""
    append_time_us: int
    duplicate: bool
    dropped: Any = field(default=None, compare=False)
    """Rows that were not stored because their ids were known: a table of `semel.protos.dropped`."""
    due_in_second: DueInSecond | None = None
    """The load of a delayed batch's second, as the broker told it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch is not stored or, with DedupStateExpired, its fate is unknown."""

    batch: InFlight
    error: SemelError


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait, by the shell's own backoff if `after_ms` is 0, then `rewind`."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The node at the stream's end is not the master."""

    error: NotMaster


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The queue lives on another broker group, with its sequence table."""

    error: QueueMoved


@dataclass(frozen=True, slots=True)
class Fence:
    """Send a FENCE with a higher session; with `reopen`, get a higher epoch first."""

    reopen: bool


@dataclass(frozen=True, slots=True)
class Sealed:
    """The queue was split, and the window has ended. The batches left in it are certainly not
    stored there, and go to the children, oldest first."""

    split: control_pb2.SplitQueue
    batches: tuple[InFlight, ...]


@dataclass(frozen=True, slots=True)
class Fatal:
    """The producer must end."""

    error: SemelError


Decision: TypeAlias = Settled | Failed | Retry | Moved | Elsewhere | Fence | Sealed | Fatal


@dataclass(frozen=True, slots=True)
class Known:
    """A batch the queue remembers, from the reply to a FENCE."""

    base: int
    last: int
    base_offset: int
    count: int
    dropped: bool = False
    """Messages of it were not stored because their ids were known; which ones is not told."""


def retry_of(error: SemelError) -> Retry | Moved | Elsewhere | None:
    """How batches go out again after a refusal that says nothing about the batch itself; None for
    any other refusal."""
    match error:
        case NotMaster():
            return Moved(error)
        case QueueMoved():
            return Elsewhere(error)
        case Throttled() if error.retriable:
            return Retry(max(1, error.retry_after_ms))
        case Unavailable() | TimedOut() | InternalError() | DiskFull():
            return Retry(0)
    return None


def last_answer(batch: InFlight) -> bool:
    """Counts a refusal; whether it is the answer that counts. It is not if the batch was sent again
    already: the answer to that transmission counts."""
    batch.open_answers = max(0, batch.open_answers - 1)
    return not batch.queued and not batch.open_answers


class Transmissions:
    """The batches of a window until they are decided, and which of them go out next."""

    def __init__(self) -> None:
        self.fence_wanted = False
        self._in_flight: dict[int, InFlight] = {}
        """By first sequence."""
        self._outgoing: deque[InFlight] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def batches(self) -> list[InFlight]:
        """The batches that are not decided, in the order in which they go out."""
        return list(self._in_flight.values())

    def next_to_send(self) -> InFlight | None:
        """Returns the batch to transmit now, or None, and counts the transmission."""
        if self.fence_wanted:
            return None
        while self._outgoing:
            batch = self._outgoing.popleft()
            batch.queued = False
            if self._in_flight.get(batch.base) is batch:
                batch.sends += 1
                batch.open_answers += 1
                batch.refused = False
                return batch
        return None

    def on_stream_lost(self) -> int:
        """The stream has ended, so no more answers come; otherwise like `rewind`."""
        for batch in self._in_flight.values():
            batch.open_answers = 0
        return self.rewind()

    def rewind(self) -> int:
        """Sends everything in flight again; returns the number of batches that had been sent."""
        again = sum(1 for batch in self._in_flight.values() if not batch.queued)
        self._outgoing = deque(self.batches())
        for batch in self._outgoing:
            batch.queued = True
        return again

    def _queue(self, batch: InFlight) -> None:
        self._in_flight[batch.base] = batch
        batch.queued = True
        self._outgoing.append(batch)


class SendWindow(Transmissions):
    """The window of one (queue, producer)."""

    def __init__(
        self,
        *,
        producer_id: ProducerId,
        epoch: int,
        session: int,
        last_sequence: int,
        max_in_flight: int,
        positions: bool,
    ) -> None:
        super().__init__()
        self.producer_id = producer_id
        self.epoch = epoch
        self.session = session
        self.last_settled = last_sequence
        """The highest stored sequence; -1 for none."""
        self.last_assigned = Sequence(last_sequence)
        self.claimed = (epoch, session)
        """The newest identity with which this client has sent a fence."""
        self.positions = positions
        """Sequences are source positions, which stay with their messages."""
        self.reopen_wanted = False
        self._max = max_in_flight
        self._head_refusals = 0
        self._split: control_pb2.SplitQueue | None = None
        """The decision that ended the window, if any."""

    @property
    def room(self) -> bool:
        """A new batch may be added."""
        return len(self._in_flight) < self._max and not self.fence_wanted and self._split is None

    @property
    def answers_open(self) -> bool:
        """An answer on the present stream is outstanding."""
        return any(batch.open_answers for batch in self._in_flight.values())

    def add(self, batch: InFlight) -> None:
        """Adds a new batch, chained to the last one."""
        assert self.room
        assert batch.previous == self.last_assigned < batch.base <= batch.last
        self._queue(batch)
        self.last_assigned = batch.last

    def on_stored(
        self,
        base: int,
        last: int,
        base_offset: int,
        append_time_us: int,
        duplicate: bool,
        dropped: Any = None,
        due_in_second: DueInSecond | None = None,
    ) -> list[Decision]:
        """Handles the answer COMMITTED or DUPLICATE; the last two are as in `Settled`."""
        batch = self._match(base, last)
        if batch is None:
            return []
        self._head_refusals = 0
        return [
            self._settle(batch, base_offset, append_time_us, duplicate, dropped, due_in_second),
            *self._maybe_sealed(),
        ]

    def on_refused(self, base: int, last: int, error: SemelError) -> list[Decision]:
        """Handles the answer FAILED with `error`."""
        if isinstance(error, ProducerFenced):
            # This client's newer fence refuses batches on their way under the older session.
            newer = (error.current_epoch, error.current_session) > self.claimed
            return [Fatal(error)] if newer else []
        batch = self._match(base, last)
        if batch is None:
            return []
        if not last_answer(batch):
            return []
        match error:
            case _ if self.fence_wanted:
                # The fence will settle what is in flight, but the reason of a refusal must not
                # be forgotten.
                self._note_refusal(batch, error)
                return []
            case QueueSealed():
                batch.turned_away = True
                self._split = control_pb2.SplitQueue.FromString(error.split_record)
                return self._maybe_sealed()
            case _ if (retry := retry_of(error)) is not None:
                return [retry]
            case OutOfOrderSequence():
                return [self._out_of_order(batch)]
            case PartialOverlap():
                self._trim(batch, error.last_sequence)
                return [Retry(1)]
            case _:
                self._note_refusal(batch, error)
                self.fence_wanted = True
                self.reopen_wanted = isinstance(error, DedupStateExpired)
                return [Fence(self.reopen_wanted)]

    def on_fenced(
        self,
        *,
        producer_id: ProducerId,
        epoch: int,
        session: int,
        last_sequence: int,
        known: Many[Known],
    ) -> list[Decision]:
        """Handles the reply to a FENCE: batches that it does not name are not, and never will be,
        stored.

        After a reopen (a higher epoch) a queue that had forgotten the producer names nothing. Then
        a batch is certainly absent only if its one transmission was refused as such.
        """
        # Another lane may have opened the producer anew meanwhile: the new row knows nothing of
        # what was sent under the old identity.
        reopened = self.reopen_wanted or (producer_id, epoch) != (self.producer_id, self.epoch)
        forgotten = reopened and last_sequence < max(self.last_settled, 0)
        decisions: list[Decision] = []
        if last_sequence < self.last_settled and not reopened:
            return [
                Fatal(
                    OutOfOrderSequence(
                        f"the queue ends at sequence {last_sequence} but had acknowledged"
                        f" {self.last_settled}: acknowledged messages are lost",
                        last_sequence=last_sequence,
                    )
                )
            ]
        self.producer_id, self.epoch, self.session = producer_id, epoch, session
        self.claimed = max(self.claimed, (epoch, session))
        self.fence_wanted = self.reopen_wanted = False
        self._head_refusals = 0
        batches = self.batches()
        self._in_flight.clear()
        self._outgoing.clear()
        chain = Sequence(last_sequence)
        for batch in batches:
            if isinstance(batch.error, SequenceConflict):
                decisions.append(Failed(batch, batch.error))
            elif batch.last <= last_sequence and _is_partly_stored(batch, known):
                decisions.append(Failed(batch, _unknown_messages(batch)))
            elif batch.last <= last_sequence:
                decisions.append(self._settle(batch, _offset_of(batch, known), 0, True))
            elif batch.error is not None and not isinstance(batch.error, DedupStateExpired):
                decisions.append(Failed(batch, batch.error))
            elif forgotten and not _surely_absent(batch):
                decisions.append(Failed(batch, _unknown_fate(batch)))
            else:
                if batch.base <= last_sequence:
                    self._cut(batch, Sequence(last_sequence))
                chain = self._chain(batch, chain)
        self.last_settled = last_sequence
        self.last_assigned = chain
        if self._split is not None and not self._in_flight:
            decisions.append(self._end(self._split, []))
        return decisions

    def on_fence_sealed(self, split: control_pb2.SplitQueue) -> list[Decision]:
        """The queue was split and has forgotten the producer. A FENCE cannot tell any more which
        batches it holds, so only batches that were certainly refused may go to the children."""
        decisions: list[Decision] = []
        absent: list[InFlight] = []
        for batch in self.batches():
            if batch.error is not None and not isinstance(batch.error, DedupStateExpired):
                decisions.append(Failed(batch, batch.error))
            elif batch.turned_away or _surely_absent(batch):
                absent.append(batch)
            else:
                decisions.append(Failed(batch, _unknown_fate(batch)))
        self._split = split
        return [*decisions, self._end(split, absent)]

    # --- inside ---------------------------------------------------------------------------------

    def _maybe_sealed(self) -> list[Decision]:
        """Ends the window if the oldest batch was turned away."""
        if self._split is None or not self._in_flight:
            return []
        batches = self.batches()
        return [self._end(self._split, batches)] if batches[0].turned_away else []

    def _end(self, split: control_pb2.SplitQueue, batches: list[InFlight]) -> Sealed:
        self._in_flight.clear()
        self._outgoing.clear()
        self.fence_wanted = self.reopen_wanted = False
        return Sealed(split, tuple(batches))

    def _match(self, base: int, last: int) -> InFlight | None:
        """Returns the batch that an answer is for; None for an answer to an earlier form of it."""
        batch = self._in_flight.get(Sequence(base))
        return batch if batch is not None and batch.last == last else None

    def _settle(
        self,
        batch: InFlight,
        base_offset: int,
        append_time_us: int,
        duplicate: bool,
        dropped: Any = None,
        due_in_second: DueInSecond | None = None,
    ) -> Settled:
        self._in_flight.pop(batch.base, None)
        self.last_settled = max(self.last_settled, batch.last)
        return Settled(batch, base_offset, append_time_us, duplicate, dropped, due_in_second)

    def _note_refusal(self, batch: InFlight, error: SemelError) -> None:
        """Keeps an error if it is certain and about the batch itself."""
        if isinstance(error, DedupStateExpired):
            batch.refused = True
            batch.error = error
        elif not error.retriable and not isinstance(
            error, OutOfOrderSequence | PartialOverlap | QueueSealed | InternalError | DiskFull
        ):
            batch.error = error

    def _out_of_order(self, batch: InFlight) -> Decision:
        head = next(iter(self._in_flight.values()))
        if batch is not head:
            return Retry(0)
        self._head_refusals += 1
        if self._head_refusals <= HEAD_REFUSALS_MAX:
            return Retry(0)
        self.fence_wanted = True
        return Fence(False)

    def _trim(self, batch: InFlight, last_stored: int) -> None:
        """Cuts off rows up to `last_stored`, which are in the queue already."""
        if not batch.base <= last_stored < batch.last:
            return
        self._cut(batch, Sequence(last_stored))
        self._in_flight = {each.base: each for each in self._in_flight.values()}

    def _cut(self, batch: InFlight, last_stored: Sequence) -> None:
        batch.payload, rows, batch.base = trim(batch.payload, last_stored)
        batch.previous = last_stored
        batch.trimmed += rows
        batch.count -= rows

    def _chain(self, batch: InFlight, chain: Sequence) -> Sequence:
        """Puts a batch after `chain` under the present identity; it goes out again."""
        if not self.positions:
            batch.base, batch.last = Sequence(chain + 1), Sequence(chain + batch.count)
        batch.previous = chain
        batch.payload = rebase(
            batch.payload,
            producer_id=self.producer_id,
            epoch=self.epoch,
            session=self.session,
            previous_sequence=chain,
            base_sequence=batch.base,
            last_sequence=batch.last,
        )
        batch.sends = batch.open_answers = 0
        batch.refused = batch.turned_away = False
        batch.error = None
        batch.queued = True
        self._in_flight[batch.base] = batch
        self._outgoing.append(batch)
        return batch.last


def _surely_absent(batch: InFlight) -> bool:
    """It was never sent, or once and refused by a queue that had no row for the producer."""
    return batch.sends == 0 or (batch.sends == 1 and batch.refused)


def _unknown_fate(batch: InFlight) -> DedupStateExpired:
    return DedupStateExpired(
        f"the queue has forgotten the producer: whether sequences {batch.base} to {batch.last}"
        " were stored is unknown; they are not sent again",
        epoch_floor=batch.error.epoch_floor if isinstance(batch.error, DedupStateExpired) else 0,
    )


def _is_partly_stored(batch: InFlight, known: Many[Known]) -> bool:
    """Whether the queue dropped messages of the batch, and the answer that named them is lost."""
    return any(
        entry.dropped and entry.base <= batch.base and batch.last <= entry.last for entry in known
    )


def _unknown_messages(batch: InFlight) -> DedupStateExpired:
    return DedupStateExpired(
        f"sequences {batch.base} to {batch.last} are stored, without the messages whose ids were"
        " known; the answer that said which ones these are was lost: send the messages again, with"
        " their ids, to learn it"
    )


def _offset_of(batch: InFlight, known: Many[Known]) -> int:
    """Returns the offset of the batch's first row if the reply's window still has it, else -1."""
    for entry in known:
        if entry.base <= batch.base and batch.last <= entry.last:
            if entry.base == batch.base:
                return entry.base_offset
            if entry.base_offset >= 0 and entry.last - entry.base == entry.count - 1:
                return entry.base_offset + (batch.base - entry.base)
    return -1
