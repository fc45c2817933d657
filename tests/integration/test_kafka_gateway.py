"""Clients of Kafka that nobody here wrote, on a real cluster: what they store and read."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]
from kafka import TopicPartition as PlainPartition

from semel.client import Client, connect
from semel.protos.errors import UnknownTopic
from tests.kit.authority import Authority
from tests.kit.cluster import CLUSTER_ID, Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume, produce
from tests.kit.waiting import until
from tests.soak.kafka_requests import besiege

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def gateway(shared_cluster: Cluster) -> Iterator[KafkaGatewayProcess]:
    with KafkaGatewayProcess(shared_cluster.bootstrap, "--metrics", "127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_stores_and_reads_every_codec(
    gateway: KafkaGatewayProcess, client: Client, codec: str, idempotent: bool
) -> None:
    topic = f"codec-{codec}-{idempotent}"
    client.admin.create_topic(topic, queues=2)
    values = [b"%d-" % number + b"x" * 200 for number in range(500)]
    stored = produce(
        gateway.address,
        topic,
        values,
        settings={"enable.idempotence": idempotent, "compression.type": codec},
    )
    assert len(set(stored)) == len(values)
    found = {
        (message.partition(), message.offset()): message.value()
        for message in consume(gateway.address, topic, 2, len(values))
    }
    assert found == {
        (place.partition, place.offset): value for place, value in zip(stored, values, strict=True)
    }
    assert client.admin.verify(topic).ok


def test_all_that_a_record_has_comes_back(gateway: KafkaGatewayProcess, client: Client) -> None:
    topic = "fields"
    client.admin.create_topic(topic, queues=1)
    producer = Producer({"bootstrap.servers": gateway.address})
    headers: list[Any] = [("trace", b"1"), ("trace", b"2"), ("none", b"")]
    producer.produce(topic, value=b"v", key=b"k", headers=headers, timestamp=1_700_000_000_123)
    producer.produce(topic, value=b"no key", timestamp=1_700_000_000_124)
    producer.produce(topic, value=None, key=b"k", timestamp=1_700_000_000_125)
    producer.produce(topic, value=b"", key=b"", timestamp=1_700_000_000_126)
    assert producer.flush(30) == 0
    one, two, three, four = consume(gateway.address, topic, 1, 4)
    assert (one.key(), one.value(), one.headers()) == (b"k", b"v", headers)
    assert one.timestamp() == (1, 1_700_000_000_123)
    assert (two.key(), two.value()) == (None, b"no key")
    assert (three.key(), three.value()) == (b"k", None)
    assert (four.key(), four.value()) == (b"", b"")


def test_the_sdk_reads_what_kafka_s_clients_wrote_and_the_other_way_round(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "both"
    client.admin.create_topic(topic, queues=1)
    produce(gateway.address, topic, [b"from kafka"], keys=[b"k"])
    with client.producer() as sdk:
        sdk.send(topic, b"from the SDK", key=b"s", headers={"h": b"x"}).result(30)
        sdk.send_many(topic, [b"%d" % n for n in range(100)]).result(30)
    with client.reader(topic, end="latest") as reader:
        seen = [(message.offset, message.key, message.value) for message in reader]
    assert seen[:2] == [(0, b"k", b"from kafka"), (1, b"s", b"from the SDK")]
    found = consume(gateway.address, topic, 1, 102)
    assert [(m.offset(), m.key(), m.value()) for m in found] == seen
    assert found[1].headers() == [("h", b"x")]


def test_kafka_python_stores_reads_and_looks_up_offsets(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "kafka-python"
    client.admin.create_topic(topic, queues=2)
    for idempotent in (True, False):
        producer = KafkaProducer(
            bootstrap_servers=gateway.address,
            enable_idempotence=idempotent,
            compression_type="gzip",
        )
        sent = [producer.send(topic, value=b"%d" % n, partition=n % 2) for n in range(100)]
        assert all(each.get(30).offset >= 0 for each in sent)
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=gateway.address, group_id=None)
    places = [PlainPartition(topic, 0), PlainPartition(topic, 1)]
    consumer.assign(places)
    assert consumer.end_offsets(places) == dict.fromkeys(places, 100)
    assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
    now = round(time.time() * 1000)
    hour = 3_600_000
    assert consumer.offsets_for_times({places[0]: now - hour})[places[0]].offset == 0
    assert consumer.offsets_for_times({places[0]: now + hour})[places[0]] is None
    consumer.seek_to_beginning()
    found = 0
    until = time.monotonic() + 30
    while found < 200 and time.monotonic() < until:
        found += sum(map(len, consumer.poll(500).values()))
    consumer.close()
    assert found == 200


async def test_aiokafka_stores_and_reads(gateway: KafkaGatewayProcess, client: Client) -> None:
    topic = "aiokafka"
    client.admin.create_topic(topic, queues=2)
    for idempotent in (True, False):
        async with AIOKafkaProducer(
            bootstrap_servers=gateway.address, enable_idempotence=idempotent
        ) as producer:
            sent = [await producer.send(topic, b"%d" % n, partition=n % 2) for n in range(100)]
            assert [(await each).offset for each in sent[:2]] == [0 if idempotent else 50] * 2
            for each in sent:
                await each
    consumer = AIOKafkaConsumer(bootstrap_servers=gateway.address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([AioPartition(topic, 0), AioPartition(topic, 1)])
        await consumer.seek_to_beginning()
        found = 0
        until = time.monotonic() + 30
        while found < 200 and time.monotonic() < until:
            found += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
    finally:
        await consumer.stop()
    assert found == 200


def test_topics_are_created_described_and_deleted(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    admin = AdminClient({"bootstrap.servers": gateway.address})
    wanted = NewTopic("made", 3, 1, config={"cleanup.policy": "compact", "retention.ms": "-1"})
    admin.create_topics([wanted])["made"].result(30)
    described = client.admin.describe_topic("made")
    assert (len(described.queues), described.settings.compaction is not None) == (3, True)
    for name, config in (("made", {}), ("other", {"min.insync.replicas": "2"})):
        with pytest.raises(KafkaException):
            admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    metadata = admin.list_topics("made", timeout=30)
    assert sorted(metadata.topics["made"].partitions) == [0, 1, 2]
    admin.delete_topics(["made"])["made"].result(30)
    with pytest.raises(UnknownTopic):
        client.admin.describe_topic("made")


def test_a_topic_that_is_missing_is_not_created(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    producer = Producer({"bootstrap.servers": gateway.address, "message.timeout.ms": 3_000})
    failures: list[object] = []
    producer.produce("missing", b"v", on_delivery=lambda error, _: failures.append(error))
    producer.flush(30)
    assert failures[0] is not None
    assert "missing" not in [topic.name for topic in client.admin.list_topics()]


def test_offsets_of_a_topic_that_was_made_anew_elsewhere_are_told(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "made-anew"
    client.admin.create_topic(topic, queues=1)
    produce(gateway.address, topic, [b"old"])
    assert _end_of(gateway, topic) == 1
    client.admin.delete_topic(topic)
    client.admin.create_topic(topic, queues=1)
    assert _end_of(gateway, topic) == 0


def _end_of(gateway: KafkaGatewayProcess, topic: str) -> int:
    """Where the first partition ends, as ListOffsets says."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    place = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": gateway.address})
    found = admin.list_offsets({place: latest}, request_timeout=30)
    return int(found[place].result(30).offset)


