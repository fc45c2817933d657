"""Transactions of Kafka's clients that log in: each user has its own rights to ids, topics and
groups, and nobody ends somebody else's transaction."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from semel.client import Client
from semel.gateway.transactions.numbers import kafka_epoch_of, producer_id_of
from tests.kit.kafka_batches import Record, Sender, of_kafka_python
from tests.kit.kafka_logins import KafkaLogins, RawClient
from tests.kit.ruled_cluster import RuledCluster

PASSWORD = "correct horse battery"
WAIT_S = 30.0
RULES = (
    "allow user:kafka-gateway commit consumer-group:semel.gateways",
    "allow user:alice write topic:orders",
    "allow user:alice read topic:orders",
    "allow user:alice transact transaction:alice-*",
    "allow user:alice commit consumer-group:billing",
    # May write, and see all transactions, but not transact.
    "allow user:bob write topic:orders",
    "allow user:bob read topic:orders",
    "allow user:bob describe transaction:*",
    "allow user:bob commit consumer-group:billing",
    # May transact, and write one of two topics.
    "allow user:carol transact transaction:carol-*",
    "allow user:carol write topic:orders",
    "allow user:carol read topic:audit",
    # May transact and write, and not commit in the group.
    "allow user:dave transact transaction:dave-*",
    "allow user:dave write topic:orders",
    "allow user:dave read topic:orders",
)
NONE = ErrorCode.none
NO_ID = ErrorCode.transactional_id_authorization_failed
NO_TOPIC = ErrorCode.topic_authorization_failed
NO_GROUP = ErrorCode.group_authorization_failed


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLogins]:
    directory = tmp_path_factory.mktemp("kafka-transaction-rights")
    with RuledCluster(directory / "cluster", brokers=1) as cluster:
        with cluster.connect() as client:
            for topic in ("orders", "audit"):
                client.admin.create_topic(topic, queues=1)
            client.admin.change_access_rules(add=RULES)
            for user in ("alice", "bob", "carol", "dave"):
                client.admin.add_user(user, PASSWORD)
        made = KafkaLogins(cluster, directory / "gateway")
        with made.gateway:
            yield made
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def client(logins: KafkaLogins) -> Iterator[Client]:
    """An administrator."""
    with logins.cluster.connect() as made:
        yield made


def transactional(logins: KafkaLogins, user: str, name: str) -> Producer:
    """A producer of librdkafka whose transactional id is not ready yet."""
    settings = {"transactional.id": name, "linger.ms": 2}
    return Producer(logins.plain(user, PASSWORD) | settings)


def stored(client: Client, topic: str = "orders") -> int:
    return sum(queue.log_end_offset for queue in client.admin.describe_topic(topic).queues)


def progress(client: Client, group: str) -> list[int | None]:
    return [queue.committed_offset for queue in client.admin.describe_group(group).queues]


def staged(client: Client, name: str) -> tuple[int, int]:
    """How many messages and offsets of a transaction are staged."""
    found = client.transactions.describe(name)
    return (0, 0) if found is None else (found.messages, len(found.progress))


@contextlib.contextmanager
def consumer_of(logins: KafkaLogins, user: str) -> Iterator[Consumer]:
    """One that belongs to the group by its name only."""
    made = Consumer(logins.plain(user, PASSWORD) | {"group.id": "billing"})
    try:
        yield made
    finally:
        made.close()


def test_a_user_with_all_rights_commits_messages_and_offsets(
    logins: KafkaLogins, client: Client
) -> None:
    before = stored(client)
    producer = transactional(logins, "alice", "alice-books")
    producer.init_transactions(WAIT_S)
    with consumer_of(logins, "alice") as consumer:
        for number in range(2):
            producer.begin_transaction()
            producer.produce("orders", b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0
            offset = [TopicPartition("orders", 0, before)]
            producer.send_offsets_to_transaction(offset, consumer.consumer_group_metadata(), WAIT_S)
            assert staged(client, "alice-books") == (1, 1)
            if number:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
            assert stored(client) == before + number
    assert progress(client, "billing") == [before]


def test_who_may_not_transact_gets_no_producer(logins: KafkaLogins, client: Client) -> None:
    before = stored(client)
    producer = transactional(logins, "bob", "bob-books")
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(WAIT_S)
    assert refused.value.args[0].name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert refused.value.args[0].fatal()
    assert client.transactions.describe("bob-books") is None
    assert stored(client) == before


def test_a_topic_without_the_right_to_write_takes_the_transaction_down(
    logins: KafkaLogins, client: Client
) -> None:
    before = stored(client)
    producer = transactional(logins, "carol", "carol-books")
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for topic in ("orders", "audit"):
        producer.produce(topic, b"carol", partition=0)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].txn_requires_abort()
    assert refused.value.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    producer.abort_transaction(WAIT_S)
    assert (stored(client), stored(client, "audit")) == (before, 0)
    assert staged(client, "carol-books") == (0, 0)
    # It may go on with what it may do.
    producer.begin_transaction()
    producer.produce("orders", b"carol", partition=0)
    producer.commit_transaction(WAIT_S)
    assert stored(client) == before + 1


def test_offsets_of_a_group_need_the_right_to_commit_in_it(
    logins: KafkaLogins, client: Client
) -> None:
    before, committed = stored(client), progress(client, "billing")
    producer = transactional(logins, "dave", "dave-books")
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"dave", partition=0)
    assert producer.flush(WAIT_S) == 0
    with consumer_of(logins, "dave") as consumer, pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(
            [TopicPartition("orders", 0, 0)], consumer.consumer_group_metadata(), WAIT_S
        )
    assert refused.value.args[0].name() == "GROUP_AUTHORIZATION_FAILED"
    assert refused.value.args[0].txn_requires_abort()
    assert staged(client, "dave-books") == (1, 0)
    producer.abort_transaction(WAIT_S)
    assert (stored(client), progress(client, "billing")) == (before, committed)


class _Raw:
    """A client that asks what it likes about a transactional id, as some user."""

    def __init__(self, client: RawClient, user: str, name: str, epoch: int) -> None:
        self._client = client
        client.handshake()
        assert client.authenticate(f"\0{user}\0{PASSWORD}".encode()) == (0, 0)
        self._name = _text(name)
        self._numbers = struct.pack(">qh", producer_id_of(name), epoch)

    def initialise(self) -> ErrorCode:
        return self._code(22, 1, self._name + struct.pack(">i", 60_000), 4)

    def add_partitions(self, topic: str) -> ErrorCode:
        wanted = struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, 0)
        return self._code(24, 1, self._name + self._numbers + wanted, -2)

    def add_offsets(self, group: str) -> ErrorCode:
        return self._code(25, 1, self._name + self._numbers + _text(group), 4)

    def end(self, committed: bool) -> ErrorCode:
        return self._code(26, 1, self._name + self._numbers + bytes([committed]), 4)

    def commit_offset(self, group: str, topic: str) -> ErrorCode:
        place = struct.pack(">i", 1) + _text(topic) + struct.pack(">iiqh", 1, 0, 0, -1)
        return self._code(28, 1, self._name + _text(group) + self._numbers + place, -2)

    def produce(self, topic: str, sequence: int) -> ErrorCode:
        producer_id, epoch = struct.unpack(">qh", self._numbers)
        sender = Sender(producer_id, epoch, sequence, transactional=True)
        batch = of_kafka_python([Record(1, b"k", b"raw")], sender)
        head = self._name + struct.pack(">hii", -1, 20_000, 1) + _text(topic)
        body = head + struct.pack(">iii", 1, 0, len(batch)) + batch
        return self._code(0, 3, body, 4 + 2 + len(topic) + 4 + 4)

    def _code(self, key: int, version: int, body: bytes, at: int) -> ErrorCode:
        answer = self._client.ask(key, version, body)
        assert answer is not None
        return ErrorCode(struct.unpack(">h", answer[at:][:2])[0])


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def test_nobody_meddles_with_the_transaction_of_somebody_else(
    logins: KafkaLogins, client: Client
) -> None:
    before = stored(client)
    alice = transactional(logins, "alice", "alice-till")
    alice.init_transactions(WAIT_S)
    alice.begin_transaction()
    alice.produce("orders", b"alice", partition=0)
    assert alice.flush(WAIT_S) == 0
    info = client.transactions.describe("alice-till")
    assert info is not None
    epoch = kafka_epoch_of(info.last_epoch)
    with contextlib.closing(logins.socket()) as socket:
        bob = _Raw(socket, "bob", "alice-till", epoch)
        for _ in range(2):
            assert bob.add_partitions("orders") is NO_ID
            assert bob.add_offsets("billing") is NO_ID
            assert bob.commit_offset("billing", "orders") is NO_ID
            assert bob.produce("orders", 1) is NO_ID
            assert bob.end(committed=True) is NO_ID
            assert bob.end(committed=False) is NO_ID
            assert bob.initialise() is NO_ID
    assert staged(client, "alice-till") == (1, 0)
    assert stored(client) == before
    alice.commit_transaction(WAIT_S)
    assert stored(client) == before + 1
    with contextlib.closing(logins.socket()) as socket:  # also when nothing is open
        bob = _Raw(socket, "bob", "alice-till", epoch)
        assert bob.end(committed=True) is NO_ID
        assert bob.add_partitions("orders") is NO_ID
    for number in range(2):
        alice.begin_transaction()
        alice.produce("orders", b"%d" % number, partition=0)
        alice.commit_transaction(WAIT_S)
    assert stored(client) == before + 3
    assert client.admin.verify("orders").ok


def test_each_code_names_what_is_lacking(logins: KafkaLogins, client: Client) -> None:
    """What librdkafka does not show, since it stops at the first refusal."""
    for user, name in (("carol", "carol-raw"), ("dave", "dave-raw")):
        transactional(logins, user, name).init_transactions(WAIT_S)
    epochs = {}
    for name in ("carol-raw", "dave-raw"):
        info = client.transactions.describe(name)
        assert info is not None
        epochs[name] = kafka_epoch_of(info.last_epoch)
    with contextlib.closing(logins.socket()) as socket:
        carol = _Raw(socket, "carol", "carol-raw", epochs["carol-raw"])
        assert carol.add_partitions("audit") is NO_TOPIC
        assert carol.add_partitions("orders") is NONE
        assert carol.add_offsets("billing") is NO_GROUP
        assert carol.commit_offset("billing", "orders") is NO_GROUP
        assert carol.end(committed=False) is NONE
    with contextlib.closing(logins.socket()) as socket:
        dave = _Raw(socket, "dave", "dave-raw", epochs["dave-raw"])
        assert dave.add_partitions("orders") is NONE
        assert dave.produce("orders", 0) is NONE
        assert dave.commit_offset("billing", "orders") is NO_GROUP
        assert dave.end(committed=False) is NONE
