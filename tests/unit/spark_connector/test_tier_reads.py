"""Reads of a tier (option `manifest`) without Spark: plans, tasks, columns, filters."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan
from pyspark.sql.types import StructType

from semel.protos.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from semel.spark_connector import SemelSource
from semel.spark_connector.rows import EVERY_COLUMN
from semel.spark_connector.tier_tasks import FilteringTierReader, TierReader
from semel.spark_connector.tier_view import split_url
from semel.tier import CorruptTier, ObjectMissing, TierMisconfigured, layout, open_store
from tests.kit.tiered_topics import CLUSTER, ORDERS, expected, fill, places, rows_of_queue


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = f"file://{tmp_path_factory.mktemp('tier')}"
    fill(open_store(where))
    return where


def schema(*names: str) -> StructType:
    return StructType([EVERY_COLUMN[name] for name in names or EVERY_COLUMN.names])


def reader_of(url: str, *names: str, **options: str) -> TierReader:
    found = SemelSource({"manifest": url, **options}).reader(schema(*names))
    assert isinstance(found, TierReader)
    return found


def read(url: str, *names: str, **options: str) -> list[dict[str, Any]]:
    return rows_of(reader_of(url, *names, **options))


def rows_of(reader: TierReader) -> list[dict[str, Any]]:
    rows = []
    for partition in reader.partitions():
        task, part = pickle.loads(pickle.dumps((reader, partition)))  # as on its way to a task
        for batch in task.read(part):
            rows += batch.to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["queue"], row["offset"]))


def picked(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


def test_everything_is_read_with_every_column(url: str) -> None:
    names = EVERY_COLUMN.names
    assert in_order(read(url)) == picked(in_order(expected("orders", "audit")), *names)


@pytest.mark.parametrize("ways", [{"subscribe": "orders"}, {"subscribePattern": "ord.*"}])
def test_topics_are_chosen_as_in_a_cluster(url: str, ways: dict[str, str]) -> None:
    names = ("topic", "queue", "offset", "key")
    assert in_order(read(url, *names, **ways)) == picked(in_order(expected("orders")), *names)


def test_queues_are_assigned(url: str) -> None:
    found = read(url, "topic", "queue", "offset", assign='{"orders": [1]}')
    assert {(row["topic"], row["queue"]) for row in found} == {("orders", 1)}
    with pytest.raises(InvalidRequest, match="no queue 5"):
        read(url, assign='{"orders": [5]}')


def test_a_topic_that_the_tier_does_not_have_is_an_error(url: str) -> None:
    with pytest.raises(UnknownTopic, match="nothing of topic 'none'"):
        read(url, subscribe="none")


def test_tasks_share_the_rows(url: str) -> None:
    reader = reader_of(url, "topic", "queue", "offset", "value", minPartitions="7")
    assert len(reader.partitions()) == 7
    names = ("topic", "queue", "offset", "value")
    assert in_order(rows_of(reader)) == picked(in_order(expected("orders", "audit")), *names)


def test_offsets_bound_the_read(url: str) -> None:
    offsets = {
        "startingOffsets": '{"orders": {"0": 10, "1": -2}}',
        "endingOffsets": '{"orders": {"0": 21, "1": 40}}',
    }
    found = read(url, "queue", "offset", "sequence", subscribe="orders", **offsets)
    at = sorted((row["queue"], row["offset"]) for row in found)
    assert at == [(0, n) for n in range(10, 21)] + [(1, n) for n in range(33, 40)]
    with pytest.raises(OffsetOutOfRange, match="has 33 to"):
        read(url, subscribe="orders", startingOffsets='{"orders": {"0": 0, "1": 5}}')


def test_times_of_the_append_bound_the_read(url: str) -> None:
    (_, key, _), *_ = places()
    rows = rows_of_queue(key)
    times = rows.column("append_time").cast("int64").to_pylist()
    at_ms = times[rows.num_rows // 2] // 1_000
    found = read(url, "offset", "key", assign='{"orders": [0]}', startingTimestamp=str(at_ms))
    first = next(at for at, time in enumerate(times) if time >= at_ms * 1_000)
    assert [row["offset"] for row in found] == list(range(first, rows.num_rows))


def filtered(url: str, filters: list[Filter], *names: str) -> list[dict[str, Any]]:
    reader = reader_of(url, *names, pushDownFilters="true")
    assert isinstance(reader, FilteringTierReader)
    assert list(reader.pushFilters(filters)) == []
    return rows_of(reader)


def test_filters_are_applied_exactly_and_need_no_column_of_the_schema(url: str) -> None:
    everything = in_order(expected("orders", "audit"))
    times = sorted(row["timestamp"] for row in everything)
    least, most = times[len(times) // 3], times[len(times) // 2]
    found = filtered(
        url,
        [GreaterThanOrEqual(("timestamp",), least), LessThan(("timestamp",), most)],
        "value",
    )
    values = [row["value"] for row in everything if least <= row["timestamp"] < most]
    assert sorted(row["value"] or b"" for row in found) == sorted(each or b"" for each in values)
    found = filtered(url, [EqualTo(("offset",), 40), EqualTo(("queue",), 1)], "value", "topic")
    assert found == [
        {"value": row["value"], "topic": row["topic"]}
        for row in everything
        if (row["queue"], row["offset"]) == (1, 40)
    ]
    later = times[-1] + datetime.timedelta(seconds=1)
    assert filtered(url, [GreaterThanOrEqual(("timestamp",), later)], "value") == []


def test_a_count_fetches_no_file(url: str, tmp_path: Path) -> None:
    where = f"file://{tmp_path}"
    fill(open_store(where))
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    assert len(read(where, "offset", subscribe="orders")) == len(expected("orders"))
    for names in (("offset", "value"), ("offset",)):  # a compacted topic has gaps
        with pytest.raises(ObjectMissing, match=r"\.parquet"):
            read(where, *names, subscribe="audit")


def test_a_damaged_file_is_an_error_and_no_row(tmp_path: Path) -> None:
    where = f"file://{tmp_path}"
    fill(open_store(where))
    path = max(tmp_path.rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptTier, match="damaged"):
        read(where)


def test_a_read_is_not_touched_by_what_is_tiered_or_trimmed_after_its_plan(tmp_path: Path) -> None:
    from semel.protos.ids import QueueId, QueueKey
    from semel.tier import newest_pointer, publish, put_change, read_manifest, trim

    where = f"file://{tmp_path}"
    store = open_store(where)
    fill(store)
    reader = reader_of(where, "offset", "value", assign='{"orders": [0]}')
    partitions = reader.partitions()
    pointer = newest_pointer(store, CLUSTER, QueueKey(ORDERS, QueueId(0)))
    assert pointer is not None
    manifest = read_manifest(store, pointer)
    publish(store, put_change(store, trim(manifest, manifest.end)))
    assert read(where, "offset", assign='{"orders": [0]}') == []
    found = [row for each in partitions for part in reader.read(each) for row in part.to_pylist()]
    assert [row["offset"] for row in found] == list(range(manifest.end))


@pytest.mark.parametrize("folder", ["manifests", "pointers"])
def test_one_manifest_or_pointer_names_one_queue_for_ever(url: str, folder: str) -> None:
    base = Path(url.removeprefix("file://"))
    (_, key, _), *_ = places()
    name = min((base / layout.queue_folder(CLUSTER, key) / folder).iterdir())
    found = read(f"file://{name}", "topic", "queue", "offset")
    assert {(row["topic"], row["queue"]) for row in found} == {("orders", 0)}
    assert [row["offset"] for row in found] == list(range(200))  # the first of its numbers
    with pytest.raises(UnknownTopic, match="names a queue of topic 'orders'"):
        read(f"file://{name}", subscribe="audit")


def test_urls_are_split() -> None:
    name = f"c/topics/{ORDERS:016x}/0000000001/pointers/{7:020d}.json"
    assert split_url(f"s3://b/p/q/{name}?region=x") == ("s3://b/p/q?region=x", name)
    assert split_url(f"file:///{name}") == ("file://", name)
    assert split_url("s3://b/p?region=x") == ("s3://b/p?region=x", "")
    for wrong in ("s3://b/p/x.parquet", "s3://b/c/topics/t/q/pages/x.json", "s3://b/x.json"):
        with pytest.raises(InvalidRequest, match="URL of a tier"):
            split_url(wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bootstrap": "h:1"}, "'bootstrap' has no meaning with 'manifest'"),
        ({"readFrom": "any"}, "'readFrom' has no meaning"),
        ({"manifest": " "}, "'manifest' is empty"),
        ({"subscribe": "a", "assign": "{}"}, "exclude each other"),
    ],
)
def test_options_that_contradict_are_refused(url: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        SemelSource({"manifest": url, **options}).schema()


def test_a_place_that_is_no_tier_is_said_when_the_frame_is_made(tmp_path: Path) -> None:
    with pytest.raises(TierMisconfigured, match=r"it has no semel-tier\.json"):
        SemelSource({"manifest": f"file://{tmp_path}"}).schema()
    with pytest.raises(TierMisconfigured, match="there is no folder"):
        SemelSource({"manifest": f"file://{tmp_path}/none"}).schema()


def test_a_stream_of_a_tier_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="'manifest' is for batch reads"):
        SemelSource({"manifest": url}).streamReader(schema("value"))
