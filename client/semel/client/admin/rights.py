"""Rules of who may do what: what `client.admin` asks the controllers about them.

Not here: what rules mean (`semel.protos.security.rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from semel.client.transport.cluster import Cluster
from semel.protos.v1 import controller_pb2
from semel.protos.v1.metadata_pb2 import PrincipalGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """All rules and groups of principals of a cluster."""

    rules: tuple[str, ...]
    """Each as `allow|deny PRINCIPAL ACTION RESOURCE`; sorted."""
    groups: Mapping[str, tuple[str, ...]]
    """Members (`user:NAME`) by the group's name."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "rules": list(self.rules),
            "groups": {name: list(members) for name, members in self.groups.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """Whether a principal may do something."""

    allowed: bool
    rule: str | None
    """The rule that decides; None if there is none."""
    reason: str
    """The same for people."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAmI:
    """The caller as the cluster knows it."""

    principal: str
    """`user:NAME`, or `broker:NUMBER` and `controller:NUMBER` for nodes."""
    groups: tuple[str, ...]
    """Groups that it is in, as `group:NAME`."""
    administrator: bool
    """True if no rule limits it."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "principal": self.principal,
            "groups": list(self.groups),
            "administrator": self.administrator,
        }


async def change_rules(
    cluster: Cluster,
    add: Iterable[str],
    remove: Iterable[str],
    add_members: Mapping[str, Iterable[str]],
    remove_members: Mapping[str, Iterable[str]],
) -> bool:
    """Changes rules and groups; False if they were so already. Raises SemelError."""
    request = controller_pb2.ChangeRightsRequest(
        add_rules=add,
        remove_rules=remove,
        add_members=_groups(add_members),
        remove_members=_groups(remove_members),
    )
    reply = await cluster.controller("ChangeRights", request)
    return bool(reply.changed)


async def list_rules(cluster: Cluster) -> AccessRules:
    """All rules and groups. Raises SemelError."""
    reply = await cluster.controller("ListRights", controller_pb2.ListRightsRequest())
    return AccessRules(
        rules=tuple(reply.rights.rules),
        groups={group.name: tuple(group.members) for group in reply.rights.groups},
    )


async def check_right(
    cluster: Cluster, principal: str, action: str, resource: str
) -> AccessDecision:
    """The decision about one action. Raises SemelError."""
    reply = await cluster.controller(
        "CheckRight",
        controller_pb2.CheckRightRequest(principal=principal, action=action, resource=resource),
    )
    return AccessDecision(allowed=reply.allowed, rule=reply.rule or None, reason=str(reply.reason))


async def who_am_i(cluster: Cluster) -> WhoAmI:
    """The caller. Raises SemelError."""
    reply = await cluster.controller("WhoAmI", controller_pb2.WhoAmIRequest())
    return WhoAmI(
        principal=str(reply.principal),
        groups=tuple(reply.groups),
        administrator=bool(reply.administrator),
    )


def _groups(members: Mapping[str, Iterable[str]]) -> list[PrincipalGroup]:
    return [PrincipalGroup(name=name, members=each) for name, each in members.items()]
