"""Ends rows of the sequence tables that were idle for too long, or are too many.

Not here: which rows those are (`state/admission/`), the rows that end at once because new producers
come too fast (`replica/proposer.py`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.replica.replica import Replica

_CHECK_MIN_S: Final = 0.05
_CHECK_MAX_S: Final = 60.0
_QUEUES_AT_ONCE: Final = 256
"""After so many queues the loop's other work has its turn: a node may have very many."""


class ProducerExpiry:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def run(self) -> None:
        """Ends rows that were idle for too long, or are too many, queue by queue."""
        while True:
            quarter_s = self._replica.config.producer_idle_ms / 4_000
            await asyncio.sleep(min(max(quarter_s, _CHECK_MIN_S), _CHECK_MAX_S))
            for number, key in enumerate(self._replica.state.producers.queues()):
                if number % _QUEUES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                self._replica.expire_producers(key)
