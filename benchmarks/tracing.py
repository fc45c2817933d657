"""What tracing costs a client, in processor seconds per message: bulk, one by one, and reading.

How it works. One process has two clients of one cluster, one of which traces with OpenTelemetry's
SDK: every span is sampled, batched and dropped by an exporter that does nothing, so that the
figures are those of the spans and contexts. Both do the same in turn, for a fixed number of
messages, and the processor time of the whole process is counted, its I/O thread included. A round
does it a few times and takes the least: other load of the machine empties caches, and so only ever
adds.

    python -m benchmarks.tracing [--message-bytes 100] [--bulk 200k] [--single 5k]

Not here: what the spans say (docs/decisions/tracing.md).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Contender,
    Target,
    arguments,
    compare,
    number,
    random_values,
    report,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

RETENTION_BYTES = 512 << 20
CALLS = 4
"""Calls of `send_many` for the bulk."""
REPEATS = 5
"""Runs in a round."""


class Nowhere(SpanExporter):
    """Drops spans, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


class Load:
    """The same work for one client."""

    def __init__(self, client: Client, topic: str, values: list[bytes], single: int) -> None:
        self._client = client
        self._topic = topic
        self._column = pa.array(values, pa.binary())
        self._bulk = len(values)
        self._values = values[:single]
        self._producer = client.producer()
        self._start: dict[int, int] = {}

    def run(self) -> Mapping[str, float]:
        """Nanoseconds of processor time for each message, by kind of work."""
        found: list[Mapping[str, float]] = []
        for _ in range(REPEATS):
            self._start = self._ends()
            bulk = _cost(self._send_bulk, self._bulk)
            read = _cost(self._read, self._bulk)
            self._start = self._ends()
            send = _cost(self._send_singly, len(self._values))
            poll = _cost(self._poll, len(self._values))
            figures = {"bulk_ns": bulk, "poll_arrow_ns": read, "send_ns": send, "poll_ns": poll}
            found.append(figures)
        return {name: min(each[name] for each in found) for name in found[0]}

    def _send_bulk(self) -> None:
        step = -(-self._bulk // CALLS)
        for at in range(0, self._bulk, step):
            self._producer.send_many(self._topic, self._column.slice(at, step))
        self._producer.flush(60)

    def _send_singly(self) -> None:
        for value in self._values:
            self._producer.send(self._topic, value)
        self._producer.flush(60)

    def _read(self) -> None:
        with self._client.reader(self._topic, start=self._start, end="latest") as reader:
            while not reader.finished:
                reader.poll_arrow(5)

    def _poll(self) -> None:
        with self._client.reader(self._topic, start=self._start, end="latest") as reader:
            while not reader.finished:
                for message in reader.poll(500, 5):
                    _ = message.value

    def _ends(self) -> dict[int, int]:
        with self._client.reader(self._topic, start="latest") as reader:
            return dict(reader.positions())


def _cost(work: Callable[[], None], count: int) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / count


def main() -> int:
    """Command line."""
    parser = arguments("Measure what tracing costs a client.")
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=100)
    parser.add_argument("--bulk", type=number(1, 10_000_000), default=200_000)
    parser.add_argument("--single", type=number(1, 1_000_000), default=5_000)
    options = parser.parse_args()
    values = random_values(options.bulk, options.message_bytes)
    provider, dropped = TracerProvider(shutdown_on_exit=False), Nowhere()
    provider.add_span_processor(BatchSpanProcessor(dropped))
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", brokers=1) as cluster,
        connect(cluster.bootstrap) as plain,
        connect(cluster.bootstrap, tracing=provider) as traced,
    ):
        loads = {}
        for name, client in (("plain", plain), ("traced", traced)):
            client.admin.create_topic(name, queues=4, retention_bytes=RETENTION_BYTES)
            loads[name] = Load(client, name, values, options.single)
        comparison = compare(
            f"Tracing: {options.message_bytes:,} B messages, {options.bulk:,} in bulk,"
            f" {options.single:,} one by one; nanoseconds of processor time a message",
            [Contender(name=name, run=load.run) for name, load in loads.items()],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[Target(contender="traced", metric="bulk_ns", at_most=1.05, of="plain")],
        )
    print(f"{dropped.count:,} spans")
    provider.shutdown()
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
