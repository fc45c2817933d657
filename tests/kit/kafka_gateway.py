"""`semel kafka-gateway` as a process, and what Kafka's clients of this environment do with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kit.ports import free_ports
from tests.kit.waiting import until

WAIT_S = 60.0


class KafkaGatewayProcess:
    """A gateway on a port of this machine that it keeps when it is started again."""

    def __init__(
        self,
        bootstrap: str,
        *arguments: str,
        log: Path | None = None,
        program: str = "semel.console",
        advertise: str = "",
    ) -> None:
        """What it says goes to `log`. `program` is another module than the console's, which takes
        the same arguments. `advertise` is an address that leads to its own."""
        self.log = log
        self.listener = f"127.0.0.1:{free_ports(1)[0]}"
        self.address = advertise or self.listener
        """Where clients go to."""
        self.metrics = ""
        if advertise:
            arguments = ("--advertise", advertise, *arguments)
        self._command = [
            *(sys.executable, "-m", program, "kafka-gateway", "--json"),
            *("--listen", self.listener, "--bootstrap", bootstrap, *arguments),
        ]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
        with contextlib.ExitStack() as stack:
            errors = None if self.log is None else stack.enter_context(self.log.open("a"))
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        ready = json.loads(line)
        assert ready["event"] == "ready", line
        assert ready["address"] == self.address, line
        self.metrics = ready.get("metrics", "")

    def resident_bytes(self) -> int:
        """Returns its resident memory, from /proc."""
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("the gateway has no resident memory")

    def pause(self) -> None:
        """Freezes it (SIGSTOP)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a frozen one go on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def stop(self) -> int:
        """Ends it as Ctrl-C does, and returns its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            status = self.stop()
            assert kind is not None or status == 0, f"the gateway ended with {status}"


class Stored(NamedTuple):
    """Where a record was stored, as the producer was told."""

    partition: int
    offset: int


def await_acquainted(*gateways: KafkaGatewayProcess) -> None:
    """Waits until each of the gateways knows all others, as clients see it."""
    for gateway in gateways:
        admin = AdminClient({"bootstrap.servers": gateway.address})

        def acquainted(admin: AdminClient = admin) -> bool:
            return len(admin.list_topics(timeout=10).brokers) >= len(gateways)

        until(acquainted, what=f"{gateway.address} to know all gateways")


def produce(
    addresses: str,
    topic: str,
    values: list[bytes],
    *,
    keys: list[bytes | None] | None = None,
    between: Callable[[int], None] = lambda number: None,
    settings: Mapping[str, Any] | None = None,
) -> list[Stored]:
    """Stores records by librdkafka, in order; returns where, and asserts that all were stored.
    `between` is called after each."""
    stored: dict[int, Stored] = {}
    failures: list[str] = []
    config = {"bootstrap.servers": addresses, "enable.idempotence": True, "linger.ms": 2}
    producer = Producer(config | dict(settings or {}))

    def told(number: int) -> Callable[[Any, Message], None]:
        def on_delivery(error: Any, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                stored[number] = Stored(message.partition() or 0, message.offset() or 0)

        return on_delivery

    for number, value in enumerate(values):
        key = None if keys is None else keys[number]
        producer.produce(topic, value=value, key=key, on_delivery=told(number))
        producer.poll(0)
        between(number)
    assert producer.flush(WAIT_S) == 0, failures[:3]
    assert not failures, failures[:3]
    return [stored[number] for number in range(len(values))]


def consume(
    addresses: str,
    topic: str,
    partitions: int,
    count: int,
    *,
    settings: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Reads `count` records of a topic from the beginning by librdkafka, without a group."""
    config = {
        "bootstrap.servers": addresses,
        "group.id": "none",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    consumer = Consumer(config | dict(settings or {}))
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
            for message in consumer.consume(1_000, 0.2):
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found
