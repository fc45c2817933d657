"""Log lines of very many programs through some gateways, beside one producer at the same rate.

How it works. 100,000 programs send one line a second each. They do so through `--gateways`
gateways, each a client of its own with a share of the programs, or all through one producer. The
key of a line is its program. Producers gather lines for `--linger-ms`, so that lines of different
keys travel and are stored as one batch. Processor time is that of the broker nodes and the
controller, without the gateways.

    cpu_s_per_million   of all nodes
    stored_bytes        that a line takes in a queue, headers included
    late_s              how much a gateway was behind its rate at worst
    gateway_cpu_…       processor time of the gateways themselves

    python -m benchmarks.merging [--gateways 50] [--rate 100000] [--linger-ms 100]

Not here: producers that share a client (`spread.py`), clients that are idle (`attached.py`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import psutil

from benchmarks.commands import guarded
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    number,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.workloads import SERVE_S, ClientProcess
from semel.client import Client, connect
from tests.kit.cluster import Cluster

QUEUES = 4
PROCESSES = 2
"""Processes that the gateways are spread over."""


class GatewayProcess(ClientProcess):
    """One process of `merging_client.py`."""

    MODULE = "benchmarks.merging_client"


class Lines:
    """A cluster that takes log lines."""

    def __init__(self, cluster: Cluster, client: Client, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._topics = (f"lines-{number}" for number in itertools.count())

    def run(self, gateways: int) -> Mapping[str, float]:
        """Sends lines for a while through so many gateways."""
        options, topic = self._options, next(self._topics)
        self._client.admin.create_topic(topic, queues=QUEUES)
        processes = min(gateways, PROCESSES)
        before = self._cpu_s()
        with ExitStack() as stack:
            running = [
                stack.enter_context(
                    GatewayProcess(
                        "gateways",
                        bootstrap=self._cluster.bootstrap,
                        topic=topic,
                        count=gateways // processes,
                        rate=options.rate // processes,
                        seconds=round(options.seconds),
                        linger_ms=options.linger_ms,
                        first=at * options.rate // processes,
                    )
                )
                for at in range(processes)
            ]
            results = [process.result() for process in running]
        used = self._cpu_s() - before
        queues = self._client.admin.describe_topic(topic).queues
        messages = sum(result["messages"] for result in results)
        stored = sum(queue.log_end_offset for queue in queues)
        assert stored == messages + gateways, f"{stored} lines are stored, {messages} were sent"
        self._client.admin.delete_topic(topic)
        return {
            "cpu_s_per_million": used / messages * 1e6,
            "stored_bytes": sum(queue.bytes for queue in queues) / stored,
            "late_s": max(result["late_s"] for result in results),
            "gateway_cpu_s_per_million": sum(one.cpu_s for one in running) / messages * 1e6,
        }

    def _cpu_s(self) -> float:
        times = [psutil.Process(node.pid).cpu_times() for node in self._cluster.nodes]
        return float(sum(each.user + each.system for each in times))


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    one, many = "one producer", f"{options.gateways} gateways"
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        cluster.wait_caught_up(timeout=SERVE_S)
        lines = Lines(cluster, client, options)
        comparison = compare(
            f"{options.rate:,} lines of 100 B a second, gathered for {options.linger_ms:g} ms",
            [
                Contender(name=one, run=partial(lines.run, 1)),
                Contender(name=many, run=partial(lines.run, options.gateways)),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender=many, metric="cpu_s_per_million", at_most=1.5, of=one),
                Target(contender=many, metric="stored_bytes", at_most=1.5, of=one),
            ],
        )
    return report(comparison, options)


def main() -> int:
    """Command line."""
    parser = arguments(
        "Measure what gathering by gateways costs the cluster.", rounds=3, seconds=15
    )
    parser.add_argument("--gateways", type=number(2, 1_000), default=50)
    parser.add_argument("--rate", type=number(10_000, 1_000_000), default=100_000)
    parser.add_argument("--linger-ms", type=decimal(0, 10_000), default=100)
    options = parser.parse_args()
    require_disk(parser, options.data, 8 << 30)
    return guarded(partial(run, options))


if __name__ == "__main__":
    sys.exit(main())
