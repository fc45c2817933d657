"""What readers of one queue cost the brokers: 200 of them beside one, in one run.

How it works. One message after the other is sent and awaited, while readers wait at the end of its
queue. They read as the SDK does, with a standing poll on a socket of its own, but decode nothing:
they share the machine with the brokers here, and usually do not. At the end each of them must have
got every message. CPU is that of all brokers, for one message.

    python -m benchmarks.fan_out [--readers 200] [--message-bytes 1k]

Not here: readers that read what is stored (`growth.py`, curve `readers`), their side
(`fan_out_client.py`).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psutil

from benchmarks.floor import NODE_FILE_BYTES
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    percentile,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

WARM_UP: Final = 50
ACK_S: Final = 30


class Site:
    """A cluster, and a client of it."""

    def __init__(self, cluster: Cluster, client: Client, size: int, seconds: float) -> None:
        self._cluster = cluster
        self._client = client
        self._value = random_values(1, size)[0]
        self._seconds = seconds
        self._topics = (f"fan-out-{each}" for each in itertools.count())

    def run(self, readers: int) -> Mapping[str, float]:
        """Figures of awaited messages while so many readers wait for them."""
        topic = next(self._topics)
        self._client.admin.create_topic(topic, queues=1)
        with self._client.producer() as producer, self._readers(topic, readers) as process:
            for _ in range(WARM_UP):
                producer.send(topic, self._value).result(ACK_S)
            used, master = self._cpu_s(), self._master_cpu_s()
            taken = []
            end = time.perf_counter() + self._seconds
            while (start := time.perf_counter()) < end:
                producer.send(topic, self._value).result(ACK_S)
                taken.append(time.perf_counter() - start)
            count = len(taken)
            used, master = self._cpu_s() - used, self._master_cpu_s() - master
            self._end(process, WARM_UP + count)
        return {
            "p50_ms": percentile(taken, 50) * 1e3,
            "p99_ms": percentile(taken, 99) * 1e3,
            "messages_s": count / sum(taken),
            "cpu_us": used / count * 1e6,
            "master_cpu_us": master / count * 1e6,
        }

    @contextmanager
    def _readers(self, topic: str, count: int) -> Iterator[subprocess.Popen[str]]:
        settings = {
            "controller": self._cluster.controller_address,
            "broker": self._cluster.master().address,
            "topic": topic,
            "count": count,
        }
        command = [sys.executable, "-m", "benchmarks.fan_out_client", json.dumps(settings)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline() or "{}").get("ready")
                yield process
            finally:
                process.kill()

    @staticmethod
    def _end(process: subprocess.Popen[str], messages: int) -> None:
        """Asserts that each reader has got all messages."""
        told, _ = process.communicate(f"{messages}\n", timeout=ACK_S)
        read: Mapping[str, Any] = json.loads(told)
        assert read["least"] == messages, f"a reader has got {read['least']} of {messages} messages"

    def _cpu_s(self) -> float:
        return sum(_cpu_s(node.pid) for node in self._cluster.brokers)

    def _master_cpu_s(self) -> float:
        return _cpu_s(self._cluster.master().pid)


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def main() -> int:
    """Command line."""
    parser = arguments("Measure what many readers of one queue cost the brokers.", rounds=3)
    parser.add_argument("--readers", type=number(2, 1_000), default=200)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=1 << 10)
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * NODE_FILE_BYTES + (1 << 30))
    many = f"{options.readers} readers"
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        site = Site(cluster, client, options.message_bytes, options.seconds)
        comparison = compare(
            f"Readers of one queue while one {options.message_bytes:,} B message at a time is"
            " awaited, 3 replicas",
            [
                Contender(name="no reader", run=lambda: site.run(0)),
                Contender(name="1 reader", run=lambda: site.run(1)),
                Contender(name=many, run=lambda: site.run(options.readers)),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender=many, metric="cpu_us", at_most=3, of="1 reader"),
                Target(contender=many, metric="p99_ms", at_most=3, of="1 reader"),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
