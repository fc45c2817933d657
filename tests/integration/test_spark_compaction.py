"""Spark reads compacted topics: gaps in the offsets change no count, and nulls come through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from semel.client import Client, Compaction
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.waiting import until


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "120s",  # for a worker on a busy machine
    }
    with spark_session("compaction", **settings) as session:
        yield session


@pytest.fixture(scope="module")
def shared_cluster(spark: SparkSession, module_path: Path) -> Iterator[Cluster]:
    """One broker; started after the JVM, which is forked from here."""
    flags = ["--compaction-check-ms", "50", "--compaction-dirty-percent", "1"]
    with Cluster(module_path / "cluster", brokers=1, broker_flags=flags) as cluster:
        yield cluster


def test_nulls_are_written_and_what_is_left_is_read(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("t", queues=2, compaction=Compaction())
    bootstrap = shared_cluster.bootstrap
    for round_ in range(3):
        rows = [(f"k{n}", None if n == 3 else f"{round_}") for n in range(10)]
        written = spark.createDataFrame(rows, "key string, value string").repartition(2)
        write = written.write.format("semel").mode("append")
        write.option("bootstrap", bootstrap).option("topic", "t").save()

    def compacted() -> bool:
        queues = client.admin.describe_topic("t").queues
        return all(queue.gaps_to == queue.log_end_offset for queue in queues)

    until(compacted, 30, "the compaction")
    reading = spark.read.format("semel").option("bootstrap", bootstrap).option("subscribe", "t")
    found = {(bytes(row.key), row.value and bytes(row.value)) for row in reading.load().collect()}
    assert found == {(b"k%d" % n, None if n == 3 else b"2") for n in range(10)}
    numbers = spark.read.schema("offset long").format("semel").option("bootstrap", bootstrap)
    assert numbers.option("subscribe", "t").load().count() == 10
