"""`./run soak previous`: a cluster of the release before becomes one of this tree, under load.

The older program is built from the newest tag of a release. While there is none, or with
`--stand-in`, it is this tree's own commit at a lower feature level.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.previous import previous_release, stand_in
from tests.kit.rolled_release import upgrade_cluster


def main(arguments: list[str]) -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run soak previous", description=(__doc__ or "").partition(": ")[2]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--controllers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="semel-previous-") as name:
        home = Path(name)
        tagged = None if options.stand_in else previous_release(home / "tagged")
        previous = tagged or stand_in(home / "stand-in")
        print(f"the release before: {previous.name}", flush=True)
        for number in range(options.rounds):
            began = time.monotonic()
            sent = upgrade_cluster(
                previous, home / f"cluster-{number}", controllers=options.controllers
            )
            seconds = time.monotonic() - began
            print(f"round {number + 1}: {sent} sends, none failed, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
