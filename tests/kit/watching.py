"""Watches a topic: which messages come out of it, and when."""

from __future__ import annotations

import time

from semel.client import Client, Message

CLOCKS_S = 0.01
"""Time counts by the broker's log time, which is another clock than the test's."""


class Watch:
    """The messages that come out of a topic, and the times."""

    def __init__(self, client: Client, topic: str) -> None:
        self._reader = client.reader(topic, start="earliest")
        self.seen: list[tuple[float, Message]] = []

    def until(self, count: int, timeout: float = 20.0) -> None:
        """Reads until so many messages came, and a little longer: there are no more."""
        self.until_any(count, timeout)
        self.look(0.3)
        assert len(self.seen) == count

    def until_any(self, count: int, timeout: float) -> None:
        """Reads until at least so many messages came."""
        deadline = time.monotonic() + timeout
        while len(self.seen) < count:
            assert time.monotonic() < deadline, f"{len(self.seen)} of {count} came"
            self.look(0.2)

    def look(self, seconds: float) -> None:
        """Takes the messages that come within a time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            messages = self._reader.poll(timeout=left)
            now = time.time()
            self.seen += [(now, message) for message in messages]

    @property
    def values(self) -> list[bytes]:
        return [message.value for _, message in self.seen]

    def close(self) -> None:
        self._reader.close()
