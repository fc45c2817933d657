"""Dedup by message id: producing with ids beside the same without, over windows of many ids.

How it works. Two clusters of real processes with a topic each, one of which compares message ids:
in one log, to remove old messages of one topic would mean to copy those of the other. For each size
of the window that topic is filled with so many ids, which is timed, and the window is bounded
there, so that it goes on to take in as many ids as it drops. Then both topics get the same messages
in turn: by bulk calls, by a loop of `send()`, and one at a time, each awaited. Ids have 16 bytes;
in bulk calls a share of them is of messages that the window has. Processor time is that of all
nodes of the cluster and of this process. At last each node's memory and index are measured, and a
slave is killed and started again, with its index, and then without it.

    python -m benchmarks.ids                                    # a million ids, two minutes
    python -m benchmarks.ids --ids 1000000,10000000,100000000   # the curve; 40 GiB of disk
    python -m benchmarks.ids --peer 'python3 peers/peer_nats.py'   # bulk calls beside a peer's

Not here: the calls themselves (`id_load.py`), the index by itself (`id_index.py`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from benchmarks.commands import Help, add_peer_silence, guarded
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    number,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.id_load import PLAIN, RETENTION_BYTES, WITH_IDS, Load, Site
from benchmarks.peer import Peer, PeerError
from semel.broker.dedup.id_index import MEMORY_IDS
from semel.client import connect
from tests.kit.cluster import Cluster

DISK_BYTES_PER_ID = 120
"""An index may need this much while runs are merged."""
MANY_IDS = 100_000_000
PEER_WORKLOAD = "W1"
"""Bulk produce of 100 B, with and without ids."""


def of_peer(peer: Peer) -> Mapping[str, float]:
    """Runs a peer's bulk produce once; its fastest client that sends ids. Raises PeerError."""
    found = [
        figures
        for cell, figures in peer.run().items()
        if cell.workload == PEER_WORKLOAD and "ids true" in cell.variant
    ]
    if not found:
        raise PeerError(f"{peer.name} gave no figure of {PEER_WORKLOAD} with ids")
    best = max(found, key=lambda figures: figures["msg_s"])
    return {
        "messages_s": best["msg_s"],
        "cpu_s_per_million": best["cpu_s_per_million"],
        "rss_mib": max(value for name, value in best.items() if name.startswith("rss_mib_node")),
    }


def contenders(load: Load, window: str) -> tuple[list[Contender], list[Contender]]:
    """Returns what is run in turn: bulk calls, then messages one by one, whose ids would move the
    window on in between."""

    def both(name: str, run: Callable[[str], Mapping[str, float]]) -> list[Contender]:
        return [
            Contender(name=f"{window} {name}, {suffix}", run=partial(run, topic))
            for topic, suffix in ((PLAIN, "no ids"), (WITH_IDS, "ids"))
        ]

    return both("send_many", load.bulk), [
        *both("send()", load.send),
        *both("awaited", load.awaited),
    ]


def targets(ids: int, window: str, peer: Peer | None) -> list[Target]:
    """Returns the promises about one window."""
    bulk = 0.6 if ids < MANY_IDS else 0.45
    found = []
    for name, metric, least, most in (
        ("send_many", "messages_s", bulk, None),
        ("send()", "messages_s", 0.9, None),
        ("awaited", "p50_ms", None, 1.15),
    ):
        mine, other = f"{window} {name}, ids", f"{window} {name}, no ids"
        found.append(Target(contender=mine, metric=metric, of=other, at_least=least, at_most=most))
    nodes, restart = f"{window} a node", f"{window} restart of a slave"
    rebuilt = Target(contender=f"{window} rebuild of an index", metric="ids_s", at_least=300_000)
    beside = Target(
        contender=f"{window} send_many, ids",
        metric="messages_s",
        of=peer.name if peer is not None else "",
        at_least=1,
    )
    return [
        *found,
        Target(contender=nodes, metric="rss_mib", at_most=1024),
        Target(contender=nodes, metric="index_bytes_per_id", at_most=40),
        Target(contender=restart, metric="seconds", at_most=5),
        *([rebuilt] if ids > MEMORY_IDS else []),
        *([] if peer is None else [beside]),
    ]


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    whole = Comparison(
        title=f"Dedup by id: {options.message_bytes} B messages, {options.duplicates:.1%} known,"
        f" {options.queues} queues, 3 replicas"
    )
    promised: list[Target] = []
    with ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        sites = {}
        for topic in (PLAIN, WITH_IDS):
            cluster = stack.enter_context(Cluster(data / topic))
            client = stack.enter_context(connect(cluster.bootstrap))
            sites[topic] = Site(cluster, client, client.producer())
        load = Load(sites, options)
        peer = None
        if options.peer is not None:
            peer = Peer(
                options.peer,
                workloads=[PEER_WORKLOAD],
                scale=1,
                durability="default",
                silence_s=options.peer_silence,
                data=data,
            )
        for ids in options.ids:
            window = f"{ids / 1e6:g}M"
            whole.rounds[f"{window} filling"] = [load.fill(ids)]
            bulk, singly = contenders(load, window)
            if peer is not None and peer.name not in whole.rounds:
                bulk.append(Contender(name=peer.name, run=partial(of_peer, peer)))
            for some in (bulk, singly):
                part = compare("", some, rounds=options.rounds, warm_ups=options.warm_ups)
                whole.rounds |= part.rounds
            whole.rounds[f"{window} a node"] = [load.nodes()]
            whole.rounds[f"{window} restart of a slave"] = [load.restart()]
            if ids > MEMORY_IDS:  # else a checkpoint may not have waited for the disk yet
                whole.rounds[f"{window} rebuild of an index"] = [load.rebuild()]
            promised += targets(ids, window, peer)
        load.check()
    whole.targets = promised
    return report(whole, options)


def windows(text: str) -> list[int]:
    """An argparse type: rising numbers of ids, separated by commas."""
    found = [number(30_000, 1_000_000_000)(each) for each in text.split(",")]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text}: windows only grow; name them in rising order")
    return found


def main() -> int:
    """Command line."""
    parser = arguments("Compare producing with message ids with producing without.", rounds=5)
    parser.formatter_class = Help
    parser.epilog = (
        "examples:\n"
        "  ./run bench ids\n"
        "  ./run bench ids --ids 10000000 --json ids.json\n"
        "  ./run bench ids --ids 1000000,10000000,100000000 --check\n"
        "  ./run bench ids --peer 'python3 peers/peer_nats.py'"
    )
    parser.add_argument(
        "--ids", type=windows, default=[1_000_000], help="ids in the window, one size or several"
    )
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=100)
    parser.add_argument("--queues", type=number(1, 1_024), default=4)
    parser.add_argument(
        "--duplicates", type=decimal(0, 0.5), default=0.006, help="share of known ids in bulk calls"
    )
    parser.add_argument(
        "--peer", metavar="COMMAND", help="runs another broker, whose bulk produce is measured too"
    )
    add_peer_silence(parser)
    options = parser.parse_args()
    logs = 3 * 2 * options.queues * RETENTION_BYTES * 2
    require_disk(parser, options.data, logs + 3 * DISK_BYTES_PER_ID * options.ids[-1])
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
