"""One view of each broker group, made from the reports of its nodes.

How it works. Every node reports about itself every second. A group's members are those that its
newest master names; until a master has reported, they are all nodes that any report named. Nodes
that wait to join, or were removed, are shown while they report, but are no members. A node's own
report about its address counts more than the reports of others. The highest term wins; within one
term the first master named stays.

The view is a hint for clients and for people: the group itself decides which node is the master,
and the node that a client asks corrects a wrong hint.

Invariants
1. Term and master only move forward, with one exception: when every member reports a lower term
   (the group was restored from nothing), the view follows them and `Outcome.regressed` is set.
2. A node belongs to one group.

Not here: storing and publishing the view (`registry.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from semel.protos.errors import InvalidRequest
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2 import GroupRoute, GroupStatus, NodeStatus, ReportNodeRequest
from semel.protos.v1.metadata_pb2 import BrokerGroupRecord

MASTER = "master"
FREE_SHARE_MIN = 0.05
"""A group whose master has less of its disk left gets no new queues while others have more."""
OUTSIDE = ("joining", "removed")
"""Roles of nodes that report to be found, and are no members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The changes that a report made."""

    changed: bool
    """Members, addresses, term or master changed: the group must be stored and published."""
    new_master: bool
    """The group has a master now, and it is another one, or its term is newer, than before."""
    regressed: bool
    """All members are at a lower term than the group had before."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    report: ReportNodeRequest
    at_ms: int


@dataclass(slots=True, kw_only=True)
class _Group:
    term: int = 0
    master_id: int = 0
    members: dict[int, NodeAddress] = field(default_factory=dict)
    named_by_master: bool = False
    seen: dict[int, _Seen] = field(default_factory=dict)

    def addresses(self) -> list[NodeAddress]:
        """The members, each with the newest address known, by node."""
        return [
            self.seen[node_id].report.node if node_id in self.seen else self.members[node_id]
            for node_id in sorted(self.members)
        ]

    def learn_members(self, report: ReportNodeRequest) -> None:
        if report.role in OUTSIDE:
            return
        named = {node.node_id: node for node in report.members if node.node_id}
        named[report.node.node_id] = report.node
        if report.members and report.role == MASTER and report.term >= self.term:
            self.members = named
            self.named_by_master = True
        elif not self.named_by_master:
            for node_id, node in named.items():
                self.members.setdefault(node_id, node)

    def learn_master(self, report: ReportNodeRequest) -> None:
        if report.role in OUTSIDE:
            return
        master_id = report.node.node_id if report.role == MASTER else report.master_id
        if report.term > self.term:
            self.term, self.master_id = report.term, master_id
        elif report.term == self.term and not self.master_id:
            self.master_id = master_id

    def maybe_regress(self) -> bool:
        """Follows the members when all of them have reported a lower term."""
        newest = [self.seen[node].report for node in self.members if node in self.seen]
        if len(newest) < len(self.members) or any(r.term >= self.term for r in newest):
            return False
        self.term, self.master_id = 0, 0
        for report in newest:
            self.learn_master(report)
        return True


