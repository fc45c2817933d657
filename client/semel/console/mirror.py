"""`semel mirror` copies topics to another cluster; `status`, `promote` and `drop` end copies.

Not here: the work (`client/semel/client/mirror/`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from semel.console import completion, render
from semel.console.options import confirm, examples, json_option, watch_options, yes_option
from semel.console.units import Duration
from semel.protos.logs import log_format_option, set_up

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client import Client
    from semel.client.mirror.mirror_progress import MirrorProgress, MirrorsInfo

_CLUSTER = "HOST:PORT[,…]|FILE|PROFILE"
_topics = click.option(
    "--topics",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.mirrored_topics,
    help="Topics, * stands for any characters. Repeat.",
)
_to = click.option(
    "--to",
    "target",
    metavar=_CLUSTER,
    help="The cluster that gets the copies: its controllers, or a client's file or profile.",
)


def _required_to(function: Any) -> Any:
    return click.option(
        "--to", "target", metavar=_CLUSTER, required=True, help="The cluster with the copies."
    )(function)


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "semel mirror --from 10.0.0.1:7070 --to 10.9.0.1:7070 --topics 'orders.*'",
        "semel mirror --from near --to far --topics orders --topics 'eu-*' --json",
        "semel mirror status --to far",
        "semel mirror promote --to far --topics 'orders.*'        # fail-over",
        more="The copies have the same offsets, the same progress of consumer groups and the same"
        " delayed messages, and their producers go on exactly once. Nobody sees them before they"
        " are promoted. The mirror remembers nothing: started again, also elsewhere, it goes on"
        " where the copies end; of two at once the later one goes on and the other ends. --from"
        " and --to name controllers, or a TOML file or profile as for --client-config and"
        " --profile, so each cluster may have a login of its own.",
    ),
)
@click.option(
    "--from",
    "source",
    metavar=_CLUSTER,
    help="The cluster whose topics are copied: its controllers, or a client's file or profile.",
)
@_to
@click.option(
    "--topics",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.source_topics,
    help="Topics, * stands for any characters. Repeat.",
)
@click.option(
    "--settle",
    type=Duration(),
    default="1s",
    show_default=True,
    help="How often the state that would be promoted is brought up to date.",
)
@click.option("--once", is_flag=True, help="End when the target has all that the source had.")
@click.option(
    "--every", type=Duration(), default="1s", show_default=True, help="How often progress is told."
)
@log_format_option(envvar="SEMEL_LOG_FORMAT")
@json_option
@click.pass_context
def mirror(
    ctx: click.Context,
    source: str | None,
    target: str | None,
    topics: tuple[str, ...],
    settle: int,
    once: bool,
    every: int,
    log_format: str,
    as_json: bool,
) -> int:
    """Copies topics to another cluster, continuously, until Ctrl-C."""
    set_up(log_format, process="mirror", level=logging.WARNING)
    if ctx.invoked_subcommand is not None:
        if source or target or topics:
            raise click.UsageError(f"options go behind {ctx.invoked_subcommand}")
        return 0
    for name, value in (("--from", source), ("--to", target), ("--topics", topics)):
        if not value:
            raise click.UsageError(f"Missing option '{name}'.")
    assert source is not None
    assert target is not None
    from semel.client.api.mirrors import run_mirror

    out = render.Output(as_json=as_json)
    told = _Told(out)
    with _open(source) as near, _open(target) as far:
        try:
            run_mirror(
                near,
                far,
                topics,
                settle_s=settle / 1000,
                progress_s=every / 1000,
                once=once,
                on_progress=told.tell,
            )
        except KeyboardInterrupt:
            return 130
    if once:
        out.show({"event": "done"}, "the target has all that the source had")
    return 0


@mirror.command(
    epilog=examples("semel mirror status --to far", "semel mirror status --to far --json")
)
@_required_to
@_topics
@watch_options
@json_option
def status(target: str, topics: tuple[str, ...], every_s: float | None, as_json: bool) -> int:
    """Shows the copies in a cluster, and as of when they are."""
    from semel.client.api.mirrors import describe_mirrored

    with _open(target) as client:

        def look() -> tuple[dict[str, Any], RenderableType]:
            found = describe_mirrored(client, topics or ("*",))
            return found.as_dict(), _drawn(found)

        return render.Output(as_json=as_json).watch(look, every_s)


@mirror.command(
    epilog=examples(
        "semel mirror promote --to far --topics 'orders.*'",
        "semel mirror promote --to far --topics orders --yes --json",
        more="Only the cluster with the copies is asked. Stop the producers of the source before,"
        " if it is alive: what they send there from now on is not copied. A promotion that was"
        " interrupted is begun again, and goes on.",
    )
)
@_required_to
@_topics
@click.option(
    "--forget-producers",
    is_flag=True,
    help="Producers whose names are those of others in this cluster begin anew in these topics.",
)
@yes_option
@json_option
def promote(
    target: str, topics: tuple[str, ...], forget_producers: bool, yes: bool, as_json: bool
) -> None:
    """Makes ordinary topics of copies: fail-over. It cannot be taken back."""
    from semel.client.api.mirrors import describe_mirrored, promote_mirrored

    _check_topics(topics)
    out = render.Output(as_json=as_json)
    with _open(target) as client:
        if not yes:
            found = describe_mirrored(client, topics)
            if not as_json:
                out.draw(_drawn(found))
            confirm("Promote them? Nothing more is copied.", yes=yes, as_json=as_json)
        done = promote_mirrored(client, topics, forget_producers=forget_producers)
    out.show({"event": "promoted", **done.as_dict()}, _drawn(done))


@mirror.command(epilog=examples("semel mirror drop --to far --topics 'orders.*'"))
@_required_to
@_topics
@yes_option
@json_option
def drop(target: str, topics: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Gives up copies that are not promoted."""
    from semel.client.api.mirrors import drop_mirrored

    _check_topics(topics)
    with _open(target) as client:
        confirm(f"Drop the copies of {', '.join(topics)}?", yes=yes, as_json=as_json)
        left = drop_mirrored(client, topics)
    render.Output(as_json=as_json).show({"event": "dropped", **left.as_dict()}, "dropped")


