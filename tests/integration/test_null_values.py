"""Messages without a value on a real cluster: sent in every way, read in every way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.client import Client, IdDedup, RetryPolicy, connect, connect_async
from semel.protos.errors import IdConflict, InvalidRequest, UnsupportedVersion
from semel.protos.levels import NULL_LEVEL
from tests.kit.cluster import Cluster
from tests.kit.console import Console, read_json
from tests.kit.consuming import take


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=1)
    return name


def read(client: Client, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with client.reader(topic, end="latest") as reader:
        return [(message.key, message.value) for message in reader]


def test_null_values_are_sent_and_read_in_every_way(client: Client, topic: str) -> None:
    with client.producer() as producer:
        assert producer.send(topic, b"here", key=b"anna").result(10).offset == 0
        assert producer.send(topic, None, key="anna").result(10).offset == 1
        producer.send_many(topic, [b"x", None, b""], keys=[None, b"b", b"c"]).result(10)
        with producer.transaction("t") as staged:
            staged.send(topic, None, key=b"d")
        with pytest.raises(InvalidRequest, match="neither value nor key"):
            producer.send(topic, None)
        with pytest.raises(InvalidRequest, match="message 1: a null value"):
            producer.send_many(topic, [b"x", None], keys=[b"k", None])
    expected = [
        (b"anna", b"here"),
        (b"anna", None),
        (None, b"x"),
        (b"b", None),
        (b"c", b""),
        (b"d", None),
    ]
    assert read(client, topic) == expected
    found: list[bytes | None] = []
    with client.reader(topic, end="latest") as reader:
        while not reader.finished:
            batch = reader.poll_arrow(5)
            found += batch.column("value").to_pylist() if batch is not None else []
    assert found == [value for _, value in expected]
    shown = client.admin.show_message(topic, 0, 1)
    assert (shown.key, shown.value) == (b"anna", None)
    assert client.admin.verify(topic).ok


async def test_null_values_with_asyncio(shared_cluster: Cluster) -> None:
    async with connect_async(shared_cluster.bootstrap) as client, client.producer() as producer:
        await client.admin.create_topic("by_asyncio", queues=1)
        await producer.send("by_asyncio", None, key=b"k")
        await (await producer.send_many("by_asyncio", [None], keys=[b"l"]))
        async with client.reader("by_asyncio", end="latest") as reader:
            assert [(each.key, each.value) async for each in reader] == [
                (b"k", None),
                (b"l", None),
            ]


def test_a_null_and_an_empty_value_under_one_id_conflict(client: Client) -> None:
    client.admin.create_topic("with_ids", queues=1, dedup=IdDedup(window_bytes=64 << 20))
    with client.producer() as producer:
        assert not producer.send("with_ids", None, key=b"k", message_id="1").result(10).duplicate
        assert producer.send("with_ids", None, key=b"k", message_id="1").result(10).duplicate
        error = producer.send("with_ids", b"", key=b"k", message_id="1").exception(10)
        assert isinstance(error, IdConflict)
    assert read(client, "with_ids") == [(b"k", None)]


def test_a_null_value_is_retried_and_becomes_a_dead_letter(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, None, key=b"k").result(10)
    policy = RetryPolicy(steps_ms=(100,))
    with client.consumer("g", [topic], retry=policy) as consumer:
        (message,) = take(consumer, 1)
        assert message.value is None
        consumer.reject(message, "no value")
        consumer.commit()
    (letter,) = client.admin.dead_letters("g")
    assert (letter.key, letter.value) == (b"k", None)


def test_the_console_sends_and_prints_nulls(shared_cluster: Cluster, client: Client) -> None:
    semel = Console(shared_cluster.bootstrap)
    client.admin.create_topic("lines", queues=1)
    lines = [{"key": "anna", "value": None}, {"value": "x"}, {"key": "b", "value": ""}]
    stdin = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert semel.json("produce", "lines", "--format", "jsonl", stdin=stdin)["stored"] == 3
    rows = read_json(semel("consume", "lines", "--until-end", "--json"))
    assert [(row["key"], row["value"]) for row in rows] == [("anna", None), (None, "x"), ("b", "")]
    assert semel("consume", "lines", "--until-end").stdout == b"\nx\n\n"
    assert semel("consume", "lines", "--max", "2").stdout == b"\nx\n"
    assert semel.json("message", "show", "lines", "0", "0")["value"] is None


def test_an_older_client_reads_up_to_the_first_null_and_is_told(
    shared_cluster: Cluster, client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"one", key=b"k").result(10)
        producer.send(topic, None, key=b"k").result(10)
    with connect(shared_cluster.bootstrap, level_max=NULL_LEVEL - 1) as older:
        with older.reader(topic, end="latest") as reader:
            assert [message.value for message in reader.poll(1, timeout=10)] == [b"one"]
            with pytest.raises(UnsupportedVersion) as caught:
                reader.poll(1, timeout=10)
        assert caught.value.level == NULL_LEVEL
        assert "from offset 1 of queue 0" in caught.value.message


def test_below_the_level_null_values_are_refused(tmp_path: Path) -> None:
    flags = ["--level-max", str(NULL_LEVEL - 1)]
    cluster = Cluster(tmp_path / "old", brokers=1, broker_flags=flags)
    cluster.controller.command += flags
    with cluster, connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("t", queues=1)
        with pytest.raises(UnsupportedVersion, match="semel cluster upgrade") as caught:
            producer.send("t", None, key=b"k").result(30)
        assert caught.value.level == NULL_LEVEL
        assert producer.send("t", b"v", key=b"k").result(30).offset == 0
