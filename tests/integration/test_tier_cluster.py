"""What a real cluster stores becomes a tier, and cold batches of it read like the log."""

from __future__ import annotations

import time
from pathlib import Path

from semel.client import Client
from semel.client.message import Message, Rows
from semel.protos.batch import decode_broker_header
from semel.tier import (
    QueueReader,
    StoredRows,
    Wanted,
    add_rows,
    claim,
    cold_batches,
    digest_of,
    newest_pointer,
    no_manifest,
    open_store,
    publish,
    put_change,
    read_manifest,
    rows_of,
)

MESSAGES = 700


def produce(client: Client, topic: str) -> None:
    """Messages of every kind: by several producers, in transactions, delayed, with everything."""
    with client.producer("first", compression="zstd") as producer:
        for number in range(100):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("n", b"%d" % number)])
        producer.send_many(topic, [b"many" * 50] * 300, keys=[b"%d" % n for n in range(300)])
        producer.send(topic, b"later", deliver_at=time.time_ns() // 1_000 + 1_500_000)
        producer.flush(30)
    with client.producer() as producer:
        producer.send_many(topic, [b"own"] * 198, message_ids=[b"id%d" % n for n in range(198)])
        producer.flush(30)
    with client.producer() as producer:
        with producer.transaction("copy") as transaction:
            for number in range(100):
                transaction.send(topic, b"t%d" % number)
        producer.send(topic, b"last").result(30)


def read(client: Client, topic: str) -> list[Message]:
    with client.reader(topic) as reader:
        found: list[Message] = []
        while len(found) < MESSAGES:
            found += reader.poll(timeout=5)
        return found


def told(messages: list[Message]) -> list[tuple[object, ...]]:
    return [
        (m.offset, m.key, m.value, m.headers, m.timestamp_us, m.message_id, m.sequence)
        for m in messages
    ]


def test_the_tier_of_a_cluster_says_what_the_cluster_says(client: Client, tmp_path: Path) -> None:
    client.admin.create_topic("tiered", queues=1)
    produce(client, "tiered")
    messages = read(client, "tiered")
    pieces: list[StoredRows] = []
    append_us = 0
    for rows in dict.fromkeys(message._rows for message in messages):
        append_us = max(append_us, decode_broker_header(rows._stored).append_time_us)
        pieces.append(
            StoredRows(
                bytes(rows._stored),
                rows.base_offset,
                rows.row_start,
                rows.row_start + rows.count,
                append_us,
            )
        )
    queue = messages[0]._rows.queue
    table = rows_of(pieces)
    assert table.num_rows == MESSAGES

    store = open_store(f"file://{tmp_path}")
    claim(store, "c")
    publish(store, put_change(store, add_rows(store, no_manifest("c", "tiered", queue, 0), table)))
    pointer = newest_pointer(store, "c", queue)
    assert pointer is not None
    reader = QueueReader(store, read_manifest(store, pointer))
    (cold,) = reader.rows(Wanted(start=0, end=MESSAGES))
    assert digest_of(cold) == digest_of(table)
    again = [
        message
        for batch in cold_batches(queue, cold, (0, MESSAGES))
        for message in Rows(
            "tiered", queue, memoryview(batch.stored), batch.base_offset, 0, batch.offset_count
        ).messages()
    ]
    assert told(again) == told(messages)
