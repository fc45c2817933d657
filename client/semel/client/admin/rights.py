"""Rules of who may do what, and users: what `client.admin` asks the controllers about them.

Not here: what rules mean (`semel.protos.security.rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from semel.client.transport.cluster import Cluster
from semel.protos.errors import UnsupportedVersion
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
    login: str
    """How it has proved who it is: `certificate`, `token`, `oidc` or `password`; empty for a
    node."""
    expires_s: float | None
    """Seconds since the epoch at which its certificate expires; None for a node."""
    narrowed_to: tuple[str, ...] | None
    """All that it may do under this login, each as `ACTION RESOURCE`; None for no limit."""
    checked: bool
    """False if no rules are checked in the cluster."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "principal": self.principal,
            "groups": list(self.groups),
            "administrator": self.administrator,
            "login": self.login,
            "expires_s": self.expires_s,
            "narrowed_to": None if self.narrowed_to is None else list(self.narrowed_to),
            "checked": self.checked,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordUser:
    """A user that has a password."""

    user: str
    """The name, as in `user:NAME`."""
    changed_s: float
    """Seconds since the epoch at which it got its password."""
    scram: bool
    """It may log in by SCRAM as well, at a Kafka gateway."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


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
        login=str(reply.login),
        expires_s=reply.expires_us / 1e6 or None,
        narrowed_to=tuple(reply.scopes) if reply.narrowed else None,
        checked=not reply.unchecked,
    )


async def add_user(cluster: Cluster, user: str, password: str, scram: bool) -> None:
    """Adds a user with a password, with `scram` for SCRAM as well. Raises SemelError."""
    await _set_password(cluster, user, controller_pb2.USER_CHANGE_ADD, password, scram or None)


async def change_password(cluster: Cluster, user: str, password: str, scram: bool | None) -> None:
    """Gives a user a new password, for SCRAM as well or not; None: as before. Raises SemelError."""
    await _set_password(cluster, user, controller_pb2.USER_CHANGE_PASSWORD, password, scram)


async def remove_user(cluster: Cluster, user: str) -> bool:
    """Removes a user; False if there is none. Raises SemelError."""
    request = controller_pb2.ChangeUserRequest(user=user, change=controller_pb2.USER_CHANGE_REMOVE)
    return bool((await cluster.controller("ChangeUser", request)).changed)


async def list_users(cluster: Cluster) -> list[PasswordUser]:
    """All users that have a password, by name. Raises SemelError."""
    reply = await cluster.controller("ListUsers", controller_pb2.ListUsersRequest())
    return [
        PasswordUser(user=one.user, changed_s=one.changed_us / 1e6, scram=one.scram)
        for one in reply.users
    ]


async def _set_password(
    cluster: Cluster,
    user: str,
    change: controller_pb2.UserChange,
    password: str,
    scram: bool | None,
) -> None:
    request = controller_pb2.ChangeUserRequest(
        user=user, change=change, password=password, scram=scram
    )
    reply = await cluster.controller("ChangeUser", request)
    if scram and not reply.scram:  # what it does not know, an older controller skips
        raise UnsupportedVersion(
            f"user {user!r} has this password, and not for SCRAM, which the controllers do not know"
            " yet: upgrade them, and set the password again"
        )


def _groups(members: Mapping[str, Iterable[str]]) -> list[PrincipalGroup]:
    return [PrincipalGroup(name=name, members=each) for name, each in members.items()]
