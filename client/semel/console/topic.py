"""`semel topic create|list|describe|alter|delete`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from semel.console import completion, render
from semel.console.options import client_options, confirm, examples, open_client, yes_option
from semel.console.units import Duration, Size, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client.admin.descriptions import QueueDescription, QueueMove, TopicSettings

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _settings_options(function: _Function) -> _Function:
    for option in reversed(
        [
            click.option(
                "--retention",
                "retention_ms",
                type=Duration(unlimited=True),
                help="Messages older than this may be trimmed: 12h, 7d, unlimited.",
            ),
            click.option(
                "--retention-bytes",
                type=Size(unlimited=True),
                help="A larger queue is trimmed from its start: 10G, unlimited.",
            ),
            click.option("--message-bytes-max", type=Size(), help="Largest message: up to 1M."),
            click.option("--batch-bytes-max", type=Size(), help="Largest batch: up to 8M."),
        ]
    ):
        function = option(function)
    return function


def _group_numbers(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = [one.strip() for one in text.split(",")]
    if not all(one.isdecimal() and int(one) > 0 for one in numbers):
        raise click.BadParameter(f"{text!r} are no broker groups: write 1,2")
    return [int(one) for one in numbers]


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command(
    epilog=examples(
        "semel topic create orders --queues 8",
        "semel topic create audit --retention unlimited --if-not-exists",
        "semel topic create orders --queues 4 --groups 2,3",
    )
)
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65_536), default=4, show_default=True)
@click.option("--if-not-exists", is_flag=True, help="An existing topic is no error.")
@click.option(
    "--groups",
    callback=_group_numbers,
    metavar="N,N,…",
    help="Broker groups to place it on.  [default: those with the least on them]",
)
@_settings_options
@client_options
def create(
    name: str,
    queues: int,
    if_not_exists: bool,
    groups: list[int] | None,
    bootstrap: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Creates a topic and returns once it can be written."""
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        created = client.admin.create_topic(
            name, queues=queues, if_not_exists=if_not_exists, groups=groups, **settings
        )
    text = f"topic {name} created, {queues} queues" if created else f"topic {name} exists"
    out.show({"topic": name, "created": bool(created)}, text)


@topic.command("list", epilog=examples("semel topic list", "semel topic list --json"))
@client_options
def list_topics(bootstrap: str, as_json: bool) -> None:
    """Lists topics."""
    with open_client(bootstrap) as client:
        topics = client.admin.list_topics()
    drawn = render.table(
        ["topic", "queues", "retention", "created (UTC)"],
        [[t.name, t.queues, _retention(t.settings), render.when(t.created_us)] for t in topics],
    )
    out = render.Output(as_json=as_json)
    out.show({"topics": [t.as_dict() for t in topics]}, drawn if topics else "no topics")


@topic.command(epilog=examples("semel topic describe orders"))
@click.argument("name", shell_complete=completion.topics)
@client_options
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Shows a topic's settings and its queues: owner, slots, offsets.

    Messages that are not due yet appear with their number and the time when the first is due.
    """
    with open_client(bootstrap) as client:
        found = client.admin.describe_topic(name)
        moves = client.admin.list_moves(name)
    drawn = queue_table(
        found.queues,
        moves,
        title=f"{found.name} · retention {_retention(found.settings)}"
        f" · messages up to {render.size(found.settings.message_bytes_max)}",
    )
    described = found.as_dict() | {"moves": [each.as_dict() for each in moves]}
    render.Output(as_json=as_json).show(described, drawn)


@topic.command(
    epilog=examples(
        "semel topic alter orders --retention 12h", "semel topic alter orders --queues 16"
    )
)
@click.argument("name", shell_complete=completion.topics)
@click.option(
    "--queues",
    type=click.IntRange(1, 65_536),
    help="Number of open queues to reach by splitting the widest ones; it never falls.",
)
@_settings_options
@client_options
def alter(name: str, bootstrap: str, as_json: bool, **settings: Any) -> None:
    """Changes a topic's settings; those that are left out stay."""
    if all(value is None for value in settings.values()):
        raise click.UsageError("nothing to alter: name a setting, or --queues")
    with open_client(bootstrap) as client:
        client.admin.alter_topic(name, **settings)
        found = client.admin.describe_topic(name)
    out = render.Output(as_json=as_json)
    opened = sum(not queue.sealed for queue in found.queues)
    text = f"topic {name} altered: {opened} queues, retention {_retention(found.settings)}"
    out.show(found.as_dict(), text)


def queue_table(
    queues: list[QueueDescription], moves: Sequence[QueueMove] = (), *, title: str
) -> RenderableType:
    """Queues with their slots and offsets.

    The columns for delayed messages appear once there are any, and the state once a queue was split
    or moves.
    """
    delayed = any(queue.delayed_messages for queue in queues)
    split = bool(moves) or any(queue.sealed for queue in queues)
    moving = {move.queue: move for move in moves}
    children: dict[int | None, list[int]] = {}
    for queue in queues:
        children.setdefault(queue.parent, []).append(queue.queue)
    return render.table(
        ["queue", "group", "slots", "start", "end", "messages", "size"]
        + ["delayed", "next due (UTC)"] * delayed
        + ["state"] * split,
        [
            [
                queue.queue,
                queue.group,
                f"{queue.slot_start}..{queue.slot_end}",
                queue.log_start_offset,
                queue.log_end_offset,
                queue.messages,
                render.size(queue.bytes),
            ]
            + _delayed(queue) * delayed
            + [_state(queue, children, moving.get(queue.queue))] * split
            for queue in queues
        ],
        title=title,
    )


def _delayed(queue: QueueDescription) -> list[object]:
    if not queue.delayed_messages:
        return [0, ""]
    return [queue.delayed_messages, render.when(queue.next_due_us)]


def _state(
    queue: QueueDescription, children: dict[int | None, list[int]], move: QueueMove | None
) -> str:
    if move is not None and move.stage == "aborted":
        return f"stays, not moved to group {move.target}: {move.reason}"
    if move is not None:
        share = 100 * move.copied_bytes // max(move.total_bytes, 1)
        doing = f"{move.stage} to group {move.target}, {share} %"
        return f"{doing}: {move.reason}" if move.reason else doing
    if not queue.sealed:
        return "open"
    return f"split into {', '.join(map(str, children.get(queue.queue, [])))}"


@topic.command(epilog=examples("semel topic delete orders --yes"))
@click.argument("name", shell_complete=completion.topics)
@click.option("--if-exists", is_flag=True, help="A missing topic is no error.")
@yes_option
@client_options
def delete(name: str, if_exists: bool, yes: bool, bootstrap: str, as_json: bool) -> None:
    """Deletes a topic and all its messages, for good."""
    confirm(f"Delete topic {name} and all its messages, for good?", yes=yes, as_json=as_json)
    with open_client(bootstrap) as client:
        deleted = client.admin.delete_topic(name, if_exists=if_exists)
    text = f"topic {name} deleted" if deleted else f"there is no topic {name}"
    render.Output(as_json=as_json).show({"topic": name, "deleted": bool(deleted)}, text)


def _retention(settings: TopicSettings) -> str:
    text = duration(settings.retention_ms)
    limit = settings.retention_bytes
    return text if limit < 0 else f"{text}, {render.size(limit)} a queue"
