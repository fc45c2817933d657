"""Settings of one controller, validated at construction."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.protos.errors import InvalidRequest
from semel.protos.levels import LEVEL_MAX

GROUP_SIZES: Final = (1, 3, 5)
SQLITE: Final = "sqlite"
EMBEDDED: Final = "embedded"
ZOOKEEPER: Final = "zookeeper://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Everything that one controller is told from outside. Raises InvalidRequest when senseless."""

    data: Path
    """Directory of this controller alone; created when missing."""

    listen: str = "127.0.0.1:7070"
    """HOST:PORT of the gRPC server; port 0 takes a free one. Default: port 7070 on loopback, since
    nobody is asked who he is."""

    advertise: str = ""
    """HOST:PORT under which others reach it. Default: as it listens."""

    controller_id: int = 1
    """Its number among the controllers, 1 and up."""

    cluster_id: str = ""
    """The cluster it must be of. Default: whatever the data directory says; a new directory gets a
    random one."""

    peers: Mapping[int, str] = field(default_factory=dict)
    """HOST:PORT of each controller of the group by its number, its own among them. Default: it is
    alone."""

    metadata: str = ""
    """Where the metadata lives: `sqlite` (a file of this controller alone), `embedded` (the
    controllers replicate it), `zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT`. Default: sqlite for a
    controller that is alone, else embedded."""

    metadata_auth: Path | None = None
    """File with USER:PASSWORD for ZooKeeper's digest scheme: what is stored is for this user alone.
    A file, because others see a process's flags. Default: none, everybody may read and write it."""

    metrics_port: int | None = None
    """Port of `GET /metrics`, on the host of `listen`; 0 takes a free one. Default: none, the
    controller is measured by nobody."""

    node_timeout_ms: int = 3_000
    """Default 3 s. A node that was silent for longer is shown as not alive; three reports."""

    preferred_rack: str = ""
    """Rack or site (a broker's `--rack`) in which groups are to have their masters. Default: none
    is preferred."""

    preferred_after_ms: int = 60_000
    """Default 1 min. How long a slave there must have been fit before it is master: longer than
    a drained node stands back."""

    broker_call_timeout_ms: int = 5_000
    """Default 5 s. One call to one broker node: longer than an election, so that a call during one
    succeeds, shorter than a client's patience."""

    request_timeout_ms: int = 30_000
    """Default 30 s. How long a request without a deadline of its own waits for broker groups."""

    level_max: int = LEVEL_MAX
    """Default: what this program knows. The highest feature level that it speaks: with a lower one
    it behaves as an older program would, for rehearsing an upgrade."""

    stop_ms: int = 500
    """Default 0.5 s. How long running calls may go on at a stop; watches are cut at its end."""

    def __post_init__(self) -> None:
        split_address(self.listen)
        if self.advertise:
            split_address(self.advertise)
        if self.controller_id < 1:
            raise InvalidRequest(f"controller_id is {self.controller_id}; it begins at 1")
        if self.peers and (len(self.peers) not in GROUP_SIZES or min(self.peers) < 1):
            raise InvalidRequest(
                f"peers names the controllers {sorted(self.peers)}: a group has 1, 3 or 5"
            )
        if self.peers and self.controller_id not in self.peers:
            raise InvalidRequest(
                f"controller_id is {self.controller_id}, but peers names {sorted(self.peers)} only"
            )
        for address in self.peers.values():
            split_address(address)
        if self.metadata not in ("", SQLITE, EMBEDDED):
            split_zookeeper(self.metadata)
        elif self.metadata_auth is not None:
            raise InvalidRequest(f"metadata_auth is for ZooKeeper, not for {self.metadata_kind}")
        if self.metadata == SQLITE and len(self.peers) > 1:
            raise InvalidRequest("sqlite holds the metadata of one controller, not of several")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise InvalidRequest(f"metrics_port is {self.metrics_port}; ports end at 65535")
        if not 0 <= self.level_max <= LEVEL_MAX:
            raise InvalidRequest(
                f"level_max is {self.level_max}, this program knows feature levels 0 to {LEVEL_MAX}"
            )
        for name in (
            "node_timeout_ms",
            "preferred_after_ms",
            "broker_call_timeout_ms",
            "request_timeout_ms",
            "stop_ms",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be positive")

    @property
    def metadata_kind(self) -> str:
        """`sqlite`, `embedded` or `zookeeper`."""
        if self.metadata.startswith(ZOOKEEPER):
            return "zookeeper"
        return self.metadata or (EMBEDDED if len(self.peers) > 1 else SQLITE)

    @property
    def loopback(self) -> bool:
        """Only this machine can connect."""
        host, _ = split_address(self.listen)
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def split_zookeeper(url: str) -> tuple[tuple[str, ...], str]:
    """Servers and chroot of zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT; raises InvalidRequest."""
    servers, slash, path = url.removeprefix(ZOOKEEPER).partition("/")
    if "@" in servers:
        raise InvalidRequest("user and password do not belong into the address: use metadata_auth")
    parts = path.rstrip("/").split("/")
    named = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    if not url.startswith(ZOOKEEPER) or not slash or not named:
        raise InvalidRequest(
            f"{url!r} is no place for metadata: write sqlite, embedded or "
            "zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT"
        )
    hosts = tuple(servers.split(","))
    for host in hosts:
        split_address(host)
    return hosts, f"/{'/'.join(parts)}"


def split_address(address: str) -> tuple[str, int]:
    """Host (without brackets) and port of HOST:PORT or [IPV6]:PORT; raises InvalidRequest."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{address!r} is no address: write HOST:PORT, for IPv6 [HOST]:PORT")
    return bare, int(port)
