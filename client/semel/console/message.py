"""`semel message show|find`: one stored message with all that is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from semel.console import completion, render
from semel.console.json_fields import bytes_field, header_texts
from semel.console.options import client_options, examples, open_client

if TYPE_CHECKING:
    from semel.client import FoundMessage, StoredMessage


@click.group()
def message() -> None:
    """One stored message: its content, when it came, and from whom."""


@message.command(
    epilog=examples(
        "semel message show orders 3 41",
        "semel message show orders 3 41 --json",
        more="Bytes that are no UTF-8 are shown in base64, under a name that says so.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.argument("queue", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@client_options
def show(topic: str, queue: int, offset: int, bootstrap: str, as_json: bool) -> None:
    """Shows the message at OFFSET in QUEUE of TOPIC.

    It is read without a consumer group: no lock is taken, and nothing is committed.
    """
    with open_client(bootstrap) as client:
        found = client.admin.show_message(topic, queue, offset)
    value = _as_dict(found)
    rows = [[name.replace("_", " "), _shown(each)] for name, each in value.items()]
    render.Output(as_json=as_json).show(value, render.table(["", ""], rows))


@message.command(
    epilog=examples(
        "semel message find orders --id 7f3a-41",
        "semel message find orders --id 7f3a-41 --json",
        more="The topic must compare message ids, and finds a message for as long as it compares"
        " later ones with it. It is stored, delayed, removed (by retention) or cancelled.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.option("--id", "message_id", required=True, help="The message id, 1 to 128 bytes of UTF-8.")
@client_options
def find(topic: str, message_id: str, bootstrap: str, as_json: bool) -> None:
    """Finds the newest message of TOPIC with an id.

    It tells where the message is, when it came, and from whom.
    """
    with open_client(bootstrap) as client:
        found = client.admin.find_message(topic, message_id)
    output = render.Output(as_json=as_json)
    if found is None:
        value: dict[str, Any] = {"topic": topic, "message_id": message_id, "found": False}
        output.show(value, f"no message with the id {message_id} is known in {topic}")
        return
    value = _found_dict(found)
    rows = [[name.replace("_", " "), _shown(each)] for name, each in value.items()]
    output.show(value, render.table(["", ""], rows))


def _found_dict(found: FoundMessage) -> dict[str, Any]:
    """The message as JSON; what it does not have is null."""
    value: dict[str, Any] = {"topic": found.topic}
    value |= bytes_field("message_id", found.message_id)
    value |= {
        "found": True,
        "state": found.state,
        "queue": found.queue,
        "offset": found.offset if found.offset >= 0 else None,
        "deliver_at": _time_or_none(found.due_us),
        "appended": _time_or_none(found.append_time_us),
        "arrived": _time_or_none(found.arrival_time_us),
        "timestamp": _time_or_none(found.timestamp_us),
    }
    value |= bytes_field("key", found.key)
    value |= bytes_field("value", found.value)
    value["headers"] = header_texts(found.headers)
    return value | {
        "producer_id": found.producer_id,
        "producer": found.producer,
        "epoch": found.epoch,
        "session": found.session,
        "sequence": found.sequence,
    }


def _time_or_none(time_us: int | None) -> str | None:
    return _time(time_us) if time_us else None


def _as_dict(found: StoredMessage) -> dict[str, Any]:
    """The message as JSON; what it does not have is null."""
    value: dict[str, Any] = {"topic": found.topic, "queue": found.queue, "offset": found.offset}
    value |= bytes_field("key", found.key)
    value |= bytes_field("value", found.value)
    value["headers"] = header_texts(found.headers)
    value |= bytes_field("message_id", found.message_id)
    return value | {
        "timestamp": _time(found.timestamp_us),
        "appended": _time(found.append_time_us),
        "deliver_at": _time(found.deliver_at_us) if found.deliver_at_us else None,
        "producer_id": found.producer_id,
        "producer": found.producer,
        "epoch": found.epoch,
        "session": found.session,
        "sequence": found.sequence,
    }


def _time(time_us: int) -> str:
    return render.iso(time_us, "microseconds")


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case dict():
            pairs = [
                (name, text)
                for name, texts in value.items()
                for text in (texts if isinstance(texts, list) else [texts])
            ]
            return ", ".join(f"{name}={text}" for name, text in pairs)
        case _:
            return str(value)
