"""A load beside which something is done to a cluster: one message after the other, each awaited."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from semel.client import Client
from tests.kit.waiting import until

PAUSE_S = 0.003


@dataclass
class Sends:
    """What was sent so far, in order."""

    sent: list[bytes] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)

    def go_on(self) -> None:
        """Returns once some more messages were stored."""
        count = len(self.sent)
        until(lambda: self.failed or len(self.sent) > count + 20, what="some more sends")
        assert self.failed == []


@contextmanager
def steady_sends(client: Client, topic: str, producer: str | None = None) -> Iterator[Sends]:
    """Sends while the block runs, by a producer of that name, if one is given; no send may fail."""
    load, stop = Sends(), threading.Event()

    def send() -> None:
        with client.producer(producer) as sender:
            while not stop.is_set():
                value = b"%d" % len(load.sent)
                try:
                    sender.send(topic, value, key=value).result(timeout=60)
                except Exception as error:
                    load.failed.append(error)
                    return
                load.sent.append(value)
                time.sleep(PAUSE_S)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        load.go_on()
        yield load
    finally:
        stop.set()
        sending.join()
    assert load.failed == []
