"""`semel group list|describe|reset-offsets|delete`: consumer groups."""

from __future__ import annotations

from datetime import datetime

import click

from semel.console import render
from semel.console.options import client_options, open_client
from semel.console.units import Place


@click.group()
def group() -> None:
    """Consumer groups, their members and their lag."""


@group.command("list")
@client_options
def list_groups(bootstrap: str, as_json: bool) -> None:
    """Lists groups that have members or committed anything."""
    with open_client(bootstrap) as client:
        groups = client.admin.list_groups()
    out = render.Output(as_json=as_json)
    drawn = render.table(["group"], [[name] for name in groups])
    out.show({"groups": groups}, drawn if groups else "no groups")


@group.command()
@click.argument("name")
@client_options
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Shows a group's members and, for each queue, its progress, lag and lock."""
    with open_client(bootstrap) as client:
        found = client.admin.describe_group(name)
    out = render.Output(as_json=as_json)
    if as_json:
        out.emit({**found.as_dict(), "lag": found.lag})
        return
    members = render.table(
        ["member", "client", "topics", "queues"],
        [
            [
                member.member_id,
                member.client,
                ", ".join(member.topics),
                ", ".join(f"{topic}/{queue}" for topic, queue in member.queues),
            ]
            for member in found.members
        ],
        title=f"{name} · generation {found.generation} · lag {found.lag:,}",
    )
    queues = render.table(
        ["topic", "queue", "committed", "end", "lag", "owner", "token"],
        [
            [
                queue.topic,
                queue.queue,
                None if queue.committed_offset < 0 else queue.committed_offset,
                queue.log_end_offset,
                queue.lag,
                queue.owner,
                queue.token,
            ]
            for queue in found.queues
        ],
    )
    out.draw(members, queues)


@group.command("reset-offsets")
@click.argument("name")
@click.argument("topic")
@click.option("--to", type=Place(), required=True, help="earliest, latest, OFFSET or ISO-TIME.")
@click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
@client_options
def reset_offsets(
    name: str, topic: str, to: str | int | datetime, dry_run: bool, bootstrap: str, as_json: bool
) -> None:
    """Moves a group's progress on a topic; its running consumers lose their locks."""
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        if dry_run:
            with client.reader(topic, start=to) as reader:
                offsets = reader.positions()
        else:
            offsets = client.admin.reset_offsets(name, topic, to)
    value = {"group": name, "topic": topic, "dry_run": dry_run, "offsets": offsets}
    drawn = render.table(
        ["queue", "next offset"],
        sorted(offsets.items()),
        title=f"{name} on {topic}" + (" (dry run, nothing changed)" if dry_run else ""),
    )
    out.show(value, drawn)


@group.command()
@click.argument("name")
@client_options
def delete(name: str, bootstrap: str, as_json: bool) -> None:
    """Forgets a group without members, and its progress."""
    with open_client(bootstrap) as client:
        client.admin.delete_group(name)
    out = render.Output(as_json=as_json)
    out.show({"group": name, "deleted": True}, f"group {name} deleted")
