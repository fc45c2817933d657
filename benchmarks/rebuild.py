"""A node that lost its disk: how fast it is whole again, and how much that slows clients.

How it works. A topic is filled. Each round then kills a slave, deletes its data directory, starts
it again and takes the time until it has everything that the master had at that moment. Meanwhile
one client sends a message every few milliseconds and awaits it; its 99th percentile during the
rebuild is compared with that of the seconds before.

    python -m benchmarks.rebuild [--stored-bytes 2g]

Not here: that the restored data is right (`tests/integration/test_broker_group.py`).
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping

from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    percentile,
    progress,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

TOPIC = "rebuild"
PULSE = "pulse"
PULSE_PAUSE_S = 0.005
CALM_S = 10.0
CALL_BYTES = 4 << 20
REBUILD_TIMEOUT_S = 600.0


class Pulse:
    """A client that sends one message after the other and keeps the duration of each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._taken: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._client.producer() as producer:
            while not self._stop.wait(PULSE_PAUSE_S):
                start = time.perf_counter()
                producer.send(PULSE, b"x" * 1024).result(60)
                self._taken.append((start, time.perf_counter() - start))

    def p99_ms(self, since: float, until: float) -> float:
        """The 99th percentile of messages sent between the two times (perf_counter seconds)."""
        taken = [seconds for start, seconds in self._taken if since <= start <= until]
        assert len(taken) >= 100, f"{len(taken)} messages are too few for a 99th percentile"
        return percentile(taken, 99) * 1e3

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Rebuild:
    """A cluster with a full topic, one of whose slaves loses everything again and again."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster = cluster
        self._client = client
        self._stored_bytes = 0

    def fill(self, stored_bytes: int, message_bytes: int) -> None:
        """Store at least `stored_bytes`."""
        values = random_values(max(1, CALL_BYTES // message_bytes), message_bytes)
        self._client.admin.create_topic(TOPIC, queues=4)
        self._client.admin.create_topic(PULSE, queues=1)
        with self._client.producer() as producer:
            while self._stored_bytes < stored_bytes:
                progress(f"  filling: {self._stored_bytes >> 20:,} of {stored_bytes >> 20:,} MiB …")
                producer.send_many(TOPIC, values)
                self._stored_bytes += len(values) * message_bytes
            producer.flush(300)
        progress("")

    def run(self) -> Mapping[str, float]:
        """Runs one rebuild."""
        cluster = self._cluster
        pulse = Pulse(self._client)
        try:
            time.sleep(CALM_S)
            slave = cluster.slaves()[0]
            calm_end = time.perf_counter()
            cluster.kill(slave)
            shutil.rmtree(slave.data)
            start = time.perf_counter()
            cluster.start_node(slave)
            cluster.wait_caught_up(timeout=REBUILD_TIMEOUT_S)
            end = time.perf_counter()
        finally:
            pulse.close()
        calm, busy = pulse.p99_ms(0.0, calm_end), pulse.p99_ms(start, end)
        return {
            "mb_s": self._stored_bytes / (end - start) / 1e6,
            "seconds": end - start,
            "calm_p99_ms": calm,
            "busy_p99_ms": busy,
            "p99_ratio": busy / calm,
        }


def main() -> int:
    """Command line."""
    parser = arguments("Measure the rebuild of a node that lost its disk.", rounds=3)
    parser.add_argument("--stored-bytes", type=number(64 << 20, 1 << 40), default=2 << 30)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=1 << 10)
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * options.stored_bytes + (1 << 30))
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        rebuild = Rebuild(cluster, client)
        rebuild.fill(options.stored_bytes, options.message_bytes)
        comparison = compare(
            f"Rebuild: a slave without data, {options.stored_bytes >> 20:,} MiB stored, one client "
            "awaiting messages",
            [Contender(name="rebuild", run=rebuild.run)],
            rounds=options.rounds,
            warm_ups=0,
            targets=[
                Target(contender="rebuild", metric="mb_s", at_least=100),
                Target(contender="rebuild", metric="p99_ratio", at_most=2),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
