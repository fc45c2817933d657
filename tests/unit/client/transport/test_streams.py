"""How long a client waits for a broker that is slow to open a stream."""

from __future__ import annotations

from typing import Any, cast

import pytest

from semel.client.transport.connection import Purpose
from semel.client.transport.streams import Streams
from semel.protos.errors import TimedOut, Unavailable


class SlowBrokers:
    """Connections whose calls end with an error, and which note how long each might have taken."""

    def __init__(self) -> None:
        self.limits: list[float] = []
        self.error: Exception = TimedOut("no answer")

    async def call(
        self, address: str, service: Any, method: str, request: Any, timeout_s: float
    ) -> Any:
        self.limits.append(timeout_s)
        raise self.error


async def test_a_broker_that_did_not_answer_in_time_gets_twice_as_long_each_time() -> None:
    brokers = SlowBrokers()
    streams = Streams(cast(Any, brokers), direct=True, patience_s=1.5)
    for _ in range(5):
        with pytest.raises(TimedOut):
            await streams.open("b:1", Purpose.PRODUCE)
    with pytest.raises(TimedOut):
        await streams.open("b:2", Purpose.FETCH)
    assert brokers.limits == [1.5, 3.0, 6.0, 12.0, 12.0, 1.5]


async def test_a_broker_that_refuses_gets_no_longer() -> None:
    brokers = SlowBrokers()
    brokers.error = Unavailable("connection refused")
    streams = Streams(cast(Any, brokers), direct=True, patience_s=1.5)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await streams.open("b:1", Purpose.PRODUCE)
    assert brokers.limits == [1.5, 1.5, 1.5]
