"""Strangers at a Kafka gateway's port: requests of all APIs, good, changed and cut, on many
connections at once.

How it works. Each connection sends some requests, reads what comes for a moment, and goes away, in
any state. Nothing is asked of the answers: what counts is that the gateway lives, says nothing of a
mistake of its own, and serves everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Sequence

from semel.protos import compat
from tests.fuzz.mutation import mutated

CALLERS = 24
PER_CONNECTION = 4
PATIENCE_S = 0.1
_GOOD = 0.5
"""The part of the requests that stay as they are."""


async def assault(address: str, corpus: Sequence[bytes], *, requests: int, seed: int) -> int:
    """Sends so many requests, and returns how many bytes of answers came."""
    left = [requests]
    found = await asyncio.gather(
        *(
            _caller(address, corpus, left, random.Random(f"{seed} {number}"))
            for number in range(CALLERS)
        )
    )
    return sum(found)


async def _caller(
    address: str, corpus: Sequence[bytes], left: list[int], rng: random.Random
) -> int:
    received = 0
    while left[0] > 0:
        count = rng.randint(1, PER_CONNECTION)
        left[0] -= count
        with contextlib.suppress(OSError):
            received += await _visit(address, [_frame(rng, corpus) for _ in range(count)], rng)
    return received


def _frame(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    data = rng.choice(corpus)
    if rng.random() >= _GOOD:
        data = mutated(rng, data, corpus)
    length = len(data)
    if rng.random() < 0.02:
        length = rng.choice((0, -1, 7, length // 2, length + 5, 2**31 - 1))
    return struct.pack(">i", length) + data


async def _visit(address: str, frames: Sequence[bytes], rng: random.Random) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = 0
    try:
        for frame in frames:
            cut = frame[: rng.randrange(len(frame))] if rng.random() < 0.02 else frame
            writer.write(cut)
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(PATIENCE_S):
                while data := await reader.read(1 << 16):
                    received += len(data)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return received
