"""A program that copies one topic to another by librdkafka, some messages and the progress of its
group in each transaction, and may be killed at any time.

    python -m tests.kit.kafka_copier ADDRESSES SOURCE TARGET GROUP TRANSACTIONAL_ID [apart]

It says each error that it goes on after, as a line of JSON. With `apart` it has a bug: it commits
its progress by itself, after the transaction.

A call that does not come back ends the program. librdkafka's `send_offsets_to_transaction` looks at
no clock (its issues 5456 and 5511, open for 2.16): if the group's coordinator goes while it is
looked up, the call waits for ever, and the group waits for the member that makes it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import (
    OFFSET_STORED,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

BATCH: Final = 50
CALL_S: Final = 20.0
HUNG_S: Final = 30.0
"""A call that takes `CALL_S` at most has not come back in so long."""
HUNG: Final = "does not come back"
APART_S: Final = 0.05
"""What the bug needs to be met by a kill."""


class Copier:
    """One producer and one member of the group, from begin to end."""

    def __init__(self, addresses: str, source: str, target: str, group: str, name: str) -> None:
        common = {"bootstrap.servers": addresses, "reconnect.backoff.max.ms": 200, "log_level": 0}
        self._target = target
        self._moved = False
        self._producer = Producer(
            common | {"transactional.id": name, "transaction.timeout.ms": 20_000, "linger.ms": 1}
        )
        self._insist("init", lambda: self._producer.init_transactions(CALL_S))
        self._consumer = Consumer(
            common
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
            }
        )
        moved = self._on_moved
        self._consumer.subscribe([source], on_assign=moved, on_revoke=moved, on_lost=moved)

    def _on_moved(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._moved = True

    def copy(self, apart: bool) -> None:
        """Copies what comes next, if anything does. Raises KafkaException when it cannot go on."""
        found = [each for each in self._consumer.consume(BATCH, 0.2) if each.error() is None]
        if self._moved:
            # What came before or behind a rebalance is not told apart: it is read again.
            self._moved = False
            self._rewind()
            return
        if not found:
            return
        member = self._consumer.consumer_group_metadata()
        ends: dict[tuple[str, int], int] = {}
        for message in found:
            ends[_place(message)] = (message.offset() or 0) + 1
        places = [TopicPartition(*place, end) for place, end in ends.items()]
        self._producer.begin_transaction()
        try:
            for message in found:
                self._producer.produce(
                    self._target, message.value(), message.key(), _place(message)[1]
                )
            if not apart:
                self._insist(
                    "offsets",
                    lambda: self._producer.send_offsets_to_transaction(places, member, CALL_S),
                )
            self._insist("commit", lambda: self._producer.commit_transaction(CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell("aborts", name_of(error))
            self._insist("abort", lambda: self._producer.abort_transaction(CALL_S))
            self._rewind()
            return
        if apart:
            time.sleep(APART_S)
            self._consumer.commit(offsets=places, asynchronous=False)

    def _rewind(self) -> None:
        """Goes on where the group is. A seek would wait without end for a gateway that is gone."""
        places = self._consumer.assignment()
        if places:
            self._consumer.assign(
                [TopicPartition(each.topic, each.partition, OFFSET_STORED) for each in places]
            )

    def _insist(self, what: str, call: Callable[[], object]) -> None:
        """Calls again as long as librdkafka says that one may."""
        while True:
            alarm = threading.Timer(HUNG_S, give_up, (what,))
            alarm.start()
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                tell(what, name_of(error))
            else:
                return
            finally:
                alarm.cancel()

    def close(self) -> None:
        self._consumer.close()


def _place(message: Message) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0


def name_of(error: KafkaException) -> str:
    """The name of Kafka's or librdkafka's error code."""
    return str(error.args[0].name())


def tell(what: str, error: str) -> None:
    """Says what librdkafka has told, or what it has done."""
    print(json.dumps({"name": what, "error": error}), flush=True)


def give_up(what: str) -> None:
    """Ends the program: a call has not come back."""
    tell(what, HUNG)
    os._exit(1)


def main(*arguments: str) -> None:
    """Copies until SIGTERM; after what cannot be gone on from, by another producer and member."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    names: list[Any] = list(arguments[:5])
    apart = arguments[5:] == ("apart",)
    while not stop.is_set():
        copier: Copier | None = None
        try:
            copier = Copier(*names)
            while not stop.is_set():
                copier.copy(apart)
        except KafkaException as error:
            tell("begins anew", name_of(error))
        finally:
            if copier is not None:
                copier.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
