"""The view of `semel cluster status`: the cluster at a glance, for people and as JSON.

Not here: the command (`cluster.py`), asking the cluster (`semel.client.admin.inspection`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.console import render

if TYPE_CHECKING:
    from semel.client import Inspection
    from semel.client.admin.descriptions import BrokerGroupDescription, NodeDescription
    from semel.client.admin.inspection import NodeReport


def as_json(found: Inspection) -> dict[str, Any]:
    """The controllers' view, the problems in it, and every node's own report."""
    return {
        **found.status.as_dict(),
        "masterless_groups": masterless(found),
        "under_replicated_groups": under_replicated(found),
        "controller_reports": [each.as_dict() for each in found.controllers],
        "node_reports": [each.as_dict() for each in found.nodes],
    }


def masterless(found: Inspection) -> list[int]:
    """Broker groups without a master, which take no writes."""
    return [group.id for group in found.status.groups if found.master(group.id) is None]


def under_replicated(found: Inspection) -> list[int]:
    """Broker groups with a member that does not keep up."""
    return [group.id for group in found.status.groups if found.under_replicated(group.id)]


def drawn(found: Inspection) -> Any:
    """Headline, verdict, controllers, and one row per node."""
    from rich.console import Group
    from rich.text import Text

    status = found.status
    roles = {controller.address: controller.role for controller in status.controllers}
    controllers = Text("controllers: ").append_text(
        Text(" · ").join(
            Text(f"{each.address} silent", "bold red")
            if each.reason
            else Text(f"{each.address} {roles.get(each.address, '')}".rstrip())
            for each in found.controllers
        )
    )
    reports = {(node.group, node.node): node for node in found.nodes}
    table = render.table(
        ["group", "node", "role", "address", "term", "log end", "behind", "free", "state"],
        [
            _row(group, node, reports[group.id, node.id])
            for group in status.groups
            for node in group.nodes
        ],
    )
    topics = render.plural(status.topics, "topic")
    head = f"cluster {status.cluster_id[:16]} · semel {status.version}{_level(found)} · {topics}"
    return Group(Text(head, "bold"), _verdict(found), controllers, table)


def _level(found: Inspection) -> str:
    """The feature levels of logs and metadata, as far as they are known."""
    levels = {node.level for node in found.nodes} | {each.level for each in found.controllers}
    levels.discard(0)
    if not levels:
        return ""
    low, high = min(levels), max(levels)
    return f" · feature level {low}" if low == high else f" · feature levels {low} to {high}"


def _verdict(found: Inspection) -> Any:
    from rich.text import Text

    groups = len(found.status.groups)
    parts = []
    if without := masterless(found):
        parts.append(Text(f"without a master: group {_list(without)}", "bold red"))
    if poor := under_replicated(found):
        parts.append(Text(f"under-replicated: group {_list(poor)}", "bold yellow"))
    if found.status.unfinished:
        unfinished = render.plural(len(found.status.unfinished), "topic")
        parts.append(Text(f"{unfinished} not finished", "yellow"))
    if not parts:
        whole = f"all {groups} groups are whole" if groups != 1 else "the broker group is whole"
        return Text(whole if groups else "no broker has reported yet", "green" if groups else "red")
    return Text(" · ").join(parts).append(" · semel doctor says more", "dim")


def _list(groups: list[int]) -> str:
    return ", ".join(map(str, groups))


def _row(group: BrokerGroupDescription, node: NodeDescription, report: NodeReport) -> list[object]:
    from rich.text import Text

    reason = state(node, report)
    if report.reason:
        role = Text("silent", "bold red")
        return [group.id, node.id, role, node.address, None, None, None, None, reason]
    style = "bold green" if report.serving else "green" if report.role == "slave" else "yellow"
    free = report.disk_free_bytes / report.disk_total_bytes if report.disk_total_bytes else None
    return [
        group.id,
        node.id,
        Text(report.role, style),
        node.address,
        report.term,
        report.log_end_index,
        max(0, group.commit_index - report.log_end_index),
        None if free is None else Text(f"{free:.0%}", justify="right"),
        reason,
    ]


def state(node: NodeDescription, report: NodeReport) -> str:
    """The problems of a node in a few words; "ok" when there are none."""
    if report.reason:
        return (
            "no answer"
            if node.alive or not node.silent_ms
            else f"for {render.brief(node.silent_ms)}"
        )
    problems = [
        *(["disk full"] if report.disk_full else []),
        *([f"{report.lost} lost"] if report.lost else []),
        *([f"{report.damaged} damaged"] if report.damaged else []),
        *(["non-counting"] if report.non_counting else []),
        *(["not serving yet"] if report.role == "master" and not report.serving else []),
        *([] if node.alive else ["unreported"]),
    ]
    return ", ".join(problems) or "ok"
