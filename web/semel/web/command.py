"""`semel web`: the web console of a cluster."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from semel.console import render, up_web
from semel.console.options import examples, file_options, json_option
from semel.protos.logs import log_format_option, set_up


@click.command(
    epilog=examples(
        "semel web",
        "semel web --listen 127.0.0.1:0 --json",
        "semel web --client-config login.toml --listen 0.0.0.0:8443 --certificate web.pem --key"
        " web-key.pem --name semel.example",
        more="With a client file that says where to log in, visitors log in with their own tokens"
        " and have their own rights. With one that has a certificate, the printed URL has a key"
        " that lets its owner act as the certificate. Without security there is no login.",
    )
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:7080", show_default=True)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A further name under which browsers reach it. Repeat.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM file of the certificate for HTTPS.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM file of its key.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow --listen to be reached from a network without HTTPS."
)
@click.option(
    "--bootstrap",
    default="",
    metavar="HOST:PORT[,…]",
    help="The controllers.  [default: those of the client's file, SEMEL_BOOTSTRAP, or"
    " 127.0.0.1:7070]",
)
@file_options
@log_format_option(envvar="SEMEL_LOG_FORMAT")
@json_option
def web(
    listen: str,
    names: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    bootstrap: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Serves the web console until Ctrl-C."""
    set_up(log_format, process="web", level=logging.WARNING)
    up_web.check()
    from semel.web.config import WebConfig
    from semel.web.serving import serve

    config = WebConfig(
        listen=listen,
        bootstrap=bootstrap,
        names=names,
        certificate=certificate,
        key=key,
        insecure=insecure,
    )
    out = render.Output(as_json=as_json)

    def on_ready(url: str) -> None:
        out.show({"event": "ready", "url": url}, f"the web console is at {url}")

    serve(config, os.environ, on_ready)
