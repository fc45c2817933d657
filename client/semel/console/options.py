"""Options that many commands share, and the way from them to a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from semel.client import Client

_Function = TypeVar("_Function", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line, and nothing else."
)

bootstrap_option = click.option(
    "--bootstrap",
    envvar="SEMEL_BOOTSTRAP",
    default="127.0.0.1:7070",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[,…]",
    help="The controllers.",
)


def client_options(function: _Function) -> _Function:
    """Adds --bootstrap and --json."""
    return bootstrap_option(json_option(function))


def open_client(bootstrap: str) -> Client:
    """A connected client; the SDK is imported here and not before."""
    from semel.client import connect

    return connect(bootstrap)
