"""Kafka's clients that log in by SCRAM: with every client, through two gateways in turn, with three
controllers of which the master is killed."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import AuthenticationFailedError  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer  # type: ignore[import-untyped]

from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.levels import SCRAM_LEVEL
from semel.protos.security.scram import HASHES
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_logins import HANDSHAKE, KafkaLogins, RawClient, SaslAnswer, read, send
from tests.kit.ruled_cluster import RuledCluster
from tests.kit.scram_client import ScramClient
from tests.kit.waiting import until

LOGIN_S = 6
"""How long a certificate lasts here, so that sessions end during a test."""
PASSWORD, WRONG = "correct, horse=battery", "guessed-secret"
FAILED, UNSUPPORTED_MECHANISM = 58, 33
SHA_256, SHA_512 = HASHES
RULES = (
    "allow user:kafka-gateway commit consumer-group:semel.gateways",
    "allow user:alice * topic:orders",
    "allow user:alice * consumer-group:*",
    "allow user:bob read topic:orders",
)
GUESSED = tuple(f"guessed-{number}" for number in range(8))
"""Users at whom the tests guess, each at one: controllers slow guesses down by user."""


class World:
    """A cluster with three controllers, and two gateways."""

    def __init__(self, cluster: RuledCluster, directory: Path) -> None:
        self.cluster = cluster
        self.logins = KafkaLogins(cluster, directory)
        self.logs = [self.logins.log]
        self.other = self.new_gateway()

    def new_gateway(self) -> KafkaGatewayProcess:
        """A gateway that has seen no guesses yet; to be started."""
        log = self.logins.log.with_suffix(f".{len(self.logs)}")
        self.logs.append(log)
        return KafkaGatewayProcess(self.cluster.bootstrap, *self.logins.flags, log=log)

    @property
    def gateways(self) -> tuple[KafkaGatewayProcess, KafkaGatewayProcess]:
        return self.logins.gateway, self.other

    def settings(
        self, user: str, password: str, mechanism: str, gateway: KafkaGatewayProcess | None = None
    ) -> dict[str, Any]:
        """librdkafka's settings."""
        found = self.logins.scram(user, password, mechanism)
        return found if gateway is None else found | {"bootstrap.servers": gateway.address}

    def python(self, gateway: KafkaGatewayProcess, password: str, mechanism: str) -> dict[str, Any]:
        """What kafka-python and aiokafka have in common."""
        return {
            "bootstrap_servers": gateway.address,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    @contextlib.contextmanager
    def raw(
        self, mechanism: str = SHA_256, gateway: KafkaGatewayProcess | None = None
    ) -> Iterator[RawClient]:
        """A connection after its handshake."""
        client = self.logins.socket(gateway)
        try:
            client.handshake(mechanism)
            yield client
        finally:
            client.close()

    def log_in(
        self, gateway: KafkaGatewayProcess, user: str, password: str = PASSWORD
    ) -> SaslAnswer:
        """The last answer to an exchange."""
        with self.raw(SHA_256, gateway) as raw:
            found = raw.scram(ScramClient(user, password))
            assert found is not None
            assert raw.is_served() is (found.code == 0)
            return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("kafka-scram")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMEL_CONTROLLER_LOGIN_MS_MAX", str(LOGIN_S * 1000))
        with RuledCluster(directory / "cluster", brokers=1, controllers=3) as cluster:
            with cluster.connect() as client:
                client.admin.create_topic("orders", queues=1)
                client.admin.change_access_rules(add=RULES)
                for user in ("alice", "bob", *GUESSED):
                    client.admin.add_user(user, PASSWORD, scram=True)
                client.admin.add_user("plain", PASSWORD)
            made = World(cluster, directory / "gateway")
            with made.logins.gateway, made.other:
                yield made
            said = "".join(
                path.read_text() for path in [*made.logs, *(n.log_file for n in cluster.nodes)]
            )
            audited = repr(cluster.audited())
    for word in (PASSWORD, WRONG, "argon2", "biws", "Traceback", "request failed"):
        assert word not in said
        assert word not in audited
    assert "'login': 'scram', 'result': 'logged in'" in audited


@pytest.fixture(scope="module")
def patient(world: World) -> Iterator[KafkaGatewayProcess]:
    """A third gateway: less than five wrong proofs come to it, so it listens to all."""
    with world.new_gateway() as gateway:
        yield gateway


@pytest.mark.parametrize("mechanism", HASHES)
def test_librdkafka_logs_in_through_two_gateways_in_turn(world: World, mechanism: str) -> None:
    for number, gateway in enumerate(world.gateways):
        alice = world.settings("alice", PASSWORD, mechanism, gateway)
        value = f"{mechanism} {number}".encode()
        assert send(alice, "orders", value) == ""
        assert read(alice, "orders", f"rd-{mechanism}-{number}", 1)
    bob = world.settings("bob", PASSWORD, mechanism)
    assert send(bob, "orders") == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("mechanism", HASHES)
def test_kafka_python_logs_in_through_two_gateways_in_turn(world: World, mechanism: str) -> None:
    ca = {"ssl_cafile": str(world.logins.machine_ca)}
    for number, gateway in enumerate(world.gateways):
        settings = world.python(gateway, PASSWORD, mechanism) | ca
        producer = KafkaProducer(**settings)
        offset = producer.send("orders", f"kafka-python {mechanism}".encode()).get(30).offset
        producer.close()
        group = f"python-{mechanism}-{number}"
        consumer = KafkaConsumer("orders", group_id=group, auto_offset_reset="earliest", **settings)
        found: list[Any] = []
        until_s = time.monotonic() + 30
        while len(found) <= offset and time.monotonic() < until_s:
            found += [each.value for some in consumer.poll(500).values() for each in some]
        consumer.close()
        assert found[offset] == f"kafka-python {mechanism}".encode()


@pytest.mark.parametrize("mechanism", HASHES)
async def test_aiokafka_logs_in_through_two_gateways_in_turn(world: World, mechanism: str) -> None:
    context = {"ssl_context": world.logins.context()}
    for number, gateway in enumerate(world.gateways):
        settings = world.python(gateway, PASSWORD, mechanism) | context
        async with AIOKafkaProducer(**settings) as producer:
            stored = await producer.send_and_wait("orders", mechanism.encode())
        consumer = AIOKafkaConsumer(
            "orders", group_id=f"aio-{mechanism}-{number}", auto_offset_reset="earliest", **settings
        )
        await consumer.start()
        try:
            while (message := await consumer.getone()).offset < stored.offset:
                pass
            assert message.value == mechanism.encode()
        finally:
            await consumer.stop()


@pytest.mark.parametrize("mechanism", HASHES)
def test_both_sides_prove_that_they_know_the_password(world: World, mechanism: str) -> None:
    with world.raw(mechanism) as raw:
        client = ScramClient("alice", PASSWORD, mechanism)
        begun = raw.say(client.first)
        assert begun is not None
        assert (begun.code, begun.lifetime_ms) == (0, 0)
        assert not client.believes(begun.answer)
        ended = raw.say(client.final(begun.answer))
        assert ended is not None
        assert ended.code == 0
        assert 0 < ended.lifetime_ms <= LOGIN_S * 1000
        assert client.believes(ended.answer)
        assert raw.is_served()


def test_nothing_is_served_halfway(world: World) -> None:
    with world.raw() as raw:
        begun = raw.say(ScramClient("alice", PASSWORD).first)
        assert begun is not None
        assert not raw.is_served()
    with world.raw() as raw:
        raw.say(ScramClient("alice", PASSWORD).first)
        assert raw.ask(HANDSHAKE, 1, b"\0\x05PLAIN") == struct.pack(">h", 33) + raw_names()


def raw_names() -> bytes:
    names = (b"PLAIN", b"OAUTHBEARER", *(name.encode() for name in HASHES))
    return struct.pack(">i", 4) + b"".join(struct.pack(">h", len(n)) + n for n in names)


def test_who_is_not_right_is_told_the_same_whoever_it_is(world: World) -> None:
    with world.new_gateway() as gateway:
        told = {
            world.log_in(gateway, user, password)
            for user, password in (
                (GUESSED[0], WRONG),
                ("nobody", PASSWORD),
                ("plain", PASSWORD),  # it has a password, and not for SCRAM
            )
        }
    (found,) = told
    assert (found.code, found.answer, found.lifetime_ms) == (FAILED, b"", 0)


def test_a_wrong_password_fails_librdkafka(world: World) -> None:
    errors: list[KafkaError] = []
    with world.new_gateway() as gateway:
        settings = world.settings(GUESSED[1], WRONG, SHA_256, gateway)
        producer = Producer(settings | {"error_cb": errors.append})
        until(lambda: producer.poll(0.1) or bool(errors))
        until(lambda: producer.poll(0.1) or any(_is_refusal(each) for each in errors))
        producer.purge()


def _is_refusal(error: KafkaError) -> bool:
    return bool(error.code() == KafkaError._AUTHENTICATION)


async def test_a_wrong_password_fails_aiokafka(world: World) -> None:
    with world.new_gateway() as gateway:
        settings = world.python(gateway, WRONG, SHA_512) | {"sasl_plain_username": GUESSED[2]}
        producer = AIOKafkaProducer(**settings, ssl_context=world.logins.context())
        with pytest.raises(Exception) as refused:  # noqa: PT011  (it wraps what it is told)
            await producer.start()
        await producer.stop()
    shown = repr(refused.value) + repr(refused.value.__cause__)
    assert isinstance(refused.value, AuthenticationFailedError) or "bootstrap" in shown


def test_a_wrong_password_fails_kafka_python(world: World) -> None:
    """As a process, since a client that fails to begin leaves its sockets open."""
    program = (
        "import json, logging, sys, kafka; logging.basicConfig();"
        " kafka.KafkaProducer(**json.loads(sys.argv[1]))"
    )
    with world.new_gateway() as gateway:
        settings = world.python(gateway, WRONG, SHA_512) | {
            "sasl_plain_username": GUESSED[3],
            "ssl_cafile": str(world.logins.machine_ca),
            "bootstrap_timeout_ms": 30_000,
        }
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(settings)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "SaslAuthenticationFailedError: wrong user or password" in done.stderr


def test_nonsense_is_refused_and_who_sends_it_is_not_listened_to(world: World) -> None:
    with world.new_gateway() as gateway, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(world.raw(SHA_256, gateway)) for _ in range(6)]
        nonsense = (b"", b"n,,", b"p=tls-unique,,n=alice,r=x", b"\xff" * 10, bytes(20_000))
        for raw, message in zip(raws, nonsense, strict=False):
            found = raw.say(message)
            assert found is not None
            assert found.code == FAILED
        refused = raws[-1].scram(ScramClient("alice", PASSWORD))
        assert refused is not None
        assert (refused.code, "come back" in refused.error) == (FAILED, True)
        assert not any(raw.is_served() for raw in raws)


