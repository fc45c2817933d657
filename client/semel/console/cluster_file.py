"""The plan that `semel up` keeps in its directory: the nodes and their addresses.

How it works. The first `up` of a directory chooses ids, ports and the cluster's id, writes them to
`cluster.toml` (a temporary file, synced, then renamed) and never changes them: the addresses are
part of the replicas' membership, so the same directory must start the same cluster. The commands
that change a group add brokers that join later, and mark those that left; a running `up` watches
the file and starts and stops them (`take_in`, `found_group`, `retire`).

Format of `cluster.toml`: `version` (6 with rules, else 5 with TLS, else 4 with a tier, else 3 with
metadata in ZooKeeper, else 2 once a broker joined later, else 1), `cluster_id`, `metadata` if it is
in ZooKeeper (`zookeeper` for one of our own, else its address), `tier` if brokers have an object
store (its URL), `tier_restore` if it may be that of a lost cluster, `secure` with TLS,
`authorization` with rules, and one table per node under `[[zookeepers]]` and `[[controllers]]`
(`id`, `address`, and `login` with TLS) and `[[brokers]]` (`id`, `group`, `address`; `joined` for a
broker that did not found its group, `replaces` with the node whose place it takes, `retired` for
one that no longer runs).

Not here: starting any node (`supervisor.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import random
import secrets
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from semel.protos.addresses import Address
from semel.protos.errors import DataDirectoryError, InvalidRequest

FILE_NAME: Final = "cluster.toml"
VERSION: Final = 6
SECURITY: Final = "security"
"""The directory, below that of the cluster, of the CA and the certificates."""
CLIENT_FILE: Final = "client.toml"
"""An administrator's file for `--client-config`, in its directory."""
CONTROLLER_PORT: Final = 7070
BROKER_PORT_STEP: Final = 101
"""Brokers listen from the first controller's port + 101 up: 7070 and 7171."""
LOGIN_PORT_STEP: Final = 2_000
"""Controllers log clients in 2,000 above the port they listen on: 9070."""
ZOOKEEPER_PORT_STEP: Final = 90
"""A ZooKeeper of our own listens on the first controller's port + 90: 7160."""
ZOOKEEPER: Final = "zookeeper"
"""Value of `metadata` for a cluster with a ZooKeeper of its own."""
ZOOKEEPER_HOST: Final = "127.0.0.1"
"""Loopback, so that only the controllers beside it reach it: it authenticates nobody."""
PRIVATE_PORTS: Final = range(15_000, 32_000)
"""Ports that `--port 0` tries: below those that the kernel gives to outgoing connections, which
could otherwise take a stopped node's port."""

