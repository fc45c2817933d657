"""Transactions of the SDK on topics that compare message ids: each id is stored once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from semel.client import Client, IdDedup

MIB = 1 << 20


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=4, dedup=IdDedup(window_bytes=64 * MIB))
    yield name
    client.admin.delete_topic(name)


def stored(client: Client, topic: str) -> list[tuple[bytes, bytes]]:
    with client.reader(topic, end="latest") as reader:
        return sorted((message.message_id or b"", message.value) for message in reader)


def test_a_commit_drops_what_is_stored_and_says_how_much(client: Client, topic: str) -> None:
    ids = [f"id {number:02}" for number in range(20)]
    with client.producer() as producer:
        for name in ids[:5]:
            producer.send(topic, b"v", message_id=name).result(10)
        with producer.transaction(topic) as t:
            t.send_many(topic, [b"v"] * 8, message_ids=ids[3:11])
            t.send(topic, b"other", message_id=ids[0])
            t.send(topic, b"v", message_id=ids[10])
            t.send(topic, b"no id")
            committed = t.commit()
        assert (committed.messages, committed.duplicates, committed.conflicts) == (11, 3, 1)
        assert producer.send(topic, b"v", message_id=ids[10]).result(10).duplicate
        with producer.transaction(topic) as t:
            t.send_many(topic, [b"v"] * 20, message_ids=ids)
            committed = t.commit()
        assert (committed.messages, committed.duplicates, committed.conflicts) == (20, 11, 0)
    assert stored(client, topic) == [(b"", b"no id"), *((name.encode(), b"v") for name in ids)]


def test_what_is_given_up_binds_nobody(client: Client, topic: str) -> None:
    with client.producer() as producer:
        t = producer.transaction(topic)
        with t:
            t.send(topic, b"v", message_id="1")
            t.abort()
        assert not producer.send(topic, b"v", message_id="1").result(10).duplicate
    assert stored(client, topic) == [(b"1", b"v")]


def test_delayed_messages_of_a_commit_are_known_at_once(client: Client, topic: str) -> None:
    with client.producer() as producer:
        with producer.transaction(topic) as t:
            t.send(topic, b"v", message_id="1", deliver_after=0.5)
        assert producer.send(topic, b"v", message_id="1").result(10).duplicate
        deadline = time.monotonic() + 20
        while not stored(client, topic) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert stored(client, topic) == [(b"1", b"v")]


def test_delayed_messages_of_a_commit_are_found_and_cancelled(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"first", message_id="2").result(10)
        with producer.transaction(topic) as t:
            t.send_many(topic, [b"1", b"first", b"3"], message_ids=["1", "2", "3"])
            t.send(topic, b"later", message_id="4", deliver_after=3_600)
            t.send(topic, b"kept", message_id="5", deliver_after=3_600)
        found = client.admin.find_message(topic, "4")
        assert found is not None
        assert (found.state, found.value) == ("delayed", b"later")
        assert client.admin.cancel(topic, "4").result == "cancelled"
        assert client.admin.cancel(topic, "4").result == "cancelled"
        found = client.admin.find_message(topic, "5")
        assert found is not None
        assert (found.state, found.value) == ("delayed", b"kept")
        assert not producer.send(topic, b"anew", message_id="4").result(10).duplicate
        assert producer.send(topic, b"kept", message_id="5").result(10).duplicate
    assert stored(client, topic) == [
        (b"1", b"1"),
        (b"2", b"first"),
        (b"3", b"3"),
        (b"4", b"anew"),
    ]
    assert client.admin.verify(topic).ok


def test_a_large_commit_stores_each_id_once(client: Client, topic: str) -> None:
    """0.6 % of 150,000 messages are stored already, others come again in later batches, and whole
    batches are duplicates."""
    names = [b"%d" % number for number in range(150_000)]
    known = names[::167]
    with client.producer() as producer:
        producer.send_many(topic, known, message_ids=known).result(30)
        with producer.transaction(topic) as t:
            t.send_many(topic, names, message_ids=names)
            t.send_many(topic, names[:20_000], message_ids=names[:20_000])
            t.send_many(topic, [b"other"] * 100, message_ids=names[30_000:30_100])
            committed = t.commit()
        assert committed.messages == 170_100
        assert committed.duplicates == len(known) + 20_000
        assert committed.conflicts == 100
        with producer.transaction(topic) as t:
            t.send_many(topic, names, message_ids=names)
            again = t.commit()
        assert (again.messages, again.duplicates, again.conflicts) == (150_000, 150_000, 0)
        assert producer.send(topic, names[77], message_id=names[77]).result(10).duplicate
    assert stored(client, topic) == sorted((name, name) for name in names)
    assert client.admin.verify(topic).ok
