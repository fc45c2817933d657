"""Changes bytes at random, as a seed says.

How it works. An input is one of a corpus, which the product's own encoders made, with one to four
changes: bits, bytes, numbers that decoders stumble over, pieces left out, doubled or taken from
another input. Most decoders stop at a wrong checksum, so a target puts its checksums right again
(`targets.py`), and the change reaches what lies behind them.

Not here: what is changed (`targets.py`, `messages.py`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Final

NUMBERS: Final = (0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, 1 << 24)
EDGES: Final = {
    size: (*(each for each in NUMBERS if each < limit), limit // 2 - 1, limit // 2, limit - 1)
    for size, limit in ((1, 1 << 8), (2, 1 << 16), (4, 1 << 32), (8, 1 << 64))
}
_FORMATS: Final = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_PIECE_MAX: Final = 64
_LENGTH_MAX: Final = 1 << 17


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """`data` with one to four changes; pieces may come from `others`."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        _change(rng, changed, others)
    return bytes(changed[:_LENGTH_MAX])


def _change(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(data)) if data else 0
    match rng.randrange(10 if data else 1):
        case 0:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 16)))
        case 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at] = rng.randrange(256)
        case 3 | 4:
            size = rng.choice((1, 2, 4, 8))
            if rng.random() < 0.8:
                at -= at % size
            data[at : at + size] = struct.pack(_FORMATS[size], rng.choice(EDGES[size]))
        case 5:
            size = rng.choice((1, 2, 4, 8))
            found = int.from_bytes(data[at : at + size], "little") + rng.choice((-8, -1, 1, 8))
            data[at : at + size] = (found % (1 << 8 * size)).to_bytes(size, "little")
        case 6:
            del data[at : at + rng.randint(1, _PIECE_MAX)]
        case 7:
            piece = data[at : at + rng.randint(1, _PIECE_MAX)]
            data[at:at] = piece * rng.choice((1, 1, 1, 2, 50))
        case 8:
            other = rng.choice(others)
            start = rng.randrange(len(other)) if other else 0
            data[at : at + rng.choice((0, _PIECE_MAX))] = other[start : start + _PIECE_MAX]
        case _:
            del data[at:]
