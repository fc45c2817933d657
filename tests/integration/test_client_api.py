"""The SDK against a real cluster, all nodes well."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import doctest
import io
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semel.client
from semel.client import (
    ARROW_SCHEMA,
    Client,
    ClientConfig,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    ReaderConfig,
    connect,
    connect_async,
)
from semel.protos.errors import (
    Closed,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    ProducerFenced,
    SemelError,
    SequenceConflict,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownProducer,
    UnknownQueue,
    UnknownTopic,
)
from semel.protos.ids import Sequence
from tests.kit.cluster import Cluster
from tests.kit.waiting import until


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    client.admin.create_topic(name, queues=4)
    return str(name)


def read_all(client: Client, topic: str) -> list[Any]:
    with client.reader(topic, end="latest") as reader:
        return list(reader)


def test_a_message_comes_back_as_it_was_sent(client: Client, topic: str) -> None:
    with client.producer() as producer:
        metadata = producer.send(
            topic, b"v\x00\n", key="schlüssel", headers={"a": b"1", "b": b""}, timestamp_us=12_345
        ).result(10)
        plain = producer.send(topic, b"", queue=3).result(10)
    assert (metadata.topic, metadata.offset, metadata.sequence) == (topic, 0, 0)
    assert not metadata.duplicate
    assert abs(metadata.timestamp_us / 1e6 - time.time()) < 60
    assert plain.queue == 3
    found = {message.value: message for message in read_all(client, topic)}
    message = found[b"v\x00\n"]
    assert message.key == "schlüssel".encode()
    assert message.headers == [("a", b"1"), ("b", b"")]
    assert (message.timestamp_us, message.queue, message.offset) == (12_345, metadata.queue, 0)
    assert (found[b""].key, found[b""].headers, found[b""].queue) == (None, [], 3)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_bulk_keeps_order_in_every_queue(client: Client, topic: str, compression: str) -> None:
    values = [b"%06d" % number for number in range(20_000)]
    keys = pa.array([None if n % 3 else b"k%d" % (n % 17) for n in range(20_000)], pa.binary())
    with client.producer(compression=compression, batch_bytes=16 << 10) as producer:
        summary = producer.send_many(topic, values, keys=keys).result(30)
        assert (summary.messages, summary.stored, summary.duplicates) == (20_000, 20_000, 0)
    last: dict[tuple[int, bytes | None], bytes] = {}
    seen = []
    for message in read_all(client, topic):
        place = (message.queue, message.key)
        if message.key is not None:
            assert last.get(place, b"") < message.value
            last[place] = message.value
        seen.append(message.value)
    assert sorted(seen) == values
    queues_of: dict[bytes, set[int]] = {}
    for queue, key in last:
        if key is not None:
            queues_of.setdefault(key, set()).add(queue)
    assert all(len(queues) == 1 for queues in queues_of.values())


def test_arrow_comes_out_with_all_columns(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_many(topic, pa.array([b"a", b"b", b"c"]), queue=1)
    with client.reader(topic, queues=[1], end="latest") as reader:
        batch = reader.poll_arrow(10)
        assert batch is not None
        assert batch.schema == ARROW_SCHEMA
        assert batch.column("value").to_pylist() == [b"a", b"b", b"c"]
        assert batch.column("offset").to_pylist() == [0, 1, 2]
        assert batch.column("queue").to_pylist() == [1, 1, 1]
        assert reader.poll_arrow(5) is None
        assert reader.finished


def test_reading_starts_and_ends_where_it_is_told(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % n for n in range(10)], queue=0).result(10)
        time.sleep(0.05)
        middle = datetime.now(UTC)
        producer.send_many(topic, [b"%d" % n for n in range(10, 20)], queue=0).result(10)

    def values(**places: Any) -> list[int]:
        with client.reader(topic, **places) as reader:
            return [int(message.value) for message in reader]

    assert values(start={0: 3}, end={0: 7}) == [3, 4, 5, 6]
    assert values(start={0: "earliest"}, end="latest") == list(range(20))
    assert values(start=middle, end="latest") == list(range(10, 20))
    assert values(start="latest", end="latest") == []
    with pytest.raises(OffsetOutOfRange):
        values(start={0: 21})
    with pytest.raises(InvalidRequest, match="no queue 9"):
        values(start={9: 0})


def test_a_reader_waits_for_more_until_it_is_closed(client: Client, topic: str) -> None:
    reader = client.reader(topic)
    seen: list[bytes] = []

    def read() -> None:
        seen.extend(message.value for message in reader)

    thread = threading.Thread(target=read)
    thread.start()
    with client.producer() as producer:
        producer.send(topic, b"one").result(10)
    until(lambda: seen)
    reader.close()
    thread.join(5)
    assert not thread.is_alive()
    assert seen == [b"one"]


def test_a_named_producer_resumes_exactly(client: Client, topic: str) -> None:
    values = [b"line %d" % number for number in range(3_000)]
    with client.producer("resume", source_positions=True) as producer:
        assert producer.last_sequence(topic) == -1
        producer.send_many(topic, values[:1_700], positions=range(1_700)).result(10)
        producer.flush(10)
        assert producer.last_sequence(topic) == 1_699
    with client.producer("resume", source_positions=True) as producer:
        assert producer.last_sequence(topic) == 1_699
        summary = producer.send_many(topic, values, positions=range(3_000)).result(10)
        assert (summary.stored, summary.skipped) == (1_300, 1_700)
        single = producer.send(topic, b"end", position=5_000).result(10)
        assert single.sequence == 5_000
        producer.flush(10)
        assert set(producer.last_sequences(topic).values()) == {5_000}
        assert producer.stats.skipped == 1_700
    messages = read_all(client, topic)
    assert sorted(message.sequence for message in messages) == [*range(3_000), 5_000]
    assert all(
        message.value == values[message.sequence]
        for message in messages[:-1]
        if message.sequence < 3_000
    )
    assert client.admin.verify(topic).ok


def test_a_newer_incarnation_ends_the_older(client: Client, topic: str) -> None:
    old = client.producer("twice")
    old.send(topic, b"first").result(10)
    with client.producer("twice") as new:
        new.send(topic, b"second").result(10)
        assert sum(last + 1 for last in new.last_sequences(topic).values()) == 2
        with pytest.raises(ProducerFenced):
            old.send(topic, b"zombie", queue=0).result(10)
        with pytest.raises(ProducerFenced):
            old.send(topic, b"zombie")
    assert sorted(message.value for message in read_all(client, topic)) == [b"first", b"second"]


def test_other_content_under_the_same_positions_is_told(client: Client, topic: str) -> None:
    # Two incarnations cannot disagree, so play one that skips what it should compare: the broker
    # must say so rather than drop it.
    with client.producer("conflict", source_positions=True) as producer:
        producer.send(topic, b"truth", position=0).result(10)
    with client.producer("conflict", source_positions=True) as producer:
        assert producer.last_sequences(topic)
        for resume in [topic_state.resume for topic_state in producer._core._topics.values()]:
            assert resume is not None
            resume[:] = -1
        for state in producer._core._topics.values():
            for lane in state.lanes:
                assert lane.window is not None
                if lane.window.last_assigned == 0:
                    lane.window.last_assigned = Sequence(-1)
        with pytest.raises(SequenceConflict):
            producer.send(topic, b"lie", position=0).result(10)
        with pytest.raises(SequenceConflict):
            producer.send(topic, b"more", position=1)


def test_what_cannot_be_sent_is_refused_alone(client: Client, topic: str) -> None:
    with client.producer() as producer:
        with pytest.raises(UnknownTopic, match="nowhere"):
            producer.send("nowhere", b"v")
        with pytest.raises(MessageTooLarge):
            producer.send(topic, bytes((1 << 20) + 1))
        with pytest.raises(UnknownQueue):
            producer.send(topic, b"v", queue=99).result(10)
        assert producer.send(topic, bytes(1 << 20)).result(20).offset == 0
        with pytest.raises(InvalidRequest, match="named producer"):
            producer.last_sequence(topic)
    with pytest.raises(InvalidRequest, match="named producer"):
        client.producer(source_positions=True)
    with pytest.raises(InvalidRequest, match="linger_ms"):
        client.producer(linger=3)


def test_a_topic_that_is_deleted_and_created_again_is_another(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"old").result(10)
        assert client.admin.delete_topic(topic)
        with pytest.raises((UnknownTopic, UnknownQueue)):
            producer.send(topic, b"gone").result(10)
        client.admin.create_topic(topic, queues=1)
        assert producer.send(topic, b"new").result(10).offset == 0
    assert [message.value for message in read_all(client, topic)] == [b"new"]
    assert not client.admin.delete_topic("never", if_exists=True)
    with pytest.raises(UnknownTopic):
        client.admin.delete_topic("never")


def test_messages_of_a_topic_that_is_deleted_while_they_wait_for_room_have_an_outcome(
    client: Client, topic: str
) -> None:
    """One came in while its topic was being forgotten: nobody ever took it, and `flush` hung."""
    futures: list[Any] = []
    refused: list[SemelError] = []

    def send(producer: Producer, name: str) -> None:
        try:
            while True:
                futures.append(producer.send(name, b"x" * 20_000))
        except SemelError as error:
            refused.append(error)

    with client.producer(buffer_bytes=300_000, delivery_timeout_ms=2_000) as producer:
        for attempt in range(3):
            name = f"{topic}-{attempt}"
            client.admin.create_topic(name, queues=1)
            thread = threading.Thread(target=send, args=(producer, name))
            thread.start()
            enough = len(futures) + 200
            until(lambda enough=enough: len(futures) > enough)  # type: ignore[misc]
            client.admin.delete_topic(name)
            thread.join(20)
            assert not thread.is_alive()
            for future in futures:
                found = future.exception(timeout=5)
                assert found is None or isinstance(found, UnknownTopic | UnknownQueue), found
        assert [type(each) for each in refused] == [UnknownTopic] * 3
        producer.flush()


def test_settings_of_a_topic(client: Client) -> None:
    assert client.admin.create_topic(
        "settings", queues=2, retention_ms=60_000, message_bytes_max=100
    )
    assert not client.admin.create_topic("settings", queues=2, if_not_exists=True)
    with pytest.raises(TopicExists):
        client.admin.create_topic("settings", queues=2)
    with client.producer() as producer, pytest.raises(MessageTooLarge):
        producer.send("settings", bytes(101))
    changed = client.admin.alter_topic("settings", retention_bytes=1 << 30)
    assert (changed.retention_ms, changed.retention_bytes) == (60_000, 1 << 30)
    described = client.admin.describe_topic("settings")
    assert described.settings == changed
    assert [(queue.queue, queue.messages) for queue in described.queues] == [(0, 0), (1, 0)]
    assert "settings" in [summary.name for summary in client.admin.list_topics()]
    bad: list[dict[str, Any]] = [
        {"queues": 0},
        {"queues": "4"},
        {"retention_ms": 0},
        {"name": "no/slash"},
    ]
    for wrong in bad:
        with pytest.raises(InvalidRequest):
            client.admin.create_topic(**{"name": "wrong", **wrong})


def test_producers_and_outcomes_are_told(client: Client, topic: str) -> None:
    with client.producer("told") as producer:
        metadata = producer.send(topic, b"v", queue=2).result(10)
    outcome = client.admin.produce_outcome("told", topic, 2, 0)
    assert (outcome.outcome, outcome.offset) == ("committed", metadata.offset)
    assert client.admin.produce_outcome("told", topic, 2, 1).outcome == "not_committed"
    described = client.admin.describe_producer("told")
    assert {row.queue: row.last_sequence for row in described.queues if row.topic == topic}[2] == 0
    assert "told" in [summary.name for summary in client.admin.list_producers()]
    with pytest.raises(UnknownProducer):
        client.admin.describe_producer("nobody")
    with pytest.raises(UnknownGroup):
        client.admin.describe_group("nobody")


def test_the_cluster_shows_itself(client: Client) -> None:
    status = client.admin.cluster_status()
    (group,) = status.groups
    assert group.master in [node.id for node in group.nodes]
    assert len(group.nodes) == 3
    assert status.as_dict()["controllers"][0]["role"] == "master"


def test_futures_behave(client: Client, topic: str) -> None:
    with client.producer() as producer:
        called = threading.Event()
        futures = [producer.send(topic, b"%d" % number) for number in range(500)]
        futures[-1].add_done_callback(lambda _: called.set())
        producer.flush(10)
        assert called.wait(5)
        assert all(future.done() and future.exception() is None for future in futures)
        assert len({(f.result().queue, f.result().offset) for f in futures}) == 500
        stats = producer.stats
        assert (stats.sent, stats.stored, stats.failed) == (500, 500, 0)
    with pytest.raises(Closed):
        producer.send(topic, b"late")


def test_many_threads_share_a_producer(client: Client, topic: str) -> None:
    with client.producer(linger_ms=1, buffer_bytes=64 << 10) as producer:

        def send(name: int) -> None:
            for number in range(1_000):
                producer.send(topic, b"%d-%04d" % (name, number), key=b"%d" % name)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    seen: dict[bytes, list[bytes]] = {}
    for message in read_all(client, topic):
        assert message.key is not None
        seen.setdefault(message.key, []).append(message.value)
    assert {key: values == sorted(values) and len(values) for key, values in seen.items()} == {
        b"%d" % name: 1_000 for name in range(4)
    }


def test_nobody_answers(shared_cluster: Cluster) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no controller answers at 127\.0\.0\.1:9"):
        connect("127.0.0.1:9", connect_timeout_ms=300)
    assert time.monotonic() - began < 3
    with pytest.raises(InvalidRequest, match="did you mean"):
        connect(shared_cluster.bootstrap, conect_timeout_ms=3)
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        connect("nonsense")


def test_the_environment_names_the_controllers(
    shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_BOOTSTRAP", shared_cluster.bootstrap)
    with connect() as connected:
        assert connected.admin.cluster_status().groups


def test_closed_means_closed(shared_cluster: Cluster, topic: str) -> None:
    closing = connect(shared_cluster.bootstrap)
    producer = closing.producer()
    reader = closing.reader(topic)
    future = producer.send(topic, b"flushed by close")
    closing.close()
    closing.close()
    assert future.result(1).topic == topic
    for call in (
        closing.admin.list_topics,
        lambda: producer.send(topic, b"x"),
        lambda: reader.poll(timeout=0.1),
        closing.producer,
    ):
        with pytest.raises(Closed):
            call()


FORKING = """
import os, sys
from semel.client import connect

