"""An inspection of the whole cluster: the controllers' view, and every node's own report.

How it works. The controllers' view comes first. Then every controller and every broker node is
asked directly, all at once, each for at most `PATIENCE_S`: a node that is silent towards the
controllers may answer here, and the other way round. A node that calls itself master is asked to
have its quorum confirm that. `deep` also inspects consumer groups and named producers, at the
masters that serve; groups without one are left out and named.

A node's clock is compared with this machine's. The node reads its clock between the request and the
receipt of the answer, so the error of the difference is at most half the round trip.

Invariant: after the controllers' view nothing here raises because a node is down.

Not here: what the findings mean (`semel.console.diagnosis`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from semel.client.admin.certificates import CertificateReport, clients_cas, expiring
from semel.client.admin.descriptions import ClusterStatus, Described, GroupSummary, HasReason
from semel.client.transactions.commit import merged
from semel.client.transactions.staging import SERVICE
from semel.client.transactions.transaction_info import TransactionInfo
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import BROKER, CONTROLLER
from semel.protos.errors import SemelError, TimedOut, Unavailable
from semel.protos.ids import GroupId
from semel.protos.levels import UNTOLD_MAX
from semel.protos.v1 import broker_pb2, controller_pb2, transactions_pb2

PATIENCE_S: Final = 2.0
"""Time limit in seconds for one node's answer."""
ROWS_MAX: Final = 10_000
"""Most rows of the sequence table that are read per broker group, whose master answers no other
request meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerReport(HasReason):
    """One controller's own report."""

    address: str
    reason: str
    """Why it did not answer; empty when it did."""
    version: str
    """Empty when it did not say."""
    runtime: str = ""
    """Its Python and its event loop; empty when it did not say."""
    level: int = 0
    """Feature level of the metadata, as the active controller reports it; 0 when it did not say."""
    level_max: int = 0
    """The highest feature level that it knows."""
    started_us: int = 0
    """When it was started, microseconds since the epoch; 0 when it did not say."""
    clients_ca_expires_s: int = 0
    """When the clients' CA in use expires, as it has it, seconds since 1970; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport(Described):
    """A peer as its master sees it."""

    node: int
    behind: int
    """Number of entries that it lacks."""
    active: bool
    """Heard of within the election time."""
    counts: bool
    """A quorum may count it: it is not a non-counting member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckDelayed(HasReason):
    """A queue that was split, and whose next delayed batch cannot be handed to its children."""

    topic_id: int
    queue: int
    due_us: int
    """When the batch is due, microseconds since the epoch."""
    messages: int
    """Messages of the batch."""
    behind: int
    """Delayed messages of the queue that wait for it."""
    reason: str
    """Why it cannot be handed over."""
    topic: str = ""
    """Name of the topic; empty if the controllers do not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport(HasReason):
    """One broker node's own report; without an answer all but the first four fields are empty."""

    node: int
    group: int
    address: str
    reason: str
    """Why it did not answer; empty when it did."""
    role: str = ""
    serving: bool = False
    """It is master, and its quorum confirms it."""
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    log_end_index: int = 0
    synced_index: int = 0
    """Index up to which its own log is durable."""
    queues: int = 0
    producers: int = 0
    """Number of rows of the sequence table."""
    version: str = ""
    runtime: str = ""
    """Its Python and its event loop; empty when it did not say."""
    level: int = 0
    """Feature level of the group's log, as its master reports it; 0 when it did not say."""
    level_max: int = 0
    """The highest feature level that its program knows."""
    started_us: int = 0
    """When it was started, by its machine's clock, microseconds since the epoch; 0 when it did not
    say."""
    non_counting: bool = False
    electable: bool = True
    damaged: int = 0
    lost: int = 0
    disk_full: bool = False
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    """0 when not known."""
    resident_bytes: int = 0
    clock_ms: float = 0.0
    """Its clock minus this machine's, milliseconds."""
    clock_doubt_ms: float = 0.0
    """Largest error of that difference, either way."""
    log_time_us: int = 0
    memory_bytes: int = 0
    """Batches of topics in memory that it has."""
    memory_pulling: bool = False
    """It may lack batches of topics in memory that others have."""
    producer_idle_ms: int = 0
    peers: list[PeerReport] = field(default_factory=list)
    """Reported by a master only."""
    tier: str = ""
    """URL of the object store that it was started with; empty for none."""
    tier_usable: bool = False
    tiered_queues: int = 0
    """Queues of tiered topics, and of those that have something in the object store."""
    tier_overdue_ms: int = 0
    """For how long a message should have been in the object store; a master knows."""
    replication_plaintext_within: tuple[str, ...] = ()
    """Networks in which it replicates in plaintext although it has TLS."""
    clients_ca_expires_s: int = 0
    """When the clients' CA in use expires, as it has it, seconds since 1970; 0 for none."""

    stuck_delayed: list[StuckDelayed] = field(default_factory=list)
    """Delayed messages that cannot be handed to the children of a split; a master knows."""

    FORMER_NAMES = (*HasReason.FORMER_NAMES, "muted")

    @property
    def muted(self) -> bool:
        """Former name of `non_counting`."""
        return self.non_counting


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleProducer(Described):
    """A named producer, and when its oldest row of the sequence table will expire."""

    name: str
    queues: int
    idle_ms: int
    """Log time since its last batch on the queue where that is longest ago."""
    expires_ms: int
    """The time left before that row expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(Described):
    """The findings; `deep` parts are empty when they were not requested."""

    status: ClusterStatus
    controllers: list[ControllerReport]
    nodes: list[NodeReport]
    consumers: list[GroupSummary] = field(default_factory=list)
    producers: list[IdleProducer] = field(default_factory=list)
    certificates: list[CertificateReport] = field(default_factory=list)
    """When certificates expire; empty without TLS."""
    transactions: list[TransactionInfo] = field(default_factory=list)
    """Transactions with open steps."""
    unseen_groups: list[int] = field(default_factory=list)
    """Broker groups without a master that answers; their contents were not inspected."""
    crowded_groups: list[int] = field(default_factory=list)
    """Broker groups with more rows of producers than were read."""

    def of_group(self, group: int) -> list[NodeReport]:
        """Returns the nodes of one broker group."""
        return [node for node in self.nodes if node.group == group]

    def master(self, group: int) -> NodeReport | None:
        """Returns the group's master, if one serves."""
        return next((node for node in self.of_group(group) if node.serving), None)

    def under_replicated(self, group: int) -> list[int]:
        """Returns members that do not answer, or do not follow the group's master: they are silent
        for a second, non-counting, or catching up."""
        found = {node.node for node in self.of_group(group) if node.reason}
        master = self.master(group)
        if master is not None:
            found |= {
                peer.node
                for peer in master.peers
                if not (peer.active and peer.counts and peer.behind <= BEHIND_MAX)
            }
        return sorted(found)


