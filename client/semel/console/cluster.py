"""`semel cluster status|add-group|grow|transfer|upgrade|restore`.

Not here: `semel cluster restart` (`restarting.py`).
"""

from __future__ import annotations

from pathlib import Path

import click

from semel.console import cluster_file, render
from semel.console.growing import (
    ignore_memory_option,
    planned_nodes,
    same_machine_option,
    show_progress,
    tell_result,
    up_option,
    wait_option,
    wait_reported,
    wait_served,
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
from semel.console.restarting import restart
from semel.console.units import Duration


@click.group()
def cluster() -> None:
    """The state of the cluster, and its broker groups as a whole."""


cluster.add_command(restart)


@cluster.command(epilog=examples("semel cluster status", "semel cluster status --watch --every 1s"))
@watch_options
@client_options
def status(bootstrap: str, as_json: bool, every_s: float | None) -> int:
    """Shows the cluster at a glance.

    It shows masters, nodes that lag or are silent, disks, controllers and versions.
    """
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
    "--to", type=click.Choice(["3", "5"]), required=True, help="Number of voters afterwards."
)
@click.option(
    "--node",
    "nodes",
    type=click.IntRange(1),
    multiple=True,
    help="A node that was started with --join. Repeat.  [default: those that wait]",
)
@click.option("--timeout", type=Duration(), default="1h", show_default=True, help="For all of it.")
@same_machine_option
@up_option
@client_options
def grow(
    group: int,
    to: str,
    nodes: tuple[int, ...],
    timeout: int,
    allow_same_machine: bool,
    up: Path | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Adds nodes to broker group GROUP, under load."""
    out = render.Output(as_json=as_json)
    with open_client(where(up, bootstrap)) as client:
        if up is not None:
            nodes = tuple(planned_nodes(client, up, group=group, size=int(to)))
        with show_progress(out) as on_progress:
            result = client.admin.grow_group(
                group,
                int(to),
                nodes=dict.fromkeys(nodes, ""),
                allow_same_machine=allow_same_machine or up is not None,
                timeout=timeout / 1000,
                on_progress=on_progress,
            )
    tell_result(out, result, f"group {group} has grown")


@cluster.command(
    "add-group",
    epilog="""\b
Examples:
  semel cluster add-group 2 --up semel-data   # `semel up` starts three nodes more
  semel cluster add-group 2                   # waits for nodes that were started with --group 2

New topics and queues are placed on the group from then on; what exists stays where it is until
it is moved. The command may be stopped at any moment: called again it goes on.""",
)
@click.argument("group", type=click.IntRange(1))
@click.option(
    "--brokers",
    type=click.Choice(["1", "3", "5"]),
    default="3",
    show_default=True,
    help="Number of nodes that `up` starts.",
)
@click.option(
    "--timeout", type=Duration(), default="1m", show_default=True, help="Until the group serves."
)
@up_option
@client_options
def add_group(
    group: int, brokers: str, timeout: int, up: Path | None, bootstrap: str, as_json: bool
) -> None:
    """Takes broker group GROUP into the cluster, live.

    Returns once it can be written.
    """
    out = render.Output(as_json=as_json)
    with open_client(where(up, bootstrap)) as client:
        if up is not None:
            founders = cluster_file.found_group(up, group, int(brokers))
            wait_reported(client, up, [node.id for node in founders])
        found = wait_served(client, group, timeout / 1000)
    nodes = ", ".join(f"{node.id} at {node.address}" for node in found.nodes)
    text = f"group {group} serves, its master is node {found.master}; nodes: {nodes}"
    out.show({"event": "done", **found.as_dict()}, text)


@cluster.command(
    epilog="""\b
Examples:
  semel cluster transfer 1 2      # node 2 becomes master of group 1
  semel cluster transfer 1        # the most advanced node does"""
)
@click.argument("group", type=click.IntRange(1))
@click.argument("node", type=click.IntRange(1), required=False)
@wait_option
@ignore_memory_option
@client_options
def transfer(
    group: int, node: int | None, wait: int, ignore_memory: bool, bootstrap: str, as_json: bool
) -> None:
    """Moves mastership of GROUP without refusing a write."""
    with open_client(bootstrap) as client:
        master = client.admin.transfer_mastership(
            group, node or 0, timeout=wait / 1000, ignore_memory=ignore_memory
        )
    out = render.Output(as_json=as_json)
    out.show({"group": group, "master": master}, f"node {master} is master of group {group}")


