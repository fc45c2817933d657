"""TLS beside plaintext: bulk produce, awaited messages and reads by socket, in one run.

How it works. Two clusters of three replicas run on this machine, one with TLS on every wire, and
each load runs on the one and the other in turn. Reads are by direct socket: shared memory has no
TLS to pay for. CPU is user plus system time of this process, which is the client, and of all nodes.
`--plaintext-replication` adds a third cluster, whose replicas talk in plaintext among themselves.

    python -m benchmarks.security [--rounds 5] [--seconds 3] [--plaintext-replication]

Not here: the parts of the way without TLS (`produce.py`, `latency.py`, `local_reads.py`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.consume import fill
from benchmarks.harness import (
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
from benchmarks.produce import CALL_BYTES, RETENTION_BYTES, BulkProducer
from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.secure_cluster import SecureCluster

PLAIN: Final = "plaintext"
TLS: Final = "TLS"
MIXED: Final = "TLS, replication in plaintext"
MESSAGE_BYTES: Final = 1 << 10
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

    def reads(self, seconds: float) -> Figures:
        """As columns, from the page cache; always the whole topic."""
        figures = read(self._cluster, self._client, "reads", self._stored)
        per_message = figures["cpu_s_per_million"] / 1e6
        return {
            "mb_s": figures["messages_s"] * MESSAGE_BYTES / 1e6,
            "cpu_ms_per_gb": per_message / MESSAGE_BYTES * 1e12,
        }


def clusters(data: Path, *, mixed: bool) -> dict[str, Cluster]:
    """The clusters by name, not started."""
    found: dict[str, Cluster] = {PLAIN: Cluster(data / "plain"), TLS: SecureCluster(data / "tls")}
    if mixed:
        found[MIXED] = SecureCluster(data / "mixed", broker_flags=EVERYWHERE)
    return found


def main() -> int:
    """Command line."""
    parser = arguments("Compare a cluster with TLS on every wire with one in plaintext.")
    parser.add_argument("--read-bytes", type=number(1 << 20, 1 << 34), default=256 << 20)
    parser.add_argument("--plaintext-replication", action="store_true")
    options = parser.parse_args()
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
        for what in ("produce", "awaited", "reads"):
            for name, load in loads.items():
                run: Callable[[float], Figures] = getattr(load, what)
                contenders.append(
                    Contender(name=f"{what}, {name}", run=functools.partial(run, options.seconds))
                )
        comparison = compare(
            f"TLS beside plaintext: {MESSAGE_BYTES:,} B messages, 3 replicas on one machine",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(
                    contender=f"produce, {TLS}", metric="mb_s", of=f"produce, {PLAIN}", at_least=0.6
                ),
                Target(
                    contender=f"awaited, {TLS}",
                    metric="p50_ms",
                    of=f"awaited, {PLAIN}",
                    at_most=1.25,
                ),
                Target(
                    contender=f"reads, {TLS}", metric="mb_s", of=f"reads, {PLAIN}", at_least=0.6
                ),
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
