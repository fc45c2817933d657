"""Memory of nodes to which very many producers and consumers are attached and idle.

How it works. One controller, one broker, one topic to write and one to read. Client processes open
producers that store one message each and consumers that hold one queue each, in groups of ten. An
application has `--each` of both and its own connections. When all are attached and have been idle
for `--seconds`, memory is read.

    broker_mib, controller_mib   resident memory of the largest of each kind, in MiB
    …_empty_mib                  the same before any client was attached
    broker_cores, …              CPU used in that time
    attached_s                   how long it took to attach all
    kept                         share of the consumers that are members of their groups at the end

    ./run bench attached [--attached 10000] [--each 5]

Not here: the clients (`attached_client.py`); memory by stored messages (`memory_restart.py`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping

import psutil

from benchmarks.attached_client import MEMBERS, READ, WRITTEN
from benchmarks.client_processes import client_processes
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster, Node

MIB = 1 << 20
KINDS = ("broker", "controller")


class Idle:
    """A cluster with clients."""

    def __init__(self, cluster: Cluster, client: Client, consumers: int, seconds: float) -> None:
        self._cluster = cluster
        self._client = client
        self._consumers = consumers
        self._seconds = seconds
        self._empty = self._resident()
        self.attached_s = 0.0

    def rest(self) -> Mapping[str, float]:
        """Leaves all clients idle for a while and measures the nodes."""
        before = [_cpu(node) for node in self._cluster.nodes]
        start = time.perf_counter()
        time.sleep(self._seconds)
        took = time.perf_counter() - start
        cores = [
            (_cpu(node) - used) / took
            for node, used in zip(self._cluster.nodes, before, strict=True)
        ]
        figures = {f"{kind}_mib": resident for kind, resident in self._resident().items()}
        figures |= {f"{kind}_empty_mib": resident for kind, resident in self._empty.items()}
        for kind in KINDS:
            figures[f"{kind}_cores"] = max(
                used
                for node, used in zip(self._cluster.nodes, cores, strict=True)
                if node.kind == kind
            )
        figures["attached_s"] = self.attached_s
        groups = self._client.admin.group_summaries()
        figures["kept"] = sum(group.members for group in groups) / self._consumers
        return figures

    def _resident(self) -> dict[str, float]:
        """Resident memory of the largest node of each kind, in MiB."""
        return {
            kind: max(node.resident_bytes() for node in self._cluster.nodes if node.kind == kind)
            / MIB
            for kind in KINDS
        }


def _cpu(node: Node) -> float:
    """CPU seconds that the process has used."""
    times = psutil.Process(node.pid).cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def attached(
    cluster: Cluster, applications: int, each: int, processes: int, *, start: int = 0
) -> Iterator[float]:
    """Runs client processes with applications from number `start` on.

    Yields the seconds that it took to attach all.
    """
    share = -(-applications // processes)
    module = [sys.executable, "-m", "benchmarks.attached_client"]
    module += [cluster.controller_address, cluster.master().address, "--each", str(each)]
    commands = []
    for first in range(0, applications, share):
        part = ["--first", str(start + first)]
        part += ["--applications", str(min(share, applications - first))]
        commands.append([*module, *part])
    began = time.monotonic()
    with client_processes(commands, f"  attaching {2 * applications * each:,} …") as running:
        yield time.monotonic() - began
        for process in running:
            if process.poll() is not None:
                raise RuntimeError("a client process has ended early; see its error above")


def main() -> int:
    """Command line."""
    parser = arguments("Measure the memory of nodes with idle clients.", rounds=1, seconds=20)
    parser.add_argument("--attached", type=number(2 * MEMBERS, 100_000), default=10_000)
    parser.add_argument("--each", type=number(1, 1_000), default=5)
    parser.add_argument("--processes", type=number(1, 64), default=4)
    options = parser.parse_args()
    applications = -(-options.attached // (2 * options.each))
    require_disk(parser, options.data, 2 << 30)
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", brokers=1) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        for topic in (WRITTEN, READ):
            client.admin.create_topic(topic, queues=MEMBERS)
        idle = Idle(cluster, client, applications * options.each, options.seconds)
        with attached(cluster, applications, options.each, options.processes) as idle.attached_s:
            comparison = compare(
                f"{2 * applications * options.each:,} idle producers and consumers",
                [Contender(name="idle", run=idle.rest)],
                rounds=options.rounds,
                warm_ups=0,
                targets=[
                    Target(contender="idle", metric="broker_mib", at_most=400),
                    Target(contender="idle", metric="controller_mib", at_most=400),
                    Target(contender="idle", metric="kept", at_least=1),
                ],
            )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