BEHIND_MAX: Final = 1_000
"""Number of entries that a slave under load may lack and still follow: milliseconds' worth."""


async def inspect(cluster: Cluster, status: ClusterStatus) -> Inspection:
    """Asks every controller and every broker node that the controllers know."""
    addresses = dict.fromkeys(
        [*cluster.controllers.addresses, *(c.address for c in status.controllers)]
    )
    controllers = asyncio.gather(*(_controller(cluster, address) for address in addresses))
    nodes = asyncio.gather(
        *(
            _node(cluster, group.id, node.id, node.address)
            for group in status.groups
            for node in group.nodes
        )
    )
    ports = {f"controller {address}": address for address in addresses}
    ports |= {f"broker {node.id}": node.address for group in status.groups for node in group.nodes}
    now_s = time.time()
    shown = await expiring(cluster.connections.security, ports, now_s)
    found = (await controllers, await nodes)
    trusted = {f"controller {one.address}": one.clients_ca_expires_s for one in found[0]}
    trusted |= {f"broker {one.node}": one.clients_ca_expires_s for one in found[1]}
    return Inspection(
        status=status,
        controllers=found[0],
        nodes=found[1],
        certificates=[*shown, *clients_cas(trusted, now_s)],
    )


async def _controller(cluster: Cluster, address: str) -> ControllerReport:
    request = controller_pb2.ClusterStatusRequest(standby=True)
    try:
        reply = await cluster.connections.call(
            address, CONTROLLER, "GetClusterStatus", request, PATIENCE_S
        )
    except SemelError as error:
        return ControllerReport(address=address, reason=_why(error), version="")
    return ControllerReport(
        address=address,
        reason="",
        version=reply.version,
        runtime=reply.runtime,
        level=reply.levels.active,
        level_max=_level_max(reply),
        started_us=reply.started_us,
        clients_ca_expires_s=reply.clients_ca_expires_s,
    )