Kind = Literal["zookeeper", "controller", "broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node of the cluster."""

    kind: Kind
    id: int
    """Number from 1 up; brokers are counted over all groups, controllers separately."""
    group: int | None
    """Broker group; None for a node that is not a broker."""
    address: str
    """HOST:PORT it listens on."""
    login: str = ""
    """HOST:PORT on which clients log in at a controller with TLS; empty for none."""
    joined: bool = False
    """True for a broker that joined an existing group."""
    replaces: int = 0
    """The node that it replaces; 0 for none."""
    retired: bool = False
    """True for a broker that left its group and no longer runs."""

    @property
    def name(self) -> str:
        """Name of its data directory and its log, such as `broker-1`."""
        return f"{self.kind}-{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """All nodes of one cluster."""

    cluster_id: str
    controllers: tuple[NodePlan, ...]
    brokers: tuple[NodePlan, ...]
    metadata: str = ""
    """Empty when the controllers keep it, `zookeeper` for `zookeepers`, else an address."""
    zookeepers: tuple[NodePlan, ...] = ()
    tier: str = ""
    """URL of the object store for older messages; empty for none."""
    tier_restore: bool = False
    """The tier may belong to a cluster that is lost."""
    secure: bool = False
    """True when all connections use TLS; the certificates are in the directory's `security`."""
    authorization: bool = False
    """True when every node checks each call against the rules; only with `secure`."""

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """The nodes that run, in the order in which they are started."""
        brokers = tuple(node for node in self.brokers if not node.retired)
        return self.zookeepers + self.controllers + brokers

    @property
    def metadata_address(self) -> str:
        """Address of the metadata for the controllers; empty when they keep it themselves."""
        if self.zookeepers:
            return f"zookeeper://{','.join(node.address for node in self.zookeepers)}/semel"
        return self.metadata

    @property
    def bootstrap(self) -> str:
        """The addresses to which clients connect."""
        return ",".join(node.address for node in self.controllers)

    @property
    def logins(self) -> str:
        """The addresses at which clients log in; empty without TLS."""
        return ",".join(node.login for node in self.controllers if node.login)

    @property
    def groups(self) -> list[int]:
        """Numbers of the broker groups."""
        return sorted({node.group for node in self.brokers if node.group is not None})

    def members(self, group: int) -> list[NodePlan]:
        """The running nodes of one broker group."""
        return [node for node in self.brokers if node.group == group and not node.retired]

    def founders(self, group: int) -> list[NodePlan]:
        """The nodes with which one broker group began."""
        return [node for node in self.brokers if node.group == group and not node.joined]


def plan_cluster(
    *,
    controllers: int,
    groups: int,
    brokers: int,
    host: str,
    port: int | None,
    metadata: str = "",
    tier: str = "",
    tier_restore: bool = False,
    secure: bool = False,
    authorization: bool = False,
) -> ClusterPlan:
    """A new cluster: `groups` broker groups of `brokers` nodes each; port 0 takes free ports."""
    first = CONTROLLER_PORT if port is None else port
    listen = Address.parse(f"{host}:{first}", what="address to listen on")
    ports = _ports(listen, controllers, groups * brokers)
    zookeepers: tuple[NodePlan, ...] = ()
    if metadata == ZOOKEEPER:
        own = first + ZOOKEEPER_PORT_STEP if first else next(ports)
        zookeepers = (
            NodePlan(kind="zookeeper", id=1, group=None, address=f"{ZOOKEEPER_HOST}:{own}"),
        )
    return ClusterPlan(
        cluster_id=secrets.token_hex(8),
        controllers=tuple(
            NodePlan(
                kind="controller", id=i + 1, group=None, address=str(listen.with_port(next(ports)))
            )
            for i in range(controllers)
        ),
        brokers=tuple(
            NodePlan(
                kind="broker",
                id=i + 1,
                group=i // brokers + 1,
                address=str(listen.with_port(next(ports))),
            )
            for i in range(groups * brokers)
        ),
        metadata=metadata,
        zookeepers=zookeepers,
        tier=tier,
        tier_restore=tier_restore,
        secure=secure,
        authorization=authorization,
    )


def _ports(listen: Address, controllers: int, brokers: int) -> Iterator[int]:
    first = listen.port
    if first:
        if first + BROKER_PORT_STEP + brokers > 65_536:
            raise InvalidRequest(
                f"port {first} leaves no room for {brokers} brokers above it: choose a lower one"
            )
        yield from range(first, first + controllers)
        yield from range(first + BROKER_PORT_STEP, first + BROKER_PORT_STEP + brokers)
        return
    for port in random.sample(PRIVATE_PORTS, len(PRIVATE_PORTS)):
        if not is_taken(str(listen.with_port(port))):
            yield port


def with_logins(plan: ClusterPlan) -> ClusterPlan:
    """The plan with a port for logins at each controller, if it has TLS: preferably
    `LOGIN_PORT_STEP` above its own."""
    taken = {node.address for node in plan.nodes} | {node.login for node in plan.controllers}
    controllers: list[NodePlan] = []
    for node in plan.controllers:
        if plan.secure and not node.login:
            own = Address.parse(node.address)
            above = own.port + LOGIN_PORT_STEP
            near = [above] if above < PRIVATE_PORTS.start else []
            for port in (*near, *random.sample(PRIVATE_PORTS, len(PRIVATE_PORTS))):
                login = str(own.with_port(port))
                if login not in taken and not is_taken(login):
                    break
            else:
                raise InvalidRequest(f"no port is free for logins at {node.name}")
            taken.add(login)
            node = dataclasses.replace(node, login=login)
        controllers.append(node)
    return dataclasses.replace(plan, controllers=tuple(controllers))


def is_taken(address: str) -> bool:
    """True when HOST:PORT is in use; raises OSError for a host that is not this machine's."""
    wanted = Address.parse(address)
    family, kind, protocol, _, target = socket.getaddrinfo(
        wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
            probe.listen(1)
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE
                return True
            raise
    return False


def load(directory: Path) -> ClusterPlan | None:
    """The plan that a directory holds, None for a new directory; raises DataDirectoryError."""
    path = directory / FILE_NAME
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        if table["version"] > VERSION:
            raise DataDirectoryError(
                f"{path} was written by a newer Semel (version {table['version']}): use that one"
            )
        return ClusterPlan(
            cluster_id=str(table["cluster_id"]),
            controllers=tuple(_node("controller", row) for row in table["controllers"]),
            brokers=tuple(_node("broker", row) for row in table["brokers"]),
            metadata=str(table.get("metadata", "")),
            zookeepers=tuple(_node("zookeeper", row) for row in table.get("zookeepers", ())),
            tier=str(table.get("tier", "")),
            tier_restore=bool(table.get("tier_restore", False)),
            secure=bool(table.get("secure", False)),
            authorization=bool(table.get("authorization", False)),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"{path} is damaged ({error}): restore it, or move the directory away to start anew"
        ) from error


def _node(kind: Kind, row: dict[str, Any]) -> NodePlan:
    group = int(row["group"]) if kind == "broker" else None
    return NodePlan(
        kind=kind,
        id=int(row["id"]),
        group=group,
        address=str(row["address"]),
        login=str(row.get("login", "")),
        joined=bool(row.get("joined", False)),
        replaces=int(row.get("replaces", 0)),
        retired=bool(row.get("retired", False)),
    )


def save(directory: Path, plan: ClusterPlan) -> None:
    """Writes the plan durably."""
    version = 3 if plan.metadata else 2 if any(node.joined for node in plan.brokers) else 1
    version = 4 if plan.tier else version
    version = 5 if plan.secure else version
    version = 6 if plan.authorization else version
    lines = [
        "# Written by `semel up`: the same directory starts the same cluster again.",
        f"version = {version}",
        f'cluster_id = "{plan.cluster_id}"',
    ]
    lines += [f"metadata = {json.dumps(plan.metadata)}"] if plan.metadata else []
    lines += ["secure = true"] if plan.secure else []
    lines += ["authorization = true"] if plan.authorization else []
    lines += [f"tier = {json.dumps(plan.tier)}"] if plan.tier else []
    lines += ["tier_restore = true"] if plan.tier_restore else []
    for node in plan.zookeepers + plan.controllers + plan.brokers:
        lines += ["", f"[[{node.kind}s]]", f"id = {node.id}"]
        lines += [f"group = {node.group}"] if node.group is not None else []
        lines += [f'address = "{node.address}"']
        lines += [f'login = "{node.login}"'] if node.login else []
        lines += ["joined = true"] if node.joined else []
        lines += [f"replaces = {node.replaces}"] if node.replaces else []
        lines += ["retired = true"] if node.retired else []
    temporary = directory / (FILE_NAME + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / FILE_NAME)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _changing(directory: Path) -> Iterator[ClusterPlan]:
    """Locks the plan for one command at a time. Raises DataDirectoryError if there is none."""
    if not (directory / FILE_NAME).exists():
        raise DataDirectoryError(f"{directory} holds no cluster: name the --data of a `semel up`")
    descriptor = os.open(directory / "plan.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        plan = load(directory)
        assert plan is not None
        yield plan
    finally:
        os.close(descriptor)


def take_in(directory: Path, group: int, *, size: int = 0, replaces: int = 0) -> list[NodePlan]:
    """Plans brokers that join a group, up to `size` members, or one that replaces `replaces`.

    Returns them with those that an earlier call planned. Raises DataDirectoryError, InvalidRequest.
    """
    with _changing(directory) as plan:
        members = plan.members(group)
        if not members:
            raise InvalidRequest(f"{directory} has no broker group {group}, only {plan.groups}")
        if replaces:
            found = [node for node in members if node.replaces == replaces]
            missing = 0 if found else 1
        else:
            found = [node for node in members if node.joined]
            missing = max(0, size - len(members))
        places = _free_places(plan, Address.parse(members[0].address))
        added = [
            NodePlan(
                kind="broker",
                id=number,
                group=group,
                address=address,
                joined=True,
                replaces=replaces,
            )
            for number, address in itertools.islice(places, missing)
        ]
        if added:
            save(directory, dataclasses.replace(plan, brokers=(*plan.brokers, *added)))
        return found + added


def found_group(directory: Path, group: int, brokers: int) -> list[NodePlan]:
    """The nodes of a new broker group, or those that an earlier call planned for it.

    Raises DataDirectoryError, and InvalidRequest when the group has another size.
    """
    with _changing(directory) as plan:
        founders = plan.founders(group)
        if founders and len(founders) != brokers:
            raise InvalidRequest(
                f"{directory} has a broker group {group}, which began with {len(founders)} nodes, "
                f"not {brokers}: choose another number, or see `semel cluster grow`"
            )
        if not founders:
            places = _free_places(plan, Address.parse(plan.brokers[0].address))
            founders = [
                NodePlan(kind="broker", id=number, group=group, address=address)
                for number, address in itertools.islice(places, brokers)
            ]
            save(directory, dataclasses.replace(plan, brokers=(*plan.brokers, *founders)))
        return founders


def _free_places(plan: ClusterPlan, beside: Address) -> Iterator[tuple[int, str]]:
    """Numbers and addresses, on the host of `beside`, that no node of the plan has."""
    taken = {node.address for node in plan.controllers + plan.brokers}
    port = max(Address.parse(address).port for address in taken)
    number = max(node.id for node in plan.brokers)
    while True:
        number += 1
        port += 1
        while port < 65_536 and is_taken(str(beside.with_port(port))):
            port += 1
        if port > 65_535:
            raise InvalidRequest(f"no port above those of the cluster is free on {beside.host}")
        yield number, str(beside.with_port(port))


def retire(directory: Path, node_id: int) -> None:
    """Marks a broker that left its group: `up` stops it for good; its data stays."""
    with _changing(directory) as plan:
        brokers = tuple(
            dataclasses.replace(node, retired=True) if node.id == node_id else node
            for node in plan.brokers
        )
        if brokers != plan.brokers:
            save(directory, dataclasses.replace(plan, brokers=brokers))
