"""`semel bench produce|consume|latency`: puts load on a running cluster and measures its speed.

How it works. `produce` sends blocks of random bytes with bulk calls; `latency` sends one message at
a time and waits for it; `consume` reads a topic from its start, as Arrow batches where Arrow is
installed. Without --topic the command creates a topic and deletes it afterwards (`consume` fills it
first).

Not here: comparisons with a floor and with other versions (`benchmarks/`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client
from semel.console.units import Size

if TYPE_CHECKING:
    from semel.client import Client, Reader

BLOCK_BYTES: Final = 2 << 20
WATCH_S: Final = 1.0
_TAKEN_AT_ONCE: Final = 10_000

_topic_option = click.option(
    "--topic", shell_complete=completion.topics, help="An existing topic. [default: a new one]"
)
_watch_option = click.option(
    "--watch",
    "watched",
    is_flag=True,
    help="Print a line every second, with the speed in that second.",
)
_queues_option = click.option(
    "--queues",
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Queues of the new topic.",
)
_size_option = click.option(
    "--size", type=Size(), default="1k", show_default=True, help="Bytes of each message."
)
_total_option = click.option(
    "--total", type=Size(), default="256M", show_default=True, help="Bytes in total."
)
_compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Random bytes do not shrink: this shows what a codec costs.",
)


class _Seconds:
    """Reports, about once a second, the messages and bytes done since the last report."""

    def __init__(self, out: render.Output, bar: render.Progress, *, watched: bool) -> None:
        self._out = out
        self._bar = bar
        self._watched = watched
        self._began = self._told = time.perf_counter()
        self._bytes = self._messages = 0

    def advance(self, messages: int, size: int) -> None:
        """Counts more messages and bytes as done."""
        self._bar.advance(size)
        self._messages += messages
        self._bytes += size
        now = time.perf_counter()
        if self._watched and now - self._told >= WATCH_S:
            self._tell(now)

    def _tell(self, now: float) -> None:
        seconds = now - self._told
        line = {
            "event": "second",
            "at_seconds": round(now - self._began, 1),
            "messages_per_second": round(self._messages / seconds),
            "megabytes_per_second": round(self._bytes / seconds / 1e6, 1),
        }
        text = "{at_seconds:7.1f} s  {messages_per_second:>12,} a second"
        text += "  {megabytes_per_second:10,.1f} MB/s"
        self._out.show(line, text.format(**line))
        self._told, self._bytes, self._messages = now, 0, 0


@click.group()
def bench() -> None:
    """Puts load on a running cluster, and measures its speed."""


@bench.command(epilog=examples("semel bench produce --total 1G --size 1k"))
@_topic_option
@_queues_option
@_size_option
@_total_option
@_compression_option
@_watch_option
@client_options
def produce(
    topic: str | None,
    queues: int,
    size: int,
    total: int,
    compression: str,
    watched: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Sends --total bytes in bulk and waits until they are stored."""
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client, _topic(client, topic, queues) as name:
        with out.progress(f"to {name}", total) as bar:
            told = _Seconds(out, bar, watched=watched)
            messages, seconds = _fill(client, name, size, total, compression, told)
        _report(out, "produce", name, messages, messages * size, seconds)