def _level_max(reply: Any) -> int:
    """Returns the highest level that the sender knows; without that field it may know less."""
    return int(reply.levels.max) if reply.HasField("levels") else UNTOLD_MAX


def _why(error: SemelError) -> str:
    """Returns the reason in a few words, without the address, which is shown beside it."""
    if isinstance(error, TimedOut) or "timed out" in error.message:
        return f"no answer within {PATIENCE_S:g} s"
    if isinstance(error, Unavailable):
        return error.message.rpartition(": ")[2]
    return error.message or type(error).__name__


async def _node(cluster: Cluster, group: int, node: int, address: str) -> NodeReport:
    def silent(reason: str) -> NodeReport:
        return NodeReport(node=node, group=group, address=address, reason=reason)

    async def ask(*, confirmed: bool) -> Any:
        request = broker_pb2.NodeStatusRequest(confirmed=confirmed, tiers=True)
        return await cluster.connections.call(address, BROKER, "GetNodeStatus", request, PATIENCE_S)

    began_s = time.time()
    try:
        reply = await ask(confirmed=False)
    except SemelError as error:
        return silent(_why(error))
    ended_s = time.time()
    if (reply.cluster_id, reply.node_id) != (cluster.routes.cluster_id, node):
        return silent(f"node {reply.node_id} of cluster {reply.cluster_id} listens there")
    serving = reply.role == "master"
    if serving:
        try:
            serving = (await ask(confirmed=True)).role == "master"
        except SemelError:
            serving = False
    return NodeReport(
        node=node,
        group=group,
        address=address,
        reason="",
        role=reply.role,
        serving=serving,
        term=reply.term,
        commit_index=reply.commit_index,
        applied_index=reply.applied_index,
        log_end_index=reply.log_end_index,
        synced_index=reply.synced_index,
        queues=reply.queues,
        producers=reply.producers,
        version=reply.version,
        runtime=reply.runtime,
        level=reply.levels.active,
        level_max=_level_max(reply),
        started_us=reply.started_us,
        non_counting=reply.non_counting,
        electable=reply.electable,
        damaged=reply.damaged,
        lost=reply.lost,
        disk_full=reply.disk_full,
        tier=reply.tier,
        tier_usable=reply.tier_usable,
        tiered_queues=reply.tiered_queues,
        tier_overdue_ms=reply.tier_overdue_ms,
        replication_plaintext_within=tuple(reply.replication_plaintext_within),
        clients_ca_expires_s=reply.clients_ca_expires_s,
        disk_bytes=reply.disk_bytes,
        disk_free_bytes=reply.disk_free_bytes,
        disk_total_bytes=reply.disk_total_bytes,
        resident_bytes=reply.resident_bytes,
        clock_ms=round(reply.wall_us / 1000 - (began_s + ended_s) * 500, 3),
        clock_doubt_ms=round((ended_s - began_s) * 500, 3),
        log_time_us=reply.log_time_us,
        memory_bytes=reply.memory_bytes,
        memory_pulling=reply.memory_pulling,
        producer_idle_ms=reply.producer_idle_ms,
        stuck_delayed=[
            StuckDelayed(
                topic_id=one.queue.topic_id,
                queue=one.queue.queue_id,
                due_us=one.due_us,
                messages=one.messages,
                behind=one.behind,
                reason=one.reason,
            )
            for one in reply.stuck_delayed
        ],
        peers=[
            PeerReport(
                node=peer.node_id,
                behind=max(0, reply.log_end_index - peer.match_index),
                active=peer.active,
                counts=peer.counts,
            )
            for peer in reply.peers
        ],
    )