def test_a_password_that_is_changed_counts_for_scram_at_once(
    world: World, patient: KafkaGatewayProcess
) -> None:
    newer, user = "another horse altogether", GUESSED[4]
    with world.cluster.connect() as client:
        client.admin.change_password(user, newer)
        (found,) = [each for each in client.admin.list_users() if each.user == user]
        assert found.scram
    assert world.log_in(patient, user).code == FAILED
    assert world.log_in(patient, user, newer).code == 0
    with world.cluster.connect() as client:
        client.admin.change_password(user, newer, scram=False)
    assert world.log_in(patient, user, newer).code == FAILED
    plain = world.logins.plain(user, newer)
    assert not AdminClient(plain).list_topics(timeout=20).topics  # it is let in, and may nothing


def test_a_user_that_is_removed_is_cut_off(world: World, patient: KafkaGatewayProcess) -> None:
    user = GUESSED[5]
    with world.raw() as raw:
        found = raw.scram(ScramClient(user, PASSWORD))
        assert found is not None
        assert found.code == 0
        with world.cluster.connect() as client:
            client.admin.remove_user(user)
        until(lambda: not raw.is_served(), 2 * LOGIN_S)
    assert world.log_in(patient, user).code == FAILED


def test_a_user_that_is_removed_halfway_does_not_get_in(
    world: World, patient: KafkaGatewayProcess
) -> None:
    with world.raw(SHA_256, patient) as raw:
        client = ScramClient(GUESSED[6], PASSWORD)
        begun = raw.say(client.first)
        assert begun is not None
        with world.cluster.connect() as admin:
            admin.admin.remove_user(GUESSED[6])
        ended = raw.say(client.final(begun.answer))
        assert ended is not None
        assert ended.code == FAILED


