"""Seeds of worlds whose story is more than a plan's: run in order, or many of them on demand.

Not here: the stories (`two_lives.py`, `two_sites.py`), worlds of one plan (`soak.py`).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from tests.world.planted import Plant


class Story(Protocol):
    """Runs one seed."""

    def __call__(
        self,
        seed: int,
        *,
        plant: AbstractContextManager[object] | None = None,
        traced: bool = False,
    ) -> tuple[Counter[str], str, list[str]]:
        """What was seen, what failed, and the trace."""


def until_seen(story: Story, seeds: Iterable[int], wanted: Counter[str]) -> Counter[str]:
    """Runs seeds in order until all of `wanted` has happened so often. Raises AssertionError when a
    seed fails, and when the seeds end before."""
    seen, tried = Counter[str](), 0
    for seed in seeds:
        found, error, _ = story(seed)
        assert not error, f"seed {seed}: {error}"
        seen += found
        tried += 1
        if not wanted - seen:
            return seen
    raise AssertionError(f"too rare in {tried} seeds, by so many: {dict(wanted - seen)}")


def failure_of(story: Story, seeds: Iterable[int], plant: Plant) -> str:
    """The error with which the planted bug is found. Raises AssertionError if it is not."""
    for seed in seeds:
        _, error, _ = story(seed, plant=plant())
        if error:
            return error
    raise AssertionError(f"{plant.__name__} survived {seeds}")


def main(story: Story, name: str, arguments: list[str] | None, *, seeds: str = "0:500") -> int:
    """Command line of `./run soak NAME`; by default it runs `seeds`."""
    parser = argparse.ArgumentParser(prog=f"./run soak {name}")
    parser.add_argument("--seeds", default=seeds, metavar="A:B", help="half-open range")
    parser.add_argument("--trace", action="store_true", help="one seed only: the whole trace")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        parser.error(f"want --seeds A:B with A < B, not {options.seeds!r}")
    if options.trace:
        _, error, trace = story(int(first), traced=True)
        print("\n".join([*trace, error or "no failure"]))
        return 1 if error else 0
    seen, failed, began = Counter[str](), 0, time.monotonic()
    for number, seed in enumerate(range(int(first), int(end)), 1):
        found, error, _ = story(seed)
        seen += found
        if error:
            failed += 1
            print(f"\nseed {seed} failed: {error}", flush=True)
        seconds = time.monotonic() - began
        print(f"\r{number} seeds, {failed} failed, {seconds:.0f} s ", end="", flush=True)
    print()
    for event, times in sorted(seen.items()):
        print(f"{times:>12,}  {event}")
    return 1 if failed else 0
