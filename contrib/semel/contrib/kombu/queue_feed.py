"""One of Kombu's queues as a channel consumes it: a member of the queue's consumer group.

How it works. `take` gives out one message, so nothing counts as delivered that the channel has no
room for; what is fetched ahead goes to whoever holds the lock. Settling a message, from any thread,
commits as far as all before it are settled, and returns when that is durable. A commit that no
master takes is tried again with every look.

A message that is requeued is given out again from here: it was never given back, so it keeps its
place in the order. With steps of retries the consumer copies it to the topic of its next step.

A feed that nobody consumes any more *rests*: it gives out nothing, and ends as soon as nobody works
on anything that it gave out.

Not here: in which order messages may be committed (`deliveries.py`), retries and dead letters
(`semel.client`'s `dead_letters/`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from enum import Enum
from typing import Final

from semel.client import Consumer, Message, SemelError
from semel.contrib.kombu.deliveries import Deliveries, Delivery, Place
from semel.protos.errors import LockLost, RetriableError

logger = logging.getLogger(__name__)

REJECTED: Final = "rejected"
GIVEN_BACK: Final = "requeued"


class Verdict(Enum):
    """What becomes of a message."""

    DONE = "done"
    REJECT = "reject"
    """It is a dead letter, if dead letters are kept."""
    AGAIN = "again"
    """It is delivered again."""


class QueueFeed:
    """A consumer of one queue. Any thread may settle; one thread at a time takes."""

    def __init__(self, consumer: Consumer, *, keeps_letters: bool, retries: bool) -> None:
        self._consumer = consumer
        self._keeps_letters = keeps_letters
        self._retries = retries
        self._lock = threading.Lock()
        self._deliveries = Deliveries()
        self._again: deque[Delivery] = deque()
        self._due: dict[Place, Delivery] = {}
        """The newest delivery to commit, by queue."""
        self._resting = False
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def outstanding(self) -> int:
        """Number of messages that were given out and are not settled."""
        with self._lock:
            return len(self._deliveries)

    def take(self) -> Delivery | None:
        """Returns a message that is here now, or None. Raises SemelError."""
        with self._lock:
            if self._closed:
                return None
            self._commit()
            if self._resting:
                return None
            while self._again:
                delivery = self._again.popleft()
                if not delivery.lost:
                    delivery.redelivered = True
                    return delivery
            found = self._consumer.poll(max_messages=1, timeout=0)
            if not found:
                return None
            delivery = _delivery(found[0])
            self._deliveries.give(delivery)
            return delivery

    def settle(self, delivery: Delivery, verdict: Verdict, reason: str = "") -> None:
        """Says what becomes of a message that was given out. A lost one comes again elsewhere, and
        nothing is said of it. Raises SemelError for what is not to be helped by waiting."""
        with self._lock:
            if self._closed or delivery.lost or delivery.settled:
                logger.info("settled too late, and delivered again place=%s", delivery.place)
                return
            if verdict is Verdict.AGAIN and not self._retries:
                self._again.append(delivery)
                self._maybe_end()
                return
            try:
                if verdict is Verdict.AGAIN:
                    self._consumer.retry(delivery.message, reason or GIVEN_BACK)
                elif verdict is Verdict.REJECT and self._keeps_letters:
                    self._consumer.reject(delivery.message, reason or REJECTED)
            except LockLost:
                self._lose(delivery)
                return
            newest = self._deliveries.settle(delivery)
            if newest is not None:
                self._due[newest.place] = newest
            self._commit()
            self._maybe_end()

    def rest(self) -> None:
        """Nobody consumes the queue any more."""
        with self._lock:
            self._resting = True
            self._maybe_end()

    def wake(self) -> bool:
        """Somebody consumes the queue again. Returns False for a feed that has ended."""
        with self._lock:
            self._resting = False
            return not self._closed

    def close(self) -> None:
        """Ends it; what is not settled is delivered again."""
        with self._lock:
            self._end()

    def _commit(self) -> None:
        """Commits what is due, as far as masters answer."""
        for place, newest in list(self._due.items()):
            try:
                self._consumer.commit(newest.message)
            except LockLost:
                self._lose(newest)
            except RetriableError as error:
                logger.warning("commit is put off place=%s error=%s", place, error)
                continue
            del self._due[place]

    def _lose(self, delivery: Delivery) -> None:
        logger.warning(
            "messages are delivered again, their lock was lost place=%s offset=%s",
            delivery.place,
            delivery.offset,
        )
        self._deliveries.lose(delivery)

    def _maybe_end(self) -> None:
        if not self._resting or self._closed or self._due:
            return
        requeued = sum(not each.lost for each in self._again)
        if len(self._deliveries) <= requeued:  # others get what was requeued
            self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(SemelError):
                self._commit()
            self._consumer.close()


def _delivery(message: Message) -> Delivery:
    return Delivery(
        message=message,
        place=Place(message.topic, message.queue),
        token=message.rows.token,
        offset=message.offset,
    )
