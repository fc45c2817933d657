"""Spark reads a tiered topic from brokers, and from the tier while no broker runs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from semel.client import Client, connect
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.waiting import until

FLAGS = (
    *("--tier-file-bytes", "20000"),
    *("--tier-wait-ms", "200"),
    *("--tier-check-ms", "50"),
    *("--retention-check-ms", "100"),
)
COUNT = 1_000


def produce(client: Client, start: int) -> None:
    with client.producer() as producer:
        for at in range(start, start + COUNT, 100):
            values = [b"%d" % number for number in range(at, at + 100)]
            producer.send_many("orders", values, keys=values)
        producer.flush(30)


def cold(client: Client) -> bool:
    queues = client.admin.describe_topic("orders").queues
    return all(queue.local_start_offset == queue.log_end_offset > 0 for queue in queues)


def rows_of(frame: DataFrame) -> list[tuple[int, int, bytes, bytes]]:
    return sorted((row.queue, row.offset, row.key, row.value) for row in frame.collect())


def test_spark_reads_both_halves_and_the_tier_without_brokers(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    url = f"file://{tier}"
    settings = {"spark.master": "local[2]", "spark.driver.memory": "512m"}
    flags = ["--tier", url, *FLAGS]
    with spark_session("test", **settings) as spark:
        with (
            Cluster(tmp_path / "cluster", brokers=1, broker_flags=flags) as cluster,
            connect(cluster.bootstrap) as client,
        ):
            client.admin.create_topic("orders", queues=2, tier_after_ms=300, local_retention_ms=600)
            produce(client, 0)
            until(lambda: cold(client), what="an empty log")
            client.admin.alter_topic("orders", tier_after_ms=3_600_000, local_retention_ms=-1)
            produce(client, COUNT)  # only the brokers have these
            source = spark.read.format("semel").option("bootstrap", cluster.bootstrap)
            both = rows_of(source.option("subscribe", "orders").load())
        assert sorted(int(row[3]) for row in both) == list(range(2 * COUNT))
        tiered = rows_of(spark.read.format("semel").option("manifest", url).load())
        assert sorted(int(row[3]) for row in tiered) == list(range(COUNT))
        assert [row for row in both if int(row[3]) < COUNT] == tiered
