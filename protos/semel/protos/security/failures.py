"""What gRPC's texts about failed connections mean, in one line each.

Not here: the exceptions that carry the lines (`rpc.py`).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

_CONNECTING: Final = re.compile(
    r"failed to connect to all addresses.*?: ipv[46]:(?P<address>\S+): (?P<reason>.*)", re.DOTALL
)
"""An IPv6 address is percent-encoded."""

CLOSED: Final = "the connection was closed before it served"
"""gRPC does not tell why; `wire_probe.py` finds out."""

_REASONS: Final = (
    (
        "WRONG_VERSION_NUMBER",
        "this program speaks TLS, and the port does not (give the node --tls-dir, or connect "
        "without TLS)",
    ),
    (
        "Hostname Verification Check failed",
        "the certificate there is not that of the node that is meant",
    ),
    ("certificate has expired", "the certificate there has expired, renew it"),
    ("unsupported certificate purpose", "the certificate there is not that of a node"),
    ("CERTIFICATE_VERIFY_FAILED", "the certificate there is not of a CA that this program trusts"),
    (
        "Socket closed",
        f"{CLOSED} (the port speaks TLS and this program does not, or its certificate is refused "
        "there, and the node's log says why)",
    ),
)


def tls_failure(text: str) -> str:
    """Returns HOST:PORT and the reason for a connection that TLS prevented; empty for others."""
    found = _CONNECTING.search(text)
    if found is not None:
        for sign, meaning in _REASONS:
            if sign in found["reason"]:
                return f"{unquote(found['address'])}: {meaning}"
    return ""
