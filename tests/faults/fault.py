"""What a fault is, and the table of all of them.

How it works. A fault is a generator: what stands before its `yield` strikes, what stands behind it
heals; it calls `run.bit` wherever it is shown that it has bitten. Because it takes its victims from
`run.victim`, which never gives a broker to two faults, several may be under way at once.

Not here: the faults themselves (`matrix.py`, `pressure.py`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.faults.run import Run

Strike = Callable[[Run, random.Random], Iterator[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row of the matrix."""

    name: str
    text: str
    strike: Strike
    majority: bool
    """Acknowledged writes go on while it lasts."""
    seconds: tuple[float, float]
    """How long it lasts."""
    nodes: int
    """Brokers that it takes."""
    takes: str
    """The process beside the brokers that it takes; empty for none."""
    needs_work: bool
    """Bites only while the brokers run and store what they are sent."""
    chaos: bool
    """May be under way together with another one."""
    unavailable: Callable[[], str]

    def follows(self, other: Fault, brokers: int) -> bool:
        """May strike while `other` is under way, in a group of so many brokers."""
        if self.takes and self.takes == other.takes:
            return False
        return self.nodes + other.nodes <= brokers and (other.majority or not self.needs_work)

    def run(self, run: Run, rng: random.Random) -> contextlib.AbstractContextManager[None]:
        """`with fault.run(run, rng):` the fault lasts."""
        return contextlib.contextmanager(self.strike)(run, rng)


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    name: str,
    *,
    majority: bool = True,
    seconds: tuple[float, float] = (1.0, 3.0),
    nodes: int = 1,
    takes: str = "",
    needs_work: bool = False,
    chaos: bool = True,
    unavailable: Callable[[], str] = lambda: "",
) -> Callable[[Strike], Strike]:
    """Enters a generator into the matrix."""

    def enter(strike: Strike) -> Strike:
        assert name not in FAULTS
        FAULTS[name] = Fault(
            name=name,
            text=(strike.__doc__ or "").strip().splitlines()[0],
            strike=strike,
            majority=majority,
            seconds=seconds,
            nodes=nodes,
            takes=takes,
            needs_work=needs_work,
            chaos=chaos,
            unavailable=unavailable,
        )
        return strike

    return enter
