"""Kafka's own command line tools, run in Java from the pinned jars: judges of the Kafka gateway.

A tool is what Kafka's distribution starts by a script of that name: here its class is started
without the script.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from semel.client.java import JavaMissing, find_java
from tests.kit.maven import Missing, class_path
from tests.kit.waiting import until

VERSION: Final = "4.3.1"
TOOLS: Final[Mapping[str, str]] = {
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "connect-standalone": "org.apache.kafka.connect.cli.ConnectStandalone",
    "connect-distributed": "org.apache.kafka.connect.cli.ConnectDistributed",
}
QUICK: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options for tools that run for seconds."""
_LOG4J: Final = """rootLogger.level = WARN
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


class Done(NamedTuple):
    """What a tool that has ended said."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


class KafkaTools:
    """The tools, on one Java; what they log goes to their stderr."""

    def __init__(self, scratch: Path) -> None:
        """Raises Missing."""
        try:
            self._java = find_java(purpose="Kafka's own tools")
        except JavaMissing as error:
            raise Missing(error.message) from None
        self._classes = class_path("kafka")
        log4j = scratch / "log4j2.properties"
        log4j.write_text(_LOG4J)
        self._log4j = f"-Dlog4j2.configurationFile={log4j}"

    def command(self, tool: str, *arguments: str, java: Sequence[str] = QUICK) -> list[str]:
        """The command line of a tool."""
        return [str(self._java), *java, self._log4j, "-cp", self._classes, TOOLS[tool], *arguments]

    def run(
        self, tool: str, *arguments: str, given: str | None = None, timeout: float = 120
    ) -> Done:
        """Runs a tool to its end. Raises subprocess.TimeoutExpired."""
        done = subprocess.run(
            self.command(tool, *arguments),
            input=given if given is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, tool: str, *arguments: str) -> RunningTool:
        """Starts a tool that goes on by itself."""
        return RunningTool(self.command(tool, *arguments))


class RunningTool:
    """A tool at work, such as a verifiable client, which prints a JSON object a line; leaving the
    block ends it with SIGTERM, as an operator does."""

    def __init__(self, command: list[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._complaints: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._hear)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def named(self, name: str) -> list[dict[str, Any]]:
        """The events of that name so far."""
        return [event for event in list(self.events) if event.get("name") == name]

    def wait_for(self, name: str, count: int = 1, timeout: float = 60) -> list[dict[str, Any]]:
        """Waits for so many events of that name."""

        def found() -> bool:
            going_on = self._threads[0].is_alive()
            enough = len(self.named(name)) >= count
            assert enough or going_on, self.complaints
            return enough

        until(found, timeout, f"{count} times {name}; {self.complaints}")
        return self.named(name)

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    @property
    def complaints(self) -> str:
        """The end of what it wrote to stderr."""
        return "".join(self._complaints)[-2_000:]

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._process.kill()
        self._finish()

    def pause(self) -> None:
        """Freezes it (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a frozen one go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float) -> int:
        """Waits for its own end; returns the exit status."""
        status = self._process.wait(timeout)
        self._finish()
        return status

    def end(self, timeout: float = 30) -> None:
        """Ends it with SIGTERM, so that it says goodbye to its group."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._finish()

    def _finish(self) -> None:
        self._process.wait()
        for thread in self._threads:
            thread.join(10)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and line.endswith("\n"):  # else it was killed in the middle
                self.events.append(json.loads(line))

    def _hear(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints.append(line)
