"""`python -m semel.controller`: one controller as a process.

Settings come from flags, then `SEMEL_CONTROLLER_*` in the environment, then the TOML file given by
`--config`, then the defaults of `ControllerConfig`. With `--json` one line on stdout says that it
serves; everything else goes to stderr. SIGTERM and SIGINT end it with status 0, an error before or
after that with one line and status 1, a wrong flag or setting with status 2.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from semel.controller.config import ControllerConfig
from semel.controller.node import ControllerNode
from semel.protos.errors import InvalidRequest, SemelError

_FIELDS = {field.name: field for field in dataclasses.fields(ControllerConfig)}

EPILOG = """\b
Example, a controller that brokers reach at its default address:
  python -m semel.controller --data data/controller
\b
The first of three, which replicate the metadata among themselves:
  python -m semel.controller --data data/controller-1 --controller-id 1 --cluster-id orders \\
      --listen 10.0.0.1:7070 --peers 1=10.0.0.1:7070,2=10.0.0.2:7070,3=10.0.0.3:7070
\b
The second of a group whose metadata is in ZooKeeper:
  python -m semel.controller --data data/controller-2 --controller-id 2 --cluster-id orders \\
      --listen 10.0.0.2:7070 --metadata zookeeper://zk1:2181,zk2:2181,zk3:2181/semel

`semel controller export` and `semel controller import` move the metadata to another store.
"""


def _read_toml(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Makes the file's settings the defaults of all options."""
    if path is None:
        return None
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"cannot read {path}: {error}") from error
    unknown = sorted(settings.keys() - _FIELDS.keys())
    if unknown:
        raise click.BadParameter(f"{path} has an unknown setting {unknown[0]!r}")
    context.default_map = settings
    return path


def _read_peers(_: click.Context, __: click.Parameter, text: str | None) -> dict[int, str] | None:
    """Numbers and addresses of `1=HOST:PORT,2=HOST:PORT`."""
    if text is None:
        return None
    peers = {}
    for one in text.split(","):
        number, equals, address = one.strip().partition("=")
        if not equals or not number.isdecimal():
            raise click.BadParameter(f"{one!r} is no controller: write NUMBER=HOST:PORT")
        peers[int(number)] = address
    return peers


@click.command(epilog=EPILOG, context_settings={"auto_envvar_prefix": "SEMEL_CONTROLLER"})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_read_toml,
    is_eager=True,
    expose_value=False,
    help="TOML file with the settings below, dashes written as underscores.",
)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Data directory.")
@click.option("--listen", help="HOST:PORT; port 0 takes a free one. [127.0.0.1:7070]")
@click.option("--advertise", help="HOST:PORT under which others reach it. [as it listens]")
@click.option("--controller-id", type=int, help="Its number, 1 and up. [1]")
@click.option(
    "--peers",
    callback=_read_peers,
    help="All controllers of the group, itself among them: 1=HOST:PORT,2=HOST:PORT,… [it is alone]",
)
@click.option(
    "--metadata",
    help="sqlite, embedded or zookeeper://HOST:PORT[,…]/ROOT. [sqlite alone, embedded with peers]",
)
@click.option(
    "--metadata-auth",
    type=click.Path(path_type=Path),
    help="File with USER:PASSWORD, for ZooKeeper's digest scheme.",
)
@click.option("--cluster-id", help="Refuse a data directory of another cluster.")
@click.option(
    "--metrics-port", type=int, help="Serve Prometheus text at /metrics; 0 takes a free port. [off]"
)
@click.option("--node-timeout-ms", type=int, help="Silence after which a node is not alive. [3000]")
@click.option("--preferred-rack", help="Where groups are to have their masters. [nowhere]")
@click.option(
    "--preferred-after-ms", type=int, help="How long a slave there must have been fit. [60000]"
)
@click.option("--broker-call-timeout-ms", type=int, help="Limit of a call to a broker. [5000]")
@click.option("--request-timeout-ms", type=int, help="Limit of a call without one. [30000]")
@click.option(
    "--level-max",
    type=int,
    help="Behave as a program that knows no higher feature level: for rehearsing an upgrade. "
    "[the newest]",
)
@click.option("--stop-ms", type=int, help="How long running calls may go on at a stop. [500]")
@click.option("--json", "as_json", is_flag=True, help="Say on stdout, as JSON, that it serves.")
@click.option("--verbose", is_flag=True, help="Log more.")
def main(as_json: bool, verbose: bool, **given: Any) -> None:
    """Run one controller of a Semel cluster."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        config = ControllerConfig(**{k: v for k, v in given.items() if v is not None})
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from error
    try:
        asyncio.run(_serve(config, as_json))
    except SemelError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


async def _serve(config: ControllerConfig, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with ControllerNode(config) as node:
        if as_json:
            print(json.dumps(_ready(node)), flush=True)
        stopped = asyncio.ensure_future(stop.wait())
        failed = asyncio.ensure_future(node.failed())
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()


def _ready(node: ControllerNode) -> dict[str, object]:
    return {
        "event": "ready",
        "kind": "controller",
        "id": node.config.controller_id,
        "address": node.address,
        "pid": os.getpid(),
        "data": str(node.config.data),
        "cluster_id": node.cluster_id,
        "metrics": node.metrics_address,
    }


if __name__ == "__main__":
    main(prog_name="python -m semel.controller")