class NodeTable:
    """All groups and nodes. Times are milliseconds of one monotonic clock."""

    def __init__(self, *, report_timeout_ms: int) -> None:
        self._timeout_ms = report_timeout_ms
        self._groups: dict[int, _Group] = {}

    def restore(self, record: BrokerGroupRecord) -> None:
        """Puts a stored group back; its nodes have not reported yet."""
        self._groups[record.group_id] = _Group(
            term=record.term,
            master_id=record.master_id,
            members={node.node_id: node for node in record.nodes},
            named_by_master=bool(record.master_id),
        )

    def on_report(self, report: ReportNodeRequest, now_ms: int) -> Outcome:
        """Takes in a report. Raises InvalidRequest for a node of another group."""
        node_id = report.node.node_id
        if not node_id or not report.node.address:
            raise InvalidRequest("a node's report needs its number, 1 and up, and its address")
        for group_id, group in self._groups.items():
            if group_id != report.group_id and node_id in group.members:
                raise InvalidRequest(
                    f"node {node_id} belongs to broker group {group_id}, not to "
                    f"{report.group_id}. Give every node of the cluster a number of its own"
                )
        group = self._groups.setdefault(report.group_id, _Group())
        before = (group.term, group.master_id, group.addresses())
        group.seen[node_id] = _Seen(report=report, at_ms=now_ms)
        group.learn_members(report)
        group.learn_master(report)
        regressed = group.maybe_regress()
        after = (group.term, group.master_id, group.addresses())
        return Outcome(
            changed=before != after,
            new_master=after[1] != 0 and before[:2] != after[:2],
            regressed=regressed,
        )

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""
        return sorted(self._groups)

    def served_groups(self, now_ms: int) -> list[int]:
        """Groups whose master is known and has reported in time."""
        return [
            group_id
            for group_id, group in sorted(self._groups.items())
            if self._alive(group, group.master_id, now_ms)
        ]

    def has_room(self, group_id: int) -> bool:
        """Whether the group's master has room on its disk, as far as it has reported."""
        report = self._masters_report(group_id)
        if report is None or not report.load.disk_total_bytes:
            return report is None or not report.disk_full
        free = report.load.disk_free_bytes / report.load.disk_total_bytes
        return not report.disk_full and free >= FREE_SHARE_MIN

    def written_bytes(self, group_id: int) -> int:
        """Bytes a second that producers write to the group, as its master reported last."""
        report = self._masters_report(group_id)
        return 0 if report is None else report.load.produced_bytes

    def level(self, group_id: int) -> int | None:
        """Feature level of the group's log, as its master reported last; None when it did not."""
        report = self._masters_report(group_id)
        return report.levels.active or None if report is not None else None

    def disk_bytes(self, group_id: int) -> int | None:
        """Size of the smallest disk of the members, as reported last; None when none was."""
        group = self._groups[group_id]
        sizes = [
            size
            for node_id in group.members
            if node_id in group.seen and (size := group.seen[node_id].report.load.disk_total_bytes)
        ]
        return min(sizes, default=None)

    def _masters_report(self, group_id: int) -> ReportNodeRequest | None:
        group = self._groups[group_id]
        seen = group.seen.get(group.master_id)
        return None if seen is None else seen.report

    def addresses(self, group_id: int) -> list[str]:
        """The addresses of a group's nodes, the master first; empty for an unknown group."""
        group = self._groups.get(group_id)
        if group is None:
            return []
        nodes = sorted(group.addresses(), key=lambda node: node.node_id != group.master_id)
        return [node.address for node in nodes]

    def nodes(self, group_id: int) -> list[NodeAddress]:
        """The members with their newest addresses; empty for an unknown group."""
        group = self._groups.get(group_id)
        return [] if group is None else group.addresses()

    def has_history(self, group_id: int) -> bool:
        """Whether the group ever had a master."""
        group = self._groups.get(group_id)
        return group is not None and group.term > 0

    def route(self, group_id: int) -> GroupRoute:
        """The group as clients see it."""
        group = self._groups[group_id]
        return GroupRoute(
            group_id=group_id,
            nodes=group.addresses(),
            master_id=group.master_id,
            term=group.term,
        )

    def record(self, group_id: int) -> BrokerGroupRecord:
        """The group as it is stored."""
        group = self._groups[group_id]
        return BrokerGroupRecord(
            group_id=group_id,
            nodes=group.addresses(),
            term=group.term,
            master_id=group.master_id,
        )

    def status(self, now_ms: int, queues: Mapping[int, int]) -> list[GroupStatus]:
        """Every group with all its nodes; `queues` counts the queues placed on each."""
        return [
            GroupStatus(
                group_id=group_id,
                term=group.term,
                master_id=group.master_id,
                commit_index=max((s.report.commit_index for s in group.seen.values()), default=0),
                nodes=self._node_status(group, now_ms),
                queues=queues.get(group_id, 0),
            )
            for group_id, group in sorted(self._groups.items())
        ]

    def _node_status(self, group: _Group, now_ms: int) -> Iterable[NodeStatus]:
        for node_id in sorted(group.members.keys() | group.seen.keys()):
            if node_id not in group.members and not self._alive(group, node_id, now_ms):
                continue  # it was removed, or never became a member
            seen = group.seen.get(node_id)
            if seen is None:
                yield NodeStatus(node_id=node_id, address=group.members[node_id].address)
                continue
            yield NodeStatus(
                node_id=node_id,
                address=seen.report.node.address,
                role=seen.report.role,
                log_end_index=seen.report.log_end_index,
                damaged=seen.report.damaged,
                lost=seen.report.lost,
                disk_full=seen.report.disk_full,
                load=seen.report.load,
                rack=seen.report.node.rack,
                alive=self._alive(group, node_id, now_ms),
                silent_ms=max(0, now_ms - seen.at_ms),
            )

    def _alive(self, group: _Group, node_id: int, now_ms: int) -> bool:
        seen = group.seen.get(node_id)
        return seen is not None and now_ms - seen.at_ms <= self._timeout_ms


class QueueCountWatch:
    """Notices a group that has fewer queues than were placed on it.

    A report may be older than the placement it is compared with, so only a shortfall that lasts
    counts. It is reported once until it ends.
    """

    def __init__(self, *, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._since_ms: dict[int, int] = {}
        self._told: set[int] = set()

    def on_count(self, group_id: int, *, found: int, placed: int, now_ms: int) -> bool:
        """Takes in a count; true when an operator must be told now."""
        if found >= placed:
            self._since_ms.pop(group_id, None)
            self._told.discard(group_id)
            return False
        since_ms = self._since_ms.setdefault(group_id, now_ms)
        if group_id in self._told or now_ms - since_ms < self._patience_ms:
            return False
        self._told.add(group_id)
        return True
