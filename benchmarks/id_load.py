"""What `ids.py` does to clusters: fills windows with ids, produces with ids and without, loses ids.

How it works. Row r of a bulk call has id r + rows * n for some n, so a repeated id goes with the
same value: it is a duplicate, and no conflict. The topic with ids is altered by a call to the
broker, not by a command of the console, so that its window can be bounded at any number of ids.

Not here: what is run in turn, and what is promised (`ids.py`).
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import psutil
import pyarrow as pa

from benchmarks.harness import (
    BATCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    percentile,
    progress,
    random_values,
)
from semel.client import Client, Producer
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.cluster import CLUSTER_ID, Cluster

PLAIN, WITH_IDS = "plain", "with-ids"
ID_BYTES = 16
WINDOW_BYTES_PER_ID = 40
"""What an id counts in a window's budget."""
INDEX_BYTES_PER_ID_MIN = 24
"""Key and digest: an index that has less lacks ids."""
RETENTION_BYTES = 256 << 20
"""Retention of a queue, so that a long run does not fill the disk."""
CALL_BYTES = 4 << 20
FLUSH_S = 300.0
SERVE_S = 60.0
WARM_UP = 50
SEND_ROWS = 1_000
SEED = b"benchmarks of id"
_SINGLE_IDS = 1 << 62
"""Numbers of ids that are sent one by one begin here."""
_END_OF_TIME = 1 << 62
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class NumberedIds:
    """Ids for one call after the other, of `rows` messages each.

    Row r of a call has id r + rows * n for some n, so it goes with the same value each time: a
    repeated id is a duplicate, and no conflict. The rows with known ids take turns, so it is easy
    to choose ids that were sent.
    """

    def __init__(self, rows: int, share: float, window: int = 0) -> None:
        """`share` is at most 0.5."""
        self._rows = rows
        self._random = np.random.default_rng(1)
        self._count = round(rows * share)
        self._turns = rows // self._count if self._count else 1
        self._order = self._random.permutation(rows)
        self._begin = 0
        self.calls = 0
        self.known = 0
        """How many ids were sent again."""
        self.window = window
        """Ids that are known for sure are among so many newest ones."""

    def forget(self) -> None:
        """Other ids have come in between, so known ones are among those from now on."""
        self._begin = self.calls

    def column(self) -> pa.Array:
        """The ids of the next call, a share of them known."""
        numbers = np.arange(self._rows, dtype=np.uint64)
        numbers += np.uint64(self.calls * self._rows)
        known_calls = min(self.calls - self._begin, self.window // self._rows)
        if known_calls and self._count:
            turn = self.calls % self._turns
            chosen = self._order[turn * self._count : (turn + 1) * self._count]
            back = self._random.integers(1, known_calls + 1, self._count)
            back -= back % self._turns == 0  # these rows had known ids themselves
            numbers[chosen] -= back.astype(np.uint64) * np.uint64(self._rows)
            self.known += self._count
        self.calls += 1
        return ids_of(numbers)


def ids_of(numbers: Any) -> pa.Array:
    """Ids of 16 bytes, one for each number."""
    data = np.empty((len(numbers), 2), np.uint64)
    data[:, 0] = numbers * _SPREAD
    data[:, 1] = numbers
    offsets = np.arange(0, ID_BYTES * (len(numbers) + 1), ID_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


class Site(NamedTuple):
    """A cluster, and a client of it."""

    cluster: Cluster
    client: Client
    producer: Producer


class Load:
    """Both topics, and all that is done to them."""

    def __init__(self, sites: Mapping[str, Site], options: argparse.Namespace) -> None:
        """`sites` are by topic."""
        self._sites = sites
        self._cluster, self._client, self._producer = sites[WITH_IDS]
        self._seconds = options.seconds
        rows = max(1, CALL_BYTES // options.message_bytes)
        self._values = random_values(rows, options.message_bytes)
        self._ids = NumberedIds(rows, options.duplicates)
        self._single = _SINGLE_IDS
        self._window = 0
        for topic, site in sites.items():
            site.client.admin.create_topic(
                topic, queues=options.queues, retention_bytes=RETENTION_BYTES
            )

    def fill(self, window: int) -> Mapping[str, float]:
        """Fills the window with ids, and bounds it there."""
        self._bound(window)
        self._ids.forget()
        rows, calls = len(self._values), self._ids.calls
        start, cpu_s = time.perf_counter(), self._cpu_s(WITH_IDS)
        while (filled := self._ids.calls * rows) < window:
            progress(f"  filling: {filled:,} of {window:,} ids …")
            self._send_call(WITH_IDS)
            self._ids.window = min(window, self._ids.calls * rows) * 9 // 10
        self._producer.flush(FLUSH_S)
        count = (self._ids.calls - calls) * rows
        elapsed, used = time.perf_counter() - start, self._cpu_s(WITH_IDS) - cpu_s
        self._cluster.wait_caught_up(timeout=FLUSH_S)
        progress("")
        self._window = window
        if not count:
            return {}
        return {"ids_s": count / elapsed, "cpu_s_per_million": used / count * 1e6}

    def _bound(self, window: int) -> None:
        """Makes the broker group compare the topic's ids, in a window of so many of them."""
        topic = self._client.admin.describe_topic(WITH_IDS)
        settings = common_pb2.TopicSettings(
            retention_ms=-1,
            retention_bytes=RETENTION_BYTES,
            message_bytes_max=MESSAGE_BYTES_MAX,
            batch_bytes_max=BATCH_BYTES_MAX,
            dedup=common_pb2.IdDedup(window_bytes=window * WINDOW_BYTES_PER_ID, seed=SEED),
        )
        record = control_pb2.AlterTopic(topic_id=topic.topic_id, settings=settings)
        request = broker_pb2.ApplyQueuesRequest(
            cluster_id=CLUSTER_ID, records=[control_pb2.ControlRecord(alter_topic=record)]
        )
        with grpc.insecure_channel(self._cluster.master().address) as channel:
            broker_pb2_grpc.BrokerStub(channel).ApplyQueues(request, timeout=SERVE_S)

    def _send_call(self, topic: str) -> None:
        ids = self._ids.column() if topic == WITH_IDS else None
        self._sites[topic].producer.send_many(topic, self._values, message_ids=ids)

    def bulk(self, topic: str) -> Mapping[str, float]:
        """Bulk calls for a while."""
        calls, site = 0, self._sites[topic]
        start, cpu_s = time.perf_counter(), self._cpu_s(topic)
        while time.perf_counter() - start < self._seconds:
            self._send_call(topic)
            calls += 1
        site.producer.flush(FLUSH_S)
        elapsed = time.perf_counter() - start
        site.cluster.wait_caught_up(timeout=SERVE_S)
        count = calls * len(self._values)
        return {
            "messages_s": count / elapsed,
            "cpu_s_per_million": (self._cpu_s(topic) - cpu_s) / count * 1e6,
        }

    def send(self, topic: str) -> Mapping[str, float]:
        """A loop of `send()` for a while."""
        rows, sent = self._values[:SEND_ROWS], 0
        producer = self._sites[topic].producer
        start = time.perf_counter()
        while time.perf_counter() - start < self._seconds:
            ids = self._new_ids(len(rows), topic)
            if topic == WITH_IDS:
                for value, message_id in zip(rows, ids, strict=True):
                    producer.send(topic, value, message_id=message_id)
            else:  # the caller's own loop costs the same
                for value, _ in zip(rows, ids, strict=True):
                    producer.send(topic, value)
            sent += len(rows)
        producer.flush(FLUSH_S)
        return {"messages_s": sent / (time.perf_counter() - start)}

    def _new_ids(self, count: int, topic: str) -> list[bytes]:
        first = self._single
        if topic == WITH_IDS:
            self._single += count
        return [each.to_bytes(ID_BYTES, "little") for each in range(first, first + count)]

    def awaited(self, topic: str) -> Mapping[str, float]:
        """One message at a time, each awaited."""
        value, producer = self._values[0], self._sites[topic].producer
        durations: list[float] = []
        end = time.perf_counter() + self._seconds
        while (start := time.perf_counter()) < end or len(durations) <= WARM_UP:
            if topic == WITH_IDS:
                (message_id,) = self._new_ids(1, topic)
                producer.send(topic, value, message_id=message_id).result(30)
            else:
                producer.send(topic, value).result(30)
            durations.append(time.perf_counter() - start)
        del durations[:WARM_UP]
        return {
            "p50_ms": percentile(durations, 50) * 1e3,
            "p99_ms": percentile(durations, 99) * 1e3,
        }

    def nodes(self) -> Mapping[str, float]:
        """The largest resident memory and index of a node."""
        brokers = self._cluster.brokers
        return {
            "rss_mib": max(node.resident_bytes() for node in brokers) / 2**20,
            "index_bytes_per_id": max(_size(node.data / "ids") for node in brokers) / self._window,
        }

    def restart(self) -> Mapping[str, float]:
        """Kills a slave and starts it; until it has applied everything."""
        slave = self._cluster.slaves()[0]
        self._cluster.kill(slave)
        start = time.perf_counter()
        self._cluster.start_node(slave, SERVE_S)
        self._cluster.wait_caught_up(timeout=SERVE_S)
        return {"seconds": time.perf_counter() - start}

    def rebuild(self) -> Mapping[str, float]:
        """Deletes the index of a slave that is down, and starts it; until it has got all ids from
        a peer. Raises RuntimeError."""
        slave = self._cluster.slaves()[0]
        self._cluster.kill(slave)
        shutil.rmtree(slave.data / "ids")
        start = time.perf_counter()
        self._cluster.start_node(slave, SERVE_S)
        while not self._cluster.status(slave).electable:
            if time.perf_counter() - start > FLUSH_S:
                raise RuntimeError(f"{slave.id} lacks ids after {FLUSH_S:.0f} s")
            time.sleep(0.05)
        elapsed = time.perf_counter() - start
        size = _size(slave.data / "ids") / self._window
        if size < INDEX_BYTES_PER_ID_MIN:
            raise RuntimeError(f"{slave.id} has an index of {size:.1f} B an id")
        return {"seconds": elapsed, "ids_s": self._window / elapsed}

    def check(self) -> None:
        """Compares what is stored with what was sent. Raises RuntimeError."""
        sent = self._ids.calls * len(self._values) + self._single - _SINGLE_IDS
        stored = sum(self._client.admin.offsets_at(WITH_IDS, _END_OF_TIME).values())
        if stored != sent - self._ids.known:
            raise RuntimeError(
                f"{stored:,} of {sent:,} messages with ids are stored, {self._ids.known:,} of which"
                " were known"
            )

    def _cpu_s(self, topic: str) -> float:
        """User and system time of all nodes of the topic's cluster and of this process."""
        nodes = self._sites[topic].cluster.nodes
        times = [psutil.Process(node.pid).cpu_times() for node in nodes]
        return sum(each.user + each.system for each in times) + time.process_time()


def _size(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())
