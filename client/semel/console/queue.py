"""`semel queue list|split|move`: the queues of a topic."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client
from semel.console.queue_name import QueueName
from semel.console.topic import queue_table

POLL_S: Final = 0.1

if TYPE_CHECKING:
    from semel.client import Client
    from semel.client.admin.descriptions import QueueMove


@click.group()
def queue() -> None:
    """A topic's queues: list them, split one, move one."""


@queue.command("list", epilog=examples("semel queue list orders"))
@click.argument("topic", shell_complete=completion.topics)
@client_options
def list_queues(topic: str, bootstrap: str, as_json: bool) -> None:
    """Lists a topic's queues, also those that are split or move.

    A queue that is moving appears with the progress of its move.
    """
    with open_client(bootstrap) as client:
        found = client.admin.describe_topic(topic)
        moves = client.admin.list_moves(topic)
    described = {
        "topic": topic,
        "queues": found.as_dict()["queues"],
        "moves": [each.as_dict() for each in moves],
    }
    render.Output(as_json=as_json).show(described, queue_table(found.queues, moves, title=topic))


@queue.command(epilog=examples("semel queue split orders/3 --into 4"))
@click.argument("name", metavar="TOPIC/QUEUE", type=QueueName())
@click.option(
    "--into",
    "children",
    type=click.IntRange(2, 65_536),
    default=2,
    show_default=True,
    help="Number of queues that share its slots afterwards.",
)
@client_options
def split(name: tuple[str, int], children: int, bootstrap: str, as_json: bool) -> None:
    """Splits a queue while producers and consumers go on.

    Its messages stay in it and are read before those of its children. A split cannot be undone.
    """
    topic, number = name
    with open_client(bootstrap) as client:
        made = client.admin.split_queue(topic, number, children=children)
    render.Output(as_json=as_json).show(
        {"topic": topic, "queue": number, "children": made},
        f"queue {topic}/{number} is split into {', '.join(map(str, made))}",
    )


@queue.command(
    epilog=examples(
        "semel queue move orders/3 --to 2",
        "semel queue move orders/3 --to 2 --no-wait",
        "semel queue move orders/3 --cancel",
    )
)
@click.argument("name", metavar="TOPIC/QUEUE", type=QueueName())
@click.option("--to", "group", type=click.IntRange(0, (1 << 32) - 1), help="The broker group.")
@click.option(
    "--cancel", is_flag=True, help="Give its move up; possible until the move is decided."
)
@click.option("--no-wait", is_flag=True, help="Return once the move is stored; it goes on.")
@client_options
def move(
    name: tuple[str, int],
    group: int | None,
    cancel: bool,
    no_wait: bool,
    bootstrap: str,
    as_json: bool,
) -> int:
    """Moves a queue to another broker group, live.

    Producers and consumers go on. Its messages, the sequence table, offsets and tokens move with
    it. Ctrl-C ends the waiting, not the move.
    """
    if cancel == (group is not None):
        raise click.UsageError("pass either --to GROUP or --cancel")
    topic, number = name
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        if group is None:
            found = client.admin.cancel_move(topic, number)
        else:
            found = client.admin.move_queue(topic, number, group)
        if not no_wait:
            try:
                found = _wait_for_move(client, out, found)
            except KeyboardInterrupt:
                render.warn(
                    f"the move of {topic}/{number} goes on; `semel queue list {topic}` shows it"
                )
                raise
    if cancel and found.stage == "aborted":
        text = f"queue {topic}/{number} stays on broker group {found.source}"
    elif found.stage == "done":
        text = f"queue {topic}/{number} is on broker group {found.target}"
    else:
        text = f"queue {topic}/{number} to broker group {found.target}: {found.stage}"
        text += f" ({found.reason})" if found.reason else ""
    out.show(found.as_dict(), text)
    return 1 if found.stage == "aborted" and not cancel else 0


def _wait_for_move(client: Client, out: render.Output, begun: QueueMove) -> QueueMove:
    """Waits until the move is done or aborted, and returns its last state."""
    move, copied = begun, 0
    text = f"{move.topic}/{move.queue} to group {move.target}"
    with out.progress(text, None) as bar:
        while move.stage not in ("aborted", "done"):
            bar.advance(move.copied_bytes - copied, max(move.total_bytes, move.copied_bytes))
            copied = move.copied_bytes
            time.sleep(POLL_S)
            now = [m for m in client.admin.list_moves(begun.topic) if m.queue == begun.queue]
            done = dataclasses.replace(move, stage="done", reason="", copied_bytes=move.total_bytes)
            move = now[0] if now else done
    return move
