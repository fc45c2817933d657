"""A program that stores numbered messages by an idempotent librdkafka, and may be killed at any
time. It prints how many of each partition are acknowledged, as JSON, ten times a second.

    python -m tests.kit.kafka_writer ADDRESSES TOPIC PARTITIONS LIFE RATE

With SIGTERM it sends no more, waits for all acknowledgements, and says what came of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from tests.kit.numbered import value_of
from tests.kit.waiting import until

TELL_S: Final = 0.1
SETTINGS: Final = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "batch.num.messages": 50,
    "message.timeout.ms": 0,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Writing:
    """The program's own state."""

    def __init__(self, partitions: int) -> None:
        self.acked = [0] * partitions
        self.offsets = [-1] * partitions
        self.wrong: list[str] = []
        """What a client must never be told."""

    def on_delivery(self, number: int, error: KafkaError | None, message: Message) -> None:
        partition = message.partition() or 0
        if error is not None:
            self.wrong.append(f"message {number} of partition {partition}: {error}")
            return
        offset = message.offset()
        if number != self.acked[partition]:
            self.wrong.append(f"{number} of partition {partition}, not {self.acked[partition]}")
        if offset is not None and 0 <= offset <= self.offsets[partition]:
            self.wrong.append(f"{number} of partition {partition} has offset {offset}")
        self.offsets[partition] = max(self.offsets[partition], offset or 0)
        self.acked[partition] = number + 1

    def tell(self, **more: Any) -> None:
        print(json.dumps({"acked": self.acked, "wrong": self.wrong[:3], **more}), flush=True)


def main(addresses: str, topic: str, partitions: int, life: int, rate: float) -> None:
    """Writes until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    writing = Writing(partitions)
    producer = Producer({"bootstrap.servers": addresses, **SETTINGS})
    began = told = time.monotonic()
    sent = 0
    while not stop.is_set():
        now = time.monotonic()
        due = int((now - began) * rate)
        while sent < due and not stop.is_set():
            partition, number = sent % partitions, sent // partitions

            def heard(error: KafkaError | None, message: Message, number: int = number) -> None:
                writing.on_delivery(number, error, message)

            try:
                value = value_of(life, partition, number)
                producer.produce(topic, value, partition=partition, on_delivery=heard)
            except BufferError:
                break
            sent += 1
        producer.poll(0.005)
        if now - told >= TELL_S:
            told = now
            writing.tell()
    left = producer.flush(120)
    writing.tell(sent=sent, left=left)


class WriterProcess:
    """The program as a process; `acked` is what its newest line says."""

    def __init__(
        self, addresses: str, topic: str, partitions: int, life: int, rate: float, log: Path
    ) -> None:
        self.life = life
        self.acked = [0] * partitions
        self.wrong: list[str] = []
        self.result: dict[str, Any] = {}
        command = [sys.executable, "-m", "tests.kit.kafka_writer", addresses, topic]
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [*command, str(partitions), str(life), str(rate)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_more(self, within_s: float) -> None:
        """Waits until more of each partition is acknowledged than now."""
        known = list(self.acked)

        def more() -> bool:
            assert self._process.poll() is None, "the writer has ended by itself"
            pairs = zip(self.acked, known, strict=True)
            return all(now > before for now, before in pairs)

        until(more, within_s, f"acknowledgements beyond {known}")

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._finish()

    def stop(self) -> None:
        """Lets it end; asserts that everything it sent was acknowledged."""
        self._process.terminate()
        try:
            self._process.wait(150)
        finally:
            self.kill()
        assert self.result, "the writer ended without a result"
        assert self.result["left"] == 0, self.result
        assert sum(self.acked) == self.result["sent"], (self.acked, self.result)

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a line
            said = json.loads(line)
            self.acked, self.wrong = said["acked"], said["wrong"]
            if "sent" in said:
                self.result = said


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
