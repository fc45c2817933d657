"""The transport for Kombu on a real cluster.

The first half has the cases of Kombu's own integration tests (`BasicFunctionality`,
`BaseExchangeTypes`, `BaseTimeToLive`, `BaseFailover`, `BaseMessage`), written anew because no wheel
has them; `./run soak kombu` runs Kombu's own. The second half has what Kombu does not ask for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from queue import Empty
from typing import Any

import kombu
import pytest

import semel.contrib.kombu  # noqa: F401 - makes semel:// known
from semel.client import Client
from semel.protos.errors import InvalidRequest, RetriableError
from tests.kit.cluster import Cluster
from tests.kit.ports import free_ports

HELLO = {"hello": "world"}
WAIT_S = 15.0
"""For what must come."""
NOTHING_S = 0.5
"""For what must not come."""


def connect_to(cluster: Cluster, *, host: str = "", **options: Any) -> kombu.Connection:
    url = f"semel://{cluster.bootstrap}/{host}"
    return kombu.Connection(url, transport_options={"queues": 2, "session_ms": 1_000, **options})


@pytest.fixture
def connection(shared_cluster: Cluster) -> Iterator[kombu.Connection]:
    with connect_to(shared_cluster) as made:
        yield made


@pytest.fixture
def nowhere() -> kombu.Connection:
    return kombu.Connection(f"semel://127.0.0.1:{free_ports(1)[0]}", connect_timeout=0.3)


def drained(connection: kombu.Connection, queue: kombu.Queue, count: int = 1) -> list[Any]:
    """Takes and acknowledges so many bodies."""
    bodies: list[Any] = []

    def note(body: Any, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with connection.Consumer(queue, callbacks=[note]):
        while len(bodies) < count:
            connection.drain_events(timeout=WAIT_S)
    return bodies


def has_nothing(connection: kombu.Connection, queue: kombu.Queue) -> bool:
    with (
        connection.Consumer(queue, callbacks=[lambda body, message: None]),
        pytest.raises(TimeoutError),
    ):
        connection.drain_events(timeout=NOTHING_S)
    return True


def publish(connection: kombu.Connection, body: Any, queue: kombu.Queue, **options: Any) -> None:
    producer = connection.Producer()
    producer.publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


# --- the cases of Kombu's own tests ---------------------------------------------------------------


def test_a_connection_is_made_closed_and_made_again(connection: kombu.Connection) -> None:
    for _ in range(2):
        assert connection.connect()
        assert connection.connection
        connection.close()
        assert connection.connection is None
    assert connection.default_channel
    assert connection.channel()


def test_where_nobody_listens_there_is_no_connection(nowhere: kombu.Connection) -> None:
    nowhere.transport_options = {"max_retries": 1}
    for attempt in (nowhere.connect, nowhere.channel, lambda: nowhere.default_channel):
        with pytest.raises((RetriableError, kombu.exceptions.OperationalError)):
            attempt()


def test_what_is_published_is_consumed(connection: kombu.Connection) -> None:
    queue = kombu.Queue("kombu-test", routing_key="kombu-test")
    publish(connection, HELLO, queue, serializer="pickle", retry=True)
    found: list[Any] = []

    def note(body: Any, message: Any) -> None:
        found.append((body, message.content_type, message.delivery_info["routing_key"]))
        message.ack()

    with connection.Consumer(queue, accept=["pickle"], callbacks=[note]):
        connection.drain_events(timeout=WAIT_S)
    assert found == [(HELLO, "application/x-python-serialize", "kombu-test")]


def test_an_empty_queue_times_out(connection: kombu.Connection) -> None:
    assert has_nothing(connection, kombu.Queue("kombu-empty", routing_key="kombu-empty"))


@pytest.mark.parametrize("kind", ["SimpleQueue", "SimpleBuffer"])
def test_simple_queues_and_buffers(connection: kombu.Connection, kind: str) -> None:
    with contextlib.closing(getattr(connection, kind)(f"kombu-{kind}")) as simple:
        simple.put({"Hello": "World"}, headers={"k1": "v1"})
        message = simple.get(timeout=WAIT_S)
        assert message.payload == {"Hello": "World"}
        assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
        assert message.headers == {"k1": "v1"}
        message.ack()


def test_a_direct_exchange_goes_by_its_keys(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("kombu-direct", type="direct")
    one = kombu.Queue("kombu-direct-1", exchange=exchange, routing_key="d1")
    two = kombu.Queue("kombu-direct-2", exchange=exchange, routing_key="d2")
    producer = connection.Producer(exchange=exchange)
    producer.publish(HELLO, routing_key="d1", declare=[one, two])
    assert drained(connection, one) == [HELLO]
    assert has_nothing(connection, two)
    producer.publish(HELLO, routing_key="d3", declare=[one, two])
    assert has_nothing(connection, one)


def test_a_fanout_exchange_gives_each_queue_its_own(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("kombu-fanout", type="fanout")
    queues = [kombu.Queue(f"kombu-fanout-{n}", exchange=exchange) for n in (1, 2)]
    connection.Producer(exchange=exchange).publish(HELLO, declare=[*queues])
    for queue in queues:
        assert drained(connection, queue) == [HELLO]


def test_a_topic_exchange_goes_by_patterns(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("kombu-topic", type="topic")
    keys = ("t.*", "#", "t")
    queues = [
        kombu.Queue(f"kombu-topic-{n}", exchange=exchange, routing_key=key)
        for n, key in enumerate(keys)
    ]
    connection.Producer(exchange=exchange).publish(HELLO, routing_key="t.1", declare=[*queues])
    assert drained(connection, queues[0]) == drained(connection, queues[1]) == [HELLO]
    assert has_nothing(connection, queues[2])


def test_an_exchange_without_queues_drops_what_it_gets(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("kombu-unbound", type="topic")
    connection.Producer(exchange=exchange).publish(HELLO, routing_key="t.1")


def test_a_message_that_is_too_old_is_not_delivered(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-ttl", routing_key="kombu-ttl")
    publish(connection, {"n": 1}, queue, expiration=0.001)
    publish(connection, {"n": 2}, queue, expiration=3_600)
    assert drained(connection, queue) == [{"n": 2}]
    assert client.admin.describe_group("kombu-ttl").lag == 0


def test_a_controller_that_is_down_does_not_matter(shared_cluster: Cluster) -> None:
    [port] = free_ports(1)
    urls = f"semel://127.0.0.1:{port};semel://{shared_cluster.bootstrap}"
    queue = kombu.Queue("kombu-failover", routing_key="kombu-failover")
    with kombu.Connection(urls, connect_timeout=1) as connection:
        publish(connection, HELLO, queue)
        assert drained(connection, queue) == [HELLO]
    at_once = {"bootstrap": f"127.0.0.1:{port},{shared_cluster.bootstrap}"}
    with kombu.Connection("semel://", connect_timeout=10, transport_options=at_once) as connection:
        publish(connection, HELLO, queue)
        assert drained(connection, queue) == [HELLO]


def test_what_is_acknowledged_or_rejected_does_not_come_again(
    connection: kombu.Connection,
) -> None:
    with contextlib.closing(connection.SimpleQueue("kombu-ack")) as simple:
        for settle in ("ack", "reject"):
            simple.put({"settled": settle})
            getattr(simple.get_nowait(), settle)()
            with pytest.raises(Empty):
                simple.get_nowait()


def test_what_is_requeued_comes_again(connection: kombu.Connection) -> None:
    with contextlib.closing(connection.SimpleQueue("kombu-requeue")) as simple:
        simple.put(HELLO)
        first = simple.get_nowait()
        first.requeue()
        second = simple.get_nowait()
        assert second.body == first.body
        second.reject(requeue=True)
        simple.get_nowait().ack()
        with pytest.raises(Empty):
            simple.get_nowait()


# --- what this cluster adds, or keeps from being lost ---------------------------------------------


class Taken:
    """A consumer that settles nothing by itself."""

    def __init__(self, connection: kombu.Connection, queue: kombu.Queue, **options: Any) -> None:
        self.messages: list[Any] = []
        self.connection = connection
        self.consumer = connection.Consumer(
            queue, on_message=self.messages.append, auto_declare=True, **options
        )

    def bodies(self) -> list[Any]:
        return [message.payload for message in self.messages]

    def wait(self, count: int) -> Taken:
        while len(self.messages) < count:
            self.connection.drain_events(timeout=WAIT_S)
        return self

    def settled(self) -> bool:
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=NOTHING_S)
        return True


@pytest.fixture
def other(shared_cluster: Cluster) -> Iterator[kombu.Connection]:
    with connect_to(shared_cluster) as made:
        yield made


def test_a_binding_of_one_program_routes_the_messages_of_another(
    connection: kombu.Connection, other: kombu.Connection
) -> None:
    exchange = kombu.Exchange("kombu-shared", type="direct")
    queue = kombu.Queue("kombu-shared", exchange=exchange, routing_key="here")
    channel = connection.default_channel
    queue(channel).declare()
    producer = other.Producer(exchange=exchange)
    producer.publish(HELLO, routing_key="here")
    assert drained(connection, queue) == [HELLO]
    queue(channel).unbind_from(exchange, routing_key="here")
    producer.publish(HELLO, routing_key="here")
    assert has_nothing(connection, queue)


def test_what_one_connection_did_not_settle_comes_to_the_next(
    connection: kombu.Connection, shared_cluster: Cluster
) -> None:
    queue = kombu.Queue("kombu-redelivered", routing_key="kombu-redelivered")
    for number in range(6):
        publish(connection, {"n": number}, queue, semel_key="one")
    with connect_to(shared_cluster) as first:
        taken = Taken(first, queue)
        with taken.consumer:
            taken.wait(6)
            for number in (0, 1, 3, 5):
                taken.messages[number].ack()
    assert [body["n"] for body in taken.bodies()] == list(range(6)), "one key, one order"
    # 3 and 5 were acknowledged behind 2, which was not.
    assert [body["n"] for body in drained(connection, queue, 4)] == [2, 3, 4, 5]


def test_no_more_is_delivered_than_may_be_unsettled(connection: kombu.Connection) -> None:
    queue = kombu.Queue("kombu-prefetch", routing_key="kombu-prefetch")
    for number in range(5):
        publish(connection, {"n": number}, queue, semel_key="one")
    taken = Taken(connection, queue, prefetch_count=2)
    with taken.consumer:
        assert taken.wait(2).settled()
        taken.messages[0].ack()
        assert taken.wait(3).settled()
        for message in taken.messages[1:]:
            message.ack()
        taken.wait(5)


def test_messages_are_acknowledged_by_any_thread(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-threads", routing_key="kombu-threads")
    for number in range(8):
        publish(connection, {"n": number}, queue)
    taken = Taken(connection, queue)
    with taken.consumer:
        taken.wait(8)
        threads = [threading.Thread(target=each.ack) for each in taken.messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.admin.describe_group("kombu-threads").lag == 0


def test_a_rejected_message_is_a_dead_letter(connection: kombu.Connection, client: Client) -> None:
    queue = kombu.Queue("kombu-letters", routing_key="kombu-letters")
    publish(connection, {"bad": True}, queue)
    taken = Taken(connection, queue)
    with taken.consumer:
        taken.wait(1).messages[0].reject()
    [letter] = client.admin.dead_letters("kombu-letters")
    assert (letter.attempts, letter.reason) == (1, "rejected")
    assert client.admin.redrive("kombu-letters").redriven == 1
    assert drained(connection, queue) == [{"bad": True}]


def test_a_requeued_message_takes_the_steps_and_then_is_a_dead_letter(
    shared_cluster: Cluster, client: Client
) -> None:
    queue = kombu.Queue("kombu-steps", routing_key="kombu-steps")
    attempts = []
    with connect_to(shared_cluster, retry_steps_ms=(10, 20)) as connection:
        publish(connection, HELLO, queue)
        taken = Taken(connection, queue)
        with taken.consumer:
            for count in (1, 2, 3):
                message = taken.wait(count).messages[-1]
                info = message.delivery_info
                attempts.append((message.properties["semel"]["attempt"], info["redelivered"]))
                message.requeue()
    assert attempts == [(1, False), (2, True), (3, True)]
    [letter] = client.admin.dead_letters("kombu-steps")
    assert (letter.attempts, letter.reason) == (3, "requeued")


def test_a_delayed_message_is_held_back_by_the_cluster(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-delayed", routing_key="kombu-delayed")
    publish(connection, {"later": True}, queue, headers={"x-delay": 1_500})
    described = client.admin.describe_topic("kombu-delayed")
    assert sum(each.delayed_messages for each in described.queues) == 1
    publish(connection, {"later": False}, queue)
    assert drained(connection, queue, 2) == [{"later": False}, {"later": True}]


def test_a_queue_is_counted_purged_and_deleted(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-counted", routing_key="kombu-counted")
    for number in range(3):
        publish(connection, {"n": number}, queue)
    bound = queue(connection.default_channel)
    assert bound.queue_declare(passive=True).message_count == 3
    assert bound.purge() == 3
    assert bound.queue_declare(passive=True).message_count == 0
    publish(connection, {"n": 3}, queue)
    assert drained(connection, queue) == [{"n": 3}]
    bound.delete()
    assert "kombu-counted" not in [topic.name for topic in client.admin.list_topics()]
    with pytest.raises(connection.channel_errors):
        bound.queue_declare(passive=True)


def test_without_acknowledgements_a_message_is_done_when_it_is_delivered(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-no-ack", routing_key="kombu-no-ack")
    publish(connection, HELLO, queue)
    taken = Taken(connection, queue, no_ack=True)
    with taken.consumer:
        assert taken.wait(1).bodies() == [HELLO]
        assert client.admin.describe_group("kombu-no-ack").lag == 0


def test_a_passing_queue_goes_with_its_consumer(
    connection: kombu.Connection, client: Client
) -> None:
    exchange = kombu.Exchange("kombu-passing", type="fanout")
    queue = kombu.Queue("reply@host/1", exchange=exchange, auto_delete=True)
    before = {topic.name for topic in client.admin.list_topics()}
    taken = Taken(connection, queue)
    with taken.consumer:
        connection.Producer(exchange=exchange).publish(HELLO)
        taken.wait(1).messages[0].ack()
        [made] = {topic.name for topic in client.admin.list_topics()} - before - {"kombu.bindings"}
        assert made.startswith("reply-host-1-")
    assert made not in {topic.name for topic in client.admin.list_topics()}
    connection.Producer(exchange=exchange).publish(HELLO)  # nothing is bound any more


def test_a_message_that_kombu_sends_again_is_stored_once(
    shared_cluster: Cluster, client: Client
) -> None:
    queue = kombu.Queue("kombu-once", routing_key="kombu-once")
    with connect_to(shared_cluster, dedup_window_bytes=1 << 20) as connection:
        for _ in range(2):
            publish(connection, HELLO, queue, headers={"id": "task-1", "retries": 0})
        publish(connection, HELLO, queue, headers={"id": "task-1", "retries": 1})
        assert len(drained(connection, queue, 2)) == 2
        assert client.admin.describe_group("kombu-once").lag == 0


def test_other_producers_and_readers_share_a_queue(
    connection: kombu.Connection, client: Client
) -> None:
    queue = kombu.Queue("kombu-others", routing_key="kombu-others")
    queue(connection.default_channel).declare()
    with client.producer() as producer:
        producer.send(
            "kombu-others", b'{"from": "sdk"}', headers={"content-type": b"application/json"}
        ).result()
    assert drained(connection, queue) == [{"from": "sdk"}]
    publish(connection, {"from": "kombu"}, queue)
    with client.reader("kombu-others", end="latest") as reader:
        values = {message.value for message in reader}
    assert values == {b'{"from": "sdk"}', b'{"from": "kombu"}'}


def test_virtual_hosts_have_queues_of_their_own(
    shared_cluster: Cluster, connection: kombu.Connection
) -> None:
    queue = kombu.Queue("kombu-host", routing_key="kombu-host")
    with connect_to(shared_cluster, host="billing") as billing:
        publish(billing, HELLO, queue)
        assert has_nothing(connection, queue)
        assert drained(billing, queue) == [HELLO]


def test_what_is_not_to_be_had_is_refused_by_name(shared_cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'lock_ms'"):
        connect_to(shared_cluster, locks_ms=3).connect()
    with pytest.raises(InvalidRequest, match="login"):
        kombu.Connection(f"semel://anna:secret@{shared_cluster.bootstrap}").connect()
