"""Runs of single faults and of random pairs, each with its verdict: `./run soak faults`, `chaos`.

How it works. A seed decides everything that is chosen. A round of the matrix strikes with one fault
(some faults share a round, one after the other, to save the start of a cluster); a round of chaos
strikes with random pairs, the second one while the first one lasts.

Not here: the faults (`matrix.py`), the verdict (`run.py`), the command lines (`tests/soak`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.matrix import FAULTS, Fault
from tests.faults.run import RESUME_S, Run, Verdict


def strike(run: Run, fault: Fault, rng: random.Random, longest_s: float = 60.0) -> None:
    """One fault from its beginning to the next acknowledged write after its end."""
    seconds = min(longest_s, rng.uniform(*fault.seconds))
    with fault.run(run, rng):
        until = time.monotonic() + seconds
        if fault.majority:
            run.go_on(30, timeout=run.resume_s + seconds)
        time.sleep(max(0.0, until - time.monotonic()))
    run.healed()


def matrix_round(
    directory: Path,
    names: Sequence[str],
    seed: int,
    *,
    longest_s: float = 60.0,
    resume_s: float = RESUME_S,
) -> Verdict:
    """These faults, one after the other, on one cluster. Raises what is wrong."""
    rng = random.Random(seed)
    with Run(directory, seed=seed, resume_s=resume_s) as run:
        for name in names:
            strike(run, FAULTS[name], rng, longest_s)
            run.cluster.wait_caught_up(timeout=20 + run.resume_s)
        return run.finish()


def chaos_round(
    directory: Path, seed: int, seconds: float, *, resume_s: float = RESUME_S
) -> Verdict:
    """Random pairs of faults under load for so long, then the verdict. Raises what is wrong."""
    rng = random.Random(seed)
    chosen = [each for each in FAULTS.values() if each.chaos and not each.unavailable()]
    with Run(directory, seed=seed, crews=3, resume_s=resume_s) as run:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            first, second = rng.sample(chosen, 2)
            if not second.follows(first, len(run.cluster.brokers)):
                continue
            with first.run(run, rng):
                time.sleep(rng.uniform(0.0, 1.0))
                with second.run(run, rng):
                    time.sleep(rng.uniform(*second.seconds))
                time.sleep(rng.uniform(*first.seconds) / 2)
            run.healed()
            # Nobody counts a node that lost its directory before it has caught up: with it away the
            # next fault would take the majority, and others need one.
            lost = "lose-directory" in (first.name, second.name)
            if rng.random() < 0.5 or lost:
                run.cluster.wait_caught_up(timeout=20 + run.resume_s)
        return run.finish()
