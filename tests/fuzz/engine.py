"""Runs targets over inputs that a seed makes, and keeps what they must not do.

How it works. The inputs of a target are made by a random generator of its own, whose seed is the
name of the target, the seed of the run and the number of the input, so `--only NAME --first N
--inputs 1` repeats input N alone.

Not here: servers (`live.py`).
"""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.targets import Target

MEMORY_BYTES_MAX = 768 << 20
"""How much the largest amount of memory of this process may grow by all inputs together: a decoder
may unpack 64 MiB of a batch, and copy them a few times."""
SLOW_S = 2.0
"""An input that takes more processor time is a finding: the event loop of a broker would stand
still. Decoders wait for nothing, so the time that other programs take is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one input did that none must do."""

    target: str
    seed: int
    number: int
    data: bytes
    error: str

    def __str__(self) -> str:
        shown = self.data.hex() if len(self.data) <= 4096 else f"{len(self.data)} bytes"
        return f"{self.target} seed {self.seed} input {self.number}: {self.error}\n  {shown}"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run saw."""

    findings: list[Finding] = field(default_factory=list)
    inputs: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def run_targets(
    targets: Sequence[Target], *, seed: int, first: int = 0, inputs: int, findings_max: int = 20
) -> Outcome:
    """Gives each target the inputs `[first, first + inputs)`."""
    outcome = Outcome()
    for target in targets:
        before = _peak_bytes()
        for number in range(first, first + inputs):
            data = input_of(target, seed, number)
            began = time.process_time()
            error = ""
            try:
                outcome.refused[target.name] += target.refuses(data)
            except (Exception, RecursionError, MemoryError) as found:
                error = f"{type(found).__name__}: {found}"
            outcome.inputs[target.name] += 1
            if (took := time.process_time() - began) > SLOW_S:
                error = error or f"took {took:.1f} s of processor time"
            if (grown := _peak_bytes() - before) > MEMORY_BYTES_MAX:
                error = error or f"memory grew by {grown >> 20} MiB"
                before += grown
            if error:
                outcome.findings.append(
                    Finding(target=target.name, seed=seed, number=number, data=data, error=error)
                )
                if len(outcome.findings) >= findings_max:
                    return outcome
    return outcome


def input_of(target: Target, seed: int, number: int) -> bytes:
    """One input, the same whenever it is asked for."""
    return target.make(random.Random(f"{target.name} {seed} {number}"))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