def test_a_session_is_proved_again_or_ends(world: World) -> None:
    with world.raw() as raw:
        for _ in range(2):
            found = raw.scram(ScramClient("alice", PASSWORD))
            assert found is not None
            assert found.code == 0
            assert raw.is_served()
            time.sleep(LOGIN_S / 2)
            raw.handshake(SHA_256)
        other = raw.scram(ScramClient("bob", PASSWORD))
        assert other is not None
        assert other.code == FAILED  # another user than before
        assert not raw.is_served()
    with world.raw() as raw:
        found = raw.scram(ScramClient("alice", PASSWORD))
        assert found is not None
        time.sleep(found.lifetime_ms / 1000 - 0.3)
        assert raw.is_served()
        until(lambda: not raw.is_served(), 5)


def test_no_send_fails_while_sessions_end(world: World) -> None:
    failures: list[str] = []
    stored = 0

    def told(error: Any, _: Any) -> None:
        nonlocal stored
        stored += error is None
        if error is not None:
            failures.append(str(error))

    settings = world.settings("alice", PASSWORD, SHA_512)
    producer = Producer(settings | {"enable.idempotence": True, "linger.ms": 0})
    sent = 0
    ends = time.monotonic() + 2.5 * LOGIN_S
    while time.monotonic() < ends:
        producer.produce("orders", b"%d" % sent, on_delivery=told)
        sent += 1
        producer.poll(0.05)
    assert producer.flush(30) == 0
    assert (failures, stored) == ([], sent)


