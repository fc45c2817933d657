"""The audit logs of a cluster, read as one: the newest lines of all nodes first.

How it works. Each node and controller is asked for its own lines, the newest first, and the pages
are merged by time. What a node has not been asked for yet may be newer than what another one has
told, so a node whose lines are used up is asked again before the merge goes on. A page says for
each node where the next one begins; a node that is away stays where it was.

Invariants
1. Lines of one node keep the order in which it wrote them, whatever its clock did.
2. Pages that follow one another have each line of a node that answers once.

Not here: what is written (`semel.protos.security.audit` and who calls it).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from semel.client.admin.descriptions import Described
from semel.client.admin.settings import AskedNode
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, PermissionDenied, SemelError, UnsupportedVersion
from semel.protos.v1 import audit_pb2, audit_pb2_grpc

AUDIT: Final = audit_pb2_grpc.AuditStub
AUDIT_LINES: Final = 100
"""Lines of a page."""
LINES_MAX: Final = 500
CALL_S: Final = 5.0
_ROUNDS: Final = 16
"""How often nodes are asked for one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent(Described):
    """One line of a node's audit log."""

    node: str
    """The node that wrote it: `broker 2`, `controller 1`."""
    time: str
    """When, by that node's clock, in ISO 8601."""
    who: str
    """The caller, such as `user:anna`; empty if nobody knows."""
    address: str
    """Where the call came from."""
    method: str
    """The call, without its service."""
    result: str
    """`denied`, `unauthenticated`, `done`, `changed`, `refused`, …"""
    what: str
    """What was changed, the way of a login, or the action and what it was about."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLog(Described):
    """A node whose audit log could not be read."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage(Described):
    """Lines of all nodes, the newest first."""

    events: list[AuditEvent]
    positions: dict[str, str]
    """Where the next page begins, by node."""
    end: bool
    """No node has older lines."""
    unread: list[UnreadLog]
    """Nodes that did not answer."""
    without: list[str]
    """Nodes that keep no audit log."""
    scanned_bytes: int
    """Bytes of lines that were looked at."""


@dataclass(slots=True)
class _Log:
    """One node's log, as far as it was read."""

    node: AskedNode
    position: str
    """Where the next page begins, by what was taken so far."""
    lines: list[tuple[str, AuditEvent]] = field(default_factory=list)
    """What was read and not taken, the newest last, each with the position behind it."""
    onwards: str = ""
    """Where to go on once all lines are taken."""
    end: bool = False
    kept: bool = True
    failed: SemelError | None = None

    @property
    def is_open(self) -> bool:
        """It must be asked before the merge can go on."""
        return not (self.lines or self.end or self.failed)

    def add(self, reply: audit_pb2.ReadAuditReply) -> None:
        """Takes what the node has told."""
        self.lines = [
            (line.position, event_of(str(self.node), line.line)) for line in reversed(reply.lines)
        ]
        self.position = reply.begin
        self.onwards = reply.position
        self.end, self.kept = reply.end, reply.kept
        if not self.lines:
            self.position = self.onwards

    def take(self) -> AuditEvent:
        """Returns the newest line that is left."""
        self.position, event = self.lines.pop()
        if not self.lines:
            self.position = self.onwards
        return event


def event_of(node: str, line: str) -> AuditEvent:
    """Returns what a line tells; what it does not tell is empty. Pure."""
    found = json.loads(line)

    def text(name: str) -> str:
        return str(found.get(name, ""))

    what = text("change") or text("login") or f"{text('action')} {text('resource')}".strip()
    return AuditEvent(
        node=node,
        time=text("time"),
        who=text("who"),
        address=text("from"),
        method=text("method").rpartition("/")[2],
        result=text("result"),
        what=what,
        reason=text("reason"),
    )


def merge(logs: Collection[_Log], events: list[AuditEvent], limit: int) -> None:
    """Moves the newest lines to `events` until it has `limit`, or a log must be asked again."""
    while len(events) < limit and not any(log.is_open for log in logs):
        ready = [log for log in logs if log.lines]
        if not ready:
            return
        events.append(max(ready, key=lambda log: _moment(log.lines[-1][1])).take())


def _moment(event: AuditEvent) -> float:
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:
        return 0.0


async def read_audit(
    cluster: Cluster,
    nodes: Collection[AskedNode],
    positions: Mapping[str, str],
    search: str,
    result: str,
    limit: int,
) -> AuditPage:
    """Returns the page of these nodes' logs that begins at `positions`. Raises PermissionDenied if
    a node refuses and none answers, InvalidRequest, or the error of the nodes if none answers."""
    if not 1 <= limit <= LINES_MAX:
        raise InvalidRequest(f"a page of the audit log has 1 to {LINES_MAX} lines, not {limit}")
    logs = [_Log(node, positions.get(str(node), "")) for node in nodes]
    events: list[AuditEvent] = []
    scanned = 0
    for log in logs:
        log.onwards = log.position
    for _ in range(_ROUNDS):
        asked = [log for log in logs if log.is_open]
        if len(events) == limit or not asked:
            break
        requests = [
            audit_pb2.ReadAuditRequest(
                cluster_id=cluster.routes.cluster_id,
                position=log.onwards,
                search=search,
                result=result,
                limit=limit,
            )
            for log in asked
        ]
        replies = await asyncio.gather(*map(_asking(cluster), asked, requests))
        for log, reply in zip(asked, replies, strict=True):
            if isinstance(reply, SemelError):
                log.failed = reply
            else:
                scanned += reply.scanned_bytes
                log.add(reply)
        merge(logs, events, limit)
    failed = [log for log in logs if log.failed is not None]
    if failed and len(failed) == len(logs):
        errors = [log.failed for log in failed if log.failed is not None]
        denied = [error for error in errors if isinstance(error, PermissionDenied)]
        raise (denied or errors)[0]
    return AuditPage(
        events=events,
        positions={str(log.node): log.position for log in logs if log.position},
        end=all(log.end and not log.lines for log in logs if log.failed is None),
        unread=[UnreadLog(node=str(log.node), reason=_reason(log.failed)) for log in failed],
        without=[str(log.node) for log in logs if not log.kept],
        scanned_bytes=scanned,
    )


def _asking(cluster: Cluster) -> Any:
    """What asks one node, and returns its reply or its error."""

    async def ask(log: _Log, request: audit_pb2.ReadAuditRequest) -> Any:
        try:
            return await cluster.connections.call(
                log.node.address, AUDIT, "ReadAudit", request, CALL_S
            )
        except InvalidRequest:
            raise
        except SemelError as error:
            return error

    return ask


def _reason(error: SemelError | None) -> str:
    if isinstance(error, UnsupportedVersion):
        return "it is too old to tell its audit log"
    return "" if error is None else error.message or type(error).__name__
