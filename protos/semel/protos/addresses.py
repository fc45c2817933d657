"""HOST:PORT: the address of a node, as flags, files and messages write it.

How it works. Settings and messages have addresses as text. `Address.parse` is the only code that
separates host and port; `str` writes the text. The port follows the last colon. An IPv6 host is
written in brackets, `[::1]:7070`. One without brackets is understood too, because the port is never
left out.

Invariants
1. `Address.parse(str(address)) == address`.
2. `host` has no brackets, as sockets and `getaddrinfo` expect it.

Not here: several addresses in one text (`client/config.py`, `controller/config.py`).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Final

from semel.protos.errors import InvalidRequest

PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a node listens or is reached."""

    host: str
    """A name, an IPv4 address or an IPv6 address without brackets; never empty."""
    port: int
    """0 to 65,535; 0 asks the system for a free port."""

    @classmethod
    def parse(cls, text: str, *, what: str = "address", port_min: int = 0) -> Address:
        """Returns the address that HOST:PORT or [IPV6]:PORT names.

        `what` names the text's purpose in errors. Raises InvalidRequest.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port or text.endswith("]"):
            raise _invalid(what, text, "it has no port")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if "[" in host or "]" in host:
            raise _invalid(what, text, "its brackets do not enclose the host")
        if not host:
            raise _invalid(what, text, "it has no host")
        if not (port.isascii() and port.isdigit()):
            raise _invalid(what, text, f"its port {port!r} is not a number")
        # The length is checked first: Python refuses to convert thousands of digits.
        number = int(port) if len(port.lstrip("0")) <= len(str(PORT_MAX)) else PORT_MAX + 1
        if not port_min <= number <= PORT_MAX:
            raise _invalid(what, text, f"its port is not between {port_min} and {PORT_MAX}")
        return cls(host, number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def with_port(self, port: int) -> Address:
        """Returns the same host with another port."""
        return replace(self, port=port)

    @property
    def loopback(self) -> bool:
        """Whether only programs on the same machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _invalid(what: str, text: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} {text!r} is not HOST:PORT: {reason}. Write for example 127.0.0.1:7070, or "
        "[::1]:7070 for IPv6"
    )
