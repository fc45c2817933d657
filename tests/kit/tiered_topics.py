"""A tier with two topics, as brokers would have left it, for tests of its readers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import (
    OffsetRange,
    Store,
    add_files,
    claim,
    no_manifest,
    publish,
    put_change,
    put_rows,
    put_topic,
    rows_of,
    trim,
)
from tests.kit.tier_rows import random_rows

CLUSTER = "test-cluster"
ORDERS = TopicId(0x7000_0000_0000_0007)
AUDIT = TopicId(8)


def rows_of_queue(queue: QueueKey) -> pa.Table:
    """What the log had of a queue; topic "audit" is compacted."""
    seed = queue.topic_id % 97 + queue.queue_id
    return rows_of(random_rows(seed, 120, compacted=queue.topic_id == AUDIT))


def fill(store: Store) -> None:
    """Puts topic "orders", of two queues, the second without its first 33 rows, and the compacted
    topic "audit"."""
    claim(store, CLUSTER)
    put_topic(store, CLUSTER, "orders", ORDERS)
    put_topic(store, CLUSTER, "audit", AUDIT)
    for topic, key, start in places():
        rows = rows_of_queue(key)
        manifest = no_manifest(CLUSTER, topic, key, 0)
        for at in range(0, rows.num_rows, 200):
            part = rows.slice(at, 200)
            covers = OffsetRange(manifest.end, part["offset"][-1].as_py() + 1)
            change = add_files(manifest, [put_rows(store, CLUSTER, key, part, covers)])
            publish(store, put_change(store, change))
            manifest = change.manifest
        if start:
            publish(store, put_change(store, trim(manifest, start)))


def places() -> Iterator[tuple[str, QueueKey, int]]:
    """Topic, queue and first offset of everything."""
    yield "orders", QueueKey(ORDERS, QueueId(0)), 0
    yield "orders", QueueKey(ORDERS, QueueId(1)), 33
    yield "audit", QueueKey(AUDIT, QueueId(0)), 0


def expected(*topics: str) -> list[dict[str, object]]:
    """The rows that a reader gets of some topics, with topic and queue, in no order."""
    return [
        {"topic": topic, "queue": key.queue_id, **row}
        for topic, key, start in places()
        if topic in topics
        for row in rows_of_queue(key).slice(start).to_pylist()
    ]
