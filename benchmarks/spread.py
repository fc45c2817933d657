"""A thousand producers on a thousand queues, and a second broker group, beside one of each.

How it works. Small messages go to one cluster in turn from one producer to a topic of four queues,
and from a thousand producers in one process to a topic of a thousand queues, each to a queue of its
own. Calls are equally large on both sides, so only the number of producers and queues differs; a
loop of `send()` is measured, too. Another cluster has two broker groups, which lets a topic use
more cores where the machine has them. CPU is that of all nodes and the client.

    python -m benchmarks.spread [--messages 2000000] [--producers 1000] [--queues 1000]

Not here: queues and producers that are idle (`growth.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial

from benchmarks.commands import guarded
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.workloads import SERVE_S, ClientProcess, measured
from semel.client import connect
from tests.kit.cluster import Cluster

FEW_QUEUES = 4
FEW, MANY = "few", "many"
SEND_SHARE = 4
"""A loop of `send()` sends one message for this many of the bulk calls."""
RETENTION_BYTES = 64 << 20
"""Approximate retention of all queues of a topic together, so that a long run does not fill
the disk."""


class SpreadClient(ClientProcess):
    """One process of `spread_client.py`."""

    MODULE = "benchmarks.spread_client"


class Load:
    """A load of messages to one cluster with two topics."""

    def __init__(self, cluster: Cluster, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._options = options
        self._queues = {FEW: FEW_QUEUES, MANY: options.queues}
        with connect(cluster.bootstrap, keep_routes=False) as client:
            for topic, queues in self._queues.items():
                retention = max(1 << 20, RETENTION_BYTES // queues)
                client.admin.create_topic(topic, queues=queues, retention_bytes=retention)

    def run(self, topic: str, how: str, producers: int) -> Mapping[str, float]:
        """The rate, and the CPU seconds per million messages."""
        options = self._options
        client = SpreadClient(
            "spread",
            bootstrap=self._cluster.bootstrap,
            topic=topic,
            records=options.messages // (SEND_SHARE if how == "send" else 1),
            size=options.message_bytes,
            how=how,
            producers=producers,
            queues=self._queues[topic],
        )
        result, cpu_s = measured(self._cluster, client)
        return {
            "msg_s": result["messages"] / result["seconds"],
            "cpu_s_per_million": cpu_s / result["messages"] * 1e6,
        }


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    producers, queues = options.producers, options.queues
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "one") as one,
        Cluster(data / "two", groups=2) as two,
    ):
        for cluster in (one, two):
            cluster.wait_caught_up(timeout=SERVE_S)
        load, two_groups = Load(one, options), Load(two, options)
        contenders = []
        targets = []
        for how, name in (("send_many", "send_many"), ("send", "send()")):
            few = f"{name}, 1 producer, {FEW_QUEUES} queues"
            many = f"{name}, {producers:,} producers, {queues:,} queues"
            contenders += [
                Contender(name=few, run=partial(load.run, FEW, how, 1)),
                Contender(name=many, run=partial(load.run, MANY, how, producers)),
            ]
            targets.append(Target(contender=many, metric="msg_s", at_least=0.7, of=few))
        contenders.append(
            Contender(
                name=f"send_many, 1 producer, {FEW_QUEUES} queues, two groups",
                run=partial(two_groups.run, FEW, "send_many", 1),
            )
        )
        comparison = compare(
            f"Spread: messages of {options.message_bytes} B",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=targets,
        )
    return report(comparison, options)


def main() -> int:
    """Command line."""
    parser = arguments("Measure many producers and queues, and two broker groups.", rounds=5)
    parser.add_argument("--messages", type=number(10_000, 1 << 30), default=2_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=100)
    parser.add_argument("--producers", type=number(2, 10_000), default=1_000)
    parser.add_argument("--queues", type=number(1, 10_000), default=1_000)
    options = parser.parse_args()
    volume = options.messages * (options.message_bytes + 8)
    require_disk(parser, options.data, 3 * 5 * volume * (options.rounds + 1) + (2 << 30))
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
