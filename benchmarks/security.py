"""TLS beside plaintext: bulk produce, awaited messages and reads by socket, in one run.

How it works. Two clusters of three replicas run on this machine, one with TLS on every wire, and
each load runs on the one and the other in turn. Reads are by direct socket: shared memory has no
TLS to pay for. CPU is user plus system time of this process, which is the client, and of all nodes.
`--plaintext-replication` adds a third cluster, whose replicas talk in plaintext among themselves.
The open loop sends 1,000 messages a second and takes each latency from the planned time.
`--peer SCRIPT` adds a round of Kafka with TLS on every wire, measured by that script.

    python -m benchmarks.security [--rounds 5] [--seconds 3] [--plaintext-replication]
    python -m benchmarks.security --peer peers/peer_kafka.py

Not here: the parts of the way without TLS (`produce.py`, `latency.py`, `local_reads.py`), a crowd
that connects anew (`reconnect.py`), how Kafka gets TLS (`kafka_tls.py`).
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.commands import add_peer_silence, guarded
from benchmarks.consume import fill
from benchmarks.harness import (
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    number,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.latency import sync_round_trips
from benchmarks.local_reads import cpu_s, read
from benchmarks.peer import Peer
from benchmarks.produce import CALL_BYTES, RETENTION_BYTES, BulkProducer
from benchmarks.side_by_side_client import open_loop
from semel.client import Client, connect
from tests.kit.authority import Authority
from tests.kit.cluster import Cluster
from tests.kit.secure_cluster import SecureCluster

PLAIN: Final = "plaintext"
TLS: Final = "TLS"
MIXED: Final = "TLS, replication in plaintext"
WRAPPER: Final = Path(__file__).with_name("kafka_tls.py")
MESSAGE_BYTES: Final = 1 << 10
RATE: Final = 1_000
"""Messages a second of the open loop."""
LOADS: Final = {
    "produce": "produce",
    "awaited": "awaited",
    "open loop": "open_loop",
    "reads": "reads",
}
EVERYWHERE: Final = ("--replication-plaintext-within", "127.0.0.0/8")

Figures = Mapping[str, float]


class Loads:
    """The three loads on one cluster."""

    def __init__(self, cluster: Cluster, client: Client, read_bytes: int) -> None:
        self._cluster = cluster
        self._client = client
        values = random_values(CALL_BYTES // MESSAGE_BYTES, MESSAGE_BYTES)
        self._value = values[0]
        client.admin.create_topic("produce", queues=4, retention_bytes=RETENTION_BYTES)
        client.admin.create_topic("awaited", queues=1)
        self._bulk = BulkProducer(client, "produce", values)
        self._stored = fill(client, "reads", MESSAGE_BYTES, read_bytes // MESSAGE_BYTES)

    def produce(self, seconds: float) -> Figures:
        """Bulk."""
        used, start = cpu_s(self._cluster), time.perf_counter()
        mb_s = self._bulk.run(seconds)["mb_s"]
        sent_mb = mb_s * (time.perf_counter() - start)
        return {"mb_s": mb_s, "cpu_ms_per_gb": (cpu_s(self._cluster) - used) * 1e6 / sent_mb}

    def awaited(self, seconds: float) -> Figures:
        """One message at a time."""
        return sync_round_trips(self._client, self._value, seconds, "awaited")

    def open_loop(self, seconds: float) -> Figures:
        """Messages at planned times."""
        found = open_loop(
            self._client, "awaited", int(RATE * seconds), RATE // 2, MESSAGE_BYTES, RATE
        )
        return {"p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"]}

    def reads(self, seconds: float) -> Figures:
        """As columns, from the page cache; always the whole topic."""
        figures = read(self._cluster, self._client, "reads", self._stored)
        per_message = figures["cpu_s_per_million"] / 1e6
        return {
            "mb_s": figures["messages_s"] * MESSAGE_BYTES / 1e6,
            "cpu_ms_per_gb": per_message / MESSAGE_BYTES * 1e12,
        }


def add_kafka(comparison: Comparison, script: Path, data: Path, silence_s: float) -> None:
    """One round of Kafka with TLS; its figures join those of the same load."""
    certificates = data / "kafka"
    Authority(certificates).write_machine("127.0.0.1")
    peer = Peer(
        shlex.join([sys.executable, str(WRAPPER), str(certificates / "127.0.0.1"), str(script)]),
        workloads=["W2", "W3"],
        scale=1.0,
        durability="default",
        silence_s=silence_s,
        data=data,
    )
    for cell, figures in peer.run().items():
        if cell.workload == "W2":
            load, found = (
                "produce",
                {
                    "mb_s": figures["msg_s"] * MESSAGE_BYTES / 1e6,
                    "cpu_ms_per_gb": figures["cpu_s_per_million"] * 1e6 / MESSAGE_BYTES,
                },
            )
        else:
            load, found = "awaited", {name: figures[name] for name in ("p50_ms", "p99_ms")}
        comparison.rounds.setdefault(f"{load}, {cell.contender}", []).append(found)


def clusters(data: Path, *, mixed: bool) -> dict[str, Cluster]:
    """The clusters by name, not started."""
    found: dict[str, Cluster] = {PLAIN: Cluster(data / "plain"), TLS: SecureCluster(data / "tls")}
    if mixed:
        found[MIXED] = SecureCluster(data / "mixed", broker_flags=EVERYWHERE)
    return found


def targets(*, mixed: bool) -> list[Target]:
    """What TLS may cost."""

    def promise(load: str, metric: str, bound: dict[str, float], name: str = TLS) -> Target:
        return Target(
            contender=f"{load}, {name}",
            metric=metric,
            of=f"{load}, {PLAIN}",
            at_least=bound.get("at_least"),
            at_most=bound.get("at_most"),
        )

    found = [
        promise("produce", "mb_s", {"at_least": 0.6}),
        promise("awaited", "p50_ms", {"at_most": 1.25}),
        promise("open loop", "p99_ms", {"at_most": 1.3}),
        promise("reads", "mb_s", {"at_least": 0.6}),
    ]
    return found + [promise("produce", "mb_s", {"at_least": 0.85}, MIXED)] * mixed


def main() -> int:
    """Command line."""
    parser = arguments("Compare a cluster with TLS on every wire with one in plaintext.")
    parser.add_argument("--read-bytes", type=number(1 << 20, 1 << 34), default=256 << 20)
    parser.add_argument("--plaintext-replication", action="store_true")
    parser.add_argument(
        "--peer", type=Path, metavar="SCRIPT", help="a script that measures Kafka in plaintext"
    )
    add_peer_silence(parser)
    options = parser.parse_args()
    if options.peer is not None and not options.peer.is_file():
        parser.error(f"--peer {options.peer}: there is no such file")
    names = 3 if options.plaintext_replication else 2
    require_disk(parser, options.data, names * (3 * options.read_bytes + 12 * RETENTION_BYTES))
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        contenders: list[Contender] = []
        loads: dict[str, Loads] = {}
        for name, cluster in clusters(data, mixed=options.plaintext_replication).items():
            stack.enter_context(cluster)
            security = cluster.security if isinstance(cluster, SecureCluster) else None
            client = stack.enter_context(
                connect(
                    cluster.bootstrap, security=security, shared_memory=False, keep_routes=False
                )
            )
            loads[name] = Loads(cluster, client, options.read_bytes)
        for what, method in LOADS.items():
            for name, load in loads.items():
                run: Callable[[float], Figures] = getattr(load, method)
                contenders.append(
                    Contender(name=f"{what}, {name}", run=functools.partial(run, options.seconds))
                )
        comparison = compare(
            f"TLS beside plaintext: {MESSAGE_BYTES:,} B messages, 3 replicas on one machine",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=targets(mixed=options.plaintext_replication),
        )
    if options.peer is not None:
        with temporary_directory(options.data) as data:
            add_kafka(comparison, options.peer.absolute(), data, options.peer_silence)
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(guarded(main))