@pytest.mark.parametrize("asked", [False, True], ids=["", "asked"])
@pytest.mark.parametrize(
    "settings",
    [
        {"enable.idempotence": False, "acks": 0},
        {"enable.idempotence": False},
        {"enable.idempotence": True},
        {"transactional.id": "anew"},
    ],
    ids=["unacknowledged", "plain", "idempotent", "transactional"],
)
def test_a_topic_that_was_made_anew_elsewhere_takes_the_first_record_at_once(
    gateway: KafkaGatewayProcess, client: Client, settings: dict[str, Any], asked: bool
) -> None:
    """Without acknowledgements it would be lost, and a client that tries again counts twice. A
    gateway that was asked for offsets knows the new topic, and its producers do not."""
    topic = "-".join(["anew", *map(str, settings.values()), str(asked)])
    told: list[dict[str, Any]] = []
    config = {
        "bootstrap.servers": gateway.address,
        "linger.ms": 0,
        "statistics.interval.ms": 50,
        "stats_cb": lambda text: told.append(json.loads(text)),
    }
    client.admin.create_topic(topic, queues=1)
    produce(gateway.address, topic, [b"old"], settings={"enable.idempotence": False})
    producer = Producer(config | settings)
    transactional = "transactional.id" in settings
    if transactional:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.list_topics(topic, timeout=30)  # it knows the topic, and asks for nothing more
    client.admin.delete_topic(topic)
    client.admin.create_topic(topic, queues=1)
    if asked:
        assert _end_of(gateway, topic) == 0
    producer.produce(topic, b"new", partition=0)
    assert producer.flush(30) == 0
    if transactional:
        producer.commit_transaction(30)
    heard = len(told)

    def hears_more() -> bool:
        producer.poll(0.05)
        return len(told) > heard

    until(hears_more, 30, "statistics")
    assert sum(broker["txretries"] for broker in told[-1]["brokers"].values()) == 0
    assert [message.value() for message in consume(gateway.address, topic, 1, 1)] == [b"new"]


