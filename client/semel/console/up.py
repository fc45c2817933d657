"""`semel up`: a whole cluster on this machine, as one command in the foreground.

How it works. It locks the directory, loads or makes the plan of the cluster, runs the nodes under
a `Supervisor` and asks the controller until every group has a master that answers a confirmed
read. Then it reports that it is ready and stays until SIGINT, SIGTERM or SIGHUP. A second signal
ends the nodes at once. Commands that change a broker group change the plan, and `up` follows it.

Invariants
1. Only one `up` at a time runs a directory (an flock, which ends with the process).
2. `ready` is printed once, after every group can take a write; `started` and `exited` lines follow
   for every process that comes or goes after it.

Not here: keeping processes alive (`supervisor.py`), ports and ids (`cluster_file.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import importlib.util
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from semel.console import cluster_file, render, up_kafka, up_web, zookeeper
from semel.console.cluster_file import ClusterPlan
from semel.console.options import examples, json_option
from semel.console.supervisor import Supervisor
from semel.console.up_beside import Beside
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import DataDirectoryError, InvalidRequest, TimedOut, Unavailable
from semel.protos.logs import log_format_option, set_up
from semel.protos.security.identity import ADMIN, Identity

if TYPE_CHECKING:
    from semel.console.up_view import View
    from semel.console.watch import ClusterWatch
    from semel.protos.security.credentials import Security

TIERS: Final = ("s3://", "gs://", "hdfs://", "file:///")
READY_TIMEOUT_S: Final = 60.0
RENEW_DAYS: Final = 30
"""Certificates that expire within so many days are renewed, at the start and while it runs."""
RENEW_PAUSE_S: Final = 86_400.0
PORT_WAIT_S: Final = 3.0
"""How long the nodes of an `up` that was just killed may still hold a port."""


@click.command(
    epilog=examples(
        "semel up",
        "semel up --controllers 3 --metadata zookeeper",
        "semel up --data /var/lib/semel --brokers 3 --groups 2 --port 7070",
        "semel up --tier file:///mnt/store/semel",
        "semel up --secure --authorization --host 10.0.0.1",
        more="Brokers listen on the controller's port + 101 and up; metrics are served 1000 above"
        " each port, and DIR/prometheus.json lists them.",
    )
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("semel-data"),
    show_default=True,
    help="Directory of the cluster; the same one starts the same cluster again.",
)
@click.option("--brokers", type=int, help="Nodes of each broker group: 1, 3 or 5. [default: 3]")
@click.option("--controllers", type=int, help="Controllers: 1, 3 or 5. [default: 1]")
@click.option("--groups", type=int, help="Broker groups. [default: 1]")
@click.option(
    "--metadata",
    metavar="WHERE",
    help="Where the controllers keep metadata: zookeeper starts one beside them, zookeeper://"
    "HOST:PORT[,…]/CHROOT uses yours. [default: in their own directories]",
)
@click.option(
    "--tier",
    metavar="URL",
    help="Where brokers put older messages of tiered topics: s3://BUCKET/PREFIX, gs://…, hdfs://…"
    " or file:///PATH. The directory remembers it. [default: nowhere]",
)
@click.option(
    "--tier-restore",
    is_flag=True,
    help="The tier is that of a lost cluster, which `semel cluster restore --from URL` restores in"
    " this new one.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port of the first controller; brokers take port + 101 and up. 0 takes free ones."
    " [default: 7070]",
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option(
    "--secure",
    is_flag=True,
    help="TLS on all connections, with a CA and certificates in DIR/security; clients use"
    " --client-config DIR/security/admin/client.toml. The directory remembers it.",
)
@click.option(
    "--authorization",
    is_flag=True,
    help="Deny what no rule of `semel acl` allows; needs --secure. The directory remembers it.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow --host to be reached from a network without TLS."
)
@click.option(
    "--web",
    "web_port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve the web console, too, at this port of 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--kafka",
    "kafka_port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve Kafka's clients, too, at this port of 127.0.0.1; 0 takes a free one.",
)
@click.option("--no-restart", is_flag=True, help="Leave a node that died dead.")
@log_format_option(envvar="SEMEL_LOG_FORMAT")
@json_option
def up(
    data: Path,
    brokers: int | None,
    controllers: int | None,
    groups: int | None,
    metadata: str | None,
    tier: str | None,
    tier_restore: bool,
    port: int | None,
    host: str | None,
    secure: bool,
    authorization: bool,
    insecure: bool,
    web_port: int | None,
    kafka_port: int | None,
    no_restart: bool,
    log_format: str,
    as_json: bool,
) -> int:
    """Runs a whole cluster on this machine until Ctrl-C."""
    set_up(log_format, process="up", level=logging.WARNING)
    _check_counts(brokers, controllers, groups)
    _check_metadata(metadata)
    _check_tier(tier)
    if tier_restore and tier is None:
        raise click.UsageError("--tier-restore: name the tier of the lost cluster with --tier")
    if web_port is not None:
        up_web.check()
    if kafka_port is not None:
        up_kafka.check()
    data = data.absolute()
    data.mkdir(parents=True, exist_ok=True)
    with _locked(data):
        plan = _plan(
            data,
            brokers,
            controllers,
            groups,
            metadata,
            tier,
            port,
            host,
            secure,
            insecure,
            tier_restore,
            authorization,
        )
        beside: dict[str, Beside] = {}
        if web_port is not None:
            beside["web"] = up_web.web_beside(plan, data, web_port, log_format)
        if kafka_port is not None:
            beside["kafka"] = up_kafka.kafka_beside(plan, data, kafka_port, log_format)
        return asyncio.run(
            _run(plan, data, beside, log_format, restart=not no_restart, as_json=as_json)
        )


def _check_counts(brokers: int | None, controllers: int | None, groups: int | None) -> None:
    if brokers not in (None, 1, 3, 5):
        raise click.UsageError(f"--brokers {brokers}: a group has 1, 3 or 5 nodes")
    if controllers not in (None, 1, 3, 5):
        raise click.UsageError(f"--controllers {controllers}: a cluster has 1, 3 or 5")
    if groups is not None and not 1 <= groups <= 64:
        raise click.UsageError(f"--groups {groups}: choose 1 to 64")


def _check_metadata(metadata: str | None) -> None:
    """Raises unless the metadata's place can be used, before anything is written."""
    if metadata == cluster_file.ZOOKEEPER:
        zookeeper.check()
    elif metadata is not None and not metadata.startswith("zookeeper://"):
        raise click.UsageError(
            f"--metadata {metadata}: write zookeeper, or zookeeper://HOST:PORT[,HOST:PORT]/CHROOT"
        )


