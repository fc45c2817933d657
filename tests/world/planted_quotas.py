"""Bugs in quotas, and what becomes of them: the ledgers and the treasurer must find each.

Not here: how many seeds each may take (`test_quotas.py`).
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from semel.broker.control_plane.rights_copy import RightsCopy
from semel.broker.quotas import write_pace
from semel.broker.quotas.broker_quotas import StreamRates
from semel.broker.quotas.open_producers import OpenProducers
from semel.broker.quotas.read_pace import ReadPace
from semel.broker.quotas.topic_amounts import TopicAmounts
from semel.broker.quotas.write_pace import WritePace
from semel.protos.security.buckets import Bucket
from semel.protos.security.meters import Meter, Meters


def lets_all_messages_pass() -> Any:
    """What comes too early is taken out of the bucket, and nobody waits."""
    return patch.object(write_pace, "_left_s", lambda costs, now_s: 0.0)


def counts_no_batches_of_topics() -> Any:
    """Quotas of topics hold nothing."""
    return patch.object(WritePace, "hold", lambda *_: False)


def gives_each_stream_the_whole_rate() -> Any:
    """Those who open more streams get more."""
    renew = StreamRates.renew

    def renewed(self: Any) -> bool:
        changed = renew(self)
        if changed:
            own = self.own
            for kind in ("write_bytes", "messages", "requests"):
                meters = tuple(_Copy(meter) for meter in getattr(own, kind))
                self.own = own = _with(own, kind, meters)
        return changed

    return patch.object(StreamRates, "renew", renewed)


class _Copy(Meter):
    """A meter beside another one."""

    def __init__(self, meter: Meter) -> None:
        self.owner, self.kind = meter.owner, meter.kind
        self.bucket = Bucket(meter.bucket.rate, 0.0)
        self.throttled_s = self.used = 0.0
        self.waited = False


def _with(rates: Any, kind: str, meters: tuple[Meter, ...]) -> Any:
    copy = type(rates)(())
    for name in ("messages", "read_bytes", "requests", "write_bytes"):
        setattr(copy, name, getattr(rates, name))
    setattr(copy, kind, meters)
    return copy


def looks_seldom() -> Any:
    """A stream that waits sleeps on when it may go on."""
    left_s = write_pace._left_s

    def longer(costs: Any, now_s: float) -> float:
        found = left_s(costs, now_s)
        return found + 0.5 if found > 0 else 0.0

    return patch.multiple(write_pace, _left_s=longer, LOOK_S=2.0)


def reads_for_nothing() -> Any:
    """What was read is not counted."""
    return patch.object(ReadPace, "on_read", lambda *_: None)


def serves_all_calls() -> Any:
    """Quotas of requests limit streams alone."""
    return patch.object(Meters, "take_request", lambda *_: None)


def counts_calls_twice() -> Any:
    """A user gets half of its requests."""
    take = Meters.take_request

    def twice(self: Any, principal: str) -> None:
        take(self, principal)
        for meter in self.rates_of_principal(principal).requests:
            meter.take(1, self.clock_s())

    return patch.object(Meters, "take_request", twice)


def keeps_the_first_limit() -> Any:
    """A bucket that is in use keeps its rate when the quota is changed."""
    return patch.object(Bucket, "set_rate", lambda *_: None)


def hears_quotas_once() -> Any:
    """A broker goes by the quotas that it has heard first after its start."""
    take = RightsCopy._take

    def first(self: Any, address: str, record: Any) -> None:
        if self._record is None or not self._record.quotas:
            take(self, address, record)

    return patch.object(RightsCopy, "_take", first)


def opens_any_number() -> Any:
    """Open producers are not counted."""
    return patch.object(OpenProducers, "_reached", lambda *_: None)


def counts_producers_for_ever() -> Any:
    """A producer that is open already is refused when there is no room for another one."""
    on_open = OpenProducers.on_open

    def refused(self: Any, principal: str, producer_id: int) -> None:
        if heard := self._heard.get(principal):
            heard.pop(producer_id, None)
            heard[-producer_id] = self._meters.clock_s()
        on_open(self, principal, producer_id)

    return patch.object(OpenProducers, "on_open", refused)


def delays_any_number() -> Any:
    """Topics get more delayed and staged bytes than their quota."""
    return patch.object(TopicAmounts, "refusal", lambda *_: None)


def counts_all_topics_together() -> Any:
    """What one topic has makes others full."""
    return patch.object(TopicAmounts, "_delayed", lambda self, _: 1 << 20)
