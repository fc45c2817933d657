"""Options that many commands share, and the client that they connect."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from semel.console.units import Duration

if TYPE_CHECKING:
    from semel.client import Client

_Function = TypeVar("_Function", bound=Callable[..., Any])

FILE_VARIABLES: Final = ("SEMEL_CLIENT_CONFIG", "SEMEL_PROFILE")
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:7070"

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line, and nothing else."
)


def _choose_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Makes the file, or the profile, that of this process: the SDK reads it from there."""
    if value is None:
        return
    if value == "":
        raise click.BadParameter("it is empty", ctx, parameter)
    for name in FILE_VARIABLES:
        os.environ.pop(name, None)
    os.environ["SEMEL_CLIENT_CONFIG" if parameter.name == "client_config" else "SEMEL_PROFILE"] = (
        value
    )


def _choose_bootstrap(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    """The controllers: as the command line says, the file, the environment, or by default."""
    if value is not None:
        return value
    if any(os.environ.get(name) for name in FILE_VARIABLES) and not ctx.resilient_parsing:
        from semel.client.client_file import chosen

        if (found := chosen(os.environ).bootstrap) != "":
            return found
    return os.environ.get("SEMEL_BOOTSTRAP") or DEFAULT_BOOTSTRAP


def _choose_token_file(_: click.Context, __: click.Parameter, value: str | None) -> None:
    """Makes the file that of this process, in the place of any other token."""
    if value is not None:
        os.environ.pop("SEMEL_TOKEN", None)
        os.environ["SEMEL_TOKEN_FILE"] = value


def file_options(function: _Function) -> _Function:
    """Adds --client-config, --profile and --token-file."""
    config = click.option(
        "--client-config",
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_choose_file,
        help="TOML file with bootstrap and ca, and certificate and key, or login.  [env var:"
        " SEMEL_CLIENT_CONFIG]",
    )
    profile = click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_choose_file,
        help="The same from a table of ~/.config/semel/profiles.toml.  [env var: SEMEL_PROFILE]",
    )
    token = click.option(
        "--token-file",
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_choose_token_file,
        help="Log in with the token in FILE, where the client's file says.  [env var:"
        " SEMEL_TOKEN_FILE, or the token itself in SEMEL_TOKEN]",
    )
    return config(profile(token(function)))


def bootstrap_option(function: _Function) -> _Function:
    """Adds --bootstrap, --client-config, --profile and --token-file."""
    bootstrap = click.option(
        "--bootstrap",
        callback=_choose_bootstrap,
        metavar="HOST:PORT[,…]",
        help="The controllers.  [env var: SEMEL_BOOTSTRAP; default: 127.0.0.1:7070]",
    )
    return bootstrap(file_options(function))


yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")


def examples(*lines: str, more: str = "") -> str:
    """The end of a command's help: example command lines, and further explanation."""
    head = "\b\n" + ("Example:" if len(lines) == 1 else "Examples:")
    text = "\n".join([head, *(f"  {line}" for line in lines)])
    return f"{text}\n\n{more}" if more else text


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Asks before something is destroyed.

    Raises UsageError where nobody can be asked, and Abort when the answer is no.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: pass --yes")
    click.confirm(question, abort=True, err=True)


def watch_options(function: _Function) -> _Function:
    """Adds --watch and --every, passed on as `every_s`: None means to look only once."""

    @click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
    @click.option("--every", type=Duration(), default="2s", show_default=True, help="For --watch.")
    @functools.wraps(function)
    def watching(*args: Any, watch: bool, every: int, **kwargs: Any) -> Any:
        return function(*args, every_s=every / 1000 if watch else None, **kwargs)

    return cast("_Function", watching)


def client_options(function: _Function) -> _Function:
    """Adds --bootstrap and --json."""
    return bootstrap_option(json_option(function))


def open_client(bootstrap: str) -> Client:
    """A connected client. The SDK is imported only here, to keep other commands fast."""
    from semel.client import connect

    return connect(bootstrap)
