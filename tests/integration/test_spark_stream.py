"""The readers on a real cluster, called in Spark's order: restarts, limits, splits, loss."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql.types import StructType

from semel.client import Client, connect
from semel.protos.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from semel.protos.v1 import controller_pb2, controller_pb2_grpc
from semel.spark_connector import SemelSource
from semel.spark_connector.reader import SemelReader
from semel.spark_connector.rows import ROW_SCHEMA
from tests.kit.cluster import Cluster, Node
from tests.kit.spark_engine import EVERYTHING, Died, Engine

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    """A cluster that looks for what retention may take ten times a second."""
    flags = ("--retention-check-ms", "100")
    with Cluster(module_path / "cluster", broker_flags=flags) as cluster:
        yield cluster


@pytest.fixture
def topic(client: Client) -> str:
    """A topic of this test's own, with two queues."""
    name = f"topic-{next(_numbers)}"
    client.admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def options(shared_cluster: Cluster, topic: str) -> dict[str, str]:
    found = {
        "bootstrap": shared_cluster.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    return {**found, "timeoutMs": "20000"}


def produce(client: Client, topic: str, first: int, count: int) -> None:
    with client.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, key=b"k%d" % (number % 7))
        producer.flush(30)


def values(engine: Engine) -> list[int]:
    return sorted(int(row["value"]) for row in engine.all_rows())


