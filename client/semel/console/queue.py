"""`semel queue list|split`: the queues of a topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client
from semel.console.topic import queue_table

if TYPE_CHECKING:
    _Name = click.ParamType[tuple[str, int]]
else:
    _Name = click.ParamType


class QueueName(_Name):
    """TOPIC/QUEUE, as messages and tables name a queue."""

    name = "topic/queue"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        found = re.fullmatch(r"(.+)/([0-9]{1,9})", str(value))
        if found is None:
            self.fail(
                f"{value!r} is no queue: write TOPIC/NUMBER, for example orders/3", param, ctx
            )
        return found[1], int(found[2])


@click.group()
def queue() -> None:
    """A topic's queues: list them, split one."""


@queue.command("list", epilog=examples("semel queue list orders"))
@click.argument("topic", shell_complete=completion.topics)
@client_options
def list_queues(topic: str, bootstrap: str, as_json: bool) -> None:
    """Lists a topic's queues, also those that were split."""
    with open_client(bootstrap) as client:
        found = client.admin.describe_topic(topic)
    described = {"topic": topic, "queues": found.as_dict()["queues"]}
    render.Output(as_json=as_json).show(described, queue_table(found.queues, title=topic))


@queue.command(epilog=examples("semel queue split orders/3 --into 4"))
@click.argument("name", metavar="TOPIC/QUEUE", type=QueueName())
@click.option(
    "--into",
    "children",
    type=click.IntRange(2, 65_536),
    default=2,
    show_default=True,
    help="How many queues share its slots.",
)
@client_options
def split(name: tuple[str, int], children: int, bootstrap: str, as_json: bool) -> None:
    """Splits a queue while producers and consumers go on.

    What it holds stays in it, and is read before its children are. It cannot be undone.
    """
    topic, number = name
    with open_client(bootstrap) as client:
        made = client.admin.split_queue(topic, number, children=children)
    render.Output(as_json=as_json).show(
        {"topic": topic, "queue": number, "children": made},
        f"queue {topic}/{number} is split into {', '.join(map(str, made))}",
    )
