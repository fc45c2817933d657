"""Latency of one message at a time, awaited, beside the floor's round trip in one run.

How it works. Each message is sent, its acknowledgement (durable on two of three) awaited, then the
next one. Measured through the sync SDK, through asyncio, and as a raw message on the floor.

    python -m benchmarks.latency [--message-bytes 1k]

Not here: throughput (`produce.py`), time without a master (`failover.py`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.floor import NODE_FILE_BYTES, Floor
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    percentile,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect, connect_async
from tests.kit.cluster import Cluster

TOPIC = "latency"
WARM_UP = 50


def sync_round_trips(
    client: Client, value: bytes, seconds: float, topic: str = TOPIC
) -> Mapping[str, float]:
    """Send and wait in the calling thread."""
    with client.producer() as producer:
        for _ in range(WARM_UP):
            producer.send(topic, value).result(30)
        durations = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            producer.send(topic, value).result(30)
            durations.append(time.perf_counter() - start)
    return summary(durations)


async def async_round_trips(bootstrap: str, value: bytes, seconds: float) -> Mapping[str, float]:
    """Send and await on the caller's own loop."""
    async with await connect_async(bootstrap) as client, client.producer() as producer:
        for _ in range(WARM_UP):
            await producer.send(TOPIC, value)
        durations = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            await producer.send(TOPIC, value)
            durations.append(time.perf_counter() - start)
    return summary(durations)


def summary(durations: Sequence[float]) -> Mapping[str, float]:
    """The figures of one run, in milliseconds."""
    return {
        "p50_ms": percentile(durations, 50) * 1e3,
        "p99_ms": percentile(durations, 99) * 1e3,
        "messages_s": len(durations) / sum(durations),
    }


def main() -> int:
    """Command line."""
    parser = arguments("Compare one awaited message at a time with the floor's round trip.")
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=1 << 10)
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * NODE_FILE_BYTES + (1 << 30))
    value = random_values(1, options.message_bytes)[0]
    with (
        temporary_directory(options.data) as data,
        Floor(data) as floor,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=1)
        comparison = compare(
            f"Latency: one {options.message_bytes:,} B message at a time, 3 replicas, "
            "acknowledged when on two disks",
            [
                Contender(
                    name="floor",
                    run=lambda: floor.round_trip(options.message_bytes, options.seconds),
                ),
                Contender(
                    name="sync", run=lambda: sync_round_trips(client, value, options.seconds)
                ),
                Contender(
                    name="asyncio",
                    run=lambda: asyncio.run(
                        async_round_trips(cluster.bootstrap, value, options.seconds)
                    ),
                ),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender="sync", metric="p50_ms", at_most=2, of="floor"),
                Target(contender="asyncio", metric="p50_ms", at_most=2, of="floor"),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
