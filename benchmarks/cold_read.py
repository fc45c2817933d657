"""Reading a long log that no cache holds, beside a plain sequential read of the same files.

How it works. A topic of four queues is filled once with 1 KiB messages on three replicas. Before
each read the kernel is told to drop the cached pages of the master's files. /proc shows how much a
process then read from the disk; a read that got less than nine tenths of the log from there is not
a cold read, and the run ends with an error. A consumer's `poll_arrow` reads Semel's log. The floor
is a process that reads the master's own segment files once from start to end and streams the bytes
over gRPC to a client that does not look at them (`cold_read_node.py`).

    python -m benchmarks.cold_read [--log-mib 10240] [--rounds 3]

Not here: reads from a cache (`consume.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.commands import guarded
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    progress,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.side_by_side_client import produce
from benchmarks.workloads import CLIENT_S, ROOT, SERVE_S, ClientProcess
from semel.client import connect
from tests.kit.cluster import Cluster

TOPIC = "cold"
QUEUES = 4
MESSAGE_BYTES = 1 << 10
MIB = 1 << 20
COLD_SHARE = 0.9
"""Share of the log that must come from the disk; a broker's own memory has some 64 MiB of it."""
SMALLEST_MIB = 1024
"""A shorter log is not long compared with a broker's own memory."""


def forget(directory: Path) -> None:
    """Makes the kernel drop all cached pages of a directory's files."""
    for path in files(directory):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(file)  # dirty pages are not dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def files(directory: Path) -> Iterator[Path]:
    """All files below, in the order of their names."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


class ColdLog:
    """A cluster with a long log."""

    def __init__(self, cluster: Cluster, messages: int) -> None:
        self._cluster = cluster
        self._messages = messages
        self._volume = messages * MESSAGE_BYTES

    def fill(self) -> None:
        """Stores the messages."""
        progress(f"  filling: {self._volume // MIB:,} MiB …")
        with connect(self._cluster.bootstrap, keep_routes=False) as client:
            client.admin.create_topic(TOPIC, queues=QUEUES)
        produce(self._cluster.bootstrap, TOPIC, self._messages, MESSAGE_BYTES, "list")
        self._cluster.wait_caught_up(timeout=SERVE_S)
        progress("")

    def consume(self) -> Mapping[str, float]:
        """Reads everything with `poll_arrow`, in a new group."""
        master = self._cluster.master()
        forget(master.data)
        process = psutil.Process(master.pid)
        before = process.io_counters().read_bytes
        with ClientProcess(
            "consume",
            bootstrap=self._cluster.bootstrap,
            topic=TOPIC,
            records=self._messages,
            how="arrow",
        ) as client:
            result = client.result()
        from_disk = process.io_counters().read_bytes - before
        return self._figures(result["messages"] * MESSAGE_BYTES, result["seconds"], from_disk)

    def stream(self) -> Mapping[str, float]:
        """Runs the floor: streams the same files."""
        data = self._cluster.master().data
        paths = [str(path) for path in files(data) if _is_segment(path)]
        forget(data)
        before = psutil.disk_io_counters()
        assert before is not None
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cold_read_node", *paths],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            timeout=CLIENT_S,
            check=True,
        )
        after = psutil.disk_io_counters()
        assert after is not None
        from_disk = after.read_bytes - before.read_bytes
        result = json.loads(done.stdout)
        return self._figures(result["bytes"], result["seconds"], from_disk)

    def _figures(self, volume: int, seconds: float, from_disk: int) -> Mapping[str, float]:
        """The figures of one read. Raises RuntimeError if the read was not cold."""
        if from_disk < COLD_SHARE * self._volume:
            raise RuntimeError(
                f"only {from_disk // MIB:,} of {self._volume // MIB:,} MiB came from the disk: "
                "this was no cold read; give --data a directory on a disk"
            )
        return {"mb_s": volume / seconds / 1e6, "from_disk": from_disk / self._volume}


def _is_segment(path: Path) -> bool:
    return path.stat().st_size >= MIB


def main() -> int:
    """Command line."""
    parser = arguments("Measure reading a log that no cache holds.", rounds=3)
    parser.set_defaults(warm_ups=0)
    parser.add_argument(
        "--log-mib", type=number(SMALLEST_MIB, 1 << 20), default=10 << 10, help="length of the log"
    )
    options = parser.parse_args()
    require_disk(parser, options.data, int(options.log_mib * MIB * 3.2) + (2 << 30))
    return guarded(lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
    ):
        log = ColdLog(cluster, options.log_mib * MIB // MESSAGE_BYTES)
        log.fill()
        comparison = compare(
            f"Cold read of {options.log_mib:,} MiB, {MESSAGE_BYTES} B messages",
            [
                Contender(name="consumer.poll_arrow", run=log.consume),
                Contender(name="plain stream of files", run=log.stream),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(
                    contender="consumer.poll_arrow",
                    metric="mb_s",
                    at_least=0.7,
                    of="plain stream of files",
                )
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
