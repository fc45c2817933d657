"""Restores a broker group after a majority of its disks was lost.

How it works. Such a group waits for ever: no quorum counts its empty nodes, and the others are no
majority. No node can tell what was acknowledged, so an operator decides. First all nodes are asked
for their status (`look`). From the answers follows a plan (`RestorePlan`), which changes nothing
yet. To carry it out (`restore`), the controllers give the group a new founding, which takes in the
survivors and the empty nodes. As few empty nodes are made to count as a quorum needs. So every
quorum contains every survivor, and every entry of any survivor is kept.

A call after an interruption continues: the controllers remember the previous founding until the
group serves.

Not here: what a node does with it (the broker's `membership/status.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.client.admin.descriptions import Described
from semel.client.transport.cluster import Cluster
from semel.client.transport.connection import BROKER, MEMBERS
from semel.protos.errors import InvalidRequest, SemelError, TimedOut
from semel.protos.v1 import broker_pb2, controller_pb2

NODE_CALL_S: Final = 5.0
LOOK_S: Final = 0.2
OUTSIDE: Final = ("joining", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan(Described):
    """The present state of a group, and what a restore would do."""

    group: int
    voters: tuple[int, ...]
    survivors: tuple[int, ...]
    """Nodes that count: every entry of any of them is kept."""
    counted: tuple[int, ...]
    """Nodes that lost data and are made to count all the same."""
    fed: tuple[int, ...]
    """Nodes that lost data and catch up from the others, as after any lost disk."""
    lost: tuple[int, ...]
    """Nodes that are given up: their directories are refused if they ever return."""
    kept_index: int
    """Index of the last entry that a survivor has."""
    needed: bool
    """False when a majority counts, so there is nothing to restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult(Described):
    """The group as it serves now."""

    group: int
    master: int
    founding: str
    changed: bool
    """False if there was nothing to restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    address: str
    status: Any


class RestoreWork:
    """One operator's call. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, group: int, lost: Collection[int]) -> None:
        """`lost` names nodes whose disks are gone for good, according to the operator."""
        self._cluster = cluster
        self._group = group
        self._lost = frozenset(lost)

    async def look(self) -> RestorePlan:
        """Returns the plan. Raises InvalidRequest when no restore is possible, Unavailable."""
        return _plan(self._group, await self._nodes(), await self._found(), self._lost)

    async def restore(self, timeout_s: float) -> RestoreResult:
        """Carries it out; returns when the group serves.

        Raises InvalidRequest, Unavailable, and TimedOut when no master was elected in time: the
        same call goes on.
        """
        deadline = time.monotonic() + timeout_s
        nodes = await self._nodes()
        record = await self._found()
        plan = _plan(self._group, nodes, record, self._lost)
        if plan.needed:
            record = await self._found(
                anew=True,
                members=plan.voters,
                previous_id=_founding(nodes, (*plan.survivors, *plan.counted, *plan.fed)),
            )
            for number in (*plan.survivors, *plan.fed, *plan.counted):
                await self._refound(
                    nodes[number], record.founding_id, plan.voters, count=number in plan.counted
                )
        master = await self._wait_served(deadline, plan.lost)
        if record.previous_id:
            await self._found(complete_id=record.founding_id, members=plan.voters)
        return RestoreResult(
            group=self._group, master=master, founding=record.founding_id, changed=plan.needed
        )

    async def _refound(
        self, node: _Node, founding: str, voters: Collection[int], *, count: bool
    ) -> None:
        request = broker_pb2.RefoundNodeRequest(
            cluster_id=self._cluster.routes.cluster_id,
            group_id=self._group,
            node_id=node.status.node_id,
            from_id=node.status.founding_id,
            to_id=founding,
            count=count,
            voters=sorted(voters),
        )
        await self._cluster.connections.call(
            node.address, MEMBERS, "RefoundNode", request, NODE_CALL_S
        )

    async def _wait_served(self, deadline: float, lost: Collection[int]) -> int:
        while True:
            for number, node in (await self._nodes()).items():
                if number not in lost and node.status is not None and node.status.role == "master":
                    return number
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"broker group {self._group} has no master yet: look at the logs of its nodes, "
                    "and repeat the command, which goes on"
                )
            await asyncio.sleep(LOOK_S)

    async def _found(self, **fields: Any) -> Any:
        request = controller_pb2.FoundGroupRequest(
            cluster_id=self._cluster.routes.cluster_id, group_id=self._group, **fields
        )
        return await self._cluster.controller("FoundGroup", request)

    async def _nodes(self) -> dict[int, _Node]:
        """Returns all nodes that any node names as members; `status` is None for silent ones."""
        status = await self._cluster.controller(
            "GetClusterStatus", controller_pb2.ClusterStatusRequest()
        )
        addresses = {
            node.node_id: node.address
            for group in status.groups
            if group.group_id == self._group
            for node in group.nodes
            if node.role not in OUTSIDE
        }
        found: dict[int, _Node] = {}
        while missing := addresses.keys() - found.keys():
            asked = sorted(missing)
            answers = await asyncio.gather(*(self._ask(one, addresses[one]) for one in asked))
            for number, answer in zip(asked, answers, strict=True):
                found[number] = _Node(address=addresses[number], status=answer)
                for member in () if answer is None else answer.members:
                    addresses.setdefault(member.node.node_id, member.node.address)
        return found

    async def _ask(self, number: int, address: str) -> Any:
        """Returns the node's status, or None if no node of this group answers at the address."""
        try:
            answer = await self._cluster.connections.call(
                address, BROKER, "GetNodeStatus", broker_pb2.NodeStatusRequest(), NODE_CALL_S
            )
        except SemelError:
            return None
        found = (answer.cluster_id, answer.group_id, answer.node_id)
        return answer if found == (self._cluster.routes.cluster_id, self._group, number) else None


