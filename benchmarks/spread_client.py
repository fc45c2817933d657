"""The client of `spread`: a process of its own with one producer or many, that prints JSON.

How it works. As in `side_by_side_client.py`: the arguments are a role and its settings. Every
producer first sends a message, which makes its row in the broker's tables; then the producers are
called in turn.

Not here: the process that starts it (`spread.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.harness import random_values
from benchmarks.side_by_side_client import ACK_S, play
from semel.client import connect

CALL_MESSAGES = 1_000
BUFFER_BYTES = 32 << 20
CLIENT_BYTES = 2 * BUFFER_BYTES
"""Buffer of all producers together; one producer can use half of it."""


def spread(
    bootstrap: str, topic: str, records: int, size: int, how: str, producers: int, queues: int
) -> Mapping[str, Any]:
    """Stores `records` values with the call `how`, "send_many" or "send".

    A single producer chooses queues itself; each of several writes to a fixed queue.
    """
    call = CALL_MESSAGES if how == "send_many" else 1
    values = random_values(CALL_MESSAGES, size)
    with (
        connect(bootstrap, buffer_bytes=CLIENT_BYTES, keep_routes=False) as client,
        ExitStack() as stack,
    ):
        each = [
            stack.enter_context(client.producer(buffer_bytes=BUFFER_BYTES))
            for _ in range(producers)
        ]
        places = [at % queues if producers > 1 else None for at in range(producers)]
        for producer, place in zip(each, places, strict=True):
            producer.send(topic, b"first", queue=place)
        for producer in each:
            producer.flush(ACK_S)
        start = time.perf_counter()
        for index in range(records // call):
            producer, place = each[index % producers], places[index % producers]
            if how == "send_many":
                producer.send_many(topic, values[:call], queue=place)
            else:
                producer.send(topic, values[index % len(values)], queue=place)
        for producer in each:
            producer.flush(ACK_S)
        seconds = time.perf_counter() - start
    return {"messages": records // call * call, "seconds": seconds}


ROLES: Mapping[str, Callable[..., Mapping[str, Any]]] = {"spread": spread}


if __name__ == "__main__":
    play(ROLES)
