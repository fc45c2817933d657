"""A few seeds of the simulated clusters, as tests of mutants.

Each seed is one test, so that one fails soon. Each kind of world takes part, because each reaches
code that the others do not reach.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.world.parts.deliveries import run_delivery
from tests.world.soak import run_seeds

_KINDS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "plain": ((), 24),
    "controllers": (("controllers",), 12),
    "moves": (("moves",), 12),
    "splits": (("splits",), 8),
    "delays": (("delays",), 8),
    "transactions": (("transactions",), 12),
}
"""Kinds of worlds: features beyond those of a plain world, and the number of seeds to run."""
_DELIVERIES: Final = 8


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, (_, seeds) in _KINDS.items() for seed in range(seeds)]
)
def test_world(kind: str, seed: int) -> None:
    _, failures, _ = run_seeds([seed], more=_KINDS[kind][0])
    assert not failures


@pytest.mark.parametrize("seed", range(_DELIVERIES))
def test_deliveries(seed: int) -> None:
    _, failure = run_delivery(seed)
    assert not failure
