"""`semel quota set|remove|list|show`: how much users and topics may have.

Not here: what quotas mean (`semel.protos.security.quotas`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import render
from semel.console.options import client_options, examples, open_client

if TYPE_CHECKING:
    from semel.client import QuotaInfo

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_A_SECOND: Final = ("write-bytes", "read-bytes", "messages", "requests")


@click.group()
def quota() -> None:
    """How much users and topics may send, read and have."""


@quota.command(
    "set",
    epilog=examples(
        "semel quota set user:alice write-bytes=10M messages=5000",
        "semel quota set '*' read-bytes=50M requests=200 topics=20",
        "semel quota set 'topic:clicks-*' write-bytes=5M",
        more="A subject is user:NAME, group:NAME (all its members together), * (each user without a"
        " quota of that kind), or topic:NAME, with a * at the end for each topic whose name begins"
        " so. Kinds are write-bytes, read-bytes, messages and requests, a second; for users"
        " producers, groups and topics; for topics delayed-bytes and staged-bytes.",
    ),
)
@click.argument("subject")
@click.argument("limits", nargs=-1, required=True, metavar="KIND=LIMIT…")
@client_options
def set_limits(subject: str, limits: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Sets limits of a user, a group, all other users, or a topic."""
    wanted: dict[str, int] = {}
    for text in limits:
        kind, _, value = text.partition("=")
        if kind in wanted:
            raise click.UsageError(f"{kind} is given twice")
        wanted[kind] = _limit(text, value)
    with open_client(bootstrap) as client:
        changed = client.admin.set_quotas(subject, wanted)
    render.Output(as_json=as_json).show(
        {"changed": changed}, "set" if changed else "nothing to do: all of it is so already"
    )


@quota.command(
    epilog=examples(
        "semel quota remove user:alice write-bytes",
        "semel quota remove 'topic:clicks-*'",
        more="Who waits for a quota that is removed goes on within a second.",
    )
)
@click.argument("subject")
@click.argument("kinds", nargs=-1, metavar="[KIND]…")
@client_options
def remove(subject: str, kinds: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Removes limits of a subject, without KIND all of them."""
    with open_client(bootstrap) as client:
        changed = client.admin.remove_quotas(subject, kinds)
    render.Output(as_json=as_json).show(
        {"changed": changed}, "removed" if changed else "nothing to do: there is none"
    )


@quota.command("list", epilog=examples("semel quota list", "semel quota list --json"))
@client_options
def list_all(bootstrap: str, as_json: bool) -> None:
    """Lists all quotas."""
    with open_client(bootstrap) as client:
        found = client.admin.quotas()
    _show(found, "no quotas: nobody is limited", as_json=as_json)


@quota.command(
    epilog=examples(
        "semel quota show user:alice",
        "semel quota show topic:clicks-eu --json",
        more="Each limit is shown with the subject that it was set for: the user, a group, or *.",
    )
)
@click.argument("of", metavar="user:NAME|topic:NAME")
@client_options
def show(of: str, bootstrap: str, as_json: bool) -> None:
    """Shows the limits that apply to one user or topic."""
    with open_client(bootstrap) as client:
        found = client.admin.quotas(of)
    _show(found, f"no quota applies to {of}", as_json=as_json)


def _show(found: list[QuotaInfo], none: str, *, as_json: bool) -> None:
    drawn: Any = render.table(
        ["subject", "kind", "limit"],
        [
            [one.subject, one.kind, f"{one.limit:,}{' /s' if one.kind in _A_SECOND else ''}"]
            for one in found
        ],
    )
    render.Output(as_json=as_json).show(
        {"quotas": [one.as_dict() for one in found]}, drawn if found else none
    )


def _limit(text: str, value: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", value.lower().replace("_", ""))
    if match is None:
        raise click.UsageError(
            f"{text!r}: write KIND=LIMIT with a number from 0, such as messages=5000 or"
            " write-bytes=10M"
        )
    return int(float(match[1]) * _UNITS[match[2]])
