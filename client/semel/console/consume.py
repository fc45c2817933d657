"""`semel consume`: writes messages of a topic to stdout, as bytes or as JSON.

How it works. Without a group a reader reads from `--from` on. With a group a consumer takes its
share of the queues, and commits what was written. `--until-end` notes every queue's end at the
start and stops there.

*Written* means that the operating system has taken the whole message, newline included; what a
program behind a pipe does with it is not known here. A write that fails in between (a closed pipe,
a full disk, Ctrl-C at a pipe that is full) has written the messages before the one that was cut.

Invariants
1. With a group a message is committed if and only if it was written, also when the command ends by
   an error or by Ctrl-C; a commit that fails is reported, and its messages come again.
2. `--max N` writes N messages and commits exactly those.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from semel.console import completion, render
from semel.console.json_fields import bytes_field, header_texts
from semel.console.options import bootstrap_option, examples, open_client
from semel.console.units import Place
from semel.protos.errors import LockLost, SemelError

if TYPE_CHECKING:
    from semel.client import Client, Consumer, Message, Reader
    from semel.protos.ids import QueueKey

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
    help="value: the bytes and a newline, which is all for a null; json: an object a line."
    " [default: value]",
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
            out = _Output(lambda message: _json_line(message, name_of))
        else:
            out = _Output(lambda message: b"%b\n" % (message.value or b""))
        place = "earliest" if start is None else start
        if group is None and limit is None and kind != "json" and not as_json:
            _copy(client, topic, place, until_end)
        elif group is None:
            _read(client, topic, place, limit, until_end, out)
        else:
            _consume(client, topic, group, str(place), limit, until_end, out)


class _Call(NamedTuple):
    """One call of `_Output.write`."""

    messages: list[Message]
    ends: list[int]
    """End of each message in the bytes of the call."""
    taken: list[int]
    """Numbers of bytes that the operating system has taken, one for each of its writes."""


class _Output:
    """stdout, and what was written to it."""

    def __init__(self, encode: Callable[[Message], bytes]) -> None:
        self._encode = encode
        self._last: dict[QueueKey, Message] = {}
        """By queue, the last message of all calls before the present one."""
        self._call = _Call([], [], [])

    def write(self, messages: list[Message]) -> None:
        """Writes messages. Raises OSError and KeyboardInterrupt; `last_written` is exact then."""
        self._last = self.last_written()
        lines = [self._encode(message) for message in messages]
        self._call = call = _Call(messages, list(accumulate(map(len, lines))), [])
        data = memoryview(b"".join(lines))
        sys.stdout.flush()
        file = sys.stdout.fileno()
        while (done := sum(call.taken)) < len(data):
            # extend and map run no bytecode, so Ctrl-C cannot come between a write and its count.
            call.taken.extend(map(os.write, (file,), (data[done:],)))

    def last_written(self) -> dict[QueueKey, Message]:
        """Returns by queue the last message that was written."""
        call = self._call
        whole = call.messages[: bisect_right(call.ends, sum(call.taken))]
        return self._last | {message.rows.queue: message for message in whole}


def _copy(client: Client, topic: str, start: str | int | datetime, until_end: bool) -> None:
    """Writes only the values, a batch at a time."""
    from semel.protos.arrow import INSTALLED

    take = _take_arrow if INSTALLED else _take_plain
    out = sys.stdout.buffer
    with client.reader(topic, start=start, end="latest" if until_end else None) as reader:
        while not reader.finished:
            if values := take(reader):
                values.append(b"")
                out.write(b"\n".join(values))
                out.flush()


def _take_arrow(reader: Reader) -> list[bytes]:
    """Takes the values of the next messages; a null is empty."""
    batch = reader.poll_arrow(1.0)
    values: list[bytes] = []
    if batch is not None:
        values = batch.column("value").fill_null(b"").to_pylist()
    return values


def _take_plain(reader: Reader) -> list[bytes]:
    """Takes values like `_take_arrow`, where Arrow is not installed."""
    return [message.value or b"" for message in reader.poll(POLL_MESSAGES, 1.0)]


def _read(
    client: Client,
    topic: str,
    start: str | int | datetime,
    limit: int | None,
    until_end: bool,
    out: _Output,
) -> None:
    """Writes messages without a group."""
    left = limit
    with client.reader(topic, start=start, end="latest" if until_end else None) as reader:
        while left is None or left > 0:
            messages = reader.poll(POLL_MESSAGES if left is None else min(left, POLL_MESSAGES), 1.0)
            if messages:
                out.write(messages)
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
    out: _Output,
) -> None:
    """Writes messages as a member of a group, and commits exactly those that were written."""
    ends = _ends(client, topic) if until_end else None
    with client.consumer(group, [topic], auto_offset_reset=start) as consumer:
        try:
            _pass_on(client, consumer, topic, limit, ends, out)
            consumer.commit()
        except BaseException as failure:
            _commit_written(consumer, out, quiet=isinstance(failure, SemelError))
            raise


def _pass_on(
    client: Client,
    consumer: Consumer,
    topic: str,
    limit: int | None,
    ends: dict[int, int] | None,
    out: _Output,
) -> None:
    """Writes what the consumer gets, up to a number of messages or to the ends of the queues."""
    left = limit
    committed = checked = time.monotonic()
    while left is None or left > 0:
        wanted = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        messages = consumer.poll(wanted, POLL_S)
        if messages:
            out.write(messages)
            left = None if left is None else left - len(messages)
        now = time.monotonic()
        if now - committed > COMMIT_S:
            consumer.commit()
            committed = now
        if ends is not None and not messages and now - checked > GROUP_CHECK_S:
            checked = now
            consumer.commit()
            if _is_through(client, topic, consumer.group, ends):
                return


def _commit_written(consumer: Consumer, out: _Output, *, quiet: bool) -> None:
    """Commits what was written before a failure. What was given out and not written comes again."""
    problem: SemelError | None = None
    for message in out.last_written().values():
        try:
            consumer.commit(message)
        except LockLost as error:  # of this queue
            problem = error
        except SemelError as error:
            problem = error
            break
    if problem is not None and not quiet:
        render.warn(f"messages that were written come again: {problem.message}")


def _ends(client: Client, topic: str) -> dict[int, int]:
    """The present end of each queue that holds any message."""
    queues = client.admin.describe_topic(topic).queues
    return {q.queue: q.log_end_offset for q in queues if q.log_end_offset > q.log_start_offset}


def _is_through(client: Client, topic: str, group: str, ends: dict[int, int]) -> bool:
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


def _json_line(message: Message, producer_name: Callable[[int], str]) -> bytes:
    line: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "timestamp": render.iso(message.timestamp_us, "microseconds"),
    }
    line |= bytes_field("key", message.key)
    line |= bytes_field("value", message.value)
    line["headers"] = header_texts(message.headers)
    if message.message_id is not None:
        line |= bytes_field("message_id", message.message_id)
    line["producer"] = producer_name(message.producer_id)
    line["sequence"] = message.sequence
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()
