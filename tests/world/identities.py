"""Identities in a simulated world: what takes the place of certificates and of TLS' handshake.

How it works. A program has an identity where it would have a certificate and a key. Its channels
carry it (`rpc.py`), and nothing is encrypted: bytes of a handshake would not repeat. So the
product's files, credentials and contexts of TLS are exchanged, and all behind them is production
code.

Not here: who has which identity (`parts/rights.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from semel.broker import node as broker_node
from semel.client.transport import cluster as client_cluster
from semel.controller import node as controller_node
from semel.protos.security import credentials, peers
from semel.protos.security.credentials import Security
from semel.protos.security.identity import Identity, identity_of_auth_context
from semel.protos.security.login_facts import CERTIFICATE
from semel.protos.security.peers import Peer


class _Files:
    """Takes the place of `TlsFiles`: the identity alone, without any key."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    @property
    def cluster(self) -> str:
        return self.identity.cluster

    def current(self) -> Any:
        return SimpleNamespace(version=1, identity=self.identity, clients_ca_expires_at=0.0)


class _Peer(Peer):
    """A caller whose certificate does not expire."""

    @property
    def ends(self) -> bool:
        return False


class _Peers:
    """Takes the place of `Peers`: a caller is whoever it says it is."""

    def __init__(self, _: _Files) -> None:
        pass

    def of(self, auth_context: Any) -> Peer | None:
        identity = identity_of_auth_context(auth_context)
        if identity is None:
            return None
        return _Peer(identity=identity, login=CERTIFICATE, scopes=None, expires_s=0.0)


def security(identity: Identity) -> Security:
    """What a program has that could prove this identity."""
    return Security(cast("Any", _Files(identity)))


def _of_node(_: Path, kind: str, number: int, cluster: str) -> Security:
    return security(Identity(kind, str(number), cluster))


@contextmanager
def exchanged() -> Iterator[None]:
    """While the block runs, whoever has TLS has an identity alone."""
    with ExitStack() as stack:
        for target, name, value in (
            (Security, "of_node", staticmethod(_of_node)),
            (peers, "Peers", _Peers),
            (credentials, "_Channel", lambda files, connect: connect(files.current())),
            (credentials, "_credentials", lambda loaded: loaded.identity),
            (credentials, "server_credentials", lambda files: files.identity),
            # Streams of bytes are let in by tickets, which calls give.
            (broker_node, "Contexts", lambda files: None),
            (controller_node, "Contexts", lambda files: None),
            (client_cluster, "Contexts", lambda files: None),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield
