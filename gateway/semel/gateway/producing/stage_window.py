"""The batches of one Kafka transaction on their way to one queue. Pure.

How it works. They go out under the transaction's stager, whose sequences count from 0 in each
queue: a batch's place is its number of the client, less the number of the first batch that the
transaction has in the queue, its *base*. The base is known for certain (`stage_lanes.py`), so the
answers count as they come.

    answer                          consequence
    committed, duplicate            Settled
    not master, throttled, ...      all batches go out again
    out of order                    Retry while an earlier batch is here, else Failed
    any other refusal               Failed

Invariants
1. A batch that is stored has its place: what a queue has staged has neither gaps nor repetitions.
2. What is behind a batch that failed fails as well.
"""

from __future__ import annotations

from typing import Any

from semel.client.core.due_in_second import DueInSecond
from semel.client.core.sequences import Decision, Failed, Retry, Settled, last_answer, retry_of
from semel.gateway.producing.kafka_numbers import Numbers
from semel.gateway.producing.kafka_window import KafkaWindow
from semel.gateway.records import widen
from semel.gateway.records.wide_sequences import SEQUENCE_SPAN
from semel.protos.errors import OutOfOrderSequence, SemelError
from semel.protos.staging import STAGER_EPOCH


class StageWindow(KafkaWindow):
    """The window of one (queue, stager)."""

    def __init__(self, *, stager_id: int, session: int, base: int, last_sequence: int) -> None:
        """`base` is the client's number of what has place 0; `last_sequence` is the last place that
        is taken, -1 for none."""
        super().__init__(
            producer_id=stager_id, epoch=STAGER_EPOCH, last_sequence=last_sequence, generation=0
        )
        self.session = session
        self._base = base

    def _number(self, base_sequence: int, count: int, last_sequence: int) -> Numbers:
        place = widen((base_sequence - self._base) % SEQUENCE_SPAN, last_sequence)
        return Numbers(place - 1, place, place + count - 1)

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
        self._known = max(self._known, last)
        self._remove(batch)
        return [Settled(batch, base_offset, append_time_us, duplicate, dropped, due_in_second)]

    def on_refused(self, base: int, last: int, error: SemelError) -> list[Decision]:
        """Handles the answer FAILED with `error`."""
        batch = self._match(base, last)
        if batch is None or not last_answer(batch):
            return []
        retry = retry_of(error)
        if retry is not None:
            return [retry]
        if isinstance(error, OutOfOrderSequence) and min(self._in_flight) < base:
            return [Retry(0)]
        self._remove(batch)
        return [Failed(batch, error)]
