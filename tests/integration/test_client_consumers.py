"""Consumer groups against a real cluster: assignment, locks, commits, redelivery."""

from __future__ import annotations

import threading

import pytest

from semel.client import Client, Consumer, Message
from semel.protos.errors import Closed, InvalidRequest, LockLost, OffsetOutOfRange, UnknownTopic
from tests.kit.consuming import fill, take, values_of
from tests.kit.waiting import until


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.admin.create_topic(name, queues=4)
    return name


def test_what_is_committed_is_not_delivered_again(client: Client, topic: str) -> None:
    values = fill(client, topic, 400)
    with client.consumer("again", [topic]) as consumer:
        assert consumer.poll(max_messages=0, timeout=0) == []
        first = take(consumer, 400)
        assert values_of(first) == values
        consumer.commit()
        assert consumer.poll(timeout=0.1) == []
    more = fill(client, topic, 40, first=400)
    with client.consumer("again", [topic]) as consumer:
        assert values_of(take(consumer, 40)) == more
    # Not committed, so delivered again.
    with client.consumer("again", topic) as consumer:
        assert values_of(take(consumer, 40)) == more
    described = client.admin.describe_group("again")
    assert described.lag == 40
    assert "again" in client.admin.list_groups()


def test_an_iteration_commits_what_was_given_out(client: Client, topic: str) -> None:
    fill(client, topic, 100)
    seen: list[bytes] = []
    with client.consumer("iterate", [topic]) as consumer:
        for message in consumer:
            seen.append(message.value)
            if len(seen) == 30:
                break
        consumer.commit()
        for message in consumer:
            seen.append(message.value)
            consumer.commit(message)
            if len(seen) == 60:
                break
    with client.consumer("iterate", [topic]) as consumer:
        seen += [message.value for message in take(consumer, 40)]
    assert sorted(seen) == [b"%06d" % number for number in range(100)]


def test_two_members_share_and_the_survivor_takes_over(client: Client, topic: str) -> None:
    values = fill(client, topic, 400)
    seen: list[Message] = []
    lock = threading.Lock()
    stop = threading.Event()

    def consume(consumer: Consumer) -> None:
        while not stop.is_set():
            try:
                messages = consumer.poll(timeout=0.1)
                consumer.commit()
            except (LockLost, Closed):
                continue
            with lock:
                seen.extend(messages)

    one = client.consumer("share", [topic], session_ms=3_000)
    thread_one = threading.Thread(target=consume, args=(one,))
    thread_one.start()
    until(lambda: len(one.assignment()) == 4)
    until(lambda: len(seen) == 400)
    two = client.consumer("share", [topic], session_ms=3_000)
    thread_two = threading.Thread(target=consume, args=(two,))
    thread_two.start()
    until(lambda: len(one.assignment()) == 2 and len(two.assignment()) == 2)
    assert sorted(one.assignment() + two.assignment()) == [(topic, queue) for queue in range(4)]
    members = client.admin.describe_group("share").members
    assert {member.member_id for member in members} == {one.member_id, two.member_id}
    more = fill(client, topic, 400, first=400)
    until(lambda: len(seen) == 800)
    one.close()
    until(lambda: len(two.assignment()) == 4)
    even_more = fill(client, topic, 400, first=800)
    until(lambda: len(seen) == 1_200)
    stop.set()
    thread_one.join()
    thread_two.join()
    two.close()
    assert values_of(seen) == values + more + even_more
    assert client.admin.describe_group("share").lag == 0


def test_a_member_that_does_not_commit_loses_its_queues(client: Client, topic: str) -> None:
    values = fill(client, topic, 40)
    with client.consumer("slow", [topic], lock_ms=1_000) as slow:
        delivered = take(slow, 40)
        until(lambda: slow.poll(timeout=0.1))
        with pytest.raises(LockLost):
            slow.commit(delivered[0])
        again = take(slow, 1)
        slow.commit(again[-1])
    assert values_of(delivered) == values


def test_a_reset_fences_the_running_member(client: Client, topic: str) -> None:
    values = fill(client, topic, 40)
    with client.consumer("reset", [topic]) as consumer:
        delivered = take(consumer, 40)
        consumer.commit()
        offsets = client.admin.reset_offsets("reset", topic, "earliest")
        assert offsets == dict.fromkeys(range(4), 0)
        assert values_of(take(consumer, 40)) == values
        assert delivered


def test_seek_pause_and_position(client: Client, topic: str) -> None:
    fill(client, topic, 40)
    with client.consumer("seek", [topic]) as consumer:
        take(consumer, 40)
        assert consumer.position(topic, 0) == 10
        consumer.commit()
        consumer.seek(topic, 0, 7)
        assert [message.offset for message in take(consumer, 3)] == [7, 8, 9]
        consumer.pause(topic, 1)
        fill(client, topic, 8, first=40)
        assert {message.queue for message in take(consumer, 6)} == {0, 2, 3}
        assert consumer.poll(timeout=0.3) == []
        consumer.resume(topic, 1)
        assert [message.queue for message in take(consumer, 2)] == [1, 1]
        with pytest.raises(InvalidRequest):
            consumer.seek(topic, 9, 0)
        with pytest.raises(InvalidRequest):
            consumer.seek(topic, 0, -1)


def test_where_a_new_group_begins(client: Client, topic: str) -> None:
    fill(client, topic, 40)
    with client.consumer("late", [topic], auto_offset_reset="latest") as late:
        until(lambda: len(late.assignment()) == 4)
        assert late.poll(timeout=0.2) == []
        fill(client, topic, 4, first=40)
        assert values_of(take(late, 4)) == [b"%06d" % number for number in range(40, 44)]
    with (
        client.consumer("strict", [topic], auto_offset_reset="error") as strict,
        pytest.raises(OffsetOutOfRange, match="never committed"),
    ):
        take(strict, 1)


def test_columns_come_out_of_a_group(client: Client, topic: str) -> None:
    fill(client, topic, 400)
    with client.consumer("columns", [topic]) as consumer:
        count = 0
        while count < 400:
            batch = consumer.poll_arrow(5)
            assert batch is not None
            assert batch.column("topic").to_pylist() == [topic] * batch.num_rows
            count += batch.num_rows
        consumer.commit()
        assert consumer.poll_arrow(0.1) is None
    assert client.admin.describe_group("columns").lag == 0


def test_a_group_that_is_left_can_be_deleted(client: Client, topic: str) -> None:
    fill(client, topic, 4)
    with client.consumer("gone", [topic]) as consumer:
        take(consumer, 4)
        consumer.commit()
        with pytest.raises(InvalidRequest):
            client.admin.delete_group("gone")
    client.admin.delete_group("gone")
    assert "gone" not in client.admin.list_groups()


def test_wrong_consumers_are_refused(client: Client) -> None:
    with pytest.raises(UnknownTopic):
        client.consumer("g", ["nowhere"])
    with pytest.raises(InvalidRequest):
        client.consumer("", ["t"])
    with pytest.raises(InvalidRequest):
        client.consumer("g", [])
    with pytest.raises(InvalidRequest, match="auto_offset_reset"):
        client.consumer("g", ["t"], auto_offset_reset="first")
