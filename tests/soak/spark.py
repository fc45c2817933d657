"""Streams of a real Spark over topics that live, for as long as you like: `./run soak spark`.

How it works. Each life has a topic, a checkpoint and a sink that keeps its batches by their number,
as an idempotent sink does. A seed chooses what happens: messages are produced, a queue is split, a
broker's master is killed and started again, the query is stopped in its middle, its sink fails, it
is started again with another trigger and other limits. In the end the stream is left alone once
(trigger AvailableNow), and what its sink has must equal one batch read of the topic: every message
once, and each key in order from batch to batch. Every kind of event must have happened in the run.

Not here: the same steps without a JVM (`tests/integration/test_spark_stream.py`).
"""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import Client, connect
from semel.spark_connector import spark_session
from tests.kit.cluster import Cluster
from tests.kit.spark_engine import patiently

STEPS = 12
QUEUES_MAX = 8
EVENTS = ("produce", "split", "kill", "stop", "fail", "run")


class Life:
    """One topic, one stream."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, client: Client, place: Path, seed: int
    ) -> None:
        self.chance = random.Random(seed)
        self.spark, self.cluster, self.client = spark, cluster, client
        self.place = place
        self.topic = f"life-{secrets.token_hex(4)}"
        self.batches: dict[int, list[tuple[int, int, bytes, int]]] = {}
        """Queue, offset, key and number of each row, by batch."""
        self.produced = 0
        self.failing = False
        self.bitten: Counter[str] = Counter()
        client.admin.create_topic(self.topic, queues=2)

    def live(self) -> None:
        """Random steps, then the end. Asserts what the stream has read."""
        steps = [self.produce, self.produce, self.split, self.kill, self.stop, self.fail, self.run]
        for _ in range(STEPS):
            step = self.chance.choice(steps)
            step()
            self.bitten[step.__name__] += 1
        self.run(everything=True)
        self.check()

    def produce(self) -> None:
        """Some messages of seven keys."""
        with self.client.producer() as producer:
            for number in range(self.produced, self.produced + self.chance.randint(1, 500)):
                producer.send(self.topic, b"%d" % number, key=b"k%d" % (number % 7))
                self.produced += 1
            producer.flush(60)

    def split(self) -> None:
        """One of the open queues, unless there are many."""
        queues = self.client.admin.describe_topic(self.topic).queues
        if len(queues) < QUEUES_MAX:
            parents = {queue.parent for queue in queues}
            open_ones = [queue.queue for queue in queues if queue.queue not in parents]
            self.client.admin.split_queue(self.topic, self.chance.choice(open_ones))

    def kill(self) -> None:
        """The master dies while the stream reads, and comes back."""
        query = patiently(self._running)
        self.produce()
        master = self.cluster.master()
        self.cluster.kill(master)
        self.produce()
        query.processAllAvailable()
        query.stop()
        self.cluster.start_node(master)
        self.cluster.wait_ready()

    def stop(self) -> None:
        """The query is stopped at some moment."""
        query = patiently(self._running)
        self.produce()
        time.sleep(self.chance.random())
        query.stop()

    def fail(self) -> None:
        """The sink fails after it has kept a batch."""
        self.produce()
        self.failing = True
        with pytest.raises(PySparkException, match="on purpose"):
            patiently(lambda: self._start(available_now=True).awaitTermination(300))
        self.failing = False

    def run(self, *, everything: bool = False) -> None:
        """What there is now."""
        started = patiently(
            lambda: self._start(available_now=True, limited=not everything).awaitTermination(300)
        )
        assert started

    def _running(self) -> StreamingQuery:
        query = self._start(available_now=False)
        query.processAllAvailable()
        return query

    def _start(self, *, available_now: bool, limited: bool = True) -> StreamingQuery:
        source = self.spark.readStream.format("semel").options(
            bootstrap=self.cluster.bootstrap, subscribe=self.topic, startingOffsets="earliest"
        )
        if limited and self.chance.random() < 0.5:
            source = source.option("maxOffsetsPerTrigger", str(self.chance.randint(20, 300)))
        if self.chance.random() < 0.5:
            source = source.option("readFrom", "any")
        writer = source.load().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.place))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("queue", "offset", "key", "value").collect()
        found = [(row.queue, row.offset, bytes(row.key), int(row.value)) for row in rows]
        if batch in self.batches:
            assert sorted(self.batches[batch]) == sorted(found), f"batch {batch} came otherwise"
        self.batches[batch] = found
        if self.failing and found:
            raise RuntimeError("the sink fails, on purpose")

    def check(self) -> None:
        """Equal to one read; each key in order."""
        rows = [row for batch in sorted(self.batches) for row in self.batches[batch]]
        source = self.spark.read.format("semel").option("bootstrap", self.cluster.bootstrap)
        single = source.option("subscribe", self.topic).load().select("queue", "offset").collect()
        assert sorted(row[:2] for row in rows) == sorted(tuple(row) for row in single)
        assert sorted(row[3] for row in rows) == list(range(self.produced))
        seen: dict[bytes, int] = {}
        for batch in sorted(self.batches):
            for _, _, key, number in self.batches[batch]:
                assert number > seen.get(key, -1), f"{key!r} goes back in batch {batch}"
            for _, _, key, number in self.batches[batch]:
                seen[key] = max(number, seen.get(key, -1))


def main(arguments: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="soak spark", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first life; random if none")
    parser.add_argument("--lives", type=int, default=None, help="end after so many")
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else secrets.randbelow(1 << 32)
    deadline = time.monotonic() + options.minutes * 60
    bitten: Counter[str] = Counter()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.python.authenticate.socketTimeout": "120s",
    }
    lives = 0
    with (
        tempfile.TemporaryDirectory() as directory,
        spark_session("soak", **settings) as spark,
        Cluster(Path(directory) / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        while time.monotonic() < deadline and (options.lives is None or lives < options.lives):
            seed = first + lives
            life = Life(spark, cluster, client, Path(directory) / f"checkpoint-{seed}", seed)
            try:
                life.live()
            except BaseException:
                print(f"failed: --seed {seed} --lives 1", flush=True)
                raise
            bitten += life.bitten
            lives += 1
            print(f"seed {seed}: {life.produced} messages, {len(life.batches)} batches", flush=True)
    missing = [event for event in EVENTS if not bitten[event]]
    print(f"{lives} lives: {', '.join(f'{bitten[event]} {event}' for event in EVENTS)}")
    if missing and lives >= 3:
        print(f"never happened: {', '.join(missing)}")
        return 1
    return 0