def with_topics(nodes: Iterable[NodeReport], names: Mapping[int, str]) -> list[NodeReport]:
    """Returns the reports with the names of topics, which nodes tell nobody."""
    return [
        replace(
            node,
            stuck_delayed=[
                replace(one, topic=names.get(one.topic_id, "")) for one in node.stuck_delayed
            ],
        )
        for node in nodes
    ]


async def group_states(cluster: Cluster, masters: Iterable[NodeReport]) -> list[Any]:
    """Returns every consumer group's state on these masters' queues. Masters that fail are left
    out."""
    request = broker_pb2.DescribeGroupOffsetsRequest()
    replies = await _ask_all(cluster, masters, "DescribeGroupOffsets", request)
    return [state for _, reply in replies for state in reply.states]


async def idle_producers(
    cluster: Cluster, masters: Iterable[NodeReport]
) -> tuple[list[IdleProducer], list[int]]:
    """Returns named producers with rows at these masters, those that expire first in front.

    Also returns the broker groups that have more rows than were read.
    """
    request = broker_pb2.DescribeProducersRequest(limit=ROWS_MAX)
    found: dict[str, IdleProducer] = {}
    crowded = []
    for master, reply in await _ask_all(cluster, masters, "DescribeProducers", request):
        crowded += [master.group] if reply.truncated else []
        for row in reply.rows:
            if not row.name:
                continue
            idle_ms = max(0, master.log_time_us - row.last_time_us) // 1000
            before = found.get(row.name)
            found[row.name] = IdleProducer(
                name=row.name,
                queues=1 + (before.queues if before else 0),
                idle_ms=max(idle_ms, before.idle_ms if before else 0),
                expires_ms=min(
                    master.producer_idle_ms - idle_ms,
                    before.expires_ms if before else master.producer_idle_ms,
                ),
            )
    soonest = sorted(found.values(), key=lambda producer: (producer.expires_ms, producer.name))
    return soonest, sorted(crowded)


async def open_transactions(
    cluster: Cluster, masters: Iterable[NodeReport]
) -> list[TransactionInfo]:
    """Returns transactions with open steps at these masters. Masters that fail are left out."""
    request = transactions_pb2.DescribeTransactionsRequest(limit=ROWS_MAX)
    replies = await _ask_all(cluster, masters, "Describe", request, service=SERVICE)
    found = merged({GroupId(master.group): reply for master, reply in replies})
    return [one for one in found if one.state != "idle"]


async def _ask_all(
    cluster: Cluster,
    masters: Iterable[NodeReport],
    method: str,
    request: Any,
    *,
    service: type[Any] = BROKER,
) -> list[tuple[NodeReport, Any]]:
    asked = list(masters)
    replies = await asyncio.gather(
        *(
            cluster.connections.call(master.address, service, method, request, PATIENCE_S)
            for master in asked
        ),
        return_exceptions=True,
    )
    for reply in replies:
        if isinstance(reply, BaseException) and not isinstance(reply, SemelError):
            raise reply
    return [
        (master, reply)
        for master, reply in zip(asked, replies, strict=True)
        if not isinstance(reply, BaseException)
    ]
