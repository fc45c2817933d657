"""The check of callers at a node: programs of its own cluster alone, and on services between nodes
only the node that the call claims to come from.

How it works. The handshake has proved that the caller's certificate is of the CA. This decides from
the identity in it: another cluster's is refused, since one CA may serve several clusters; and a
client's certificate, although of the same CA, is not a node. Services between nodes name the caller
in their requests as well; `check_node` compares the two.

Without TLS nothing is checked.

Not here: what a client may do with topics and groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from semel.protos.security.credentials import Security
from semel.protos.security.identity import (
    ADMIN,
    BROKER,
    CONTROLLER,
    KINDS,
    NODES,
    Identity,
    check_peer,
    identity_of_auth_context,
)

_V1: Final = "semel.protos.v1"
CALLERS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_V1}.RaftPeer": (BROKER,),
    f"{_V1}.Snapshots": (BROKER,),
    f"{_V1}.Moves": NODES,
    f"{_V1}.MetadataGroup": (CONTROLLER,),
    f"{_V1}.Broker/ApplyQueues": (CONTROLLER,),
    f"{_V1}.Controller/ReportNode": (BROKER,),
    f"{_V1}.Controller/FoundGroup": (BROKER, ADMIN),
}
"""Services and methods that only some kinds of identities may call; all others are for all."""


class Guard:
    """The check of each call's caller at one node."""

    def __init__(self, security: Security | None) -> None:
        self._cluster = None if security is None else security.cluster

    def admit(self, method: str, context: Any) -> None:
        """Checks the caller of `/SERVICE/METHOD`. Raises Unauthenticated."""
        if self._cluster is not None:
            path = method.strip("/")
            kinds = CALLERS.get(path) or CALLERS.get(path.partition("/")[0], KINDS)
            check_peer(caller_of(context), self._cluster, kinds)

    def check_node(self, context: Any, kind: str, node: int) -> None:
        """Checks that the caller is the node that its request names. Raises Unauthenticated."""
        if self._cluster is not None:
            check_peer(caller_of(context), self._cluster, (kind,), str(node))


def caller_of(context: Any) -> Identity | None:
    """Returns the identity that the caller of a gRPC call has proved; None without TLS."""
    return identity_of_auth_context(context.auth_context())
