"""A storm of reconnecting clients: the master dies, and all of them want the next one at once.

How it works. Processes run `--clients` clients of the SDK, each with its own connections and one
producer that has stored a message and goes on with the same queue. The master is killed, and in
that moment every client sends one message. The dead node comes back and catches up before the next
round. One cluster has TLS on every wire, the other has none; one runs after the other, because two
sets of clients would not fit.

    first_s    from the kill to the first acknowledgement: most of it is the election
    p50_s      … to the acknowledgement of half of the clients
    served_s   … to the acknowledgement of the last one
    nodes_ms   CPU of the nodes that are left, from the kill on, for each client
    clients_ms CPU of the client programs, for each client
    attached_s how long it took to connect all

Both sides share the processors of one machine, so a storm takes at least the sum of both, divided
by their number, after the election.

    python -m benchmarks.reconnect [--clients 2000] [--processes 4] [--rounds 3] [--new-queues]

Not here: the clients (`reconnect_client.py`); one client and ways to lose a master (`failover.py`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from benchmarks.client_processes import Process, client_processes, line_of, pipe
from benchmarks.harness import (
    Comparison,
    Target,
    arguments,
    number,
    percentile,
    progress,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.reconnect_client import TOPIC
from semel.client import connect
from tests.kit.cluster import Cluster
from tests.kit.secure_cluster import SecureCluster

QUEUES: Final = 8
PLAIN: Final = "plaintext"
TLS: Final = "TLS"
CATCH_UP_S: Final = 60.0


class Crowd:
    """The client processes of one cluster."""

    def __init__(self, processes: list[Process], clients: int, attached_s: float) -> None:
        self._processes = processes
        self._clients = clients
        self.attached_s = attached_s

    def storm(self, cluster: Cluster) -> Mapping[str, float]:
        """Kills the master, has every client send, and brings the node back."""
        master = cluster.master()
        left = [node.pid for node in cluster.nodes if node is not master and node.running]
        programs = [process.pid for process in self._processes]
        nodes_s, clients_s = _cpu_s(left), _cpu_s(programs)
        cluster.kill(master)
        killed = time.monotonic()
        for process in self._processes:
            stdin = pipe(process.stdin)
            stdin.write("\n")
            stdin.flush()
        acked = sorted(
            moment - killed
            for process in self._processes
            for moment in json.loads(line_of(process))
        )
        nodes_s, clients_s = _cpu_s(left) - nodes_s, _cpu_s(programs) - clients_s
        cluster.start_node(master)
        cluster.wait_caught_up(timeout=CATCH_UP_S)
        return {
            "first_s": acked[0],
            "p50_s": percentile(acked, 50),
            "served_s": acked[-1],
            "nodes_ms": nodes_s * 1000 / self._clients,
            "clients_ms": clients_s * 1000 / self._clients,
            "attached_s": self.attached_s,
        }


def _cpu_s(pids: list[int]) -> float:
    """CPU seconds that processes have used."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(one.user + one.system for one in times))


@contextlib.contextmanager
def crowd(cluster: Cluster, clients: int, processes: int, *, new_queues: bool) -> Iterator[Crowd]:
    """Runs client processes, which are ended with the context."""
    command = [sys.executable, "-m", "benchmarks.reconnect_client", cluster.bootstrap]
    if isinstance(cluster, SecureCluster):
        files = cluster.authority.write(cluster.security.identity)
        command += ["--security", str(files)]
    if new_queues:
        command.append("--new-queues")
    share = -(-clients // processes)
    parts = [min(share, clients - first) for first in range(0, clients, share)]
    commands = [[*command, "--clients", str(part)] for part in parts]
    began = time.monotonic()
    with client_processes(commands, f"  connecting {clients:,} clients …") as running:
        yield Crowd(running, clients, time.monotonic() - began)


def clusters(data: Path) -> Iterator[tuple[str, Cluster]]:
    """The clusters by name, not started."""
    yield PLAIN, Cluster(data / "plain")
    yield TLS, SecureCluster(data / "tls")


def main() -> int:
    """Command line."""
    parser = arguments("Kill the master of very many clients.", rounds=3)
    parser.add_argument("--clients", type=number(1, 100_000), default=2_000)
    parser.add_argument("--processes", type=number(1, 64), default=4)
    parser.add_argument(
        "--new-queues", action="store_true", help="producers write to queues they have not used"
    )
    options = parser.parse_args()
    require_disk(parser, options.data, 2 << 30)
    comparison = Comparison(
        title=f"{options.clients:,} clients whose master dies, 3 replicas on one machine",
        targets=[Target(contender=name, metric="served_s", at_most=5.0) for name in (PLAIN, TLS)],
    )
    with temporary_directory(options.data) as data:
        for name, cluster in clusters(data):
            comparison.rounds[name] = []
            with cluster:
                with connect(
                    cluster.bootstrap,
                    security=cluster.security if isinstance(cluster, SecureCluster) else None,
                    keep_routes=False,
                ) as client:
                    client.admin.create_topic(TOPIC, queues=QUEUES)
                with crowd(
                    cluster, options.clients, options.processes, new_queues=options.new_queues
                ) as all_clients:
                    for done in range(options.rounds):
                        progress(f"  round {done + 1} of {options.rounds}: {name} …")
                        comparison.rounds[name].append(all_clients.storm(cluster))
        progress("")
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
