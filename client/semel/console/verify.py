"""`semel verify --exactly-once`: the sequence table, recomputed from every node's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client

if TYPE_CHECKING:
    from semel.client import VerifyProgress
    from semel.client.admin.descriptions import VerifyResult


@click.command(
    epilog=examples("semel verify --exactly-once orders", "semel verify --exactly-once --json")
)
@click.argument("topic", required=False, shell_complete=completion.topics)
@click.option(
    "--exactly-once",
    is_flag=True,
    required=True,
    help="Read every node's whole log, and check that it has every message once, in its place, and"
    " that all nodes have the same.",
)
@client_options
def verify(topic: str | None, exactly_once: bool, bootstrap: str, as_json: bool) -> int:
    """Proves that TOPIC (or every topic) is stored exactly once on every node."""
    assert exactly_once
    out = render.Output(as_json=as_json)
    good = True
    with open_client(bootstrap) as client:
        names = [topic] if topic else [found.name for found in client.admin.list_topics()]
        for name in names:
            with out.progress(f"reading {name} on every node", None) as bar:
                read = 0

                def on_progress(progress: VerifyProgress, bar: render.Progress = bar) -> None:
                    nonlocal read
                    bar.advance(progress.bytes_read - read, progress.bytes_total)
                    read = progress.bytes_read

                result = client.admin.verify(name, on_progress=on_progress)
            good = good and result.ok
            if as_json:
                out.emit(result.as_dict())
            else:
                _draw(out, result)
    return 0 if good else 1


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
    verdict = "exactly once" if result.ok else "NOT exactly once"
    text = (
        f"{result.topic}: {verdict} · {result.messages:,} messages,"
        f" {result.duplicates:,} duplicates, {result.missing:,} missing,"
        f" {result.nodes_compared} nodes compared"
    )
    text += f", {result.delayed:,} not due yet" if result.delayed else ""
    out.draw(Text(text, "bold green" if result.ok else "bold red"), table)
    for problem in result.problems:
        out.draw(Text(f"  {problem}", "red"))
