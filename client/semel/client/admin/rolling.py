"""Restarting a cluster's nodes one after the other, under load.

How it works. `restart_order` says, purely, in which order: standby controllers, the active
controller, then group by group the slaves and at last the master. Each node is restarted in the
same steps: wait until nothing else is amiss (`amiss`), have a broker node drained, so that it is
neither master nor becomes it, have it started anew, and wait until it is back and its group is
whole. A node starts its own program anew in its own process (`protos/programs.py`), or the caller
gives a function that restarts it. A master that went is made master again, so that several groups
do not gather on one machine.

Invariants
1. A node is only stopped while all other members of its group answer and have everything, so that
   the group keeps all of its voters but one. A second node that fails by itself meanwhile is what
   the group tolerates as ever.
2. One node of the whole cluster at a time.
3. What is left when this is cancelled: nodes that run, of which at most one is just starting, and
   at most one that is drained, which may be master again when it was restarted or `DRAIN_MS` later.

Not here: what a drain does (`admin/nodes.py`, the broker).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

from semel.client.admin.descriptions import Described
from semel.client.admin.inspection import Inspection, NodeReport
from semel.client.admin.nodes import MemberProgress, MembershipWork
from semel.client.admin.upgrade import WAITING
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import BROKER, CONTROLLER, MEMBERS
from semel.protos.errors import (
    InvalidRequest,
    RetriableError,
    SemelError,
    TimedOut,
    UnsupportedVersion,
)
from semel.protos.v1 import broker_pb2, controller_pb2

LOOK_S: Final = 0.25
CALL_S: Final = 5.0
DRAIN_MS: Final = 60_000
"""How long a node is kept from being master if it is drained and then not restarted."""
TRANSFER_S: Final = 10.0

Step = Literal["wait", "drain", "restart", "started", "done", "transfer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTarget(Described):
    """A node that is to be restarted."""

    kind: Literal["controller", "broker"]
    id: int
    group: int
    """Broker group; 0 for a controller."""
    address: str
    started_us: int
    """When its present process was started; 0 for a program that does not say."""
    master: bool
    """It was its group's master, or the active controller, when the order was made."""

    @property
    def name(self) -> str:
        """`broker 2`, as people say it."""
        return f"{self.kind} {self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartProgress(Described):
    """A step of a rolling restart."""

    step: Step
    """wait (for what is amiss), drain, restart, started (it answers again), done (its group is
    whole), transfer (it is master again)."""
    kind: str
    id: int
    group: int
    number: int
    """The number of the node, from 1 to `total`."""
    total: int
    reason: str = ""
    """The reason for waiting; empty except in wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingResult(Described):
    """What was restarted."""

    restarted: list[RestartTarget]
    seconds: float


def restart_order(
    found: Inspection,
    *,
    kinds: Collection[str] = ("controller", "broker"),
    nodes: Collection[int] = (),
    ran_us: int = 0,
    now_us: int = 0,
) -> list[RestartTarget]:
    """Returns the nodes to be restarted, the first one first: all members, or the broker nodes
    `nodes`, or those of `kinds`; none that runs for less than `ran_us` at `now_us`. Raises
    InvalidRequest for a node that is no member. Pure.
    """
    members = [node for node in found.nodes if node.role not in WAITING]
    unknown = sorted(set(nodes) - {node.node for node in members})
    if unknown:
        raise InvalidRequest(f"node {unknown[0]} is no member of a broker group")
    targets: list[RestartTarget] = []
    if "controller" in kinds and not nodes:
        reports = {each.address: each for each in found.controllers}
        for each in sorted(
            found.status.controllers, key=lambda one: (one.role == "master", one.id)
        ):
            report = reports.get(each.address)
            targets.append(
                RestartTarget(
                    kind="controller",
                    id=each.id,
                    group=0,
                    address=each.address,
                    started_us=0 if report is None else report.started_us,
                    master=each.role == "master",
                )
            )
    if "broker" in kinds:
        for node in sorted(members, key=lambda one: (one.group, one.role == "master", one.node)):
            if not nodes or node.node in nodes:
                targets.append(
                    RestartTarget(
                        kind="broker",
                        id=node.node,
                        group=node.group,
                        address=node.address,
                        started_us=node.started_us,
                        master=node.role == "master",
                    )
                )
    return [each for each in targets if not ran_us or now_us - each.started_us >= ran_us]


def amiss(found: Inspection, target: RestartTarget, expected: Collection[int]) -> str:
    """Returns why `target` must not be stopped now, or why its group is not whole yet; empty when
    it may, or is. `expected` are the broker nodes that the controllers must know. Pure."""
    missing = sorted(set(expected) - {node.node for node in found.nodes})
    if missing:
        return f"broker {missing[0]} has not reported to the controllers yet"
    if target.kind == "controller":
        silent = [each.address for each in found.controllers if each.reason]
        if silent:
            return f"controller {silent[0]} does not answer"
        # Without one the metadata's level is told by nobody.
        return "" if any(each.level for each in found.controllers) else "no controller is active"
    inside = _members(found, target.group)
    for node in inside:
        if node.reason:
            return f"broker {node.node} does not answer: {node.reason}"
    if found.master(target.group) is None:
        return f"broker group {target.group} has no master"
    late = found.under_replicated(target.group)
    if late:
        return f"broker {late[0]} does not have everything yet"
    for node in inside:
        if why := _not_whole(node):
            return f"broker {node.node} {why}"
    return ""


def _not_whole(node: NodeReport) -> str:
    if node.non_counting:
        return "does not count yet"
    if node.disk_full:
        return "has no room on its disk"
    return "still pulls messages of topics in memory" if node.memory_pulling else ""


class RollingRestart:
    """One operator's call. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        inspect: Callable[[], Awaitable[Inspection]],
        on_progress: Callable[[RestartProgress], object],
        *,
        restart: Callable[[RestartTarget], object] | None = None,
        node_timeout_s: float,
        ignore_memory: bool = False,
    ) -> None:
        """`inspect` asks every node and controller. `restart`, if it is given, restarts a node,
        and runs in a thread. A node has `node_timeout_s` for each wait."""
        self._cluster = cluster
        self._inspect = inspect
        self._on_progress = on_progress
        self._restart = restart
        self._node_timeout_s = node_timeout_s
        self._members = MembershipWork(cluster, self._on_drain_step, ignore_memory=ignore_memory)
        self._expected: frozenset[int] = frozenset()
        """The members of all broker groups at the beginning."""
        self._present: tuple[RestartTarget, int, int] | None = None
        """The node whose turn it is, its number, and how many there are."""

    async def run(
        self,
        *,
        kinds: Collection[str],
        nodes: Collection[int],
        ran_s: float,
        allow_gap: bool,
    ) -> RollingResult:
        """Restarts the nodes. Raises InvalidRequest, Unavailable, TimedOut, UnsupportedVersion."""
        began = time.monotonic()
        found = await self._inspect()
        self._expected = frozenset(node.node for node in found.nodes if node.role not in WAITING)
        targets = restart_order(
            found,
            kinds=kinds,
            nodes=nodes,
            ran_us=round(ran_s * 1e6),
            now_us=time.time_ns() // 1000,
        )
        if not allow_gap:
            _check_gaps(found, targets)
        done: list[RestartTarget] = []
        for number, target in enumerate(targets, 1):
            self._present = (target, number, len(targets))
            await self._one(target)
            done.append(target)
        return RollingResult(restarted=done, seconds=round(time.monotonic() - began, 3))

    async def _one(self, target: RestartTarget) -> None:
        await self._until_whole(target, "it was not stopped")
        alone = target.kind == "broker" and await self._is_alone(target)
        if target.kind == "broker" and not alone:
            self._tell("drain")
            await self._members.drain(target.id, DRAIN_MS, self._node_timeout_s)
        self._tell("restart")
        try:
            await self._begin(target)
        except SemelError:
            if target.kind == "broker" and not alone:
                await self._members.drain(target.id, 0, CALL_S)
            raise
        await self._until_back(target)
        self._tell("started")
        await self._until_whole(target, "it is back, and the next one was not restarted")
        self._tell("done")
        if target.kind == "broker" and target.master and not alone:
            await self._give_back(target)

    async def _begin(self, target: RestartTarget) -> None:
        """Has the node end and start anew."""
        if self._restart is not None:
            await asyncio.to_thread(self._restart, target)
            return
        cluster_id = self._cluster.routes.cluster_id
        call = self._cluster.connections.call
        try:
            if target.kind == "controller":
                request = controller_pb2.RestartControllerRequest(
                    cluster_id=cluster_id, controller_id=target.id
                )
                await call(target.address, CONTROLLER, "RestartController", request, CALL_S)
                return
            await call(
                target.address,
                MEMBERS,
                "RestartNode",
                broker_pb2.RestartNodeRequest(
                    cluster_id=cluster_id, group_id=target.group, node_id=target.id
                ),
                CALL_S,
            )
        except UnsupportedVersion as error:
            raise UnsupportedVersion(
                f"{target.name} is of a version that cannot restart itself ({error.message}): give"
                " a command that restarts it (--with)"
            ) from error

    async def _until_back(self, target: RestartTarget) -> None:
        """Returns once another process answers than the one that was to end. Raises TimedOut."""
        deadline = time.monotonic() + self._node_timeout_s
        while True:
            try:
                if (started_us := await self._started_us(target)) not in (0, target.started_us):
                    return
                reason = "it has not ended" if started_us else "it does not say when it was started"
            except RetriableError as error:
                reason = error.message
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{target.name} at {target.address} was to restart and is not back after"
                    f" {self._node_timeout_s:.0f} s ({reason}): look at its log, and start it"
                )
            await asyncio.sleep(LOOK_S)

    async def _started_us(self, target: RestartTarget) -> int:
        call = self._cluster.connections.call
        if target.kind == "controller":
            status = controller_pb2.ClusterStatusRequest(standby=True)
            reply = await call(target.address, CONTROLLER, "GetClusterStatus", status, CALL_S)
            return int(reply.started_us)
        request = broker_pb2.NodeStatusRequest()
        reply = await call(target.address, BROKER, "GetNodeStatus", request, CALL_S)
        return int(reply.started_us)

    async def _until_whole(self, target: RestartTarget, otherwise: str) -> None:
        """Returns once nothing is amiss. Raises TimedOut, which ends with `otherwise`."""
        deadline = time.monotonic() + self._node_timeout_s
        told = ""
        while True:
            try:
                reason = amiss(await self._inspect(), target, self._expected)
            except RetriableError as error:
                reason = f"no controller answers: {error.message}"
            if not reason:
                return
            if reason != told:
                told = reason
                self._tell("wait", reason)
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{target.name}: {reason} after {self._node_timeout_s:.0f} s; {otherwise}"
                )
            await asyncio.sleep(LOOK_S)

    async def _give_back(self, target: RestartTarget) -> None:
        """Makes the node master again; if it cannot be, another one is as good."""
        try:
            await self._members.transfer(target.group, target.id, TRANSFER_S)
        except SemelError as error:
            self._tell("wait", f"it is not master again: {error.message}")
        else:
            self._tell("transfer")

    async def _is_alone(self, target: RestartTarget) -> bool:
        found = await self._inspect()
        return len(_members(found, target.group)) == 1

    def _on_drain_step(self, progress: MemberProgress) -> None:
        self._tell("wait", progress.reason)

    def _tell(self, step: Step, reason: str = "") -> None:
        assert self._present is not None
        target, number, total = self._present
        self._on_progress(
            RestartProgress(
                step=step,
                kind=target.kind,
                id=target.id,
                group=target.group,
                number=number,
                total=total,
                reason=reason,
            )
        )


def _members(found: Inspection, group: int) -> list[NodeReport]:
    return [node for node in found.of_group(group) if node.role not in WAITING]


def _check_gaps(found: Inspection, targets: list[RestartTarget]) -> None:
    """Raises InvalidRequest for a group that nobody serves while its only node restarts."""
    for target in targets:
        if target.kind == "broker" and len(_members(found, target.group)) == 1:
            raise InvalidRequest(
                f"broker group {target.group} has one node: nobody serves its queues while that"
                " restarts. Clients wait and go on; say so (--allow-gap), or grow the group first"
            )
