"""`semel acl grant|revoke|list|check` and `semel whoami`: who may do what.

Not here: what rules mean (`semel.protos.security.rules`).
"""

from __future__ import annotations

import datetime

import click

from semel.console import render
from semel.console.options import client_options, examples, open_client


@click.group()
def acl() -> None:
    """Rules of who may do what, and groups of users."""


@acl.command(
    epilog=examples(
        "semel acl grant 'allow user:alice write topic:orders-*'",
        "semel acl grant 'deny * read topic:salaries' --member payroll=user:alice",
        more="Actions are describe, read, write, create, alter, delete (topic:NAME), commit"
        " (consumer-group:NAME), own-name (producer:NAME), transact (transaction:ID), operate and"
        " security (cluster). A rule is in force on every node within a second.",
    )
)
@click.argument("rules", nargs=-1, metavar="RULE…")
@click.option("--member", "members", multiple=True, metavar="GROUP=user:NAME", help="A new member.")
@client_options
def grant(rules: tuple[str, ...], members: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Adds rules and members of groups.

    A rule is `allow|deny PRINCIPAL ACTION RESOURCE`.
    """
    _some(rules, members)
    with open_client(bootstrap) as client:
        changed = client.admin.change_access_rules(add=rules, add_members=_by_group(members))
    render.Output(as_json=as_json).show(
        {"changed": changed}, "granted" if changed else "nothing to do: all of it is so already"
    )


@acl.command(
    epilog=examples(
        "semel acl revoke 'allow user:alice write topic:orders-*'",
        "semel acl revoke --member payroll=user:alice",
        more="Streams that used a right end when it is taken away.",
    )
)
@click.argument("rules", nargs=-1, metavar="RULE…")
@click.option("--member", "members", multiple=True, metavar="GROUP=user:NAME", help="Who leaves.")
@client_options
def revoke(rules: tuple[str, ...], members: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Removes rules and members of groups."""
    _some(rules, members)
    with open_client(bootstrap) as client:
        changed = client.admin.change_access_rules(remove=rules, remove_members=_by_group(members))
    render.Output(as_json=as_json).show(
        {"changed": changed}, "revoked" if changed else "nothing to do: there is none of it"
    )


@acl.command("list", epilog=examples("semel acl list"))
@client_options
def list_rules(bootstrap: str, as_json: bool) -> None:
    """Lists all rules and groups."""
    with open_client(bootstrap) as client:
        found = client.admin.access_rules()
    lines = [
        *found.rules,
        *(f"group:{name} = {' '.join(members)}" for name, members in found.groups.items()),
    ]
    drawn = "\n".join(lines) or "no rules: only administrators may do anything"
    render.Output(as_json=as_json).show(found.as_dict(), drawn)


@acl.command(
    epilog=examples(
        "semel acl check user:alice write topic:orders",
        more="The exit status is 0 if it is allowed, and 1 if not.",
    )
)
@click.argument("principal")
@click.argument("action")
@click.argument("resource")
@client_options
def check(principal: str, action: str, resource: str, bootstrap: str, as_json: bool) -> int:
    """Tells whether a user may do something, and which rule decides."""
    with open_client(bootstrap) as client:
        found = client.admin.check_access(principal, action, resource)
    drawn = f"{'yes' if found.allowed else 'no'}: {found.reason}"
    render.Output(as_json=as_json).show(found.as_dict(), drawn)
    return 0 if found.allowed else 1


@click.command(epilog=examples("semel whoami"))
@client_options
def whoami(bootstrap: str, as_json: bool) -> None:
    """Shows who you are for the cluster."""
    with open_client(bootstrap) as client:
        found = client.admin.who_am_i()
    lines = [found.principal, *found.groups]
    lines += ["administrator: no rule limits it"] if found.administrator else []
    if found.login and found.expires_s is not None:
        until = datetime.datetime.fromtimestamp(found.expires_s, datetime.UTC)
        lines.append(f"by {found.login}, until {until:%Y-%m-%d %H:%M:%S} UTC")
    if found.narrowed_to is not None:
        lines.append(f"narrowed to: {', '.join(found.narrowed_to) or 'nothing'}")
    lines += [] if found.checked else ["no rules are checked in this cluster"]
    render.Output(as_json=as_json).show(found.as_dict(), "\n".join(lines))


def _some(rules: tuple[str, ...], members: tuple[str, ...]) -> None:
    if not rules and not members:
        raise click.UsageError("name a rule or a --member")


def _by_group(members: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in members:
        group, equals, user = member.partition("=")
        if not equals:
            raise click.UsageError(f"--member {member!r}: write GROUP=user:NAME")
        found.setdefault(group, []).append(user)
    return found
