"""One queue of a broker and the network in front of it, simulated.

The queue keeps a sequence table of its own, written from the rules of the protocol and not from the
broker's code: fence, duplicate before gap, chain, partial overlap. The network loses, delays and
reorders whole streams: a message of an old stream may arrive after those of a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.protos.batch import BatchHeader, decode_header
from semel.protos.columns import decode_columns
from semel.protos.errors import (
    DedupStateExpired,
    InvalidRequest,
    OutOfOrderSequence,
    PartialOverlap,
    ProducerFenced,
    SemelError,
    SequenceConflict,
)


@dataclass
class Row:
    """What the queue knows of the producer."""

    epoch: int
    session: int
    last: int = -1
    window: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """base, last, offset, count, content_crc"""


@dataclass
class Answer:
    """A ProduceAck."""

    base: int
    last: int
    error: SemelError | None = None
    offset: int = -1
    duplicate: bool = False


class SimulatedQueue:
    """Stores values and judges batches."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.row: Row | None = None
        self.poison: bytes | None = None
        """Batches that hold this value are refused for good."""
        self.refusal: SemelError = InvalidRequest("poison")
        """The error with which they are."""

    def fence(self, epoch: int, session: int) -> Row:
        row = self.row
        if row is None:
            self.row = row = Row(epoch, session)
        elif (epoch, session) < (row.epoch, row.session):
            raise ProducerFenced("stale", current_epoch=row.epoch, current_session=row.session)
        else:
            row.epoch, row.session = epoch, session
        return row

    def expire(self) -> None:
        self.row = None

    def produce(self, batch: bytes) -> Answer:
        header = decode_header(batch)
        answer = Answer(header.base_sequence, header.last_sequence)
        try:
            self._judge(batch, header, answer)
        except SemelError as error:
            answer.error = error
        return answer

    def _judge(self, batch: bytes, header: BatchHeader, answer: Answer) -> None:
        row = self.row
        base, last = header.base_sequence, header.last_sequence
        if row is None or (header.epoch, header.session) > (row.epoch, row.session):
            raise DedupStateExpired("no row")
        if (header.epoch, header.session) < (row.epoch, row.session):
            raise ProducerFenced("stale", current_epoch=row.epoch, current_session=row.session)
        for old_base, old_last, offset, count, crc in row.window:
            if (old_base, old_last, count) == (base, last, header.count):
                if crc != header.content_crc:
                    raise SequenceConflict("other content")
                answer.offset, answer.duplicate = offset, True
                return
        if last <= row.last:
            answer.duplicate = True
            return
        if base <= row.last:
            raise PartialOverlap("overlap", last_sequence=row.last)
        if header.previous_sequence != row.last:
            raise OutOfOrderSequence("gap", last_sequence=row.last)
        values: list[bytes] = []
        if header.count:
            values = decode_columns(batch, header).values.to_pylist()
        if self.poison is not None and self.poison in values:
            raise self.refusal
        answer.offset = len(self.stored)
        self.stored += values
        row.last = last
        row.window.append((base, last, answer.offset, header.count, header.content_crc))
        del row.window[:-64]