@cluster.command(
    epilog="""\b
Examples:
  semel cluster restore 1                  # shows what would be kept, and asks
  semel cluster restore 1 --lost 2         # the disk of node 2 is gone, and no new one is there
  semel cluster restore 1 --lost 2 --lost 3 --yes --json
  semel cluster restore --from s3://bucket/prefix --dry-run    # all machines are gone
  semel cluster restore --from s3://bucket/prefix

When a majority of a group's disks is lost, its nodes wait for ever: nobody can tell what was
acknowledged. First start all nodes again, those whose disks are lost with empty directories and the
settings they had. Nodes that still have data keep it, and all that any of them has is served;
acknowledged messages that only lost disks had ARE GONE. A lost node's directory is refused if it
ever comes back. Nothing is done to a group whose majority is whole. The command may be stopped at
any moment: called again it goes on.

With --from, the brokers of the new cluster were started with --tier URL --tier-restore. The lost
cluster must not be alive: its tier becomes this one's. What the tier does not have is gone, and is
shown queue by queue."""
)
@click.argument("group", type=click.IntRange(1), required=False)
@click.option(
    "--from",
    "url",
    metavar="URL",
    help="The tier of a lost cluster, as the brokers were given it with --tier.",
)
@click.option(
    "--without",
    metavar="TOPIC",
    multiple=True,
    help="With --from: a topic, by name or id, that is not restored. Repeat.",
)
@click.option("--dry-run", is_flag=True, help="With --from: show what would be done, and no more.")
@click.option(
    "--lost",
    type=click.IntRange(1),
    multiple=True,
    help="A node that does not answer, and whose disk is gone for good. Repeat.",
)
@click.option("--timeout", type=Duration(), help="For all of it.  [default: 1m; with --from 1h]")
@yes_option
@client_options
def restore(
    group: int | None,
    url: str | None,
    without: tuple[str, ...],
    dry_run: bool,
    lost: tuple[int, ...],
    timeout: int | None,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Begins a GROUP anew, or a cluster from its tier.

    GROUP is one of which a majority of the disks was lost. With --from, this new and empty cluster
    gets all topics of one that is lost.
    """
    out = render.Output(as_json=as_json)
    if (group is None) == (url is None):
        raise click.UsageError("name a GROUP, or a tier with --from URL")
    if url is not None:
        if lost:
            raise click.UsageError("--lost is about the disks of a GROUP")
        from semel.console.tier_restore import restore_from

        restore_from(out, bootstrap, url, without, (timeout or 3_600_000) / 1000, dry_run, yes)
        return
    if without or dry_run:
        raise click.UsageError("--without and --dry-run go with --from URL")
    assert group is not None
    timeout = timeout or 60_000
    with open_client(bootstrap) as client:
        plan = client.admin.look_at_restore(group, lost=lost)
        if plan.needed:
            kept = _named(plan.survivors)
            keeps = (
                f"entries up to {plan.kept_index} of {kept} are kept" if kept else "NOTHING IS KEPT"
            )
            render.warn(
                f"group {group} has lost a majority of its disks: {keeps}, and acknowledged "
                "messages that only the lost disks had are gone for good. "
                f"Counted although they have lost their data: {_named(plan.counted) or 'none'}; "
                f"given up for ever: {_named(plan.lost) or 'none'}."
            )
            confirm(f"Begin group {group} anew?", yes=yes, as_json=as_json)
        result = client.admin.restore_group(group, lost=lost, timeout=timeout / 1000)
    text = (
        f"group {group} was begun anew as {result.founding}, its master is node {result.master}"
        if result.changed
        else f"group {group} has a majority that is whole, its master is node {result.master}; "
        "nothing was to be restored"
    )
    out.show({"event": "done", **plan.as_dict(), **result.as_dict()}, text)


def _named(nodes: tuple[int, ...]) -> str:
    return ", ".join(f"node {node}" for node in nodes)


@cluster.command(
    epilog="""\b
Examples:
  semel cluster upgrade --check      # status 1 if something is in the way of an upgrade
  semel cluster upgrade --finish     # to the highest level that all know
  semel cluster upgrade --finish --level 5

Order of an upgrade: --check, controllers, brokers (semel cluster restart --rolling), --check,
--finish, clients. Until --finish is given, nodes of a newer version behave like the older ones and
can be taken back. There is no way back afterwards."""
)
@click.option("--level", type=click.IntRange(1), help="[default: the highest that all know]")
@click.option(
    "--check",
    "--dry-run",
    "check",
    is_flag=True,
    help="Change nothing; show what an upgrade would meet, and what the raise would allow.",
)
@click.option(
    "--finish", is_flag=True, help="Raise the level, for good; the same without an option."
)
@client_options
def upgrade(
    level: int | None, check: bool, finish: bool, bootstrap: str, as_json: bool
) -> int | None:
    """Checks an upgrade, or raises the feature level of everything.

    It raises the level of every broker group and of the controllers' metadata. It is refused while
    any node or controller does not answer, or does not know the level. It may be repeated.
    """
    if check and finish:
        raise click.UsageError(
            "--check changes nothing, --finish raises the level: say one of them"
        )
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        if check:
            from semel.console import upgrade_view

            found = client.admin.check_upgrade(level)
            out.show(upgrade_view.as_json(found), upgrade_view.drawn(found))
            return 0 if found.ready else 1
        done = client.admin.upgrade(level)
    below = [f"group {group.group} from level {group.level}" for group in done.groups]
    if done.metadata < done.level:
        below.append(f"the metadata from level {done.metadata}")
    text = (
        f"raised to feature level {done.level}: {', '.join(below)}"
        if below
        else f"everything is at feature level {done.level}"
    )
    if done.newer:
        text += f"; a higher level is known to {', '.join(done.newer)}: upgrade the others for it"
    out.show({"changes": done.changes, **done.as_dict()}, text)
    return None
