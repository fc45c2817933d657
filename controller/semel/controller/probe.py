"""The metrics of a controller: what `GET /metrics` tells about it and the cluster.

How it works. Each request for the page reads all figures from the parts that own them. A standby
knows nothing about the cluster and shows only itself.

Not here: text and HTTP (`protos/metrics.py`), what an operator does about them
(docs/alerts.md).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Final, Protocol

from semel.controller.active.active_controller import ActiveController
from semel.controller.brokers.liveness import MASTER
from semel.protos.common_probe import CommonProbe, common_metrics
from semel.protos.metrics import Metric, Samples
from semel.protos.security.access import AccessControl
from semel.protos.security.audit import AuditLog
from semel.protos.v1.controller_pb2 import GroupStatus

MEMBER_ROLES: Final = (MASTER, "slave")
"""Roles of a broker node that takes part; nodes with other roles catch up, look for a master, or
wait."""


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(
        name=f"semel_controller_{name}", kind="gauge", unit=unit, text=text, labels=labels
    )


def _counter(name: str, unit: str, text: str) -> Metric:
    return Metric(name=f"semel_controller_{name}", kind="counter", unit=unit, text=text, labels=())


COMMON: Final = ("controller",)
"""Label of every sample."""

METRICS: Final = (
    _gauge("info", "1", "This program.", "version"),
    _gauge("in_office", "1", "1 for the master, 0 for a standby, which shows no more than this."),
    _gauge("office", "number", "How often a controller became master of this cluster."),
    _gauge("route_version", "version", "Version of the routes; rises with every change."),
    _gauge("broker_groups", "groups", "Broker groups ever heard of."),
    _gauge("masterless_groups", "groups", "Broker groups whose master is unknown or silent."),
    _gauge(
        "under_replicated_groups",
        "groups",
        "Broker groups of which a node is silent, or neither master nor slave.",
    ),
    _gauge("broker_nodes", "nodes", "Broker nodes of all groups."),
    _gauge("silent_broker_nodes", "nodes", "Broker nodes that have not reported in time."),
    _gauge("group_queues", "queues", "Queues placed on a broker group.", "broker_group"),
    _gauge("topics", "topics", "Topics that clients can use."),
    _gauge("unfinished_topics", "topics", "Topics being created, altered or deleted."),
    _gauge("consumer_groups", "groups", "Consumer groups."),
    _gauge("consumer_members", "members", "Members of all consumer groups."),
    _counter(
        "refused_calls_total",
        "calls",
        "Calls that the rules did not allow. With --authorization only.",
    ),
    _counter(
        "audit_dropped_lines_total",
        "lines",
        "Lines of the audit log that were lost. With --authorization or --login-listen only.",
    ),
    _counter(
        "logins_total",
        "certificates",
        "Certificates that clients got for a token or a password. With --login-listen only.",
    ),
    _counter(
        "refused_logins_total", "logins", "Logins that were refused. With --login-listen only."
    ),
    *common_metrics("controller"),
)


def masterless(group: GroupStatus) -> bool:
    """Whether no node takes this group's writes, as far as this controller knows."""
    return not any(node.node_id == group.master_id and node.alive for node in group.nodes)


def under_replicated(group: GroupStatus) -> bool:
    """Whether a node of the group does not take part."""
    return not all(node.alive and node.role in MEMBER_ROLES for node in group.nodes)


class LoginCounts(Protocol):
    """Totals of the port for logins."""

    logins: int
    refused: int


class Probe:
    """The figures of one controller. `active` gives the active controller, None while a standby."""

    def __init__(
        self,
        controller_id: int,
        active: Callable[[], ActiveController | None],
        access: AccessControl | None = None,
        audit: AuditLog | None = None,
        logins: Callable[[], LoginCounts | None] = lambda: None,
        common: CommonProbe | None = None,
    ) -> None:
        """`logins` gives the counts of the port for logins; None while there is none."""
        self._access = access
        self._common = common
        self._audit = audit
        self._logins = logins
        self._controller_id = controller_id
        self._active = active

    async def page(self) -> Samples:
        """All figures as of now."""
        page = Samples(METRICS, {COMMON[0]: str(self._controller_id)})
        active = self._active()
        page.add("semel_controller_info", 1, version=version("semel"))
        page.add("semel_controller_in_office", active is not None)
        if self._common is not None:
            self._common.add(page, "controller")
        if self._access is not None:
            page.add("semel_controller_refused_calls_total", self._access.refused)
        if self._audit is not None:
            page.add("semel_controller_audit_dropped_lines_total", self._audit.dropped)
        if (logins := self._logins()) is not None:
            page.add("semel_controller_logins_total", logins.logins)
            page.add("semel_controller_refused_logins_total", logins.refused)
        if active is not None:
            _add_cluster(page, active)
        return page


def _add_cluster(page: Samples, active: ActiveController) -> None:
    groups = active.registry.status()
    nodes = [node for group in groups for node in group.nodes]
    consumer_groups, members = active.memberships.counts()
    page.add("semel_controller_office", active.epoch.number)
    page.add("semel_controller_route_version", active.routes.version)
    page.add("semel_controller_broker_groups", len(groups))
    page.add("semel_controller_masterless_groups", sum(map(masterless, groups)))
    page.add("semel_controller_under_replicated_groups", sum(map(under_replicated, groups)))
    page.add("semel_controller_broker_nodes", len(nodes))
    page.add("semel_controller_silent_broker_nodes", sum(not node.alive for node in nodes))
    for group in groups:
        page.add("semel_controller_group_queues", group.queues, broker_group=group.group_id)
    page.add("semel_controller_topics", len(active.topics.names()))
    page.add("semel_controller_unfinished_topics", len(active.topics.unfinished()))
    page.add("semel_controller_consumer_groups", consumer_groups)
    page.add("semel_controller_consumer_members", members)
