"""Many seeds, on demand: `python -m tests.sim.soak --seeds 0:20000 --jobs 2`.

Prints progress, every failing seed with its error, and the counters of what happened; exits with
status 1 when a seed failed. One failing seed is looked at again with `--seeds N:N+1`.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from multiprocessing import get_context

from tests.sim.cluster import run_seed

_STRIDE = 50


def run_seeds(seeds: Iterable[int]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """What was seen, and the seeds that failed with the end of their traceback."""
    seen: Counter[str] = Counter()
    failures = []
    for seed in seeds:
        try:
            cluster = run_seed(seed)
        except Exception:
            failures.append((seed, traceback.format_exc(limit=-4)))
        else:
            seen += cluster.checker.seen
            seen["event"] += cluster.events
    return seen, failures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.soak", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", metavar="A:B", help="half-open range")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)) or options.jobs < 1:
        parser.error(f"want --seeds A:B with A < B and --jobs of 1 or more, not {options.seeds!r}")
    chunks = [
        range(start, min(start + _STRIDE, int(end)))
        for start in range(int(first), int(end), _STRIDE)
    ]
    seen: Counter[str] = Counter()
    failed = 0
    started = time.monotonic()
    with get_context("spawn").Pool(options.jobs) as pool:
        for number, (counters, failures) in enumerate(pool.imap(run_seeds, chunks), 1):
            seen += counters
            failed += len(failures)
            for seed, error in failures:
                print(f"\nseed {seed} failed\n{error}", flush=True)
            done = chunks[number - 1].stop - int(first)
            seconds = time.monotonic() - started
            print(f"\r{done} seeds, {failed} failed, {seconds:.0f} s ", end="", flush=True)
    print()
    for name, times in sorted(seen.items()):
        print(f"{times:>12,}  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
