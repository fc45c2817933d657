"""Topics that compare message ids, through the SDK: each id is stored once, and all are told."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from semel.client import Client, IdDedup, RetryPolicy, connect_async
from semel.protos.errors import IdConflict
from tests.kit.cluster import Cluster
from tests.kit.consuming import take

MIB = 1 << 20


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=1, dedup=IdDedup(window_bytes=MIB))
    yield name
    client.admin.delete_topic(name)


def stored(client: Client, topic: str) -> list[bytes]:
    with client.reader(topic, end="latest") as reader:
        return [message.value for message in reader]


def test_a_known_id_is_a_duplicate_with_the_place_of_the_first(client: Client, topic: str) -> None:
    with client.producer() as one, client.producer() as two:
        first = one.send(topic, b"a", message_id="1").result(10)
        assert (first.offset, first.duplicate, first.due_us) == (0, False, 0)
        again = two.send(topic, b"a", message_id="1").result(10)
        assert (again.queue, again.offset, again.duplicate) == (first.queue, 0, True)
        assert two.send(topic, b"b", message_id="2").result(10).offset == 1
        assert two.send(topic, b"no id").result(10).offset == 2
        stats = two.stats
        assert (stats.stored, stats.duplicates, stats.failed) == (2, 1, 0)
    assert stored(client, topic) == [b"a", b"b", b"no id"]


def test_a_conflict_fails_alone_and_the_others_have_their_real_offsets(
    client: Client, topic: str
) -> None:
    with client.producer(linger_ms=200) as producer:
        producer.send(topic, b"a", message_id="1").result(10)
        ids = ["2", "1", "3", "1", "4", "4"]
        values = [b"b", b"other", b"c", b"a", b"d", b"d"]
        sent = [
            producer.send(topic, value, message_id=message_id)
            for value, message_id in zip(values, ids, strict=True)
        ]
        with pytest.raises(IdConflict) as caught:
            sent[1].result(10)
        assert (caught.value.message_id, caught.value.offset) == (b"1", 0)
        assert [sent[at].result(10).offset for at in (0, 2, 3, 4, 5)] == [1, 2, 0, 3, 3]
        assert [sent[at].result(10).duplicate for at in (0, 2, 3, 4, 5)] == [
            *(False, False, True, False, True)
        ]
        producer.flush()  # the conflict was told
        producer.send(topic, b"untold", message_id="1")
        with pytest.raises(IdConflict):
            producer.flush()
        assert producer.stats.conflicts == 2
    assert stored(client, topic) == [b"a", b"b", b"c", b"d"]


def test_bulk_results_count_and_name_rows(client: Client, topic: str) -> None:
    with client.producer(batch_bytes=2_000) as producer:
        ids = [b"%d" % number for number in range(1_000)]
        values = [b"v%d" % number for number in range(1_000)]
        summary = producer.send_many(topic, values, message_ids=ids).result(30)
        assert (summary.stored, summary.duplicates, summary.conflicts) == (1_000, 0, 0)
        ids[10:20] = [b"new %d" % number for number in range(10)]
        values[500] = values[700] = b"other"
        summary = producer.send_many(topic, values, message_ids=ids).result(30)
        assert (summary.stored, summary.duplicates, summary.conflicts) == (10, 988, 2)
        assert summary.conflict_rows.tolist() == [500, 700]
        expected = [*range(10), *range(20, 500), *range(501, 700), *range(701, 1_000)]
        assert summary.duplicate_rows.tolist() == expected
        producer.flush()
    assert len(stored(client, topic)) == 1_010


async def test_asyncio_and_delayed_messages(topic: str, shared_cluster: Cluster) -> None:
    due_us = (int(time.time()) + 3600) * 1_000_000
    async with connect_async(shared_cluster.bootstrap) as aio, aio.producer() as producer:
        first = await producer.send(topic, b"later", message_id="1", deliver_at=due_us)
        assert (first.offset, first.duplicate) == (-1, False)
        again = await producer.send(topic, b"later", message_id="1")
        assert (again.offset, again.duplicate, again.due_us) == (-1, True, due_us)
        with pytest.raises(IdConflict) as caught:
            await producer.send(topic, b"other", message_id="1")
        assert (caught.value.offset, caught.value.due_us) == (-1, due_us)
        summary = await (
            await producer.send_many(topic, [b"later", b"x", b"y"], message_ids=["1", "2", "2"])
        )
        assert (summary.stored, summary.duplicates, summary.conflicts) == (1, 1, 1)


def test_verify_counts_ids_too(client: Client, topic: str) -> None:
    with client.producer() as producer:
        for _ in range(2):
            ids = [f"id {number}" for number in range(50)]
            producer.send_many(topic, [b"v"] * 50, message_ids=ids).result(10)
    found = client.admin.verify(topic)
    assert (found.ok, found.messages, found.id_duplicates) == (True, 50, 0)
    assert found.as_dict()["id_duplicates"] == 0


def test_ids_are_known_through_splits(client: Client, topic: str) -> None:
    ids, values = [f"id {n}" for n in range(300)], [b"%d" % n for n in range(300)]
    with client.producer() as producer:
        producer.send_many(topic, values[:200], message_ids=ids[:200]).result(10)
        client.admin.alter_topic(topic, queues=3)
        summary = producer.send_many(topic, values, message_ids=ids).result(30)
        assert (summary.stored, summary.duplicates, summary.conflicts) == (100, 200, 0)
        assert summary.duplicate_rows.tolist() == list(range(200))
        again = producer.send(topic, values[250], message_id=ids[250]).result(10)
        assert again.duplicate
        queues = {queue.queue: queue for queue in client.admin.describe_topic(topic).queues}
        assert again.offset < queues[again.queue].log_end_offset
        assert sum(not queue.sealed and queue.messages > 10 for queue in queues.values()) == 3
    assert sorted(stored(client, topic)) == sorted(values)
    assert client.admin.verify(topic).ok


def test_a_dead_letter_comes_back_although_its_id_is_known(client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"a", message_id="1").result(10)
    with client.consumer("ids", topic, retry=RetryPolicy(steps_ms=(200,))) as consumer:
        (message,) = take(consumer, 1)
        consumer.reject(message, "no")
        consumer.commit()
    (letter,) = client.admin.dead_letters("ids")
    assert letter.value == b"a"
    assert client.admin.redrive("ids.dead-letters", to="origin").redriven == 1
    with client.reader(topic, end="latest") as reader:
        found = [(message.value, message.message_id) for message in reader]
    assert found == [(b"a", b"1"), (b"a", None)]


def test_the_first_may_be_kept_of_a_conflict(client: Client, topic: str) -> None:
    client.admin.alter_topic(topic, dedup=IdDedup(window_bytes=MIB, on_conflict="keep-first"))
    with client.producer() as producer:
        producer.send(topic, b"a", message_id="1").result(10)
        assert producer.send(topic, b"other", message_id="1").result(10).duplicate
    client.admin.alter_topic(topic, dedup="off")
    with client.producer() as producer:
        assert not producer.send(topic, b"other", message_id="1").result(10).duplicate
    assert stored(client, topic) == [b"a", b"other"]


def test_source_positions_go_on_behind_conflicts(client: Client, topic: str) -> None:
    with client.producer("ids", source_positions=True) as producer:
        ids, values = ["1", "1", "1", "2"], [b"a", b"other", b"a", b"b"]
        summary = producer.send_many(topic, values, positions=[3, 5, 9, 11], message_ids=ids)
        found = summary.result(10)
        assert (found.stored, found.duplicates, found.conflicts) == (2, 1, 1)
        assert found.conflict_rows.tolist() == [1]
        last = producer.send(topic, b"b", position=20, message_id="2").result(10)
        assert (last.offset, last.sequence, last.duplicate) == (1, 20, True)
        assert producer.last_sequence(topic) == 20
    assert stored(client, topic) == [b"a", b"b"]
