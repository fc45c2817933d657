"""The batches of one idempotent Kafka producer on their way to one queue. Pure.

How it works. The producer numbers its batches, and the gateway sends them under these numbers: the
sequence table recognises what it has, whatever gateway brought it. So the window gives no sequences
and needs no fence to free one. It keeps batches until the master has decided about them, sends them
again whenever that is in doubt, and tells the client what was decided.

    answer                          consequence
    committed, duplicate            Settled; a duplicate at an unknown place: Fence first
    not master                      Moved: the stream searches the master, all batches go out again
    throttled, unavailable, ...     Retry: all batches go out again after a wait
    queue moved                     Elsewhere: all batches go out again, to the new group
    out of order                    Retry while an earlier batch is here, else Fence first
    overlap, conflict               Fence first
    queue sealed                    Failed: the client sends it again, to the partition's next queue
    any other refusal               Failed

*Fence first*: what the gateway knew of the table may be so old that the batch got wrong numbers
(`kafka_numbers.py`). A fence of the same incarnation changes nothing and tells the newest sequence.
If the batch gets other numbers by it, it goes out again under those, else the answer counts.

Invariants
1. A batch leaves the window settled, failed, or because the window ends; then its fate is open, as
   the client is told, who sends it again.
2. An answer "stored" or "not stored" that the numbers could have caused is given out only after a
   fence that was asked for after the answer.
3. No batch goes out while a fence is wanted.

Not here: streams, clocks and fences (`kafka_lanes.py`).
"""

from __future__ import annotations

from typing import Any, Final

from semel.client.core.due_in_second import DueInSecond
from semel.client.core.encoding import rebase
from semel.client.core.sequences import (
    Decision,
    Failed,
    Fence,
    InFlight,
    Retry,
    Settled,
    Transmissions,
    last_answer,
    retry_of,
)
from semel.gateway.producing.kafka_numbers import Numbers, kafka_epoch, number
from semel.protos.errors import (
    OutOfOrderSequence,
    PartialOverlap,
    SemelError,
    SequenceConflict,
    Unavailable,
)
from semel.protos.ids import ProducerId, Sequence

SESSION: Final = 1
"""The session of every gateway: they are one incarnation together."""


