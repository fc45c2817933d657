"""The check of callers at a node: programs of its own cluster alone, and on methods between nodes
only the node that the call claims to come from.

How it works. The handshake has proved that the caller's certificate is of the CA. This decides from
the identity in it: another cluster's is refused, since one CA may serve several clusters; and a
client's certificate, although of the same CA, is not a node. Which methods are for nodes only, and
for which kind, is declared beside each of them in its .proto file (`declared.py`). Most of these
name the caller in their requests as well; `check_node` compares the two.

Without TLS nothing is checked.

Not here: what a client may do with topics and groups (`enforcement.py`).
"""

from __future__ import annotations

from typing import Any

from semel.protos.security.credentials import Security
from semel.protos.security.declared import declared
from semel.protos.security.identity import (
    KINDS,
    Identity,
    check_peer,
    identity_of_auth_context,
)


class Guard:
    """The check of each call's caller at one node."""

    def __init__(self, security: Security | None) -> None:
        self._cluster = None if security is None else security.cluster

    def admit(self, method: str, context: Any) -> None:
        """Checks the caller of `/SERVICE/METHOD`. Raises Unauthenticated, and DeclarationError for
        a method that declares nothing: nobody calls it."""
        if self._cluster is not None:
            what = declared(method)
            kinds = sorted(what.nodes) if what.for_nodes_only else KINDS
            check_peer(caller_of(context), self._cluster, kinds)

    def check_node(self, context: Any, kind: str, node: int) -> None:
        """Checks that the caller is the node that its request names. Raises Unauthenticated."""
        if self._cluster is not None:
            check_peer(caller_of(context), self._cluster, (kind,), str(node))


def caller_of(context: Any) -> Identity | None:
    """Returns the identity that the caller of a gRPC call has proved; None without TLS."""
    return identity_of_auth_context(context.auth_context())
