"""`./run soak [NAME] [ARGUMENT...]`: the long runs; without NAME, their list."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

SOAKS: Final = {
    "raft": ("tests.sim.soak", "the Raft core in a simulated cluster, many thousand seeds"),
    "sim": ("tests.world.soak", "whole simulated clusters: production nodes, controller, SDK"),
    "restores": ("tests.world.two_lives", "clusters that are lost and restored from their tiers"),
    "mirrors": ("tests.world.two_sites", "clusters at two sites, mirrored, lost and promoted"),
    "deliveries": ("tests.world.parts.deliveries", "the same, with consumers that reject messages"),
    "metadata": (
        "tests.unit.controller.store.embedded.soak",
        "the controllers' replicated metadata in a simulated world",
    ),
    "kills": ("tests.soak.kills", "real loads while masters, loaders and controllers are killed"),
    "faults": ("tests.soak.faults", "every fault of the matrix on real processes, one by one"),
    "chaos": ("tests.soak.chaos", "random pairs of faults on real processes under load"),
    "zookeeper": (
        "tests.soak.zookeeper",
        "the store in a ZooKeeper that is cut off and killed",
    ),
    "hdfs": ("tests.soak.hdfs", "a tier in a real HDFS that is paused, under kills of brokers"),
    "spark": (
        "tests.soak.spark",
        "streams of a real Spark over topics that are split, under kills",
    ),
    "spark-crashes": (
        "tests.soak.spark_crashes",
        "an exactly-once copy by Spark, killed at each point of its writes",
    ),
    "transactions": (
        "tests.soak.transactions",
        "commits over two broker groups while masters are killed",
    ),
    "steady": ("tests.soak.steady", "half an hour of load, after which nothing may have grown"),
    "damage": ("tests.soak.damage", "bytes of one node's files flipped, again and again"),
    "kombu": ("tests.soak.kombu", "Kombu's own tests on the transport and a real cluster"),
    "web": ("tests.soak.web", "the web console in a real Chromium, also while a master dies"),
    "promtool": (
        "tests.soak.promtool",
        "the alert rules and all metrics pages before Prometheus' own tool, built with Go",
    ),
    "container": (
        "tests.soak.container",
        "the image, built by Debian's buildah, and a broker group run from it",
    ),
    "helm": (
        "tests.soak.helm",
        "the chart, rendered by Helm, validated, and run as processes of this machine",
    ),
    "fuzz": ("tests.soak.fuzz", "bad input to every decoder and to every port"),
    "kafka-requests": (
        "tests.soak.kafka_requests",
        "bad requests to a Kafka gateway, beside a producer and a consumer",
    ),
    "kafka-java": (
        "tests.soak.kafka_java",
        "Kafka's own command line tools before two gateways, also under kills",
    ),
    "kafka-clients": (
        "tests.soak.kafka_clients",
        "tests that Kafka's clients have of their own, and kcat, before two gateways",
    ),
    "kafka-connect": (
        "tests.soak.kafka_connect",
        "Kafka Connect, standalone and distributed, before two gateways, also under kills",
    ),
    "kafka-spark": (
        "tests.soak.kafka_spark",
        "Spark's own Kafka connector before two gateways: reads, a sink, a stream under kills",
    ),
    "kafka-flink": (
        "tests.soak.kafka_flink",
        "Flink's own Kafka connector before two gateways that are killed: exactly once, and a copy",
    ),
    "kafka-kills": (
        "tests.soak.kafka_kills",
        "an idempotent librdkafka while masters, gateways and it itself are killed",
    ),
    "kafka-transactions": (
        "tests.soak.kafka_transactions",
        "copies by transactions of librdkafka and Java while all of them are killed or frozen",
    ),
    "pythons": (
        "tests.soak.pythons",
        "all units and many worlds on every other Python of the machine",
    ),
    "previous": (
        "tests.soak.previous",
        "a cluster of the release before becomes one of this tree, under load",
    ),
    "mutants": ("tools.mutation.__main__", "small changes of the code, and what the tests notice"),
}


def main(arguments: list[str]) -> int:
    """Runs one soak and returns its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: ./run soak NAME [ARGUMENT...]; each explains itself with --help\n")
        for name, (_, text) in SOAKS.items():
            print(f"  {name:14} {text}")
        return 0
    name, *rest = arguments
    if name not in SOAKS:
        print(f"error: no such soak: {name}; there are {', '.join(SOAKS)}", file=sys.stderr)
        return 2
    os.environ["SEMEL_ROUTES_DIRECTORY"] = ""  # nothing of a soak stays in the user's files
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    status = importlib.import_module(SOAKS[name][0]).main(rest)
    return int(status or 0)


def _end(number: int, _: FrameType | None) -> NoReturn:
    """Like Ctrl-C: what a soak has started ends with it. A second signal ends it at once, whatever
    it is doing."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
