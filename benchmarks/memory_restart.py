"""Memory of a broker with millions of messages, and how fast nodes and clusters come back.

How it works. A topic is filled, then each round reads every broker's resident memory, starts one
slave again after SIGKILL until it has applied everything, starts all nodes again after SIGKILL of
all until the next acknowledgement, and times `semel up` on a new directory until its ready line.

    python -m benchmarks.memory_restart [--messages 5m] [--message-bytes 100]

Not here: the time without a master (`failover.py`).
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

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
from tests.kit.cluster import Cluster

TOPIC = "memory"
ROOT = Path(__file__).resolve().parent.parent
CALL_BYTES = 4 << 20
SERVE_SECONDS = 60.0


class FullCluster:
    """A cluster with a full topic whose nodes come and go."""

    def __init__(self, cluster: Cluster, client: Client, data: Path) -> None:
        self._cluster = cluster
        self._client = client
        self._data = data
        self._numbers = itertools.count()

    def fill(self, messages: int, message_bytes: int) -> None:
        """Store at least `messages` messages."""
        values = random_values(min(messages, max(1, CALL_BYTES // message_bytes)), message_bytes)
        calls = -(-messages // len(values))
        self._client.admin.create_topic(TOPIC, queues=4)
        with self._client.producer() as producer:
            for call in range(calls):
                progress(f"  filling: {call * len(values):,} of {messages:,} messages …")
                producer.send_many(TOPIC, values)
            producer.flush(300)
        progress("")

    def memory(self) -> Mapping[str, float]:
        """The largest resident memory of a broker, in MiB."""
        return {"rss_mib": max(node.resident_bytes() for node in self._cluster.brokers) / 2**20}

    def restart_slave(self) -> Mapping[str, float]:
        """Kills a slave; `seconds` is from its start until it has applied everything."""
        slave = self._cluster.slaves()[0]
        self._cluster.kill(slave)
        start = time.perf_counter()
        self._cluster.start_node(slave, SERVE_SECONDS)
        self._cluster.wait_caught_up(timeout=SERVE_SECONDS)
        return {"seconds": time.perf_counter() - start}

    def restart_all(self) -> Mapping[str, float]:
        """Kills all nodes; `seconds` is from their start until a message is acknowledged."""
        for node in self._cluster.nodes:
            self._cluster.kill(node)
        start = time.perf_counter()
        self._cluster.start(SERVE_SECONDS)
        with self._client.producer() as producer:
            producer.send(TOPIC, b"again").result(SERVE_SECONDS)
        return {"seconds": time.perf_counter() - start}

    def up(self) -> Mapping[str, float]:
        """`seconds` is from the start of `semel up` on a new directory until its ready line."""
        command = [sys.executable, "-m", "semel.console", "up", "--json", "--port", "0"]
        command += ["--data", str(self._data / f"up-{next(self._numbers)}")]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line)["event"] == "ready":
                    return {"seconds": time.perf_counter() - start}
            raise RuntimeError("semel up ended before it was ready; see its error above")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=15)


def main() -> int:
    """Command line."""
    parser = arguments("Measure brokers' memory and the time to come back.", rounds=3)
    parser.add_argument("--messages", type=number(1, 1 << 30), default=5_000_000)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=100)
    options = parser.parse_args()
    stored = options.messages * (options.message_bytes + 8)
    require_disk(parser, options.data, 4 * stored + (2 << 30))
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        full = FullCluster(cluster, client, data)
        full.fill(options.messages, options.message_bytes)
        comparison = compare(
            f"Memory and restart: {options.messages:,} messages of {options.message_bytes} B",
            [
                Contender(name="broker memory", run=full.memory),
                Contender(name="restart one slave", run=full.restart_slave),
                Contender(name="restart all nodes", run=full.restart_all),
                Contender(name="semel up", run=full.up),
            ],
            rounds=options.rounds,
            warm_ups=0,
            targets=[
                Target(contender="broker memory", metric="rss_mib", at_most=250),
                Target(contender="restart one slave", metric="seconds", at_most=5),
                Target(contender="restart all nodes", metric="seconds", at_most=5),
                Target(contender="semel up", metric="seconds", at_most=5),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
