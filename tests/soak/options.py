"""What the command lines of several soaks share."""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator

from tests.faults.run import RESUME_S


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The option that says how long after healing acknowledged writes must be back."""
    parser.add_argument(
        "--resume",
        type=float,
        default=RESUME_S,
        metavar="SECONDS",
        help="writes are back so long after healing; more where other loads share the machine",
    )


def kill_rounds(
    prog: str, description: str | None, arguments: list[str], *, round_minutes: float, rate: float
) -> argparse.Namespace:
    """Reads the command line of a soak that kills in rounds, each with a seed of its own: minutes,
    round_minutes, seed, rate (messages per second) and plant. Prints the seed. Ends the program if
    a number is not above 0."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="for how long [30]")
    add("--round-minutes", type=float, default=round_minutes, help=f"a round's [{round_minutes:g}]")
    add("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    add("--rate", type=float, default=rate, help=f"messages per second [{rate:g}]")
    add("--plant", action="store_true", help="run with a bug, which must be noticed")
    options = parser.parse_args(arguments)
    if min(options.minutes, options.round_minutes, options.rate) <= 0:
        parser.error("want --minutes, --round-minutes and --rate above 0")
    print(f"seed {options.seed}", flush=True)
    return options


def rounds(options: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """Yields the seed of each round of `kill_rounds`, and for how many seconds it goes on, until
    the time is over."""
    deadline = time.monotonic() + options.minutes * 60
    for seed in itertools.count(options.seed):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        yield seed, min(left, options.round_minutes * 60)
