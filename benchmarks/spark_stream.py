"""Spark streaming with little data: time of a trigger, and from sending a message to the sink.

How it works. A trickle of messages carries the time of sending; a stream with the default trigger
takes them as soon as it can, and its sink (foreachBatch) notes when they arrive, in the same
process, by the same clock. The first seconds do not count. Every message must arrive once. For
comparison a stream runs whose Python source needs no broker: its messages exist once their time
has come. No Python source can be faster than that.

    python -m benchmarks.spark_stream [--seconds 25] [--rate 200]

Not here: large reads (`spark_read.py`).
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    percentile,
    report,
    temporary_directory,
)
from semel.client import Producer, connect
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster

TOPIC = "trickle"
MESSAGE_BYTES = 132
SETTLE_S = 5.0


class Arrivals:
    """The sink, which notes how long each message was under way."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, float]] = []
        """Sending time of each message, and the seconds until it arrived."""

    def __call__(self, frame: DataFrame, _: int) -> None:
        rows = frame.select("value").collect()
        now = time.time_ns()
        for row in rows:
            sent = int.from_bytes(row.value[:8], "big")
            self.taken.append((sent, (now - sent) / 1e9))


def stream(
    source: DataStreamReader, place: Path, trickle: Callable[[], int]
) -> Mapping[str, float]:
    """Runs one stream over the messages of `trickle`, which returns their number."""
    arrivals = Arrivals()
    place.mkdir()
    writer = source.load().writeStream.foreachBatch(arrivals)
    query = writer.option("checkpointLocation", str(place)).start()
    query.processAllAvailable()  # stores where the stream begins
    began = time.time_ns()
    sent = trickle()
    query.processAllAvailable()
    triggers = [
        batch["durationMs"]["triggerExecution"] / 1e3
        for batch in query.recentProgress
        if batch["numInputRows"]
    ]
    triggers = triggers[3:] or triggers  # the first ones warm up
    query.stop()
    taken = arrivals.taken
    assert len(taken) == len({at for at, _ in taken}) == sent, f"{len(taken)} of {sent} came"
    delays = [delay for at, delay in taken if at - began > SETTLE_S * 1e9]
    return {
        "trigger_p50_s": statistics.median(triggers),
        "trigger_p99_s": percentile(triggers, 99),
        "to_sink_p50_s": statistics.median(delays),
        "to_sink_p99_s": percentile(delays, 99),
    }


def send(producer: Producer, seconds: float, rate: int) -> int:
    """Sends `rate` messages a second for `seconds`; returns their number."""
    sent = 0
    stop = threading.Event()
    began = time.time_ns()
    while time.time_ns() - began < seconds * 1e9:
        producer.send(TOPIC, time.time_ns().to_bytes(8, "big") + bytes(MESSAGE_BYTES - 8))
        sent += 1
        stop.wait(max(0.0, began / 1e9 + sent / rate - time.time()))
    producer.flush(60)
    return sent


def by_time(first_ns: int, seconds: float, rate: int) -> type[DataSource]:
    """A source whose message n exists from `first_ns` + n / `rate` on, for `seconds` in all.

    Made in a function so that Spark's processes get it by value: they cannot import this program.
    """
    last = int(seconds * rate)
    step_ns = 1_000_000_000 // rate
    size = MESSAGE_BYTES

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
            import time

            passed = (time.time_ns() - first_ns) // step_ns
            return {"n": max(0, min(last, passed))}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["n"], end["n"]))] if start != end else []

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            times = [first_ns + n * step_ns for n in range(*partition.value)]
            values = [time_ns.to_bytes(8, "big") + bytes(size - 8) for time_ns in times]
            yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "by_time"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    return Source


def wait_for(spark: SparkSession, place: Path, seconds: float, rate: int) -> Mapping[str, float]:
    """Runs the stream whose messages come with time."""
    first_ns = time.time_ns() + 3_000_000_000  # the query has begun by then
    spark.dataSource.register(by_time(first_ns, seconds, rate))

    def pass_time() -> int:
        time.sleep(max(0.0, first_ns / 1e9 + seconds + 0.1 - time.time()))
        return int(seconds * rate)

    return stream(spark.readStream.format("by_time"), place, pass_time)


def main() -> int:
    """Command line."""
    parser = arguments("Measure Spark streaming with little data.", rounds=3, seconds=25)
    parser.add_argument("--rate", type=number(1, 10_000), default=200, help="messages a second")
    options = parser.parse_args()
    if options.seconds <= SETTLE_S:
        parser.error(f"--seconds must be more than {SETTLE_S:g}, which do not count")
    with (
        temporary_directory(options.data) as data,
        spark_session("benchmark", **{"spark.master": "local[2]"}) as spark,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=2)
        source = spark.readStream.format("semel")
        source = source.options(bootstrap=cluster.bootstrap, subscribe=TOPIC)
        seconds, rate = options.seconds, options.rate
        rounds = (data / f"checkpoint-{number}" for number in itertools.count())
        with client.producer() as producer:
            comparison = compare(
                f"Spark: a stream of {rate} messages a second, local[2]",
                [
                    Contender(
                        name="semel",
                        run=lambda: stream(
                            source, next(rounds), lambda: send(producer, seconds, rate)
                        ),
                    ),
                    Contender(
                        name="without a broker",
                        run=lambda: wait_for(spark, next(rounds), seconds, rate),
                    ),
                ],
                rounds=options.rounds,
                warm_ups=options.warm_ups,
            )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
