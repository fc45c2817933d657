"""Many seeds of the embedded metadata store: `./run soak metadata --seeds 0:2000 --jobs 2`.

Every failing seed is printed with its error; the status is 1 when one failed. `--seeds N:N+1` runs
one again.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections import Counter
from multiprocessing import get_context

from tests.unit.controller.store.embedded.storm import storm


def run_seed(seed: int) -> tuple[int, Counter[str], str]:
    """(seed, what happened, the error)"""
    logging.disable(logging.CRITICAL)
    try:
        counts = storm(seed, size=5 if seed % 5 == 4 else 3).counts
    except Exception:
        return seed, Counter(), traceback.format_exc(limit=-4)
    return seed, counts, ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run soak metadata", description=__doc__)
    parser.add_argument("--seeds", default="0:500", metavar="A:B", help="half-open range")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)) or options.jobs < 1:
        parser.error(f"want --seeds A:B with A < B and --jobs of 1 or more, not {options.seeds!r}")
    seen: Counter[str] = Counter()
    failed = done = 0
    with get_context("spawn").Pool(options.jobs) as pool:
        for seed, counts, error in pool.imap_unordered(run_seed, range(int(first), int(end))):
            done += 1
            seen += counts
            if error:
                failed += 1
                print(f"\nseed {seed} failed\n{error}", flush=True)
            print(f"\r{done} seeds, {failed} failed ", end="", flush=True)
    print("\n" + ", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
