"""Kafka's clients that log in at a gateway, each with its own rights, on a cluster with rules."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]

from semel.gateway.principals.sasl_state import OPEN_KEYS
from semel.gateway.versions import ApiKey
from tests.fuzz.kafka_request_targets import kafka_requests
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_logins import (
    API_VERSIONS,
    HANDSHAKE,
    KafkaLogins,
    RawClient,
    bearer_message,
    read,
    send,
)
from tests.kit.ruled_cluster import RuledCluster
from tests.kit.waiting import until

LOGIN_S = 4
"""How long a certificate lasts here, so that many end during a test."""
PASSWORD = "correct horse battery"
WRONG = "guessed-secret"
FAILED, ILLEGAL_STATE, NOT_ALLOWED, UNKNOWN_MEMBER = 58, 34, 30, 25
RULES = (
    "allow user:kafka-gateway commit consumer-group:semel.gateways",
    "allow user:alice write topic:orders*",
    "allow user:alice read topic:orders*",
    "allow user:alice commit consumer-group:*",
    "allow user:bob read topic:orders",
    "allow user:bob commit consumer-group:billing",
    "allow user:erin * topic:orders*",
    "allow user:erin * consumer-group:*",
)


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLogins]:
    directory = tmp_path_factory.mktemp("kafka-logins")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMEL_CONTROLLER_LOGIN_MS_MAX", str(LOGIN_S * 1000))
        with RuledCluster(directory / "cluster", brokers=1) as cluster:
            prepare(cluster)
            made = KafkaLogins(cluster, directory / "gateway")
            with made.gateway:
                yield made
    said = made.log.read_text()
    for word in (PASSWORD, WRONG, "eyJ", "Traceback", "request failed"):
        assert word not in said


def prepare(cluster: RuledCluster) -> None:
    with cluster.connect() as client:
        for topic in ("orders", "orders-2", "secret"):
            client.admin.create_topic(topic, queues=1)
        client.admin.change_access_rules(add=RULES)
        for user in ("alice", "bob", "carol", "dave", "erin"):
            client.admin.add_user(user, PASSWORD)


@contextlib.contextmanager
def raw(logins: KafkaLogins) -> Iterator[RawClient]:
    client = logins.socket()
    try:
        yield client
    finally:
        client.close()


def rules(logins: KafkaLogins, *, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
    with logins.cluster.connect() as client:
        client.admin.change_access_rules(add=add, remove=remove)


def test_each_user_has_its_own_rights(logins: KafkaLogins) -> None:
    alice, bob = logins.plain("alice", PASSWORD), logins.plain("bob", PASSWORD)
    assert send(alice, "orders", b"from alice") == ""
    assert read(bob, "orders", "billing") == [b"from alice"]
    # Bob may read and not write, not as anybody else's group, and sees nothing of the rest.
    assert send(bob, "orders") == "TOPIC_AUTHORIZATION_FAILED"
    assert read(bob, "orders", "others") == "GROUP_AUTHORIZATION_FAILED"
    admin = AdminClient(bob)
    assert set(admin.list_topics(timeout=20).topics) == {"orders"}
    assert [g.group_id for g in admin.list_consumer_groups().result(20).valid] == ["billing"]
    assert set(AdminClient(alice).list_topics(timeout=20).topics) == {"orders", "orders-2"}
    # A group is of everybody who may commit in it.
    assert send(alice, "orders", b"once more") == ""
    assert read(alice, "orders", "billing") == [b"once more"]


def test_who_has_no_rights_sees_and_does_nothing(logins: KafkaLogins) -> None:
    carol = logins.plain("carol", PASSWORD)
    admin = AdminClient(carol)
    assert not admin.list_topics(timeout=20).topics
    assert admin.list_consumer_groups().result(20).valid == []
    with pytest.raises(KafkaException, match=r"UNKNOWN_TOPIC|AUTHORIZATION"):
        admin.delete_topics(["orders"])["orders"].result(20)
    for future in admin.delete_consumer_groups(["billing"]).values():
        with pytest.raises(KafkaException):
            future.result(20)


def test_a_group_is_guarded_also_where_the_gateway_alone_has_it(logins: KafkaLogins) -> None:
    """Members of a group are in the gateway's memory: no call to the cluster would refuse."""
    name = struct.pack(">h", 7) + b"guarded"
    member = struct.pack(">ih", 1, 1) + b"m"
    asked = {12: name + member, 13: name + member[4:], 14: name + member + struct.pack(">i", 0)}
    consumer = Consumer(logins.plain("alice", PASSWORD) | {"group.id": "guarded"})
    consumer.subscribe(["orders"])

    def has_joined() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    until(has_joined)
    try:
        for user, expected in (("alice", UNKNOWN_MEMBER), ("carol", NOT_ALLOWED)):
            with raw(logins) as client:
                client.handshake()
                assert client.authenticate(f"\0{user}\0{PASSWORD}".encode()) == (0, 0)
                for key, body in asked.items():
                    answer = client.ask(key, 0, body)
                    assert answer is not None
                    assert struct.unpack(">h", answer[:2])[0] == expected, key
                described = client.ask(15, 0, struct.pack(">i", 1) + name)
                assert described is not None
                code = 0 if user == "alice" else NOT_ALLOWED
                assert struct.unpack(">h", described[4:6])[0] == code
    finally:
        consumer.close()