bootstrap, topic = sys.argv[1:]
with connect(bootstrap) as parent, parent.producer() as producer:
    for _ in range(10):
        producer.send(topic, b"parent")
        child = os.fork()
        if child == 0:
            told = []
            for call in (
                lambda: producer.send(topic, b"child"),
                lambda: producer.flush(1),
                parent.admin.list_topics,
                lambda: connect(bootstrap),
            ):
                try:
                    call()
                except Exception as error:
                    told.append(type(error).__name__)
            parent.close()
            os._exit(0 if told == ["Closed"] * 4 else 1)
        _, status = os.waitpid(child, 0)
        print(status)
    producer.send(topic, b"still here").result(10)
"""


def test_a_forked_child_is_told(shared_cluster: Cluster, topic: str) -> None:
    """In a process of its own: gRPC must not have been started by anybody else before."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, shared_cluster.bootstrap, topic],
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0"] * 10), done.stderr


async def test_asyncio_does_the_same(shared_cluster: Cluster, topic: str) -> None:
    async with connect_async(shared_cluster.bootstrap) as connected:
        async with connected.producer(buffer_bytes=10_000) as producer:
            first = await producer.send(topic, b"one", key=b"k")
            assert (first.topic, first.sequence) == (topic, 0)
            gathered = await asyncio.gather(*(producer.send(topic, b"x") for _ in range(200)))
            assert len(gathered) == 200
            bulk = await producer.send_many(topic, [b"y" * 100] * 1_000)
            summary = await bulk
            assert summary.stored + summary.duplicates == 1_000
            with pytest.raises(UnknownTopic):
                await producer.send("nowhere", b"v")
            await producer.drain()
        async with connected.reader(topic, end="latest") as reader:
            assert len([message async for message in reader]) == 1_201
        async with connected.consumer("async", topic) as consumer:
            count = 0
            while count < 1_201:
                batch = await consumer.poll_arrow(5)
                assert batch is not None
                count += batch.num_rows
            await consumer.commit()
        described = await connected.admin.describe_group("async")
        assert described.kind == "consumers"
        assert described.lag == 0
        assert (await connected.admin.verify(topic)).ok


