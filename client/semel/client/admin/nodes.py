"""Replacing, adding and draining broker nodes; moving mastership.

How it works. A change of membership is a sequence of steps, each one call to the group's master.
The next step is derived from who is a member *now* (`next_step`), so it does not matter who took
the steps before: a call that was interrupted, by the death of this process or of the master, goes
on where it stopped when it is made again. Between the steps the learner's progress is watched.

Not here: what a step does and refuses (the broker).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from semel.client.admin.descriptions import Described
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import MEMBERS
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest, Throttled, TimedOut, Unavailable
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, common_pb2, controller_pb2

CLOSE_ENTRIES: Final = 512
"""Entries up to which a learner may be behind when its promotion is requested. The master
decides."""
LOOK_S: Final = 0.1
CALL_S: Final = 15.0
NODE_CALL_S: Final = 10.0
TRANSFER_S: Final = 2.0
"""A transfer that need not wait for anything has as much."""


class MembershipStatus(IntEnum):
    """A node's membership status in its group."""

    LEARNER = broker_pb2.MEMBERSHIP_STATUS_LEARNER
    VOTER = broker_pb2.MEMBERSHIP_STATUS_VOTER
    REMOVED = broker_pb2.MEMBERSHIP_STATUS_REMOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProgress(Described):
    """The present step of a change of membership."""

    step: str
    """add, catch-up, promote, remove, or wait."""
    node: int
    behind: int
    """Number of entries that the node lacks; 0 except in catch-up."""
    reason: str = ""
    """What the broker waits for; empty except in wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipResult(Described):
    """The group after a change."""

    group: int
    voters: dict[int, str]
    """Addresses by node."""
    learners: dict[int, str]
    changed: bool
    """False if nothing had to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult(Described):
    """A node that declines mastership for a while."""

    node: int
    group: int
    master: int
    """Master of the group now; 0 when the node does not know it yet."""
    was_master: bool


def next_step(
    members: Mapping[int, MembershipStatus], wanted: Mapping[int, MembershipStatus]
) -> tuple[int, MembershipStatus] | None:
    """Returns the next step from `members` towards `wanted`, or None if there is none.

    All new nodes become learners first and catch up side by side. Then they are promoted, one after
    the other, and only then a node leaves: the group is never smaller than it was.
    """
    for node, membership in sorted(wanted.items()):
        if membership is MembershipStatus.VOTER and node not in members:
            return node, MembershipStatus.LEARNER
    for node, membership in sorted(wanted.items()):
        if membership is MembershipStatus.VOTER and members[node] is MembershipStatus.LEARNER:
            return node, MembershipStatus.VOTER
    for node, membership in sorted(wanted.items()):
        if membership is MembershipStatus.REMOVED and node in members:
            return node, MembershipStatus.REMOVED
    return None


