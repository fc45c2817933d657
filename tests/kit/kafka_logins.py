"""A gateway whose clients log in, in front of a cluster with rules."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from semel.protos.security.tokens import new_token
from tests.kit.authority import Authority
from tests.kit.cluster import CLUSTER_ID
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.ruled_cluster import RuledCluster

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
            f'login = "{cluster.login_address(cluster.controller)}"\nca = "{own}/ca.pem"\n'
        )
        self.log = directory / "gateway.log"
        self.flags = (
            *("--client-config", str(file), "--sasl-logins", str(logins)),
            *("--sasl", "plain,oauthbearer", "--certificate", str(both), "--key", str(both)),
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

    def bearer(self, token: Callable[[], tuple[str, float]]) -> dict[str, Any]:
        """librdkafka's settings; `token` returns one and when it ends."""
        return self.tls() | {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: token()}

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.machine_ca)

    def socket(self) -> RawClient:
        return RawClient(self)


class RawClient:
    """A client that sends what it likes."""

    def __init__(self, logins: KafkaLogins) -> None:
        host, _, port = logins.gateway.address.rpartition(":")
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
        found = self.ask(AUTHENTICATE, 1, struct.pack(">i", len(message)) + message)
        if found is None:
            return None
        return struct.unpack(">h", found[:2])[0], struct.unpack(">q", found[-8:])[0]

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
