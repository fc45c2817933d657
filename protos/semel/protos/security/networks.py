"""Networks that an operator has declared private, in which replicas may talk in plaintext.

Not here: what is sent in them in plaintext (the broker's `replication/`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from semel.protos.errors import InvalidRequest

_PEER: Final = re.compile(r"ipv[46]:(?P<host>.+):[0-9]+")

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Networks:
    """A set of IP addresses. False if it is empty."""

    networks: tuple[_Network, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Networks:
        """The union of networks, each ADDRESS/BITS (CIDR). Raises InvalidRequest."""
        found: list[_Network] = []
        for text in texts:
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise InvalidRequest(
                    f"{text!r} is no network: {error}. Write it as 10.1.0.0/16"
                ) from None
        return cls(tuple(found))

    def __bool__(self) -> bool:
        return bool(self.networks)

    def __contains__(self, host: str) -> bool:
        """Whether an IP address is in one of them; False for what is no IP address."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def host_of_peer(peer: str) -> str:
    """Returns the IP address in gRPC's `context.peer()`; empty for what is no IP connection."""
    found = _PEER.fullmatch(unquote(peer))
    return found["host"].strip("[]") if found is not None else ""