class MembershipWork:
    """One operator's call. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        on_progress: Callable[[MemberProgress], object] | None = None,
        *,
        allow_same_machine: bool = False,
        ignore_memory: bool = False,
    ) -> None:
        """`allow_same_machine` lets a node join although its machine has a voter of the group,
        `ignore_memory` a node go although others lack messages of topics in memory."""
        self._cluster = cluster
        self._ignore_memory = ignore_memory
        self._allow_same_machine = allow_same_machine
        self._on_progress = on_progress

    async def replace(self, old: int, new: int, address: str, timeout_s: float) -> MembershipResult:
        """`new` takes the place of `old`. Raises InvalidRequest, TimedOut, Unavailable."""
        if old == new:
            raise InvalidRequest(
                f"node {old} cannot replace itself: a node that lost its disk comes back by "
                "itself, and a node on another machine needs a number of its own"
            )
        nodes = await self._nodes()
        groups = {nodes[node][0] for node in (old, new) if node in nodes}
        if not groups:
            raise InvalidRequest(f"neither node {old} nor node {new} is known to the controllers")
        if len(groups) > 1:
            raise InvalidRequest(f"nodes {old} and {new} belong to different broker groups")
        (group,) = groups
        members = _memberships(await self._status(group))
        if old not in members and new not in members:
            raise InvalidRequest(f"node {old} is no member of broker group {group}")
        wanted = {new: MembershipStatus.VOTER, old: MembershipStatus.REMOVED}
        return await self._bring(group, wanted, {new: address or _address(nodes, new)}, timeout_s)

    async def grow(
        self, group: int, size: int, nodes: Mapping[int, str], timeout_s: float
    ) -> MembershipResult:
        """The group gets `size` voters: `nodes` (addresses, '' if reported), or nodes that wait to
        join.

        Raises InvalidRequest, TimedOut, Unavailable.
        """
        if size not in (1, 3, 5):
            raise InvalidRequest(f"a broker group has 1, 3 or 5 voters, not {size}")
        known = await self._nodes()
        members = _memberships(await self._status(group))
        voters = [
            node for node, membership in members.items() if membership is MembershipStatus.VOTER
        ]
        missing = size - len(voters)
        if missing < 0:
            raise InvalidRequest(
                f"broker group {group} has {len(voters)} voters, more than {size}; this command "
                "only adds"
            )
        chosen = [node for node in sorted(nodes) if node not in voters] or sorted(
            node
            for node, (of_group, _, role, alive) in known.items()
            if of_group == group
            and alive
            and role in ("joining", "learner")
            and node not in voters  # its report may be older than its promotion
        )
        if len(chosen) < missing:
            raise InvalidRequest(
                f"broker group {group} has {len(voters)} voters and {len(chosen)} nodes that wait "
                f"to join; for {size} start {missing - len(chosen)} more with `semel broker --join`"
            )
        chosen = chosen[:missing]
        addresses = {node: nodes.get(node) or _address(known, node) for node in chosen}
        wanted = dict.fromkeys(chosen, MembershipStatus.VOTER)
        return await self._bring(group, wanted, addresses, timeout_s)

    async def remove(self, node: int, shrink: bool, timeout_s: float) -> MembershipResult:
        """`node` leaves: a learner that was left over, or a voter too many.

        A group is left with an even number of voters only with `shrink`, on the way to fewer.
        Raises InvalidRequest, TimedOut, Unavailable.
        """
        nodes = await self._nodes()
        if node not in nodes:
            raise InvalidRequest(f"node {node} is not known to the controllers")
        group = nodes[node][0]
        members = _memberships(await self._status(group))
        left = [
            other for other in members if other != node and members[other] is MembershipStatus.VOTER
        ]
        if members.get(node) is MembershipStatus.VOTER and len(left) % 2 == 0 and not shrink:
            raise InvalidRequest(
                f"broker group {group} would be left with {len(left)} voters, which survive no "
                f"more failures than {len(left) - 1}: replace node {node} instead, or pass "
                "--shrink to go on to fewer voters"
            )
        return await self._bring(group, {node: MembershipStatus.REMOVED}, {}, timeout_s)

    async def transfer(self, group: int, node: int, timeout_s: float) -> int:
        """Moves mastership to `node`, 0 for the most advanced one; returns the master's number.

        Waits `timeout_s` for nodes that lack messages in memory. Raises InvalidRequest,
        Unavailable, Throttled.
        """
        request = broker_pb2.TransferMastershipRequest(
            cluster_id=self._cluster.routes.cluster_id,
            group_id=group,
            node_id=node,
            ignore_memory=self._ignore_memory,
        )
        call_s = min(CALL_S, max(TRANSFER_S, timeout_s))
        reply = await self._once_allowed(
            node,
            timeout_s,
            lambda: self._cluster.call_master(
                GroupId(group), "TransferMastership", request, call_s, service=MEMBERS
            ),
        )
        return int(reply.master_id)

    async def drain(self, node: int, drain_ms: int, timeout_s: float) -> DrainResult:
        """Keeps `node` from being master for a time; 0 ends that.

        Waits `timeout_s` for other nodes that lack messages in memory. Raises InvalidRequest,
        Unavailable, Throttled.
        """
        nodes = await self._nodes()
        if node not in nodes:
            raise InvalidRequest(f"node {node} is not known to the controllers")
        group, address, _, _ = nodes[node]
        request = broker_pb2.DrainNodeRequest(
            cluster_id=self._cluster.routes.cluster_id,
            group_id=group,
            drain_ms=drain_ms,
            ignore_memory=self._ignore_memory,
        )
        reply = await self._once_allowed(
            node,
            timeout_s,
            lambda: self._cluster.connections.call(
                address, MEMBERS, "DrainNode", request, NODE_CALL_S
            ),
        )
        return DrainResult(
            node=node, group=group, master=reply.master_id, was_master=reply.was_master
        )

    async def _once_allowed(
        self, node: int, timeout_s: float, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Calls until the broker no longer says that it is too early. Raises Throttled then."""
        deadline = time.monotonic() + timeout_s
        told = ""
        while True:
            try:
                return await call()
            except Throttled as error:
                if time.monotonic() > deadline:
                    raise
                if error.message != told:
                    told = error.message
                    self._tell("wait", node, reason=told)
                await asyncio.sleep(max(LOOK_S, error.retry_after_ms / 1000))

    # --- steps

    async def _bring(
        self,
        group: int,
        wanted: Mapping[int, MembershipStatus],
        addresses: Mapping[int, str],
        timeout_s: float,
    ) -> MembershipResult:
        deadline = time.monotonic() + timeout_s
        changed = False
        while True:
            status = await self._status(group)
            step = next_step(_memberships(status), wanted)
            if step is not None and not changed and not self._allow_same_machine:
                _check_machines(status, wanted, addresses)
            if step is None:
                return _result(group, status, changed)
            changed = True
            node, membership = step
            if membership is MembershipStatus.VOTER:
                await self._wait_caught_up(group, node, deadline)
            self._tell({1: "add", 2: "promote", 3: "remove"}[membership], node)
            await self._change(group, node, addresses.get(node, ""), membership, deadline)

    async def _wait_caught_up(self, group: int, node: int, deadline: float) -> None:
        """Waits until the master counts the learner and the learner lacks few entries."""
        behind = -1
        while True:
            status = await self._status(group)
            peer = next((peer for peer in status.peers if peer.node_id == node), None)
            if peer is not None:
                missing = max(0, status.log_end_index - peer.match_index)
                if peer.counts and missing <= CLOSE_ENTRIES:
                    return
                if missing != behind:
                    behind = missing
                    self._tell("catch-up", node, behind)
            if time.monotonic() > deadline:
                reason = "it does not answer the master" if peer is None or not peer.active else ""
                raise TimedOut(
                    f"node {node} has not caught up in time ({reason or f'{behind} entries behind'}"
                    "); it stays a learner, and the same command goes on from there"
                )
            await asyncio.sleep(LOOK_S)

    async def _change(
        self, group: int, node: int, address: str, membership: MembershipStatus, deadline: float
    ) -> None:
        request = broker_pb2.ChangeMemberRequest(
            cluster_id=self._cluster.routes.cluster_id,
            group_id=group,
            node=common_pb2.NodeAddress(node_id=node, address=address),
            membership=membership,  # type: ignore[arg-type]
            ignore_memory=self._ignore_memory,
        )
        told = ""
        while True:
            try:
                await self._cluster.call_master(
                    GroupId(group),
                    "ChangeMember",
                    request,
                    min(CALL_S, max(LOOK_S, deadline - time.monotonic())),
                    service=MEMBERS,
                )
                return
            except (Throttled, Unavailable, TimedOut) as error:
                if time.monotonic() > deadline:
                    raise
                leaves = membership is MembershipStatus.REMOVED
                if leaves and isinstance(error, Throttled) and error.message != told:
                    told = error.message
                    self._tell("wait", node, reason=told)
                await asyncio.sleep(LOOK_S)

    def _tell(self, step: str, node: int, behind: int = 0, *, reason: str = "") -> None:
        if self._on_progress is not None:
            self._on_progress(MemberProgress(step=step, node=node, behind=behind, reason=reason))

    # --- asking the group and the controllers

    async def _status(self, group: int) -> Any:
        """Returns the master's status, confirmed by a quorum."""
        request = broker_pb2.NodeStatusRequest(confirmed=True)
        return await self._cluster.call_master(GroupId(group), "GetNodeStatus", request, CALL_S)

    async def _nodes(self) -> dict[int, tuple[int, str, str, bool]]:
        """Returns group, address, role and liveness of every broker node that the controllers
        know."""
        status = await self._cluster.controller(
            "GetClusterStatus", controller_pb2.ClusterStatusRequest()
        )
        return {
            node.node_id: (group.group_id, node.address, node.role, node.alive)
            for group in status.groups
            for node in group.nodes
        }


