"""`semel dlq list|show|redrive`: shows the dead letters of consumer groups and redrives them.

TOPIC is a dead-letter topic, or the name of the consumer group that the dead letters belong to.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from semel.console import completion, render
from semel.console.options import client_options, confirm, examples, open_client, yes_option
from semel.console.units import Duration, Place

if TYPE_CHECKING:
    from semel.client import DeadLetter, LetterFilter, RedriveProgress, RedriveResult
    from semel.client.dead_letters.redrive import To

_Function = TypeVar("_Function", bound=Callable[..., Any])
SUFFIX = ".dead-letters"
REASON_CHARACTERS = 60
LIMIT = 100
"""Letters that are listed unless --limit says otherwise."""


if TYPE_CHECKING:  # generic only in newer versions of click
    _Place = click.ParamType[tuple[int, int]]
else:
    _Place = click.ParamType


class _At(_Place):
    """One dead letter: QUEUE/OFFSET, as `semel dlq list` shows it."""

    name = "letter"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        queue, slash, offset = str(value).partition("/")
        if not (slash and queue.isdecimal() and offset.isdecimal()):
            self.fail(f"{value!r} is no dead letter such as 0/17, queue and offset", param, ctx)
        return int(queue), int(offset)


def _filter_options(function: _Function) -> _Function:
    """Adds the options that select letters, passed on as one argument `which`."""

    @click.option("--letter", "places", type=_At(), multiple=True, help="QUEUE/OFFSET; repeatable.")
    @click.option(
        "--origin", default="", shell_complete=completion.topics, help="Stored first in this topic."
    )
    @click.option(
        "--group",
        default="",
        shell_complete=completion.groups,
        help="Given up by this consumer group.",
    )
    @click.option("--reason", default="", help="With this text in their reason.")
    @click.option("--key", default=None, help="With this key (text).")
    @click.option("--since", type=Place(time_only=True), help="Given up at this ISO-TIME or later.")
    @click.option("--until", type=Place(time_only=True), help="Given up before this ISO-TIME.")
    @functools.wraps(function)
    def filtering(
        *args: Any,
        places: tuple[tuple[int, int], ...],
        origin: str,
        group: str,
        reason: str,
        key: str | None,
        since: datetime | None,
        until: datetime | None,
        **kwargs: Any,
    ) -> Any:
        from semel.client import LetterFilter

        which = LetterFilter(
            places=places,
            origin=origin,
            group=group,
            reason=reason,
            key=None if key is None else key.encode(),
            failed_from_us=_time_us(since),
            failed_until_us=_time_us(until),
        )
        return function(*args, which=which, **kwargs)

    return cast("_Function", filtering)


def _time_us(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1_000_000)


@click.group()
def dlq() -> None:
    """Dead letters: look at them, and bring them back."""


@dlq.command(
    "list",
    epilog=examples(
        "semel dlq list",
        "semel dlq list billing",
        "semel dlq list billing --reason timeout --since 2026-01-31T12:00:00Z",
        more="Without TOPIC it finds the topics named GROUP.dead-letters, and those of any name"
        " from which letters were brought back. The cluster does not know which other topics retry"
        " policies name (RetryPolicy.dead_letter): pass such a name as TOPIC.",
    ),
)
@click.argument("topic", required=False, shell_complete=completion.topics)
@_filter_options
@click.option("--limit", type=click.IntRange(1), help="At most so many letters.  [default: 100]")
@client_options
def list_letters(
    topic: str | None, which: LetterFilter, limit: int | None, bootstrap: str, as_json: bool
) -> None:
    """Lists dead-letter topics, or the dead letters of TOPIC.

    TOPIC is a dead-letter topic, or the group that it belongs to.
    """
    from semel.client.dead_letters.listing import EVERYTHING

    if topic is None and (which != EVERYTHING or limit is not None):
        raise click.UsageError("options that choose letters need a TOPIC, or a group's name")
    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        if topic is not None:
            letters = client.admin.dead_letters(topic, which, limit=limit or LIMIT)
            drawn = _table(letters)
            out.show({"letters": [_as_dict(letter) for letter in letters]}, drawn)
            return
        rows = []
        for name in _dead_letter_topics([found.name for found in client.admin.list_topics()]):
            queues = client.admin.describe_topic(name).queues
            rows.append((name, sum(queue.messages for queue in queues)))
    value = {"topics": [{"topic": name, "letters": count} for name, count in rows]}
    drawn = render.table(["topic", "letters"], rows) if rows else "no dead-letter topics"
    out.show(value, drawn)


def _dead_letter_topics(names: list[str]) -> list[str]:
    """The topics of dead letters: by their names, or because something was brought back."""
    from semel.client.core.letters import redriven_topic

    known = set(names)
    return [name for name in names if name.endswith(SUFFIX) or redriven_topic(name) in known]


@dlq.command(epilog=examples("semel dlq show billing 0/17"))
@click.argument("topic", shell_complete=completion.topics)
@click.argument("letter", type=_At())
@client_options
def show(topic: str, letter: tuple[int, int], bootstrap: str, as_json: bool) -> int:
    """Shows one dead letter of TOPIC in full; LETTER is QUEUE/OFFSET."""
    from semel.client import LetterFilter

    out = render.Output(as_json=as_json)
    with open_client(bootstrap) as client:
        found = client.admin.dead_letters(topic, LetterFilter(places=(letter,)))
    if not found:
        render.error(f"topic {topic} has no message {letter[0]}/{letter[1]}: see `semel dlq list`")
        return 1
    value = _as_dict(found[0])
    lines = [[name, _shown(each)] for name, each in value.items()]
    out.show(value, render.table(["", ""], lines))
    return 0


@dlq.command(
    epilog=examples(
        "semel dlq redrive billing --all --dry-run",
        "semel dlq redrive billing --letter 0/17 --letter 1/4",
        "semel dlq redrive billing --reason timeout --to group --yes",
        more="May be repeated at any time: what was brought back is not brought back again.",
    )
)
@click.argument("topic", shell_complete=completion.topics)
@_filter_options
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option(
    "--to",
    type=click.Choice(["origin", "group"]),
    default="origin",
    show_default=True,
    help="origin: the topic they came from, for all its groups; group: only to the group that gave"
    " them up, through its first retry topic.",
)
@click.option("--dry-run", is_flag=True, help="Show what would come back, change nothing.")
@click.option(
    "--timeout",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Stop after this time; what came back stays, and the same call brings back the rest.",
)
@yes_option
@client_options
def redrive(
    topic: str,
    which: LetterFilter,
    everything: bool,
    to: str,
    dry_run: bool,
    timeout: int,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Brings dead letters of TOPIC back, each at most once.

    TOPIC is a dead-letter topic, or the group that it belongs to.
    """
    from semel.client.dead_letters.listing import EVERYTHING

    if everything != (which == EVERYTHING):
        raise click.UsageError("which letters? Pass --all, or options that choose some, not both")
    out = render.Output(as_json=as_json)
    target: To = "group" if to == "group" else "origin"
    with open_client(bootstrap) as client:
        limit_s = timeout / 1000
        plan = client.admin.redrive(topic, which, to=target, dry_run=True, timeout=limit_s)
        if dry_run or not plan.redriven:
            _tell(out, dataclasses.replace(plan, dry_run=dry_run))
            return
        where = ", ".join(plan.targets)
        confirm(f"Bring {plan.redriven:,} letters back to {where}?", yes=yes, as_json=as_json)
        with out.progress("bringing back", plan.redriven, unit="letters") as bar:
            done = 0

            def on_progress(progress: RedriveProgress) -> None:
                nonlocal done
                bar.advance(progress.redriven - done)
                done = progress.redriven

            result = client.admin.redrive(
                topic, which, to=target, timeout=limit_s, on_progress=on_progress
            )
        _tell(out, result)


