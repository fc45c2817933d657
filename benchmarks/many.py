"""Many topics: what they cost while nothing happens, while metadata changes, at a restart.

How it works. Topics of some queues each are created on several broker groups. With all topics
there, the processor time of all nodes is taken while nobody does anything; then producers are
opened by name (one transaction each), topics are altered, and clients connect, learn one topic and
write to it. At last all nodes are killed and started again, and topics are created and deleted for
a while beside a client that sends to another one.

    idle        processor time of all nodes, in percent of one core
    resident    memory of the active controller and of the largest broker, in MiB
    change      99th percentile of one change of metadata, in ms
    start       from `connect` to the first acknowledgement of a new client, in s, the worst
    restart     from the start of all nodes to the first acknowledgement, in s
    churn       p99 of awaited messages, beside what it was before; memory and files that stay, and
                the part of that memory (`late_mib`) which the second half took

    python -m benchmarks.many [--topics 10000] [--groups 2] [--controllers 1|3] [--churn-minutes 10]

Not here: many messages (`produce.py`), many clients (`attached.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pyarrow as pa

from benchmarks.commands import Help
from benchmarks.harness import (
    Comparison,
    Target,
    arguments,
    decimal,
    number,
    percentile,
    progress,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.protos.v1.controller_pb2 import OpenProducerRequest
from tests.kit.cluster import Cluster

CHANGES = 100
STARTS = 10
CREATORS = 4
MIB = 1 << 20
SETTLE_S = 5.0
SERVE_S = 60.0
AWAITED_S = 10.0
AWAITED, AWAITED_BYTES = "awaited", 1 << 20
CACHES_BYTES, FILL_ROWS, FILL_BYTES = 64 << 20, 4_096, 1_024
"""A node's caches of its log hold 40 MiB."""
FORGET_S = 20.0
"""How long after the churn the nodes may take to give back what it needed."""


