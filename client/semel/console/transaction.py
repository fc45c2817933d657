"""`semel transaction list|describe|abort`: shows transactions, and ends open ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from semel.console import completion, render
from semel.console.options import client_options, confirm, examples, open_client, yes_option

if TYPE_CHECKING:
    from semel.client import Client, TransactionInfo


@click.group()
def transaction() -> None:
    """Transactions: list them, describe one, abort open ones."""


@transaction.command(
    "list", epilog=examples("semel transaction list", "semel transaction list --open")
)
@click.option("--open", "only_open", is_flag=True, help="Only transactions that are open.")
@client_options
def list_transactions(only_open: bool, bootstrap: str, as_json: bool) -> None:
    """Lists transactions, with the messages that they have staged."""
    with open_client(bootstrap) as client:
        found = client.transactions.list()
    if only_open:
        found = [one for one in found if one.state != "idle"]
    drawn: Any = render.table(
        ["transaction", "query", "state", "last epoch", "open epoch", "messages", "bytes", "age"],
        [_row(one) for one in found],
    )
    out = render.Output(as_json=as_json)
    out.show(
        {"transactions": [one.as_dict() for one in found]}, drawn if found else "no transactions"
    )


@transaction.command(epilog=examples("semel transaction describe booking"))
@click.argument("name", metavar="ID", shell_complete=completion.transactions)
@client_options
def describe(name: str, bootstrap: str, as_json: bool) -> int:
    """Shows one transaction, and what it has staged, by broker group."""
    with open_client(bootstrap) as client:
        found = client.transactions.describe(name)
        names = _topic_names(client) if found is not None and found.progress else {}
    if found is None:
        return _unknown(name)
    title = (
        f"{name} · {found.state} · query {found.query_id or 'none'} · last epoch"
        f" {_epoch(found.last_epoch)} · coordinated by group {found.coordinator or '?'}"
    )
    drawn = render.table(
        ["group", "state", "epoch", "messages", "bytes", "writers"],
        [list(part) for part in found.parts],
        title=title,
    )
    value = found.as_dict()
    for each in value["progress"]:
        each["topic"] = names.get(each["topic_id"])
    if found.progress:
        drawn = _with_progress(drawn, found, names)
    render.Output(as_json=as_json).show(value, drawn)
    return 0


@transaction.command(
    epilog=examples(
        "semel transaction abort booking",
        "semel transaction abort booking --yes --json",
        more="What is committed stays committed, and is only published sooner. An open transaction"
        " ends by itself after a while, and nobody waits for it.",
    )
)
@click.argument("name", metavar="ID", shell_complete=completion.transactions)
@yes_option
@client_options
def abort(name: str, yes: bool, bootstrap: str, as_json: bool) -> int:
    """Aborts every open step of a transaction, for good."""
    with open_client(bootstrap) as client:
        before = client.transactions.describe(name)
        if before is None:
            return _unknown(name)
        if before.state != "idle":
            on_hold = render.plural(before.messages, "message")
            confirm(f"Give up {on_hold} of {name} ({before.state})?", yes=yes, as_json=as_json)
        ended = client.transactions.end(name)
        after = client.transactions.describe(name)
    out = render.Output(as_json=as_json)
    value = {
        "transaction_id": name,
        "before": None if ended is None else ended.as_dict(),
        "after": None if after is None else after.as_dict(),
    }
    if after is not None and after.state != "idle":
        render.error(
            f"transaction {name} is {after.state} again: a program is at work under it; stop it, or"
            " call this again"
        )
        return 1
    if before.state == "idle":
        text = (
            f"nothing of {name} was open; its last committed epoch is {_epoch(before.last_epoch)}"
        )
    elif after is not None and after.last_epoch > before.last_epoch:
        text = f"epoch {after.last_epoch} of {name} was committed meanwhile"
    elif before.state == "publishing":
        text = f"epoch {before.last_epoch} of {name} is committed, and published now"
    else:
        text = f"{name}: {render.plural(before.messages, 'message')} given up"
    out.show(value, text)
    return 0


def _topic_names(client: Client) -> dict[int, str]:
    """The names of all topics that the caller may see, by id."""
    return {topic.topic_id: topic.name for topic in client.admin.list_topics()}


def _with_progress(drawn: Any, found: TransactionInfo, names: Mapping[int, str]) -> Any:
    from rich.console import Group

    table = render.table(
        ["group", "state", "consumer group", "topic", "queue", "offset"],
        [
            [*one[:3], names.get(one.topic_id, f"id {one.topic_id}"), one.queue, one.offset]
            for one in found.progress
        ],
        title="commits of consumer groups",
    )
    return Group(drawn, table)


def _row(one: TransactionInfo) -> list[Any]:
    is_open = one.state != "idle"
    return [
        one.transaction_id,
        one.query_id or "",
        one.state,
        _epoch(one.last_epoch),
        one.open_epoch,
        one.messages if is_open else None,
        one.bytes if is_open else None,
        render.brief(one.age_ms) if one.age_ms else None,
    ]


def _epoch(number: int) -> str:
    return "none" if number < 0 else str(number)


def _unknown(name: str) -> int:
    render.error(f"no broker knows a transaction {name}: see `semel transaction list`")
    return 1