async def test_a_busy_loop_is_not_needed_by_the_client(shared_cluster: Cluster, topic: str) -> None:
    """The caller's loop may sleep for long: pings and acknowledgements go on."""
    async with connect_async(shared_cluster.bootstrap) as connected:
        producer = connected.producer()
        future = producer.send(topic, b"v")
        time.sleep(1.0)  # noqa: ASYNC251 - the point of the test
        assert future.done()
        await producer.close()


@pytest.mark.parametrize(
    "where",
    [
        "connect",
        "connect_async",
        "AsyncProducer.send",
        "AsyncProducer.transaction",
        "docs/client.md",
        "docs/cookbook.md",
    ],
)
async def test_examples_of_the_documentation(shared_cluster: Cluster, where: str) -> None:
    if where.endswith(".md"):
        text = (Path(__file__).parents[2] / where).read_text()
    else:
        text = attrgetter(where)(semel.client).__doc__
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    scope: dict[str, Any] = {
        "bootstrap": shared_cluster.bootstrap,
        **{name: getattr(semel.client, name) for name in semel.client.__all__},
    }
    for example in examples:
        code = compile(example.source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        out = io.StringIO()
        with redirect_stdout(out):
            running = eval(code, scope)
            if running is not None:
                await running
        assert out.getvalue() == example.want, example.source


def test_the_options_of_the_documentation_are_the_options() -> None:
    text = (Path(__file__).parents[2] / "docs/client.md").read_text()
    for config in (ClientConfig, ProducerConfig, ReaderConfig, ConsumerConfig):
        for field in dataclasses.fields(config):
            assert f"`{field.name}`" in text


def test_positions_may_jump_and_be_numpy(client: Client, topic: str) -> None:
    positions = np.cumsum(np.arange(1, 200))
    with client.producer("jumps", source_positions=True) as producer:
        producer.send_many(topic, [b"%d" % n for n in positions], positions=positions).result(10)
    messages = read_all(client, topic)
    assert sorted(message.sequence for message in messages) == positions.tolist()
    assert all(int(message.value) == message.sequence for message in messages)
