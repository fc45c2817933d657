"""Simulated clusters of each kind, one after the other in one process: what `./run test` runs on
other Pythons. Prints the failed seeds, and how they are repeated; exits with status 1 if one has
failed.

Not here: many seeds and processes (`./run soak sim`).
"""

from __future__ import annotations

import sys

from tests.pythons.others import KINDS, option_of
from tests.world.soak import THIRD, run_chunk, watch_unraisable


def main(arguments: list[str]) -> int:
    """Command line: the first seed and the one behind the last."""
    first, end = map(int, arguments)
    watch_unraisable()
    failed = 0
    for kind in KINDS:
        parts = () if kind == "plain" else (kind,)
        for seed, error in run_chunk(range(first, end), more=(*parts, THIRD))[1]:
            failed += 1
            repeat = " ".join((f"--seeds {seed}:{seed + 1}", *option_of(kind)))
            print(f"seed {seed} failed (./run soak sim {repeat}): {error}")
    print(f"{len(KINDS)} kinds of {end - first} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
