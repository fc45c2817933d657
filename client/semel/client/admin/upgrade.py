"""Raises the feature level of a whole cluster, when an operator asks for it.

How it works. Every node and controller is asked which levels it knows. The target is the highest
level that all of them know, unless the operator names another. Each broker group's master, and last
the active controller, are first asked whether they could raise the level; only when all could are
they asked to. Each step is checked again where it is done, and may be repeated: a call that was
interrupted is simply made again.

Not here: what a level allows (`semel.protos.levels`), asking all nodes (`admin/inspection.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.client.admin.descriptions import Described
from semel.client.admin.inspection import Inspection
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import MEMBERS
from semel.protos.errors import Unavailable, UnsupportedVersion
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, controller_pb2

WAITING = ("joining", "removed")
"""Roles of nodes that are not members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLevel(Described):
    """The feature level of one broker group's log."""

    group: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade(Described):
    """The result of `upgrade`, or what it would do."""

    level: int
    """The level of the whole cluster now, or after the upgrade."""
    dry_run: bool
    groups: list[GroupLevel]
    """Broker groups that were below it, with their levels before."""
    metadata: int
    """The level of the controllers' metadata before."""
    newer: list[str]
    """Programs that know a higher level than others do: upgrade the others."""

    @property
    def changes(self) -> bool:
        """A broker group or the metadata was below the level."""
        return bool(self.groups) or self.metadata < self.level


async def upgrade(
    cluster: Cluster, found: Inspection, *, level: int | None, dry_run: bool
) -> Upgrade:
    """Raises every broker group and the metadata to `level`, by default the highest that all know.

    `found` is a present inspection. Raises Unavailable when a node or controller does not answer,
    UnsupportedVersion when one does not know the level; nothing is changed then.
    """
    plan = plan_upgrade(found, level=level, dry_run=dry_run)
    for only_asked in (True, False):
        if only_asked or not dry_run:
            for group in plan.groups:
                request = broker_pb2.RaiseLevelRequest(
                    cluster_id=cluster.routes.cluster_id,
                    group_id=group.group,
                    level=plan.level,
                    dry_run=only_asked,
                )
                await cluster.call_master(
                    GroupId(group.group), "RaiseLevel", request, service=MEMBERS
                )
            await cluster.controller(
                "RaiseMetadataLevel",
                controller_pb2.RaiseMetadataLevelRequest(level=plan.level, dry_run=only_asked),
            )
    return plan


def plan_upgrade(found: Inspection, *, level: int | None, dry_run: bool) -> Upgrade:
    """Returns what there is to do. Raises Unavailable, UnsupportedVersion. Pure."""
    members = [node for node in found.nodes if node.role not in WAITING]
    silent = [f"broker {node.node}: {node.reason}" for node in members if node.reason]
    silent += [f"controller {c.address}: {c.reason}" for c in found.controllers if c.reason]
    silent += [
        f"broker group {group.id} has no master"
        for group in found.status.groups
        if found.master(group.id) is None
    ]
    if silent:
        raise Unavailable(
            "a feature level is raised only once every node and controller has answered; "
            + "; ".join(silent)
        )
    known = {f"broker {node.node}": node.level_max for node in members}
    known |= {f"controller {each.address}": each.level_max for each in found.controllers}
    common = min(known.values())
    wanted = common if level is None else level
    older = [f"{name} knows up to {most}" for name, most in known.items() if most < wanted]
    if older:
        raise UnsupportedVersion(
            f"feature level {wanted} is not known to all: {', '.join(older)}; upgrade them first",
            level=wanted,
        )
    groups = [
        GroupLevel(group=group.id, level=master.level)
        for group in found.status.groups
        if (master := found.master(group.id)) is not None and master.level < wanted
    ]
    return Upgrade(
        level=wanted,
        dry_run=dry_run,
        groups=groups,
        metadata=max((each.level for each in found.controllers), default=0),
        newer=[name for name, most in known.items() if level is None and most > wanted],
    )
