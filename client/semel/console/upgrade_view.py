"""The view of `semel cluster upgrade --check`, for people and as JSON.

Not here: the command (`cluster.py`), the check itself (`semel.client.admin.upgrade_check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.console import render

if TYPE_CHECKING:
    from semel.client.admin.upgrade_check import UpgradeCheck


def as_json(found: UpgradeCheck) -> dict[str, Any]:
    """All fields, and whether something is in the way and something is to be raised."""
    return {"ready": found.ready, "changes": found.changes, **found.as_dict()}


def drawn(found: UpgradeCheck) -> Any:
    """The programs, the levels, the obstacles, and what --finish would do."""
    from rich.console import Group
    from rich.text import Text

    programs = render.table(
        ["program", "group", "address", "version", "knows up to level"],
        [
            [each.subject, each.group, each.address, each.version, None]
            if each.reason
            else [each.subject, each.group, each.address, each.version, each.level_max]
            for each in found.programs
        ],
    )
    levels = [f"group {each.group} at level {each.level}" for each in found.groups]
    levels += [f"the metadata at level {found.metadata}"] if found.metadata else []
    lines = [Text(f"active: {', '.join(levels) or 'not known'}")]
    for each in found.obstacles:
        mark, style = ("in the way", "bold red") if each.stops else ("note", "yellow")
        lines.append(Text(f"{mark}: ", style).append(f"{each.subject} {each.text}: {each.advice}"))
    lines.append(_verdict(found))
    return Group(programs, *lines)


def _verdict(found: UpgradeCheck) -> Any:
    from rich.text import Text

    if not found.ready:
        return Text("not ready: deal with what is in the way first", "bold red")
    if not found.changes:
        return Text(f"ready; everything is at feature level {found.level}", "green")
    text = Text(f"ready; --finish would raise everything to feature level {found.level}", "green")
    for allowed in found.allows:
        text.append(f"\nallowed then: {allowed}", "default")
    return text.append(
        "\nthere is no way back afterwards: older programs refuse the data by name", "bold"
    )
