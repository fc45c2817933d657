"""Spark batch read: rows per second of a whole topic, beside a source that has the rows in memory.

How it works. A topic is filled once; every round sums the lengths of all values and counts the rows
in local Spark: with all columns, with the value alone (a user's schema prunes), with offsets alone
(nothing is fetched), and from a Python source that yields as many equal rows from memory as Arrow,
which no Python source can exceed. The sums are checked, so a round that read anything else fails.
Meanwhile the largest worker's resident memory is watched.

    python -m benchmarks.spark_read [--messages 5000000] [--message-bytes 132]

Not here: consumers and readers without Spark (`consume.py`), streams (`spark_stream.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

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
from semel.client import connect
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster

TOPIC = "spark"
CALL_BYTES = 4 << 20
BATCH_BYTES = 256 << 10
WORKER_MB_MAX = 512
RATIO_MIN = 0.5


class WorkerMemory:
    """The largest resident memory of any Python worker while it is watched."""

    def __enter__(self) -> WorkerMemory:
        self.bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "pyspark.daemon" in process.cmdline():
                        self.bytes = max(self.bytes, process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


def timed(frame: DataFrame, volume: str, expected: tuple[int, int]) -> Mapping[str, float]:
    """Times one pass over all rows, and asserts that exactly these arrived."""
    with WorkerMemory() as memory:
        start = time.perf_counter()
        row = frame.selectExpr(volume, "count(*)").first()
        seconds = time.perf_counter() - start
    assert row is not None
    assert tuple(row) == expected, f"{tuple(row)} instead of {expected}"
    assert memory.bytes, "no worker was seen"
    return {"rows_s": expected[1] / seconds, "worker_mb": memory.bytes / (1 << 20)}


def in_memory(schema: StructType, rows: int, message_bytes: int, parts: int) -> type[DataSource]:
    """A source of `rows` rows made beforehand, which yields the same batch again and again.

    Made in a function so that workers get it by value: they cannot import this program."""
    per_batch = max(1, BATCH_BYTES // message_bytes)

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [
                InputPartition(rows * (n + 1) // parts - rows * n // parts) for n in range(parts)
            ]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import os

            from pyspark.sql.pandas.types import to_arrow_schema

            kinds = to_arrow_schema(schema, timezone="UTC")
            body = os.urandom(per_batch * message_bytes)
            made: dict[str, Any] = {
                "key": pa.nulls(per_batch, pa.binary()),
                "value": [
                    body[at : at + message_bytes] for at in range(0, len(body), message_bytes)
                ],
                "topic": ["spark"] * per_batch,
            }
            columns = [
                made[each.name]
                if isinstance(made.get(each.name), pa.Array)
                else pa.array(made.get(each.name, range(per_batch)), each.type)
                for each in kinds
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=kinds)
            left = partition.value
            while left > 0:
                yield batch.slice(0, min(left, per_batch))
                left -= per_batch

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "memory"

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Source


def main() -> int:
    """Command line."""
    parser = arguments("Measure Spark's batch read.", rounds=3)
    parser.add_argument("--messages", type=number(1, 1 << 30), default=5_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=132)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument("--cores", type=number(1, 1_024), default=2, help="of local Spark")
    options = parser.parse_args()
    size = options.message_bytes
    require_disk(parser, options.data, 4 * options.messages * (size + 8) + (1 << 30))
    values = random_values(min(options.messages, max(1, CALL_BYTES // size)), size)
    calls = -(-options.messages // len(values))
    count = calls * len(values)
    # Spark first: it forks, and gRPC complains about a fork of a process in which it runs.
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
            ends = [q.log_end_offset for q in client.admin.describe_topic(TOPIC).queues]
        source = spark.read.format("semel")
        source = source.options(bootstrap=cluster.bootstrap, subscribe=TOPIC)
        everything = source.load()
        pruned = source.schema("value binary").load()
        offsets = source.schema("offset long").load()
        spark.dataSource.register(in_memory(everything.schema, count, size, options.cores))
        memory = spark.read.format("memory").load()
        lengths, whole = "sum(length(value))", (count * size, count)
        sums = (sum(end * (end - 1) // 2 for end in ends), count)
        comparison = compare(
            f"Spark: batch read of {count:,} messages of {size} B, local[{options.cores}]",
            [
                Contender(name="all columns", run=lambda: timed(everything, lengths, whole)),
                Contender(name="value alone", run=lambda: timed(pruned, lengths, whole)),
                Contender(name="offset alone", run=lambda: timed(offsets, "sum(offset)", sums)),
                Contender(name="from memory", run=lambda: timed(memory, lengths, whole)),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(
                    contender="all columns", metric="rows_s", of="from memory", at_least=RATIO_MIN
                ),
                Target(contender="all columns", metric="worker_mb", at_most=WORKER_MB_MAX),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
