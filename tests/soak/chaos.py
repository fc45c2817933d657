"""Random pairs of faults on real processes under continuous load: `./run soak chaos`.

How it works. Each round is a cluster, three processes of producers, consumers and probers, and a
seed that decides which two faults overlap, whom they hit and how long they last. A round ends with
both checkers over every node's files and the whole history; the first bad one ends the soak, with
its files kept and its seed printed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.faults.campaign import chaos_round
from tests.soak.options import add_resume


def main(arguments: list[str] | None = None) -> int:
    """Runs rounds until the time is over; returns 1 at the first bad one."""
    parser = argparse.ArgumentParser(prog="./run soak chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--round", type=float, default=60.0, help="seconds of load in a round")
    add_resume(parser)
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.round <= 0 or options.resume <= 0:
        parser.error("--minutes, --round and --resume must be above 0")
    began = time.monotonic()
    total: Counter[str] = Counter()
    seed = options.seed
    while time.monotonic() - began < options.minutes * 60:
        directory = Path(tempfile.mkdtemp(prefix=f"semel-chaos-{seed}-"))
        try:
            verdict = chaos_round(directory / "run", seed, options.round, resume_s=options.resume)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            print(f"FAILED with seed {seed}; its files are in {directory}")
            return 1
        shutil.rmtree(directory)
        total += Counter(verdict.faults)
        minutes = (time.monotonic() - began) / 60
        print(f"{minutes:6.1f} min, seed {seed}: {verdict}", flush=True)
        seed += 1
    struck = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    print(f"{seed - options.seed} rounds without a violation; {struck}")
    return 0 if total else 1
