"""`./run soak previous`: a cluster of the release before becomes one of this tree, under load.

Each round is for one store of the controllers: their own (three of them replicate it), and one in a
ZooKeeper. A stream of Spark copies a topic meanwhile. The older program is built from the newest
tag of a release. While there is none, or with `--stand-in`, it is this tree's own commit at a lower
feature level.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.previous import Previous, previous_release, stand_in
from tests.kit.rolled_release import upgrade_cluster
from tests.kit.zookeeper import running_server

STORES = ("embedded", "zookeeper")


def main(arguments: list[str]) -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="./run soak previous", description=(__doc__ or "").partition(": ")[2]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--controllers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--store", choices=STORES, help="only this one")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="semel-previous-") as name:
        home = Path(name)
        tagged = None if options.stand_in else previous_release(home / "tagged")
        previous = tagged or stand_in(home / "stand-in")
        print(f"the release before: {previous.name}", flush=True)
        stores = STORES if options.store is None else (options.store,)
        for number in range(options.rounds):
            for store in stores:
                began = time.monotonic()
                place = home / f"{store}-{number}"
                sent = _round(previous, place, store, options.controllers, not options.no_spark)
                seconds = time.monotonic() - began
                told = f"{sent} sends, none failed, {seconds:.0f} s"
                print(f"round {number + 1}, {store}: {told}", flush=True)
    return 0


def _round(previous: Previous, place: Path, store: str, controllers: int, spark: bool) -> int:
    if store == "embedded":
        return upgrade_cluster(previous, place, controllers=controllers, spark=spark)
    with running_server(place / "zookeeper") as server:
        metadata = f"zookeeper://{server.address}/{secrets.token_hex(8)}"
        return upgrade_cluster(
            previous, place, controllers=controllers, metadata=metadata, spark=spark
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
