"""Proof of exactly-once: every node of every group recomputes its queues from its own log.

How it works. Each group's master names an index by a confirmed read. All nodes of the group then
recompute the topic's queues and sequence tables as of that index, and the results are compared. The
check waits for a node that lags, also while it starts. A node that is silent for `SILENT_S`, or has
not finished when the time is over, is *unread*: nothing is proven then, and nothing contradicted.
The master also reads what is in the object store, if that is asked for.

Not here: reading the logs (the brokers).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from semel.client.admin.descriptions import VerifiedQueue, VerifyResult
from semel.client.core.routing import TopicRoute
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import BROKER, translate
from semel.protos import compat
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, NodeId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

PROBLEMS_MAX: Final = 50
STATUS_S: Final = 2.0
ATTEMPTS: Final = 3
"""How often all is read anew if queues were trimmed while nodes began."""
SILENT_S: Final = 30.0
"""Seconds of silence that are longer than a node takes to start."""
_COMPARED: Final = (
    "log_start_offset",
    "log_end_offset",
    "messages",
    "delayed",
    "digest",
    "table_digest",
)
_OF_BATCHES: Final = ("messages", "digest")
"""Those that compaction changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """The progress of a verification."""

    bytes_read: int
    bytes_total: int
    nodes_done: int
    nodes_total: int


