"""`python -m semel.broker`: one broker node from flags, a TOML file or environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import json
import logging
import os
import resource
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import click

from semel.broker.config import BrokerConfig
from semel.broker.log import FileLayer, LogConfig, OsFiles, Reserve
from semel.broker.log.config import SYNC_BY
from semel.broker.node import READERS, BrokerNode
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import LEVEL_MAX

KEPT_BACK = 16
"""File descriptors that no connection gets: a log must roll while the process has no others."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

EPILOG = """\b
Examples:
  python -m semel.broker --data data/1 --cluster-id c1 --group 1 --node 1 \\
      --listen 127.0.0.1:7171 --member 1=127.0.0.1:7171 --controllers 127.0.0.1:7070
  python -m semel.broker --data data/4 --cluster-id c1 --group 1 --node 4 \\
      --listen 127.0.0.1:7174 --join 127.0.0.1:7171 --controllers 127.0.0.1:7070
  python -m semel.broker --data data/1 --cluster-id c1 --group 1 --node 1 \\
      --listen 127.0.0.1:7171 --found 2026-11-24    # without controllers, once
  SEMEL_BROKER_CONFIG=node.toml python -m semel.broker
"""


def _load_toml(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Values of the file become defaults: flags and environment win."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}") from None
    values = {key.replace("-", "_"): value for key, value in values.items()}
    known = {parameter.name for parameter in context.command.params}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise click.BadParameter(f"{path}: unknown settings {', '.join(unknown)}")
    context.default_map = values
    return path


