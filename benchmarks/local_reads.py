"""Reads on a broker's own machine: shared memory beside the direct socket and gRPC, in one run.

How it works. A topic of 100 B messages and one of 1 KiB are filled once and read in the warm-up
round, so that all later rounds read from the page cache. A reader per way takes each topic from its
start as columns; the contenders take turns. CPU is user plus system time of this process, which is
the client, and of all nodes, for a million messages: two ways are equal at equal CPU where their
messages per CPU second are.

    python -m benchmarks.local_reads [--bytes 1g] [--rounds 5]

Not here: consumers and single messages (`consume.py`); reads of what the page cache does not hold
(`cold_read.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Mapping
from typing import Final

import psutil

from benchmarks.consume import POLL_SECONDS, fill
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

SIZES: Final = (100, 1 << 10)
WAYS: Final[Mapping[str, Mapping[str, bool]]] = {
    "direct socket": {"shared_memory": False, "direct_streams": True},
    "shared memory": {"shared_memory": True, "direct_streams": True},
    "gRPC": {"shared_memory": False, "direct_streams": False},
}
"""Options of `connect` by the name of the way; the first one is what ratios refer to."""
WORTH: Final = 1.3
"""A second way to read must bring this many times the messages of the first at equal CPU."""


def cpu_s(cluster: Cluster) -> float:
    """CPU seconds of this process and of all nodes."""
    own = os.times()
    nodes = [psutil.Process(node.pid).cpu_times() for node in cluster.nodes]
    return own.user + own.system + sum(times.user + times.system for times in nodes)


def read(cluster: Cluster, client: Client, topic: str, messages: int) -> Mapping[str, float]:
    """Reads a whole topic as columns, without a group."""
    used, start, count = cpu_s(cluster), time.perf_counter(), 0
    with client.reader(topic) as reader:
        while count < messages:
            batch = reader.poll_arrow(POLL_SECONDS)
            assert batch is not None, f"{count} of {messages} messages came"
            count += batch.num_rows
    elapsed = time.perf_counter() - start
    used = cpu_s(cluster) - used
    return {
        "messages_s": count / elapsed,
        "messages_per_cpu_s": count / used,
        "cpu_s_per_million": used / count * 1e6,
    }


def main() -> int:
    """Command line."""
    parser = arguments(
        "Measure reads on a broker's machine: through memory, a socket, and gRPC.", seconds=1.0
    )
    parser.add_argument(
        "--bytes", type=number(1 << 20, 1 << 36), default=1 << 30, help="of messages of each size"
    )
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * len(SIZES) * options.bytes)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        cluster = stack.enter_context(Cluster(data / "cluster"))
        clients = {
            way: stack.enter_context(connect(cluster.bootstrap, **chosen))
            for way, chosen in WAYS.items()
        }
        contenders: list[Contender] = []
        for size in SIZES:
            topic = f"of-{size}"
            count = fill(next(iter(clients.values())), topic, size, options.bytes // size)
            contenders += [
                Contender(
                    name=f"{size:,} B, {way}",
                    run=functools.partial(read, cluster, client, topic, count),
                )
                for way, client in clients.items()
            ]
        comparison = compare(
            f"Reads of {options.bytes >> 20:,} MiB in messages of 100 B and of 1 KiB each, from "
            "the page cache of a broker on the same machine",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(
                    contender=f"{size:,} B, shared memory",
                    metric="messages_per_cpu_s",
                    of=f"{size:,} B, direct socket",
                    at_least=WORTH,
                )
                for size in SIZES
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
