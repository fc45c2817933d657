"""Tiered topics on a real cluster: older messages are in a folder, and readers notice nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, Message, connect
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import (
    QueueReader,
    layout,
    newest_pointer,
    open_store,
    owner_of,
    read_manifest,
)
from tests.kit.cluster import CLUSTER_ID, Cluster, Node
from tests.kit.console import Console
from tests.kit.consuming import take
from tests.kit.metrics_page import Page, scrape
from tests.kit.waiting import until

FLAGS = (
    *("--tier-file-bytes", "20000"),
    *("--tier-wait-ms", "200"),
    *("--tier-check-ms", "50"),
    *("--tier-collect-ms", "500"),
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
    flags = ["--tier", f"file://{tier}", "--metrics-port", "0", *FLAGS]
    with Cluster(module_path / "cluster", broker_flags=flags) as running:
        yield running


def produce(client: Client, topic: str, count: int, start: int = 0) -> None:
    """Numbers as values; the same number is the key."""
    numbers = [b"%d" % number for number in range(start, start + count)]
    with client.producer() as producer:
        for at in range(0, count, 50):
            part = numbers[at : at + 50]
            producer.send_many(topic, [each + b" " + b"v" * 100 for each in part], keys=part)
        producer.flush(30)


def number(message: Message) -> int:
    assert message.value is not None
    return int(message.value.split()[0])


def cold(client: Client, topic: str) -> bool:
    """The brokers have nothing of the topic any more."""
    queues = client.admin.describe_topic(topic).queues
    return all(queue.local_start_offset == queue.log_end_offset > 0 for queue in queues)


def metrics_of(cluster: Cluster) -> Page:
    """The figures of the master."""
    listens = json.loads(cluster.master().output_file.read_text().splitlines()[0])
    return asyncio.run(scrape(listens["metrics"]))


def read(client: Client, topic: str) -> list[int]:
    """What a reader gets from the start to the end."""
    with client.reader(topic, end="latest") as reader:
        return [number(message) for message in reader]


def test_every_message_comes_once_from_the_start_though_brokers_have_none(
    client: Client, shared_cluster: Cluster
) -> None:
    client.admin.create_topic("all", queues=2, **TIERED)
    produce(client, "all", 1_000)
    until(lambda: cold(client, "all"), what="an empty log")
    found = client.admin.describe_topic("all")
    assert (found.settings.tier_after_ms, found.settings.local_retention_ms) == (300, 600)
    assert [queue.bytes for queue in found.queues] == [0, 0]
    assert [queue.log_start_offset for queue in found.queues] == [0, 0]
    produce(client, "all", 100, 1_000)
    assert sorted(read(client, "all")) == list(range(1_100))
    with client.consumer("g", ["all"]) as consumer:
        assert sorted(map(number, take(consumer, 1_100))) == list(range(1_100))
        consumer.commit()
    lags = client.admin.describe_group("g").queues
    assert [lag.lag for lag in lags] == [0, 0]
    until(lambda: cold(client, "all"), what="an empty log")
    page = metrics_of(shared_cluster)
    assert page["semel_broker_tier_cold_messages{all}"] == 1_100
    assert page["semel_broker_tier_lag_seconds{all}"] == 0
    assert page["semel_broker_tier_usable"] == 1
    assert page["semel_broker_tier_written_messages_total"] >= 1_100
    assert page["semel_broker_tier_cold_reads_total"] > 0
    assert page["semel_broker_tier_errors_total"] == 0
    verified = client.admin.verify("all", tier=True)
    assert verified.ok, verified
    assert sum(queue.tiered_messages for queue in verified.queues) == 1_100
    said = Console(shared_cluster.bootstrap)("topic", "describe", "all").stdout.decode()
    assert "tiered after 300ms, 600ms in the brokers" in " ".join(said.split())
    assert "object store: " in said


def test_any_offset_and_time_is_found(client: Client) -> None:
    client.admin.create_topic("places", queues=1, **TIERED)
    produce(client, "places", 200)
    between_us = time.time_ns() // 1_000
    time.sleep(0.01)  # log time follows the clock
    produce(client, "places", 200, 200)
    until(lambda: cold(client, "places"), what="an empty log")
    produce(client, "places", 50, 400)
    for at in (0, 3, 199, 200, 399, 400, 449):
        message = client.admin.show_message("places", 0, at)
        assert message.value is not None
        assert (message.offset, message.value.split()[0]) == (at, b"%d" % at)
        with client.reader("places", start={0: at}, end="latest") as reader:
            assert [number(each) for each in reader] == list(range(at, 450))
    assert client.admin.offsets_at("places", between_us) == {0: 200}
    assert client.admin.offsets_at("places", 1) == {0: 0}
    shown = client.admin.show_message("places", 0, 200)
    assert shown.append_time_us >= between_us
    assert client.admin.offsets_at("places", shown.append_time_us) == {0: 200}
    with client.consumer("places", ["places"]) as consumer:
        take(consumer, 450)
        consumer.commit()
    client.admin.reset_offsets("places", "places", 120)
    with client.consumer("places", ["places"]) as consumer:
        assert number(take(consumer, 1)[0]) == 120


def test_retention_counts_messages_wherever_they_are(client: Client) -> None:
    client.admin.create_topic("kept", queues=1, retention_ms=4_000, **TIERED)
    produce(client, "kept", 300)
    until(lambda: cold(client, "kept"), what="an empty log")
    assert client.admin.describe_topic("kept").queues[0].log_start_offset == 0

    def gone() -> bool:
        (queue,) = client.admin.describe_topic("kept").queues
        return queue.log_start_offset == queue.log_end_offset == 300

    until(gone, what="retention")
    produce(client, "kept", 10, 300)
    assert read(client, "kept") == list(range(300, 310))


def test_settings_that_make_no_sense_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="give tier_after_ms as well"):
        client.admin.create_topic("bad", local_retention_ms=1_000)
    client.admin.create_topic("ends", queues=1, **TIERED)
    produce(client, "ends", 100)
    until(lambda: cold(client, "ends"), what="an empty log")
    settings = client.admin.alter_topic("ends", tier_after_ms=-1)
    assert (settings.tier_after_ms, settings.local_retention_ms) == (-1, -1)
    produce(client, "ends", 100, 100)
    assert read(client, "ends") == list(range(200))


def test_the_files_of_a_deleted_topic_go_a_day_later(client: Client, tier: Path) -> None:
    client.admin.create_topic("gone", queues=1, **TIERED)
    produce(client, "gone", 300)
    until(lambda: cold(client, "gone"), what="an empty log")
    topic_id = client.admin.describe_topic("gone").topic_id
    folder = tier / layout.topic_folder(CLUSTER_ID, topic_id)
    client.admin.delete_topic("gone")
    (noted,) = until(lambda: list(folder.rglob("deleted.json")), what="the note")
    assert list(folder.rglob("*.parquet"))
    then = time.time() - 25 * 3_600
    os.utime(noted, (then, then))
    until(lambda: not [path for path in folder.rglob("*") if path.is_file()], what="the deletion")


def test_a_folder_that_is_away_keeps_nobody_from_newer_messages(
    client: Client, tier: Path, shared_cluster: Cluster
) -> None:
    client.admin.create_topic("away", queues=1, **TIERED)
    produce(client, "away", 300)
    until(lambda: cold(client, "away"), what="an empty log")
    elsewhere = tier.with_name("elsewhere")
    tier.rename(elsewhere)
    try:
        produce(client, "away", 50, 300)
        with client.reader("away", start={0: 300}, end="latest") as reader:
            assert [number(each) for each in reader] == list(range(300, 350))
        with client.reader("away", start={0: 120}) as reader:
            assert reader.poll(timeout=2) == [], "it waits, and is not told of damage"
        logs = "".join(node.log_file.read_text() for node in shared_cluster.brokers)
        assert "not tiered, it is tried again what=the object store cannot be used" in logs
        assert not tier.exists()
    finally:
        elsewhere.rename(tier)
    assert read(client, "away") == list(range(350))
    until(lambda: cold(client, "away"), what="an empty log")


def test_a_killed_master_loses_and_repeats_nothing(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    flags = ["--tier", f"file://{tier}", *FLAGS]
    with (
        Cluster(tmp_path / "cluster", broker_flags=flags) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("t", queues=2, **TIERED)
        for round_ in range(4):
            produce(client, "t", 300, 300 * round_)
            master = cluster.master()
            cluster.kill(master)
            produce(client, "t", 300, 1_200 + 300 * round_)
            cluster.start_node(master)
        until(lambda: cold(client, "t"), what="an empty log")
        assert sorted(read(client, "t")) == list(range(2_400))
        assert client.admin.verify("t").ok
        topic_id = TopicId(client.admin.describe_topic("t").topic_id)
    store = open_store(f"file://{tier}")
    found: list[int] = []
    for queue in (0, 1):
        pointer = newest_pointer(store, CLUSTER_ID, QueueKey(topic_id, QueueId(queue)))
        assert pointer is not None
        reader = QueueReader(store, read_manifest(store, pointer))
        for file in reader.all_files():
            found += [int(v.split()[0]) for v in reader.whole_file(file)["value"].to_pylist()]
    assert sorted(found) == list(range(2_400)), "readers without brokers get the same"


def started(node: Node, *flags: str) -> tuple[int, str]:
    """How a start with other flags ends."""
    command = [*node.command, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("file://{}/missing", "there is no folder"),
        ("ftp://host/x", "the scheme of a tier is one of s3, gs, hdfs, file"),
        ("file://{}/foreign", "belongs to cluster 'other'"),
        ("file://{}/used", "give a prefix of its own to the cluster"),
    ],
)
def test_a_place_that_cannot_be_used_ends_the_start(tmp_path: Path, place: str, text: str) -> None:
    foreign, used = tmp_path / "foreign", tmp_path / "used"
    foreign.mkdir()
    used.mkdir()
    (foreign / layout.IDENTITY).write_text('{"cluster":"other","format":1,"kind":"identity"}')
    (used / "somebody.txt").write_text("x")
    cluster = Cluster(tmp_path / "cluster", brokers=1)
    status, said = started(cluster.brokers[0], "--tier", place.format(tmp_path))
    assert status == 1
    (line,) = [line for line in said.splitlines() if line.startswith("error:")]
    assert text in line
    assert not cluster.brokers[0].data.exists(), "nothing has changed"
    assert [path.name for path in used.iterdir()] == ["somebody.txt"]
    assert owner_of(open_store(f"file://{foreign}")) == "other"


def test_a_broker_without_the_url_says_so(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    flags = ["--tier", f"file://{tier}", *FLAGS]
    with Cluster(tmp_path / "cluster", brokers=1, broker_flags=flags) as cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic("t", queues=1, **TIERED)
            produce(client, "t", 100)
            until(lambda: cold(client, "t"), what="an empty log")
        (node,) = cluster.brokers
        cluster.kill(node)
        at = node.command.index("--tier")
        del node.command[at : at + 2]
        cluster.start_node(node)
        with connect(cluster.bootstrap) as client:
            produce(client, "t", 10, 100)
            with client.reader("t", start={0: 100}, end="latest") as reader:
                assert [number(each) for each in reader] == list(range(100, 110))
            with pytest.raises(SemelError, match="started without --tier"):
                client.admin.offsets_at("t", 1)
        findings = Console(cluster.bootstrap)("doctor").stdout.decode()
        assert "cannot read the older messages of 1 tiered queue" in " ".join(findings.split())
        assert node.process is not None
        os.kill(node.pid, signal.SIGTERM)
        node.process.wait(30)
