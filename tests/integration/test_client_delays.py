"""Delayed messages and message ids on a real cluster: none early, each once, ids and all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from semel.client import Client, Message, RetryPolicy, connect, connect_async
from semel.protos import compat
from semel.protos.errors import InvalidRequest
from tests.kit.cluster import Cluster
from tests.kit.consuming import take
from tests.kit.watching import CLOCKS_S, Watch

LATE_S = 3.0
"""A second is promised as a rule; this machine may be busy."""


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=4, if_not_exists=True)
    return name


@pytest.fixture
def watch(client: Client, topic: str) -> Iterator[Watch]:
    opened = Watch(client, topic)
    yield opened
    opened.close()


def in_seconds(seconds: float) -> int:
    """Microseconds since 1970 of a whole second about so long from now."""
    return (int(time.time() + seconds) + 1) * 1_000_000


def test_a_delayed_message_is_stored_now_and_seen_when_it_is_due(
    client: Client, topic: str, watch: Watch
) -> None:
    due_us = in_seconds(2)
    with client.producer() as producer:
        later = producer.send(
            topic, b"later", queue=1, deliver_at=due_us - 400_000, message_id="an id"
        ).result(10)
        assert (later.queue, later.offset, later.sequence, later.duplicate) == (1, -1, 0, False)
        now = producer.send(topic, b"now", queue=1).result(10)
        assert (now.offset, now.sequence) == (0, 1)
        past = datetime.now(UTC) - timedelta(days=1)
        assert producer.send(topic, b"past", queue=1, deliver_at=past).result(10).offset == 1
    with client.reader(topic, end="latest") as reader:
        assert [message.value for message in reader] == [b"now", b"past"]
    watch.until(3)
    assert watch.values == [b"now", b"past", b"later"]
    came, message = watch.seen[-1]
    assert due_us / 1e6 - CLOCKS_S <= came <= due_us / 1e6 + LATE_S
    assert (message.offset, message.sequence, message.message_id) == (2, 0, b"an id")
    assert client.admin.verify(topic).ok


def test_rows_with_times_of_their_own_come_once_each_and_none_early(
    client: Client, topic: str, watch: Watch
) -> None:
    base_us = in_seconds(1)
    dues = [None if n % 5 == 0 else base_us + n % 4 * 1_000_000 - n % 7 for n in range(2_000)]
    values = [b"%06d" % number for number in range(2_000)]
    keys = [b"k%d" % (number % 11) for number in range(2_000)]
    ids = [b"id-%d" % number if number % 3 else None for number in range(2_000)]
    column = pa.array(dues, pa.timestamp("us", "UTC"))
    with client.producer(compression="lz4", batch_bytes=2_048) as producer:
        summary = producer.send_many(
            topic, values, keys=keys, deliver_at=column, message_ids=ids
        ).result(30)
        assert (summary.messages, summary.stored, summary.duplicates) == (2_000, 2_000, 0)
    watch.until(2_000)
    assert sorted(watch.values) == values
    order = defaultdict(list)
    offsets = defaultdict(list)
    for came, message in watch.seen:
        row = int(message.value)
        due_us = dues[row]
        assert came >= (due_us or 0) / 1e6 - CLOCKS_S
        assert message.message_id == ids[row]
        rounded = 0 if due_us is None else -(-due_us // 1_000_000)
        order[message.key].append((rounded, row))
        offsets[message.queue].append(message.offset)
    assert all(found == sorted(found) for found in order.values())
    assert all(found == list(range(len(found))) for found in offsets.values())
    assert client.admin.verify(topic).ok


def test_a_named_producer_skips_what_it_stored_with_a_due_time(
    client: Client, topic: str, watch: Watch
) -> None:
    due_us = in_seconds(2)
    values = [b"%d" % number for number in range(30)]
    times = [due_us if number % 2 else None for number in range(30)]
    for last in (20, 30):
        with client.producer("delayer", source_positions=True) as producer:
            summary = producer.send_many(
                topic, values[:last], positions=range(last), deliver_at=times[:last]
            ).result(10)
            assert summary.stored == (20 if last == 20 else 10)
            assert summary.messages == last
    watch.until(30)
    assert sorted(watch.values) == sorted(values)
    assert client.admin.verify(topic).ok


def test_a_transaction_delays_only_what_is_delayed(
    client: Client, topic: str, watch: Watch
) -> None:
    due_us = in_seconds(2)
    with client.producer() as producer:
        with producer.transaction("delays") as t:
            t.send(topic, b"never", deliver_at=due_us)
            t.abort()
        with producer.transaction("delays") as t:
            t.send(topic, b"now", message_id=b"1")
            t.send(topic, b"later", deliver_after=timedelta(seconds=1.5), message_id=b"2")
            t.send_many(topic, [b"a", b"b"], deliver_at=[due_us, None], message_ids=[b"3", None])
        assert t.committed
    with client.transactions.stage("many", 0, writer=1) as stage:
        stage.send(topic, b"staged", deliver_at=due_us)
        receipt = stage.receipt()
    client.transactions.commit("many", "query", 0, [receipt])
    committed = time.time()
    with client.reader(topic, end="latest") as reader:
        assert {message.value for message in reader} == {b"now", b"b"}
    watch.until(5)
    came = {message.value: at for at, message in watch.seen}
    assert came.keys() == {b"now", b"later", b"a", b"b", b"staged"}
    assert min(came[b"a"], came[b"staged"]) >= due_us / 1e6 - CLOCKS_S
    assert came[b"later"] >= committed + 0.5
    ids = {message.value: message.message_id for _, message in watch.seen}
    assert ids == {b"now": b"1", b"later": b"2", b"a": b"3", b"b": None, b"staged": None}
    assert client.admin.verify(topic).ok


def test_ids_go_along_with_retries_dead_letters_and_what_is_brought_back(
    client: Client, topic: str
) -> None:
    with client.producer() as producer:
        producer.send(topic, b"bad", message_id="id 1", deliver_after=0.1).result(10)
        producer.send(topic, b"worse", message_id="id 2").result(10)
        producer.send(topic, b"none").result(10)
    policy = RetryPolicy(steps_ms=(100,))
    with client.consumer("ids", topic, retry=policy) as consumer:
        for message in take(consumer, 3):
            if message.message_id == b"id 2":
                consumer.reject(message)
            else:
                consumer.retry(message)
        consumer.commit()
        again = {message.value: message.message_id for message in take(consumer, 2)}
        assert again == {b"bad": b"id 1", b"none": None}
        consumer.commit()
    with client.reader("ids.dead-letters", end="latest") as reader:
        batch = reader.poll_arrow(10)
        assert batch is not None
        assert batch.column("message_id").to_pylist() == [b"id 2"]
    assert client.admin.redrive("ids").redriven == 1
    with client.reader(topic, end="latest") as reader:
        found = [message.message_id for message in reader if message.value == b"worse"]
    assert found == [b"id 2", b"id 2"]


def test_a_group_that_waits_is_woken(client: Client, topic: str) -> None:
    due_us = in_seconds(1)
    with client.consumer("woken", topic) as consumer:
        with client.producer() as producer:
            producer.send(topic, b"a", deliver_at=due_us).result(10)
        (message,) = take(consumer, 1)
        assert due_us / 1e6 - CLOCKS_S <= time.time() <= due_us / 1e6 + LATE_S
        consumer.commit(message)
    assert client.admin.describe_group("woken").lag == 0


def test_what_is_no_time_or_id_is_refused_and_stores_nothing(client: Client, topic: str) -> None:
    with client.producer() as producer:
        for options in (
            {"deliver_at": datetime.now()},
            {"deliver_at": 1, "deliver_after": 1},
            {"deliver_at": time.time_ns()},
            {"deliver_after": -1},
            {"message_id": b""},
        ):
            with pytest.raises(InvalidRequest):
                producer.send(topic, b"bad", **options)
        assert producer.stats.sent == 0
    assert all(queue.log_end_offset == 0 for queue in client.admin.describe_topic(topic).queues)


async def test_asyncio_has_the_same(shared_cluster: Cluster) -> None:
    due_us = in_seconds(1)
    async with connect_async(shared_cluster.bootstrap) as client:
        await client.admin.create_topic("async-delays", queues=1)
        async with client.producer() as producer:
            sent = await producer.send("async-delays", b"1", deliver_at=due_us, message_id="x")
            assert sent.offset == -1
            many = await producer.send_many("async-delays", [b"2"], deliver_at=due_us)
            assert (await many).stored == 1
            async with producer.transaction("async") as t:
                await t.send("async-delays", b"3", deliver_after=1, message_id="y")
                await t.send_many("async-delays", [b"4"], message_ids=["z"])
        found: list[Message] = []
        async with client.reader("async-delays") as reader, compat.timeout(20):
            while len(found) < 4:
                found += await reader.poll(timeout=1)
        ids = {message.value: message.message_id for message in found}
        assert ids == {b"1": b"x", b"2": None, b"3": b"y", b"4": b"z"}
        assert [message.offset for message in found] == [0, 1, 2, 3]


def test_what_is_delayed_outlives_its_master(cluster: Cluster) -> None:
    """It dies before the time has come, and the next one after a part was released."""
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("t", queues=2)
        watch = Watch(client, "t")
        base_us = in_seconds(3)
        dues = [base_us + n % 6 * 1_000_000 for n in range(600)]
        values = [b"%06d" % number for number in range(600)]
        with client.producer(batch_bytes=1_024) as producer:
            assert producer.send_many("t", values, deliver_at=dues).result(30).stored == 600
            first = cluster.master()
            cluster.kill(first)
            cluster.start_node(first)
            watch.until_any(100, 60)
            second = cluster.master()
            cluster.kill(second)
            cluster.start_node(second)
            watch.until(600, 60)
        assert sorted(watch.values) == values
        for came, message in watch.seen:
            assert came >= dues[int(message.value)] / 1e6 - CLOCKS_S
        result = client.admin.verify("t")
        assert (result.ok, result.messages) == (True, 600)
        watch.close()


def test_a_queue_is_split_with_what_is_delayed_in_it(client: Client, topic: str) -> None:
    with client.producer() as producer:
        for number, seconds in ((2, 3), (3, 3_600)):
            producer.send(topic, b"%d" % seconds, queue=number, deliver_after=seconds).result(10)
    client.admin.split_queue(topic, 2, children=2)
    client.admin.alter_topic(topic, queues=8)
    watch = Watch(client, topic)
    watch.until(1)
    assert watch.values == [b"3"]
    described = client.admin.describe_topic(topic).queues
    waiting = {queue.queue for queue in described if queue.delayed_messages}
    assert sum(not queue.sealed for queue in described) == 8
    assert len(waiting) == 1
    assert waiting.isdisjoint(queue.queue for queue in described if queue.sealed)
    watch.close()
