"""Spark batch read: rows per second of a whole topic through the data source.

How it works. A topic is filled once; every round sums the lengths of all values and counts the rows
in local Spark, once with all columns and once with the value alone (a user's schema prunes). The
sums are checked, so a round that read something else fails.

    python -m benchmarks.spark_read [--messages 4m] [--message-bytes 132]

Not here: consumers and readers without Spark (`consume.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from pyspark.sql import DataFrame

from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    arguments,
    compare,
    number,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import connect
from semel.spark_connector import spark_session
from tests.integration.cluster import Cluster

TOPIC = "spark"
CALL_BYTES = 4 << 20


def timed(frame: DataFrame, count: int, message_bytes: int) -> Mapping[str, float]:
    """One pass over all rows. Asserts that exactly they came."""
    start = time.perf_counter()
    row = frame.selectExpr("sum(length(value))", "count(*)").first()
    seconds = time.perf_counter() - start
    assert row is not None
    assert tuple(row) == (count * message_bytes, count), f"{tuple(row)} of {count} messages"
    return {"rows_s": count / seconds, "mb_s": count * message_bytes / seconds / 1e6}


def main() -> int:
    """Command line."""
    parser = arguments("Measure Spark's batch read.", rounds=3)
    parser.add_argument("--messages", type=number(1, 1 << 30), default=4_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=132)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument("--cores", type=number(1, 1_024), default=2, help="of local Spark")
    options = parser.parse_args()
    require_disk(
        parser, options.data, 4 * options.messages * (options.message_bytes + 8) + (1 << 30)
    )
    values = random_values(
        min(options.messages, max(1, CALL_BYTES // options.message_bytes)), options.message_bytes
    )
    calls = -(-options.messages // len(values))
    count = calls * len(values)
    # Spark first: it forks, and gRPC complains about forks of a process that it is at work in.
    with (
        temporary_directory(options.data) as data,
        spark_session("benchmark", **{"spark.master": f"local[{options.cores}]"}) as spark,
        Cluster(data / "cluster") as cluster,
    ):
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic(TOPIC, queues=options.queues)
            with client.producer() as producer:
                for _ in range(calls):
                    producer.send_many(TOPIC, values)
                producer.flush(300)
        source = spark.read.format("semel")
        source = source.options(bootstrap=cluster.bootstrap, subscribe=TOPIC)
        everything = source.load()
        pruned = source.schema("value binary").load()
        comparison = compare(
            f"Spark: batch read of {count:,} messages of {options.message_bytes} B, "
            f"local[{options.cores}]",
            [
                Contender(
                    name="all columns",
                    run=lambda: timed(everything, count, options.message_bytes),
                ),
                Contender(
                    name="value alone", run=lambda: timed(pruned, count, options.message_bytes)
                ),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
