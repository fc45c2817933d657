"""Many topics: how fast metadata changes, a controller's memory, how soon a client starts.

How it works. Three controllers, one broker. Topics of ten queues each are created one after the
other, up to the number asked for. With all topics there, producers are opened by name (one
transaction each), topics are altered, and clients connect, learn one topic and write to it.

    change      99th percentile of one change of metadata, in ms, and the same for a whole new topic
    resident    memory of the active controller, in MiB
    start       from `connect` to the first acknowledgement of a new client, in s, the worst

    python -m benchmarks.metadata_scale [--topics 1000] [--controllers 1|3] [--rounds 1]

Not here: many messages (`produce.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    percentile,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.protos.v1.controller_pb2 import OpenProducerRequest
from tests.kit.cluster import Cluster

QUEUES = 10
CHANGES = 100
STARTS = 10
MIB = 1 << 20


class Scale:
    """A cluster with many topics."""

    def __init__(self, cluster: Cluster, client: Client, topics: int) -> None:
        self._cluster = cluster
        self._client = client
        self._topics = topics
        self._round = 0

    def grow(self) -> Mapping[str, float]:
        """Creates all topics; returns the 99th percentile of one creation in ms."""
        took = [
            _timed(partial(self._client.admin.create_topic, f"topic-{number}", queues=QUEUES))
            for number in range(self._topics)
        ]
        return {
            "create_p50_ms": percentile(took, 50) * 1e3,
            "create_p99_ms": percentile(took, 99) * 1e3,
        }

    def run(self) -> Mapping[str, float]:
        """Runs one round with all topics there."""
        self._round += 1
        client = self._client
        opened = [
            _timed(partial(self._open, f"producer-{self._round}-{n}")) for n in range(CHANGES)
        ]
        altered = [
            _timed(partial(client.admin.alter_topic, f"topic-{n}", retention_ms=3_600_000 + n))
            for n in range(min(CHANGES, self._topics))
        ]
        starts = [_timed(partial(self._start, n)) for n in range(STARTS)]
        active = self._cluster.active_controller()
        return {
            "change_p50_ms": percentile(opened, 50) * 1e3,
            "change_p99_ms": percentile(opened, 99) * 1e3,
            "alter_p99_ms": percentile(altered, 99) * 1e3,
            "start_worst_s": max(starts),
            "resident_mib": active.resident_bytes() / MIB,
        }

    def _open(self, name: str) -> None:
        session = self._client._session
        request = OpenProducerRequest(name=name, open_id=name.encode())
        session.run(session.cluster.controller("OpenProducer", request))

    def _start(self, number: int) -> None:
        with connect(self._cluster.bootstrap) as client, client.producer() as producer:
            producer.send(f"topic-{number}", b"x").result(30)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Command line."""
    parser = arguments("Measure metadata with many topics and queues.", rounds=1)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--controllers", type=int, choices=[1, 3], default=3)
    options = parser.parse_args()
    require_disk(parser, options.data, 2 << 30)
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", brokers=1, controllers=options.controllers) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        scale = Scale(cluster, client, options.topics)
        grown = scale.grow()
        comparison = compare(
            f"{options.topics} topics, {options.topics * QUEUES} queues",
            [Contender(name="changes", run=scale.run)],
            rounds=options.rounds,
            warm_ups=0,
            targets=[
                Target(contender="changes", metric="change_p99_ms", at_most=50),
                Target(contender="changes", metric="resident_mib", at_most=200),
                Target(contender="changes", metric="start_worst_s", at_most=1),
            ],
        )
        comparison.rounds["growing"] = [grown]
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