def _founding(nodes: Mapping[int, _Node], numbers: Collection[int]) -> str:
    """Returns the group's founding, as the first of these nodes that knows it reports it."""
    return next(filter(None, (nodes[number].status.founding_id for number in numbers)), "")


def _plan(group: int, nodes: Mapping[int, _Node], record: Any, lost: frozenset[int]) -> RestorePlan:
    there = {number: node.status for number, node in nodes.items() if node.status is not None}
    if not there:
        raise InvalidRequest(
            f"no node of broker group {group} answers: start them, those whose disks are lost with "
            "empty directories"
        )
    newest = max(there.values(), key=lambda status: int(status.membership_index))
    voters = {
        member.node.node_id
        for member in newest.members
        if member.membership == broker_pb2.MEMBERSHIP_STATUS_VOTER
    }
    # A node of another founding has another history, so its data does not count.
    current = {record.founding_id, record.previous_id} - {""}
    mine = {
        number: status
        for number, status in there.items()
        if number in voters
        and (not current or not status.founding_id or status.founding_id in current)
    }
    survivors = sorted(number for number, status in mine.items() if not status.non_counting)
    quorum = len(voters) // 2 + 1
    wrong = lost & mine.keys()
    if wrong:
        raise InvalidRequest(
            f"node {min(wrong)} answers and is not lost; if it is to be given up, stop it first"
        )
    unknown = lost - voters
    if unknown:
        raise InvalidRequest(
            f"node {min(unknown)} is no voter of broker group {group}, which has {sorted(voters)}"
        )
    together = [n for n in survivors if mine[n].founding_id == record.founding_id]
    needed = max(len(together), 0 if record.previous_id else len(survivors)) < quorum
    silent = voters - mine.keys() - lost
    if needed and silent:
        raise InvalidRequest(
            f"nodes {sorted(silent)} of broker group {group} do not answer, and may have messages "
            "that nobody else has: start them; pass --lost for each whose disk is gone for good"
        )
    non_counting = sorted(
        (number for number, status in mine.items() if status.non_counting),
        key=lambda number: (-mine[number].log_end_index, number),
    )
    missing = max(0, quorum - len(survivors)) if needed else 0
    if missing > len(non_counting):
        raise InvalidRequest(
            f"broker group {group} has voters {sorted(voters)} and needs {quorum} of them, but "
            f"only {sorted(mine)} are there: start nodes with empty directories in the place of "
            "the lost ones, with their numbers and addresses"
        )
    return RestorePlan(
        group=group,
        voters=tuple(sorted(voters)),
        survivors=tuple(survivors),
        counted=tuple(sorted(non_counting[:missing])),
        fed=tuple(sorted(non_counting[missing:])),
        lost=tuple(sorted(voters - mine.keys())),
        kept_index=max((mine[number].log_end_index for number in survivors), default=0),
        needed=needed,
    )