def _tell(out: render.Output, result: RedriveResult) -> None:
    verb = "would come back" if result.dry_run else "came back"
    lines = [f"{result.redriven:,} of {result.matched:,} letters of {result.topic} {verb}"]
    lines += [f"  {count:,} to {topic}" for topic, count in result.targets.items()]
    if result.already:
        lines.append(f"  {result.already:,} had come back before")
    if result.recovered:
        lines.append(f"  {result.recovered:,} of these by a run that was cut short")
    if result.without_origin:
        lines.append(f"  {result.without_origin:,} have no origin, or it is gone")
    out.show(result.as_dict(), "\n".join(lines))


def _table(letters: list[DeadLetter]) -> Any:
    if not letters:
        return "no dead letters"
    return render.table(
        ["letter", "origin", "group", "attempts", "cause", "reason", "failed", "back"],
        [
            [
                f"{letter.queue}/{letter.offset}",
                "" if letter.origin is None else "/".join(map(str, letter.origin)),
                letter.group,
                letter.attempts,
                letter.cause,
                letter.reason[:REASON_CHARACTERS],
                render.iso(letter.failed_us, "seconds"),
                letter.redriven,
            ]
            for letter in letters
        ],
    )


def _as_dict(letter: DeadLetter) -> dict[str, Any]:
    value = letter.as_dict()
    value["origin"] = None if letter.origin is None else letter.origin._asdict()
    value["failed"] = render.iso(value.pop("failed_us"))
    value["headers"] = [[name, _text(data)] for name, data in letter.headers]
    value["key"] = None if letter.key is None else _text(letter.key)
    value["value"] = None if letter.value is None else _text(letter.value)
    if letter.message_id is None:
        del value["message_id"]
    else:
        value["message_id"] = _text(letter.message_id)
    return value


def _text(data: bytes) -> str | dict[str, str]:
    """The data as text if it is UTF-8, else in base64 under a name that says so."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _shown(value: object) -> str:
    match value:
        case dict():
            return "/".join(str(each) for each in value.values())
        case list():
            return ", ".join(f"{name}={data}" for name, data in value)
        case _:
            return "" if value is None else str(value)