def test_the_old_handshake_is_served(world: World) -> None:
    """Version 0, after which SASL's messages have no head of Kafka's."""
    client = ScramClient("alice", PASSWORD)
    raw = world.logins.socket()
    try:
        raw.handshake(SHA_256, version=0)
        begun = raw.send(client.first)
        assert begun is not None
        ended = raw.send(client.final(begun))
        assert ended is not None
        assert client.believes(ended)
        assert raw.is_served()
    finally:
        raw.close()


def test_a_password_that_scram_cannot_take_is_refused_when_it_is_set(world: World) -> None:
    with world.cluster.connect() as client, pytest.raises(InvalidRequest, match="ASCII"):
        client.admin.add_user("umlaut", "pässwörter", scram=True)


def test_another_controller_ends_what_a_killed_one_has_begun(world: World) -> None:
    """The last test: two of three controllers are left."""
    cluster = world.cluster
    with world.raw() as raw:
        client = ScramClient("alice", PASSWORD)
        begun = raw.say(client.first)
        assert begun is not None
        cluster.kill(cluster.active_controller())
        ended = raw.say(client.final(begun.answer))
        assert ended is not None
        assert ended.code == 0
        assert client.believes(ended.answer)
        assert raw.is_served()
    alice = world.settings("alice", PASSWORD, SHA_512, world.other)
    assert send(alice, "orders", b"after") == ""


def test_scram_waits_for_the_feature_level(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMEL_CONTROLLER_LEVEL_MAX", str(SCRAM_LEVEL - 1))
        patch.setenv("SEMEL_BROKER_LEVEL_MAX", str(SCRAM_LEVEL - 1))
        cluster = RuledCluster(tmp_path / "cluster", brokers=1)
        with cluster:
            with cluster.connect() as client:
                client.admin.change_access_rules(add=RULES[:1])
                with pytest.raises(UnsupportedVersion, match="SCRAM"):
                    client.admin.add_user("alice", PASSWORD, scram=True)
                client.admin.add_user("alice", PASSWORD)
            made = KafkaLogins(cluster, tmp_path / "gateway")
            with made.gateway:
                raw = made.socket()
                offered = raw.handshake(SHA_256)
                raw.close()
                assert offered == (
                    struct.pack(">hi", UNSUPPORTED_MECHANISM, 2)
                    + (b"\0\x05PLAIN" + b"\0\x0bOAUTHBEARER")
                )
                with pytest.raises(KafkaException):
                    AdminClient(made.scram("alice", PASSWORD, SHA_256)).list_topics(timeout=3)
            assert "SCRAM is not offered" in made.log.read_text()
