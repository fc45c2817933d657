"""Quotas in force: real processes, whose clients wait by themselves and lose nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, connect, connect_async
from semel.protos.errors import InvalidRequest, Throttled, TimedOut
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.metrics_page import scrape
from tests.kit.ports import free_ports
from tests.kit.waiting import until

RATE = 1 << 20
BODY = b"x" * 4_000


class Served(Cluster):
    """A cluster of one broker that shows its metrics."""

    def __init__(self, data: Path) -> None:
        (self.metrics_port,) = free_ports(1)
        flags = ("--metrics-port", str(self.metrics_port))
        super().__init__(data, brokers=1, broker_flags=flags)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("quotas")) as made:
        with connect(made.bootstrap, keep_routes=False) as client:
            client.admin.set_quotas("topic:warm", {"write-bytes": RATE})  # brokers watch from here
        yield made


@pytest.fixture
def client(cluster: Served) -> Iterator[Client]:
    with connect(cluster.bootstrap, keep_routes=False) as made:
        yield made
        for subject in {quota.subject for quota in made.admin.quotas()}:
            made.admin.remove_quotas(subject)


def in_force(client: Client, topic: str, rate: int = RATE) -> None:
    """Returns once a quota that makes a topic slow is in force."""

    def is_slow() -> bool:
        with client.producer(batch_bytes=32 << 10) as producer:
            for _ in range(3 * rate // (64 << 10)):
                producer.send(topic, b"w" * (32 << 10))
            producer.flush()
            return producer.stats.throttled_ms > 0

    until(is_slow, what="the quota")


def send(client: Client, topic: str, messages: int) -> tuple[list[int], int]:
    """Log times at which the messages were appended, each exactly once; and how long they were
    throttled."""
    with client.producer(batch_bytes=64 << 10) as producer:
        sent = [
            producer.send(topic, BODY, headers={"n": b"%d" % n}, queue=n % 2)
            for n in range(messages)
        ]
        stored = [future.result() for future in sent]
        throttled_ms = producer.stats.throttled_ms
        assert producer.stats.failed == 0
    places = {(each.queue, each.offset) for each in stored}
    assert len(places) == messages
    return sorted(each.timestamp_us for each in stored), throttled_ms


def assert_rate(appended_us: list[int], bytes_each: int, rate: int = RATE) -> None:
    """The bytes behind the first second's are no more than the quota gives meanwhile, and a tenth.
    That they are no less is shown where the clock is virtual (`test_write_pace.py`)."""
    begin = next(n for n, at in enumerate(appended_us) if at > appended_us[0] + 1_500_000)
    passed_s = (appended_us[-1] - appended_us[begin]) / 1e6
    assert passed_s > 1, "too little was sent to see a rate"
    found = (len(appended_us) - begin) * bytes_each / passed_s
    assert found < rate * 1.1, f"{found:,.0f} B/s"


@pytest.mark.parametrize("subject", ["topic:paced", "*"])
def test_a_quota_is_kept_and_every_message_is_stored_once(
    cluster: Served, client: Client, subject: str
) -> None:
    client.admin.create_topic("paced", queues=2, if_not_exists=True)
    client.admin.set_quotas(subject, {"write-bytes": RATE})
    in_force(client, "paced")
    appended_us, throttled_ms = send(client, "paced", 1_300)
    assert_rate(appended_us, 4_050)
    assert throttled_ms > 1_500
    # Every message is there once, and those of a queue are in the order in which they were sent.
    seen: dict[int, list[int]] = {}
    with client.reader("paced", end="latest") as reader:
        for message in reader:
            if message.value == BODY:
                seen.setdefault(message.queue, []).append(int(dict(message.headers)["n"]))
    numbers = [seen[queue][-650:] for queue in (0, 1)]
    assert numbers == [list(range(0, 1_300, 2)), list(range(1, 1_300, 2))]


def test_a_quota_of_a_topic_does_not_hold_other_topics_of_the_same_client(
    cluster: Served, client: Client
) -> None:
    for topic in ("slow", "free"):
        client.admin.create_topic(topic, queues=2)
    client.admin.set_quotas("topic:slow", {"write-bytes": 64 << 10})
    in_force(client, "slow", 64 << 10)
    with client.producer(batch_bytes=16 << 10) as slow, client.producer() as free:
        held = [slow.send("slow", BODY) for _ in range(100)]
        passed = [free.send("free", BODY) for _ in range(1_000)]
        for future in passed:
            future.result()
        assert not held[-1].done()
        client.admin.remove_quotas("topic:slow")  # and nobody waits on for a quota that is gone
        for future in held:
            future.result(timeout=5)


def test_messages_a_second_are_limited(cluster: Served, client: Client) -> None:
    client.admin.create_topic("counted", queues=2)
    client.admin.set_quotas("topic:counted", {"messages": 250})
    until(lambda: send(client, "counted", 400)[1] > 0, what="the quota")
    assert_rate(send(client, "counted", 900)[0], 1, rate=250)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_reading_is_limited_through_memory_and_connections_alike(
    cluster: Served, client: Client, shared_memory: bool
) -> None:
    client.admin.create_topic("read", queues=2, if_not_exists=True)
    if shared_memory:  # the first of the two
        with client.producer(batch_bytes=64 << 10) as producer:
            producer.send_many("read", [BODY] * 1_300)
            producer.flush()
    client.admin.set_quotas("topic:read", {"read-bytes": RATE})
    options = {"shared_memory": shared_memory, "keep_routes": False}
    with connect(cluster.bootstrap, **options) as other:

        def is_slow() -> bool:
            with other.reader("read", end="latest") as reader:
                for _ in reader:
                    pass
                return reader.throttled_ms > 0

        until(is_slow, what="the quota")
        with other.reader("read", end="latest", fetch_bytes=256 << 10) as reader:
            began_s = time.monotonic()
            found = sum(message.value == BODY for message in reader)
            passed_s = time.monotonic() - began_s
            assert reader.throttled_ms > 1_000
    assert found == 1_300
    # What comes in a second may be there at once; the rest comes at the rate, and never sooner.
    assert passed_s > found * 4_000 / RATE - 1.3


async def test_requests_wait_by_themselves(cluster: Served, client: Client) -> None:
    client.admin.set_quotas("*", {"requests": 20})
    async with await connect_async(cluster.bootstrap, keep_routes=False) as other:
        began_s = time.monotonic()
        for _ in range(60):
            await other.admin.list_producers()
        assert time.monotonic() - began_s > 1.5
        assert other.throttled_ms > 1_000


def test_counts_are_one_clear_error(cluster: Served, client: Client) -> None:
    have = len(client.admin.list_topics())
    client.admin.set_quotas("*", {"topics": have + 1})
    client.admin.create_topic("last", queues=1)
    client.admin.create_topic("last", queues=1, if_not_exists=True)
    with pytest.raises(InvalidRequest, match=r"topics, as many as the quota of \* allows"):
        client.admin.create_topic("beyond", queues=1)
    client.admin.set_quotas("*", {"groups": 0})
    with pytest.raises(InvalidRequest, match="quota"), client.consumer("g", "last") as consumer:
        consumer.poll(timeout=1)


def test_open_producers_and_what_a_topic_delays(cluster: Served, client: Client) -> None:
    client.admin.create_topic("few", queues=1)
    client.admin.set_quotas("topic:few", {"delayed-bytes": 20_000})

    def send_late(producer_timeout_ms: int) -> None:
        with client.producer(delivery_timeout_ms=producer_timeout_ms) as producer:
            producer.send("few", BODY, deliver_after=3_600).result()

    def is_full() -> bool:
        try:
            send_late(1_000)
        except TimedOut:
            return True
        return False

    until(is_full, what="a full topic")
    client.admin.remove_quotas("topic:few")
    until(lambda: not is_full(), what="room")
    client.admin.set_quotas("*", {"producers": 2})
    producers = [client.producer(delivery_timeout_ms=3_000) for _ in range(12)]

    def one_more() -> bool:
        try:
            producers.pop().send("few", b"v").result()
        except (TimedOut, Throttled):
            return True
        return False

    until(one_more, what="one producer too many")


async def test_the_console_and_the_metrics_show_quotas(cluster: Served, client: Client) -> None:
    console = Console(cluster.bootstrap)
    limits = ("write-bytes=64k", "messages=5_000")
    assert console.json("quota", "set", "topic:shown-*", *limits) == {"changed": True}
    assert console.json("quota", "set", "topic:shown-*", *limits) == {"changed": False}
    assert console.json("quota", "show", "topic:shown-1") == console.json("quota", "list")
    shown = console.json("quota", "show", "topic:shown-1")["quotas"]
    assert shown == [
        {"subject": "topic:shown-*", "kind": "write-bytes", "limit": 64 << 10},
        {"subject": "topic:shown-*", "kind": "messages", "limit": 5_000},
    ]
    client.admin.create_topic("shown-1", queues=1)
    in_force(client, "shown-1", 64 << 10)
    page = await scrape(f"127.0.0.1:{cluster.metrics_port}")
    assert page["semel_broker_quota_throttled_seconds_total{write-bytes,topic:shown-1}"] > 0
    assert page["semel_broker_quota_used_bytes_total{write-bytes,topic:shown-1}"] > 90_000
    assert console.json("quota", "remove", "topic:shown-*", "messages") == {"changed": True}
    for arguments, told in (
        (("set", "alice", "messages=5"), "can have no quota: write user:NAME"),
        (("set", "user:alice", "messages=-5"), "write KIND=LIMIT with a number from 0"),
        (("set", "user:alice", "speed=5"), "is nothing that a quota limits; known are write-bytes"),
        (("set", "group:none", "messages=5"), "there is no group:none"),
        (("show", "group:none"), "quotas apply to user:NAME or topic:NAME"),
    ):
        status = 2 if "write KIND" in told else 1
        error = console.fails("quota", *arguments, status=status)
        assert told in error
        assert json.dumps(error).count("Traceback") == 0
