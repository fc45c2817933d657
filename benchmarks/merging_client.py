"""The gateways of `merging`: a process with some clients of a cluster, that prints JSON.

How it works. Every gateway has a client of its own, with its own connections, and stands for many
people's programs: each of those sends one log line a second, under its name as the key. A gateway
passes the lines on with `send()`, in the order in which they come, `TURNS` times a second.

Not here: the process that starts it (`merging.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.side_by_side_client import ACK_S, log_lines, play
from semel.client import connect

TURNS = 100


def gateways(
    bootstrap: str, topic: str, count: int, rate: int, seconds: int, linger_ms: float, first: int
) -> Mapping[str, Any]:
    """Sends `rate` lines a second through `count` gateways together; `first` is the number of the
    first program whose lines they are."""
    lines = log_lines()
    each = rate // count // TURNS
    late_s = 0.0
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(bootstrap, keep_routes=False)) for _ in range(count)]
        producers = [
            stack.enter_context(client.producer(linger_ms=linger_ms, compression="lz4"))
            for client in clients
        ]
        for producer in producers:
            producer.send(topic, b"first").result(ACK_S)
        keys = [b"program-%d" % number for number in range(first, first + rate)]
        start = time.perf_counter()
        for turn in range(seconds * TURNS):
            wait = start + turn / TURNS - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            late_s = max(late_s, -wait)
            at = turn % TURNS * each * count
            for producer in producers:
                for number in range(at, at + each):
                    producer.send(topic, lines[number % len(lines)], key=keys[number])
                at += each
        for producer in producers:
            producer.flush(ACK_S)
        took = time.perf_counter() - start
    return {"messages": each * count * TURNS * seconds, "seconds": took, "late_s": late_s}


ROLES: Mapping[str, Callable[..., Mapping[str, Any]]] = {"gateways": gateways}


if __name__ == "__main__":
    play(ROLES)
