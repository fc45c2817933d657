"""Kafka's clients as a load, the same before Kafka and before a gateway.

How it works. Clients of librdkafka are the roles of the peer's own script (`peer_kafka.py`), each
in a process of its own; Java's is kafka-producer-perf-test, with the options that the script gives
it. So both sides meet the same programs with the same settings, and only the address differs.

Not here: what answers, and which figures are compared (`kafka_gateway.py`).
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from tests.kit.kafka_tools import KafkaTools

JAVA: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
TUNED: Final = {"batch.size": 262144, "linger.ms": 10, "buffer.memory": 134217728}
TUNED_READER: Final = {"fetch.queue.backoff.ms": 5}
"""librdkafka's default, 1,000, idles whenever the client's queue was full."""
_ROLE: Final = (
    "import importlib, json, sys;"
    "sys.path.insert(0, sys.argv[1]);"
    "module = importlib.import_module(sys.argv[2]);"
    "print(json.dumps(module.ROLES[sys.argv[3]](**json.loads(sys.argv[4]))))"
)
_CLIENT_S: Final = 900.0
_PAUSE_S: Final = 0.005
_BEFORE_S: Final = 4.0
_AFTER_S: Final = 12.0


class Served(Protocol):
    """What answers Kafka's clients."""

    bootstrap: str

    def topic(self, name: str, partitions: int) -> AbstractContextManager[object]:
        """A topic that is there for as long as the block lasts."""
        ...


class Load:
    """The clients. `script` is the peer's."""

    def __init__(self, script: Path, tools: KafkaTools, scratch: Path, scale: float) -> None:
        self._script = script
        self._tools = tools
        self._scratch = scratch
        self._scale = scale

    def records(self, count: int) -> int:
        """A number of messages at this run's scale."""
        return max(1_000, int(count * self._scale))

    # ---------------------------------------------------------------------------------- throughput

    def java_produce(self, served: Served, *, size: int, count: int) -> float:
        """Messages per second of kafka-producer-perf-test with larger batches."""
        with served.topic(_name("java"), 4) as topic:
            return self._java(served.bootstrap, str(topic), size, self.records(count))

    def _java(self, bootstrap: str, topic: str, size: int, records: int) -> float:
        properties = {"acks": "all", "enable.idempotence": "true", **TUNED}
        command = self._tools.command(
            "kafka-producer-perf-test",
            *("--bootstrap-server", bootstrap, "--topic", topic),
            *("--num-records", str(records), "--throughput", "-1"),
            *("--payload-file", str(self._payload(size)), "--command-property"),
            *(f"{key}={value}" for key, value in properties.items()),
            java=JAVA,
        )
        said = _run(command)
        sent, *_ = re.findall(r"(\d+) records sent", said.splitlines()[-1]) or ["0"]
        if int(sent) != records:
            raise RuntimeError(f"kafka-producer-perf-test: {said[-300:]}")
        return float(re.findall(r"([\d.]+) records/sec", said)[-1])

    def _payload(self, size: int) -> Path:
        path = self._scratch / f"payload{size}"
        if not path.exists():
            lines = [base64.b64encode(os.urandom(size))[:size] for _ in range(1024)]
            path.write_bytes(b"\n".join(lines))
        return path

    def produce(self, served: Served, *, count: int) -> float:
        """Messages per second of a loop over librdkafka's produce(), 100 B each."""
        with served.topic(_name("loop"), 4) as topic:
            return self.rate(self.start_produce(served.bootstrap, str(topic), self.records(count)))

    def start_produce(self, bootstrap: str, topic: str, records: int) -> subprocess.Popen[str]:
        """The same as a process that goes on by itself; `rate` waits for it."""
        return self._start(
            "produce", bootstrap=bootstrap, topic=topic, size=100, records=records, callback=False
        )

    def rate(self, process: subprocess.Popen[str]) -> float:
        """Messages per second of a process that was started."""
        result = self._result(process)
        return float(result["messages"] / result["seconds"])

    def consume(self, served: Served, *, count: int) -> float:
        """Messages per second of librdkafka reading a topic from its beginning, 100 B each."""
        records = self.records(count)
        with served.topic(_name("read"), 4) as topic:
            self._java(served.bootstrap, str(topic), 100, records)
            settings = {"bootstrap": served.bootstrap, "topic": topic, "records": records}
            return self.rate(self._start("consume", **settings, **TUNED_READER))

    def awaited_p99_ms(self, served: Served, *, count: int) -> float:
        """The 99th percentile of one message of 1 KiB at a time, each awaiting its ack."""
        with served.topic(_name("awaited"), 4) as topic:
            settings = {"bootstrap": served.bootstrap, "topic": topic, "size": 1024}
            process = self._start("sync_latency", **settings, records=self.records(count))
            return float(self._result(process)["p99_ms"])

    def _start(self, role: str, **settings: Any) -> subprocess.Popen[str]:
        place, module = str(self._script.parent), self._script.stem
        command = [sys.executable, "-c", _ROLE, place, module, role, json.dumps(settings)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            out, errors = process.communicate(timeout=_CLIENT_S)
        finally:
            process.kill()
        if process.returncode:
            raise RuntimeError(f"a client of librdkafka failed: {errors[-300:]}")
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    # ----------------------------------------------------------------------------------------- gap

    def gap_s(self, served: Served, strike: Callable[[str], object]) -> float:
        """The longest time between two acknowledgements of a paced producer. `strike` is called
        once with the address of the partition's leader."""
        with served.topic(_name("gap"), 1) as topic:
            acks: list[float] = []
            failed: list[str] = []
            producer = Producer({"bootstrap.servers": served.bootstrap, "log_level": 0})

            def on_delivery(error: KafkaError | None, _: Message) -> None:
                if error is None:
                    acks.append(time.monotonic())
                else:
                    failed.append(str(error))

            began = time.monotonic()
            struck = 0.0
            while True:
                now = time.monotonic()
                if struck and now > struck + _AFTER_S and acks and acks[-1] > now - 1:
                    break
                if now > began + 90:
                    raise RuntimeError("no acknowledgement came back within 90 s")
                producer.poll(_PAUSE_S)
                producer.produce(str(topic), bytes(100), on_delivery=on_delivery)
                if not struck and now > began + _BEFORE_S:
                    strike(leader_of(served.bootstrap, str(topic)))
                    struck = time.monotonic()
            producer.flush(60)
            if failed:
                raise RuntimeError(f"{len(failed)} messages failed: {failed[0]}")
            return longest_gap(acks)


def leader_of(bootstrap: str, topic: str) -> str:
    """Address of the leader of a topic's only partition."""
    told = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, 30)
    leader = told.brokers[told.topics[topic].partitions[0].leader]
    return f"{leader.host}:{leader.port}"


def longest_gap(moments: Sequence[float]) -> float:
    """The longest time between two neighbours."""
    return max(after - before for before, after in pairwise(sorted(moments)))


def _name(what: str) -> str:
    return f"{what}-{random.randrange(10**9)}"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[-1]}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout.strip()
