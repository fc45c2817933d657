"""`./run soak pythons`: all units and many simulated clusters on every other supported Python.

Each Python runs all units of broker, client, controller and protos, the budgets of a batch, a file
with real processes, and the same seeds of every kind of simulated cluster. What failed is told, and
the rest goes on. Exits with status 1 when something failed, or when there is no other Python.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.pythons.others import (
    KINDS,
    PROCESSES,
    PYTHONS,
    UNITS,
    WORLDS,
    Unsuccessful,
    run_tests,
    run_worlds,
)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="./run soak pythons", description=__doc__)
    parser.add_argument("--seeds", default="0:300", metavar="A:B", help="of each kind, half-open")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--only", action="append", choices=list(PYTHONS), help="this one; repeat")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)) or options.jobs < 1:
        parser.error(f"want --seeds A:B with A < B and --jobs of 1 or more, not {options.seeds!r}")
    if not PYTHONS:
        print("error: there is no other supported Python on this machine", file=sys.stderr)
        return 1
    seeds = range(int(first), int(end))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="semel-pythons-") as scratch:
        for version in options.only or PYTHONS:
            base = Path(scratch) / version
            tests = {"units": (*UNITS, *WORLDS), "processes": PROCESSES}
            for name, files in tests.items():
                failed += _told(version, name, partial(run_tests, version, files, base))
            for kind in KINDS:
                worlds = partial(run_worlds, version, kind, seeds, options.jobs)
                failed += _told(version, f"{len(seeds)} seeds, {kind}", worlds)
    print(f"{failed} failed")
    return 1 if failed else 0


def _told(version: str, name: str, work: Callable[[], object]) -> bool:
    """Does the work and says how it went; returns whether it failed."""
    began, error = time.monotonic(), ""
    try:
        work()
    except Unsuccessful as failure:
        error = str(failure)
    verdict = "FAILED" if error else "passed"
    print(f"{version:8} {name:28} {verdict} in {time.monotonic() - began:.0f} s", flush=True)
    if error:
        print(error, flush=True)
    return bool(error)
