"""A healthy program beside an assault, and what a cluster looks like afterwards.

Not here: what is sent (`assault.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from semel.client import Client, connect
from semel.protos.errors import SemelError
from tests.kit.cluster import Cluster

HEALTHY = "healthy"


class Healthy:
    """A program that sends, reads, and looks at the time; in threads of its own."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
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
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[Client], None]) -> None:
        try:
            with connect(self._bootstrap) as client:
                work(client)
        except Exception as error:
            self.error = f"{work.__name__}: {error!r}"

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
            while not self._stop.is_set() or len(self.read) < len(self.sent):
                for message in consumer.poll(timeout=0.2):
                    assert message.value is not None
                    self.read.append(message.value)
                    consumer.commit(message)


def read_everything(bootstrap: str, topic: str) -> int:
    """Reads a topic with every way of reading; returns the number of messages."""
    with connect(bootstrap) as client:
        count = 0
        with client.reader(topic, start="earliest", end="latest") as reader:
            for message in reader:
                assert message.value is not None or message.key is not None
                count += 1
                _ = (message.headers, message.message_id, message.timestamp_us)
        rows = 0
        with client.reader(topic, start="earliest", end="latest") as reader:
            while (table := reader.poll_arrow(timeout=1.0)) is not None and table.num_rows:
                table.validate(full=True)
                rows += table.num_rows
        assert rows == count, f"{rows} rows, {count} messages"
        return count


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


def verified(bootstrap: str, topics: list[str]) -> list[str]:
    """What `semel verify` complains about."""
    found = []
    with connect(bootstrap) as client:
        for topic in topics:
            try:
                result = client.admin.verify(topic)
            except SemelError as error:
                found.append(f"{topic}: {error}")
                continue
            found += [f"{topic}: {problem}" for problem in result.problems]
    return found
