"""`semel security`: a cluster's CA and certificates, without any other program.

Not here: the files (`authority.py`), tokens and users (`logins.py`), using all that
(`semel.protos.security`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from semel.console import logins, render
from semel.console.options import examples, json_option

if TYPE_CHECKING:
    from semel.console.authority import Authority, Issued

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _directory_option(function: _Function) -> _Function:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("semel-security"),
        show_default=True,
        help="Directory of the CA and all certificates; keep it off the nodes.",
    )(function)


def _days_option(function: _Function) -> _Function:
    return click.option(
        "--days",
        type=click.IntRange(1, 36_500),
        default=365,
        show_default=True,
        help="How long the certificates are valid.",
    )(function)


_bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT[,…]",
    default="",
    help="The controllers, for the client's file client.toml.",
)


@click.group()
def security() -> None:
    """Certificates, tokens and users: make a CA, issue, renew, show."""


security.add_command(logins.token)
security.add_command(logins.user)


@security.command(
    epilog=examples(
        "semel security init --cluster-id orders --brokers 3 --controllers 3"
        " --bootstrap 10.0.0.1:7070,10.0.0.2:7070,10.0.0.3:7070",
        more="Copy each node's directory to its machine, and give it with --tls-dir; the CA's key"
        " stays here.",
    )
)
@_directory_option
@click.option("--cluster-id", required=True, help="Id of the cluster, as its nodes get it.")
@click.option("--brokers", type=click.IntRange(0, 1000), default=3, show_default=True)
@click.option("--controllers", type=click.IntRange(0, 5), default=3, show_default=True)
@_bootstrap_option
@click.option(
    "--login",
    metavar="HOST:PORT[,…]",
    default="",
    help="The controllers' ports for logins (--login-listen), for login/client.toml.",
)
@_days_option
@click.option(
    "--ca-days",
    type=click.IntRange(1, 36_500),
    default=3650,
    show_default=True,
    help="How long the CA is valid.",
)
@json_option
def init(
    directory: Path,
    cluster_id: str,
    brokers: int,
    controllers: int,
    bootstrap: str,
    login: str,
    days: int,
    ca_days: int,
    as_json: bool,
) -> None:
    """Makes a CA, and certificates for nodes and an administrator."""
    from semel.console.authority import Authority
    from semel.protos.security.identity import ADMIN, BROKER, CONTROLLER, Identity

    authority = Authority.create(directory, cluster_id, ca_days)
    authority.renew_logins(ca_days)
    if login:
        authority.write_login_file(bootstrap, login)
    numbers = [(CONTROLLER, n) for n in range(1, controllers + 1)]
    numbers += [(BROKER, n) for n in range(1, brokers + 1)]
    issued = [authority.issue(Identity(kind, str(n), cluster_id), days) for kind, n in numbers]
    issued.append(authority.issue(Identity(ADMIN, "admin", cluster_id), days, bootstrap))
    _show(authority, issued, as_json=as_json)


@security.command(
    epilog=examples(
        "semel security issue --client loader",
        "semel security issue --broker 4",
        "semel security issue --client kafka-gateway --host kafka1.example --host 10.0.0.7",
        more="An identity that has a certificate gets a new one in its place.",
    )
)
@_directory_option
@click.option("--client", "clients", multiple=True, metavar="NAME", help="A program's name.")
@click.option("--admin", "admins", multiple=True, metavar="NAME", help="A person who operates.")
@click.option("--broker", "brokers", multiple=True, type=click.IntRange(1), help="A node's number.")
@click.option("--controller", "controllers", multiple=True, type=click.IntRange(1))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address under which others reach the --client, which serves TLS there as a"
    " Kafka gateway does: also makes server.pem.",
)
@_bootstrap_option
@_days_option
@json_option
def issue(
    directory: Path,
    clients: tuple[str, ...],
    admins: tuple[str, ...],
    brokers: tuple[int, ...],
    controllers: tuple[int, ...],
    hosts: tuple[str, ...],
    bootstrap: str,
    days: int,
    as_json: bool,
) -> None:
    """Issues certificates; each option may be repeated."""
    from semel.console.authority import Authority
    from semel.protos.security.identity import ADMIN, BROKER, CLIENT, CONTROLLER, Identity

    wanted = [(CLIENT, name) for name in clients] + [(ADMIN, name) for name in admins]
    wanted += [(BROKER, str(n)) for n in brokers] + [(CONTROLLER, str(n)) for n in controllers]
    if not wanted:
        raise click.UsageError("name whom: --client, --admin, --broker or --controller")
    if hosts and [kind for kind, _ in wanted] != [CLIENT]:
        raise click.UsageError("--host: name one --client, which serves under it")
    authority = Authority(directory)
    identities = [Identity(kind, name, authority.cluster) for kind, name in wanted]
    for identity in identities:
        authority.place(identity)  # raises before anything is issued
    issued = [authority.issue(identity, days, bootstrap) for identity in identities]
    if hosts:
        authority.issue_server(identities[0], hosts, days)
    _show(authority, issued, as_json=as_json)


@security.command(
    epilog=examples(
        "semel security renew --within 30",
        more="A change of the CA: `renew --ca`, copy all ca.pem to their machines; `renew`, copy"
        " all files; `renew --forget-old-ca`, copy all ca.pem. Programs notice replaced files by"
        " themselves, and nothing is restarted. The clients' CA and the key of tokens: `renew"
        " --logins`, copy clients-ca.pem to all nodes, then the rest to the controllers; when all"
        " tokens have been replaced, and at least an hour later, `renew --forget-old-logins`, and"
        " copy again.",
    )
)
@_directory_option
@_days_option
@click.option(
    "--within", type=click.IntRange(0), metavar="DAYS", help="Only what expires within so long."
)
@click.option(
    "--ca", "new_ca", is_flag=True, help="Make a new CA, which is trusted beside the old."
)
@click.option("--forget-old-ca", is_flag=True, help="Trust the newest CA alone.")
@click.option(
    "--logins",
    is_flag=True,
    help="Make a new clients' CA and a new key of tokens, which are trusted beside the old.",
)
@click.option(
    "--forget-old-logins", is_flag=True, help="Trust the newest of these alone: older tokens end."
)
@json_option
def renew(
    directory: Path,
    days: int,
    within: int | None,
    new_ca: bool,
    forget_old_ca: bool,
    logins: bool,
    forget_old_logins: bool,
    as_json: bool,
) -> None:
    """Issues all certificates anew, or changes a CA."""
    from semel.console.authority import Authority

    if new_ca + forget_old_ca + logins + forget_old_logins > 1:
        raise click.UsageError("--ca, --forget-old-ca and the others are steps: see the help")
    authority = Authority(directory)
    if new_ca:
        authority.add_ca()
        issued: Sequence[Issued] = ()
    elif forget_old_ca:
        authority.forget_old_cas()
        issued = ()
    elif logins:
        authority.renew_logins()
        issued = ()
    elif forget_old_logins:
        authority.forget_old_logins()
        issued = ()
    else:
        issued = authority.renew(days, within)
    _show(authority, issued, as_json=as_json)


@security.command(epilog=examples("semel security show", "semel security show cert.pem"))
@_directory_option
@click.argument("certificates", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@json_option
def show(directory: Path, certificates: tuple[Path, ...], as_json: bool) -> None:
    """Shows who has certificates, and until when they are valid."""
    from semel.console import authority

    if certificates:
        _print([authority.show(path) for path in certificates], as_json=as_json)
        return
    known = authority.Authority(directory)
    _show(known, list(known.issued()), as_json=as_json)


def _show(authority: Authority, issued: Sequence[Issued], *, as_json: bool) -> None:
    """Prints the CA and the clients' CA, then certificates."""
    found = [("ca", f"CA of cluster {authority.cluster}", authority.ca_path, authority.not_after)]
    if authority.clients_not_after is not None:
        found.append(
            (
                "clients-ca",
                "clients' CA, for those who log in,",
                authority.clients_ca_path,
                authority.clients_not_after,
            )
        )
    for kind, name, path, not_after in found:
        if as_json:
            render.Output(as_json=True).emit(
                {
                    "kind": kind,
                    "cluster_id": authority.cluster,
                    "expires": not_after.isoformat(),
                    "path": str(path),
                }
            )
        else:
            print(f"{name} in {path}, until {_until(not_after)}")
    _print(issued, as_json=as_json)


def _print(issued: Sequence[Issued], *, as_json: bool) -> None:
    out = render.Output(as_json=as_json)
    if as_json:
        for one in issued:
            out.emit(one.as_dict())
    elif issued:
        rows = [
            [one.identity.kind, one.identity.name, _until(one.not_after), str(one.directory)]
            for one in issued
        ]
        out.draw(render.table(["kind", "name", "until", "directory"], rows))


def _until(moment: datetime.datetime) -> str:
    left = moment - datetime.datetime.now(datetime.UTC)
    day = f"{moment:%Y-%m-%d}"
    return f"{day} ({left.days} days)" if left.total_seconds() > 0 else f"{day}, EXPIRED"
