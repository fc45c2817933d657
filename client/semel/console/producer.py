"""`semel producer list|describe|outcome`: named producers and the outcome of their messages."""

from __future__ import annotations

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client


@click.group()
def producer() -> None:
    """Named producers, and one message's fate."""


@producer.command("list", epilog=examples("semel producer list"))
@client_options
def list_producers(bootstrap: str, as_json: bool) -> None:
    """Lists named producers."""
    with open_client(bootstrap) as client:
        found = client.admin.list_producers()
    drawn = render.table(
        ["producer", "id", "epoch", "last opened (UTC)"],
        [[p.name, str(p.producer_id), p.epoch, render.when(p.opened_us)] for p in found],
    )
    out = render.Output(as_json=as_json)
    out.show({"producers": [p.as_dict() for p in found]}, drawn if found else "no producers")


@producer.command(epilog=examples("semel producer describe loader-1"))
@click.argument("name", shell_complete=completion.producers)
@client_options
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Shows a producer's rows of the sequence table.

    A row shows the last sequence that a queue has stored of it.
    """
    with open_client(bootstrap) as client:
        found = client.admin.describe_producer(name)
    drawn = render.table(
        ["topic", "queue", "last sequence", "epoch", "session", "window", "last change (UTC)"],
        [
            [
                row.topic,
                row.queue,
                None if row.last_sequence < 0 else row.last_sequence,
                row.epoch,
                row.session,
                row.window,
                render.when(row.last_time_us),
            ]
            for row in found.queues
        ],
        title=f"{found.name} · id {found.producer_id} · epoch {found.epoch}",
    )
    render.Output(as_json=as_json).show(found.as_dict(), drawn)


@producer.command(
    epilog=examples(
        "semel producer outcome loader-1 orders 3 41",
        more="This asks about the message that loader-1 sent to queue 3 of orders as number 41."
        " The answer not_committed may still change while the producer that sent it lives.",
    )
)
@click.argument("name", shell_complete=completion.producers)
@click.argument("topic", shell_complete=completion.topics)
@click.argument("queue", type=click.IntRange(0))
@click.argument("sequence", type=click.IntRange(0))
@client_options
def outcome(
    name: str, topic: str, queue: int, sequence: int, bootstrap: str, as_json: bool
) -> None:
    """Tells whether a message is committed.

    The answer is committed, not_committed, or too_old to know.
    """
    with open_client(bootstrap) as client:
        found = client.admin.produce_outcome(name, topic, queue, sequence)
    text = found.outcome.replace("_", " ")
    text += f", offset {found.offset}" if found.offset >= 0 else ""
    render.Output(as_json=as_json).show(found.as_dict(), text)
