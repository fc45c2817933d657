"""`semel verify --exactly-once`: the sequence table, recomputed from every node's log.

Invariant: the exit status is 0 only when everything is proven, and 5 only when a log that was read
contradicts it. It is 1 when something is not proven: nodes that did not answer, or not in time, or
an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client
from semel.console.units import Duration
from semel.protos.errors import SemelError

if TYPE_CHECKING:
    from semel.client import Client, VerifyProgress
    from semel.client.admin.descriptions import VerifyResult


NOT_PROVEN: Final = 1
VIOLATED: Final = 5


@click.command(
    epilog=examples(
        "semel verify --exactly-once orders",
        "semel verify --exactly-once --timeout 2h --json",
        "semel verify --exactly-once --tier audit",
        more="Exit status: 0 proven; 5 violated, a log contradicts it; 1 not proven, because a node"
        " was not read or an error came in between.",
    )
)
@click.argument("topic", required=False, shell_complete=completion.topics)
@click.option(
    "--exactly-once",
    is_flag=True,
    required=True,
    help="Read every node's whole log, and check that it has every message once, in its place and,"
    " with dedup by id, each id once within its window; and that all nodes have the same.",
)
@click.option(
    "--tier",
    is_flag=True,
    help="Also read all that is in the object store, and compare it with the log where that has the"
    " same messages. Without it only the logs are read.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    help="For each topic; a node that has not read its log by then is not verified.",
)
@client_options
def verify(
    topic: str | None, exactly_once: bool, tier: bool, timeout: int, bootstrap: str, as_json: bool
) -> int:
    """Proves that TOPIC (or every topic) is stored exactly once on every node."""
    assert exactly_once
    out = render.Output(as_json=as_json)
    results: list[VerifyResult] = []
    with open_client(bootstrap) as client:
        names = [topic] if topic else [found.name for found in client.admin.list_topics()]
        for name in names:
            try:
                results.append(_verify(client, name, timeout, out, tier=tier))
            except SemelError as error:
                if not any(result.violated for result in results):
                    raise
                render.error(error.message)
                break
    if any(result.violated for result in results):
        return VIOLATED
    return 0 if all(result.ok for result in results) else NOT_PROVEN


def _verify(
    client: Client, name: str, timeout_ms: int, out: render.Output, *, tier: bool
) -> VerifyResult:
    with out.progress(f"reading {name} on every node", None) as bar:
        read = 0

        def on_progress(progress: VerifyProgress) -> None:
            nonlocal read
            bar.advance(progress.bytes_read - read, progress.bytes_total)
            read = progress.bytes_read

        result = client.admin.verify(
            name, timeout=timeout_ms / 1000, tier=tier, on_progress=on_progress
        )
    if out.as_json:
        out.emit({**result.as_dict(), "verdict": _verdict(result)})
    else:
        _draw(out, result)
    return result


def _verdict(result: VerifyResult) -> str:
    if result.violated:
        return "violated"
    return "proven" if result.ok else "not proven"


_SHOWN: Final = {
    "proven": ("exactly once", "bold green"),
    "not proven": ("not proven, nothing contradicts it", "bold yellow"),
    "violated": ("NOT exactly once", "bold red"),
}
"""The words and the colour for each verdict."""


def _draw(out: render.Output, result: VerifyResult) -> None:
    from rich.text import Text

    table = render.table(
        ["queue", "group", "start", "end", "messages", "duplicates", "missing", "digest"],
        [
            [
                queue.queue,
                queue.group,
                queue.log_start_offset,
                queue.log_end_offset,
                queue.messages,
                queue.duplicates,
                queue.missing,
                queue.digest[:12],
            ]
            for queue in result.queues
        ],
    )
    shown, style = _SHOWN[_verdict(result)]
    text = (
        f"{result.topic}: {shown} · {result.messages:,} messages,"
        f" {result.duplicates:,} duplicates, {result.missing:,} missing,"
        f" {result.nodes_compared} nodes compared"
    )
    text += f", {result.delayed:,} not due yet" if result.delayed else ""
    text += f", {result.id_duplicates:,} stored twice by id" if result.id_duplicates else ""
    if tiered := sum(queue.tiered_messages for queue in result.queues):
        compared = sum(queue.tiered_compared for queue in result.queues)
        text += f", {tiered:,} read in the object store, {compared:,} of them compared with the log"
    out.draw(Text(text, style), table)
    for problem in result.problems:
        out.draw(Text(f"  {problem}", "red"))
    for reason in result.unread:
        out.draw(Text(f"  {reason}", "yellow"))
