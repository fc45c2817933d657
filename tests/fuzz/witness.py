"""A healthy program beside an assault, and what a cluster looks like afterwards.

Not here: what is sent (`assault.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from semel.client import Client
from semel.protos.errors import SemelError
from tests.kit.cluster import Cluster

HEALTHY = "healthy"


Connecting = Callable[[], Client]
"""Connects to the cluster as somebody who may do everything."""


class Healthy:
    """A program that sends, reads, and looks at the time; in threads of its own."""

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._stop = threading.Event()
        self._all_sent = threading.Event()
        self.sent: list[bytes] = []
        self.read: list[bytes] = []
        self.slowest_s = 0.0
        self.error = ""
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=work.__name__)
            for work in (self._send, self._receive)
        ]

    def __enter__(self) -> Healthy:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        sender, receiver = self._threads
        sender.join()
        self._all_sent.set()
        receiver.join()

    def _run(self, work: Callable[[Client], None]) -> None:
        try:
            with self._connecting() as client:
                work(client)
        except Exception as error:
            self.error = f"{work.__name__}: {error!r}"

    def problems(self) -> list[str]:
        """What it missed, once it has ended."""
        found = [self.error] if self.error else []
        if sorted(self.read) != sorted(self.sent):
            found.append(f"healthy: {len(self.sent)} sent, {len(self.read)} read")
        return found or ([] if self.sent else ["healthy: it did nothing"])

    def _send(self, client: Client) -> None:
        producer = client.producer("healthy")
        while not self._stop.wait(0.02):
            value = b"%d" % len(self.sent)
            began = time.monotonic()
            producer.send(HEALTHY, value, key=value).result(30)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.sent.append(value)

    def _receive(self, client: Client) -> None:
        with client.consumer("healthy", [HEALTHY]) as consumer:
            while not self._all_sent.is_set() or len(self.read) < len(self.sent):
                for message in consumer.poll(timeout=0.2):
                    assert message.value is not None
                    self.read.append(message.value)
                    consumer.commit(message)


def problems_of(cluster: Cluster) -> list[str]:
    """What the logs of the nodes tell, and how they are."""
    found = []
    for node in cluster.nodes:
        if not node.running:
            found.append(f"{node.kind} {node.id} has ended")
        text = node.log_file.read_text(errors="replace")
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if "Traceback" in line or " ERROR " in line or " CRITICAL " in line:
                found.append("\n".join(lines[max(0, number - 2) : number + 40]))
                break
    return found


def grown(cluster: Cluster, before: dict[Path, int], bytes_max: int) -> list[str]:
    """The nodes that took more than so much memory since `resident` was read."""
    return [
        f"{node.kind} {node.id} took {taken >> 20} MiB more"
        for node in cluster.nodes
        if node.running and (taken := node.resident_bytes() - before[node.data]) > bytes_max
    ]


def resident(cluster: Cluster) -> dict[Path, int]:
    """The memory of each node, by its directory."""
    return {node.data: node.resident_bytes() for node in cluster.nodes}


def verified(client: Client, topics: list[str]) -> list[str]:
    """What `semel verify` complains about."""
    found = []
    for topic in topics:
        try:
            result = client.admin.verify(topic)
        except SemelError as error:
            found.append(f"{topic}: {error}")
            continue
        found += [f"{topic}: {problem}" for problem in result.problems]
    return found