def test_tokens_log_in(logins: KafkaLogins) -> None:
    erin = logins.bearer(lambda: (logins.token("erin"), time.time() + 300))
    assert send(erin, "orders-2", b"by token") == ""
    assert read(erin, "orders-2", "by-token") == [b"by token"]
    nobody = logins.bearer(lambda: (logins.token("nobody"), time.time() + 300))
    assert not AdminClient(nobody).list_topics(timeout=20).topics


def test_kafka_python_logs_in(logins: KafkaLogins) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": logins.gateway.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(logins.machine_ca),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "erin",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**settings)
    offset = producer.send("orders-2", b"kafka-python").get(30).offset
    producer.close()
    consumer = KafkaConsumer(
        "orders-2", group_id="python", auto_offset_reset="earliest", **settings
    )
    found: list[Any] = []
    until_s = time.monotonic() + 30
    while len(found) <= offset and time.monotonic() < until_s:
        found += [each.value for some in consumer.poll(500).values() for each in some]
    consumer.close()
    assert found[offset] == b"kafka-python"


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_aiokafka_logs_in(logins: KafkaLogins, mechanism: str) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return logins.token("erin")

    settings: dict[str, Any] = {
        "bootstrap_servers": logins.gateway.address,
        "security_protocol": "SASL_SSL",
        "ssl_context": logins.context(),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "erin",
        "sasl_plain_password": PASSWORD,
        "sasl_oauth_token_provider": Tokens() if mechanism == "OAUTHBEARER" else None,
    }
    async with AIOKafkaProducer(**settings) as producer:
        stored = await producer.send_and_wait("orders-2", mechanism.encode())
    consumer = AIOKafkaConsumer(
        "orders-2", group_id=f"aio-{mechanism}", auto_offset_reset="earliest", **settings
    )
    await consumer.start()
    try:
        while (message := await consumer.getone()).offset < stored.offset:
            pass
        assert message.value == mechanism.encode()
    finally:
        await consumer.stop()


def test_nothing_is_served_before_a_login(logins: KafkaLogins) -> None:
    with raw(logins) as client:
        assert client.ask(API_VERSIONS, 0) is not None
        assert not client.is_served()
    with raw(logins) as client:
        answered = client.authenticate(f"\0alice\0{PASSWORD}".encode())  # without a handshake
        assert answered is not None
        assert answered[0] == ILLEGAL_STATE
        assert not client.is_served()
    with raw(logins) as client:
        assert client.handshake("GSSAPI") == (
            struct.pack(">hi", 33, 4)
            + (b"\0\x05PLAIN" + b"\0\x0bOAUTHBEARER")
            + (b"\0\x0dSCRAM-SHA-256" + b"\0\x0dSCRAM-SHA-512")
        )
        assert not client.is_served()
    with raw(logins) as client:
        client.handshake()
        assert client.authenticate(bytes(80_000)) is None  # too large before a login


def test_no_api_is_served_before_a_login(logins: KafkaLogins) -> None:
    newest = {struct.unpack(">hh", each[:4])[0]: each for each in kafka_requests()}
    assert newest.keys() == set(ApiKey)
    for key, request in newest.items():
        with raw(logins) as client:
            answer = client.send(request)
            assert (answer is not None) is (key in OPEN_KEYS), key
            assert not client.is_served()


def test_the_old_handshake_is_served(logins: KafkaLogins) -> None:
    """Version 0, after which SASL's messages have no head of Kafka's."""
    with raw(logins) as client:
        assert client.handshake(version=0) is not None
        assert client.send(f"\0alice\0{PASSWORD}".encode()) == b""
        assert client.is_served()
    with raw(logins) as client:
        client.handshake(version=0)
        assert client.send(f"\0alice\0{WRONG}".encode()) is None


def test_a_wrong_password_is_told_late_and_ends_the_connection(logins: KafkaLogins) -> None:
    with raw(logins) as client:
        client.handshake()
        began = time.monotonic()
        answered = client.authenticate(f"\0alice\0{WRONG}".encode())
        assert answered is not None
        assert answered[0] == FAILED
        assert time.monotonic() - began >= 0.5
        assert not client.is_served()
    with raw(logins) as client:
        client.handshake("OAUTHBEARER")
        answered = client.authenticate(bearer_message(logins.token("alice") + "x"))
        assert answered is not None
        assert answered[0] == FAILED


