"""Room in a second, on a real cluster: what the receipt tells, what is refused, what goes on."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from semel.client import Client, DueInSecond, connect, connect_async
from semel.protos.errors import DelayThrottled, InvalidRequest, Throttled
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until

HOUR_S = 3_600


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.originalname)
    client.admin.create_topic(name, queues=4, delay_per_second_max=10)
    return name


def due_in(seconds: int) -> int:
    """Microseconds since 1970 of a whole second, so many ahead."""
    return (int(time.time()) + seconds) * 1_000_000


def test_the_receipt_tells_what_is_due_in_the_second(client: Client, topic: str) -> None:
    due_us = due_in(HOUR_S)
    with client.producer() as producer:
        first = producer.send(topic, b"one", deliver_at=due_us, queue=0).result(10)
        second = producer.send(topic, b"two", deliver_at=due_us, queue=3).result(10)
        other = producer.send(topic, b"far", deliver_at=due_us + 1_000_000).result(10)
        plain = producer.send(topic, b"now").result(10)
    assert first.due_in_second is not None
    size = first.due_in_second.bytes
    assert size > 100
    assert first.due_in_second == DueInSecond(1, size)
    assert second.due_in_second == DueInSecond(2, 2 * size)
    assert other.due_in_second == DueInSecond(1, size)
    assert plain.due_in_second is None


async def test_asyncio_tells_it_too(client: Client, topic: str, shared_cluster: Cluster) -> None:
    due_us = due_in(HOUR_S)
    async with (
        await connect_async(shared_cluster.bootstrap) as other,
        other.producer() as producer,
    ):
        found = await producer.send(topic, b"one", deliver_at=due_us)
        assert found.due_in_second is not None
        assert found.due_in_second.messages == 1
        await producer.send_many(topic, [b"x"] * 9, deliver_at=due_us)
        with pytest.raises(DelayThrottled):
            await producer.send(topic, b"eleventh", deliver_at=due_us)
        assert (await producer.send(topic, b"now")).offset >= 0


def test_a_message_too_many_fails_at_once_and_the_producer_goes_on(
    client: Client, topic: str
) -> None:
    due_us = due_in(HOUR_S)
    with client.producer() as producer:
        full = producer.send_many(topic, [b"%d" % n for n in range(10)], deliver_at=due_us)
        assert full.result(10).stored == 10
        began = time.monotonic()
        futures = [
            producer.send(topic, b"%d" % n, deliver_at=due_us if n % 3 else None, queue=0)
            for n in range(30)
        ]
        producer_errors = [each.exception(20) for each in futures]
        assert time.monotonic() - began < 15, "nobody waits for room that time does not make"
    refused = [n for n, error in enumerate(producer_errors) if error is not None]
    assert refused == [n for n in range(30) if n % 3]
    error = producer_errors[1]
    assert isinstance(error, DelayThrottled)
    assert isinstance(error, Throttled)
    assert (error.due_us, error.due_messages, error.due_messages_max) == (due_us, 10, 10)
    with client.reader(topic, end="latest") as reader:
        assert [m.value for m in reader] == [b"%d" % n for n in range(30) if not n % 3]
    found = client.admin.delay_stats(topic)
    assert found.messages == 10
    assert client.admin.verify(topic).ok


def test_room_comes_back_when_the_limit_rises_and_when_it_is_lifted(
    client: Client, topic: str
) -> None:
    due_us = due_in(HOUR_S)
    with client.producer() as producer:
        with pytest.raises(DelayThrottled):
            producer.send_many(topic, [b"x"] * 11, deliver_at=due_us, keys=[b"k"] * 11).result(10)
        settings = client.admin.alter_topic(topic, delay_per_second_max=11)
        assert settings.delay_per_second_max == 11
        sent = producer.send_many(topic, [b"x"] * 11, deliver_at=due_us, keys=[b"k"] * 11)
        assert sent.result(10).stored == 11
        with pytest.raises(DelayThrottled):
            producer.send(topic, b"x", deliver_at=due_us).result(10)
        assert client.admin.alter_topic(topic, delay_per_second_max=-1).delay_per_second_max == -1
        producer.send(topic, b"x", deliver_at=due_us).result(10)


def test_a_transaction_without_room_is_not_committed(client: Client, topic: str) -> None:
    due_us = due_in(HOUR_S)
    with client.producer() as producer:
        producer.send_many(topic, [b"x"] * 5, deliver_at=due_us).result(10)
        began = time.monotonic()
        too_many = producer.transaction("full")
        too_many.__enter__()
        too_many.send_many(topic, [b"y"] * 6, deliver_at=due_us)
        too_many.send(topic, b"at once")
        with pytest.raises(DelayThrottled):
            too_many.commit()
        assert time.monotonic() - began < 15
        with producer.transaction("full") as t:
            t.send_many(topic, [b"y"] * 5, deliver_at=due_us)
            t.send(topic, b"at once")
        assert t.committed
    assert client.admin.delay_stats(topic).messages == 10
    with client.reader(topic, end="latest") as reader:
        assert [m.value for m in reader] == [b"at once"]


def test_the_console_sets_shows_and_lifts_the_limit(shared_cluster: Cluster) -> None:
    semel = Console(shared_cluster.bootstrap)
    semel.json("topic", "create", "limited", "--delay-per-second-max", "2")
    shown = semel.json("topic", "describe", "limited")
    assert shown["settings"]["delay_per_second_max"] == 2
    assert (
        "at most 2 messages due in one second"
        in semel("topic", "describe", "limited").stdout.decode()
    )
    due = ("--deliver-at", "2030-01-01T00:00:00Z")
    told = semel.fails("produce", "limited", *due, stdin=b"a\nb\nc\n")
    assert "no room for 3 more" in told
    assert "2030-01-01 00:00:00" in told
    assert semel.json("produce", "limited", *due, stdin=b"a\nb\n")["stored"] == 2
    altered = semel.json("topic", "alter", "limited", "--delay-per-second-max", "none")
    assert altered["settings"]["delay_per_second_max"] == -1


def test_groups_share_the_limit_by_their_slots(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("two-groups")
    with Cluster(data, groups=2, brokers=1) as two, connect(two.bootstrap) as client:
        client.admin.create_topic("halves", queues=2, delay_per_second_max=10)
        owners = {queue.group for queue in client.admin.describe_topic("halves").queues}
        assert len(owners) == 2
        due_us = due_in(HOUR_S)
        with client.producer() as producer:
            for queue in (0, 1):
                for count in range(1, 6):
                    found = producer.send("halves", b"x", queue=queue, deliver_at=due_us).result(10)
                    assert found.due_in_second is not None
                    assert found.due_in_second.messages == count
                with pytest.raises(DelayThrottled) as raised:
                    producer.send("halves", b"x", queue=queue, deliver_at=due_us).result(10)
                assert raised.value.due_messages_max == 5


def test_limits_that_are_no_numbers_are_refused(client: Client, topic: str) -> None:
    for wrong in (0, -2, 1.5):
        with pytest.raises(InvalidRequest):
            client.admin.alter_topic(topic, delay_per_second_max=wrong)  # type: ignore[arg-type]
    with client.producer() as producer:
        later = producer.send(topic, b"x", deliver_after=timedelta(hours=1)).result(10)
        assert later.due_in_second is not None


def test_a_queue_that_moves_takes_its_part_of_the_limit_along(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("moving")
    with Cluster(data, groups=2, brokers=1) as two, connect(two.bootstrap) as client:
        client.admin.create_topic("moving", queues=2, delay_per_second_max=10)
        groups = {
            queue.queue: queue.group for queue in client.admin.describe_topic("moving").queues
        }
        client.admin.move_queue("moving", 0, groups[1])
        until(
            lambda: {q.group for q in client.admin.describe_topic("moving").queues} == {groups[1]},
            40,
            "the queue to move",
        )
        due_us = due_in(HOUR_S)
        with client.producer() as producer:
            for number in range(10):
                producer.send("moving", b"x", queue=number % 2, deliver_at=due_us).result(20)
            with pytest.raises(DelayThrottled) as raised:
                producer.send("moving", b"x", queue=0, deliver_at=due_us).result(20)
            assert (raised.value.due_messages, raised.value.due_messages_max) == (10, 10)
