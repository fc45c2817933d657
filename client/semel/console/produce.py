"""`semel produce`: sends a file or stdin, message by message, to a topic.

How it works. `lines.py` cuts the input, `load.py` sends it. With `--producer` a message's position
is its number in the input, counted from 0: its queue and sequence depend only on that (and on its
key), so the same call after any crash stores what is missing and nothing twice.

Invariants
1. After a failure every message before the failing one is stored, and none after it was sent.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Final

import click

from semel.console import completion, render
from semel.console.options import client_options, examples, open_client
from semel.console.units import Duration, Place, Size
from semel.protos.errors import InvalidRequest

if TYPE_CHECKING:
    from semel.console.lines import Block
    from semel.console.load import Load, Tally

_SLICES_A_SECOND: Final = 100
"""How often a rate-limited load reads per second, so that it flows evenly."""


@click.command(
    epilog=examples(
        "semel produce orders orders.txt --producer loader-1",
        "tail -f app.log | semel produce logs",
        "semel produce orders orders.jsonl --format jsonl --compression zstd",
        'echo \'{"key": "anna", "value": null}\' | semel produce users --format jsonl',
        "echo tea | semel produce reminders --deliver-after 5m --message-id tea-1",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@click.argument("file", type=click.Path(allow_dash=True), default="-")
@click.option(
    "--producer",
    metavar="NAME",
    shell_complete=completion.producers,
    help="A durable name: repeat the call after any crash.",
)
@click.option(
    "--key-separator", metavar="C", help="Cut each line into key and value at the first C."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["lines", "jsonl"]),
    default="lines",
    show_default=True,
    help="jsonl: objects with value, key, message_id (or …_base64), headers, deliver_at. A null"
    " value says that the key has none any more.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the stored batches.",
)
@click.option(
    "--after-expiry",
    type=click.Choice(["raise", "restart"]),
    default="raise",
    show_default=True,
    help="When the cluster has forgotten how far --producer came: stop, or store all from the "
    "first line on.",
)
@click.option(
    "--deliver-at",
    type=Place(time_only=True),
    metavar="ISO-TIME",
    help="Readers get the messages at this time and not before; UTC unless it has a zone. A line of"
    " jsonl may have its own.",
)
@click.option(
    "--deliver-after",
    type=Duration(),
    metavar="DURATION",
    help="Like --deliver-at, but this long after each message was read, such as 90s or 5m.",
)
@click.option(
    "--message-id", metavar="ID", help="An id of your own, for an input that is one message."
)
@click.option("--rate", type=Size(), help="Read at most this many bytes a second, such as 5M.")
@click.option(
    "--progress",
    type=click.FloatRange(min=0.01),
    metavar="SECONDS",
    help="With --json: print a line of progress at this interval.",
)
@client_options
def produce(
    topic: str,
    file: str,
    producer: str | None,
    key_separator: str | None,
    kind: str,
    compression: str,
    after_expiry: str,
    deliver_at: datetime | None,
    deliver_after: int | None,
    message_id: str | None,
    rate: int | None,
    progress: float | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Sends the lines of FILE (or stdin) to TOPIC and waits until they are stored.

    On a topic with dedup by id, a message_id that is known makes a duplicate, or a conflict if the
    content is another one. The others are stored; conflicts make the exit status 1.
    """
    separator = _separator(key_separator, kind)
    if producer == "":
        raise click.UsageError("--producer: a name must not be empty")
    if message_id is not None and kind == "jsonl":
        raise click.UsageError("--message-id: give the JSON object a message_id")
    due_us = _due(deliver_at, deliver_after)
    out = render.Output(as_json=as_json)
    began = time.monotonic()
    with _opened(file) as (source, size), open_client(bootstrap) as client:
        from semel.console.lines import BLOCK_BYTES, read_json, read_lines
        from semel.console.load import Load, PacedReader

        limit = client.admin.describe_topic(topic).settings.message_bytes_max
        options = {"limit": limit, "block_bytes": BLOCK_BYTES}
        reader: Any = source
        if rate is not None:
            reader = PacedReader(source, rate)
            options["block_bytes"] = max(1, min(BLOCK_BYTES, rate // _SLICES_A_SECOND))
        blocks = (
            read_json(reader, **options)
            if kind == "jsonl"
            else read_lines(reader, separator=separator, **options)
        )
        if message_id is not None:
            blocks = _one_message(blocks, message_id)
        sender = client.producer(
            producer,
            source_positions=producer is not None,
            compression=compression,
            after_expiry=after_expiry,
        )
        with out.progress(f"to {topic}", size) as bar:
            meter = _Meter(out, progress if as_json else None)
            load = Load(
                sender,
                topic,
                named=producer is not None,
                on_progress=meter.on_progress,
                due_us=due_us,
            )
            meter.load = load

            def counted() -> Iterator[Any]:
                for block in blocks:
                    yield block
                    bar.advance(block.read_bytes)

            load.run(counted())
    seconds = time.monotonic() - began
    result = {**load.tally.as_dict(), "seconds": round(seconds, 3)}
    tally = load.tally
    if as_json:
        out.emit({**result, "conflict_lines": tally.conflict_lines})
        _exit_on_conflicts(tally, as_json=True)
        return
    text = f"{tally.stored:,} messages stored in {seconds:.1f} s"
    text += f", {tally.skipped:,} were stored before" if tally.skipped else ""
    text += f", {tally.duplicates:,} recognised as duplicates" if tally.duplicates else ""
    text += f", {tally.conflicts:,} refused as conflicts" if tally.conflicts else ""
    click.echo(text)
    _exit_on_conflicts(tally, as_json=False)


def _exit_on_conflicts(tally: Tally, *, as_json: bool) -> None:
    """Ends with status 1 if messages were not stored because of conflicts, whose lines it names."""
    if not tally.conflicts:
        return
    if not as_json:
        lines = ", ".join(map(str, tally.conflict_lines))
        more = ", …" if tally.conflicts > len(tally.conflict_lines) else ""
        click.echo(
            f"error: {tally.conflicts:,} messages are not stored: the topic has their message_id"
            f" with another content (lines {lines}{more}); give them ids of their own",
            err=True,
        )
    raise click.exceptions.Exit(1)


class _Meter:
    """Prints a line of progress at intervals."""

    def __init__(self, out: render.Output, every: float | None) -> None:
        self._out = out
        self._every = every
        self._began = time.monotonic()
        self._next = self._began
        self.load: Load | None = None

    def on_progress(self) -> None:
        now = time.monotonic()
        if self._every is None or self.load is None or now < self._next:
            return
        self._next = now + self._every
        line = {"event": "progress", **self.load.tally.as_dict()}
        self._out.emit({**line, "seconds": round(now - self._began, 3)})


def _due(at: datetime | None, after_ms: int | None) -> Callable[[], int] | None:
    """The due time of a message that is read now; None for at once."""
    if after_ms is not None:
        if at is not None:
            raise click.UsageError("--deliver-at and --deliver-after contradict each other")
        return lambda: time.time_ns() // 1000 + after_ms * 1000
    if at is None:
        return None
    at_us = max(0, (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    return lambda: at_us


def _one_message(blocks: Iterator[Block], message_id: str) -> Iterator[Block]:
    """The only message of an input, with its id. Raises InvalidRequest if there are more."""
    first = next(blocks, None)
    if first is None:
        return
    if len(first.values) > 1 or next(blocks, None) is not None:
        raise InvalidRequest(
            "--message-id is for an input of one message, and this one has more: nothing was sent;"
            " use --format jsonl with a message_id in each object"
        )
    yield replace(first, message_ids=[message_id.encode("utf-8", "surrogateescape")])


def _separator(text: str | None, kind: str) -> bytes:
    if text is None:
        return b""
    if kind != "lines":
        raise click.UsageError("--key-separator: only lines are cut; JSON objects have a key field")
    separator = {"\\t": "\t", "\\0": "\0"}.get(text, text).encode("utf-8", "surrogateescape")
    if not separator or b"\n" in separator:
        raise click.UsageError("--key-separator: give one character or a few, no newline")
    return separator


@contextmanager
def _opened(name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The input and its size if known. Raises OSError, InvalidRequest for an empty file."""
    if name == "-":
        yield os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0), None
        return
    with open(name, "rb", buffering=0) as file:  # noqa: PTH123 - bytes of any file name
        status = os.fstat(file.fileno())
        regular = stat.S_ISREG(status.st_mode)
        if regular and status.st_size == 0:
            raise InvalidRequest(f"{name} is empty: nothing to send")
        yield file, status.st_size if regular else None
