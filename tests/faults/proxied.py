"""A cluster of processes whose every directed link runs through a proxy.

How it works. Nodes listen on 127.0.0.1 as ever. Each broker is told a place of its own for every
peer and for the controller (`--peer-at`, `--controllers`), and all advertise themselves at the
proxies of the clients; the controller counts as a client of the brokers. When a node has started,
the ports that its process listens on are exposed on all links that lead to it.

Not here: the proxies (`proxy.py`), the processes (`tests/kit/cluster.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from tests.faults.proxy import Network, link_host
from tests.kit.cluster import CLUSTER_ID, Cluster, Node

CLIENTS: Final = 200
"""Number of all clients together, as a party of the network."""
CONTROLLER: Final = 201


class ProxiedCluster(Cluster):
    """A `Cluster` with a `network`. Nodes are parties by their ids."""

    def __init__(
        self,
        data: Path,
        *,
        brokers: int = 3,
        groups: int = 1,
        broker_flags: Sequence[str] = (),
        cluster_id: str = CLUSTER_ID,
        seed: int = 0,
    ) -> None:
        self.network = Network(seed)
        super().__init__(
            data, brokers=brokers, groups=groups, broker_flags=broker_flags, cluster_id=cluster_id
        )
        self.bootstrap = _through(CLIENTS, CONTROLLER, self.controller_address)

    def _controller_flags(self) -> list[str]:
        return ["--advertise", _through(CLIENTS, CONTROLLER, self.controller_address)]

    def _broker_flags(self, number: int, members: dict[int, str]) -> list[str]:
        flags = ["--controllers", _through(number, CONTROLLER, self.controller_address)]
        for member, address in members.items():
            public = _through(CLIENTS, member, address)
            flags += ["--member", f"{member}={public}"]
            if member == number:
                flags += ["--advertise", public]
            else:
                flags += ["--peer-at", f"{member}={_through(number, member, address)}"]
        return flags

    def __enter__(self) -> ProxiedCluster:
        self.network.__enter__()
        try:
            super().__enter__()
        except BaseException:
            self.network.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self.network.__exit__(kind, error, trace)

    def _wait_listening(self, node: Node, deadline: float) -> None:
        super()._wait_listening(node, deadline)
        self._expose(node)

    def _expose(self, node: Node) -> None:
        """Opens the links to a node that has started."""
        ports = self.ports(node)
        target = party(node)
        for source in (CLIENTS, *(each.id for each in self.brokers)):
            if source != target:
                self.network.expose(source, target, ports)

    def ports(self, node: Node) -> set[int]:
        """All ports that a running node listens on."""
        found = {
            connection.laddr.port
            for connection in psutil.Process(node.pid).net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert found, f"{node.kind} {node.id} listens nowhere"
        return found

    def public_address(self, node: Node) -> str:
        """Where clients reach a node."""
        return _through(CLIENTS, party(node), node.address)

    # Partitions by name, as flows to cut.

    def around(self, node: Node, *, clients: bool = True) -> list[tuple[int, int]]:
        """All that a broker says and hears, with or without its clients."""
        return [
            *self.said_by(node, clients=clients),
            *((b, a) for a, b in self.said_by(node, clients=clients)),
            (node.id, CONTROLLER),
            (CONTROLLER, node.id),
        ]

    def said_by(self, node: Node, *, clients: bool = False) -> list[tuple[int, int]]:
        """What a broker says to the others."""
        others = [each.id for each in self.brokers if each is not node]
        return [(node.id, other) for other in (*others, *([CLIENTS] if clients else []))]

    def heard_by(self, node: Node) -> list[tuple[int, int]]:
        """What a broker hears from the others."""
        return [(b, a) for a, b in self.said_by(node)]

    def held(self) -> int:
        """Pieces of data that cuts have held so far, over all flows."""
        return sum(flow.held for flow in self.network.flows())

    def wait_said(self, node: Node, text: str, timeout: float = 10.0) -> bool:
        """Waits for a line in the node's log; False when none comes."""
        deadline = time.monotonic() + timeout
        while text not in node.log_file.read_text(errors="replace"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def wait_held(self, before: int, timeout: float = 5.0) -> int:
        """Waits until a cut has held something; how much."""
        deadline = time.monotonic() + timeout
        while (held := self.held() - before) == 0:
            assert time.monotonic() < deadline, "the cut did not bite"
            time.sleep(0.01)
        return held


def party(node: Node) -> int:
    """The node's number in the network."""
    return CONTROLLER if node.kind == "controller" else node.id


def _through(source: int, target: int, address: str) -> str:
    return f"{link_host(source, target)}:{address.rpartition(':')[2]}"
