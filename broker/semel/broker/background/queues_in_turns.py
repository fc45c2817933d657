"""Looks at all queues of a node, of which there may be very many, without holding up its loop.

Not here: what is done with a queue that is found (`retention.py`, `compaction_passes.py`, the
figures of `probe.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from semel.broker.state import QueueState, State

_AT_ONCE: Final = 5_000
"""A millisecond's work."""


async def queues_in_turns(
    state: State, wanted: Callable[[QueueState], bool], *, at_once: int = _AT_ONCE
) -> AsyncGenerator[QueueState]:
    """Yields the queues that are wanted, and gives other work its turn after `at_once` queues.

    A queue that is deleted meanwhile may still come, and one that is new may not.
    """
    queues = list(state.queues.values())
    for first in range(0, len(queues), at_once):
        if first:
            await asyncio.sleep(0)
        for queue in filter(wanted, queues[first : first + at_once]):
            yield queue