def _check_tier(tier: str | None) -> None:
    """Raises for what is no URL of a store; the brokers check the rest when they start."""
    if tier is not None and not tier.startswith(TIERS):
        raise click.UsageError(
            f"--tier {tier}: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hdfs://HOST:PORT/PATH or"
            " file:///PATH"
        )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory for this process; raises DataDirectoryError when another has it."""
    descriptor = os.open(directory / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirectoryError(
                f"{directory} is in use by another `semel up`: stop it, or choose another --data"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _plan(
    directory: Path,
    brokers: int | None,
    controllers: int | None,
    groups: int | None,
    metadata: str | None,
    tier: str | None,
    port: int | None,
    host: str | None,
    secure: bool = False,
    insecure: bool = False,
    tier_restore: bool = False,
    authorization: bool = False,
) -> ClusterPlan:
    """The directory's plan, or a new, saved one; refuses options that contradict the plan."""
    plan = cluster_file.load(directory)
    if plan is None:
        plan = cluster_file.plan_cluster(
            controllers=controllers or 1,
            groups=groups or 1,
            brokers=brokers or 3,
            host=host or "127.0.0.1",
            port=port,
            metadata=metadata or "",
            tier=tier or "",
            tier_restore=tier_restore,
            secure=secure,
            authorization=authorization,
        )
        _check_exposed(plan, insecure=insecure)
        _check_ports(plan)
        plan = _with_logins(plan)
        cluster_file.save(directory, plan)
        return plan
    if tier_restore and not plan.tier_restore:
        raise InvalidRequest(
            f"{directory} holds a cluster already, and a lost one is restored in a new one: choose"
            " another --data"
        )
    first = Address.parse(plan.controllers[0].address)
    wanted = {
        "brokers": (brokers, len(plan.founders(plan.groups[0]))),
        "controllers": (controllers, len(plan.controllers)),
        "groups": (groups, len(plan.groups)),
        "metadata": (metadata, plan.metadata or "in the controllers' directories"),
        "tier": (tier if plan.tier else None, plan.tier),
        "port": (port or None, first.port),
        "host": (Address.parse(f"{host}:0").host if host else None, first.host),
    }
    for option, (asked, kept) in wanted.items():
        if asked is not None and asked != kept:
            raise InvalidRequest(
                f"{directory} holds a cluster with {option} {kept}, not {asked}: leave out"
                f" --{option}, or choose another --data"
            )
    newest = dataclasses.replace(
        plan,
        tier=tier or plan.tier,
        secure=secure or plan.secure,
        authorization=authorization or plan.authorization,
    )
    newest = _with_logins(newest)
    _check_exposed(newest, insecure=insecure)
    _check_ports(newest)
    if newest != plan:
        cluster_file.save(directory, newest)
    return newest


