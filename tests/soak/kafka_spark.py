"""Spark's own Kafka connector before two gateways: `./run soak kafka-spark`.

How it works. The connector's jars come from Maven Central, pinned with their SHA-256
(`tests/kit/jars/spark-kafka.txt`). Spark reads a topic in a batch, whole and in ranges; writes one;
and copies one into another as a stream with a checkpoint, stopped and started again, while a master
and both gateways are killed. What Spark has is compared with what the SDK reads.

It needs Java 17 or newer, and Maven for the first run.

Not here: Semel's own data source for Spark (`spark.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import Client
from semel.client.java import JavaMissing
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.maven import Missing, jars, listed
from tests.kit.verdicts import Verdicts, verdict_of
from tests.soak.kafka_run import chosen, two_gateways

PARTITIONS: Final = 3
KEYS: Final = 60
SOURCE_STEP: Final = 500


class Judged:
    """A cluster with two gateways, and a Spark."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        client: Client,
        gateways: list[KafkaGatewayProcess],
        scratch: Path,
    ) -> None:
        self.spark, self.cluster, self.client, self.gateways = spark, cluster, client, gateways
        self.scratch = scratch
        self.options = {
            "kafka.bootstrap.servers": ",".join(gateway.address for gateway in gateways)
        }

    def fill(self, topic: str, numbers: range) -> None:
        """Messages with keys and a header, by the SDK."""
        with self.client.producer() as producer:
            for number in numbers:
                producer.send(
                    topic, b"%d" % number, key=b"k%d" % (number % KEYS), headers={"h": b"x"}
                )
            producer.flush(60)

    def stored(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of every message, queue by queue, by the SDK."""
        with self.client.reader(topic, end="latest") as reader:
            found = {(m.queue, m.offset): (m.key, m.value) for m in reader}
        return [found[place] for place in sorted(found)]

    def source(self, topic: str, **options: str) -> DataFrame:
        """The topic as a batch."""
        reader = self.spark.read.format("kafka").options(**self.options, subscribe=topic)
        return reader.options(**options).load()

    # --------------------------------------------------------------------------------------- tests

    def batch(self) -> None:
        """A batch read, whole, with headers and in ranges."""
        self.client.admin.create_topic("batch", queues=PARTITIONS)
        self.fill("batch", range(5_000))
        rows = self.source("batch", includeHeaders="true").collect()
        assert sorted(int(row.value) for row in rows) == list(range(5_000))
        assert all(bytes(row.key) == b"k%d" % (int(row.value) % KEYS) for row in rows)
        assert all([(h.key, bytes(h.value)) for h in row.headers] == [("h", b"x")] for row in rows)
        ordered = sorted(rows, key=lambda row: (row.partition, row.offset))
        assert [(bytes(row.key), bytes(row.value)) for row in ordered] == self.stored("batch")
        starts = {str(n): 100 for n in range(PARTITIONS)}
        ends = {str(n): 300 for n in range(PARTITIONS)}
        ranged = self.source(
            "batch",
            startingOffsets=json.dumps({"batch": starts}),
            endingOffsets=json.dumps({"batch": ends}),
            minPartitions="9",
        ).collect()
        places = {(row.partition, row.offset) for row in ranged}
        assert places == {(n, at) for n in range(PARTITIONS) for at in range(100, 300)}

    def timestamps(self) -> None:
        """A batch that begins at a time: a lookup of offsets by time."""
        self.client.admin.create_topic("timed", queues=1)
        self.fill("timed", range(100))
        time.sleep(0.05)
        middle_ms = round(time.time() * 1000)
        time.sleep(0.05)
        self.fill("timed", range(100, 200))
        rows = self.source("timed", startingTimestamp=str(middle_ms)).collect()
        assert sorted(int(row.value) for row in rows) == list(range(100, 200))

    def sink(self) -> None:
        """A batch is written; key, value and partition are what was asked for."""
        self.client.admin.create_topic("sink", queues=PARTITIONS)
        frame = self.spark.range(10_000, numPartitions=4).select(
            concat(lit("k"), col("id").cast("string")).alias("key"),
            col("id").cast("string").alias("value"),
            (col("id") % PARTITIONS).cast("int").alias("partition"),
        )
        frame.write.format("kafka").options(**self.options, topic="sink").save()
        found = self.stored("sink")
        assert sorted(int(value or b"") for _, value in found) == list(range(10_000))
        assert all(key == b"k" + (value or b"") for key, value in found)
        with self.client.reader("sink", end="latest") as reader:
            places = {(m.queue, int(m.value) % PARTITIONS) for m in reader}
        assert len(places) == PARTITIONS, "a row is in another partition than was asked for"
        assert self.client.admin.verify("sink").ok

    def stream(self) -> None:
        """A topic is copied into another by a query that is stopped and started, under kills."""
        for topic in ("from", "into"):
            self.client.admin.create_topic(topic, queues=PARTITIONS)
        filled = 0
        master = self.cluster.master()
        for strike in ("none", "master", "gateway 0", "gateway 1", "none"):
            query = self.copy(available_now=False)
            self.fill("from", range(filled, filled + SOURCE_STEP))
            filled += SOURCE_STEP
            if strike == "master":
                master = self.cluster.master()
                self.cluster.kill(master)
            elif strike.startswith("gateway"):
                self.gateways[int(strike[-1])].kill()
            self.fill("from", range(filled, filled + SOURCE_STEP))
            filled += SOURCE_STEP
            query.processAllAvailable()
            query.stop()
            if strike == "master":
                self.cluster.start_node(master)
            elif strike.startswith("gateway"):
                self.gateways[int(strike[-1])].start()
        self.fill("from", range(filled, filled + SOURCE_STEP))
        filled += SOURCE_STEP
        assert self.copy(available_now=True).awaitTermination(300)
        found = self.stored("into")
        numbers = [int(value or b"") for _, value in found]
        assert sorted(set(numbers)) == list(range(filled)), "the copy lacks messages"
        assert len(numbers) == filled, f"{len(numbers) - filled} messages twice"
        orders: dict[bytes, list[int]] = defaultdict(list)
        for key, value in found:
            orders[key or b""].append(int(value or b""))
        assert all(each == sorted(each) for each in orders.values()), "a key is out of order"
        for topic in ("from", "into"):
            assert self.client.admin.verify(topic).ok

    def copy(self, *, available_now: bool) -> StreamingQuery:
        source: Any = self.spark.readStream.format("kafka").options(
            **self.options,
            subscribe="from",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="400",
        )
        frame = source.load().select("key", "value")
        writer = frame.writeStream.format("kafka").options(
            **self.options, topic="into", checkpointLocation=str(self.scratch / "checkpoint")
        )
        query: StreamingQuery = (
            writer.trigger(availableNow=True) if available_now else writer
        ).start()
        return query


def main(arguments: list[str]) -> int:
    """Runs all tests, or those that are named; returns the exit status."""
    names = ("batch", "timestamps", "sink", "stream")
    about = (__doc__ or "").partition(": ")[2]
    tests = chosen("./run soak kafka-spark", about, arguments, names)
    verdicts = Verdicts()
    [connector] = [each for each in listed("spark-kafka") if ":spark-sql-kafka" in each]
    with tempfile.TemporaryDirectory(prefix="semel-kafka-spark-") as directory:
        scratch = Path(directory)
        try:
            settings = {
                "spark.master": "local[2]",
                "spark.driver.memory": "512m",
                "spark.sql.shuffle.partitions": "2",
                "spark.jars": ",".join(map(str, jars("spark-kafka"))),
            }
            session = spark_session("kafka", **settings)
        except (Missing, JavaMissing) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        with session as spark, two_gateways(scratch, logs=False) as served:
            print(f"Spark {spark.version}, {connector}", flush=True)
            judged = Judged(spark, *served, scratch)
            for name in tests or names:
                verdicts.add(verdict_of("Spark's connector", name, getattr(judged, name)))
    return 1 if verdicts.failed else 0
