"""A gateway whose clients log in, in front of a cluster with rules."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer

from semel.protos.security.tokens import new_token
from tests.kit.authority import Authority
from tests.kit.cluster import CLUSTER_ID
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.ruled_cluster import RuledCluster
from tests.kit.scram_client import ScramClient

HANDSHAKE, AUTHENTICATE, METADATA, API_VERSIONS = 17, 36, 3, 18


class KafkaLogins:
    """A secure gateway, and those who log in. `gateway` is to be started."""

    def __init__(self, cluster: RuledCluster, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.cluster = cluster
        self.machine_ca, both = Authority(directory, "machines").write_machine("127.0.0.1")
        own = cluster.security_of("kafka-gateway").files.ca.parent  # type: ignore[attr-defined]
        file = directory / "client.toml"
        files = (f'{key} = "{own}/{name}.pem"' for key, name in _FILES)
        file.write_text("\n".join([f'bootstrap = "{cluster.bootstrap}"', *files]))
        logins = directory / "login.toml"
        logins.write_text(
            f'login = "{",".join(map(cluster.login_address, cluster.controllers))}"\n'
            f'ca = "{own}/ca.pem"\n'
        )
        self.log = directory / "gateway.log"
        self.flags = (
            *("--client-config", str(file), "--sasl-logins", str(logins)),
            *("--sasl", "plain,oauthbearer,scram-sha-256,scram-sha-512"),
            *("--certificate", str(both), "--key", str(both)),
        )
        self.gateway = KafkaGatewayProcess(cluster.bootstrap, *self.flags, log=self.log)

    def token(self, user: str, seconds: float = 3_600) -> str:
        key = self.cluster.authority.token_key()
        return new_token(key, user=user, cluster=CLUSTER_ID, expires_s=int(time.time() + seconds))

    def tls(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.gateway.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.machine_ca),
        }

    def plain(self, user: str, password: str) -> dict[str, Any]:
        """librdkafka's settings."""
        return self.tls() | {
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }

    def scram(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        """librdkafka's settings."""
        return self.plain(user, password) | {"sasl.mechanism": mechanism}

    def bearer(self, token: Callable[[], tuple[str, float]]) -> dict[str, Any]:
        """librdkafka's settings; `token` returns one and when it ends."""
        return self.tls() | {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: token()}

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.machine_ca)

    def socket(self, gateway: KafkaGatewayProcess | None = None) -> RawClient:
        return RawClient(self, (gateway or self.gateway).address)


class SaslAnswer(NamedTuple):
    """An answer to SaslAuthenticate."""

    code: int
    error: str
    answer: bytes
    lifetime_ms: int


class RawClient:
    """A client that sends what it likes."""

    def __init__(self, logins: KafkaLogins, address: str) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), 20)
        self._socket = logins.context().wrap_socket(plain, server_hostname="127.0.0.1")

    def send(self, data: bytes) -> bytes | None:
        """Sends a frame and returns the answer, None if the connection was closed."""
        with contextlib.suppress(OSError):  # it may be closed
            self._socket.sendall(struct.pack(">i", len(data)) + data)
        length = self._read(4)
        return None if length is None else self._read(struct.unpack(">i", length)[0])

    def ask(self, key: int, version: int, body: bytes = b"") -> bytes | None:
        """Sends a request and returns the answer behind its correlation id."""
        found = self.send(struct.pack(">hhih", key, version, 7, -1) + body)
        return None if found is None else found[4:]

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> bytes | None:
        name = mechanism.encode()
        return self.ask(HANDSHAKE, version, struct.pack(">h", len(name)) + name)

    def authenticate(self, message: bytes) -> tuple[int, int] | None:
        """Returns the error code and the lifetime in milliseconds."""
        found = self.say(message)
        return None if found is None else (found.code, found.lifetime_ms)

    def say(self, message: bytes) -> SaslAnswer | None:
        """Sends a message of the mechanism."""
        found = self.ask(AUTHENTICATE, 1, struct.pack(">i", len(message)) + message)
        if found is None:
            return None
        error_bytes = max(0, struct.unpack_from(">h", found, 2)[0])
        begin = 4 + error_bytes
        (length,) = struct.unpack_from(">i", found, begin)
        return SaslAnswer(
            code=struct.unpack_from(">h", found)[0],
            error=found[4:begin].decode(),
            answer=found[begin + 4 : begin + 4 + length],
            lifetime_ms=struct.unpack(">q", found[-8:])[0],
        )

    def scram(self, client: ScramClient) -> SaslAnswer | None:
        """Logs in after a handshake; returns the last answer."""
        begun = self.say(client.first)
        if begun is None or begun.code:
            return begun
        return self.say(client.final(begun.answer))

    def is_served(self) -> bool:
        """Whether it is told about topics."""
        return self.ask(METADATA, 1, struct.pack(">i", -1)) is not None

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self._socket.recv(count - len(data))
            except OSError:
                return None
            if not more:
                return None
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


def bearer_message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def send(settings: dict[str, Any], topic: str, value: bytes = b"x") -> str:
    """Stores one record; returns the error's name, or nothing."""
    told: list[str] = []
    producer = Producer(settings | {"message.timeout.ms": 10_000, "linger.ms": 0})
    producer.produce(
        topic, value, on_delivery=lambda error, _: told.append("" if not error else error.name())
    )
    producer.flush(20)
    assert told, "nothing was told"
    return told[0]


def read(settings: dict[str, Any], topic: str, group: str, count: int = 1) -> list[bytes] | str:
    """Reads records in a group; returns them, or the first error's name."""
    consumer = Consumer(
        settings | {"group.id": group, "auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + 30
    try:
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} of {count}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                return str(error.name())
            found.append(message.value() or b"")
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


_FILES = (("ca", "ca"), ("certificate", "cert"), ("key", "key"))
