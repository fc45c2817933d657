"""Kafka's numbers of a transactional producer, as numbers of a Semel transaction. Pure.

How it works. A transactional id is the id of a Semel transaction. Each InitProducerId begins an
*incarnation* of it, and inside one, steps count on. Both together are the Semel epoch:

    epoch = incarnation << 32 | step

Step 0 is the beginning of the incarnation, odd steps are transactions, and even ones say that the
transaction before them was given up. Steps 0 and the even ones are committed without messages: so
whatever Kafka's client has finished is a committed epoch, and all that is below it cannot be
committed any more.

Kafka's epoch of a producer is the lowest 15 bits of the incarnation, and its producer id follows
from the transactional id: every gateway knows both without asking.

An incarnation is higher than all before it, and not below the time in units of four seconds: so a
transactional id that brokers have forgotten begins above what it was. The first one of an id is the
newest multiple of 2^15 below that time, up to 36 hours old, since Kafka's epoch of an id that
nobody has used is 0: Flink tries ids until it is told that. Where an id was forgotten since then,
brokers refuse it, and the time itself is taken. Such epochs are above all numbers of programs
(`TIMED_EPOCH_MIN`) from 2004 on.

Invariant: one epoch is one transaction of Kafka's client.
"""

from __future__ import annotations

import hashlib
from typing import Final

from semel.protos.ids import QueueKey
from semel.protos.staging import EPOCH_END, STAGER_ID_MIN

STEP_BITS: Final = 32
INCARNATIONS: Final = EPOCH_END >> STEP_BITS
KAFKA_EPOCHS: Final = 1 << 15
INCARNATION_US: Final = 4_000_000
"""Log time in these units is the lowest incarnation of a transactional id that is not known."""
PRODUCER_ID_MIN: Final = 1 << 61
"""Controllers give ids from 1 upwards, and stagers have those from 2^62 on."""


def epoch_of(incarnation: int, step: int) -> int:
    """Returns the Semel epoch."""
    assert 0 <= incarnation < INCARNATIONS
    assert 0 <= step < 1 << STEP_BITS
    return incarnation << STEP_BITS | step


def incarnation_of(epoch: int) -> int:
    """Returns the incarnation of a Semel epoch; -1 for none."""
    return epoch >> STEP_BITS


def kafka_epoch_of(epoch: int) -> int:
    """Returns the producer epoch that Kafka's client has in the incarnation of a Semel epoch."""
    return incarnation_of(epoch) % KAFKA_EPOCHS


def is_transaction(epoch: int) -> bool:
    """Whether messages may be committed under the epoch."""
    return bool(epoch & 1)


def next_transaction(epoch: int) -> int:
    """Returns the epoch of the transaction after one that is committed."""
    return epoch + 2 if is_transaction(epoch) else epoch + 1


def after_abort(epoch: int) -> int:
    """Returns the epoch that ends a transaction without its messages."""
    assert is_transaction(epoch)
    return epoch + 1


def first_incarnation(before: int, log_time_us: int) -> int:
    """Returns the incarnation that follows on `before`. That of an id that is not known (-1) has
    Kafka's epoch 0, as programs expect of one that nobody has used."""
    by_time = timed_incarnation(log_time_us)
    return max(before + 1, by_time) if before >= 0 else by_time - by_time % KAFKA_EPOCHS


def timed_incarnation(log_time_us: int) -> int:
    """Returns an incarnation above that of all ids that were forgotten, unless they had more than
    one in four seconds."""
    return log_time_us // INCARNATION_US


def producer_id_of(transaction_id: str) -> int:
    """Returns Kafka's producer id of a transactional id."""
    return PRODUCER_ID_MIN + _digest("producer", transaction_id, 0) % PRODUCER_ID_MIN


def stager_id_of(transaction_id: str, epoch: int, queue: QueueKey, group: str = "") -> int:
    """Returns the stager of a transaction at a queue, or of a consumer group's progress there: the
    same at all gateways, and of no other one."""
    place = f"stager {queue.topic_id} {queue.queue_id} {len(group)} {group}"
    return STAGER_ID_MIN + _digest(place, transaction_id, epoch) % STAGER_ID_MIN


def _digest(what: str, transaction_id: str, epoch: int) -> int:
    text = f"{what} {epoch} {transaction_id}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
