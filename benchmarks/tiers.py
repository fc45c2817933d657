"""Older messages in an object store: what writing them costs, and what reading them takes.

How it works. A cluster of real processes with three replicas has a folder for its object store, so
no network and no service of others is in the figures. These are run in turn:

- *produced* and *produced, tiered*: `--messages` are stored in a topic that is not tiered, and in
  one whose messages go to the store while they come. Meanwhile a quiet topic gets one message at a
  time, each awaited.
- *tiering*: what was stored before goes to the store, and nothing else happens. `core_mib_s` is the
  volume by the time that the master's processor took for it.
- *cold read*: a reader gets all messages, which only the store has. *files*: pyarrow reads the same
  Parquet files, without checking anything.
- with `--spark`: Spark reads the tier without brokers, and the same messages from the brokers,
  which have them in their logs.

    python -m benchmarks.tiers
    python -m benchmarks.tiers --messages 200000 --rounds 1 --warm-ups 0    # a trial
    python -m benchmarks.tiers --spark

Not here: stores of others, whose speed is theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.commands import Help, guarded
from benchmarks.delays import Awaited
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    progress,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import QueueReader, newest_pointer, open_store, read_manifest
from tests.kit.cluster import CLUSTER_ID, Cluster

QUIET, PLAIN, TIERED, COLD = "quiet", "plain", "tiered", "cold"
CALL_MESSAGES = 50_000
NEVER_MS = 360_000_000
WAIT_S = 3_600.0
LOOK_S = 0.02
MIB = 1 << 20
FLAGS = ("--tier-check-ms", "50", "--tier-wait-ms", "1", "--retention-check-ms", "100")


class Site:
    """The cluster with its topics, and what is done to them."""

    def __init__(
        self, cluster: Cluster, client: Client, tier: Path, options: argparse.Namespace
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._tier = tier
        self._options = options
        self._numbers = itertools.count()
        self._tiered = TIERED
        values = random_values(min(CALL_MESSAGES, options.messages), options.message_bytes)
        self._arrow = pa.array(values, pa.binary())
        client.admin.create_topic(QUIET, queues=1)

    @property
    def _mib(self) -> float:
        volume: int = self._options.messages * self._options.message_bytes
        return volume / MIB

    def _create(self, topic: str, **settings: Any) -> None:
        self._client.admin.delete_topic(topic, if_exists=True)
        self._client.admin.create_topic(topic, queues=self._options.queues, **settings)

    def _produce(self, topic: str) -> float:
        """Stores all messages; returns the seconds that it took."""
        start = time.perf_counter()
        with self._client.producer() as producer:
            for first in range(0, self._options.messages, CALL_MESSAGES):
                rows = min(CALL_MESSAGES, self._options.messages - first)
                producer.send_many(topic, self._arrow.slice(0, rows))
            producer.flush(WAIT_S)
        return time.perf_counter() - start

    def _wait(self, topic: str, done: Callable[[Any], bool], what: str) -> None:
        """Waits until each queue is as `done` says."""
        deadline = time.monotonic() + WAIT_S
        while not all(map(done, self._client.admin.describe_topic(topic).queues)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} took more than {WAIT_S:.0f} s")
            time.sleep(LOOK_S)

    def produced(self, topic: str, **settings: Any) -> Mapping[str, float]:
        """Stores all messages in a new topic while others are awaited one by one."""
        progress(f"  {topic}: storing …")
        if settings:  # the store keeps what a topic had that is deleted, by its name
            topic = self._tiered = f"{topic}-{next(self._numbers)}"
        self._create(topic, **settings)
        awaited = Awaited(self._client, self._arrow[0].as_py())
        awaited.start()
        seconds = self._produce(topic)
        found = {"mib_s": self._mib / seconds, **awaited.figures()}
        if settings:
            self._wait(topic, lambda queue: queue.tier_end_offset == queue.log_end_offset, topic)
        return found

    def tiering(self) -> Mapping[str, float]:
        """Everything that a topic has goes to the store."""
        progress("  storing what is tiered then …")
        self._create(COLD, tier_after_ms=NEVER_MS, retention_ms=-1)
        self._produce(COLD)
        master = psutil.Process(self._cluster.master().pid)
        before, start = master.cpu_times(), time.perf_counter()
        progress("  tiering …")
        self._client.admin.alter_topic(COLD, tier_after_ms=1)
        self._wait(COLD, lambda queue: queue.tier_end_offset == queue.log_end_offset, "tiering")
        seconds, after = time.perf_counter() - start, master.cpu_times()
        cpu_s = after.user + after.system - before.user - before.system
        stored = sum(file.stat().st_size for file in self._files())
        return {
            "mib_s": self._mib / seconds,
            "core_mib_s": self._mib / cpu_s,
            "file_share": stored / MIB / self._mib,
        }

    def _files(self) -> list[Path]:
        """The data files of the tiered topic, as its manifests name them."""
        store = open_store(f"file://{self._tier}")
        topic = self._client.admin.describe_topic(COLD)
        found: list[Path] = []
        for queue in topic.queues:
            key = QueueKey(TopicId(topic.topic_id), QueueId(queue.queue))
            manifest = None
            while manifest is None or manifest.end < queue.tier_end_offset:
                pointer = newest_pointer(store, CLUSTER_ID, key)  # it follows the decision
                manifest = None if pointer is None else read_manifest(store, pointer)
            files = QueueReader(store, manifest).all_files()
            found += [self._tier / file.name(CLUSTER_ID, key) for file in files]
        return found

    def cold_read(self) -> Mapping[str, float]:
        """A reader gets everything from the store."""
        self._client.admin.alter_topic(COLD, local_retention_ms=2)
        self._wait(COLD, lambda queue: queue.local_start_offset == queue.log_end_offset, "FORGET")
        progress("  reading older messages through a broker …")
        start, count = time.perf_counter(), 0
        with self._client.reader(COLD, end="latest") as reader:
            while not reader.finished:
                batch = reader.poll_arrow(60)
                count += 0 if batch is None else batch.num_rows
        seconds = time.perf_counter() - start
        if count != self._options.messages:
            raise RuntimeError(f"{count:,} messages were read, not all")
        return {"mib_s": self._mib / seconds}

    def files(self) -> Mapping[str, float]:
        """pyarrow reads the same files, one after the other."""
        files = self._files()
        start = time.perf_counter()
        count = sum(pq.read_table(file, use_threads=False).num_rows for file in files)
        seconds = time.perf_counter() - start
        if count != self._options.messages:
            raise RuntimeError(f"{count:,} rows were read, not all")
        return {"mib_s": self._mib / seconds}

    def spark_tier(self, session: Any) -> Mapping[str, float]:
        """Spark reads the store, with no broker."""
        return self.spark(session, manifest=f"file://{self._tier}", subscribe=self._tiered)

    def spark(self, session: Any, **given: str) -> Mapping[str, float]:
        """Spark reads all messages once."""
        progress("  Spark reads …")
        frame = session.read.format("semel").options(**given).load()
        start = time.perf_counter()
        row = frame.selectExpr("sum(length(value))", "count(*)").first()
        seconds = time.perf_counter() - start
        size = self._options.messages * self._options.message_bytes
        if tuple(row) != (size, self._options.messages):
            raise RuntimeError(f"Spark has read {tuple(row)}")
        return {"mib_s": self._mib / seconds}


TARGETS = (
    Target(contender="produced, tiered", metric="mib_s", of="produced", at_least=0.85),
    Target(contender="produced, tiered", metric="p99_ms", of="produced", at_most=1.2),
    Target(contender="tiering", metric="core_mib_s", at_least=95),
    Target(contender="cold read", metric="mib_s", of="files", at_least=0.5),
)
SPARK = Target(contender="Spark, tier", metric="mib_s", of="Spark, brokers", at_least=1.5)


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    with contextlib.ExitStack() as stack:
        session: Any = None
        if options.spark:  # first: it forks, and gRPC complains about a fork of its process
            from semel.spark_connector import spark_session

            settings = {"spark.master": f"local[{options.cores}]"}
            session = stack.enter_context(spark_session("benchmark", **settings))
        data = stack.enter_context(temporary_directory(options.data))
        tier = data / "tier"
        tier.mkdir()
        flags = ["--tier", f"file://{tier}", *FLAGS]
        cluster = stack.enter_context(Cluster(data / "cluster", broker_flags=flags))
        client = stack.enter_context(connect(cluster.bootstrap))
        site = Site(cluster, client, tier, options)
        contenders = [
            Contender(name="produced", run=partial(site.produced, PLAIN)),
            Contender(
                name="produced, tiered", run=partial(site.produced, TIERED, tier_after_ms=100)
            ),
            Contender(name="tiering", run=site.tiering),
            Contender(name="cold read", run=site.cold_read),
            Contender(name="files", run=site.files),
        ]
        if session is not None:
            plain = {"bootstrap": cluster.bootstrap, "subscribe": PLAIN}
            contenders += [
                Contender(name="Spark, brokers", run=partial(site.spark, session, **plain)),
                Contender(name="Spark, tier", run=partial(site.spark_tier, session)),
            ]
        comparison = compare(
            f"Tiers: {options.messages:,} messages of {options.message_bytes} B, {options.queues}"
            " queues, 3 replicas, the store is a folder",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=TARGETS if session is None else (*TARGETS, SPARK),
        )
    return report(comparison, options)


def main() -> int:
    """Command line."""
    parser = arguments("Measure what a tier costs and gives.", rounds=3)
    parser.formatter_class = Help
    parser.epilog = __doc__[__doc__.index("    python -m") : __doc__.index("Not here")]
    parser.add_argument("--messages", type=number(1, 1 << 30), default=2_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=200)
    parser.add_argument("--queues", type=number(1, 1_000), default=4)
    parser.add_argument("--spark", action="store_true", help="Spark reads, too")
    parser.add_argument("--cores", type=number(1, 1_024), default=2, help="of local Spark")
    options = parser.parse_args()
    volume = options.messages * options.message_bytes
    require_disk(parser, options.data, 5 * volume * (4 + options.rounds) + (2 << 30))
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
