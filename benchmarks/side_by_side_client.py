"""Semel's client in `side_by_side`: a process of its own, like a peer's, that prints JSON.

How it works. The first argument is the role, the second its settings as JSON; a role's docstring
says what it does. A role that has to begin or end with something outside prints `{"ready": true}`
and reads a line from stdin. All times are of the monotonic clock, which all processes share. A
process that is not done after `limit_s` ends with SIGALRM; it ends with its parent, too.

Not here: who starts it and counts its CPU (`workloads.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from benchmarks.floor_node import die_with_parent
from benchmarks.harness import percentile, random_values
from semel.client import Client, connect, connect_async
from semel.client.producer.futures import SendFuture

CALL_BYTES = 4 << 20
"""Bytes passed with one call of `send_many`."""
LINES = 50_000
LINE_BYTES = 100
TIME_BYTES = 8
PACE_S = 0.005
POLL_S = 20.0
ACK_S = 100.0
RESTART_S = 280.0


def open_client(bootstrap: str, connect_s: float = 10.0) -> Client:
    """A client that leaves no file behind."""
    return connect(bootstrap, keep_routes=False, connect_timeout_ms=int(connect_s * 1000))


def ready() -> None:
    """Tells the parent that this process is ready."""
    print(json.dumps({"ready": True}), flush=True)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    shares = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9, "max_ms": 100}
    return {name: percentile(seconds, share) * 1e3 for name, share in shares.items()}


def log_lines() -> list[bytes]:
    """Lines of 100 B like those of a log: a time, a level, a worker, ordinary words.

    The words are of a docstring of Python's own, so that no rewording here changes the data."""
    rng = random.Random(1)
    words = re.findall(r"[a-z]{3,10}", subprocess.__doc__ or "")
    lines = []
    for number in range(LINES):
        when = f"2026-11-21T08:{number // 1200 % 60:02}:{number // 20 % 60:02}"
        text = f"{when} INFO worker-{rng.randrange(16)} {' '.join(rng.choices(words, k=20))}"
        lines.append(text[:LINE_BYTES].ljust(LINE_BYTES, ".").encode())
    return lines


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    size: int,
    how: str,
    lines: bool = False,
    **options: Any,
) -> Mapping[str, Any]:
    """Sends `records` values in the way `how` ("list", "arrow", "send") until all are stored.

    `options` are the producer's."""
    values = log_lines() if lines else random_values(max(1, CALL_BYTES // size), size)
    count = len(values)
    with open_client(bootstrap) as client:
        with client.producer() as warm:
            warm.send(topic, b"warm").result(ACK_S)
        with client.producer(**options) as producer:
            column: Any = pa.array(values, pa.binary()) if how == "arrow" else values
            start = time.perf_counter()
            if how == "send":
                send = producer.send
                for index in range(records):
                    send(topic, values[index % count])
            else:
                for _ in range(records // count):
                    producer.send_many(topic, column)
                if rest := records % count:
                    producer.send_many(topic, column[:rest])
            producer.flush(ACK_S)
            seconds = time.perf_counter() - start
    return {"messages": records, "seconds": seconds}


def sync_latency(
    bootstrap: str, topic: str, records: int, warm: int, size: int
) -> Mapping[str, Any]:
    """Sends one message at a time in the calling thread."""
    values, taken = random_values(1_024, size), []
    with open_client(bootstrap) as client, client.producer() as producer:
        for index in range(records + warm):
            start = time.perf_counter()
            producer.send(topic, values[index % len(values)]).result(ACK_S)
            taken.append(time.perf_counter() - start)
    return summary(taken[warm:])


def async_latency(
    bootstrap: str, topic: str, records: int, warm: int, size: int
) -> Mapping[str, Any]:
    """Sends one message at a time on the caller's own event loop."""

    async def run() -> Mapping[str, Any]:
        values, taken = random_values(1_024, size), []
        async with (
            await connect_async(bootstrap, keep_routes=False) as client,
            client.producer() as producer,
        ):
            for index in range(records + warm):
                start = time.perf_counter()
                await producer.send(topic, values[index % len(values)])
                taken.append(time.perf_counter() - start)
        return summary(taken[warm:])

    return asyncio.run(run())


def paced(
    bootstrap: str, topic: str, records: int, warm: int, size: int, rate: int
) -> Mapping[str, Any]:
    """An open loop with a client of its own."""
    with open_client(bootstrap) as client:
        return open_loop(client, topic, records, warm, size, rate)


def open_loop(
    client: Client, topic: str, records: int, warm: int, size: int, rate: int
) -> Mapping[str, Any]:
    """Sends at planned times regardless of acknowledgements, and measures from these."""
    taken: list[float] = []
    failed: list[Exception] = []
    filler = os.urandom(size - TIME_BYTES)
    everything = threading.Event()

    def watch(future: SendFuture, due: int) -> None:
        def settled(done: SendFuture) -> None:
            now = time.monotonic_ns()
            if (error := done.exception()) is not None:
                failed.append(error)
            taken.append((now - due) / 1e9)
            if len(taken) == records:
                everything.set()

        future.add_done_callback(settled)

    with client.producer() as producer:
        start = time.monotonic_ns() + 10**9
        for index in range(records):
            due = start + index * 10**9 // rate
            if (left := due - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)
            watch(producer.send(topic, due.to_bytes(TIME_BYTES, "big") + filler), due)
        if not everything.wait(ACK_S) or failed:
            raise RuntimeError(f"{len(taken)} of {records} settled, {len(failed)} failed")
    return summary(taken[warm:])


def tail(bootstrap: str, topic: str, records: int, warm: int) -> Mapping[str, Any]:
    """Measures from the planned time in each message to its arrival; ready once it listens."""
    taken: list[float] = []
    with (
        open_client(bootstrap) as client,
        client.reader(topic, start="latest") as reader,
    ):
        ready()
        for message in reader:
            due = int.from_bytes(message.value[:TIME_BYTES], "big")
            taken.append((time.monotonic_ns() - due) / 1e9)
            if len(taken) == records:
                break
    return summary(taken[warm:])


def consume(bootstrap: str, topic: str, records: int, how: str) -> Mapping[str, Any]:
    """Reads `records` messages in a new group in the way `how`, "arrow" or "messages".

    The time begins with the arrival of the first messages, which do not count themselves.
    """
    seen = first = volume = 0
    start = 0.0
    with (
        open_client(bootstrap) as client,
        client.consumer(f"group-{secrets.token_hex(4)}", topic) as consumer,
    ):
        if how == "arrow":
            while seen < records:
                batch = consumer.poll_arrow(POLL_S)
                if batch is None:
                    raise RuntimeError(f"only {seen} of {records} messages came")
                seen += batch.num_rows
                if not start:
                    start, first = time.perf_counter(), seen
        else:
            for message in consumer:
                if not seen:
                    start, first = time.perf_counter(), 1
                volume += len(message.value)
                seen += 1
                if seen == records:
                    break
        seconds = time.perf_counter() - start
    return {"messages": seen - first, "seconds": seconds}


def acknowledgements(bootstrap: str, topic: str, size: int) -> Mapping[str, Any]:
    """Sends a message every 5 ms until told to stop, and then until one more is stored.

    Ready at the first acknowledgement. `acks` are their times in seconds.
    """
    acks: list[float] = []
    failed: list[str] = []
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    def settled(done: SendFuture) -> None:
        error = done.exception()
        if error is None:
            acks.append(time.monotonic())
        else:
            failed.append(type(error).__name__)

    value = bytes(size)
    with open_client(bootstrap) as client, client.producer() as producer:
        producer.send(topic, value).result(ACK_S)
        ready()
        threading.Thread(target=listen, daemon=True).start()
        told = 0.0
        while not told or not acks or acks[-1] < told:
            time.sleep(PACE_S)
            producer.send(topic, value).add_done_callback(settled)
            if not told and stop.is_set():
                told = time.monotonic()
    return {"acks": sorted(acks), "failed": len(failed)}


def first_acks(bootstrap: str, topic: str, queues: int) -> Mapping[str, Any]:
    """Once told, connects to a starting cluster and stores one message in each queue.

    `acks` are the times of the acknowledgements.
    """
    ready()
    sys.stdin.readline()
    acks: list[float] = []
    everything = threading.Event()

    def settled(done: SendFuture) -> None:
        if done.exception() is None:
            acks.append(time.monotonic())
        if len(acks) == queues or done.exception() is not None:
            everything.set()

    with (
        open_client(bootstrap, RESTART_S) as client,
        client.producer(delivery_timeout_ms=int(RESTART_S * 1000)) as producer,
    ):
        for queue in range(queues):
            producer.send(topic, b"x", queue=queue).add_done_callback(settled)
        everything.wait(RESTART_S)
    if len(acks) < queues:
        raise RuntimeError(f"{len(acks)} of {queues} messages were stored")
    return {"acks": sorted(acks)}


ROLES: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    each.__name__: each
    for each in (
        produce,
        sync_latency,
        async_latency,
        paced,
        tail,
        consume,
        acknowledgements,
        first_acks,
    )
}


def play(roles: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """Runs one of `roles` from the command line ROLE SETTINGS."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends this process
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    signal.alarm(settings.pop("limit_s"))
    print(json.dumps(roles[role](**settings)), flush=True)


if __name__ == "__main__":
    play(ROLES)
