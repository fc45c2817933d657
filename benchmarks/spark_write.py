"""Spark's sink: rows per second written exactly once, beside a sink that throws them away.

How it works. Spark makes the rows once and keeps them in memory. Every round writes all of them to
a topic, staged by the tasks and committed by the driver, and to a Python sink that takes the same
Arrow batches and drops them, which no Python sink can exceed. The topic's messages are counted
after each round, so a round that wrote anything else fails.

    python -m benchmarks.spark_write [--messages 2000000] [--message-bytes 132]

Not here: reading (`spark_read.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster

TOPIC = "written"
MESSAGE_BYTES_MAX = 256
"""Length of two SHA-512 digests in hexadecimal digits."""
PARTITIONS = 4


def dropping() -> type[DataSource]:
    """A sink that counts rows. Made in a function so that workers get it by value."""

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for batch in iterator:
                assert batch.num_columns == 1
            return WriterCommitMessage()

        def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
            assert all(messages)

    class Sink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "dropping"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return Sink


def timed(frame: DataFrame, rows: int, form: str, **options: str) -> Mapping[str, float]:
    """Times one write of all rows."""
    start = time.perf_counter()
    frame.write.format(form).options(**options).mode("append").save()
    return {"rows_s": rows / (time.perf_counter() - start)}


def stored(client: Client) -> int:
    """The number of messages that were ever stored in the topic."""
    return sum(queue.log_end_offset for queue in client.admin.describe_topic(TOPIC).queues)


def main() -> int:
    """Command line."""
    parser = arguments("Measure Spark's sink.", rounds=3)
    parser.add_argument("--messages", type=number(1, 1 << 30), default=2_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=132)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument("--cores", type=number(1, 1_024), default=2, help="of local Spark")
    options = parser.parse_args()
    rows, size = options.messages, options.message_bytes
    require_disk(parser, options.data, 4 * options.rounds * rows * (size + 8) + (1 << 30))
    settings = {"spark.master": f"local[{options.cores}]", "spark.driver.memory": "4g"}
    # Spark first: it forks, and gRPC complains about a fork of a process in which it runs.
    with (
        temporary_directory(options.data) as data,
        spark_session("benchmark", **settings) as spark,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=options.queues)
        spark.dataSource.register(dropping())
        text = "concat(sha2(cast(id as string), 512), sha2(cast(-id as string), 512))"
        frame = spark.range(rows, numPartitions=PARTITIONS)
        frame = frame.selectExpr(f"cast(substring({text}, 1, {size}) as binary) as value").cache()
        assert frame.count() == rows

        def sink() -> Mapping[str, float]:
            before = stored(client)
            figures = timed(frame, rows, "semel", bootstrap=cluster.bootstrap, topic=TOPIC)
            assert stored(client) - before == rows
            return figures

        comparison = compare(
            f"Spark: {rows:,} rows of {size} B into a topic, local[{options.cores}]",
            [
                Contender(name="semel", run=sink),
                Contender(name="dropping", run=lambda: timed(frame, rows, "dropping")),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
