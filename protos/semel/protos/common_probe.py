"""The metrics that brokers and controllers have alike: calls by their class, connections by their
port, the machine's clock, and when certificates expire.

Not here: text and HTTP (`metrics.py`), the bounds (`call_gates.py`, `connection_limits.py`,
`grpc_port.py`), the certificates (`security/tls_files.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from semel.protos.call_gates import CallGates
from semel.protos.connection_limits import Connections
from semel.protos.grpc_port import GrpcPortWatch
from semel.protos.metrics import Metric, Samples
from semel.protos.security.credentials import Security

CERTIFICATES: Final = ("own", "ca", "clients-ca")
"""The values of the label `certificate`."""


def common_metrics(part: str) -> tuple[Metric, ...]:
    """The metrics of a `part`: `broker` or `controller`."""
    begin = f"semel_{part}_"
    return (
        Metric(
            name=f"{begin}running_calls",
            kind="gauge",
            unit="calls",
            text="Calls that go on, by their class.",
            labels=("call_class",),
        ),
        Metric(
            name=f"{begin}waiting_calls",
            kind="gauge",
            unit="calls",
            text="Calls that wait until others of their class have ended.",
            labels=("call_class",),
        ),
        Metric(
            name=f"{begin}overflowed_calls_total",
            kind="counter",
            unit="calls",
            text="Calls that were refused because too many of their class waited.",
            labels=("call_class",),
        ),
        Metric(
            name=f"{begin}connections",
            kind="gauge",
            unit="connections",
            text="Connections at a port: `grpc`, or `streams` for direct streams of clients.",
            labels=("port",),
        ),
        Metric(
            name=f"{begin}refused_connections_total",
            kind="counter",
            unit="connections",
            text="Connections that were ended because there were too many, from one address or in"
            " all.",
            labels=("port",),
        ),
        Metric(
            name=f"{begin}clock_timestamp_seconds",
            kind="gauge",
            unit="seconds",
            text="This machine's clock when the page was made, since 1970.",
        ),
        Metric(
            name=f"{begin}certificate_expiry_timestamp_seconds",
            kind="gauge",
            unit="seconds",
            text="When a certificate expires, since 1970: this node's `own`, the `ca` it trusts,"
            " the `clients-ca` of logins. With TLS only.",
            labels=("certificate",),
        ),
    )


class CommonProbe:
    """The figures of one node."""

    def __init__(
        self,
        gates: CallGates,
        grpc_port: GrpcPortWatch,
        streams: Connections | None = None,
        security: Security | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """`streams` are the connections at the port of direct streams, where there is one."""
        self._gates = gates
        self._grpc_port = grpc_port
        self._streams = streams
        self._security = security
        self._wall_s = wall_s

    def add(self, page: Samples, part: str) -> None:
        """Adds all figures to the page of a `part`."""
        begin = f"semel_{part}_"
        for gate in self._gates:
            labels = {"call_class": gate.limits.name}
            page.add(f"{begin}running_calls", gate.running, **labels)
            page.add(f"{begin}waiting_calls", gate.waiting, **labels)
            page.add(f"{begin}overflowed_calls_total", gate.refused, **labels)
        grpc = self._grpc_port
        refused = grpc.connections.refused + grpc.strangers_refused
        page.add(f"{begin}connections", grpc.connections.count, port="grpc")
        page.add(f"{begin}refused_connections_total", refused, port="grpc")
        if self._streams is not None:
            page.add(f"{begin}connections", self._streams.count, port="streams")
            page.add(f"{begin}refused_connections_total", self._streams.refused, port="streams")
        page.add(f"{begin}clock_timestamp_seconds", self._wall_s())
        if self._security is not None:
            files = self._security.files.current()
            times = (files.expires_at, files.ca_expires_at, files.clients_ca_expires_at)
            for name, expires_s in zip(CERTIFICATES, times, strict=True):
                if expires_s:  # 0: there is none
                    metric = f"{begin}certificate_expiry_timestamp_seconds"
                    page.add(metric, expires_s, certificate=name)
