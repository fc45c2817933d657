"""The check of callers at a node: programs of its own cluster alone, and on methods between nodes
only the node that the call claims to come from.

How it works. The handshake has proved that the caller's certificate is of the CA. This decides from
the identity in it: another cluster's is refused, since one CA may serve several clusters; and a
client's certificate, although of the same CA, is not a node. Which methods are for nodes only, and
for which kind, is declared beside each of them in its .proto file (`declared.py`). Most of these
name the caller in their requests as well; `check_node` compares the two. A connection may outlive
the certificate that opened it, so the end of a client's certificate is looked at in every call.

What `admit` has read of the caller's certificate stays known for as long as its call runs
(`admitted`), so that it is read once.

Without TLS nothing is checked.

Not here: what a certificate proves (`peers.py`), what a client may do with topics and groups
(`enforcement.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from semel.protos.errors import Unauthenticated
from semel.protos.security.credentials import Security
from semel.protos.security.declared import declared
from semel.protos.security.identity import (
    KINDS,
    check_peer,
)

if TYPE_CHECKING:  # they bring cryptography, which programs without TLS need not load
    from semel.protos.security.peers import Peer, Peers
    from semel.protos.security.tls_files import TlsFiles


_ADMITTED: ContextVar[Peer | None] = ContextVar("admitted", default=None)
"""The caller of the call that runs, as its certificate proves it; each call is a task of its own,
and none begins without `admit`."""


class Guard:
    """The check of each call's caller at one node."""

    def __init__(self, security: Security | None, wall_s: Callable[[], float] = time.time) -> None:
        """`wall_s` is the wall clock, by which certificates expire."""
        self._wall_s = wall_s
        self.security = security
        """How this node proves who it is; None without TLS."""
        self._cluster = None if security is None else security.cluster
        self._peers: Peers | None = None
        if security is not None:
            from semel.protos.security.peers import Peers

            self._peers = Peers(cast("TlsFiles", security.files))  # a node has files

    def admit(self, method: str, context: Any) -> float | None:
        """Checks the caller of `/SERVICE/METHOD`. Returns the seconds after which it proves nothing
        any more; None for never, and for a method that is public. Raises Unauthenticated, and
        DeclarationError for a method that
        declares nothing: nobody calls it."""
        if self._cluster is None:
            return None
        what = declared(method)
        if what.public:
            return None
        kinds = sorted(what.nodes) if what.for_nodes_only else KINDS
        peer = self.peer(context)
        check_peer(None if peer is None else peer.identity, self._cluster, kinds)
        _ADMITTED.set(peer)
        return self._left_s(peer)

    @staticmethod
    def admitted() -> Peer | None:
        """Returns what the certificate of the running call's caller proves; None without TLS."""
        return _ADMITTED.get()

    def left_s(self, context: Any) -> float | None:
        """The seconds after which the caller proves nothing any more; None for never. Raises
        Unauthenticated for one whose certificate has expired since it connected."""
        return self._left_s(self.peer(context))

    def _left_s(self, peer: Peer | None) -> float | None:
        if peer is None or not peer.ends:
            return None
        left_s = peer.expires_s - self._wall_s()
        if left_s <= 0:
            raise Unauthenticated(
                f"the certificate of {peer.identity} has expired: connect with a new one"
            )
        return left_s

    def check_node(self, context: Any, kind: str, node: int) -> None:
        """Checks that the caller is the node that its request names. Raises Unauthenticated."""
        if self._cluster is not None:
            peer = self.peer(context)
            found = None if peer is None else peer.identity
            check_peer(found, self._cluster, (kind,), str(node))

    def peer(self, context: Any) -> Peer | None:
        """Returns what the caller's certificate proves; None without TLS, and for a certificate
        that names nobody."""
        return None if self._peers is None else self._peers.of(context.auth_context())
