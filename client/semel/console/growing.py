"""Shared by the commands that change a broker group: nodes of a `semel up`, progress, results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from semel.console import cluster_file, render
from semel.console.options import FILE_VARIABLES
from semel.console.units import Duration
from semel.protos.errors import DataDirectoryError, InvalidRequest, TimedOut

if TYPE_CHECKING:
    from semel.client import Client, MemberProgress, MembershipResult
    from semel.client.admin.descriptions import BrokerGroupDescription

REPORT_WAIT_S: Final = 60.0
"""How long a node that `up` starts may take until it reports to the controllers."""

up_option = click.option(
    "--up",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory of a running `semel up`, which starts new nodes and stops those that left.",
)
ignore_memory_option = click.option(
    "--ignore-memory",
    is_flag=True,
    help="Go on although messages of topics in memory may be lost.",
)
wait_option = click.option(
    "--wait",
    type=Duration(),
    default="5m",
    show_default=True,
    help="How long to wait for nodes that still pull messages of topics in memory.",
)
same_machine_option = click.option(
    "--allow-same-machine",
    is_flag=True,
    help="A node may join although its machine has one of the group (not checked on loopback).",
)


def where(up: Path | None, bootstrap: str) -> str:
    """The controllers' addresses: from `up`'s directory, or else `bootstrap`."""
    if up is None:
        return bootstrap
    plan = cluster_file.load(up)
    if plan is None:
        raise DataDirectoryError(f"{up} holds no cluster: name the --data of a `semel up`")
    if plan.secure and not any(os.environ.get(name) for name in FILE_VARIABLES):
        admin = up / cluster_file.SECURITY / "admin" / cluster_file.CLIENT_FILE
        os.environ["SEMEL_CLIENT_CONFIG"] = str(admin)
    return plan.bootstrap


def planned_nodes(
    client: Client, up: Path, *, group: int = 0, size: int = 0, replaces: int = 0
) -> list[int]:
    """Makes `up` start the nodes that a group needs, and waits until they report.

    Raises InvalidRequest, and TimedOut when `up` does not start them.
    """
    if replaces:
        plan = cluster_file.load(up)
        planned = plan.brokers if plan is not None else ()
        found = [node.group for node in planned if node.id == replaces and node.group is not None]
        if not found:
            raise InvalidRequest(f"{up} has no broker {replaces}")
        group = found[0]
    wanted = [node.id for node in cluster_file.take_in(up, group, size=size, replaces=replaces)]
    wait_reported(client, up, wanted)
    return wanted


def wait_reported(client: Client, up: Path, wanted: Iterable[int]) -> None:
    """Waits until the nodes in `wanted` report to the controllers. Raises TimedOut."""
    deadline = time.monotonic() + REPORT_WAIT_S
    while True:
        status = client.admin.cluster_status()
        known = {node.id for each in status.groups for node in each.nodes if node.alive}
        missing = [number for number in wanted if number not in known]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise TimedOut(
                f"broker {missing[0]} did not start within {REPORT_WAIT_S:.0f} s: is `semel up` "
                f"running on {up}? Its log is {up}/logs/broker-{missing[0]}.log"
            )
        time.sleep(0.1)


def wait_served(client: Client, group: int, timeout_s: float) -> BrokerGroupDescription:
    """Returns a broker group once the controllers know a live master of it. Raises TimedOut."""
    deadline = time.monotonic() + timeout_s
    while True:
        known = {each.id: each for each in client.admin.cluster_status().groups}
        found = known.get(group)
        if found is not None and any(n.id == found.master and n.alive for n in found.nodes):
            return found
        if time.monotonic() > deadline:
            what = "has no master" if found is not None else "does not report"
            raise TimedOut(
                f"broker group {group} {what} within {timeout_s:.0f} s: start its nodes with "
                f"--group {group}, the same --member list, and --controllers"
            )
        time.sleep(0.1)


@contextmanager
def show_progress(out: render.Output) -> Iterator[Callable[[MemberProgress], object]]:
    """Reports each step: as JSON lines, or as lines on stderr for people.

    Ctrl-C leaves the group as it is at that moment; the group is whole after every step.
    """

    def tell(progress: MemberProgress) -> None:
        if out.as_json:
            out.emit({"event": "progress", **progress.as_dict()})
            return
        lack = f", {progress.behind:,} entries behind" if progress.behind else ""
        lack += f": {progress.reason}" if progress.reason else ""
        print(f"{progress.step}: node {progress.node}{lack}", file=sys.stderr, flush=True)

    try:
        yield tell
    except KeyboardInterrupt:
        render.warn("stopped between two steps; the same command goes on from here")
        raise


def tell_result(out: render.Output, result: MembershipResult, text: str) -> None:
    """Shows the group's present members."""
    voters = ", ".join(f"{node} at {address}" for node, address in sorted(result.voters.items()))
    done = text if result.changed else f"{text}; nothing was left to do"
    shown = {"event": "done", **result.as_dict()}
    out.show(shown, f"{done}\ngroup {result.group} has {len(result.voters)} voters: {voters}")
