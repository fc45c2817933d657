"""Settings of running nodes: showing them, and changing those that need no restart.

How it works. Each node and controller is asked directly. A change is made on every node that has
the setting, or on those that the caller names, and only once all of these have answered that they
can make it: a cluster does not end up half changed because one node is down.

Not here: which settings can be changed (each component's `config.py`), what a node does with a
change (`semel.protos.live_settings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from semel.client.admin.descriptions import ClusterStatus, Described
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, SemelError, Unavailable, UnsupportedVersion
from semel.protos.live_settings import Allowed
from semel.protos.v1 import settings_pb2, settings_pb2_grpc

SETTINGS: Final = settings_pb2_grpc.SettingsStub
CALL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo(Described):
    """One setting of one node."""

    kind: Literal["broker", "controller"]
    id: int
    """Number of the node or controller."""
    name: str
    """As in a TOML file."""
    value: str
    """As text; empty for none."""
    default: str
    started: str
    """The value that the node was started with."""
    changeable: bool
    """It can be changed while the node runs."""
    allowed: str
    """What it can be changed to, such as `1 to 100` or `10 and up`; empty if it cannot."""

    @property
    def changed(self) -> bool:
        """It was changed since the node was started."""
        return self.value != self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange(Described):
    """A setting that has its value on one node."""

    kind: Literal["broker", "controller"]
    id: int
    name: str
    before: str
    value: str


@dataclass(frozen=True, slots=True)
class AskedNode:
    """A node or controller that is asked directly."""

    kind: Literal["broker", "controller"]
    id: int
    address: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


def chosen_nodes(
    status: ClusterStatus, brokers: Collection[int] | None, controllers: Collection[int] | None
) -> list[AskedNode]:
    """Returns the broker nodes and controllers of these numbers; all if both are None. Raises
    InvalidRequest for a number that is not known. Pure."""
    every = brokers is None and controllers is None
    known = [AskedNode("controller", one.id, one.address) for one in status.controllers]
    known += [
        AskedNode("broker", one.id, one.address) for group in status.groups for one in group.nodes
    ]
    wanted = {("broker", number) for number in brokers or ()}
    wanted |= {("controller", number) for number in controllers or ()}
    unknown = sorted(wanted - {(one.kind, one.id) for one in known})
    if unknown:
        raise InvalidRequest(f"the controllers know no {unknown[0][0]} {unknown[0][1]}")
    return [one for one in known if every or (one.kind, one.id) in wanted]


async def show_settings(
    cluster: Cluster, nodes: Collection[AskedNode], names: Collection[str]
) -> list[SettingInfo]:
    """Returns the settings `names`, all without any, of the nodes that have them. Raises
    InvalidRequest for one that no node has, Unavailable for a node that does not answer."""
    request = settings_pb2.ShowSettingsRequest(cluster_id=cluster.routes.cluster_id)
    shown = await _ask(cluster, nodes, "ShowSettings", request)
    found = [
        SettingInfo(
            kind=node.kind,
            id=node.id,
            name=one.name,
            value=one.value,
            default=one.default_value,
            started=one.started_value,
            changeable=one.changeable,
            allowed=_allowed(one),
        )
        for node, reply in shown
        for one in reply.settings
        if not names or one.name in names
    ]
    missing = sorted(set(names) - {each.name for each in found})
    if missing:
        raise InvalidRequest(
            f"no node has a setting {missing[0]!r}: `semel config show` lists all of them"
        )
    return found


async def change_setting(
    cluster: Cluster, nodes: Collection[AskedNode], name: str, value: int | None
) -> list[SettingChange]:
    """Changes a setting on those of the nodes that have it; None gives it the value again that each
    was started with. Raises InvalidRequest, Unavailable; nothing is changed then, unless a node
    fails in the middle, which the error says."""
    found = await show_settings(cluster, nodes, [name])
    for each in found:
        if not each.changeable:
            raise InvalidRequest(
                f"{name} of {each.kind} {each.id} counts from its start on: set it in its file,"
                " flags or environment, and restart it (`semel cluster restart --rolling`)"
            )
    having = {(each.kind, each.id) for each in found}
    request = settings_pb2.ChangeSettingRequest(
        cluster_id=cluster.routes.cluster_id, name=name, value=value or 0, reset=value is None
    )
    changed: list[SettingChange] = []
    for node in nodes:
        if (node.kind, node.id) in having:
            try:
                [(_, reply)] = await _ask(cluster, [node], "ChangeSetting", request)
            except SemelError as error:
                if not changed:
                    raise
                done = ", ".join(f"{one.kind} {one.id}" for one in changed)
                raise type(error)(
                    f"{error.message}; changed already on {done}: repeat the call"
                ) from error
            changed.append(
                SettingChange(
                    kind=node.kind,
                    id=node.id,
                    name=name,
                    before=reply.before,
                    value=reply.setting.value,
                )
            )
    return changed


def _allowed(setting: settings_pb2.Setting) -> str:
    return str(Allowed(setting.least, setting.most)) if setting.changeable else ""


async def _ask(
    cluster: Cluster, nodes: Collection[AskedNode], method: str, request: Any
) -> list[tuple[AskedNode, Any]]:
    """Asks all at once. Raises the first error, which names the node."""
    call = cluster.connections.call
    replies = await asyncio.gather(
        *(call(node.address, SETTINGS, method, request, CALL_S) for node in nodes),
        return_exceptions=True,
    )
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, UnsupportedVersion):
            raise UnsupportedVersion(f"{node} is too old to tell its settings") from reply
        if isinstance(reply, Unavailable):
            raise Unavailable(f"{node} does not answer: {reply.message}") from reply
        if isinstance(reply, BaseException):
            raise reply
    return list(zip(nodes, replies, strict=True))