class Many:
    """A cluster with many topics."""

    def __init__(self, cluster: Cluster, client: Client, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options

    def grow(self) -> Mapping[str, float]:
        """Creates all topics, some at a time."""
        start = time.perf_counter()
        with ThreadPoolExecutor(CREATORS) as pool:
            for done, _ in enumerate(pool.map(self._create, range(self._options.topics)), 1):
                if done % 100 == 0:
                    progress(f"  {done:,} of {self._options.topics:,} topics created …")
        progress("")
        return {"topics_s": self._options.topics / (time.perf_counter() - start)}

    def _create(self, topic: int) -> None:
        self._client.admin.create_topic(f"topic-{topic}", queues=self._options.queues)

    def idle(self) -> Mapping[str, float]:
        """Processor time while nobody does anything."""
        time.sleep(SETTLE_S)
        nodes = self._cluster.nodes
        start, before = time.perf_counter(), [_cpu_s(node.pid) for node in nodes]
        time.sleep(self._options.seconds)
        elapsed = time.perf_counter() - start
        used = [_cpu_s(node.pid) - old for node, old in zip(nodes, before, strict=True)]
        return {
            "percent_of_core": sum(used) / elapsed * 100,
            "busiest_node_percent": max(used) / elapsed * 100,
        }

    def resident(self) -> Mapping[str, float]:
        """Resident memory of the active controller, and of the largest broker."""
        return {
            "controller_mib": self._cluster.active_controller().resident_bytes() / MIB,
            "node_mib": max(node.resident_bytes() for node in self._cluster.brokers) / MIB,
        }

    def change(self) -> Mapping[str, float]:
        """Changes of metadata, one after the other, and starts of clients."""
        opened = [_timed(partial(self._open, f"producer-{n}")) for n in range(CHANGES)]
        altered = [
            _timed(partial(self._client.admin.alter_topic, f"topic-{n}", retention_ms=3_600_000))
            for n in range(min(CHANGES, self._options.topics))
        ]
        created = [_timed(partial(self._create, self._options.topics + n)) for n in range(CHANGES)]
        starts = [_timed(partial(self._start, n)) for n in range(STARTS)]
        return {
            "change_p50_ms": percentile(opened, 50) * 1e3,
            "change_p99_ms": percentile(opened, 99) * 1e3,
            "alter_p99_ms": percentile(altered, 99) * 1e3,
            "create_p99_ms": percentile(created, 99) * 1e3,
            "start_worst_s": max(starts),
        }

    def _open(self, name: str) -> None:
        session = self._client._session
        request = OpenProducerRequest(name=name, open_id=name.encode())
        session.run(session.cluster.controller("OpenProducer", request))

    def _start(self, topic: int) -> None:
        with connect(self._cluster.bootstrap) as client, client.producer() as producer:
            producer.send(f"topic-{topic}", b"x").result(SERVE_S)

    def restart(self) -> Mapping[str, float]:
        """Kills all nodes, and starts them."""
        for node in self._cluster.nodes:
            self._cluster.kill(node)
        start = time.perf_counter()
        self._cluster.start(SERVE_S)
        with self._client.producer() as producer:
            producer.send("topic-0", b"again").result(SERVE_S)
        return {"seconds": time.perf_counter() - start}

    def churn(self) -> Mapping[str, float]:
        """Creates and deletes topics beside a client that sends to another one."""
        minutes, rate = self._options.churn_minutes, self._options.churn_topics / 60
        # What is awaited must not count as what the churn has left behind.
        self._client.admin.create_topic(AWAITED, queues=1, retention_bytes=AWAITED_BYTES)
        self._fill_caches()
        before_ms, before = self._awaited(AWAITED_S), self._footprint()
        start, end = time.perf_counter(), time.perf_counter() + minutes * 60
        churned, half = 0, before
        with ThreadPoolExecutor(1) as beside:
            awaited = beside.submit(self._awaited, minutes * 60)
            while time.perf_counter() < end:
                name = f"churned-{churned}"
                self._client.admin.create_topic(name, queues=self._options.queues)
                self._client.admin.delete_topic(name)
                churned += 1
                if half is before and time.perf_counter() > start + minutes * 30:
                    half = self._footprint()
                progress(f"  {churned:,} topics created and deleted …")
                time.sleep(max(0.0, start + churned / rate - time.perf_counter()))
            during_ms = awaited.result()
        took = time.perf_counter() - start
        progress("")
        time.sleep(FORGET_S)
        after = self._footprint()
        return {
            "topics_a_minute": churned / took * 60,
            "p99_before_ms": before_ms,
            "p99_ms": during_ms,
            "p99_ratio": during_ms / before_ms,
            "more_mib": (after["resident"] - before["resident"]) / MIB,
            "late_mib": (after["resident"] - half["resident"]) / MIB,
            "more_files": after["files"] - before["files"],
        }

    def _fill_caches(self) -> None:
        """Sends more than a node's caches hold, to each broker group: they fill up only once."""
        queues = 8 * self._options.groups
        self._client.admin.create_topic("caches", queues=queues, retention_bytes=AWAITED_BYTES)
        with self._client.producer(compression="none") as producer:
            for _ in range(CACHES_BYTES * self._options.groups // (FILL_ROWS * FILL_BYTES)):
                values = pa.array([b"x" * FILL_BYTES] * FILL_ROWS, pa.binary())
                producer.send_many("caches", values)
        self._client.admin.delete_topic("caches")

    def _awaited(self, seconds: float) -> float:
        """The 99th percentile of messages that are awaited one by one for a while, in ms."""
        durations = []
        end = time.perf_counter() + seconds
        with self._client.producer() as producer:
            while time.perf_counter() < end:
                durations.append(_timed(lambda: producer.send(AWAITED, b"x" * 100).result(SERVE_S)))
        return percentile(durations, 99) * 1e3

    def _footprint(self) -> dict[str, float]:
        """Memory of all nodes, and files in their directories."""
        nodes = self._cluster.nodes
        return {
            "resident": sum(node.resident_bytes() for node in nodes),
            "files": sum(1 for node in nodes for _ in node.data.rglob("*")),
        }


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def promised(options: argparse.Namespace) -> list[Target]:
    """The promises."""
    found = [
        Target(contender="idle", metric="percent_of_core", at_most=10),
        Target(contender="resident", metric="controller_mib", at_most=300),
        Target(contender="resident", metric="node_mib", at_most=600),
        Target(contender="change", metric="change_p99_ms", at_most=50),
        Target(contender="change", metric="start_worst_s", at_most=1),
        Target(contender="restart", metric="seconds", at_most=10),
    ]
    if options.churn_minutes:
        found += [
            Target(
                contender="churn", metric="topics_a_minute", at_least=options.churn_topics * 0.95
            ),
            Target(contender="churn", metric="p99_ratio", at_most=2),
        ]
    return found


def main() -> int:
    """Command line."""
    parser = arguments("Measure a cluster with many topics and queues.", rounds=1, seconds=20)
    parser.formatter_class = Help
    parser.epilog = (
        "examples:\n"
        "  ./run bench many\n"
        "  ./run bench many --topics 1000 --groups 1 --controllers 3\n"
        "  ./run bench many --topics 100 --churn-minutes 10"
    )
    parser.add_argument("--topics", type=number(1, 100_000), default=10_000)
    parser.add_argument("--queues", type=number(1, 1_024), default=10, help="of each topic")
    parser.add_argument("--groups", type=number(1, 16), default=2, help="broker groups")
    parser.add_argument("--replicas", type=int, choices=[1, 3], default=3, help="nodes of a group")
    parser.add_argument("--controllers", type=int, choices=[1, 3], default=1)
    parser.add_argument(
        "--churn-minutes",
        type=decimal(0, 600),
        default=1,
        help="how long topics are created and deleted",
    )
    parser.add_argument(
        "--churn-topics", type=number(1, 100_000), default=1_000, help="topics a minute"
    )
    options = parser.parse_args()
    require_disk(parser, options.data, 4 << 30)
    whole = Comparison(
        title=f"{options.topics:,} topics, {options.topics * options.queues:,} queues,"
        f" {options.groups} groups of {options.replicas}"
    )
    with (
        temporary_directory(options.data) as data,
        Cluster(
            data / "cluster",
            brokers=options.replicas,
            groups=options.groups,
            controllers=options.controllers,
        ) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        many = Many(cluster, client, options)
        steps: list[tuple[str, Callable[[], Mapping[str, float]]]] = [
            ("growing", many.grow),
            ("idle", many.idle),
            ("change", many.change),
            ("resident", many.resident),
            ("restart", many.restart),
        ]
        if options.churn_minutes:
            steps.append(("churn", many.churn))
        for name, step in steps:
            progress(f"  {name} …")
            whole.rounds[name] = [step()]
        progress("")
    whole.targets = promised(options)
    return report(whole, options)


if __name__ == "__main__":
    sys.exit(main())
