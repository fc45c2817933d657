"""The ends of certificates: those that the cluster's ports show, this client's, and the CAs'.

How it works. A port tells its certificate in each handshake. So this connects to it as gRPC does,
reads the certificate, and closes; no call is made, and no permission is needed. The clients' CA
shows in no handshake: nodes tell when the one that they trust expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel.client.admin.descriptions import Described
from semel.client.login import LoggedIn
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.security.credentials import Security, client_context

PATIENCE_S: Final = 2.0
CLIENTS_CA: Final = "the clients' CA"
"""The subject of a report about it; followed by ` of NODE` where nodes differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateReport(Described):
    """One certificate and its end."""

    subject: str
    """Its owner: `broker 2`, `this client`, `the CA`, `the clients' CA`."""
    left_s: int
    """Seconds until it expires; negative after that."""


async def expiring(
    security: Security | None, ports: Mapping[str, str], now_s: float
) -> list[CertificateReport]:
    """Returns the certificates of `ports` (HOST:PORT by subject), of this client and of the CA.

    Ports that do not answer are left out. Without TLS there are none.
    """
    if security is None:
        return []
    loaded = security.files.current()
    ends = {"the CA": loaded.ca_expires_at}
    if not isinstance(security.files, LoggedIn):  # which renews its certificate by itself
        ends["this client"] = loaded.expires_at
    context = client_context(security.files)
    context.set_alpn_protocols(["h2"])  # gRPC's ports take nothing else
    name = security.tls_name()
    found = await asyncio.gather(*(_expires_at(port, context, name) for port in ports.values()))
    ends |= {subject: end for subject, end in zip(ports, found, strict=True) if end is not None}
    return [
        CertificateReport(subject=subject, left_s=int(end - now_s)) for subject, end in ends.items()
    ]


def clients_cas(ends_s: Mapping[str, int], now_s: float) -> list[CertificateReport]:
    """Returns the ends of the clients' CA, by the nodes that trust it; 0 is none."""
    told = {f"{CLIENTS_CA} of {node}": end_s for node, end_s in ends_s.items() if end_s}
    if len(set(told.values())) == 1:
        told = {CLIENTS_CA: next(iter(told.values()))}
    return [
        CertificateReport(subject=subject, left_s=int(end_s - now_s))
        for subject, end_s in told.items()
    ]


async def _expires_at(address: str, context: ssl.SSLContext, name: str) -> float | None:
    """The time at which a port's certificate expires; None without an answer."""
    target = Address.parse(address)
    try:
        async with compat.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(
                target.host, target.port, ssl=context, server_hostname=name
            )
    except (OSError, TimeoutError):
        return None
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert()
        return float(ssl.cert_time_to_seconds(shown["notAfter"]))
    finally:
        with contextlib.suppress(OSError):
            writer.transport.abort()
