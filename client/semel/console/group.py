"""`semel group list|describe|reset-offsets|delete`: consumer groups."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from semel.console import completion, render
from semel.console.options import (
    client_options,
    confirm,
    examples,
    open_client,
    watch_options,
    yes_option,
)
from semel.console.units import Place, TopicQueue

if TYPE_CHECKING:
    from semel.client import OffsetReset, Shift
    from semel.client.admin.descriptions import GroupDescription


@click.group()
def group() -> None:
    """Consumer groups, their members and their lag."""


@group.command("list", epilog=examples("semel group list", "semel group list --watch"))
@watch_options
@client_options
def list_groups(bootstrap: str, as_json: bool, every_s: float | None) -> int:
    """Lists groups that have members or committed anything."""
    with open_client(bootstrap) as client:

        def look() -> render.Shown:
            groups = client.admin.group_summaries()
            drawn = render.table(
                ["group", "members", "locks", "lag", "topics"],
                [[g.group, g.members, g.locks, g.lag, ", ".join(g.topics)] for g in groups],
            )
            value = {"groups": [each.as_dict() for each in groups]}
            return value, drawn if groups else "no groups"

        return render.Output(as_json=as_json).watch(look, every_s)


@group.command(
    epilog=examples("semel group describe billing", "semel group describe billing --watch")
)
@click.argument("name", shell_complete=completion.groups)
@watch_options
@client_options
def describe(name: str, bootstrap: str, as_json: bool, every_s: float | None) -> int:
    """Shows members, and each queue's progress, lag and lock."""
    with open_client(bootstrap) as client:

        def look() -> render.Shown:
            found = client.admin.describe_group(name)
            return {**found.as_dict(), "lag": found.lag}, _described(found)

        return render.Output(as_json=as_json).watch(look, every_s)


def _described(found: GroupDescription) -> Any:
    from rich.console import Group

    members = render.table(
        ["member", "client", "queues"],
        [
            [
                render.member(member.member_id),
                member.client,
                render.ranges(member.queues),
            ]
            for member in found.members
        ],
    )
    queues = render.table(
        ["topic", "queue", "committed", "end", "lag", "token", "lock owner", "held", "uncommitted"],
        [
            [
                queue.topic,
                queue.queue,
                None if queue.committed_offset < 0 else queue.committed_offset,
                queue.log_end_offset,
                queue.lag,
                queue.token,
                render.member(queue.owner),
                render.lock_age(queue.lock),
                render.uncommitted(queue.lock),
            ]
            for queue in found.queues
        ],
    )
    kind = f" · {found.kind}" if found.kind != "consumers" else ""
    title = f"{found.group}{kind} · generation {found.generation} · lag {found.lag:,}"
    return Group(title, members if found.members else "no members", "", queues)


@group.command(
    "reset-offsets",
    epilog=examples(
        "semel group reset-offsets billing --to-earliest",
        "semel group reset-offsets billing --topic orders --to-offset 0 --execute",
        "semel group reset-offsets billing --to-datetime 2026-01-31T12:00:00Z",
        "semel group reset-offsets billing --topic orders:3 --shift-by -100",
        more="Without --execute it shows what would change and changes nothing. A group with"
        " members is refused: stop its consumers first. A time means the first message stored at"
        " or after it. A shift stays within the queue, and leaves queues alone on which the group"
        " never committed.",
    ),
)
@click.argument("name", shell_complete=completion.groups)
@click.option(
    "--topic",
    "topics",
    type=TopicQueue(),
    multiple=True,
    shell_complete=completion.topics,
    help="TOPIC or TOPIC:QUEUE. Repeat.  [default: all the group has read]",
)
@click.option("--to-earliest", is_flag=True, help="To the first message there is.")
@click.option("--to-latest", is_flag=True, help="After the last message.")
@click.option("--to-datetime", type=Place(time_only=True), help="To a time in ISO 8601.")
@click.option("--to-offset", type=click.IntRange(0), help="To an offset, in every queue.")
@click.option("--shift-by", type=int, help="This many messages forward, or back if negative.")
@click.option("--execute", is_flag=True, help="Make the changes, instead of only showing them.")
@client_options
def reset_offsets(
    name: str,
    topics: tuple[tuple[str, int | None], ...],
    execute: bool,
    bootstrap: str,
    as_json: bool,
    **places: Any,
) -> None:
    """Moves an idle group's progress; a dry run by default."""
    to = _place(**places)
    with open_client(bootstrap) as client:
        plan, active = client.admin.plan_offset_resets(name, topics, to=to)
        if execute:
            client.admin.carry_out_resets(name, plan)
    value = {
        "group": name,
        "executed": execute,
        "active": active,
        "resets": [reset.as_dict() for reset in plan],
    }
    render.Output(as_json=as_json).show(value, _plan(name, plan, executed=execute))
    if active and not execute:
        render.warn(f"{name} is active ({', '.join(active[:3])}): --execute would be refused")


def _place(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: datetime | None,
    to_offset: int | None,
    shift_by: int | None,
) -> str | int | datetime | Shift:
    from semel.client import Shift

    given: list[str | int | datetime | Shift] = []
    given += ["earliest"] if to_earliest else []
    given += ["latest"] if to_latest else []
    given += [to_datetime] if to_datetime is not None else []
    given += [to_offset] if to_offset is not None else []
    given += [Shift(messages=shift_by)] if shift_by is not None else []
    if len(given) != 1:
        raise click.UsageError(
            "pass exactly one of --to-earliest, --to-latest, --to-datetime, --to-offset and"
            " --shift-by"
        )
    return given[0]


def _plan(name: str, plan: list[OffsetReset], *, executed: bool) -> Any:
    if not plan:
        return f"nothing to move: {name} has committed nothing there"
    rows = []
    for reset in plan:
        before = None if reset.committed_offset < 0 else reset.committed_offset
        change = "" if before is None else f"{reset.new_offset - before:+,}"
        there = f"{reset.log_start_offset:,}..{reset.log_end_offset:,}"
        rows.append([reset.topic, reset.queue, before, reset.new_offset, change, there])
    how = "moved" if executed else "dry run, nothing changed; --execute does it"
    return render.table(
        ["topic", "queue", "committed", "new", "change", "there is"], rows, title=f"{name}: {how}"
    )


@group.command(
    epilog=examples(
        "semel group delete billing --yes", "semel group delete billing --topic orders --yes"
    )
)
@click.argument("name", shell_complete=completion.groups)
@click.option("--topic", help="Only the progress in this topic.", shell_complete=completion.topics)
@click.option("--if-exists", is_flag=True, help="A missing group is no error.")
@yes_option
@client_options
def delete(
    name: str, topic: str | None, if_exists: bool, yes: bool, bootstrap: str, as_json: bool
) -> None:
    """Forgets a group without members, and its progress."""
    from semel.protos.errors import UnknownGroup

    where = "" if topic is None else f" in topic {topic}"
    what = f"group {name}" if topic is None else f"the progress of group {name}{where}"
    whole = f"group {name} and its progress" if topic is None else what
    confirm(f"Delete {whole}, for good?", yes=yes, as_json=as_json)
    deleted = True
    with open_client(bootstrap) as client:
        try:
            client.admin.delete_group(name, topic)
        except UnknownGroup:
            if not if_exists:
                raise
            deleted = False
    missing = f"there is no group {name}" if topic is None else f"group {name} has none{where}"
    facts = {"group": name, "deleted": deleted} | ({} if topic is None else {"topic": topic})
    render.Output(as_json=as_json).show(facts, f"{what} deleted" if deleted else missing)
