"""Delayed rows and ids from a real Spark: none early, each once, in batches and in streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

from semel.client import Client, IdDedup
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.spark_engine import patiently
from tests.kit.watching import CLOCKS_S, Watch

SCHEMA = (
    StructType()
    .add("value", StringType())
    .add("key", StringType())
    .add("deliver_at", TimestampType())
    .add("message_id", StringType())
)
SOON_S = 8
"""The job takes some of it; on a busy machine rows may be due before they are stored."""
FAR_S = 3_600
LATE_S = 60.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.python.authenticate.socketTimeout": "120s",  # for a worker on a busy machine
    }
    with spark_session("delays", **settings) as session:
        yield session


@pytest.fixture(scope="module")
def shared_cluster(spark: SparkSession, module_path: Path) -> Iterator[Cluster]:
    """One broker; started after the JVM, which is forked from here."""
    with Cluster(module_path / "cluster", brokers=1) as cluster:
        yield cluster


def rows_from(start: int, count: int, due: datetime) -> list[tuple[object, ...]]:
    """Every fourth row is due at once, every third has no id."""
    return [
        (
            f"{number:06d}",
            f"k{number % 7}" if number % 2 else None,
            due + timedelta(seconds=number % 3) if number % 4 else None,
            f"id-{number}" if number % 3 else None,
        )
        for number in range(start, start + count)
    ]


def check(watch: Watch, rows: list[tuple[object, ...]]) -> None:
    """All rows came once, none early, with their keys and ids."""
    expected = {str(value).encode(): (key, due, id_) for value, key, due, id_ in rows}
    assert sorted(watch.values) == sorted(expected)
    for came, message in watch.seen:
        key, due, message_id = expected[message.value]
        assert (message.key, message.message_id) == (
            None if key is None else str(key).encode(),
            None if message_id is None else str(message_id).encode(),
        )
        assert due is None or isinstance(due, datetime)
        assert due is None or came >= due.timestamp() - CLOCKS_S


def save(frame: DataFrame, cluster: Cluster, topic: str) -> None:
    writer = frame.write.format("semel").mode("append")
    writer.options(bootstrap=cluster.bootstrap, topic=topic).save()


def soon(seconds: float = SOON_S) -> datetime:
    """A time that is no whole second."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_batch_writes_both_columns(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("held", queues=3)
    held = spark.createDataFrame(rows_from(0, 600, soon(FAR_S)), SCHEMA).repartition(2)
    save(held, shared_cluster, "held")
    stored = client.admin.describe_topic("held").queues
    delayed = sum(queue.delayed_messages for queue in stored)
    assert (sum(queue.messages for queue in stored), delayed) == (150, 450)

    client.admin.create_topic("batch", queues=3)
    watch = Watch(client, "batch")
    rows = rows_from(0, 600, soon())
    save(spark.createDataFrame(rows, SCHEMA).repartition(2), shared_cluster, "batch")
    watch.until(600, LATE_S)
    check(watch, rows)
    watch.close()
    assert client.admin.verify("batch").ok

    schema = StructType().add("message_id", BinaryType()).add("value", BinaryType())
    reading = spark.read.format("semel").schema(schema)
    read = reading.options(bootstrap=shared_cluster.bootstrap, subscribe="batch").load().collect()
    assert {(bytes(row.value), row.message_id and bytes(row.message_id)) for row in read} == {
        (message.value, message.message_id) for _, message in watch.seen
    }
    every = spark.read.format("semel").options(
        bootstrap=shared_cluster.bootstrap, subscribe="batch"
    )
    assert "message_id" not in every.load().columns


