"""`semel delay list|stats|history|cancel|give-up`: messages that are not due yet, or were."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import completion, render
from semel.console.json_fields import bytes_field
from semel.console.options import client_options, confirm, examples, open_client, yes_option
from semel.console.queue_name import QueueName
from semel.console.units import Place, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client import DelayedMessage, DelayRelease, DelayStats

LIMIT: Final = 100
LIMIT_MAX: Final = 10_000
ENDS: Final = ("overdue", "later")
"""The buckets that have no bound of their own."""


@click.group()
def delay() -> None:
    """Delayed messages: which wait, how many when, what came when; take one out."""


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
    """Lists delayed messages of TOPIC, those that are due first on top."""
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


@delay.command(
    epilog=examples(
        "semel delay stats reminders",
        "semel delay stats reminders --json",
        more="What is overdue is delivered as soon as its queue has a master: more than a few"
        " messages for more than a second are worth a look at `semel doctor`.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@client_options
def stats(topic: str, bootstrap: str, as_json: bool) -> None:
    """Shows how many delayed messages of TOPIC are due when.

    Nothing is read from a disk for it, however many there are.
    """
    with open_client(bootstrap) as client:
        found = client.admin.delay_stats(topic)
    value = found.as_dict()
    value["earliest"] = _time(value.pop("first_due_us"))
    value["latest"] = _time(value.pop("last_due_us"))
    value["buckets"] = value.pop("buckets")  # the long part at the end
    drawn = _histogram(found) if found.messages else "no delayed messages"
    render.Output(as_json=as_json).show(value, drawn)


@delay.command(
    epilog=examples(
        "semel delay history reminders",
        "semel delay history reminders --since 2026-01-31T12:00:00Z --limit 1000",
        "semel delay history reminders --json",
        more="A row is what one queue released of one second; older rows are of a minute, an hour"
        " or a day, and a day is kept at least. Times are those of the brokers' log.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.option(
    "--since",
    type=Place(time_only=True),
    metavar="TIME",
    help="Only what was released at this time or later, in ISO 8601.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="At most so many rows, the newest.",
)
@client_options
def history(topic: str, since: datetime | None, limit: int, bootstrap: str, as_json: bool) -> None:
    """Shows what was delayed in TOPIC and released: when, and how late.

    The newest is on top.
    """
    with open_client(bootstrap) as client:
        found = client.admin.delay_history(topic, since=since, limit=limit)
    drawn = render.table(
        ["due (UTC)", "released (UTC)", "late", "queue", "offset", "messages", "within"],
        [
            [
                render.when(each.due_us),
                render.when(each.released_us),
                f"{each.late_us / 1_000_000:.3f} s",
                each.queue,
                each.offset,
                each.messages,
                duration(each.span_s * 1_000),
            ]
            for each in found
        ],
    )
    value = {"topic": topic, "releases": [_release(each) for each in found]}
    render.Output(as_json=as_json).show(value, drawn if found else "nothing was released")


@delay.command(
    epilog=examples(
        "semel delay cancel reminders 7f3a-41",
        "semel delay cancel reminders 7f3a-41 --json",
        more="The result is cancelled (also if it was cancelled before), delivered, or unknown: the"
        " exit status is 0. A message that was never delayed is an error. The topic must compare"
        " message ids.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.argument("message_id", metavar="ID")
@client_options
def cancel(topic: str, message_id: str, bootstrap: str, as_json: bool) -> None:
    """Takes the delayed message with an id out of TOPIC if it is not due.

    It is never delivered then, and its id can be used again.
    """
    with open_client(bootstrap) as client:
        found = client.admin.cancel(topic, message_id)
    value: dict[str, Any] = {"topic": topic}
    value |= bytes_field("message_id", found.message_id)
    value |= {
        "result": found.result,
        "queue": found.queue,
        "offset": found.offset,
        "due": _time(found.due_us or 0),
        "delivered": _time(found.delivered_us or 0),
    }
    text = found.result
    if found.result == "delivered":
        text = f"already delivered in queue {found.queue}, and not retained any more"
        if found.delivered_us is not None:
            when = render.when(found.delivered_us)
            text = f"already delivered at {when} UTC: queue {found.queue}, offset {found.offset}"
    render.Output(as_json=as_json).show(value, text)


@delay.command(
    "give-up",
    epilog=examples(
        "semel delay give-up reminders/3",
        "semel delay give-up reminders/3 --yes --json",
        more="For a queue that was split, and whose next delayed batch no node can read (`semel"
        " doctor` names it). Its children deliver nothing that is due later until that batch is"
        " repaired or given up. Every node of the broker group must answer. In a topic that"
        " compares message ids the ids stay known: the same messages sent again count as"
        " duplicates.",
    ),
)
@click.argument("name", metavar="TOPIC/QUEUE", type=QueueName())
@yes_option
@client_options
def give_up(name: tuple[str, int], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Gives up a batch that no node can read: its messages ARE LOST.

    Says first what is lost, and asks.
    """
    topic, number = name
    with open_client(bootstrap) as client:
        found = client.admin.give_up_delayed(topic, number)
        what = (
            f"{render.plural(found.messages, 'message')} of queue {topic}/{number}, due"
            f" {render.when(found.due_us)} UTC"
        )
        why = f"no node can read entry {found.entry} ({found.reason})"
        confirm(f"Lose {what}, for good: {why}?", yes=yes, as_json=as_json)
        found = client.admin.give_up_delayed(topic, number, found)
    render.Output(as_json=as_json).show(found.as_dict(), f"given up: {what}")


def _histogram(found: DelayStats) -> RenderableType:
    most = max(bucket.messages for bucket in found.buckets)
    return render.table(
        ["due", "messages", "", "size"],
        [
            [
                bucket.due if bucket.due in ENDS else f"within {bucket.due}",
                bucket.messages,
                render.bar(bucket.messages, most),
                render.size(bucket.bytes),
            ]
            for bucket in found.buckets
        ],
        title=f"{found.topic} · {render.plural(found.messages, 'message')} delayed,"
        f" {render.size(found.bytes)} · the first due {render.when(found.first_due_us)},"
        f" the last {render.when(found.last_due_us)} UTC",
    )


def _time(time_us: int) -> str | None:
    return render.iso(time_us, "microseconds") if time_us else None


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


def _release(row: DelayRelease) -> dict[str, Any]:
    """The row as JSON, with times in ISO 8601 and lateness in seconds."""
    return {
        "due": _time(row.due_us),
        "due_last": _time(row.due_last_us),
        "released": _time(row.released_us),
        "released_last": _time(row.released_last_us),
        "late_s": row.late_us / 1_000_000,
        "late_min_s": row.late_min_us / 1_000_000,
        "queue": row.queue,
        "offset": row.offset,
        "messages": row.messages,
        "span_s": row.span_s,
    }


def _text(data: bytes | None) -> str:
    """The data for a table, in base64 if it is no UTF-8."""
    return next(iter(bytes_field("", data).values())) or ""
