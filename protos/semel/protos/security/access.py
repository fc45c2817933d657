"""The check of rules at one node: put together from its parts, with the audit log.

How it works. A node has an `AccessControl` if its settings ask for one. Whoever learns the rules
gives them to it (`take`), and its `checks` stand before the handlers of the node's server. Callers
are known by their certificates, which also say to what a login is narrowed.

Not here: how the rules come to a node (`controller/rights.py`, `control_plane/rights_copy.py` of
the broker).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from semel.protos.errors import Unauthenticated
from semel.protos.security.audit import AuditLog
from semel.protos.security.audited import told_of
from semel.protos.security.enforcement import Caller, CallGuard, Enforcer, Names, Refusal
from semel.protos.security.guard import Guard
from semel.protos.security.identity import ADMIN
from semel.protos.security.rights_record import book_of
from semel.protos.v1.metadata_pb2 import RightsRecord

if TYPE_CHECKING:  # it brings cryptography, which programs without TLS need not load
    from semel.protos.security.peers import Peer


def certified(peer: Peer, address: str) -> Caller:
    """The caller that a certificate names."""
    identity = peer.identity
    if identity.is_node:
        return Caller(
            principal=f"{identity.kind}:{identity.name}", node=identity.kind, address=address
        )
    return Caller(
        principal=f"user:{identity.name}",
        administrator=identity.kind == ADMIN,
        scopes=peer.scopes,
        expires_s=peer.expires_s,
        login=peer.login,
        address=address,
    )


class AccessControl:
    """The object says who may do what at one node."""

    def __init__(
        self,
        cluster: str,
        guard: Guard,
        names: Names,
        audit: AuditLog | None,
        decides: Callable[[], bool] = lambda: True,
    ) -> None:
        """`guard` knows the callers' certificates. `decides` is False while the node only tells
        callers whom to ask. Without `audit` refusals are only counted."""
        self.refused = 0
        """Calls, and messages of streams, that were refused."""
        self.age_s: Callable[[], float] = lambda: 0.0
        """Seconds since the rules were last confirmed to be the newest; 0 where they are made."""
        self._cluster = cluster
        self._guard = guard
        self._version = -1
        self._audit = audit
        self.enforcer = Enforcer(names, self._on_refused, self._on_done)
        self.checks = CallGuard(self.enforcer, self._authenticate, decides)

    @property
    def dropped(self) -> int:
        """Lines that the audit log has lost."""
        return 0 if self._audit is None else self._audit.dropped

    @property
    def version(self) -> int:
        """Version of the rules that decide; -1 for none."""
        return self._version

    def take(self, record: RightsRecord) -> None:
        """From now on these rules decide, unless newer ones do already."""
        if record.version > self._version:
            self.enforcer.take(book_of(record))
            self._version = record.version

    def forget(self, why: str) -> None:
        """Lets only administrators in until rules come again, which may be the same as before."""
        self._version = -1
        self.enforcer.forget(why)

    async def _authenticate(self, context: Any) -> Caller:
        peer = self._guard.admitted()
        if peer is None or peer.identity.cluster != self._cluster:
            raise Unauthenticated(
                f"this node serves only callers with a certificate of cluster {self._cluster}"
            )
        return certified(peer, str(context.peer()))

    def _on_done(self, caller: Caller, method: str, request: Message) -> None:
        if self._audit is not None:
            self._audit.write(
                {
                    "who": caller.principal,
                    "from": caller.address,
                    "method": method,
                    "change": told_of(request),
                    "result": "done",
                }
            )

    def _on_refused(self, refusal: Refusal) -> None:
        self.refused += 1
        if self._audit is None:
            return
        self._audit.write(
            {
                "who": refusal.principal,
                "from": refusal.address,
                "method": refusal.method,
                "action": refusal.action,
                "resource": refusal.resource,
                "result": "denied" if refusal.principal else "unauthenticated",
                "reason": refusal.reason,
            }
        )
