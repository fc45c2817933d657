"""The batches of one Kafka transaction on their way to one queue. Pure.

How it works. They go out under the transaction's stager at the queue, whose sequences count from 0:
a batch's place is its number of the client, less the number of the first batch that the
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

from semel.client.core.sequences import Decision, Failed, InFlight, Settled
from semel.gateway.producing.kafka_numbers import Numbers
from semel.gateway.producing.kafka_window import KafkaWindow
from semel.gateway.records import widen
from semel.gateway.records.wide_sequences import SEQUENCE_SPAN
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

    def _doubt(self, batch: InFlight, answer: Settled | Failed) -> list[Decision]:
        """Believes the answer at once: the base is certain."""
        if isinstance(answer, Settled):
            return self._settle(answer)
        self._remove(batch)
        return [answer]
