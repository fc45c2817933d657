"""A program that reads in a Kafka group until it is killed; each value is a line of its output.

    python -m tests.kit.kafka_reader LIBRARY BOOTSTRAP GROUP TOPIC [INSTANCE]

It commits what it has printed, so that nobody in the group prints it again, unless it dies in
between. `LIBRARY` is one of `LIBRARIES`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Final, Self

SESSION_MS: Final = 3_000
METADATA_MS: Final = 1_000
"""So often a client asks which gateways there are: it finds none that it has not heard of."""
LIBRARIES: Final = ("librdkafka", "kafka-python", "aiokafka")


def _librdkafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from confluent_kafka import Consumer

    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 300,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
    }
    if instance is not None:
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    consumer.subscribe([topic])
    while True:
        found = [message for message in consumer.consume(100, 0.2) if message.error() is None]
        if found:
            _tell([message.value() or b"" for message in found])
            _forgiving(lambda: consumer.commit(asynchronous=False))


def _kafka_python(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from kafka import KafkaConsumer  # type: ignore[import-untyped]

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=300,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        reconnect_backoff_max_ms=500,
        metadata_max_age_ms=METADATA_MS,
    )
    while True:
        found = consumer.poll(200)
        values = [record.value for records in found.values() for record in records]
        if values:
            _tell(values)
            _forgiving(consumer.commit)


async def _aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
    from aiokafka.errors import KafkaError  # type: ignore[import-untyped]

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=300,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        retry_backoff_ms=100,
        metadata_max_age_ms=METADATA_MS,
    )
    await consumer.start()
    while True:
        found = await consumer.getmany(timeout_ms=200)
        values = [record.value or b"" for records in found.values() for record in records]
        if values:
            _tell(values)
            try:
                await consumer.commit()
            except KafkaError as error:
                print(error, file=sys.stderr)


def _tell(values: list[bytes]) -> None:
    print("\n".join(value.decode() for value in values), flush=True)


def _forgiving(commit: Any) -> None:
    """A commit that is refused belongs to a member that was replaced: others read the same."""
    try:
        commit()
    except Exception as error:  # three libraries, three kinds of errors
        print(repr(error), file=sys.stderr)


class ReaderProcess:
    """The program as a process."""

    def __init__(
        self, library: str, bootstrap: str, group: str, topic: str, instance: str | None = None
    ) -> None:
        self.values: list[str] = []
        """What it has printed so far."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.kafka_reader", library, bootstrap, group, topic]
            + ([] if instance is None else [instance]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.values.append(line.strip())

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self.kill()


def main() -> None:
    library, bootstrap, group, topic, *more = sys.argv[1:]
    instance = more[0] if more else None
    match library:
        case "librdkafka":
            _librdkafka(bootstrap, group, topic, instance)
        case "kafka-python":
            _kafka_python(bootstrap, group, topic, instance)
        case "aiokafka":
            asyncio.run(_aiokafka(bootstrap, group, topic, instance))
        case _:
            raise SystemExit(f"no library {library!r}; there are {', '.join(LIBRARIES)}")


if __name__ == "__main__":
    main()
