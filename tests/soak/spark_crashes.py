"""Every crash point of an exactly-once copy by a real Spark: `./run soak spark-crashes`.

Each case kills somebody at one point of the write, lets Spark go on or starts the application
again, and compares both topics by their digests (`tests/spark/crashes.py`). Exits with status 1
when a copy differs, or nobody was killed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.spark.crashes import CRASHES, AnotherCopy, Copied, Copy, Crash

COUNT = 5_000
SOURCE = "source"


def one(crash: Crash, directory: Path) -> Copied:
    """One case on a cluster of its own."""
    brokers = 3 if crash.victim == "master" else 1
    with (
        Cluster(directory / "cluster", brokers=brokers) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        fill(client)
        return Copy(cluster, client, SOURCE, directory / "copy").under(crash)


def fill(client: Client) -> None:
    """The messages to copy."""
    client.admin.create_topic(SOURCE, queues=3)
    with client.producer() as producer:
        values = [b"\xff%d" % number for number in range(COUNT)]
        keys = [b"k%d" % number if number % 3 else None for number in range(COUNT)]
        producer.send_many(SOURCE, values, keys=keys)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="./run soak spark-crashes", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name all cases and end")
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; repeat")
    parser.add_argument("--keep", type=Path, help="directory for the files of all cases")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="each so often")
    options = parser.parse_args(arguments)
    if options.list:
        for crash in CRASHES.values():
            print(f"  {crash.name:22} {crash.text}")
        return 0
    unknown = sorted(set(options.only or ()) - CRASHES.keys())
    if unknown or options.rounds < 1:
        parser.error(f"no such case: {', '.join(unknown)}" if unknown else "--rounds from 1 on")
    failed = 0
    for name in [*(options.only or CRASHES)] * options.rounds:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="semel-crash-") as scratch:
                said = _judged(CRASHES[name], (options.keep or Path(scratch)) / name)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stderr)
            said = "FAILED"
        print(f"{name:20} {time.monotonic() - began:4.0f} s  {said}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


def _judged(crash: Crash, directory: Path) -> str:
    """What a case has shown. Raises AssertionError if that is not what it must show."""
    try:
        copied = one(crash, directory)
    except AnotherCopy:
        if not crash.planted:
            raise
        return "found"
    assert not crash.planted, "a copy that is another was taken for the same"
    return (
        f"survived: {copied.messages} messages, {copied.digest[:12]} on both sides,"
        f" {copied.lives} lives"
    )
