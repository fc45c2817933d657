"""`semel node list|replace|remove|drain`: broker nodes, one at a time.

Not here: running a node (`nodes.py`), the steps of a replacement (`semel.client.admin.nodes`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from semel.console import render
from semel.console.growing import (
    ignore_memory_option,
    planned_nodes,
    same_machine_option,
    show_progress,
    tell_result,
    up_option,
    wait_option,
    where,
)
from semel.console.options import (
    client_options,
    confirm,
    examples,
    open_client,
    watch_options,
    yes_option,
)
from semel.console.units import Duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client.admin.descriptions import ClusterStatus


@click.group()
def node() -> None:
    """Broker nodes: list, replace, remove, drain."""


@node.command("list", epilog=examples("semel node list", "semel node list --watch"))
@watch_options
@client_options
def list_nodes(bootstrap: str, as_json: bool, every_s: float | None) -> int:
    """Lists all broker nodes, with those that wait to join."""
    with open_client(bootstrap) as client:

        def look() -> render.Shown:
            found = client.admin.cluster_status()
            nodes = [{"group": g.id, **n.as_dict()} for g in found.groups for n in g.nodes]
            return {"nodes": nodes}, _table(found)

        return render.Output(as_json=as_json).watch(look, every_s)


def _table(found: ClusterStatus) -> RenderableType:
    return render.table(
        ["node", "group", "role", "address", "behind", "in/s", "out/s", "free", "disk", "alive"],
        [
            [
                each.id,
                group.id,
                "master" if each.id == group.master else each.role,
                f"{each.address} ({each.rack})" if each.rack else each.address,
                max(0, group.commit_index - each.log_end_index),
                render.size(each.produced_bytes),
                render.size(each.fetched_bytes),
                render.size(each.disk_free_bytes) if each.disk_total_bytes else "",
                each.disk,
                "yes" if each.alive else f"silent for {each.silent_ms / 1000:.1f} s",
            ]
            for group in found.groups
            for each in group.nodes
        ],
    )


@node.command(
    epilog="""\b
Examples:
  semel broker --data b4 --cluster-id ID --group 1 --node 4 --listen HOST:7174 \\
      --join HOST:7171,HOST:7172 --controllers HOST:7070     # there, and then
  semel node replace 2 4
  semel node replace 2 --up semel-data     # `semel up` starts the new node and stops the old one

The new node joins as a learner, catches up, becomes a voter, and then the old one leaves; it
may be dead or alive. The command may be stopped at any moment: called again it goes on."""
)
@click.argument("old", type=click.IntRange(1))
@click.argument("new", type=click.IntRange(1), required=False)
@click.option("--address", default="", help="HOST:PORT of NEW.  [default: as it reports itself]")
@click.option("--timeout", type=Duration(), default="1h", show_default=True, help="For all of it.")
@same_machine_option
@ignore_memory_option
@up_option
@client_options
def replace(
    old: int,
    new: int | None,
    address: str,
    timeout: int,
    allow_same_machine: bool,
    ignore_memory: bool,
    up: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Puts node NEW in the place of node OLD, under load."""
    if (new is None) == (up is None):
        raise click.UsageError("name either NEW, a node that was started with --join, or --up DIR")
    out = render.Output(as_json=as_json)
    with open_client(where(up, bootstrap)) as client:
        if up is not None:
            new = planned_nodes(client, up, replaces=old)[0]
        assert new is not None
        with show_progress(out) as on_progress:
            result = client.admin.replace_node(
                old,
                new,
                address=address,
                allow_same_machine=allow_same_machine or up is not None,
                ignore_memory=ignore_memory,
                timeout=timeout / 1000,
                on_progress=on_progress,
            )
    if up is not None:
        from semel.console import cluster_file

        cluster_file.retire(up, old)
    tell_result(out, result, f"node {new} has taken the place of node {old}")


@node.command(
    epilog="""\b
Examples:
  semel node remove 4                # a learner that an abandoned replacement left behind
  semel node remove 5 --shrink --yes # from five voters to four, and then
  semel node remove 4 --yes          # to three"""
)
@click.argument("number", metavar="NODE", type=click.IntRange(1))
@click.option("--shrink", is_flag=True, help="Allow an even number of voters, on the way to fewer.")
@ignore_memory_option
@yes_option
@up_option
@client_options
def remove(
    number: int,
    shrink: bool,
    ignore_memory: bool,
    yes: bool,
    up: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Takes NODE out of its group; its data stays where it is."""
    confirm(f"Take node {number} out of its group?", yes=yes, as_json=as_json)
    with open_client(where(up, bootstrap)) as client:
        result = client.admin.remove_node(number, shrink=shrink, ignore_memory=ignore_memory)
    if up is not None:
        from semel.console import cluster_file

        cluster_file.retire(up, number)
    tell_result(render.Output(as_json=as_json), result, f"node {number} has left")


@node.command(
    epilog="""\b
Examples:
  semel node drain 1 && systemctl restart semel-broker-1     # no client sees an error
  semel node drain 1 --for 10m
  semel node drain 1 --undo"""
)
@click.argument("number", metavar="NODE", type=click.IntRange(1))
@click.option(
    "--for",
    "duration",
    type=Duration(),
    default="60s",
    show_default=True,
    help="How long it is kept from being master; its restart ends that, too.",
)
@click.option("--undo", is_flag=True, help="Let it be master again.")
@wait_option
@ignore_memory_option
@client_options
def drain(
    number: int,
    duration: int,
    undo: bool,
    wait: int,
    ignore_memory: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Moves mastership away from NODE, and keeps it away for a while.

    No write is refused meanwhile. Waits until all other nodes have the messages of topics in memory
    that NODE has: it may be stopped afterwards.
    """
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client, show_progress(out) as on_progress:
        result = client.admin.drain_node(
            number,
            seconds=0 if undo else duration / 1000,
            timeout=wait / 1000,
            ignore_memory=ignore_memory,
            on_progress=None if as_json else on_progress,
        )
    if undo:
        text = f"node {number} may be master again"
    elif result.was_master:
        text = (
            f"node {number} has handed mastership of group {result.group} to node {result.master}"
        )
    else:
        text = f"node {number} is not master of group {result.group} and does not become it"
    out.show(result.as_dict(), text)
