"""The whole fault matrix on real processes, fault by fault: `./run soak faults`.

How it works. Each fault has a cluster and a load of its own, lasts as long as the seed says, and
ends with both checkers over every node's files (`tests/faults`). A fault that this machine cannot
inject is left out, loudly, and the exit status is 0 only if nothing failed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.faults.campaign import matrix_round
from tests.faults.matrix import FAULTS
from tests.soak.options import add_resume


def main(arguments: list[str] | None = None) -> int:
    """Runs what was asked for; returns 1 when a run was found bad."""
    parser = argparse.ArgumentParser(prog="./run soak faults", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name all faults and end")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; repeat")
    parser.add_argument("--seed", type=int, default=1, help="decides victims and durations")
    parser.add_argument("--rounds", type=int, default=1, help="each fault so often, other seeds")
    parser.add_argument("--longest", type=float, default=60, help="seconds of the longest fault")
    parser.add_argument("--keep", type=Path, help="directory for the files of runs that failed")
    add_resume(parser)
    options = parser.parse_args(arguments)
    if options.list:
        for fault in FAULTS.values():
            why = fault.unavailable()
            print(f"  {fault.name:28} {fault.text}{f' [not here: {why}]' if why else ''}")
        return 0
    unknown = sorted(set(options.only or ()) - FAULTS.keys())
    if unknown or options.rounds < 1 or options.longest <= 0:
        parser.error(f"no such fault: {', '.join(unknown)}" if unknown else "senseless numbers")
    results: list[tuple[str, int, str, str]] = []
    for seed in range(options.seed, options.seed + options.rounds):
        for name in options.only or FAULTS:
            why = FAULTS[name].unavailable()
            if why:
                print(f"LEFT OUT {name}: {why}", flush=True)
                results.append((name, seed, "left out", why))
                continue
            began = time.monotonic()
            status, text = _one(name, seed, options)
            results.append((name, seed, status, text))
            took = time.monotonic() - began
            print(f"{status:8} {name} seed {seed} ({took:.0f} s): {text}", flush=True)
    print("\nfault                        seed  result")
    for name, seed, status, _ in results:
        print(f"{name:28} {seed:4}  {status}")
    bad = sum(status == "FAILED" for _, _, status, _ in results)
    good = sum(status == "survived" for _, _, status, _ in results)
    print(f"{good} survived, {bad} failed, {len(results) - good - bad} left out")
    return 1 if bad or not good else 0


def _one(name: str, seed: int, options: argparse.Namespace) -> tuple[str, str]:
    """One run of one fault, in a directory that stays if it failed and `--keep` was given."""
    with tempfile.TemporaryDirectory(prefix="semel-faults-") as scratch:
        keep: Path | None = options.keep
        directory = keep / f"{name}-{seed}" if keep is not None else Path(scratch) / "run"
        try:
            verdict = matrix_round(
                directory, [name], seed, longest_s=options.longest, resume_s=options.resume
            )
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return "FAILED", f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}"
        if keep is not None:
            shutil.rmtree(directory)
        return "survived", str(verdict)
