"""Pairs of programs that copy a topic by Kafka's transactions, each started again when it ends."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from tests.kit.kafka_tools import KafkaTools, RunningTool

PAIR: Final = 2
JAVA: Final = "java-"
"""How topics begin that Java's programs make."""


class Copier:
    """One program, started again whenever it has ended."""

    def __init__(self, start: Callable[[], RunningTool]) -> None:
        self._start = start
        self._tool = start()
        self._told_before: Counter[str] = Counter()

    @property
    def told(self) -> Counter[str]:
        """What it went on after, or ended with."""
        events = list(self._tool.events)
        now = Counter(f"{each['name']}: {each['error']}" for each in events if "error" in each)
        return self._told_before + now

    @property
    def disturbances(self) -> int:
        """How often it said so."""
        return self.told.total()

    def keep(self) -> None:
        """Starts it again if it has ended by itself: Java's does when all is copied that there was
        when it began."""
        if self._tool.is_alive:
            return
        status = self._tool.wait(10)
        lines = self._tool.complaints.strip().splitlines() or [""]
        self._again(f"ended with {status}: {lines[-1][:100]}" if status else "")

    def kill(self) -> None:
        """Ends it as a crash does; another one follows."""
        self._tool.kill()
        self._again("killed")

    def pause(self, seconds: float) -> None:
        """Freezes it for so long."""
        self._tool.pause()
        try:
            time.sleep(seconds)
        finally:
            self._tool.resume()

    def end(self) -> None:
        """Ends it with SIGTERM."""
        self._tool.end()

    def _again(self, why: str) -> None:
        self._told_before = self.told
        if why:
            self._told_before[why] += 1
        self._tool = self._start()


class Copying:
    """The pair that makes one copy, as one group of the copy's name. It works inside the block."""

    def __init__(self, addresses: str, source: str, topic: str, tools: KafkaTools | None) -> None:
        """Java makes the topics whose name says so. Without `tools` copiers have their bug."""
        self._addresses = addresses
        self._source = source
        self._topic = topic
        self._tools = tools
        self.copiers: list[Copier] = []

    def __enter__(self) -> Self:
        for number in range(PAIR):
            name = f"{self._topic}-{number}"
            if self._tools is not None and self._topic.startswith(JAVA):
                self.copiers.append(Copier(partial(self._java, self._tools, name)))
            else:
                self.copiers.append(Copier(partial(self._librdkafka, name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for copier in self.copiers:
            copier.end()

    def _librdkafka(self, name: str) -> RunningTool:
        command = [sys.executable, "-m", "tests.kit.kafka_copier", self._addresses, self._source]
        bug = ["apart"] if self._tools is None else []
        return RunningTool([*command, self._topic, self._topic, name, *bug])

    def _java(self, tools: KafkaTools, name: str) -> RunningTool:
        return tools.start(
            "transactional-message-copier",
            *("--broker-list", self._addresses, "--input-topic", self._source),
            *("--input-partition", "-1", "--output-topic", self._topic),
            *("--consumer-group", self._topic, "--transactional-id", name),
            *("--transaction-size", "50", "--transaction-timeout", "20000"),
            *("--group-mode", "--use-group-metadata", "--enable-random-aborts"),
        )
