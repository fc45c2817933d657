"""The sink in a real Spark: copies compared by digest, tasks that are repeated, a driver that died
between our commit and Spark's own, modes and errors as Spark's users meet them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf
from pyspark.sql.functions import max as largest
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType

from semel.client import Client, IdDedup
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.spark.crashes import digest_of

COUNT = 3_000
FAILS_AT = 500
"""Row of a partition; some 667 rows are in each of the first trigger."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two cores, three attempts at every task, small Arrow batches."""
    settings = {
        "spark.master": "local[2,3]",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.python.authenticate.socketTimeout": "120s",  # for a worker on a busy machine
    }
    with spark_session("sink", **settings) as session:
        yield session


@pytest.fixture(scope="module")
def shared_cluster(spark: SparkSession, module_path: Path) -> Iterator[Cluster]:
    """One broker; started after the JVM, which is forked from here."""
    with Cluster(module_path / "cluster", brokers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def source(client: Client) -> str:
    client.admin.create_topic("source", queues=3)
    produce(client, 0, COUNT)
    return "source"


def produce(client: Client, first: int, last: int) -> None:
    with client.producer() as producer:
        values = [b"\xff%d" % number for number in range(first, last)]
        keys = [b"k%d" % number if number % 3 else None for number in range(first, last)]
        producer.send_many("source", values, keys=keys)


def create(client: Client, topic: str) -> str:
    client.admin.create_topic(topic, queues=2)
    return topic


def reading(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    stream = spark.readStream.format("semel").options(bootstrap=cluster.bootstrap)
    frame = stream.options(subscribe="source", startingOffsets="earliest", **options).load()
    return frame.select("key", "value")


def write(
    frame: DataFrame, cluster: Cluster, checkpoint: Path, mode: str = "append", **options: str
) -> StreamingQuery:
    """Runs a stream into a topic until nothing is new."""
    writer = frame.writeStream.format("semel").options(bootstrap=cluster.bootstrap, **options)
    writer = writer.outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(300)
    finally:
        query.stop()
    return query


def test_a_batch_copies_a_topic(
    spark: SparkSession, shared_cluster: Cluster, client: Client, source: str
) -> None:
    create(client, "copied")
    frame = (
        spark.read.format("semel")
        .options(bootstrap=shared_cluster.bootstrap, subscribe=source)
        .load()
    )
    for _ in range(2):
        writer = frame.select("key", "value").write.format("semel").mode("append")
        own = {"transactionId": "copy", "transactionEpoch": "0", "compression": "lz4"}
        writer.options(bootstrap=shared_cluster.bootstrap, topic="copied", **own).save()
    assert digest_of(client, "copied") == digest_of(client, source)


def test_rows_with_known_ids_are_dropped_however_many_there_are(
    spark: SparkSession, shared_cluster: Cluster, client: Client
) -> None:
    rows = 100_000
    client.admin.create_topic("compared", queues=2, dedup=IdDedup(window_bytes=64 << 20))
    names = [b"%d" % number for number in range(0, rows, 167)]
    with client.producer() as producer:
        producer.send_many("compared", names, message_ids=names).result(30)
    number = col("id").cast("string")
    frame = spark.range(rows, numPartitions=3).select(
        number.alias("message_id"), number.cast("binary").alias("value")
    )
    for again in (frame, frame.repartition(2)):  # each is a transaction of its own
        writer = again.write.format("semel").mode("append")
        writer.options(bootstrap=shared_cluster.bootstrap, topic="compared").save()
    with client.reader("compared", end="latest") as reader:
        stored = sorted((int(message.message_id or b""), message.value) for message in reader)
    assert stored == [(each, b"%d" % each) for each in range(rows)]
    told = client.admin.describe_topic("compared").dedup
    assert told is not None
    assert (told.ids, told.hits, told.conflicts) == (rows, len(names) + rows, 0)
    assert client.admin.verify("compared").ok


def fails_once_in_each_partition(marks: str) -> Callable[[bytes], bytes]:
    """A column function whose first attempt at each partition fails after many rows went on."""
    rows: Counter[int] = Counter()

    def step(value: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        rows[context.taskAttemptId()] += 1
        mark = Path(marks) / str(context.partitionId())
        if rows[context.taskAttemptId()] == FAILS_AT and not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt fails")
        return bytes(value)

    return step


def test_tasks_that_are_repeated_and_a_batch_that_is(
    spark: SparkSession, shared_cluster: Cluster, client: Client, source: str, tmp_path: Path
) -> None:
    """First every task fails once; then Spark's note of the last commit is lost, and the batch is
    repeated over another number of partitions."""
    create(client, "streamed")
    marks = tmp_path / "marks"
    marks.mkdir()
    checkpoint = tmp_path / "checkpoint"
    frame = reading(spark, shared_cluster, maxOffsetsPerTrigger="2000").repartition(3)
    step = udf(fails_once_in_each_partition(str(marks)), BinaryType(), useArrow=False)
    failing = frame.select("key", step("value").alias("value"))
    query = write(failing, shared_cluster, checkpoint, topic="streamed")
    assert len(list(marks.iterdir())) == 3
    assert digest_of(client, "streamed") == digest_of(client, source)
    info = client.transactions.describe(query.id)
    assert info is not None
    assert (info.query_id, info.last_epoch) == (query.id, 1)

    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    again = write(
        reading(spark, shared_cluster).repartition(2),
        shared_cluster,
        checkpoint,
        topic="streamed",
    )
    assert again.id == query.id
    assert (checkpoint / "commits" / "1").exists()
    assert 1 in [progress["batchId"] for progress in again.recentProgress]
    assert digest_of(client, "streamed") == digest_of(client, source)


def test_a_new_checkpoint_under_the_same_id(
    spark: SparkSession, shared_cluster: Cluster, client: Client, source: str, tmp_path: Path
) -> None:
    create(client, "mine")
    frame = reading(spark, shared_cluster)
    write(frame, shared_cluster, tmp_path / "first", topic="mine", transactionId="mine")
    with pytest.raises(PySparkException) as caught:
        write(frame, shared_cluster, tmp_path / "second", topic="mine", transactionId="mine")
    assert "TransactionConflict" in str(caught.value)
    assert digest_of(client, "mine") == digest_of(client, source)


def test_what_is_refused_is_said_by_sparks_exception(
    spark: SparkSession, shared_cluster: Cluster, client: Client, source: str, tmp_path: Path
) -> None:
    create(client, "empty")
    good = spark.sql("select 'a' as value")

    def save(frame: DataFrame, mode: str, **options: str) -> None:
        frame.write.format("semel").options(bootstrap=shared_cluster.bootstrap, **options).mode(
            mode
        ).save()

    for frame, mode, options, message in [
        (good, "overwrite", {"topic": "empty"}, "only appends"),
        (good, "error", {"topic": "empty"}, '"ErrorIfExists" mode'),
        (good, "append", {"topic": "nowhere"}, "no topic 'nowhere'"),
        (good, "append", {"topik": "empty"}, "did you mean 'topic'?"),
        (spark.sql("select 1 as value"), "append", {"topic": "empty"}, "'value' must be binary"),
    ]:
        with pytest.raises(AnalysisException) as caught:
            save(frame, mode, **options)
        assert message in str(caught.value)
    rows = spark.sql("select if(id = 7, null, string(id)) as value from range(0, 200, 1, 1)")
    with pytest.raises(PySparkException, match="column 'value' is null in 1 of"):
        save(rows, "append", topic="empty")
    with pytest.raises(PySparkException, match="did you mean 'topic'"):
        write(
            reading(spark, shared_cluster), shared_cluster, tmp_path / "unknown", subscribe="empty"
        )
    counts = reading(spark, shared_cluster).groupBy("key").agg(largest("value").alias("value"))
    with pytest.raises(PySparkException, match="only appends"):
        write(counts, shared_cluster, tmp_path / "complete", mode="complete", topic="empty")
    assert digest_of(client, "empty")[0] == 0
