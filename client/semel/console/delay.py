"""`semel delay list`: messages that are stored and not due yet."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import completion, render
from semel.console.json_fields import bytes_field
from semel.console.options import client_options, examples, open_client
from semel.console.units import Place

if TYPE_CHECKING:
    from semel.client import DelayedMessage

LIMIT: Final = 100
LIMIT_MAX: Final = 10_000


@click.group()
def delay() -> None:
    """Messages that are stored and not due yet: which there are."""


@delay.command(
    "list",
    epilog=examples(
        "semel delay list reminders",
        "semel delay list reminders --before 2026-01-31T12:00:00Z",
        "semel delay list reminders --limit 10000 --json",
        more="A message that is due and about to be delivered may be among them.",
    ),
)
@click.argument("topic", shell_complete=completion.topics)
@click.option(
    "--before",
    type=Place(time_only=True),
    metavar="TIME",
    help="Only messages that are due before this time, in ISO 8601.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="At most so many messages.",
)
@client_options
def list_delayed(
    topic: str, before: datetime | None, limit: int, bootstrap: str, as_json: bool
) -> None:
    """Lists delayed messages of TOPIC, those that are due first at the top."""
    with open_client(bootstrap) as client:
        found = client.admin.list_delayed(topic, before=before, limit=limit)
    drawn = render.table(
        ["due (UTC)", "queue", "message id", "key", "size", "producer id", "sequence"],
        [
            [
                render.when(each.due_us),
                each.queue,
                _text(each.message_id),
                _text(each.key),
                render.size(each.size),
                str(each.producer_id),
                each.sequence,
            ]
            for each in found
        ],
    )
    value = {"topic": topic, "messages": [_as_dict(each) for each in found]}
    render.Output(as_json=as_json).show(value, drawn if found else "no delayed messages")


def _as_dict(message: DelayedMessage) -> dict[str, Any]:
    """The message as JSON; what it does not have is null."""
    value: dict[str, Any] = {"due": render.iso(message.due_us, "microseconds")}
    value["queue"] = message.queue
    value |= bytes_field("message_id", message.message_id)
    value |= bytes_field("key", message.key)
    return value | {
        "size": message.size,
        "producer_id": message.producer_id,
        "sequence": message.sequence,
    }


def _text(data: bytes | None) -> str:
    """The data for a table, in base64 if it is no UTF-8."""
    return next(iter(bytes_field("", data).values())) or ""
