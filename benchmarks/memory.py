"""A topic in memory beside a durable one, on the same nodes in one run: latency, bulk, disk bytes.

How it works. The contenders take turns on one cluster of three replicas: one message at a time,
awaited, and bulk with `send_many`, to a topic in the log and to one in memory. What the nodes' logs
get meanwhile comes from their metrics.

    python -m benchmarks.memory [--message-bytes 1k] [--queues 4]

Not here: reading (`consume.py`), what is lost with a majority (tests).
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Mapping

from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.latency import sync_round_trips
from benchmarks.produce import CALL_BYTES, RETENTION_BYTES, BulkProducer
from semel.client import connect
from tests.kit.cluster import Cluster

MEMORY_BYTES = 256 << 20
TOPICS = {"log": "in-log", "memory": "in-memory"}


def logged_bytes(cluster: Cluster) -> float:
    """Bytes of entries that the nodes' logs were given so far, from their metrics."""
    found = 0.0
    for node in cluster.brokers:
        address = json.loads(node.output_file.read_text().splitlines()[0])["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("semel_broker_log_appended_bytes_total{"):
                    found += float(line.rpartition(" ")[2])
    return found


def bulk_and_log(cluster: Cluster, bulk: BulkProducer, seconds: float) -> Mapping[str, float]:
    """The figures of a bulk run, and `log_per_byte`: bytes that a node's log gets for each byte of
    values."""
    before, start = logged_bytes(cluster), time.perf_counter()
    figures = bulk.run(seconds)
    sent = figures["mb_s"] * 1e6 * (time.perf_counter() - start)
    each = (logged_bytes(cluster) - before) / len(cluster.brokers)
    return {**figures, "log_per_byte": each / sent}


def main() -> int:
    """Command line."""
    parser = arguments("Compare a topic in memory with a durable one.")
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=1 << 10)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    options = parser.parse_args()
    require_disk(parser, options.data, 12 * RETENTION_BYTES)
    values = random_values(max(1, CALL_BYTES // options.message_bytes), options.message_bytes)
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", broker_flags=["--metrics-port", "0"]) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        for storage, topic in TOPICS.items():
            for name, queues in ((topic, options.queues), (f"{topic}-awaited", 1)):
                client.admin.create_topic(
                    name,
                    queues=queues,
                    retention_bytes=RETENTION_BYTES,
                    storage="memory" if storage == "memory" else "log",
                    memory_bytes=MEMORY_BYTES if storage == "memory" else None,
                )
        bulks = {topic: BulkProducer(client, topic, values) for topic in TOPICS.values()}

        comparison = compare(
            f"Memory: {options.message_bytes:,} B messages, 3 replicas, in the log or in memory",
            [
                *(
                    Contender(
                        name=f"awaited {storage}",
                        run=lambda topic=topic: sync_round_trips(  # type: ignore[misc]
                            client, values[0], options.seconds, f"{topic}-awaited"
                        ),
                    )
                    for storage, topic in TOPICS.items()
                ),
                *(
                    Contender(
                        name=f"bulk {storage}",
                        run=lambda topic=topic: bulk_and_log(  # type: ignore[misc]
                            cluster, bulks[topic], options.seconds
                        ),
                    )
                    for storage, topic in TOPICS.items()
                ),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender="awaited memory", metric="p50_ms", at_most=0.8, of="awaited log"),
                Target(contender="bulk memory", metric="mb_s", at_least=1.3, of="bulk log"),
                Target(contender="bulk memory", metric="log_per_byte", at_most=0.05),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
