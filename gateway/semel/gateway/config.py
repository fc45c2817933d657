"""Settings of a Kafka gateway."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.gateway.principals.proofs import Mechanism
from semel.gateway.records import RecordCodec
from semel.protos.addresses import Address
from semel.protos.connection_limits import ConnectionLimits
from semel.protos.errors import InvalidRequest

LISTEN_DEFAULT: Final = "127.0.0.1:9092"
CODECS: Final = tuple(codec.name.lower() for codec in RecordCodec)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of one Kafka gateway."""

    listen: str = LISTEN_DEFAULT
    """HOST:PORT for Kafka's clients; port 0 takes a free one."""
    advertise: str = ""
    """HOST:PORT under which clients reach it, which must not change as long as they know it; empty
    for `listen`."""
    bootstrap: str = ""
    """The controllers; empty for those that the client's file or the environment names."""
    metrics: str = ""
    """HOST:PORT of its metrics; empty for none."""
    certificate: Path | None = None
    """PEM file with the certificate that it shows to clients, for TLS."""
    key: Path | None = None
    """PEM file with its key."""
    clients_ca: Path | None = None
    """PEM file with a CA: with it, only clients that show a certificate of it are let in."""
    insecure: bool = False
    """Allow `listen` to be reached from a network without TLS."""
    sasl: str = ""
    """Mechanisms by which clients log in, with commas between them: plain, oauthbearer,
    scram-sha-256, scram-sha-512. Each then acts with its own rights; with none, all have those of
    the gateway."""
    sasl_logins: Path | None = None
    """TOML file that says where the controllers log clients in, with `login` and `ca`."""
    sasl_without_tls: bool = False
    """Allow passwords and tokens to come over connections without TLS."""
    compression: str = "none"
    """Codec of the record batches that consumers get: none, gzip, snappy, lz4 or zstd. Whatever a
    producer used, every consumer must know this one; with none, every consumer does."""
    frame_bytes_max: int = 32 << 20
    """Bytes of one request; Kafka's clients send at most 1 MiB unless told otherwise."""
    requests_bytes_max: int = 128 << 20
    """Bytes of all requests under way; beyond them, clients wait."""
    idle_s: float = 600.0
    """Seconds without a request after which a connection is closed, as Kafka's brokers do."""
    cut_s: float = 30.0
    """Seconds for which a request may come in pieces without a new one."""
    stop_s: float = 10.0
    """Seconds that requests under way get at the end."""
    connections: ConnectionLimits = field(
        default_factory=lambda: ConnectionLimits(per_address_max=0, in_all_max=10_000)
    )
    """Connections of clients."""

    def __post_init__(self) -> None:
        address = Address.parse(self.listen, what="address of the Kafka gateway")
        if self.advertise:
            advertised = Address.parse(self.advertise, what="advertised address")
            if not advertised.port:
                raise InvalidRequest("an advertised address needs its port")
        elif _is_everywhere(address.host):
            raise InvalidRequest(
                f"{self.listen} is no address that clients can go to: say with --advertise which"
                " one they use"
            )
        if (self.certificate is None) is not (self.key is None):
            raise InvalidRequest("TLS needs a certificate and its key")
        if self.clients_ca is not None and self.certificate is None:
            raise InvalidRequest("certificates of clients need TLS: give --certificate and --key")
        self._check_sasl()
        if self.compression not in CODECS:
            raise InvalidRequest(f"compression must be one of {', '.join(CODECS)}")
        if not (address.loopback or self.certificate is not None or self.insecure):
            raise InvalidRequest(
                f"{self.listen} is reached from other machines: give --certificate and --key for"
                " TLS, or say --insecure where the network is trusted"
            )

    def _check_sasl(self) -> None:
        if bool(self.mechanisms) is not (self.sasl_logins is not None):
            raise InvalidRequest(
                "clients log in by --sasl MECHANISMS and --sasl-logins FILE, which need each other"
            )
        if self.mechanisms and self.certificate is None and not self.sasl_without_tls:
            raise InvalidRequest(
                "passwords and tokens can be read on connections without TLS: give --certificate"
                " and --key, or say --sasl-without-tls where nobody can listen"
            )

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of SASL. Raises InvalidRequest."""
        names = [name.strip().upper() for name in self.sasl.split(",") if name.strip()]
        known = {each.value: each for each in Mechanism}
        for name in names:
            if name not in known:
                offered = ", ".join(known).lower()
                raise InvalidRequest(f"there is no mechanism {name.lower()!r}; known are {offered}")
        return tuple(known[name] for name in dict.fromkeys(names))

    @property
    def protocol(self) -> str:
        """How clients reach it, in Kafka's words."""
        security = "PLAINTEXT" if self.certificate is None else "SSL"
        return f"SASL_{security}" if self.mechanisms else security

    @property
    def codec(self) -> RecordCodec:
        """The codec of the record batches that consumers get."""
        return RecordCodec[self.compression.upper()]


def _is_everywhere(host: str) -> bool:
    """Whether a host means every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
