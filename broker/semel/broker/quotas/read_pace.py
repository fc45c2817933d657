"""What the fetches of one stream wait for: quotas, and a fair turn.

How it works. A fetch is answered only while no bucket of its principal is below zero, and without
the queues of topics whose bucket is. How much is read is known afterwards, so it is taken out then;
an answer is not larger than what comes in `_ANSWER_S`, so that the debt is small. Debt belongs to
the principal or topic, not to the stream: a client that connects again waits on. A fetch whose time
is over is answered with what it may have, or nothing, and the client asks again.

Not here: when a fetch is answered (`server/fetch.py`), the buckets (`protos/security/meters.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from semel.broker.quotas.broker_quotas import BrokerQuotas, StreamRates
from semel.protos.ids import QueueKey
from semel.protos.security.meters import Meter
from semel.protos.security.quotas import QuotaKind

LOOK_S: Final = 0.2
"""How often that what a fetch waits for is looked at again: quotas may change."""
_ANSWER_S: Final = 0.25
_ANSWER_MIN: Final = 64 << 10


class Wait(NamedTuple):
    """A wait for one meter."""

    seconds: float
    meter: Meter


class ReadPace:
    """What the fetches of one stream wait for."""

    def __init__(self, quotas: BrokerQuotas, principal: str) -> None:
        """`principal` is "" for everybody without a name."""
        self._meters = quotas.meters
        self._rates = StreamRates(quotas, principal)
        self.principal = principal
        self.turns = quotas.read_turns
        self._of_topics = False
        self.turns.enter(principal)

    def close(self) -> None:
        """The stream has ended."""
        self.turns.leave(self.principal)

    @property
    def limits(self) -> bool:
        """Something may limit what the stream reads."""
        if not self._meters.active:
            return False
        self._renew()
        return bool(self._rates.own.read_bytes or self._rates.own.requests or self._of_topics)

    def on_request(self) -> None:
        """A fetch has come."""
        if self.limits:
            now_s = self._meters.clock_s()
            for meter in self._rates.own.requests:
                meter.take(1, now_s)

    def wait(self, keys: Sequence[QueueKey]) -> Wait | None:
        """What a fetch of these queues has to wait for; None if it may be answered."""
        now_s = self._meters.clock_s()
        own = _longest((*self._rates.own.read_bytes, *self._rates.own.requests), now_s)
        if own is not None or not self._of_topics:
            return own
        shortest: Wait | None = None
        for key in keys:
            found = _longest(self._rates.of_topic(key).read_bytes, now_s)
            if found is None:
                return None
            if shortest is None or found.seconds < shortest.seconds:
                shortest = found
        return shortest

    def holds(self, key: QueueKey) -> bool:
        """Whether nothing of the queue's topic may be read now."""
        if not self._of_topics:
            return False
        return _longest(self._rates.of_topic(key).read_bytes, self._meters.clock_s()) is not None

    def room(self, keys: Sequence[QueueKey]) -> int:
        """Bytes that one answer may have."""
        meters = list(self._rates.own.read_bytes)
        if self._of_topics:
            meters += {
                id(meter): meter for key in keys for meter in self._rates.of_topic(key).read_bytes
            }.values()
        rate = min((meter.bucket.rate for meter in meters), default=float("inf"))
        return int(min(max(rate * _ANSWER_S, _ANSWER_MIN), 1 << 40))

    def on_read(self, key: QueueKey, size: int) -> None:
        """The stream is about to send so many bytes of the queue."""
        now_s = self._meters.clock_s()
        for meter in self._rates.own.read_bytes:
            meter.take(size, now_s)
        if self._of_topics:
            for meter in self._rates.of_topic(key).read_bytes:
                meter.take(size, now_s)

    def _renew(self) -> None:
        if self._rates.renew():
            self._of_topics = self._meters.book.has_topics_with(QuotaKind.READ_BYTES)


def _longest(meters: Iterable[Meter], now_s: float) -> Wait | None:
    longest: Wait | None = None
    for meter in meters:
        seconds = meter.bucket.wait_s(now_s)
        if seconds > 0 and (longest is None or seconds > longest.seconds):
            longest = Wait(seconds, meter)
    return longest
