"""`semel security token` and `semel security user`: for clients that have no certificate.

Not here: the files (`authority.py`), logging in (`semel.client.login`).
"""

from __future__ import annotations

import datetime
import sys
import time
from pathlib import Path

import click

from semel.console import render
from semel.console.options import client_options, examples, json_option, open_client
from semel.console.units import Duration


@click.command(
    epilog=examples(
        "semel security token --user alice --expires 30d --out token",
        "semel security token --dir DIR --user etl --expires 8h --allow 'write topic:orders-*'",
        more="DIR is that of `semel security init`, or of `semel up --secure`. The token is good"
        " for what the rules let its user do, and with --allow for nothing but that. It goes to"
        " stdout, or to FILE, which others cannot read.",
    )
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("semel-security"),
    show_default=True,
    help="Directory with the key that signs tokens.",
)
@click.option("--user", required=True, metavar="NAME", help="Whose token it is, as in user:NAME.")
@click.option("--expires", type=Duration(), required=True, help="For how long, such as 8h or 30d.")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="'ACTION RESOURCE'",
    help="Narrow it to this right; may be repeated.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there."
)
@json_option
def token(
    directory: Path,
    user: str,
    expires: int,
    allowed: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Signs a token, with which a client logs in."""
    from semel.console.authority import Authority, within_up, write_file
    from semel.protos.errors import InvalidRequest
    from semel.protos.security.rules import Scope

    try:
        from semel.protos.security.tokens import new_token
    except ImportError:
        raise InvalidRequest(
            "tokens need PyJWT, which is not installed: pip install 'semel[security]'"
        ) from None
    authority = Authority(within_up(directory))
    expires_s = int(time.time()) + expires // 1000
    made = new_token(
        authority.token_key(),
        user=user,
        cluster=authority.cluster,
        expires_s=expires_s,
        scopes=tuple(map(Scope.parse, allowed)) if allowed else None,
    )
    until = datetime.datetime.fromtimestamp(expires_s, datetime.UTC)
    said = {"user": user, "expires": until.isoformat(), "rights": list(allowed) or None}
    if out is None:
        render.Output(as_json=as_json).show({"token": made, **said}, made)
        return
    write_file(out, f"{made}\n".encode(), secret=True)
    render.Output(as_json=as_json).show(
        {"path": str(out), **said}, f"{out}: user {user}, until {until:%Y-%m-%d %H:%M} UTC"
    )


@click.group()
def user() -> None:
    """Users who log in with a password."""


_password_option = click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File whose first line is the password. [default: you are asked]",
)


@user.command(
    epilog=examples(
        "semel security user add alice",
        "semel security user add alice --scram",
        more="What SCRAM checks a password by is easier to guess from than the hash that is kept of"
        " every password, for whoever steals the controllers' metadata: so it is made only for"
        " users of Kafka's clients who need it.",
    )
)
@click.argument("name")
@_password_option
@click.option("--scram", is_flag=True, help="For SCRAM at Kafka gateways as well.")
@client_options
def add(name: str, password_file: Path | None, scram: bool, bootstrap: str, as_json: bool) -> None:
    """Adds a user."""
    password = _password(password_file)
    with open_client(bootstrap) as client:
        client.admin.add_user(name, password, scram=scram)
    render.Output(as_json=as_json).show({"user": name, "added": True}, f"user {name} added")


@user.command(epilog=examples("semel security user passwd alice --password-file new"))
@click.argument("name")
@_password_option
@click.option(
    "--scram/--no-scram",
    default=None,
    help="For SCRAM at Kafka gateways as well, or not. [default: as before]",
)
@client_options
def passwd(
    name: str, password_file: Path | None, scram: bool | None, bootstrap: str, as_json: bool
) -> None:
    """Gives a user a new password."""
    password = _password(password_file)
    with open_client(bootstrap) as client:
        client.admin.change_password(name, password, scram=scram)
    render.Output(as_json=as_json).show(
        {"user": name, "changed": True}, f"user {name} has a new password"
    )


@user.command(epilog=examples("semel security user remove alice"))
@click.argument("name")
@client_options
def remove(name: str, bootstrap: str, as_json: bool) -> None:
    """Removes a user.

    Logins that it has go on until their certificates end, an hour at most.
    """
    with open_client(bootstrap) as client:
        removed = client.admin.remove_user(name)
    render.Output(as_json=as_json).show(
        {"user": name, "removed": removed},
        f"user {name} removed" if removed else f"there is no user {name}",
    )


@user.command("list", epilog=examples("semel security user list --json"))
@client_options
def list_users(bootstrap: str, as_json: bool) -> None:
    """Lists the users who have a password."""
    with open_client(bootstrap) as client:
        found = client.admin.list_users()
    out = render.Output(as_json=as_json)
    if as_json:
        out.emit({"users": [one.as_dict() for one in found]})
        return
    rows = [
        [
            one.user,
            f"{datetime.datetime.fromtimestamp(one.changed_s, datetime.UTC):%Y-%m-%d %H:%M}",
            one.scram,
        ]
        for one in found
    ]
    out.draw(render.table(["user", "password of", "SCRAM"], rows))


def _password(path: Path | None) -> str:
    """Raises UsageError where nobody can be asked, and InvalidRequest for a file that others can
    read."""
    from semel.client.login import check_secret_mode, read_secret

    if path is not None:
        check_secret_mode(path)
        return read_secret(path, "the password")
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --password-file")
    answer: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return answer
