"""One decoder of the product each, with good inputs for it, and what it may answer to bad ones.

How it works. A target has a corpus and a `run`. `run` decodes one input and does with the result
what the product does with it: so what a decoder lets through must also be harmless. It returns, or
raises one of `refusals`, the errors that the decoder's docstring names. Every other exception is a
finding. `seal` puts the checksums of a changed input right.

Not here: the targets themselves (`wire_targets.py`, `stored_targets.py`), the loop (`engine.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.protos.errors import SemelError
from tests.fuzz.mutation import mutated

UNSEALED = 0.1
"""The part of the inputs whose checksums stay wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder."""

    name: str
    corpus: Sequence[bytes]
    run: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = (SemelError,)
    seal: Callable[[bytes, random.Random], bytes] | None = None

    def make(self, rng: random.Random) -> bytes:
        """The next input."""
        data = mutated(rng, rng.choice(self.corpus), self.corpus)
        if self.seal is not None and rng.random() >= UNSEALED:
            data = self.seal(data, rng)
        return data

    def refuses(self, data: bytes) -> bool:
        """Whether the decoder refuses an input, as it may. Raises what it must not raise."""
        try:
            self.run(data)
        except self.refusals:
            return True
        return False
