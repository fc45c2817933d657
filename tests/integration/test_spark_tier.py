"""A real Spark and DuckDB read a tier: no broker, no controller, nothing of ours but files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col

from semel.protos.ids import QueueId, QueueKey
from semel.spark_connector import spark_session
from semel.tier import QueueReader, newest_pointer, open_store, read_manifest
from tests.kit.s3_server import CREDENTIALS, s3_server
from tests.kit.tiered_topics import CLUSTER, ORDERS, expected, fill


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tier")
    fill(open_store(f"file://{folder}"))
    return folder


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_server() as url:
            found = url.replace("PREFIX", "clusters/one")
            fill(open_store(found))
            yield found


@pytest.fixture(scope="module")
def spark(s3_url: str) -> Iterator[SparkSession]:
    """Spark, which gives its tasks the credentials of the environment it was started in."""
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.authenticate.socketTimeout": "120s",
    }
    with spark_session("test", **settings) as session:
        yield session


def place(row: Row | dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queue"], row["offset"]


def test_spark_reads_a_tier_in_s3(spark: SparkSession, s3_url: str) -> None:
    source = spark.read.format("semel").option("manifest", s3_url)
    frame = source.option("includeHeaders", "true").load()
    found = sorted((row.asDict(recursive=True) for row in frame.collect()), key=place)
    rows = sorted(expected("orders", "audit"), key=place)
    assert len(found) == len(rows) > 1_000
    for one, other in zip(found, rows, strict=True):
        for name in ("topic", "queue", "offset", "producer", "sequence", "headers"):
            assert one[name] == other[name], name
        assert one["value"] == other["value"]
        assert one["key"] == other["key"]
        assert one["timestamp"] == other["timestamp"].replace(tzinfo=None)  # type: ignore[attr-defined]
    assert source.load().count() == len(rows)


def test_filters_reach_the_files(spark: SparkSession, s3_url: str) -> None:
    source = spark.read.format("semel").options(manifest=s3_url, subscribe="orders")
    frame = source.option("pushDownFilters", "true").load()
    found = frame.where((col("offset") >= 50) & (col("queue") == 1)).select("offset", "value")
    rows = [row for row in expected("orders") if row["queue"] == 1 and row["offset"] >= 50]  # type: ignore[operator]
    assert sorted((row.offset, row.value or b"") for row in found.collect()) == sorted(
        (row["offset"], row["value"] or b"") for row in rows
    )


def test_sql_joins_a_tier_with_itself(spark: SparkSession, tier: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW tiered USING semel OPTIONS (manifest 'file://{tier}')")
    query = "SELECT count(*), count(DISTINCT topic, queue, offset) FROM tiered"
    row = spark.sql(query).first()
    assert row is not None
    assert row[0] == row[1] == len(expected("orders", "audit"))


def test_a_place_that_is_no_tier_is_one_clear_line(spark: SparkSession, s3_url: str) -> None:
    elsewhere = s3_url.replace("clusters/one", "nothing/here")
    with pytest.raises(PySparkException, match=r"is no tier of a cluster"):
        spark.read.format("semel").option("manifest", elsewhere).load()


# --- programs that know nothing of Semel --------------------------------------------------------


def files_of(tier: Path, queue: int) -> tuple[int, list[str]]:
    """The manifest's start, and the paths of its files."""
    store = open_store(f"file://{tier}")
    key = QueueKey(ORDERS, QueueId(queue))
    pointer = newest_pointer(store, CLUSTER, key)
    assert pointer is not None
    manifest = read_manifest(store, pointer)
    files = QueueReader(store, manifest).all_files()
    return manifest.start, [str(tier / file.name(CLUSTER, key)) for file in files]


@pytest.mark.parametrize("queue", [0, 1])
def test_duckdb_reads_the_files_that_a_manifest_names(tier: Path, queue: int) -> None:
    start, names = files_of(tier, queue)
    rows = [row for row in expected("orders") if row["queue"] == queue]
    query = """
        SELECT "offset", key, value, headers, producer, sequence, message_id, epoch_us(timestamp)
        FROM read_parquet($names) WHERE "offset" >= $start ORDER BY "offset"
    """
    with closing(duckdb.connect()) as database:
        found = database.execute(query, {"names": names, "start": start}).fetchall()
    assert len(found) == len(rows)
    for (offset, key, value, headers, producer, sequence, message_id, _), row in zip(
        found, rows, strict=True
    ):
        assert offset == row["offset"]
        assert (key, value, message_id) == (row["key"], row["value"], row["message_id"])
        assert headers == row["headers"]
        assert (producer, sequence) == (row["producer"], row["sequence"])


def test_duckdb_reads_the_manifest_itself(tier: Path) -> None:
    """The newest pointer, its manifest, and the bytes of its files, in SQL alone."""
    base = tier / CLUSTER / "topics" / f"{ORDERS:016x}" / f"{0:010d}"
    pointer = max((base / "pointers").iterdir())
    with closing(duckdb.connect()) as database:
        (number, sha256) = database.execute(
            "SELECT number, sha256 FROM read_json($name)", {"name": str(pointer)}
        ).fetchall()[0]
        manifest = base / "manifests" / f"{number:020d}-{sha256[:32]}.json"
        found = database.execute(
            "SELECT file.start, file.length FROM "
            "(SELECT unnest(files) AS file FROM read_json($name)) ORDER BY file.start",
            {"name": str(manifest)},
        ).fetchall()
    _, names = files_of(tier, 0)
    assert [length for _, length in found] == [Path(name).stat().st_size for name in names]


def test_sparks_own_reader_reads_the_files(spark: SparkSession, tier: Path) -> None:
    start, names = files_of(tier, 1)
    frame = spark.read.parquet(*names).where(col("offset") >= start).orderBy("offset")
    rows = [row for row in expected("orders") if row["queue"] == 1]
    found = [row.asDict(recursive=True) for row in frame.collect()]
    for one, other in zip(found, rows, strict=True):
        for name in ("offset", "key", "value", "headers", "producer", "sequence", "message_id"):
            assert one[name] == other[name]
        for name in ("producer_epoch", "producer_session"):
            assert one[name] == other[name]
