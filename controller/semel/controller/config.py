"""Settings of one controller, validated at construction."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from semel.protos.errors import InvalidRequest


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

    metrics_port: int | None = None
    """Port of `GET /metrics`, on the host of `listen`; 0 takes a free one. Default: none, the
    controller is measured by nobody."""

    node_timeout_ms: int = 2_000
    """Default 2 s. A broker node that was silent for longer is shown as not alive; ten reports."""

    broker_call_timeout_ms: int = 5_000
    """Default 5 s. One call to one broker node: longer than an election, so that a call during one
    succeeds, shorter than a client's patience."""

    request_timeout_ms: int = 30_000
    """Default 30 s. How long a request without a deadline of its own waits for broker groups."""

    stop_ms: int = 500
    """Default 0.5 s. How long running calls may go on at a stop; watches are cut at its end."""

    def __post_init__(self) -> None:
        split_address(self.listen)
        if self.advertise:
            split_address(self.advertise)
        if self.controller_id < 1:
            raise InvalidRequest(f"controller_id is {self.controller_id}; it begins at 1")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise InvalidRequest(f"metrics_port is {self.metrics_port}; ports end at 65535")
        for name in ("node_timeout_ms", "broker_call_timeout_ms", "request_timeout_ms", "stop_ms"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be positive")

    @property
    def loopback(self) -> bool:
        """Only this machine can connect."""
        host, _ = split_address(self.listen)
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """Host (without brackets) and port of HOST:PORT or [IPV6]:PORT; raises InvalidRequest."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{address!r} is no address: write HOST:PORT, for IPv6 [HOST]:PORT")
    return bare, int(port)
