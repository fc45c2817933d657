"""Consume throughput from a warm log: columns and single messages, beside the floor's reads.

How it works. Two topics are filled once, one with 1 KiB and one with 100 B messages, and read once
in the warm-up round, so that all later rounds read from the brokers' page cache. Every round reads
a whole topic from its start with a consumer group of its own, or with a reader. The floor streams
bytes from its master's cached file.

    python -m benchmarks.consume [--columns-bytes 256m] [--messages 1m]

Not here: how the log got there (`produce.py`).
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping

from benchmarks.floor import NODE_FILE_BYTES, Floor
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

COLUMNS_TOPIC = "consume-columns"
MESSAGES_TOPIC = "consume-messages"
COLUMNS_MESSAGE_BYTES = 1 << 10
SMALL_MESSAGE_BYTES = 100
CALL_MESSAGES = 4_096
POLL_SECONDS = 10.0


def fill(client: Client, topic: str, message_bytes: int, count: int) -> int:
    """Stores `count` messages, rounded up to whole calls; returns their number."""
    values = random_values(CALL_MESSAGES, message_bytes)
    calls = -(-count // CALL_MESSAGES)
    client.admin.create_topic(topic, queues=4)
    with client.producer() as producer:
        for _ in range(calls):
            producer.send_many(topic, values)
        producer.flush(300)
    return calls * CALL_MESSAGES


class Loads:
    """Two full topics, and ways to read them."""

    def __init__(self, client: Client, columns_bytes: int, messages: int) -> None:
        self._client = client
        self._groups = itertools.count()
        self._columns_count = fill(
            client, COLUMNS_TOPIC, COLUMNS_MESSAGE_BYTES, columns_bytes // COLUMNS_MESSAGE_BYTES
        )
        self._messages_count = fill(client, MESSAGES_TOPIC, SMALL_MESSAGE_BYTES, messages)

    def consumer_columns(self) -> Mapping[str, float]:
        """Reads with `consumer.poll_arrow` and commits at the end."""
        with self._client.consumer(f"columns-{next(self._groups)}", [COLUMNS_TOPIC]) as consumer:
            start, count, volume = 0.0, 0, 0
            while count < self._columns_count:
                batch = consumer.poll_arrow(POLL_SECONDS)
                assert batch is not None, f"{count} of {self._columns_count} messages came"
                # The group's first assignment is not part of the measured time.
                start = start or time.perf_counter()
                count += batch.num_rows
                volume += batch.num_rows * COLUMNS_MESSAGE_BYTES
            elapsed = time.perf_counter() - start
            consumer.commit()
        return {"mb_s": volume / elapsed / 1e6, "messages_s": count / elapsed}

    def reader_columns(self) -> Mapping[str, float]:
        """Reads with `reader.poll_arrow`, without a group."""
        start, count = time.perf_counter(), 0
        with self._client.reader(COLUMNS_TOPIC) as reader:
            while count < self._columns_count:
                batch = reader.poll_arrow(POLL_SECONDS)
                assert batch is not None, f"{count} of {self._columns_count} messages came"
                count += batch.num_rows
        elapsed = time.perf_counter() - start
        return {
            "mb_s": count * COLUMNS_MESSAGE_BYTES / elapsed / 1e6,
            "messages_s": count / elapsed,
        }

    def consumer_messages(self) -> Mapping[str, float]:
        """Reads with `for message in consumer`, looks at every value, and commits at the end."""
        with self._client.consumer(f"messages-{next(self._groups)}", [MESSAGES_TOPIC]) as consumer:
            start, count, volume = 0.0, 0, 0
            for message in consumer:
                if not count:
                    start = time.perf_counter()
                volume += len(message.value)
                count += 1
                if count == self._messages_count:
                    break
            elapsed = time.perf_counter() - start
            consumer.commit()
        return {"mb_s": volume / elapsed / 1e6, "messages_s": count / elapsed}


def main() -> int:
    """Command line."""
    parser = arguments("Measure consumers and readers on a warm log.", seconds=1.0)
    parser.add_argument(
        "--columns-bytes",
        type=number(1 << 20, 1 << 36),
        default=256 << 20,
        help="of 1 KiB messages",
    )
    parser.add_argument(
        "--messages", type=number(1, 1 << 30), default=1 << 20, help="of 100 B, read one by one"
    )
    options = parser.parse_args()
    stored = options.columns_bytes + options.messages * SMALL_MESSAGE_BYTES
    require_disk(parser, options.data, 4 * NODE_FILE_BYTES + 4 * stored)
    with (
        temporary_directory(options.data) as data,
        Floor(data) as floor,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        loads = Loads(client, options.columns_bytes, options.messages)
        comparison = compare(
            f"Consume: a warm log of {options.columns_bytes >> 20:,} MiB in 1 KiB messages and "
            f"{options.messages:,} messages of 100 B",
            [
                Contender(name="floor", run=lambda: floor.read(256 << 10, options.seconds)),
                Contender(name="consumer.poll_arrow", run=loads.consumer_columns),
                Contender(name="reader.poll_arrow", run=loads.reader_columns),
                Contender(name="for message in consumer", run=loads.consumer_messages),
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender="consumer.poll_arrow", metric="mb_s", at_least=300),
                Target(contender="for message in consumer", metric="messages_s", at_least=300_000),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
