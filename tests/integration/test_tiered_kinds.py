"""Tiered topics with everything else that queues do: moves, splits, ids, delays, transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, IdDedup, Message
from semel.tier import layout
from tests.kit.cluster import CLUSTER_ID, Cluster
from tests.kit.waiting import until

FLAGS = (
    *("--tier-file-bytes", "10000"),
    *("--tier-wait-ms", "200"),
    *("--tier-check-ms", "50"),
    *("--retention-check-ms", "100"),
)
TIERED: dict[str, Any] = {"tier_after_ms": 300, "local_retention_ms": 600}


@pytest.fixture(scope="module")
def tier(module_path: Path) -> Path:
    folder = module_path / "tier"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path, tier: Path) -> Iterator[Cluster]:
    flags = ["--tier", f"file://{tier}", *FLAGS]
    with Cluster(module_path / "cluster", brokers=1, groups=2, broker_flags=flags) as running:
        yield running


def produce(client: Client, topic: str, count: int, start: int = 0) -> None:
    with client.producer() as producer:
        for at in range(start, start + count, 50):
            values = [b"%d" % number for number in range(at, at + 50)]
            producer.send_many(topic, values, keys=values)
        producer.flush(30)


def number(message: Message) -> int:
    assert message.value is not None
    return int(message.value)


def cold(client: Client, topic: str) -> bool:
    queues = client.admin.describe_topic(topic).queues
    return all(queue.local_start_offset == queue.log_end_offset for queue in queues)


def read(client: Client, topic: str) -> list[int]:
    with client.reader(topic, end="latest") as reader:
        return sorted(number(message) for message in reader)


def test_a_tiered_queue_moves_with_all_that_is_in_the_store(client: Client, tier: Path) -> None:
    client.admin.create_topic("moved", queues=1, groups=[1], **TIERED)
    produce(client, "moved", 400)
    until(lambda: cold(client, "moved"), what="an empty log")
    produce(client, "moved", 50, 400)
    for to in (2, 1, 2):
        client.admin.move_queue("moved", 0, to)
        until(lambda: not client.admin.list_moves("moved"), what="the move")
        (queue,) = client.admin.describe_topic("moved").queues
        assert queue.group == to
        assert queue.log_start_offset == 0
        assert read(client, "moved") == list(range(queue.log_end_offset))
        produce(client, "moved", 50, queue.log_end_offset)
    until(lambda: cold(client, "moved"), what="an empty log")
    assert read(client, "moved") == list(range(600))
    assert client.admin.verify("moved", tier=True).ok
    time.sleep(6)  # both groups have looked for queues that are gone
    topic_id = client.admin.describe_topic("moved").topic_id
    assert not list((tier / layout.topic_folder(CLUSTER_ID, topic_id)).rglob("deleted.json"))


def test_a_tiered_queue_is_split(client: Client) -> None:
    client.admin.create_topic("split", queues=1, **TIERED)
    produce(client, "split", 300)
    until(lambda: cold(client, "split"), what="an empty log")
    client.admin.alter_topic("split", queues=4)
    produce(client, "split", 300, 300)
    assert read(client, "split") == list(range(600))
    until(lambda: cold(client, "split"), what="an empty log")
    assert read(client, "split") == list(range(600))
    assert client.admin.verify("split", tier=True).ok


def test_messages_of_every_kind_stay_as_they_are(client: Client) -> None:
    dedup = IdDedup(window_bytes=1 << 20)
    client.admin.create_topic("kinds", queues=1, dedup=dedup, **TIERED)
    with client.producer("loader", compression="zstd") as producer:
        for at in range(50):
            producer.send(
                *("kinds", b"%d" % at),
                key=b"k%d" % at,
                headers=[("n", b"%d" % at)],
                message_id=b"id%d" % at,
            )
        due_us = time.time_ns() // 1_000 + 500_000
        producer.send("kinds", b"50", deliver_at=due_us, message_id=b"late")
        producer.flush(30)
        with producer.transaction("copy") as transaction:
            for at in range(51, 80):
                transaction.send("kinds", b"%d" % at)
        producer.send("kinds", None, key=b"gone").result(30)
    until(lambda: client.admin.describe_topic("kinds").queues[0].log_end_offset == 81)

    def told() -> list[tuple[object, ...]]:
        with client.reader("kinds", end="latest") as reader:
            return [
                (m.offset, m.key, m.value, m.headers, m.timestamp_us, m.message_id, m.sequence)
                for m in reader
            ]

    before = told()
    assert len(before) == 81
    until(lambda: cold(client, "kinds"), what="an empty log")
    assert told() == before
    for message_id, value in ((b"id7", b"7"), (b"late", b"50")):
        found = client.admin.find_message("kinds", message_id)
        assert found is not None
        assert (found.state, found.value) == ("stored", value)
        shown = client.admin.show_message("kinds", 0, found.offset)
        assert (shown.message_id, shown.append_time_us) == (message_id, found.append_time_us)
    with client.producer() as producer:
        again = producer.send("kinds", b"7", key=b"k7", headers=[("n", b"7")], message_id=b"id7")
        assert again.result(30).duplicate
    assert client.admin.verify("kinds", tier=True).ok
