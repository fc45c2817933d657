"""Dedup by message id: producing with ids beside the same without, over windows of many ids.

How it works. Two clusters of real processes with a topic each, one of which compares message ids:
in one log, to remove old messages of one topic would mean to copy those of the other. For each size
of the window that topic is filled with so many ids, which is timed, and the window is bounded
there, so that it goes on to take in as many ids as it drops. Then both topics get the same messages
in turn: by bulk calls, by a loop of `send()`, and one at a time, each awaited. Ids have 16 bytes;
in bulk calls a share of them is of messages that the window has. Processor time is that of all
nodes of the cluster and of this process. At last each node's memory and index are measured, and a
slave is killed and started again, with its index.

    python -m benchmarks.ids                                    # a million ids, two minutes
    python -m benchmarks.ids --ids 1000000,10000000,100000000   # the curve; 20 GiB of disk

The topic with ids is altered by a call to the broker, not by a command of the console, so that its
window can be bounded at any number of ids.

Not here: the index by itself (`id_index.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import psutil
import pyarrow as pa

from benchmarks.commands import Help, guarded
from benchmarks.harness import (
    BATCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    number,
    percentile,
    progress,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, Producer, connect
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.cluster import CLUSTER_ID, Cluster

PLAIN, WITH_IDS = "plain", "with-ids"
ID_BYTES = 16
WINDOW_BYTES_PER_ID = 40
"""What an id counts in a window's budget."""
DISK_BYTES_PER_ID = 120
"""An index may need this much while runs are merged."""
RETENTION_BYTES = 256 << 20
"""Retention of a queue, so that a long run does not fill the disk."""
CALL_BYTES = 4 << 20
FLUSH_S = 300.0
SERVE_S = 60.0
WARM_UP = 50
SEND_ROWS = 1_000
MANY_IDS = 100_000_000
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


def contenders(load: Load, window: str) -> tuple[list[Contender], list[Contender]]:
    """Returns what is run in turn: bulk calls, then messages one by one, whose ids would move the
    window on in between."""

    def both(name: str, run: Callable[[str], Mapping[str, float]]) -> list[Contender]:
        return [
            Contender(name=f"{window} {name}, {suffix}", run=partial(run, topic))
            for topic, suffix in ((PLAIN, "no ids"), (WITH_IDS, "ids"))
        ]

    return both("send_many", load.bulk), [
        *both("send()", load.send),
        *both("awaited", load.awaited),
    ]


def targets(ids: int, window: str) -> list[Target]:
    """Returns the promises about one window."""
    bulk = 0.6 if ids < MANY_IDS else 0.45
    found = []
    for name, metric, least, most in (
        ("send_many", "messages_s", bulk, None),
        ("send()", "messages_s", 0.9, None),
        ("awaited", "p50_ms", None, 1.15),
    ):
        mine, other = f"{window} {name}, ids", f"{window} {name}, no ids"
        found.append(Target(contender=mine, metric=metric, of=other, at_least=least, at_most=most))
    nodes, restart = f"{window} a node", f"{window} restart of a slave"
    return [
        *found,
        Target(contender=nodes, metric="rss_mib", at_most=1024),
        Target(contender=nodes, metric="index_bytes_per_id", at_most=40),
        Target(contender=restart, metric="seconds", at_most=5),
    ]


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    whole = Comparison(
        title=f"Dedup by id: {options.message_bytes} B messages, {options.duplicates:.1%} known,"
        f" {options.queues} queues, 3 replicas"
    )
    promised: list[Target] = []
    with ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        sites = {}
        for topic in (PLAIN, WITH_IDS):
            cluster = stack.enter_context(Cluster(data / topic))
            client = stack.enter_context(connect(cluster.bootstrap))
            sites[topic] = Site(cluster, client, client.producer())
        load = Load(sites, options)
        for ids in options.ids:
            window = f"{ids / 1e6:g}M"
            whole.rounds[f"{window} filling"] = [load.fill(ids)]
            for some in contenders(load, window):
                part = compare("", some, rounds=options.rounds, warm_ups=options.warm_ups)
                whole.rounds |= part.rounds
            whole.rounds[f"{window} a node"] = [load.nodes()]
            whole.rounds[f"{window} restart of a slave"] = [load.restart()]
            promised += targets(ids, window)
        load.check()
    whole.targets = promised
    return report(whole, options)


def windows(text: str) -> list[int]:
    """An argparse type: rising numbers of ids, separated by commas."""
    found = [number(30_000, 1_000_000_000)(each) for each in text.split(",")]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text}: windows only grow; name them in rising order")
    return found


def main() -> int:
    """Command line."""
    parser = arguments("Compare producing with message ids with producing without.", rounds=5)
    parser.formatter_class = Help
    parser.epilog = (
        "examples:\n"
        "  ./run bench ids\n"
        "  ./run bench ids --ids 10000000 --json ids.json\n"
        "  ./run bench ids --ids 1000000,10000000,100000000 --check"
    )
    parser.add_argument(
        "--ids", type=windows, default=[1_000_000], help="ids in the window, one size or several"
    )
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=100)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument(
        "--duplicates", type=decimal(0, 0.5), default=0.006, help="share of known ids in bulk calls"
    )
    options = parser.parse_args()
    logs = 3 * 2 * options.queues * RETENTION_BYTES * 2
    require_disk(parser, options.data, logs + 3 * DISK_BYTES_PER_ID * options.ids[-1])
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
