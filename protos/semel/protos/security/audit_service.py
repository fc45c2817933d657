"""The call by which a node's own audit log is read.

Not here: how it is read (`audit_reading.py`), who may (the method's declaration in
`v1/audit.proto`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from semel.protos.errors import InvalidRequest, Unavailable
from semel.protos.security.audit_reading import LINES_MAX, AuditPage, Wanted, read_page
from semel.protos.v1 import audit_pb2, audit_pb2_grpc


class AuditService(audit_pb2_grpc.AuditServicer):
    """Serves semel.protos.v1.Audit; one page is read at a time, in a thread."""

    def __init__(
        self,
        path: Path | None,
        cluster_id: Callable[[], str],
        check: Callable[[object], None] = lambda context: None,
    ) -> None:
        """`path` is the audit log, None if the node keeps none. `check` raises PermissionDenied for
        a caller whom nobody else has checked."""
        self._path = path
        self._cluster_id = cluster_id
        self._check = check
        self._reading = asyncio.Lock()

    async def ReadAudit(  # noqa: N802
        self, request: audit_pb2.ReadAuditRequest, context: object
    ) -> audit_pb2.ReadAuditReply:
        if request.cluster_id != self._cluster_id():
            raise InvalidRequest(
                f"this node belongs to cluster {self._cluster_id()}, the call is for cluster"
                f" {request.cluster_id}"
            )
        self._check(context)
        if self._path is None:
            return audit_pb2.ReadAuditReply(end=True)
        wanted = Wanted(
            search=request.search, result=request.result, limit=request.limit or LINES_MAX
        )
        async with self._reading:
            try:
                page = await asyncio.to_thread(read_page, self._path, request.position, wanted)
            except OSError as error:
                raise Unavailable(f"the audit log cannot be read: {error}") from error
        return _reply(page)


def _reply(page: AuditPage) -> audit_pb2.ReadAuditReply:
    return audit_pb2.ReadAuditReply(
        lines=[audit_pb2.AuditLine(position=at, line=line) for at, line in page.lines],
        begin=page.begin,
        position=page.position,
        end=page.end,
        kept=True,
        scanned_bytes=page.scanned_bytes,
    )


def serve_audit(
    server: grpc.aio.Server,
    path: Path | None,
    cluster_id: Callable[[], str],
    check: Callable[[object], None] = lambda context: None,
) -> None:
    """Has a node's server show its audit log."""
    service = AuditService(path, cluster_id, check)
    audit_pb2_grpc.add_AuditServicer_to_server(service, server)
