"""Identities: which program, or which person, of which cluster is at the other end.

How it works. An identity is a kind, a name and a cluster, and a certificate states it as a URI
among its alternative names: `semel://CLUSTER/KIND/NAME`, each part percent-encoded. For a node the
name is its number. A node's certificate has two DNS names as well, and no other certificate has
them: `KIND-NAME.CLUSTER.semel` for this node, and `node.CLUSTER.semel` for any node of the cluster.
They are no names of machines: whoever connects asks TLS for the name of the node that it means, so
the handshake itself fails when another one answers (docs/decisions/security.md).

Invariants
1. `parse_uri(identity.uri) == identity`, and different identities have different URIs.
2. A certificate with two different identities has none.

Not here: the certificates (`certificates.py`), what an identity may do.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from semel.protos.errors import InvalidRequest, Unauthenticated

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
CLIENT: Final = "client"
ADMIN: Final = "admin"
KINDS: Final = (BROKER, CONTROLLER, CLIENT, ADMIN)
NODES: Final = (BROKER, CONTROLLER)
"""Kinds that are programs of the cluster itself; their names are numbers."""
NAME_CHARS_MAX: Final = 200

_SCHEME: Final = "semel"
_URI: Final = re.compile(r"semel://(?P<cluster>[^/]+)/(?P<kind>[a-z]+)/(?P<name>[^/]+)")
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class Identity:
    """One program or person of a cluster. Raises InvalidRequest for parts that make no sense."""

    kind: str
    """One of KINDS."""
    name: str
    """A node's number, 1 and up; else the name of the client or administrator."""
    cluster: str
    """The id of the cluster."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"{self.kind!r} is no kind of identity: use one of {KINDS}")
        if self.kind in NODES and not _NUMBER.fullmatch(self.name):
            raise InvalidRequest(f"a {self.kind} has a number from 1 up, not {self.name!r}")
        for what, text in (("name", self.name), ("cluster", self.cluster)):
            if not 0 < len(text) <= NAME_CHARS_MAX or not text.isprintable():
                raise InvalidRequest(
                    f"{text!r} is no {what} of an identity: it has 1 to {NAME_CHARS_MAX} printable "
                    "characters"
                )

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of cluster {self.cluster}"

    @property
    def uri(self) -> str:
        """`semel://CLUSTER/KIND/NAME`."""
        return f"{_SCHEME}://{quote(self.cluster, safe='')}/{self.kind}/{quote(self.name, safe='')}"

    @property
    def is_node(self) -> bool:
        """Whether this is a program of the cluster itself."""
        return self.kind in NODES

    @property
    def tls_name(self) -> str:
        """The DNS name in this node's certificate, which is the name to ask TLS for."""
        assert self.is_node, f"{self} has no name in TLS"
        return f"{self.kind}-{self.name}.{_label(self.cluster)}.{_SCHEME}"


def cluster_uri(cluster: str) -> str:
    """`semel://CLUSTER`, which the certificate of a cluster's CA states."""
    return f"{_SCHEME}://{quote(cluster, safe='')}"


def cluster_of_uri(uri: str) -> str:
    """Returns the cluster that `cluster_uri` names. Raises InvalidRequest."""
    cluster = unquote(uri.removeprefix(f"{_SCHEME}://"))
    if not cluster or cluster_uri(cluster) != uri:
        raise InvalidRequest(f"{uri!r} names no cluster: it would be semel://CLUSTER")
    return cluster


def any_node(cluster: str) -> str:
    """Returns the DNS name in the certificates of all nodes of the cluster."""
    return f"node.{_label(cluster)}.{_SCHEME}"


def parse_uri(uri: str) -> Identity:
    """Returns the identity that a URI states. Raises InvalidRequest."""
    parts = _URI.fullmatch(uri)
    if parts is None:
        raise InvalidRequest(f"{uri!r} is no identity: it would be semel://CLUSTER/KIND/NAME")
    try:
        cluster, name = (unquote(parts[part], errors="strict") for part in ("cluster", "name"))
    except UnicodeDecodeError:
        raise InvalidRequest(f"{uri!r} is no identity: it is not UTF-8") from None
    identity = Identity(parts["kind"], name, cluster)
    if identity.uri != uri:
        raise InvalidRequest(f"{uri!r} is no identity: it would be written {identity.uri!r}")
    return identity


def identity_of_uris(uris: Iterable[str]) -> Identity | None:
    """Returns the one identity among a certificate's alternative names; None without one."""
    found: set[Identity] = set()
    for uri in uris:
        if uri.startswith(f"{_SCHEME}://"):
            try:
                found.add(parse_uri(uri))
            except InvalidRequest:
                return None
    return found.pop() if len(found) == 1 else None


def identity_of_auth_context(auth_context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """Returns the caller's identity from gRPC's `context.auth_context()`; None without TLS."""
    names = auth_context.get("x509_subject_alternative_name", ())
    return identity_of_uris(name.decode("utf-8", "replace") for name in names)


def identity_of_ssl(ssl_object: Any) -> Identity | None:
    """Returns the peer's identity from an `ssl.SSLObject` or `ssl.SSLSocket` after the handshake;
    None without a certificate, and None for no TLS (`ssl_object` is None)."""
    certificate = None if ssl_object is None else ssl_object.getpeercert()
    names = (certificate or {}).get("subjectAltName", ())
    return identity_of_uris(name for kind, name in names if kind == "URI")


def auth_context_of_ssl(ssl_object: Any) -> Mapping[str, Sequence[bytes]]:
    """Returns what gRPC's `context.auth_context()` tells of a peer with this certificate; nothing
    without one. The certificates between it and the CA are not in it: whoever has some is read as
    one that has none."""
    certificate = None if ssl_object is None else ssl_object.getpeercert()
    if not certificate:
        return {}
    pem = ssl.DER_cert_to_PEM_cert(ssl_object.getpeercert(binary_form=True))
    names = certificate.get("subjectAltName", ())
    return {
        "x509_subject_alternative_name": [name.encode() for _, name in names],
        "x509_pem_cert": [pem.encode()],
    }


def check_peer(
    found: Identity | None, cluster: str, kinds: Iterable[str] = KINDS, name: str | None = None
) -> Identity:
    """Returns `found` if it is of this cluster, one of `kinds` and named `name` (None for any).

    Raises Unauthenticated.
    """
    kinds = tuple(kinds)
    wanted = f"{' or '.join(kinds)}{f' {name}' if name else ''} of cluster {cluster}"
    if found is None:
        raise Unauthenticated(f"this call is for a {wanted}; the certificate names no one")
    if found.cluster != cluster or found.kind not in kinds or name not in (None, found.name):
        raise Unauthenticated(f"this call is for a {wanted}; the certificate is that of {found}")
    return found


def _label(cluster: str) -> str:
    """The cluster as one label of a DNS name; a digest for what does not fit into one."""
    if _DNS_LABEL.fullmatch(cluster):
        return cluster
    return f"x-{hashlib.sha256(cluster.encode()).hexdigest()[:40]}-x"