def test_what_is_too_large_is_refused_and_the_next_record_is_stored(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "large"
    client.admin.create_topic(topic, queues=1, message_bytes_max=10_000)
    config = {"bootstrap.servers": gateway.address, "enable.idempotence": False, "linger.ms": 0}
    producer = Producer(config)
    outcomes: list[object] = []
    for value in (bytes(20_000), b"fits"):
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(30)
    assert "MSG_SIZE_TOO_LARGE" in str(outcomes[0])
    assert outcomes[1] is None


def test_records_with_semel_s_own_headers_are_delayed_and_compared(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "own-headers"
    client.admin.create_topic(topic, queues=1)
    due_ms = round(time.time() * 1000) + 1_000
    producer = Producer({"bootstrap.servers": gateway.address})
    producer.produce(topic, b"later", headers=[("semel-deliver-at", b"%d" % due_ms)])
    producer.produce(topic, b"now", headers=[("semel-message-id", b"id-1")])
    assert producer.flush(30) == 0
    found = consume(gateway.address, topic, 1, 2)
    assert [message.value() for message in found] == [b"now", b"later"]
    assert time.time() * 1000 >= due_ms


def test_garbage_does_not_disturb_anybody(gateway: KafkaGatewayProcess, client: Client) -> None:
    topic = "undisturbed"
    client.admin.create_topic(topic, queues=1)
    host, port = gateway.address.split(":")
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 2**31 - 1) + bytes(64),
        struct.pack(">ihhih", 14, 3, 8, 1, -1) + b"\x7f\xff\xff\xff",
        bytes(1_000),
    ):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(data)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
    assert len(produce(gateway.address, topic, [b"v"])) == 1
    assert not client.admin.describe_topic(topic).queues[0].log_start_offset


def test_metrics_tell_what_goes_on(gateway: KafkaGatewayProcess) -> None:
    for page, part in (("livez", "alive"), ("readyz", "ready"), ("metrics", "semel_gateway_")):
        with urllib.request.urlopen(f"http://{gateway.metrics}/{page}", timeout=10) as answer:
            assert part in answer.read().decode()


def figure(gateway: KafkaGatewayProcess, name: str) -> float:
    """Returns a figure of the gateway's metrics page that has no labels of its own."""
    with urllib.request.urlopen(f"http://{gateway.metrics}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"semel_gateway_{name}{{")]
    return float(line.split()[-1])


def test_a_consumer_with_a_session_misses_nothing(
    gateway: KafkaGatewayProcess, client: Client
) -> None:
    topic = "sessions"
    client.admin.create_topic(topic, queues=8)
    before = figure(gateway, "fetch_sessions")
    consumer = KafkaConsumer(
        bootstrap_servers=gateway.address,
        group_id=None,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
        enable_incremental_fetch_sessions=True,
    )
    try:
        consumer.assign([PlainPartition(topic, number) for number in range(8)])
        for number in range(24):
            with client.producer() as producer:
                producer.send(topic, b"%d" % number, queue=number % 8).result(30)
            found: list[Any] = []
            until = time.monotonic() + 30
            while not found and time.monotonic() < until:
                found = [each for some in consumer.poll(500).values() for each in some]
            assert [(each.partition, each.value) for each in found] == [
                (number % 8, b"%d" % number)
            ]
            if number == 12:
                consumer.pause(PlainPartition(topic, 7))
            if number == 14:
                consumer.resume(PlainPartition(topic, 7))
        assert figure(gateway, "fetch_sessions") == before + 1
    finally:
        consumer.close()


def test_with_tls_only_clients_with_a_certificate_are_let_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path, CLUSTER_ID)
    ca, both = authority.write_machine("127.0.0.1")
    flags = ["--certificate", str(both), "--key", str(both), "--clients-ca", str(ca)]
    settings = {
        "security.protocol": "ssl",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(both),
        "ssl.key.location": str(both),
    }
    # A cluster of its own: clients are led from one gateway to another, so all are alike.
    with (
        Cluster(tmp_path / "cluster", brokers=1) as cluster,
        connect(cluster.bootstrap) as client,
        KafkaGatewayProcess(cluster.bootstrap, *flags) as gateway,
    ):
        client.admin.create_topic("tls", queues=1)
        stored = produce(gateway.address, "tls", [bytes(100_000)] * 20, settings=settings)
        assert [place.offset for place in stored] == list(range(20))
        for without in ({}, {"security.protocol": "ssl", "ssl.ca.location": str(ca)}):
            stranger = Producer({"bootstrap.servers": gateway.address, **without})
            with pytest.raises(KafkaException):
                stranger.list_topics(timeout=1.0)


def test_a_gateway_that_cannot_begin_says_why_in_one_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "semel.console", "kafka-gateway", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    away = run("--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    assert (away.returncode, away.stderr.count("\n")) == (1, 1)
    open_port = run("--listen", "0.0.0.0:0", "--advertise", "here.example:9092")
    assert (open_port.returncode, "--insecure" in open_port.stderr) == (1, True)
    nowhere = run("--listen", "0.0.0.0:0", "--insecure")
    assert (nowhere.returncode, "--advertise" in nowhere.stderr) == (1, True)


def test_bad_requests_of_all_apis_disturb_nobody(tmp_path: Path) -> None:
    assert besiege(tmp_path, requests=2_000, seed=27) == 0


def test_a_cluster_of_one_s_own_has_a_gateway_beside_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semel.console", "up", "--data", str(tmp_path), "--brokers"]
    command += ["1", "--port", "0", "--kafka", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            with connect(ready["bootstrap"]) as client:
                client.admin.create_topic("orders", queues=1)
            assert len(produce(ready["kafka"], "orders", [b"v"])) == 1
        finally:
            process.terminate()
            assert process.wait(30) == 0