def _address(nodes: Mapping[int, tuple[int, str, str, bool]], node: int) -> str:
    if node not in nodes:
        raise InvalidRequest(
            f"node {node} does not report to the controllers: start it with `semel broker --node "
            f"{node} --join HOST:PORT --controllers …`, or give its address"
        )
    return nodes[node][1]


def _check_machines(
    status: Any, wanted: Mapping[int, MembershipStatus], addresses: Mapping[int, str]
) -> None:
    """Raises InvalidRequest when a node that joins would share its machine with a voter.

    Loopback addresses are for experiments and not checked.
    """
    others = {
        member.node.node_id: member.node.address
        for member in status.members
        if member.membership == MembershipStatus.VOTER
        and wanted.get(member.node.node_id) is not MembershipStatus.REMOVED
    }
    for node, address in sorted(addresses.items()):
        parsed = _parsed(node, address)
        for other, theirs in sorted(others.items()):
            same = not parsed.loopback and _parsed(other, theirs).host == parsed.host
            if other != node and same:
                raise InvalidRequest(
                    f"node {node} would share the machine {parsed.host} with node {other}, and be "
                    "lost with it: choose another machine, or pass --allow-same-machine"
                )
        others[node] = address


def _parsed(node: int, address: str) -> Address:
    return Address.parse(address, what=f"address of node {node}")


def _memberships(status: Any) -> dict[int, MembershipStatus]:
    return {member.node.node_id: MembershipStatus(member.membership) for member in status.members}


def _result(group: int, status: Any, changed: bool) -> MembershipResult:
    def of(membership: MembershipStatus) -> dict[int, str]:
        return {
            member.node.node_id: member.node.address
            for member in status.members
            if member.membership == membership
        }

    return MembershipResult(
        group=group,
        voters=of(MembershipStatus.VOTER),
        learners=of(MembershipStatus.LEARNER),
        changed=changed,
    )
