"""Produce throughput: the SDK's bulk call on three replicas, beside the floor in one run.

How it works. One anonymous producer sends lists of distinct, incompressible values with `send_many`
for a few seconds and flushes; only acknowledged messages (durable on two of three) count, and the
time ends with the last acknowledgement. The floor moves raw batches the same way with no broker
logic at all. `--arrow` passes Arrow arrays instead of lists.

    python -m benchmarks.produce [--message-bytes 1k] [--queues 4] [--compression none|lz4|zstd]

Not here: one message at a time (`latency.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from benchmarks.floor import NODE_FILE_BYTES, Floor
from benchmarks.harness import (
    BATCH_BYTES_MAX,
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
from semel.client import Client, connect
from tests.kit.cluster import Cluster

CALL_BYTES = 4 << 20
"""Bytes passed with one call of `send_many`."""
RETENTION_BYTES = 256 << 20
"""Retention of a queue, so that a long run does not fill the disk."""
FLUSH_SECONDS = 60.0


class BulkProducer:
    """Sends the same values again and again for a while."""

    def __init__(self, client: Client, topic: str, values: list[bytes], **options: Any) -> None:
        self._producer = client.producer(**options)
        self._topic = topic
        self._values = values
        self._column: list[bytes] | pa.Array = values

    def use_arrow(self) -> None:
        """Pass an Arrow array from now on."""
        self._column = pa.array(self._values, pa.binary())

    def run(self, seconds: float) -> Mapping[str, float]:
        """`mb_s` of values and `messages_s`, both acknowledged."""
        calls = 0
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            self._producer.send_many(self._topic, self._column)
            calls += 1
        self._producer.flush(FLUSH_SECONDS)
        elapsed = time.perf_counter() - start
        count = calls * len(self._values)
        return {
            "mb_s": count * len(self._values[0]) / elapsed / 1e6,
            "messages_s": count / elapsed,
        }


def main() -> int:
    """Command line."""
    parser = arguments("Compare the SDK's bulk produce with the floor.")
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=1 << 10)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument("--compression", choices=["none", "lz4", "zstd"], default="none")
    parser.add_argument(
        "--batch-bytes", type=number(1, BATCH_BYTES_MAX), default=None, help="the SDK's if none"
    )
    parser.add_argument(
        "--floor-batch-bytes", type=number(1, BATCH_BYTES_MAX), default=64 << 10, help="the floor's"
    )
    parser.add_argument(
        "--in-flight", type=number(1, 10_000), default=32, help="the floor's window"
    )
    parser.add_argument("--arrow", action="store_true", help="hand over Arrow arrays, not lists")
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * NODE_FILE_BYTES + 12 * RETENTION_BYTES)
    sdk_options: dict[str, object] = {"compression": options.compression}
    if options.batch_bytes is not None:
        sdk_options["batch_bytes"] = options.batch_bytes
    values = random_values(max(1, CALL_BYTES // options.message_bytes), options.message_bytes)
    with (
        temporary_directory(options.data) as data,
        Floor(data) as floor,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("produce", queues=options.queues, retention_bytes=RETENTION_BYTES)
        bulk = BulkProducer(client, "produce", values, **sdk_options)
        if options.arrow:
            bulk.use_arrow()
        comparison = compare(
            f"Produce: {options.message_bytes:,} B messages, {options.queues} queues, 3 replicas, "
            f"acknowledged when on two disks, compression {options.compression}",
            [
                Contender(
                    name="floor",
                    run=lambda: floor.append(
                        options.floor_batch_bytes, options.seconds, options.in_flight
                    ),
                ),
                Contender(name="send_many", run=lambda: bulk.run(options.seconds)),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[Target(contender="send_many", metric="mb_s", at_least=0.7, of="floor")],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
