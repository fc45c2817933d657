"""Kafka Connect before two gateways: `./run soak kafka-connect`.

How it works. Connect's workers are Kafka's own, from the pinned jars (`tests/kit/jars/kafka.txt`),
with the connectors for files that come with it: one reads the lines of a file into a topic, the
other writes a topic's messages into a file. A standalone worker keeps its state in a file.
Distributed ones keep it in three compacted topics, and form a group of Connect's own protocol.
While lines come, masters, gateways and workers are killed or stopped and started again.

What must be so. The topic has each line once and in order, whatever is killed, as long as a worker
keeps its task: its producer is idempotent. A worker that is killed sends lines again that it had
not noted yet, and so do distributed ones when the gateway dies that coordinates them, since they
then share out their tasks anew. A sink writes messages again whose offsets were not committed. That
is Connect's own promise; nothing may be missing.

It needs Java 17 or newer, and Maven for the first run.

Not here: Kafka's other tools (`kafka_java.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_tools import VERSION, KafkaTools, RunningTool
from tests.kit.maven import Missing
from tests.kit.ports import free_ports
from tests.kit.verdicts import Verdicts, verdict_of
from tests.kit.waiting import until
from tests.soak.kafka_run import chosen, two_gateways

JUDGE: Final = f"Kafka Connect {VERSION}"
WITHIN_S: Final = 180.0
INTERNAL: Final = ("config", "offset", "status")
_CONVERTER: Final = "org.apache.kafka.connect.storage.StringConverter"
_FILE: Final = "org.apache.kafka.connect.file.FileStream{}Connector"


class Worker:
    """A worker at work, and what its REST interface says; leaving the block stops it."""

    def __init__(self, tools: KafkaTools, tool: str, place: Path, settings: Mapping[str, str]):
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        path = place / f"{tool}-{self.url[-5:]}.properties"
        lines = {**settings, "listeners": self.url}
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._running: RunningTool = tools.start(tool, str(path))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.end()

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._running.kill()

    def put(self, name: str, settings: Mapping[str, str]) -> None:
        """Makes a connector, as soon as the worker can, and waits until its task runs."""
        body = json.dumps(settings).encode()

        def made() -> bool:
            self.alive()
            return self._ask(f"/connectors/{name}/config", body) is not None

        def runs() -> bool:
            self.alive()
            told = self._ask(f"/connectors/{name}/status") or {"tasks": ()}
            states = [task["state"] for task in told["tasks"]]
            assert "FAILED" not in states, told
            return states == ["RUNNING"]

        until(made, WITHIN_S, f"the connector {name}")
        until(runs, WITHIN_S, f"the task of {name}")

    def alive(self) -> None:
        """Asserts that the process has not ended."""
        assert self._running.is_alive, self._running.complaints

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        """The answer; None while there is none, or the worker says to come again."""
        request = urllib.request.Request(
            self.url + path, body, {"Content-Type": "application/json"}
        )
        request.method = "GET" if body is None else "PUT"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            # It has not joined yet, or another worker leads; a wrong request would be 400.
            if error.code not in (404, 409, 500, 503):
                raise
            return None
        except OSError:
            return None


class Lines:
    """A file that a source reads and one that a sink writes, with the topic between them."""

    def __init__(self, client: Client, topic: str, place: Path) -> None:
        self._client = client
        self.topic = topic
        self._source, self._sink = place / f"{topic}.source", place / f"{topic}.sink"
        self._source.touch()
        self._count = 0
        client.admin.create_topic(topic, queues=1)

    @property
    def source(self) -> dict[str, str]:
        """Settings of the connector that reads the file."""
        return {
            "connector.class": _FILE.format("Source"),
            "tasks.max": "1",
            "file": str(self._source),
            "topic": self.topic,
        }

    @property
    def sink(self) -> dict[str, str]:
        """Settings of the connector that writes the other one."""
        return {
            "connector.class": _FILE.format("Sink"),
            "tasks.max": "1",
            "file": str(self._sink),
            "topics": self.topic,
        }

    def add(self, count: int) -> None:
        """Writes more lines."""
        with self._source.open("a") as file:
            file.writelines(f"{self._count + each}\n" for each in range(count))
        self._count += count

    def stored(self) -> list[int]:
        """The lines that the topic has."""
        with self._client.reader(self.topic, end="latest") as reader:
            found = {message.offset: int(message.value) for message in reader}
        return [found[offset] for offset in sorted(found)]

    def written(self) -> list[int]:
        """The lines that the sink has written whole."""
        if not self._sink.exists():
            return []
        return [int(line) for line in self._sink.read_text().split("\n")[:-1]]

    def wait(self, worker: Worker) -> None:
        """Waits until every line has gone all the way."""

        def there() -> bool:
            worker.alive()
            return len(set(self.written())) == self._count

        until(there, WITHIN_S, f"{self._count} lines")

    def check(self, *, once: bool) -> None:
        """Asserts that each line is stored once, or at least once, and nothing else."""
        stored, written = self.stored(), self.written()
        assert sorted(set(stored)) == list(range(self._count)), "lines are missing in the topic"
        if once:
            assert stored == sorted(set(stored)), "lines are stored twice, or out of order"
        assert set(written) == set(stored), "lines are missing in the file"
        assert self._client.admin.verify(self.topic).ok, f"semel verify {self.topic}"


class Judged:
    """A cluster with two gateways, and the workers before it."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        gateways: list[KafkaGatewayProcess],
        tools: KafkaTools,
        scratch: Path,
    ) -> None:
        self.cluster, self.client, self.gateways = cluster, client, gateways
        self.tools = tools
        self.scratch = scratch
        self.settings = {
            "bootstrap.servers": ",".join(gateway.address for gateway in gateways),
            "key.converter": _CONVERTER,
            "value.converter": _CONVERTER,
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "service_load",
            "producer.enable.idempotence": "true",
        }

    def standalone(self) -> None:
        """One worker with its state in a file, stopped and started again."""
        lines = Lines(self.client, "standalone", self.scratch)
        lines.add(2_000)
        for turn in range(2):
            with self._standalone() as worker:
                worker.put("standalone-source", lines.source)
                worker.put("standalone-sink", lines.sink)
                lines.wait(worker)
                if turn == 0:
                    self._kill_master(lines, worker)
                    self._kill_gateways(lines, worker)
            lines.check(once=True)
            lines.add(500)

    def _standalone(self) -> Worker:
        state = {"offset.storage.file.filename": str(self.scratch / "standalone.offsets")}
        return Worker(self.tools, "connect-standalone", self.scratch, {**self.settings, **state})

    def distributed(self) -> None:
        """Two workers with their state in topics that they make; one is killed, then all stop."""
        lines = Lines(self.client, "distributed", self.scratch)
        lines.add(2_000)
        with self._distributed() as one, self._distributed() as two:
            one.put("distributed-source", lines.source)
            one.put("distributed-sink", lines.sink)
            lines.wait(one)
            for name in INTERNAL:
                settings = self.client.admin.describe_topic(f"connect-{name}").settings
                assert settings.compaction is not None, f"connect-{name} is not compacted"
            self._kill_master(lines, two)
            lines.check(once=True)
            self._kill_gateways(lines, two)
            one.kill()
            lines.add(500)
            lines.wait(two)
        with self._distributed() as three:
            lines.add(500)
            lines.wait(three)
        lines.check(once=False)

    def _distributed(self) -> Worker:
        settings = {
            **self.settings,
            "group.id": "connect",
            "scheduled.rebalance.max.delay.ms": "0",
            **{f"{name}.storage.topic": f"connect-{name}" for name in INTERNAL},
            **{f"{name}.storage.replication.factor": "1" for name in INTERNAL},
        }
        return Worker(self.tools, "connect-distributed", self.scratch, settings)

    def _kill_master(self, lines: Lines, worker: Worker) -> None:
        """Kills a broker group's master; more lines go all the way while it is away."""
        master = self.cluster.master()
        self.cluster.kill(master)
        lines.add(500)
        lines.wait(worker)
        self.cluster.start_node(master)

    def _kill_gateways(self, lines: Lines, worker: Worker) -> None:
        """Kills one gateway after the other; more lines go all the way while it is away."""
        for gateway in self.gateways:
            gateway.kill()
            lines.add(500)
            lines.wait(worker)
            gateway.start()


def main(arguments: list[str]) -> int:
    """Runs all tests, or those that are named; returns the exit status."""
    names = ("standalone", "distributed")
    about = (__doc__ or "").partition(": ")[0]
    tests = chosen("./run soak kafka-connect", about, arguments, names)
    verdicts = Verdicts()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-kafka-connect-") as directory:
        scratch = Path(directory)
        try:
            tools = KafkaTools(scratch)
        except Missing as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        with two_gateways(scratch) as served:
            judged = Judged(*served, tools, scratch)
            for name in tests or names:
                verdicts.add(verdict_of(JUDGE, name, getattr(judged, name)))
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if verdicts.failed else 0
