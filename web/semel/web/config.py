"""Settings of the web console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest

LISTEN_DEFAULT = "127.0.0.1:7080"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """Settings of one web console."""

    listen: str = LISTEN_DEFAULT
    """HOST:PORT; port 0 takes a free one."""
    bootstrap: str = ""
    """The controllers; empty for those that the client's file or the environment names."""
    names: tuple[str, ...] = ()
    """Further names under which browsers reach it: a request for another one is refused, so that a
    page elsewhere cannot make a browser read from here under a name of its own."""
    certificate: Path | None = None
    """PEM file with the certificate of the pages, for HTTPS."""
    key: Path | None = None
    """PEM file with its key."""
    insecure: bool = False
    """Allow `listen` to be reached from a network without HTTPS."""
    call_timeout_ms: int = 5_000
    """Milliseconds for one call to the cluster, changes of master included: a page that would take
    longer says so."""
    sessions_max: int = 200
    """Most people who are logged in at once."""
    session_idle_s: float = 3_600.0
    """Seconds without a request after which a session ends."""
    streams_max: int = 100
    """Most pages that are fed live at once."""

    def __post_init__(self) -> None:
        address = Address.parse(self.listen, what="address of the web console")
        if (self.certificate is None) is not (self.key is None):
            raise InvalidRequest("HTTPS needs a certificate and its key")
        if not (address.loopback or self.certificate is not None or self.insecure):
            raise InvalidRequest(
                f"{self.listen} is reached from other machines: give --certificate and --key for"
                " HTTPS, or say --insecure where the network is trusted"
            )

    @property
    def https(self) -> bool:
        """Pages are served over TLS."""
        return self.certificate is not None