def test_a_session_by_token_is_renewed_or_ends(logins: KafkaLogins) -> None:
    with raw(logins) as client:
        for seconds in (3, 30):
            assert client.ask(HANDSHAKE, 1, b"\0\x0bOAUTHBEARER") is not None
            answered = client.authenticate(bearer_message(logins.token("alice", seconds)))
            assert answered is not None
            code, lifetime_ms = answered
            assert code == 0
            assert 0 < lifetime_ms <= min(seconds, LOGIN_S) * 1000
            assert client.is_served()
        time.sleep(lifetime_ms / 1000 - 0.2)
        assert client.is_served()
        until(lambda: not client.is_served(), 5)
    with raw(logins) as client:
        client.handshake("OAUTHBEARER")
        client.authenticate(bearer_message(logins.token("alice")))
        client.handshake("OAUTHBEARER")
        answered = client.authenticate(bearer_message(logins.token("bob")))
        assert answered is not None
        assert answered[0] == FAILED  # another user than before


def test_no_send_fails_while_certificates_end_and_are_renewed(logins: KafkaLogins) -> None:
    failures: list[str] = []
    stored = 0

    def told(error: Any, _: Any) -> None:
        nonlocal stored
        stored += error is None
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        logins.plain("alice", PASSWORD) | {"enable.idempotence": True, "linger.ms": 0}
    )
    sent = 0
    ends = time.monotonic() + 2.5 * LOGIN_S
    while time.monotonic() < ends:
        producer.produce("orders", b"%d" % sent, on_delivery=told)
        sent += 1
        producer.poll(0.02)
    assert producer.flush(20) == 0
    assert (failures, stored) == ([], sent)


def test_a_quota_is_that_of_the_user(logins: KafkaLogins) -> None:
    with logins.cluster.connect() as client:
        client.admin.set_quotas("user:alice", {"write-bytes": 20_000})
    try:
        waits: list[float] = []
        settings = logins.plain("alice", PASSWORD) | {"enable.idempotence": True, "linger.ms": 0}
        slow = Producer(settings | {"throttle_cb": lambda event: waits.append(event.throttle_time)})

        def was_slowed_down() -> bool:
            slow.produce("orders", bytes(10_000))
            assert slow.flush(60) == 0
            return bool(waits)

        until(was_slowed_down)
        quick = time.monotonic()
        assert send(logins.plain("erin", PASSWORD), "orders", bytes(5_000)) == ""
        assert time.monotonic() - quick < 2.0
    finally:
        with logins.cluster.connect() as client:
            client.admin.remove_quotas("user:alice")


def test_a_right_that_is_taken_away_is_gone(logins: KafkaLogins) -> None:
    dave = logins.plain("dave", PASSWORD)
    given = (
        "allow user:dave write topic:orders-2",
        "allow user:dave read topic:orders-2",
        "allow user:dave commit consumer-group:dave",
    )
    rules(logins, add=given)
    producer = Producer(dave | {"message.timeout.ms": 10_000, "linger.ms": 0})
    told: list[str] = []

    def outcome() -> str:
        producer.produce(
            "orders-2", b"x", on_delivery=lambda e, _: told.append("" if e is None else e.name())
        )
        producer.flush(20)
        return told[-1]

    until(lambda: outcome() == "")
    assert read(dave, "orders-2", "dave")
    rules(logins, remove=given[:1])
    until(lambda: outcome() == "TOPIC_AUTHORIZATION_FAILED")
    rules(logins, remove=given[2:])
    until(lambda: read(dave, "orders-2", "dave") == "GROUP_AUTHORIZATION_FAILED")


def test_a_user_that_is_removed_is_cut_off(logins: KafkaLogins) -> None:
    with raw(logins) as client:
        client.handshake()
        assert client.authenticate(f"\0dave\0{PASSWORD}".encode()) == (0, 0)
        assert client.is_served()
        with logins.cluster.connect() as admin:
            admin.admin.remove_user("dave")
        until(lambda: not client.is_served(), 2 * LOGIN_S)
        with raw(logins) as again:
            again.handshake()
            answered = again.authenticate(f"\0dave\0{PASSWORD}".encode())
            assert answered is not None
            assert answered[0] == FAILED
    said = logins.log.read_text()
    assert "login ended user=dave" in said


def test_gateways_of_one_cluster_are_alike(logins: KafkaLogins) -> None:
    plain = KafkaGatewayProcess(
        logins.cluster.bootstrap, *logins.flags[:2], log=logins.log.with_suffix(".2")
    )
    with pytest.raises(ValueError, match="Expecting value"):  # it says nothing and ends
        plain.start()
    plain.kill()
    said = logins.log.with_suffix(".2").read_text()
    assert "by PLAINTEXT, and the one at" in said
    assert "by SASL_SSL" in said
    assert len(said.splitlines()) == 1
