"""The check of rules at one node: put together from its parts, with the audit log.

How it works. A node has an `AccessControl` if its settings ask for one. Whoever learns the rules
gives them to it (`take`), and its `checks` stand before the handlers of the node's server. Callers
are known by their certificates.

Not here: how the rules come to a node (`controller/rights.py`, `control_plane/rights_copy.py` of
the broker).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from semel.protos.errors import Unauthenticated
from semel.protos.security.audit import AuditLog
from semel.protos.security.enforcement import Caller, CallGuard, Enforcer, Names, Refusal
from semel.protos.security.identity import ADMIN, Identity, identity_of_auth_context
from semel.protos.security.rights_record import book_of
from semel.protos.v1.metadata_pb2 import RightsRecord


def certified(identity: Identity, address: str) -> Caller:
    """The caller that a certificate names."""
    if identity.is_node:
        return Caller(
            principal=f"{identity.kind}:{identity.name}", node=identity.kind, address=address
        )
    return Caller(
        principal=f"user:{identity.name}",
        administrator=identity.kind == ADMIN,
        address=address,
    )


class AccessControl:
    """The object says who may do what at one node. `close` it after the server."""

    def __init__(
        self,
        cluster: str,
        names: Names,
        audit_log: Path | None,
        decides: Callable[[], bool] = lambda: True,
    ) -> None:
        """BLOCKING. `decides` is False while the node only tells callers whom to ask. Raises
        OSError if the audit log cannot be opened."""
        self.refused = 0
        """Calls, and messages of streams, that were refused."""
        self.age_s: Callable[[], float] = lambda: 0.0
        """Seconds since the rules were last confirmed to be the newest; 0 where they are made."""
        self._cluster = cluster
        self._version = -1
        self._audit = None if audit_log is None else AuditLog(audit_log, time.time)
        self.enforcer = Enforcer(names, self._on_refused, time.time)
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

    def audit(self, event: Mapping[str, str | int | bool]) -> None:
        """Writes a line into the audit log, if there is one."""
        if self._audit is not None:
            self._audit.write(event)

    def close(self) -> None:
        """BLOCKING. Writes what waits for the audit log."""
        if self._audit is not None:
            self._audit.close()

    async def _authenticate(self, context: Any) -> Caller:
        identity = identity_of_auth_context(context.auth_context())
        if identity is None or identity.cluster != self._cluster:
            raise Unauthenticated(
                f"this node serves only callers with a certificate of cluster {self._cluster}"
            )
        return certified(identity, str(context.peer()))

    def _on_refused(self, refusal: Refusal) -> None:
        self.refused += 1
        self.audit(
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
