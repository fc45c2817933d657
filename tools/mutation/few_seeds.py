"""A few seeds of the Raft simulator, as tests of mutants: small pieces, so that one fails soon."""

from __future__ import annotations

import pytest

from tests.sim.cluster import run_seed
from tests.sim.rebuilds import run_rebuilds

REACHES_ALL = True
_PIECES = 12
_SEEDS = 3


@pytest.mark.parametrize("piece", range(_PIECES))
def test_seeds(piece: int) -> None:
    for seed in range(piece * _SEEDS, (piece + 1) * _SEEDS):
        run_seed(seed)


@pytest.mark.parametrize("seed", range(_PIECES))
def test_rebuilds(seed: int) -> None:
    run_rebuilds(seed)