def _with_logins(plan: ClusterPlan) -> ClusterPlan:
    """The plan with ports for logins, where the libraries for them are installed."""
    if all(importlib.util.find_spec(name) is not None for name in ("argon2", "jwt")):
        return cluster_file.with_logins(plan)
    return plan


def _check_exposed(plan: ClusterPlan, *, insecure: bool) -> None:
    """Raises InvalidRequest for a cluster that others reach, without TLS and not `insecure`, and
    for rules without TLS."""
    listen = plan.controllers[0].address
    if plan.authorization and not plan.secure:
        raise InvalidRequest("--authorization needs --secure: callers are known by certificates")
    if insecure and plan.secure:
        raise InvalidRequest("a cluster is --secure or --insecure, not both")
    if not (insecure or plan.secure or Address.parse(listen).loopback):
        raise InvalidRequest(
            f"{listen} is reached from other machines: say --secure for TLS, or --insecure where"
            " the network is trusted"
        )


def _security(plan: ClusterPlan, directory: Path) -> Security | None:
    """BLOCKING. Makes the certificates that the plan needs; returns the administrator's."""
    if not plan.secure:
        return None
    from semel.console import authority
    from semel.protos.security.credentials import Security

    nodes = [
        Identity(node.kind, str(node.id), plan.cluster_id)
        for node in plan.nodes
        if node.kind != "zookeeper"
    ]
    where = directory / cluster_file.SECURITY
    authority.ensure(where, plan.cluster_id, nodes, plan.bootstrap, plan.logins, RENEW_DAYS)
    return Security.read(where / ADMIN)


def _check_ports(plan: ClusterPlan) -> None:
    deadline = time.monotonic() + PORT_WAIT_S
    for node in plan.nodes:
        for address in filter(None, (node.address, node.login)):
            while cluster_file.is_taken(address):
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{address} is in use, {node.name} cannot listen there: stop the other"
                        " program, or choose another --port"
                    )
                time.sleep(0.1)


async def _run(
    plan: ClusterPlan,
    directory: Path,
    beside: Mapping[str, Beside],
    log_format: str,
    *,
    restart: bool,
    as_json: bool,
) -> int:
    from semel.console.up_view import JsonView, LiveView
    from semel.console.watch import ClusterWatch

    security = _security(plan, directory)
    if security is None and not Address.parse(plan.controllers[0].address).loopback:
        render.warn(
            f"the cluster listens on {plan.controllers[0].address} without authentication:"
            " everyone who reaches it can read, write and delete"
        )
    began = looked = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        stop = await stack.enter_async_context(_signals())
        view: View = (
            JsonView(plan, directory) if as_json else stack.enter_context(LiveView(plan, directory))
        )
        nodes = Supervisor(
            plan, directory, restart=restart, on_event=view.on_event, log_format=log_format
        )
        await stack.enter_async_context(nodes)
        watch = await stack.enter_async_context(ClusterWatch(plan, security))
        stop.on_second = nodes.kill_now
        if await _until_ready(nodes, watch, stop):
            seconds = time.monotonic() - began
            places: dict[str, str] = {}
            for name, program in beside.items():
                entered = await stack.enter_async_context(program)
                places |= {name: entered.place, **entered.facts}
            view.on_ready(nodes, seconds, places)
            nodes.serving = True
        while not stop.is_set():
            nodes.check()
            if time.monotonic() - looked > RENEW_PAUSE_S:
                looked = time.monotonic()
                _security(plan, directory)
            newest = cluster_file.load(directory)
            if newest is not None and newest != plan:  # brokers joined or left
                plan = newest
                _security(plan, directory)
                nodes.follow(plan)
                view.on_plan(plan)
            if view.wants_status:
                view.on_status(await watch.status())
            await _wait(stop, 0.5)
        view.on_stopping()
    return 0


class _Stop(asyncio.Event):
    """An event that the first signal sets; a second signal calls `on_second`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_second: Callable[[], None] = lambda: None

    def on_signal(self) -> None:
        if self.is_set():
            self.on_second()
        self.set()


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[_Stop]:
    stop, loop = _Stop(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with compat.timeout(seconds):
            await stop.wait()


async def _until_ready(nodes: Supervisor, watch: ClusterWatch, stop: asyncio.Event) -> bool:
    """True once every group serves, False when stopped before. Raises TimedOut, Unavailable."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not stop.is_set():
        nodes.check()
        missing = await watch.not_serving()
        if not missing:
            return True
        if time.monotonic() > deadline:
            raise TimedOut(
                f"the cluster does not serve after {READY_TIMEOUT_S:.0f} s ({missing}):"
                " see its logs"
            )
        await _wait(stop, 0.05)
    return False
