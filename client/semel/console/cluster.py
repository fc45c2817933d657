"""`semel cluster status`."""

from __future__ import annotations

import click

from semel.console import render
from semel.console.options import client_options, open_client


@click.group()
def cluster() -> None:
    """The state of the cluster."""


@cluster.command()
@client_options
def status(bootstrap: str, as_json: bool) -> None:
    """Shows controllers, broker groups, masters, and who lags or is silent."""
    with open_client(bootstrap) as client:
        found = client.admin.cluster_status()
    out = render.Output(as_json=as_json)
    if as_json:
        out.emit(found.as_dict())
        return
    controllers = render.table(
        ["controller", "role", "address"],
        [[c.id, c.role, c.address] for c in found.controllers],
        title=f"cluster {found.cluster_id} · {found.topics} topics · semel {found.version}",
    )
    brokers = render.table(
        ["group", "term", "broker", "role", "address", "log end", "behind", "alive"],
        [
            [
                group.id,
                group.term,
                node.id,
                "master" if node.id == group.master else node.role,
                node.address,
                node.log_end_index,
                max(0, group.commit_index - node.log_end_index),
                "yes" if node.alive else f"silent for {node.silent_ms / 1000:.1f} s",
            ]
            for group in found.groups
            for node in group.nodes
        ],
    )
    out.draw(controllers, brokers)
