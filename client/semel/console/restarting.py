"""`semel cluster restart --rolling`: the nodes of a cluster, one after the other.

Not here: the order and the steps (`semel.client.admin.rolling`), restarting a node's program
(`semel.protos.programs`).
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from semel.console import render
from semel.console.growing import ignore_memory_option
from semel.console.options import client_options, open_client
from semel.console.units import Duration
from semel.protos.addresses import Address
from semel.protos.errors import Unavailable

if TYPE_CHECKING:
    from semel.client import RestartProgress, RestartTarget

_TEXTS = {
    "drain": "is drained",
    "restart": "restarts",
    "started": "answers again",
    "done": "is back and has everything",
    "transfer": "is master again",
}
_KINDS: dict[str | None, tuple[Literal["controller", "broker"], ...]] = {
    None: ("controller", "broker"),
    "controllers": ("controller",),
    "brokers": ("broker",),
}


@click.command(
    epilog="""\b
Examples:
  semel cluster restart --rolling
  semel cluster restart --rolling --only brokers --ran-for 10m    # the rest of one that was stopped
  semel cluster restart --rolling --with 'ssh {host} systemctl restart semel-{kind}-{id}'

Standby controllers come first, then the active one, then group by group the slaves and at last the
master. Each node ends in order and starts its program anew in the same process, whoever started it:
a newer program that was installed in its place runs then. Give --with where a restart takes more,
such as another path. In COMMAND {kind}, {id}, {group}, {host} and {address} are replaced.

The next node follows once the last one is back and its group has everything everywhere, so no group
is without two healthy members of three, and no send fails. Ctrl-C ends the command between two
steps: nodes that are just starting come up by themselves."""
)
@click.option("--rolling", is_flag=True, help="One node after the other; there is no other way.")
@click.option("--only", type=click.Choice(["controllers", "brokers"]), help="Only these.")
@click.option("--node", "nodes", type=click.IntRange(1), multiple=True, help="Only this broker.")
@click.option("--ran-for", type=Duration(), help="Only nodes that have run for so long.")
@click.option("--with", "command", metavar="COMMAND", help="What restarts a node, without a shell.")
@click.option(
    "--allow-gap", is_flag=True, help="Also groups of one node, which nobody serves meanwhile."
)
@click.option(
    "--timeout",
    type=Duration(),
    default="5m",
    show_default=True,
    help="For each node: until it is drained, is back, and has everything.",
)
@ignore_memory_option
@client_options
def restart(
    rolling: bool,
    only: str | None,
    nodes: tuple[int, ...],
    ran_for: int | None,
    command: str | None,
    allow_gap: bool,
    timeout: int,
    ignore_memory: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Restarts the nodes of the cluster, one by one, under load."""
    if not rolling:
        raise click.UsageError("say --rolling: nodes are restarted one after the other")
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client, _progress(out) as on_progress:
        result = client.admin.restart_cluster(
            kinds=_KINDS[only],
            nodes=nodes,
            ran_for=(ran_for or 0) / 1000,
            restart=None if command is None else _by_command(command),
            allow_gap=allow_gap,
            ignore_memory=ignore_memory,
            node_timeout=timeout / 1000,
            on_progress=on_progress,
        )
    text = f"{render.plural(len(result.restarted), 'node')} restarted in {result.seconds:.0f} s"
    out.show({"event": "done", **result.as_dict()}, text)


@contextmanager
def _progress(out: render.Output) -> Iterator[Callable[[RestartProgress], object]]:
    """Reports each step: as JSON lines, or as lines on stderr for people."""

    def tell(progress: RestartProgress) -> None:
        if out.as_json:
            out.emit({"event": "progress", **progress.as_dict()})
            return
        text = _TEXTS.get(progress.step, f"waits: {progress.reason}")
        place = f"[{progress.number}/{progress.total}]"
        print(f"{place} {progress.kind} {progress.id} {text}", file=sys.stderr, flush=True)

    try:
        yield tell
    except KeyboardInterrupt:
        render.warn(
            "stopped; what was restarted runs, and a node that is just starting comes up by itself:"
            " --ran-for leaves them out the next time"
        )
        raise


def _by_command(command: str) -> Callable[[RestartTarget], object]:
    """A function that restarts a node by a command. Raises UsageError for one that is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--with {command}: {error}") from None
    if not words:
        raise click.UsageError("--with is empty")

    def run(target: RestartTarget) -> None:
        filled = [_filled(word, target) for word in words]
        try:
            subprocess.run(
                filled, stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True
            )
        except OSError as error:
            raise Unavailable(f"{shlex.join(filled)}: {render.os_error(error)}") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr or error.stdout or "it said nothing").strip().splitlines()[-1]
            raise Unavailable(
                f"{shlex.join(filled)} ended with status {error.returncode}: {said}"
            ) from error

    return run


def _filled(word: str, target: RestartTarget) -> str:
    values = {
        "kind": target.kind,
        "id": str(target.id),
        "group": str(target.group),
        "host": Address.parse(target.address).host,
        "address": target.address,
    }
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