@bench.command(epilog=examples("semel bench consume --topic orders"))
@_topic_option
@_queues_option
@_size_option
@_total_option
@_watch_option
@client_options
def consume(
    topic: str | None,
    queues: int,
    size: int,
    total: int,
    watched: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Reads a topic from its start to its end."""
    from semel.protos.arrow import INSTALLED

    take = _take_arrow if INSTALLED else _take_plain
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client, _topic(client, topic, queues) as name:
        if topic is None:
            with out.progress(f"filling {name}", total) as bar:
                _fill(client, name, size, total, "none", _Seconds(out, bar, watched=False))
        messages = read = 0
        began = time.perf_counter()
        with (
            out.progress(f"from {name}", None) as bar,
            client.reader(name, start="earliest", end="latest") as reader,
        ):
            told = _Seconds(out, bar, watched=watched)
            while not reader.finished:
                count, done = take(reader)
                messages += count
                read += done
                told.advance(count, done)
        _report(out, "consume", name, messages, read, time.perf_counter() - began)


@bench.command(epilog=examples("semel bench latency --count 1000"))
@_topic_option
@_queues_option
@_size_option
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="Messages.")
@_watch_option
@client_options
def latency(
    topic: str | None,
    queues: int,
    size: int,
    count: int,
    watched: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Sends one message at a time, awaiting each."""
    out = render.Output(as_json=as_json)
    payload = secrets.token_bytes(size)
    times = []
    with open_client(bootstrap) as client, _topic(client, topic, queues) as name:
        producer = client.producer()
        producer.send(name, payload).result()  # opens connections and the producer beforehand
        with out.progress(f"to {name}", count * size) as bar:
            told = _Seconds(out, bar, watched=watched)
            for _ in range(count):
                began = time.perf_counter()
                producer.send(name, payload).result()
                times.append(time.perf_counter() - began)
                told.advance(1, size)
    times.sort()
    figures = {
        "bench": "latency",
        "topic": name,
        "messages": count,
        "p50_ms": round(times[count // 2] * 1e3, 3),
        "p99_ms": round(times[min(count - 1, count * 99 // 100)] * 1e3, 3),
        "max_ms": round(times[-1] * 1e3, 3),
    }
    text = "{messages:,} messages, p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, max {max_ms:.2f} ms"
    out.show(figures, text.format(**figures))


def _take_arrow(reader: Reader) -> tuple[int, int]:
    """Takes messages as Arrow's batches; returns how many they were, and the bytes of values."""
    batch = reader.poll_arrow(1.0)
    return (0, 0) if batch is None else (batch.num_rows, batch.column("value").nbytes)


def _take_plain(reader: Reader) -> tuple[int, int]:
    """Takes messages one by one, like `_take_arrow`."""
    found = reader.poll(_TAKEN_AT_ONCE, 1.0)
    return len(found), sum([len(message.value or b"") for message in found])


@contextmanager
def _topic(client: Client, given: str | None, queues: int) -> Iterator[str]:
    """Yields the topic to use; a topic that was created here is deleted at the end."""
    if given is not None:
        client.admin.describe_topic(given)
        yield given
        return
    name = f"bench-{secrets.token_hex(4)}"
    client.admin.create_topic(name, queues=queues)
    try:
        yield name
    finally:
        client.admin.delete_topic(name)


def _fill(
    client: Client, topic: str, size: int, total: int, compression: str, told: _Seconds
) -> tuple[int, float]:
    """Sends all messages, waits until they are stored, and returns messages and seconds."""
    import numpy as np

    from semel.protos.arrays import binary_over, buffer_over

    limit = client.admin.describe_topic(topic).settings.message_bytes_max
    if size > limit:
        raise click.UsageError(f"--size {size}: messages of topic {topic} have up to {limit} bytes")
    count = max(1, BLOCK_BYTES // size)
    offsets = buffer_over((np.arange(count + 1) * size).astype(np.int32))
    data = buffer_over(np.random.default_rng().bytes(count * size))
    block = binary_over(count, None, offsets, data)
    left = messages = max(1, total // size)
    began = time.perf_counter()
    with client.producer(compression=compression) as producer:
        while left:
            part = block if left >= count else block.slice(0, left)
            producer.send_many(topic, part)
            left -= len(part)
            told.advance(len(part), len(part) * size)
        producer.flush()
    return messages, time.perf_counter() - began


def _report(
    out: render.Output, bench: str, topic: str, messages: int, size: int, seconds: float
) -> None:
    figures: dict[str, Any] = {
        "bench": bench,
        "topic": topic,
        "messages": messages,
        "bytes": size,
        "seconds": round(seconds, 3),
        "messages_per_second": round(messages / seconds),
        "megabytes_per_second": round(size / seconds / 1e6, 1),
    }
    text = "{messages:,} messages in {seconds:.2f} s: {messages_per_second:,} a second,"
    text += " {megabytes_per_second:,.1f} MB/s"
    out.show(figures, text.format(**figures))