def test_each_run_reads_on_where_the_last_one_ended(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    engine = Engine()
    produce(client, topic, 0, 100)
    assert engine.run(**options) == 1
    assert values(engine) == list(range(100))
    assert engine.run(**options) == 0  # idle: the very text of before
    produce(client, topic, 100, 50)
    assert engine.run(**options) == 1
    assert values(engine) == list(range(150))


def test_latest_stays_where_the_stream_began(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    """Spark stores only ends: had the first trigger not been run without data, a stream that was
    restarted before anything came would begin at a later "latest" and lose what came between."""
    engine = Engine()
    produce(client, topic, 0, 10)
    latest = {**options, "startingOffsets": "latest"}
    assert engine.run(**latest) == 1
    assert engine.rows == {0: []}
    produce(client, topic, 10, 10)
    assert engine.run(**latest) == 1
    assert values(engine) == list(range(10, 20))


@pytest.mark.parametrize(
    "moment",
    ["before the offsets are stored", "after the offsets are stored", "before the commit"],
)
def test_a_first_trigger_that_is_repeated_reads_the_same(
    client: Client, topic: str, options: dict[str, Any], moment: str
) -> None:
    engine = Engine()
    produce(client, topic, 0, 10)
    with pytest.raises(Died):
        engine.run(dies=lambda at: at == moment, **options)
    produce(client, topic, 10, 10)
    engine.run(**options)
    assert values(engine) == list(range(20))
    if moment != "before the offsets are stored":
        assert len(engine.rows[0]) == 10


def test_limits(
    client: Client, topic: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, 0, 100)
    engine = Engine()
    assert engine.run(maxOffsetsPerTrigger="30", **options) == 4
    assert [len(engine.rows[trigger]) for trigger in range(4)] == [30, 30, 30, 10]
    assert values(engine) == list(range(100))

    by_bytes = Engine()
    stored = sum(queue.bytes for queue in client.admin.describe_topic(topic).queues)
    triggers = by_bytes.run(maxBytesPerTrigger=str(stored // 4), **options)
    assert 4 <= triggers <= 6
    assert values(by_bytes) == list(range(100))

    once = Engine()  # Trigger.Once: limits do not count
    assert (
        once.run(available_now=False, limit=EVERYTHING, maxOffsetsPerTrigger="30", **options) == 1
    )
    assert len(once.rows[0]) == 100


def test_a_minimum_waits_and_not_for_ever(
    client: Client, topic: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, 0, 10)
    waiting = Engine().reader(minOffsetsPerTrigger="20", maxTriggerDelay="1h", **options)
    limit = waiting.getDefaultReadLimit()
    assert limit != EVERYTHING
    first = waiting.latestOffset(waiting.initialOffset(), limit)  # the first runs at once
    produce(client, topic, 10, 10)
    assert waiting.latestOffset(first, limit) is first
    produce(client, topic, 20, 10)
    assert waiting.latestOffset(first, limit) != first
    late = time.monotonic() + 3_601
    monkeypatch.setattr(time, "monotonic", lambda: late)
    second = waiting.latestOffset(first, limit)
    produce(client, topic, 30, 1)
    assert waiting.latestOffset(second, limit) is second
    late += 3_601
    assert waiting.latestOffset(second, limit) != second


def test_available_now_ends_at_what_there_was(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    produce(client, topic, 0, 10)
    reader = Engine().reader(**options)
    reader.prepareForTriggerAvailableNow()
    produce(client, topic, 10, 10)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert sum(sum(found["to"].values()) for found in end["topics"].values()) == 10
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) is end


def test_queues_that_are_split_keep_the_order_of_keys(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    engine = Engine()
    produce(client, topic, 0, 60)
    engine.run(available_now=False, maxOffsetsPerTrigger="25", triggers_max=1, **options)
    client.admin.split_queue(topic, 0)
    produce(client, topic, 60, 60)
    client.admin.split_queue(topic, 2)
    produce(client, topic, 120, 60)
    engine.run(**options)
    assert values(engine) == list(range(180))
    last: dict[bytes, int] = {}
    for trigger in sorted(engine.rows):
        before = dict(last)
        for row in engine.rows[trigger]:
            number = int(row["value"])
            assert number > before.get(row["key"], -1), "a key's messages came in a later trigger"
            last[row["key"]] = max(number, last.get(row["key"], -1))


def test_topics_that_match_come_in_while_the_stream_runs(
    client: Client, shared_cluster: Cluster, topic: str, options: dict[str, Any]
) -> None:
    del options["subscribe"]
    options["subscribePattern"] = f"{topic}(-.*)?"
    engine = Engine("topic value queue offset")
    produce(client, topic, 0, 5)
    engine.run(**options)
    client.admin.create_topic(f"{topic}-more", queues=1)
    client.admin.create_topic(f"other-{topic}", queues=1)
    produce(client, f"{topic}-more", 5, 5)
    produce(client, f"other-{topic}", 90, 5)
    engine.run(**options)
    assert values(engine) == list(range(10))
    assert {row["topic"] for row in engine.all_rows()} == {topic, f"{topic}-more"}


def test_a_pattern_that_nothing_matches_yet(
    client: Client, options: dict[str, Any], topic: str
) -> None:
    del options["subscribe"]
    options["subscribePattern"] = f"{topic}-later"
    engine = Engine()
    assert engine.run(**options) == 1
    client.admin.create_topic(f"{topic}-later", queues=1)
    produce(client, f"{topic}-later", 0, 3)
    engine.run(**options)
    assert values(engine) == [0, 1, 2]


def test_assigned_queues_and_what_they_are_split_into(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    del options["subscribe"]
    options["assign"] = f'{{"{topic}": [0]}}'
    options["startingOffsets"] = f'{{"{topic}": {{"0": -2}}}}'
    engine = Engine()
    produce(client, topic, 0, 40)
    engine.run(**options)
    client.admin.split_queue(topic, 0)
    produce(client, topic, 40, 40)
    engine.run(**options)
    ends = {q.queue: q.log_end_offset for q in client.admin.describe_topic(topic).queues}
    expected = sorted((queue, at) for queue in (0, 2, 3) for at in range(ends[queue]))
    assert sorted(engine.read()) == expected
    assert ends[2] + ends[3] > 0
    options["assign"] = f'{{"{topic}": [7]}}'
    options["startingOffsets"] = "earliest"
    with pytest.raises(InvalidRequest, match="has no queue 7"):
        Engine().run(**options)


def test_a_topic_created_again_is_never_read_as_the_old_one(
    client: Client, topic: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    produce(client, topic, 0, 10)
    engine.run(**options)
    client.admin.delete_topic(topic)
    with pytest.raises(UnknownTopic, match="of this stream is deleted"):
        engine.run(**options)
    client.admin.create_topic(topic, queues=2)
    produce(client, topic, 100, 20)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        engine.run(**options)
    with caplog.at_level(logging.WARNING):
        engine.run(failOnDataLoss="false", **options)
    assert "deleted and created again" in caplog.text
    assert values(engine) == [*range(10), *range(100, 120)]


def test_a_stored_trigger_of_a_topic_that_is_gone(
    client: Client, topic: str, options: dict[str, Any]
) -> None:
    """The trigger was planned on the old topic: repeated, it must not read the new one."""
    engine = Engine()
    produce(client, topic, 0, 10)
    with pytest.raises(Died):
        engine.run(dies=lambda at: at == "after the offsets are stored", **options)
    client.admin.delete_topic(topic)
    client.admin.create_topic(topic, queues=2)
    produce(client, topic, 100, 20)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        engine.run(**options)
    engine.run(failOnDataLoss="false", **options)
    assert values(engine) == list(range(100, 120))


def trimmed(client: Client, topic: str, least: int) -> int:
    """Waits until the only queue with messages begins at `least` or later; where it begins."""
    while True:
        starts = [queue.log_start_offset for queue in client.admin.describe_topic(topic).queues]
        if max(starts) >= least:
            return max(starts)
        time.sleep(0.02)


def fill(client: Client, topic: str) -> None:
    with client.producer(batch_bytes=20_000) as producer:
        for _ in range(30):
            producer.send(topic, bytes(19_000), queue=0).result(30)


def test_what_retention_takes_before_it_is_read(
    client: Client, topic: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine("queue offset timestamp")
    produce(client, topic, 0, 0)
    engine.run(**options)
    fill(client, topic)
    client.admin.alter_topic(topic, retention_bytes=100_000)
    start = trimmed(client, topic, 1)
    with pytest.raises(OffsetOutOfRange, match=rf"offsets 0 to \d+ of queue 0 of topic '{topic}'"):
        engine.run(**options)
    with caplog.at_level(logging.WARNING):
        engine.run(failOnDataLoss="false", **options)
    assert "were trimmed before the stream read them" in caplog.text
    assert engine.read() == [(0, at) for at in range(start, 30)]


@pytest.mark.parametrize("columns", ["queue offset", "offset queue key"])
def test_what_retention_takes_between_plan_and_task(
    client: Client,
    topic: str,
    options: dict[str, Any],
    columns: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a fetch and without one."""
    fill(client, topic)
    engine = Engine(columns)
    with pytest.raises(Died):
        engine.run(dies=lambda at: at == "after the offsets are stored", **options)
    client.admin.alter_topic(topic, retention_bytes=100_000)
    start = trimmed(client, topic, 1)
    with pytest.raises(OffsetOutOfRange):
        engine.run(**options)
    with caplog.at_level(logging.WARNING):
        engine.run(failOnDataLoss="false", **options)
    assert engine.read() == [(0, at) for at in range(start, 30)]


def test_lag_is_seen_and_belongs_to_no_consumer(
    client: Client, topic: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    group = f"lag-of-{topic}"
    engine = Engine()
    produce(client, topic, 0, 50)

    def lag() -> int:
        return client.admin.describe_group(group).lag

    engine.run(
        available_now=False,
        triggers_max=1,
        maxOffsetsPerTrigger="20",
        groupIdForLag=group,
        **options,
    )
    assert lag() == 50  # what Spark has not told to be processed is not
    engine.run(groupIdForLag=group, **options)
    assert lag() == 0
    client.admin.split_queue(topic, 0)
    produce(client, topic, 50, 20)
    assert lag() == 20
    engine.run(groupIdForLag=group, **options)
    assert lag() == 0
    with client.consumer("workers", topic) as consumer:
        consumer.poll(1, 30)
        with pytest.raises(InvalidRequest, match="belongs to consumers"):
            Engine().run(groupIdForLag="workers", **options)


def wait_for_copies(cluster: Cluster, topic: str) -> None:
    """Until every broker could tell the topic's route if no controller did."""
    for node in cluster.brokers:
        with grpc.insecure_channel(node.address) as channel:
            while True:
                request = controller_pb2.GetRoutesRequest(topics=[topic])
                try:
                    controller_pb2_grpc.ControllerStub(channel).GetRoutes(request, timeout=5)
                    break
                except grpc.RpcError:
                    time.sleep(0.05)


def test_reads_go_on_without_a_master_and_without_a_controller(cluster: Cluster) -> None:
    with connect(cluster.bootstrap) as own:
        own.admin.create_topic("survivor", queues=2)
        produce(own, "survivor", 0, 200)
        wait_for_copies(cluster, "survivor")
        engine = Engine()
        options: dict[str, Any] = {
            "bootstrap": cluster.bootstrap,
            "subscribe": "survivor",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "40",
        }
        killed: list[Node] = []

        def kill(moment: str) -> bool:
            if moment == "after the offsets are stored" and len(engine.offsets) == 2:
                killed.append(cluster.master())
                cluster.kill(killed[0])
            if moment == "after the offsets are stored" and len(engine.offsets) == 4:
                cluster.kill(cluster.controller)
            return False

        engine.run(dies=kill, **options)
        assert killed
        assert not cluster.controller.running
        assert values(engine) == list(range(200))


def batch_reader(columns: str, **options: str) -> SemelReader:
    schema = StructType([ROW_SCHEMA[name] for name in columns.split()])
    found = SemelSource(options).reader(schema)
    assert isinstance(found, SemelReader)
    return found


def test_a_batch_read_goes_on_when_the_master_dies_in_its_middle(cluster: Cluster) -> None:
    """More than the SDK fetches ahead: after the kill most is still to be read."""
    count, size = 240, 200_000
    with connect(cluster.bootstrap) as own:
        own.admin.create_topic("large", queues=1)
        with own.producer() as producer:
            for number in range(count):
                producer.send("large", b"%d " % number + bytes(size))
            producer.flush(60)
    reader = batch_reader("value offset", bootstrap=cluster.bootstrap, subscribe="large")
    (part,) = reader.partitions()
    offsets: list[int] = []
    for batch in reader.read(part):
        if not offsets:
            cluster.kill(cluster.master())
        offsets += batch.column("offset").to_pylist()
        values = batch.column("value").to_pylist()
        assert all(int(value.partition(b" ")[0]) < count for value in values)
    assert offsets == list(range(count))


def test_offsets_alone_are_known_without_a_fetch(
    client: Client, topic: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, 0, 100)

    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("messages were fetched")

    monkeypatch.setattr(Client, "reader", fetch)
    reader = batch_reader("offset queue topic", **options)
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    ends = {q.queue: q.log_end_offset for q in client.admin.describe_topic(topic).queues}
    assert sorted((row["queue"], row["offset"]) for row in rows) == [
        (queue, at) for queue in sorted(ends) for at in range(ends[queue])
    ]
    with pytest.raises(AssertionError, match="were fetched"):
        list(batch_reader("offset key", **options).read(reader.partitions()[0]))


def test_places_by_time(client: Client, topic: str, options: dict[str, Any]) -> None:
    produce(client, topic, 0, 10)
    middle = str(time.time_ns() // 1_000_000 + 1)
    while time.time_ns() // 1_000_000 < int(middle):
        time.sleep(0.001)
    produce(client, topic, 10, 10)

    def read(**places: str) -> list[int]:
        given = {name: text for name, text in options.items() if name != "startingOffsets"}
        reader = batch_reader("value", **given, **places)
        parts = reader.partitions()
        batches = [batch for part in parts for batch in reader.read(part)]
        return sorted(int(row["value"]) for batch in batches for row in batch.to_pylist())

    late = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(startingTimestamp=middle, **late) == list(range(10, 20))
    assert read(endingTimestamp=middle) == list(range(10))
    by_queue = f'{{"{topic}": {{"0": {middle}, "1": {middle}}}}}'
    assert read(startingOffsetsByTimestamp=by_queue, **late) == list(range(10, 20))
    with pytest.raises(OffsetOutOfRange, match="no message at or after"):
        read(startingTimestamp="99999999999999")


def test_reading_from_any_node(client: Client, topic: str, options: dict[str, Any]) -> None:
    produce(client, topic, 0, 300)
    engine = Engine()
    engine.run(readFrom="any", **options)
    assert values(engine) == list(range(300))


def test_sigterm_closes_what_the_runner_has_open(shared_cluster: Cluster, topic: str) -> None:
    """Spark never calls stop(): it ends the runner by SIGTERM."""
    program = (
        "import os, sys, threading\n"
        "from semel.spark_connector import connections\n"
        "from tests.kit.spark_engine import Engine\n"
        "reader = Engine().reader(bootstrap=sys.argv[1], subscribe=sys.argv[2])\n"
        "reader.initialOffset()\n"
        "(client,) = connections._clients.values()\n"
        "close = client.close\n"
        # Not print: the signal may come while 'ready' is being flushed.
        "client.close = lambda: (close(), os.write(1, b'closed\\n'))\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, "-c", program, shared_cluster.bootstrap, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "closed\n"
        assert process.wait(30) == -signal.SIGTERM


class Life:
    """Random steps of a topic and a stream over it, all from one seed."""

    def __init__(self, seed: int, client: Client, topic: str, options: dict[str, Any]) -> None:
        self.chance = random.Random(seed)
        self.client, self.topic, self.options = client, topic, options
        self.engine = Engine()
        self.produced = 0
        self.deaths = 0

    def step(self) -> None:
        actions: list[Callable[[], None]] = [self.produce, self.produce, self.run, self.run]
        if len(self.client.admin.describe_topic(self.topic).queues) < 8:
            actions.append(self.split)
        self.chance.choice(actions)()

    def produce(self) -> None:
        count = self.chance.randint(1, 60)
        produce(self.client, self.topic, self.produced, count)
        self.produced += count

    def split(self) -> None:
        parents = {queue.parent for queue in self.client.admin.describe_topic(self.topic).queues}
        queues = [queue.queue for queue in self.client.admin.describe_topic(self.topic).queues]
        self.client.admin.split_queue(
            self.topic, self.chance.choice([queue for queue in queues if queue not in parents])
        )

    def run(self) -> None:
        """A run of some triggers, with limits of its own, that may die anywhere."""
        limits: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            limits["maxOffsetsPerTrigger"] = str(self.chance.randint(1, 50))
        try:
            self.engine.run(
                available_now=self.chance.random() < 0.5,
                triggers_max=self.chance.randint(1, 6),
                dies=lambda moment: self.chance.random() < 0.15,
                **limits,
                **self.options,
            )
        except Died:
            self.deaths += 1

    def end(self) -> None:
        """Left alone, the stream has read what a single read reads, each key in order."""
        self.engine.run(**self.options)
        with self.client.reader(self.topic, end="latest") as reader:
            single = sorted((message.queue, message.offset) for message in reader)
        assert sorted(self.engine.read()) == single
        assert values(self.engine) == list(range(self.produced))
        seen: dict[bytes, int] = {}
        for trigger in sorted(self.engine.rows):
            rows = sorted(self.engine.rows[trigger], key=lambda row: int(row["value"]))
            assert all(int(row["value"]) > seen.get(row["key"], -1) for row in rows)
            seen.update({row["key"]: int(row["value"]) for row in rows})


@pytest.mark.parametrize("seed", [1, 2])
def test_any_life_equals_a_single_read(
    client: Client, topic: str, options: dict[str, Any], seed: int
) -> None:
    life = Life(seed, client, topic, options)
    for _ in range(12):
        life.step()
    life.end()
    assert life.produced
