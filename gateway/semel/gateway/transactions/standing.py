"""How far a transactional id is, as the coordinating broker group has it, and what Kafka's client
may do then. Pure.

    the row at the brokers                          standing
    no row, or another producer's                   UNKNOWN
    a newer incarnation is begun or committed       FENCED
    the newest epoch is committed                   ENDED, by its commit or without its messages
    a newer one has begun, its attempt is open      ONGOING
    a newer one has begun, its attempt is not open  LOST: time is over, or somebody ended it

Whoever lost a transaction hears of it: a client that adds to what is gone would commit a part. It
is told UNKNOWN_PRODUCER_ID, upon which clients abort and go on.

Invariant: what a client believes to be one transaction is never committed in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kio.schema.errors import ErrorCode

from semel.gateway.transactions.numbers import (
    incarnation_of,
    is_transaction,
    kafka_epoch_of,
    producer_id_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the coordinating broker group knows of a transaction id."""

    epoch: int = -1
    """The newest committed one; -1 for none."""
    begun_epoch: int = -1
    """The newest that was begun; it may be committed by now."""
    attempt: int = 0
    """The number of the begun epoch's attempt, if that is open; 0 if it is not."""
    changed_us: int = 0
    """Log time of the last attempt or decision."""
    log_time_us: int = 0
    """Log time when this was told."""

    @property
    def newest(self) -> int:
        """The highest epoch that anybody has begun."""
        return max(self.epoch, self.begun_epoch)

    @property
    def age_us(self) -> int:
        """How long nothing has changed."""
        return max(0, self.log_time_us - self.changed_us)


class Standing(StrEnum):
    """See the module's text."""

    UNKNOWN = "unknown"
    FENCED = "fenced"
    ENDED = "ended"
    ONGOING = "ongoing"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Producer:
    """The one who asks, as Kafka's client says."""

    transaction_id: str
    producer_id: int
    epoch: int
    """Kafka's."""


def standing_of(row: Row, producer: Producer) -> Standing:
    """Returns how far the transactional id is for this producer."""
    if row.newest < 0 or producer.producer_id != producer_id_of(producer.transaction_id):
        return Standing.UNKNOWN
    if incarnation_of(row.newest) != incarnation_of(row.epoch):
        return Standing.FENCED
    if kafka_epoch_of(row.epoch) != producer.epoch:
        return Standing.FENCED
    if row.begun_epoch <= row.epoch:
        return Standing.ENDED
    return Standing.ONGOING if row.attempt and is_transaction(row.begun_epoch) else Standing.LOST


def refusal(standing: Standing) -> ErrorCode:
    """Returns what a client is told that can do nothing in this standing; NONE if it can."""
    match standing:
        case Standing.UNKNOWN:
            return ErrorCode.invalid_producer_id_mapping
        case Standing.FENCED:
            return ErrorCode.invalid_producer_epoch
        case Standing.LOST:
            return ErrorCode.unknown_producer_id
        case Standing.ENDED | Standing.ONGOING:
            return ErrorCode.none


def repeated_end(row: Row, committed: bool) -> ErrorCode:
    """Returns the answer to an EndTxn while nothing is open: it may be one that was sent again."""
    return ErrorCode.none if is_transaction(row.epoch) == committed else ErrorCode.invalid_txn_state
