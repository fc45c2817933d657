"""Measures what is left of a compacted topic, and how fast it is read, by the size of batches.

How it works. The same updates, of random keys, go to one topic after another, each in batches of
another size; a topic of its own has only the newest value of each key, in large batches: as much as
could be won by joining what is left. Each topic is compacted once, and read from its start to its
end. Ten updates a key are enough: nearly all newest values are among the last ten times as many
messages as there are keys, and of what is before a mark is left.

    python -m benchmarks.compacted [--updates 100000] [--keys 10000] [--rounds 5]

Not here: what a pass costs.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, Compaction, connect
from tests.kit.cluster import Cluster

VALUE_BYTES: Final = 100
ROW_BYTES: Final = 120
"""About what a message has in a batch."""
CALL_MESSAGES: Final = 5_000
SIZES: Final = (1, 10, 100)
FLAGS: Final = ("--compaction-check-ms", "200", "--compaction-bytes-per-second", "1073741824")
NEWEST: Final = "newest"


def fill(client: Client, topic: str, keys: list[bytes], batch_messages: int) -> None:
    """Stores one message for each of the keys, and waits until the topic is compacted."""
    client.admin.create_topic(topic, queues=1)
    values = random_values(CALL_MESSAGES, VALUE_BYTES)
    with client.producer(batch_bytes=max(1, (batch_messages - 1) * ROW_BYTES)) as producer:
        for at in range(0, len(keys), CALL_MESSAGES):
            called = keys[at : at + CALL_MESSAGES]
            producer.send_many(topic, values[: len(called)], keys=called)
            producer.flush(3_600)
    client.admin.alter_topic(topic, compaction=Compaction())
    if len(set(keys)) == len(keys):
        return
    before = size_of(client, topic)
    while size_of(client, topic) == before:
        time.sleep(0.2)
    while (now := size_of(client, topic)) != before:
        before = now
        time.sleep(2)


def size_of(client: Client, topic: str) -> int:
    """Bytes of all batches of a topic."""
    return sum(queue.bytes for queue in client.admin.describe_topic(topic).queues)


def read(client: Client, topic: str, keys: int) -> Mapping[str, float]:
    """Reads a whole topic as columns, without a group."""
    start, tables = time.perf_counter(), list[pa.RecordBatch]()
    with client.reader(topic, end="latest") as reader:
        while not reader.finished:
            batch = reader.poll_arrow(5)
            tables += [batch] if batch is not None else []
    elapsed = time.perf_counter() - start
    assert sum(len(batch) for batch in tables) == keys
    return {
        "mib": size_of(client, topic) / (1 << 20),
        "ms": elapsed * 1e3,
        "us_a_key": elapsed / keys * 1e6,
    }


def main() -> int:
    """Command line."""
    parser = arguments("Measure what is left of a compacted topic, by the size of its batches.")
    parser.add_argument("--updates", type=number(1, 1 << 30), default=100_000, help="messages")
    parser.add_argument("--keys", type=number(1, 1 << 24), default=10_000, help="of them")
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * 400 * options.updates)
    chance = random.Random(1)
    keys = [b"%08d" % number for number in range(options.keys)]
    updates = [*keys, *chance.choices(keys, k=options.updates - len(keys))]
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        cluster = stack.enter_context(
            Cluster(data / "cluster", brokers=1, broker_flags=list(FLAGS))
        )
        client = stack.enter_context(connect(cluster.bootstrap))
        topics = {NEWEST: f"{options.keys:,} keys, written once"}
        fill(client, NEWEST, keys, 10_000)
        for size in SIZES:
            topics[f"of-{size}"] = f"batches of {size}"
            fill(client, f"of-{size}", updates, size)
        comparison = compare(
            f"A topic of {options.updates:,} updates of {options.keys:,} keys, once it is"
            f" compacted, with values of {VALUE_BYTES} B",
            [
                Contender(name=name, run=functools.partial(read, client, topic, options.keys))
                for topic, name in topics.items()
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