def _members(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[NodeId, str]:
    members: dict[NodeId, str] = {}
    for value in values:
        node, equals, address = value.partition("=")
        if not equals or not node.isdecimal() or not address:
            raise click.BadParameter(f"{value!r} is not NODE=HOST:PORT")
        members[NodeId(int(node))] = address
    return members


def _address(_: click.Context, __: click.Parameter, value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT")
    return value


def _optional_address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    return _address(context, parameter, value) if value else value


@click.command(
    epilog=EPILOG, context_settings={"auto_envvar_prefix": "SEMEL_BROKER", "show_default": True}
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_load_toml,
    is_eager=True,
    help="TOML file with these settings; flags and environment win.",
)
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Data directory.")
@click.option("--cluster-id", required=True, help="Id of the cluster.")
@click.option("--group", type=click.IntRange(1), required=True, help="Broker group.")
@click.option("--node", type=click.IntRange(1), required=True, help="This node's number.")
@click.option("--listen", callback=_address, required=True, help="HOST:PORT to listen on.")
@click.option(
    "--member",
    "members",
    multiple=True,
    callback=_members,
    help="NODE=HOST:PORT of an initial replica of the group, this one included. Repeat.",
)
@click.option(
    "--join",
    default="",
    help="HOST:PORT[,HOST:PORT] of members of a running group that this node is to join, instead "
    "of --member. It waits until `semel node replace` or `semel cluster grow` adds it.",
)
@click.option(
    "--found",
    default="",
    metavar="NAME",
    help="Begin the group with this node, whose directory is empty, and ask nobody: for one start, "
    "where there are no controllers, with a NAME that is the same on all its first nodes and never "
    "used again. Every later start refuses it. After the loss of a majority of disks use `semel "
    "cluster restore`, which keeps what is left.",
    show_default=False,
)
@click.option(
    "--advertise",
    callback=_optional_address,
    default="",
    help="HOST:PORT under which clients reach this node.  [default: as it listens]",
    show_default=False,
)
@click.option(
    "--peer-at",
    "peers_at",
    multiple=True,
    callback=_members,
    help="NODE=HOST:PORT at which this node reaches a peer, where that is not the peer's member "
    "address: port forwards, proxies. Repeat.",
)
@click.option(
    "--peer-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port for the other replicas' streams, on the host of --listen; 0 takes a free one.",
)
@click.option(
    "--peer-stream-at",
    "peer_streams_at",
    multiple=True,
    callback=_members,
    help="NODE=HOST:PORT where a peer's stream port is reached, if not directly. Repeat.",
)
@click.option(
    "--stream-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port for the clients' direct streams, on the host of --listen; 0 takes a free one. "
    "Clients that cannot reach it produce and fetch through --listen, less quickly.",
)
@click.option("--controllers", default="", help="HOST:PORT[,HOST:PORT] of the controllers.")
@click.option("--rack", default="", help="Rack or site label.")
@click.option(
    "--allow-same-machine",
    is_flag=True,
    help="Nodes of one group may share a machine (never asked on loopback).",
)
@click.option(
    "--level-max",
    type=click.IntRange(0, LEVEL_MAX),
    default=LEVEL_MAX,
    show_default=True,
    help="Behave as a program that knows no higher feature level: for rehearsing an upgrade.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve Prometheus text at /metrics, on the host of --listen; 0 takes a free port.  "
    "[default: off]",
)
@click.option(
    "--segment-bytes", type=click.IntRange(1 << 20), default=64 << 20, help="Segment size."
)
@click.option("--cache-bytes", type=click.IntRange(0), default=32 << 20, help="Tail cache size.")
@click.option(
    "--retention-check-ms", type=click.IntRange(10), default=5_000, help="Pause between trims."
)
@click.option(
    "--producer-idle-ms",
    type=click.IntRange(1),
    default=7 * 24 * 3600 * 1000,
    help="A queue forgets what a producer stored that was idle for so long.",
)
@click.option(
    "--producers-per-queue-max",
    type=click.IntRange(1),
    default=100_000,
    help="So many producers are remembered a queue; those that were idle longest go first.",
)
@click.option(
    "--staged-bytes-max",
    type=click.IntRange(1),
    default=8 << 30,
    help="Bytes that transactions may have staged and not published; further ones wait.",
)
@click.option(
    "--transaction-pin-ms",
    type=click.IntRange(1),
    default=30_000,
    help="A commit that takes longer is aborted, unless it is decided.",
)
@click.option(
    "--retained-log-bytes",
    type=click.IntRange(1),
    default=64 << 20,
    help="Newest log that is never cleaned.",
)
@click.option(
    "--checkpoint-records", type=click.IntRange(1), default=50_000, help="Entries per checkpoint."
)
@click.option(
    "--scrub-bytes-per-second",
    type=click.IntRange(0),
    default=8 << 20,
    help="How fast the disk is read in search of damage; 0: never.",
)
@click.option(
    "--scrub-pause-ms", type=click.IntRange(1), default=600_000, help="Pause between two passes."
)
@click.option(
    "--durability",
    type=click.Choice(["sync", "interval"]),
    default="sync",
    help="sync: an ack means durable on a majority. interval: synced every 100 ms; an "
    "acknowledged message can be lost when the power of a majority fails at once.",
)
@click.option(
    "--sync-by",
    type=click.Choice(SYNC_BY),
    default="auto",
    help="auto: the kernel syncs small writes by itself (Linux AIO), where it can. thread: the "
    "log's own thread syncs all.",
)
@click.option(
    "--catch-up-rate",
    type=click.IntRange(1 << 10),
    default=256 << 20,
    help="Bytes a second at which a snapshot is pulled from a peer at most.",
)
@click.option(
    "--move-rate",
    type=click.IntRange(1 << 10),
    default=64 << 20,
    help="Bytes a second at which a queue is copied from another broker group at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Say when it listens as one JSON line.")
@click.option("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR.")
@click.pass_obj
def main(
    files: FileLayer | None,
    config: Path | None,
    data: Path,
    cluster_id: str,
    group: int,
    node: int,
    listen: str,
    members: dict[NodeId, str],
    join: str,
    found: str,
    advertise: str,
    peers_at: dict[NodeId, str],
    peer_port: int,
    peer_streams_at: dict[NodeId, str],
    stream_port: int,
    controllers: str,
    rack: str,
    allow_same_machine: bool,
    level_max: int,
    metrics_port: int | None,
    segment_bytes: int,
    cache_bytes: int,
    retention_check_ms: int,
    producer_idle_ms: int,
    producers_per_queue_max: int,
    staged_bytes_max: int,
    transaction_pin_ms: int,
    retained_log_bytes: int,
    checkpoint_records: int,
    scrub_bytes_per_second: int,
    scrub_pause_ms: int,
    durability: str,
    sync_by: str,
    catch_up_rate: int,
    move_rate: int,
    as_json: bool,
    log_level: str,
) -> None:
    """Runs one broker node until it gets SIGINT or SIGTERM."""
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s node={node} %(name)s %(message)s",
    )
    if durability == "interval":
        logging.warning("durability=interval: acknowledgements do not wait for the disk")
    try:
        settings = BrokerConfig(
            data=data,
            cluster_id=cluster_id,
            group_id=GroupId(group),
            node_id=NodeId(node),
            listen=listen,
            members=members or ({} if join else {NodeId(node): listen}),
            join=tuple(filter(None, join.split(","))),
            found=found,
            advertise=advertise,
            peers_at=peers_at,
            peer_port=peer_port,
            peer_streams_at=peer_streams_at,
            stream_port=stream_port,
            controllers=tuple(filter(None, controllers.split(","))),
            rack=rack,
            allow_same_machine=allow_same_machine,
            level_max=level_max,
            metrics_port=metrics_port,
            log=LogConfig(
                segment_bytes=segment_bytes,
                cache_bytes=cache_bytes,
                sync_interval_ms=100 if durability == "interval" else 0,
                sync_by=sync_by,
            ),
            retention_check_ms=retention_check_ms,
            producer_idle_ms=producer_idle_ms,
            producers_per_queue_max=producers_per_queue_max,
            staged_bytes_max=staged_bytes_max,
            transaction_pin_ms=transaction_pin_ms,
            retained_log_bytes=retained_log_bytes,
            checkpoint_records=checkpoint_records,
            scrub_bytes_per_second=scrub_bytes_per_second,
            scrub_pause_ms=scrub_pause_ms,
            catch_up_bytes_per_second=catch_up_rate,
            move_bytes_per_second=move_rate,
        )
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from None
    _warn_unless_loopback(listen)
    _tune_malloc()
    _raise_descriptor_limit()
    try:
        files = files or OsFiles(Reserve(KEPT_BACK))
        run = _uvloop_run() or asyncio.run
        sys.exit(run(_run(settings, as_json, files)))
    except (SemelError, OSError) as error:
        print(f"error: node {node}: {error}", file=sys.stderr)
        sys.exit(1)


async def _run(config: BrokerConfig, as_json: bool, files: FileLayer) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with BrokerNode(config, files=files) as node:
        start_readers(node.readers)
        event = {
            "event": "listening",
            "kind": "broker",
            "group": config.group_id,
            "id": config.node_id,
            "address": node.address,
            "pid": os.getpid(),
            "metrics": node.metrics_address,
        }
        if as_json:
            print(json.dumps(event), flush=True)
        else:
            print(f"node {config.node_id} of group {config.group_id} listens on {node.address}")
        await stop.wait()
    return 0


def _raise_descriptor_limit() -> None:
    """As many open files as this process may have: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_malloc() -> None:
    """Tells glibc's malloc to reuse large blocks instead of giving them back at once, and to keep
    them in one place.

    A broker allocates and frees blocks of up to some megabytes all the time; fetched and given back
    from the kernel, each page of them costs a fault. Measured: a third of the time of a fetch. With
    an arena for each thread every one of them keeps what it once needed, and memory creeps up for
    as long as new peaks come. Measured: one arena makes nothing slower, under the GIL.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library; nothing depends on it
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    mallopt(_M_ARENA_MAX, 1)


def start_readers(readers: ThreadPoolExecutor) -> None:
    """All threads of the pool, which else are born under load: that looks like a leak."""
    together = threading.Barrier(READERS)
    for _ in range(READERS):
        readers.submit(together.wait, 1.0)  # one that is late must not keep the others


def _uvloop_run() -> Callable[[Coroutine[Any, Any, int]], int] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return cast("Callable[[Coroutine[Any, Any, int]], int]", uvloop.run)


def _warn_unless_loopback(listen: str) -> None:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        logging.warning(
            "LISTENING ON %s: anybody who reaches this address can read and write; there is no "
            "authentication yet, keep it behind a firewall",
            listen,
        )


if __name__ == "__main__":
    main()
