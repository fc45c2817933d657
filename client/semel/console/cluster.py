"""`semel cluster status|grow|transfer`."""

from __future__ import annotations

from pathlib import Path

import click

from semel.console import render
from semel.console.growing import planned_nodes, show_progress, tell_result, up_option, where
from semel.console.options import client_options, examples, open_client, watch_options
from semel.console.units import Duration


@click.group()
def cluster() -> None:
    """The state of the cluster, and its broker groups as a whole."""


@cluster.command(epilog=examples("semel cluster status", "semel cluster status --watch --every 1s"))
@watch_options
@client_options
def status(bootstrap: str, as_json: bool, every_s: float | None) -> int:
    """Shows masters, who lags or is silent, disks, controllers: the cluster at a glance."""
    from semel.console import status as view

    with open_client(bootstrap) as client:

        def look() -> render.Shown:
            found = client.admin.inspect_cluster()
            return view.as_json(found), view.drawn(found)

        return render.Output(as_json=as_json).watch(look, every_s)


@cluster.command(
    epilog="""\b
Examples:
  semel cluster grow 1 --to 3 --up semel-data     # `semel up` starts the new nodes
  semel cluster grow 1 --to 5                     # with nodes that wait to join (semel node list)
  semel cluster grow 1 --to 3 --node 2 --node 3

New nodes join as learners, catch up beside each other, and become voters one after the other. The
command may be stopped at any moment: called again it goes on."""
)
@click.argument("group", type=click.IntRange(1))
@click.option(
    "--to", type=click.Choice(["3", "5"]), required=True, help="Voters the group is to have."
)
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(1),
    multiple=True,
    help="A node that was started with --join. Repeat.  [default: those that wait]",
)
@click.option("--timeout", type=Duration(), default="1h", show_default=True, help="For all of it.")
@up_option
@client_options
def grow(
    group: int,
    to: str,
    nodes: tuple[int, ...],
    timeout: int,
    up: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Gives broker group GROUP more nodes, under load."""
    out = render.Output(as_json=as_json)
    with open_client(where(up, bootstrap)) as client:
        if up is not None:
            nodes = tuple(planned_nodes(client, up, group=group, size=int(to)))
        with show_progress(out) as on_progress:
            result = client.admin.grow_group(
                group,
                int(to),
                nodes=dict.fromkeys(nodes, ""),
                timeout=timeout / 1000,
                on_progress=on_progress,
            )
    tell_result(out, result, f"group {group} has grown")


@cluster.command(
    epilog="""\b
Examples:
  semel cluster transfer 1 2      # node 2 becomes master of group 1
  semel cluster transfer 1        # whoever is furthest"""
)
@click.argument("group", type=click.IntRange(1))
@click.argument("node", type=click.IntRange(1), required=False)
@client_options
def transfer(group: int, node: int | None, bootstrap: str, as_json: bool) -> None:
    """Moves the mastership of broker group GROUP without refusing a write."""
    with open_client(bootstrap) as client:
        master = client.admin.transfer_mastership(group, node or 0)
    out = render.Output(as_json=as_json)
    out.show({"group": group, "master": master}, f"node {master} is master of group {group}")
