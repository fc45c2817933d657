"""`semel topic create|list|describe|alter|delete`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from semel.console import completion, render
from semel.console.options import client_options, confirm, examples, open_client, yes_option
from semel.console.units import Count, Duration, Size, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client.admin.descriptions import (
        QueueDescription,
        QueueMove,
        TopicDedup,
        TopicDescription,
        TopicSettings,
    )
    from semel.client.admin.topic_settings import Compaction, IdDedup

DELETE = "delete"
COMPACT = "compact"
COMPACT_DELETE = "compact,delete"
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
            click.option(
                "--delay-per-second-max",
                type=Count(none=True),
                metavar="N",
                help="Refuse a delayed message if so many are due in its second already; none: no"
                " limit.",
            ),
            click.option(
                "--tier-after",
                "tier_after_ms",
                type=Duration(none=True),
                help="Messages of this age go to the cluster's object store, and stay readable: 1h,"
                " none. The brokers need --tier.",
            ),
            click.option(
                "--local-retention",
                "local_retention_ms",
                type=Duration(unlimited=True),
                help="With --tier-after: brokers keep what is in the object store only so long: 6h,"
                " unlimited.",
            ),
        ]
    ):
        function = option(function)
    return function


_memory_bytes = click.option(
    "--memory-bytes",
    type=Size(),
    metavar="BYTES",
    help="Of a topic in memory: beyond this many bytes the oldest messages go.  [default: 1GiB]",
)
_storage = click.option(
    "--storage",
    type=click.Choice(["log", "memory"]),
    help="memory: messages are only in the memory of a majority, and lost if it dies together."
    " It stays so for the life of the topic.  [default: log]",
)


def _compaction_options(function: _Function) -> _Function:
    for option in reversed(
        [
            click.option(
                "--cleanup",
                type=click.Choice([DELETE, COMPACT, COMPACT_DELETE]),
                help="delete: messages go by retention. compact: of each key only the newest stays,"
                " for ever. compact,delete: both.  [default: delete]",
            ),
            click.option(
                "--tombstones-for",
                "tombstone_ms",
                type=Duration(),
                help="With compaction: how long a message without a value stays after the older"
                " ones of its key.  [default: 24h]",
            ),
            click.option(
                "--compact-after",
                "lag_ms",
                type=Duration(),
                help="With compaction: younger messages stay.  [default: 0s]",
            ),
        ]
    ):
        function = option(function)
    return function


def _compaction(
    present: TopicSettings | None,
    cleanup: str | None,
    tombstone_ms: int | None,
    lag_ms: int | None,
    settings: dict[str, Any],
) -> Compaction | Literal["off"] | None:
    """The compaction that the options make of the present settings; None to leave it as it is.

    `compact` alone sets the retention to unlimited.
    """
    from semel.client.admin.topic_settings import Compaction

    times = {"tombstone_ms": tombstone_ms, "lag_ms": lag_ms}
    given: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
    before = None if present is None else present.compaction
    if cleanup == DELETE:
        if given:
            raise click.UsageError("--tombstones-for and --compact-after are about compaction")
        return "off" if before is not None else None
    if cleanup is None and before is None:
        if given:
            raise click.UsageError("--tombstones-for and --compact-after: give --cleanup, too")
        return None
    if cleanup == COMPACT:
        if any(settings[name] not in (None, -1) for name in ("retention_ms", "retention_bytes")):
            raise click.UsageError(
                "--cleanup compact keeps the newest messages: for a retention"
                " say --cleanup compact,delete"
            )
        settings["retention_ms"] = settings["retention_bytes"] = -1
    elif cleanup == COMPACT_DELETE and settings["retention_ms"] is None and before is None:
        if settings["retention_bytes"] is None and present is None:
            raise click.UsageError(
                "--cleanup compact,delete: give --retention, or --retention-bytes, too"
            )
    elif cleanup is None and not given:
        return None
    return replace(before or Compaction(), **given)


def _cleanup(settings: TopicSettings) -> str:
    """How old messages go, for people; empty if by retention alone."""
    compaction = settings.compaction
    if compaction is None:
        return ""
    text = f"compacted, tombstones for {duration(compaction.tombstone_ms)}"
    return text + (f", after {duration(compaction.lag_ms)}" if compaction.lag_ms else "")


def _dedup_options(*, ends: bool) -> Callable[[_Function], _Function]:
    """The options of dedup by id; `ends`: a topic may cease to compare ids."""

    def add(function: _Function) -> _Function:
        for option in reversed(
            [
                click.option(
                    "--dedup-by-id",
                    "window_bytes",
                    type=Size(none=ends),
                    metavar="BYTES",
                    help="Store a message whose id is known only once, and remember so many bytes"
                    " of ids, 40 an id: 4GiB; at least 1MiB." + " none: compare no ids." * ends,
                ),
                click.option(
                    "--dedup-for",
                    "keep_ms",
                    type=Duration(unlimited=True),
                    help="Forget ids that are older than this as well: 28d, unlimited.",
                ),
                click.option(
                    "--on-conflict",
                    type=click.Choice(["refuse", "keep-first"]),
                    help="What becomes of a message with a known id and other content: it fails, or"
                    " is dropped as a duplicate.  [default: refuse]",
                ),
            ]
        ):
            function = option(function)
        return function

    return add


def _dedup(
    present: IdDedup | None, window_bytes: int | None, keep_ms: int | None, on_conflict: str | None
) -> IdDedup | Literal["off"] | None:
    """The dedup that the options make of the present one; None without any of them."""
    from semel.client.admin.topic_settings import IdDedup

    given: dict[str, Any] = {"keep_ms": keep_ms, "on_conflict": on_conflict}
    given = {name: value for name, value in given.items() if value is not None}
    if window_bytes == 0:
        if given:
            raise click.UsageError("--dedup-by-id none: leave --dedup-for and --on-conflict out")
        return "off"
    if window_bytes is not None:
        given["window_bytes"] = window_bytes
    if not given:
        return None
    if present is not None:
        return replace(present, **given)
    if window_bytes is None:
        raise click.UsageError(
            "--dedup-for and --on-conflict are about message ids: give --dedup-by-id, too"
        )
    return IdDedup(**given)


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
        "semel topic create events --queues 8 --dedup-by-id 4GiB --dedup-for 28d",
        "semel topic create reminders --queues 8 --delay-per-second-max 50000",
        "semel topic create users --cleanup compact --tombstones-for 24h",
        "semel topic create audit --retention unlimited --tier-after 1h --local-retention 6h",
        "semel topic create metrics --storage memory --memory-bytes 1GiB",
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
@_storage
@_memory_bytes
@_compaction_options
@_dedup_options(ends=False)
@client_options
def create(
    name: str,
    queues: int,
    if_not_exists: bool,
    groups: list[int] | None,
    cleanup: str | None,
    tombstone_ms: int | None,
    lag_ms: int | None,
    window_bytes: int | None,
    keep_ms: int | None,
    on_conflict: str | None,
    bootstrap: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Creates a topic and returns once it can be written."""
    out = render.Output(as_json=as_json)
    dedup: Any = _dedup(None, window_bytes, keep_ms, on_conflict)
    compaction: Any = _compaction(None, cleanup, tombstone_ms, lag_ms, settings)
    with open_client(bootstrap) as client:
        created = client.admin.create_topic(
            name,
            queues=queues,
            if_not_exists=if_not_exists,
            groups=groups,
            dedup=dedup,
            compaction=compaction,
            **settings,
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

    Messages that are not due yet appear with their number and the time when the first is due. A
    topic with dedup by id shows how far its window reaches, and what it did; a tiered one how much
    of it is in the object store.
    """
    with open_client(bootstrap) as client:
        found = client.admin.describe_topic(name)
        moves = client.admin.list_moves(name)
    drawn = queue_table(
        found.queues,
        moves,
        title=f"{found.name} · retention {_retention(found.settings)}"
        f" · messages up to {render.size(found.settings.message_bytes_max)}"
        + (f" · {cleaned}" if (cleaned := _cleanup(found.settings)) else "")
        + (f" · {compared}" if (compared := _compared(found.settings)) else "")
        + (f" · {limited}" if (limited := _limited(found.settings)) else "")
        + (f" · {tiered}" if (tiered := _tiered(found.settings)) else "")
        + (f" · {held}" if (held := _held(found)) else ""),
    )
    described = found.as_dict() | {"moves": [each.as_dict() for each in moves]}
    out = render.Output(as_json=as_json)
    out.show(described, drawn)
    if found.dedup is not None and not as_json:
        click.echo(_reach(found.dedup))
    if not as_json and (stored := _stored(found)):
        click.echo(stored)


@topic.command(
    epilog=examples(
        "semel topic alter orders --retention 12h",
        "semel topic alter orders --queues 16",
        "semel topic alter events --dedup-by-id 8GiB --on-conflict keep-first",
        "semel topic alter events --dedup-by-id none",
        "semel topic alter reminders --delay-per-second-max none",
        "semel topic alter users --cleanup compact --tombstones-for 7d",
        "semel topic alter audit --tier-after none",
    )
)
@click.argument("name", shell_complete=completion.topics)
@click.option(
    "--queues",
    type=click.IntRange(1, 65_536),
    help="Number of open queues to reach by splitting the widest ones; it never falls.",
)
@_settings_options
@_memory_bytes
@_compaction_options
@_dedup_options(ends=True)
@client_options
def alter(
    name: str,
    cleanup: str | None,
    tombstone_ms: int | None,
    lag_ms: int | None,
    window_bytes: int | None,
    keep_ms: int | None,
    on_conflict: str | None,
    bootstrap: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Changes a topic's settings; those that are left out stay."""
    ids = (window_bytes, keep_ms, on_conflict)
    cleaning = (cleanup, tombstone_ms, lag_ms)
    if all(value is None for value in (*ids, *cleaning, *settings.values())):
        raise click.UsageError("nothing to alter: name a setting, or --queues")
    dedup: Any = _dedup(None, *ids) if window_bytes == 0 else None
    with open_client(bootstrap) as client:
        if dedup is None and any(each is not None for each in ids):
            dedup = _dedup(client.admin.describe_topic(name).settings.dedup, *ids)
        compaction: Any = None
        if any(each is not None for each in cleaning):
            present = client.admin.describe_topic(name).settings
            compaction = _compaction(present, *cleaning, settings)
        if (
            compaction is not None
            or dedup is not None
            or any(value is not None for value in settings.values())
        ):
            client.admin.alter_topic(name, dedup=dedup, compaction=compaction, **settings)
        found = client.admin.describe_topic(name)
    out = render.Output(as_json=as_json)
    opened = sum(not queue.sealed for queue in found.queues)
    text = f"topic {name} altered: {opened} queues, retention {_retention(found.settings)}"
    text += f", {cleaned}" if (cleaned := _cleanup(found.settings)) else ""
    text += f", {compared}" if (compared := _compared(found.settings)) else ""
    text += f", {limited}" if (limited := _limited(found.settings)) else ""
    text += f", {tiered}" if (tiered := _tiered(found.settings)) else ""
    text += f", {held}" if (held := _held(found)) else ""
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


def _reach(dedup: TopicDedup) -> str:
    """How far dedup by id reaches, and what it did, for people."""
    age = duration(int(dedup.oldest_age_s) * 1_000) if dedup.ids else "0s"
    return (
        f"dedup by id: {dedup.ids:,} ids, {render.size(dedup.bytes)} of"
        f" {render.size(dedup.window_bytes)}, the oldest {age} old · {dedup.lookups:,} messages"
        f" with ids, {dedup.hits:,} duplicates, {dedup.conflicts:,} conflicts,"
        f" {dedup.evictions:,} forgotten"
    )


def _compared(settings: TopicSettings) -> str:
    """How a topic compares ids, for people; empty if it does not."""
    dedup = settings.dedup
    if dedup is None:
        return ""
    text = f"dedup by id within {render.size(dedup.window_bytes)}"
    text += f" and {duration(dedup.keep_ms)}" if dedup.keep_ms > 0 else ""
    return text + (", the first of a conflict stays" if dedup.on_conflict == "keep-first" else "")


def _limited(settings: TopicSettings) -> str:
    """How much may be due in a second, for people; empty without a limit."""
    limit = settings.delay_per_second_max
    return "" if limit < 0 else f"at most {limit:,} messages due in one second"


def _tiered(settings: TopicSettings) -> str:
    """When messages go to the object store, for people; empty if they do not."""
    if settings.tier_after_ms < 0:
        return ""
    text = f"tiered after {duration(settings.tier_after_ms)}"
    local_ms = settings.local_retention_ms
    return text + (f", {duration(local_ms)} in the brokers" if local_ms > 0 else "")


def _stored(topic: TopicDescription) -> str:
    """What of a topic is in the object store, for people; empty if it is not tiered and nothing
    is."""
    tiered = cold = 0
    for queue in topic.queues:
        tiered += max(0, queue.tier_end_offset - queue.log_start_offset)
        cold += max(0, queue.local_start_offset - queue.log_start_offset)
    if not tiered and topic.settings.tier_after_ms < 0:
        return ""
    return f"object store: {tiered:,} messages, {cold:,} of them nowhere else"


def _held(topic: TopicDescription) -> str:
    """How much of a topic may be in memory, and what is lost of it, for people; empty for one in
    the log."""
    if topic.settings.storage != "memory":
        return ""
    lost = sum(queue.lost_messages for queue in topic.queues)
    text = f"in memory, up to {render.size(topic.settings.memory_bytes)}"
    return text + (f", {lost:,} messages were lost" if lost else "")


def _retention(settings: TopicSettings) -> str:
    text = duration(settings.retention_ms)
    limit = settings.retention_bytes
    return text if limit < 0 else f"{text}, {render.size(limit)} a queue"
