"""One worker of an assault: sends inputs of several kinds until it has sent enough.

Not here: what the kinds send (`assault.py`, `strangers.py`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio

from tests.fuzz.liar import Tally

Kind = tuple[float, str, Callable[[random.Random], Awaitable[int]]]
"""Up to which chance it is drawn (the last one's is 1), its name, and what sends some inputs and
returns how many."""


async def send_kinds(
    rng: random.Random,
    kinds: Sequence[Kind],
    inputs: int,
    *,
    ends_s: float,
    tally: Tally,
    name: str,
) -> None:
    """Sends about so many `inputs`, none after `ends_s` of the monotonic clock; counts them in
    `tally` under the `name` of the caller."""
    left = inputs
    while left > 0 and time.monotonic() < ends_s:
        chance = rng.random()
        kind, send = next((kind, send) for limit, kind, send in kinds if chance < limit)
        try:
            count = await send(rng)
        except (OSError, TimeoutError, grpc.aio.BaseError):
            count = 1
        tally.sent[f"{name} {kind}"] += count
        left -= count