def _check_topics(topics: Sequence[str]) -> None:
    if not topics:
        raise click.UsageError("Missing option '--topics'.")


def _open(cluster: str) -> Client:
    """A client of the cluster: that of its controllers, or of a client's file or profile."""
    import os

    from semel.client import connect
    from semel.client.client_file import profiles_path, read

    if ":" in cluster:
        return connect(cluster)
    if Path(cluster).is_file():
        found = read(Path(cluster), environment=os.environ)
    else:
        found = read(profiles_path(os.environ), cluster, environment=os.environ)
    return connect(found.bootstrap or None, security=found.security, login=found.login)


class _Told:
    """Shows progress: every report as JSON, or for people what has changed, at most once a
    second."""

    def __init__(self, out: render.Output) -> None:
        self._out = out
        self._shown = ""
        self._shown_at = 0.0

    def tell(self, progress: MirrorProgress) -> None:
        if self._out.as_json:
            self._out.emit(
                {
                    "event": "progress",
                    "lag": progress.lag,
                    "lag_seconds": progress.lag_seconds,
                    **progress.as_dict(),
                }
            )
            return
        text = _line(progress)
        if text != self._shown and time.monotonic() - self._shown_at >= 1.0:
            self._shown, self._shown_at = text, time.monotonic()
            self._out.draw(text)
        for topic in progress.topics:
            if topic.problem and topic.problem not in self._shown:
                self._shown += topic.problem
                render.warn(f"{topic.name}: {topic.problem}")


def _line(progress: MirrorProgress) -> str:
    if not progress.topics:
        return "no topic fits"
    age = progress.lag_seconds
    whole = "not whole yet" if age is None else f"{age:.1f} s old" if age >= 5 else "up to date"
    return (
        f"{render.plural(len(progress.topics), 'topic')}, "
        f"{render.plural(progress.lag, 'message')} behind, {whole}"
    )


def _drawn(found: MirrorsInfo) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not found.topics:
        return Text("no mirrored topics")
    rows = [
        (
            topic.name,
            topic.stage,
            str(queue.queue),
            str(queue.end),
            render.iso(queue.known_us, "seconds") if queue.known_us else "nothing whole yet",
            str(queue.copied_end),
            queue.delayed,
            queue.groups,
            queue.producers,
        )
        for topic in found.topics
        for queue in topic.queues
    ]
    columns = (
        *("topic", "stage", "queue", "goes on at", "as of", "copied to"),
        *("delayed", "groups", "named producers"),
    )
    notes = [Text(f"{topic.name}: {topic.problem}") for topic in found.topics if topic.problem]
    title = f"copies of topics of cluster {found.source}"
    return Group(render.table(columns, rows, title=title), *notes)