def test_a_stream_writes_both_columns(
    spark: SparkSession, shared_cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """From files, in two runs over one checkpoint."""
    client.admin.create_topic("stream", queues=2)
    watch = Watch(client, "stream")
    source = tmp_path / "source"
    rows: list[tuple[object, ...]] = []
    for start in (0, 200):
        more = rows_from(start, 200, soon())
        rows += more
        spark.createDataFrame(more, SCHEMA).coalesce(1).write.mode("append").parquet(str(source))

        def run() -> None:
            frame = spark.readStream.schema(SCHEMA).parquet(str(source)).repartition(2)
            writer = frame.writeStream.format("semel").outputMode("append")
            writer = writer.options(bootstrap=shared_cluster.bootstrap, topic="stream")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination(300)
            finally:
                query.stop()

        patiently(run)
    watch.until(400, LATE_S)
    check(watch, rows)
    watch.close()
    assert client.admin.verify("stream").ok


def test_microseconds_and_bytes_are_taken_too(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("numbers", queues=1)
    watch = Watch(client, "numbers")
    due_us = int(time.time() + SOON_S) * 1_000_000
    frame = spark.createDataFrame(
        [(b"a", due_us, b"\xff"), (b"b", None, None)],
        "value binary, deliver_at bigint, message_id binary",
    )
    save(frame, shared_cluster, "numbers")
    watch.until(2, LATE_S)
    assert {m.value: m.message_id for _, m in watch.seen} == {b"a": b"\xff", b"b": None}
    came = {message.value: at for at, message in watch.seen}
    assert came[b"a"] >= due_us / 1e6 - CLOCKS_S
    assert watch.values[0] == b"b" or came[b"b"] >= due_us / 1e6, "only a slow job lets a be first"
    watch.close()


def test_wrong_columns_are_refused_and_nothing_is_written(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    client.admin.create_topic("refused", queues=1)
    for columns, message in [
        ("'a' as value, '2026-12-24' as deliver_at", "'deliver_at' must be timestamp or bigint"),
        ("'a' as value, current_date() as deliver_at", "'deliver_at' must be timestamp or bigint"),
        ("'a' as value, 5 as message_id", "'message_id' must be string or binary"),
    ]:
        with pytest.raises(AnalysisException) as caught:
            save(spark.sql(f"select {columns}"), shared_cluster, "refused")
        assert message in str(caught.value)
    nanoseconds = time.time_ns()
    for column, message in [
        (f"if(id = 150, {nanoseconds}L, null) as deliver_at", "looks like nanoseconds"),
        (f"if(id = 150, {nanoseconds // 10**9}L, null) as deliver_at", "looks like seconds"),
        ("if(id = 150, timestamp'2999-01-01', null) as deliver_at", "more than ten years ahead"),
        ("if(id = 150, repeat('x', 1025), null) as message_id", "has 1,025 bytes"),
    ]:
        rows = spark.sql(f"select string(id) as value, {column} from range(0, 200, 1, 1)")
        with pytest.raises(PySparkException, match=message):
            save(rows, shared_cluster, "refused")
    client.admin.create_topic("compared", queues=1, dedup=IdDedup(window_bytes=1 << 20))
    rows = spark.sql("select 'a' as value, repeat('x', 129) as message_id")
    with pytest.raises(PySparkException, match="has 129 bytes"):
        save(rows, shared_cluster, "compared")
    (queue,) = client.admin.describe_topic("refused").queues
    assert (queue.messages, queue.delayed_messages) == (0, 0)


def test_rows_with_known_ids_are_stored_once(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    """Two partitions have ids in common; a second job writes what is stored, and 20 rows more."""
    client.admin.create_topic("once", queues=2, dedup=IdDedup(window_bytes=1 << 20))
    for ids in (150, 170):
        rows = spark.sql(
            f"select string(id % {ids}) as value, concat('id ', id % {ids}) as message_id"
            " from range(0, 200, 1, 2)"
        )
        save(rows, shared_cluster, "once")
    with client.reader("once", end="latest") as reader:
        found = [(message.value, message.message_id) for message in reader]
    assert sorted(found) == sorted((b"%d" % each, b"id %d" % each) for each in range(170))
    described = client.admin.describe_topic("once")
    assert described.dedup is not None
    assert (described.dedup.ids, described.dedup.hits, described.dedup.conflicts) == (170, 230, 0)
    verified = client.admin.verify("once")
    assert verified.ok
    assert verified.id_duplicates == 0