class KafkaWindow(Transmissions):
    """The window of one (queue, producer, epoch)."""

    def __init__(
        self, *, producer_id: int, epoch: int, last_sequence: int, generation: int = 0
    ) -> None:
        """`epoch` is the table's; `last_sequence` is what a fence told, -1 for none; `generation`
        is the partition's."""
        super().__init__()
        self.producer_id = ProducerId(producer_id)
        self.epoch = epoch
        self.session = SESSION
        self._generation = generation
        self._known = last_sequence
        """The last sequence that the table is known to have."""
        self._numbers_of: dict[int, tuple[int, int]] = {}
        """The client's first sequence and the count of each batch, by first sequence."""
        self._doubts: dict[int, Settled | Failed] = {}
        """Answers that wait for a fence, by first sequence."""

    @property
    def in_flight_bytes(self) -> int:
        return sum(batch.size for batch in self._in_flight.values())

    def batches(self) -> list[InFlight]:
        """The batches that are not decided, in the order of their sequences."""
        return [self._in_flight[base] for base in sorted(self._in_flight)]

    # ------------------------------------------------------------------------------- from a client

    def numbers(self, base_sequence: int, count: int) -> Numbers:
        """Returns the sequences of a batch that has just come. Raises InvalidRequest."""
        expected = max(self._known, *(each.last for each in self._in_flight.values()), -1)
        return self._number(base_sequence, count, expected)

    def _number(self, base_sequence: int, count: int, last_sequence: int) -> Numbers:
        epoch = kafka_epoch(self.epoch)
        return number(epoch, base_sequence, count, last_sequence, self._generation)

    def find(self, numbers: Numbers) -> InFlight | None:
        """Returns the batch that begins with the same sequence and is under way."""
        return self._in_flight.get(numbers.base)

    def add(self, base_sequence: int, batch: InFlight) -> None:
        """Adds a batch whose sequences are `numbers(base_sequence, …)`; none is at its place."""
        assert batch.base not in self._in_flight
        self._numbers_of[batch.base] = base_sequence, batch.count
        self._queue(batch)

    # ----------------------------------------------------------------------------- from the broker

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
        """Handles the answer COMMITTED or DUPLICATE."""
        batch = self._match(base, last)
        if batch is None:
            return []
        settled = Settled(batch, base_offset, append_time_us, duplicate, dropped, due_in_second)
        if duplicate and base_offset < 0 and dropped is None:
            return self._doubt(batch, settled)
        return self._settle(settled)

    def on_refused(self, base: int, last: int, error: SemelError) -> list[Decision]:
        """Handles the answer FAILED with `error`."""
        batch = self._match(base, last)
        if batch is None:
            return []
        if not last_answer(batch):
            return []
        match error:
            case _ if (retry := retry_of(error)) is not None:
                return [retry]
            case OutOfOrderSequence() if min(self._in_flight) < base:
                return [Retry(0)]
            case OutOfOrderSequence() | PartialOverlap() | SequenceConflict():
                return self._doubt(batch, Failed(batch, error))
            case _:
                self._remove(batch)
                return [Failed(batch, error)]

    def on_fenced(self, last_sequence: int) -> list[Decision]:
        """Handles the reply to a fence: what is in doubt goes out again under other numbers, or the
        answer to it counts."""
        self.fence_wanted = False
        self._known = max(self._known, last_sequence)
        doubts, self._doubts = self._doubts, {}
        decisions: list[Decision] = []
        for base in sorted(doubts):
            batch = self._in_flight.get(base)
            if batch is None:
                continue
            base_sequence, count = self._numbers_of[base]
            numbers = self._number(base_sequence, count, last_sequence)
            if numbers.base == base:
                self._remove(batch)
                decisions.append(doubts[base])
            elif numbers.base in self._in_flight:
                self._remove(batch)
                decisions.append(Failed(batch, Unavailable("sent twice under other numbers")))
            else:
                self._renumber(batch, base_sequence, numbers)
        self.rewind()
        return decisions

    def end(self, error: SemelError) -> list[Failed]:
        """Gives up everything; the fate of what was sent is open."""
        ended = [Failed(batch, error) for batch in self.batches()]
        self._in_flight.clear()
        self._numbers_of.clear()
        self._outgoing.clear()
        self._doubts.clear()
        return ended

    def _match(self, base: int, last: int) -> InFlight | None:
        batch = self._in_flight.get(base)
        if batch is None or batch.last != last or base in self._doubts:
            return None
        return batch

    def _settle(self, settled: Settled) -> list[Decision]:
        self._known = max(self._known, settled.batch.last)
        self._remove(settled.batch)
        return [settled]

    def _doubt(self, batch: InFlight, answer: Settled | Failed) -> list[Decision]:
        """Keeps an answer until a fence has told how far the table is."""
        self._doubts[batch.base] = answer
        if self.fence_wanted:
            return []
        self.fence_wanted = True
        return [Fence(False)]

    def _remove(self, batch: InFlight) -> None:
        self._in_flight.pop(batch.base, None)
        self._numbers_of.pop(batch.base, None)

    def _renumber(self, batch: InFlight, base_sequence: int, numbers: Numbers) -> None:
        self._remove(batch)
        batch.previous, batch.base, batch.last = (Sequence(each) for each in numbers)
        batch.payload = rebase(
            batch.payload,
            producer_id=self.producer_id,
            epoch=self.epoch,
            session=self.session,
            previous_sequence=batch.previous,
            base_sequence=batch.base,
            last_sequence=batch.last,
        )
        batch.sends = batch.open_answers = 0
        self._in_flight[batch.base] = batch
        self._numbers_of[batch.base] = base_sequence, batch.count
