"""Compacted topics on a real cluster: of each key the newest message stays, for every reader."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semel.client import Client, Compaction, IdDedup, connect
from semel.protos.errors import InvalidRequest, OffsetOutOfRange, UnsupportedVersion
from semel.protos.levels import COMPACTION_LEVEL
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.consuming import take
from tests.kit.waiting import until

FLAGS = [
    "--compaction-check-ms",
    "50",
    "--compaction-dirty-percent",
    "1",
    "--retention-check-ms",
    "200",
]


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    with Cluster(module_path / "cluster", broker_flags=FLAGS) as running:
        yield running


def compacted(client: Client, topic: str) -> bool:
    """Everything that was stored has been compacted."""
    return all(
        queue.gaps_to == queue.log_end_offset for queue in client.admin.describe_topic(topic).queues
    )


Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


def read(client: Client, topic: str, start: int = 0) -> list[Row]:
    with client.reader(topic, start={0: start}, end="latest") as reader:
        return [(each.offset, each.key, each.value) for each in reader]


def test_of_each_key_the_newest_message_stays_at_its_offset(
    client: Client, shared_cluster: Cluster
) -> None:
    client.admin.create_topic("users", queues=1, compaction=Compaction(tombstone_ms=3_600_000))
    settings = client.admin.describe_topic("users").settings
    assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
    with client.producer() as producer:
        for number in range(50):
            key = b"k%d" % (number % 5)
            producer.send("users", b"%d" % number, key=key, queue=0).result(10)
        producer.send("users", None, key=b"k0", queue=0).result(10)
    wanted: list[Row] = [(46 + at, b"k%d" % (at + 1), b"%d" % (46 + at)) for at in range(4)]
    wanted.append((50, b"k0", None))
    until(lambda: read(client, "users") == wanted, 30, "the compaction")
    assert read(client, "users", 20) == wanted
    assert read(client, "users", 48) == wanted[2:]
    with client.reader("users", end="latest") as reader:
        tables = []
        while not reader.finished:
            batch = reader.poll_arrow(5)
            tables += [batch] if batch is not None else []
        table = pa.Table.from_batches(tables)
    assert table["offset"].to_pylist() == [offset for offset, _, _ in wanted]
    assert table["value"].to_pylist() == [value for _, _, value in wanted]
    with pytest.raises(OffsetOutOfRange, match="offset 7: compaction has removed it"):
        client.admin.show_message("users", 0, 7)
    assert client.admin.show_message("users", 0, 48).value == b"48"
    verified = client.admin.verify("users")
    assert verified.ok, verified
    assert [queue.messages for queue in verified.queues] == [5]
    older = connect(shared_cluster.bootstrap, level_max=COMPACTION_LEVEL - 1)
    with older, pytest.raises(UnsupportedVersion) as caught:
        read(older, "users")
    assert caught.value.level == COMPACTION_LEVEL


def test_a_group_commits_past_gaps(client: Client) -> None:
    client.admin.create_topic("read", queues=1, compaction=Compaction())
    with client.producer() as producer:
        for number in range(20):
            producer.send("read", b"%d" % number, key=b"k").result(10)
        producer.send("read", b"x").result(10)
    until(lambda: len(read(client, "read")) == 2, 30, "the compaction")
    with client.consumer("g", ["read"]) as consumer:
        first, second = take(consumer, 2)
        assert [first.offset, second.offset] == [19, 20]
        consumer.commit(first)
    (lag,) = client.admin.describe_group("g").queues
    assert (lag.committed_offset, lag.lag) == (20, 1)
    with client.consumer("g", ["read"]) as consumer:
        (message,) = take(consumer, 1)
        assert message.offset == 20
        consumer.commit()
    (lag,) = client.admin.describe_group("g").queues
    assert lag.lag == 0


@pytest.mark.parametrize("way", ["plain", "transactions", "ids", "delays"])
def test_a_reader_from_the_start_ends_with_the_newest_values(client: Client, way: str) -> None:
    topic, chance = f"table-{way}", random.Random(way)
    dedup = IdDedup(window_bytes=64 << 20) if way == "ids" else None
    client.admin.create_topic(topic, queues=2, compaction=Compaction(), dedup=dedup)
    newest: dict[bytes, bytes | None] = {}
    with client.producer(compression="lz4") as producer:
        for round_ in range(12):
            rows = [
                (b"k%d" % chance.randrange(20), chance.choice([None, b"%d" % round_]))
                for _ in range(chance.randrange(1, 40))
            ]
            keys, values = [key for key, _ in rows], [value for _, value in rows]
            if way == "transactions":
                with producer.transaction(f"{topic}-t") as staged:
                    staged.send_many(topic, values, keys=keys)
            elif way == "ids":
                ids = [b"%d-%d" % (round_, row) for row in range(len(rows))]
                producer.send_many(topic, values, keys=keys, message_ids=ids).result(10)
                producer.send_many(topic, values, keys=keys, message_ids=ids).result(10)
            elif way == "delays":
                producer.send_many(topic, values, keys=keys, deliver_at=1).result(10)
            else:
                producer.send_many(topic, values, keys=keys).result(10)
            newest |= dict(rows)
    until(lambda: compacted(client, topic), 30, "the compaction")
    with client.reader(topic, end="latest") as reader:
        found = [(message.key, message.value) for message in reader]
    assert dict(found) == newest
    assert len(found) == len(newest), "each key once"
    verified = client.admin.verify(topic)
    assert verified.ok, verified


def test_tombstones_go_after_their_time(client: Client) -> None:
    client.admin.create_topic("gone", queues=1, compaction=Compaction(tombstone_ms=500))
    with client.producer() as producer:
        producer.send("gone", b"1", key=b"k").result(10)
        producer.send("gone", None, key=b"k").result(10)
        producer.send("gone", b"2", key=b"l").result(10)
    until(lambda: read(client, "gone") == [(2, b"l", b"2")], 30, "the tombstone to go")
    assert client.admin.verify("gone").ok


def test_a_quiet_topic_is_compacted_after_the_time_of_tombstones(tmp_path: Path) -> None:
    flags = ["--compaction-check-ms", "50", "--compaction-dirty-percent", "100"]
    cluster = Cluster(tmp_path / "c", brokers=1, broker_flags=flags)
    with cluster, connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("t", queues=1, compaction=Compaction(tombstone_ms=1_000))
        for value in (b"0", b"1"):
            producer.send("t", value, key=b"other").result(10)
        until(lambda: compacted(client, "t"), 30, "a first pass, when all is dirty")
        for value in (b"1", b"2"):
            producer.send("t", value, key=b"k").result(10)
        wanted: list[Row] = [(1, b"other", b"1"), (3, b"k", b"2")]
        until(lambda: read(client, "t") == wanted, 30, "a pass over the little that is dirty")


def test_a_new_master_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", broker_flags=FLAGS) as cluster, connect(cluster.bootstrap) as c:
        c.admin.create_topic("t", queues=1, compaction=Compaction())
        newest: dict[bytes, bytes] = {}
        with c.producer() as producer:
            for number in range(300):
                key, value = b"k%d" % (number % 30), b"%d" % number
                producer.send("t", value, key=key).result(30)
                newest[key] = value
                if number % 100 == 50:
                    cluster.kill(cluster.brokers[number // 100])
                    cluster.start_node(cluster.brokers[number // 100])
        until(lambda: len(read(c, "t")) == 30, 60, "the compaction")
        assert {key: value for _, key, value in read(c, "t")} == newest
        cluster.wait_ready()
        verified = c.admin.verify("t")
        assert verified.ok, verified


def test_the_console_sets_compaction(shared_cluster: Cluster, client: Client) -> None:
    semel = Console(shared_cluster.bootstrap)
    semel.json("topic", "create", "c", "--queues", "1", "--cleanup", "compact")
    assert "compacted, tombstones for 1d" in semel("topic", "describe", "c").stdout.decode()
    found = semel.json(
        "topic",
        "alter",
        "c",
        "--cleanup",
        "compact,delete",
        "--retention",
        "7d",
        "--tombstones-for",
        "2h",
        "--compact-after",
        "5m",
    )["settings"]
    assert found["compaction"] == {"tombstone_ms": 7_200_000, "lag_ms": 300_000}
    assert found["retention_ms"] == 7 * 86_400_000
    assert (
        semel.json("topic", "alter", "c", "--cleanup", "delete")["settings"]["compaction"] is None
    )
    with pytest.raises(InvalidRequest, match="compaction must be"):
        client.admin.alter_topic("c", compaction="on")  # type: ignore[arg-type]