class Verification:
    """One run over one topic."""

    def __init__(
        self,
        cluster: Cluster,
        on_progress: Callable[[VerifyProgress], object] | None,
        *,
        tier: bool = False,
    ) -> None:
        """`tier`: what is in the object store is read, too."""
        self._tier = tier
        self._tiers: dict[int, Any] = {}
        """What was read in the object store, by queue."""
        self._cluster = cluster
        self._on_progress = on_progress
        self._read: dict[NodeId, tuple[int, int]] = {}
        self._done = 0
        self._total = 0
        """Number of nodes to read."""
        self._problems: list[str] = []
        self._unread: list[str] = []

    async def run(self, name: str, timeout_s: float) -> VerifyResult:
        """Raises UnknownTopic; Unavailable when a group has no master."""
        deadline = time.monotonic() + timeout_s
        route = await self._cluster.topic(name, refresh=True)
        for _ in range(ATTEMPTS):
            found = await self._read_all(route, deadline)
            if not _starts_differ(found):
                break

        queues = [
            self._queue(route, queue.key.queue_id, queue.group_id, found) for queue in route.every
        ]
        messages = sum(queue.messages for queue in queues)
        duplicates = sum(queue.duplicates for queue in queues)
        missing = sum(queue.missing for queue in queues)
        id_duplicates = sum(queue.id_duplicates for queue in queues)
        return VerifyResult(
            ok=not (self._problems or self._unread or duplicates or missing or id_duplicates),
            topic=name,
            messages=messages,
            duplicates=duplicates,
            missing=missing,
            queues=queues,
            nodes_compared=len(found),
            problems=self._problems,
            delayed=sum(queue.delayed for queue in queues),
            id_duplicates=id_duplicates,
            unread=self._unread,
        )

    async def _read_all(
        self, route: TopicRoute, deadline: float
    ) -> dict[tuple[GroupId, NodeId], dict[int, Any]]:
        """Returns what each node recomputed, by queue. Raises Unavailable without a master."""
        self._problems.clear()
        self._unread.clear()
        self._tiers.clear()
        self._done = 0
        groups = sorted({queue.group_id for queue in route.every})
        nodes = {group: self._cluster.routes.nodes(group) for group in groups}
        self._total = sum(len(members) for members in nodes.values())
        indexes = {group: await self._index(group, deadline) for group in groups}
        found: dict[tuple[GroupId, NodeId], dict[int, Any]] = {}
        masters: set[GroupId] = set()

        async def one(group: GroupId, node: NodeId, address: str) -> None:
            index = indexes[group]
            try:
                found[group, node] = await self._node(
                    *(route, group, node, address, index, deadline), masters
                )
            except SemelError as error:
                self._unread.append(f"node {node} ({address}) was not read: {error.message}")
            self._done += 1
            self._report()

        async with compat.TaskGroup() as tasks:
            for group in groups:
                for node, address in nodes[group].items():
                    tasks.create_task(one(group, node, address))
        for group in groups if self._tier else ():
            if group not in masters:
                self._unread.append(f"no master of group {group} read the object store")
        return found

    async def _index(self, group: GroupId, deadline: float) -> int:
        """Returns the index up to which a group is read. Raises Unavailable without a master."""
        left = max(1.0, deadline - time.monotonic())
        timeout_s = min(left, self._cluster.config.request_timeout_ms / 1000)
        status = await self._cluster.call_master(
            group, "GetNodeStatus", broker_pb2.NodeStatusRequest(confirmed=True), timeout_s
        )
        return int(status.commit_index)

    def _problem(self, text: str) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(text)

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                VerifyProgress(
                    bytes_read=sum(read for read, _ in self._read.values()),
                    bytes_total=sum(total for _, total in self._read.values()),
                    nodes_done=self._done,
                    nodes_total=self._total,
                )
            )

    async def _node(
        self,
        route: TopicRoute,
        group: GroupId,
        node: NodeId,
        address: str,
        index: int,
        deadline: float,
        masters: set[GroupId],
    ) -> dict[int, Any]:
        """Returns one node's recomputed queues, by number; a master's group is added to `masters`.
        Raises SemelError."""
        heard = time.monotonic()
        while True:
            late: SemelError | None = None
            try:
                status = await self._cluster.call_node(
                    address, "GetNodeStatus", broker_pb2.NodeStatusRequest(), STATUS_S
                )
                if status.applied_index >= index:
                    break
                heard = time.monotonic()
            except SemelError as error:
                late = error
            if time.monotonic() >= min(deadline, heard + SILENT_S):
                raise late or SemelError(f"it is behind: entry {index} is not applied there yet")
            await asyncio.sleep(0.2)
        request = broker_pb2.VerifyQueuesRequest(
            queues=[queue_ref(queue.key) for queue in route.every if queue.group_id == group],
            index=index,
            tier=self._tier and status.role == "master",
        )
        found: dict[int, Any] = {}
        try:
            stream = self._cluster.connections.stream(
                address, BROKER, "VerifyQueues", request, max(1.0, deadline - time.monotonic())
            )
            async for reply in stream:
                self._read[node] = (reply.bytes_read, reply.bytes_total)
                self._report()
                for queue in reply.queues:
                    found[queue.queue.queue_id] = queue
                for tier in reply.tiers:
                    self._tiers[tier.queue.queue_id] = tier
        except grpc.RpcError as error:
            raise translate(error, address) from None
        if request.tier:
            masters.add(group)
        for number, queue in found.items():
            for problem in queue.problems:
                self._problem(f"node {node}, queue {number}: {problem}")
            if not queue.table_matches:
                self._problem(
                    f"node {node}, queue {number}: the sequence table is not the one"
                    " that the log gives"
                )
        for each in route.every:
            if each.group_id == group and each.key.queue_id not in found:
                self._problem(f"node {node} did not report on queue {each.key.queue_id}")
        return found

    def _tiered(self, number: int) -> Any:
        """Returns what was read of a queue in the object store, and notes what is wrong with it."""
        tier = self._tiers.get(number) or broker_pb2.VerifiedTier()
        for problem in tier.problems:
            self._problem(f"queue {number}, object store: {problem}")
        if tier.unread:
            self._unread.append(f"queue {number}: the object store was not read: {tier.unread}")
        return tier

    def _queue(
        self,
        route: TopicRoute,
        number: int,
        group: GroupId,
        found: dict[tuple[GroupId, NodeId], dict[int, Any]],
    ) -> VerifiedQueue:
        """Returns one queue as its nodes see it; where they differ, the worst of their results."""
        reports = {
            node: queues[number]
            for (owner, node), queues in found.items()
            if owner == group and number in queues
        }
        views = list(reports.values())
        if not views:
            self._unread.append(f"queue {number} of {route.name!r} was read on no node")
        first = views[0] if views else broker_pb2.VerifiedQueue()
        # A queue that was compacted meanwhile holds other batches, with the same newest messages.
        still = all(view.compactions == first.compactions for view in views)
        for field in _COMPARED:
            if field in _OF_BATCHES and not still:
                continue
            if any(getattr(view, field) != getattr(first, field) for view in views):
                shown = ", ".join(
                    f"node {node}: {_shown(getattr(view, field))}"
                    for node, view in sorted(reports.items())
                )
                self._problem(f"queue {number}: nodes differ in {field} ({shown})")
        tier = self._tiered(number)
        return VerifiedQueue(
            queue=number,
            group=group,
            log_start_offset=first.log_start_offset,
            log_end_offset=first.log_end_offset,
            messages=first.messages,
            duplicates=max((view.duplicates for view in views), default=0) + tier.duplicates,
            missing=max((view.missing for view in views), default=0),
            digest=first.digest.hex(),
            delayed=first.delayed,
            id_duplicates=max((view.id_duplicates for view in views), default=0),
            tiered_messages=tier.messages,
            tiered_compared=tier.compared,
        )


def _starts_differ(found: dict[tuple[GroupId, NodeId], dict[int, Any]]) -> bool:
    """Whether nodes began to read a queue at different offsets: it was trimmed, or the log has
    given something up to the object store, while they were asked."""
    starts: dict[int, set[int]] = {}
    for queues in found.values():
        for number, queue in queues.items():
            starts.setdefault(number, set()).add(queue.log_start_offset)
    return any(len(each) > 1 for each in starts.values())


def _shown(value: Any) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)
