"""`semel consume`: writes messages of a topic to stdout, as bytes or as JSON.

How it works. Without a group a reader reads from `--from` on. With a group a consumer takes its
share of the queues, and commits what was written out (and flushed). `--until-end` notes every
queue's end at the start and stops there.

Invariants
1. With a group a message is committed only after it was written.
2. `--max N` writes N messages and commits exactly those.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import completion, render
from semel.console.options import bootstrap_option, examples, open_client
from semel.console.units import Place

if TYPE_CHECKING:
    from semel.client import Client, Consumer, Message

POLL_MESSAGES: Final = 5_000
POLL_S: Final = 0.2
COMMIT_S: Final = 1.0
"""Interval between commits of the progress; there is another commit at the end."""
GROUP_CHECK_S: Final = 0.5
"""Interval at which `--until-end` asks for the progress of the other members."""


@click.command(
    epilog=examples(
        "semel consume orders --until-end",
        "semel consume orders --group billing --format json",
        "semel consume orders --from 2026-01-31T12:00:00Z --max 100",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.option(
    "--group",
    shell_complete=completion.groups,
    help="Read as a member of this consumer group, and commit.",
)
@click.option(
    "--from",
    "start",
    type=Place(),
    help="earliest, latest, OFFSET or ISO-TIME. With a group: earliest or latest, used only where"
    " the group never committed. [default: earliest]",
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--until-end", is_flag=True, help="Stop at the present end.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["value", "json"]),
    help="value: the bytes and a newline; json: an object a line. [default: value]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@bootstrap_option
def consume(
    topic: str,
    group: str | None,
    start: str | int | datetime | None,
    limit: int | None,
    until_end: bool,
    kind: str | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Writes messages of TOPIC to stdout until Ctrl-C, --max or --until-end."""
    if as_json and kind == "value":
        raise click.UsageError("--json and --format value contradict each other")
    if group == "":
        raise click.UsageError("--group: a name must not be empty")
    if group is not None and start not in (None, "earliest", "latest"):
        raise click.UsageError(
            "--from with --group takes earliest or latest; group reset-offsets moves a group"
        )
    with open_client(bootstrap) as client:
        if as_json or kind == "json":
            name_of = _names(client)
            write = _writer(lambda messages: _json_lines(messages, name_of))
        else:
            write = _writer(lambda messages: b"".join(b"%b\n" % m.value for m in messages))
        place = "earliest" if start is None else start
        if group is None and limit is None and kind != "json" and not as_json:
            _copy(client, topic, place, until_end)
        elif group is None:
            _read(client, topic, place, limit, until_end, write)
        else:
            _consume(client, topic, group, str(place), limit, until_end, write)


_Write = Callable[[list["Message"]], None]


def _writer(encode: Callable[[list[Message]], bytes]) -> _Write:
    out = sys.stdout.buffer

    def write(messages: list[Message]) -> None:
        out.write(encode(messages))
        out.flush()

    return write


def _copy(client: Client, topic: str, start: str | int | datetime, until_end: bool) -> None:
    """Writes only the values, a batch at a time."""
    out = sys.stdout.buffer
    with client.reader(topic, start=start, end="latest" if until_end else None) as reader:
        while not reader.finished:
            batch = reader.poll_arrow(1.0)
            if batch is not None:
                values = batch.column("value").to_pylist()
                values.append(b"")
                out.write(b"\n".join(values))
                out.flush()


def _read(
    client: Client,
    topic: str,
    start: str | int | datetime,
    limit: int | None,
    until_end: bool,
    write: _Write,
) -> None:
    """Writes messages without a group."""
    left = limit
    with client.reader(topic, start=start, end="latest" if until_end else None) as reader:
        while left is None or left > 0:
            messages = reader.poll(POLL_MESSAGES if left is None else min(left, POLL_MESSAGES), 1.0)
            if messages:
                write(messages)
                left = None if left is None else left - len(messages)
            elif reader.finished:
                return


def _consume(
    client: Client,
    topic: str,
    group: str,
    start: str,
    limit: int | None,
    until_end: bool,
    write: _Write,
) -> None:
    """Writes messages as a member of a group, and commits them."""
    left = limit
    committed = time.monotonic()
    ends = _ends(client, topic) if until_end else None
    with client.consumer(group, [topic], auto_offset_reset=start) as consumer:
        checked = time.monotonic()
        try:
            while left is None or left > 0:
                wanted = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
                messages = consumer.poll(wanted, POLL_S)
                if messages:
                    write(messages)
                    left = None if left is None else left - len(messages)
                now = time.monotonic()
                if now - committed > COMMIT_S:
                    consumer.commit()
                    committed = now
                if ends is not None and not messages and now - checked > GROUP_CHECK_S:
                    checked = now
                    consumer.commit()
                    if _is_through(client, consumer, topic, group, ends):
                        return
        finally:
            consumer.commit()


def _ends(client: Client, topic: str) -> dict[int, int]:
    """The present end of each queue that holds any message."""
    queues = client.admin.describe_topic(topic).queues
    return {q.queue: q.log_end_offset for q in queues if q.log_end_offset > q.log_start_offset}


def _is_through(
    client: Client, consumer: Consumer, topic: str, group: str, ends: dict[int, int]
) -> bool:
    """True when every queue was read up to its end, by this member or by another one."""
    if not ends:
        return True
    states = client.admin.describe_group(group).queues
    done = {q.queue: q.committed_offset for q in states if q.topic == topic}
    return all(done.get(queue, -1) >= end for queue, end in ends.items())


def _names(client: Client) -> Callable[[int], str]:
    """Looks up producers' names by id when first needed; an anonymous one shows its id."""
    known: dict[int, str] = {}

    def name(producer_id: int) -> str:
        if producer_id not in known:
            known.update({p.producer_id: p.name for p in client.admin.list_producers()})
            known.setdefault(producer_id, str(producer_id))
        return known[producer_id]

    return name


def _json_lines(messages: Iterable[Message], producer_name: Callable[[int], str]) -> bytes:
    lines = []
    for message in messages:
        line: dict[str, Any] = {
            "topic": message.topic,
            "queue": message.queue,
            "offset": message.offset,
            "timestamp": render.iso(message.timestamp_us, "microseconds"),
        }
        line |= _bytes("key", message.key)
        line |= _bytes("value", message.value)
        line["headers"] = {}
        for header, data in message.headers:
            line["headers"].setdefault(header, []).append(data.decode("utf-8", "backslashreplace"))
        line["headers"] = {
            header: texts[0] if len(texts) == 1 else texts
            for header, texts in line["headers"].items()
        }
        if message.message_id is not None:
            line |= _bytes("message_id", message.message_id)
        line["producer"] = producer_name(message.producer_id)
        line["sequence"] = message.sequence
        lines.append(json.dumps(line, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    """The field as text if it is UTF-8, else in base64 under a name that says so."""
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {f"{name}_base64": base64.b64encode(value).decode()}
