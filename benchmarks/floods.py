"""Awaited produce while a flood of other calls arrives, beside the same without one, in one run.

How it works. A cluster of three replicas and a controller runs on this machine. One producer sends
a message and awaits its acknowledgement, then the next. Meanwhile a process floods the master (for
joins the controller, too) with calls of one kind: `CALLERS` callers, each of which asks again as
soon as it is answered or refused, so that there is always more to do than is done.

What is fair. All processes share the machine: where it has few cores, the flooding program takes
time from the brokers by running at all, whatever it sends. So it runs at the lowest priority
(nice 19), and one contender, `burner`, is a program of that priority that computes and calls
nobody: what is lost beside it is the machine's loss, not the broker's. The target is against
`quiet` all the same.

`loop_p50_ms` and `loop_p99_ms` are the CPU of the master's event loop between a message and its
acknowledgement: what it does for the message, and what it does for others before that and while the
slaves write. Of a flood there is also how many calls a second were answered, and how many refused.
On a machine that is busy with other things all figures are too large, and ratios say little.

    python -m benchmarks.floods [--rounds 5] [--seconds 3] [--kind metadata …]

Not here: the flooding program (`floods_client.py`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.consume import fill
from benchmarks.floods_client import BURNER, FLOODS
from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    percentile,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.latency import WARM_UP, summary
from semel.client import Client, connect
from tests.kit.cluster import Cluster

AWAITED: Final = "awaited"
FLOODED: Final = "flooded"
QUIET: Final = "quiet"
MESSAGE_BYTES: Final = 1 << 10
CALLERS: Final = 32
CACHE_BYTES: Final = 8 << 20
"""A broker's, so that what is read is not in its memory."""
P99_TIMES: Final = 3

Figures = Mapping[str, float]


@contextlib.contextmanager
def flood(kind: str, cluster: Cluster, callers: int, figures: dict[str, float]) -> Iterator[None]:
    """A flood while the block runs; afterwards `figures` has what became of its calls."""
    settings = {
        "kind": kind,
        "bootstrap": cluster.bootstrap,
        "topic": FLOODED,
        "callers": callers,
    }
    command = [sys.executable, "-m", "benchmarks.floods_client", json.dumps(settings)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it has begun
        yield
    finally:
        process.stdin.close()
        figures.update(json.loads(process.stdout.readline() or "{}"))
        process.stdout.close()
        process.wait(30)


def round_trips(cluster: Cluster, client: Client, value: bytes, seconds: float) -> Figures:
    """Sends and waits, again and again."""
    pid = cluster.master().pid
    took, used = [], []
    with client.producer() as producer:
        for _ in range(WARM_UP):
            producer.send(AWAITED, value).result(30)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            before = loop_cpu_s(pid)
            producer.send(AWAITED, value).result(30)
            took.append(time.perf_counter() - start)
            used.append(loop_cpu_s(pid) - before)
    return {
        **summary(took),
        "loop_p50_ms": percentile(used, 50) * 1e3,
        "loop_p99_ms": percentile(used, 99) * 1e3,
    }


def loop_cpu_s(pid: int) -> float:
    """CPU that the main thread of a process has used so far."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def awaited(
    kind: str, cluster: Cluster, client: Client, callers: int, value: bytes, seconds: float
) -> Figures:
    """One message at a time beside a flood."""
    figures: dict[str, float] = {}
    if kind == QUIET:
        return round_trips(cluster, client, value, seconds)
    with flood(kind, cluster, callers, figures):
        found = round_trips(cluster, client, value, seconds)
    return {**found, **figures}


def main() -> int:
    """Command line."""
    parser = arguments("Compare awaited produce beside floods of calls with a quiet cluster.")
    parser.add_argument("--stored-bytes", type=number(1 << 20, 1 << 34), default=128 << 20)
    parser.add_argument("--callers", type=number(1, 10_000), default=CALLERS)
    parser.add_argument("--kind", action="append", choices=[BURNER, *FLOODS])
    options = parser.parse_args()
    kinds = options.kind or [BURNER, *FLOODS]
    require_disk(parser, options.data, 4 * options.stored_bytes + (1 << 30))
    value = random_values(1, MESSAGE_BYTES)[0]
    with (
        temporary_directory(options.data) as data,
        Cluster(data, broker_flags=("--cache-bytes", str(CACHE_BYTES))) as cluster,
        connect(cluster.bootstrap, keep_routes=False) as client,
    ):
        client.admin.create_topic(AWAITED, queues=1)
        fill(client, FLOODED, MESSAGE_BYTES, options.stored_bytes // MESSAGE_BYTES)
        run = functools.partial(
            awaited,
            cluster=cluster,
            client=client,
            callers=options.callers,
            value=value,
            seconds=options.seconds,
        )
        comparison = compare(
            f"Awaited produce beside floods: {MESSAGE_BYTES:,} B messages, 3 replicas,"
            f" {options.callers} callers that never rest",
            [Contender(name=kind, run=functools.partial(run, kind)) for kind in (QUIET, *kinds)],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
            targets=[
                Target(contender=kind, metric="p99_ms", of=QUIET, at_most=P99_TIMES)
                for kind in kinds
                if kind != BURNER
            ],
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
