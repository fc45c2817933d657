"""Delayed messages: a burst that is due in one second, and a backlog over days.

How it works. Two things are measured on a cluster of real processes, with three replicas unless
`--brokers` says otherwise.

*A burst*: `--messages` of `--message-bytes` are stored, all due in the same second, over `--queues`
queues. How late the first and the last of them got offsets is taken twice: from outside, by asking
for the ends of the queues every 50 ms, and from the history, by the log's time. Meanwhile another
topic gets one message at a time, each awaited, as it did for `--seconds` before.

*A backlog*: `--backlog` messages are delayed over `--days` days, each second as full as the others.
They come in the order in which they are due, so what is due in one second of a queue is one batch
and more. With `--batch-messages N` they come in batches of N in no order, each due in a second of
its own; batches of one are the hardest case, for each batch is an extent in memory. Then memory is
read, and a slave and the whole cluster are killed and started again. `--brokers 1` measures one
replica without others, where the disk has no room for three.

    python -m benchmarks.delays                                     # a million of each
    python -m benchmarks.delays --messages 10000000 --backlog 0     # the goal of a burst
    python -m benchmarks.delays --messages 0 --backlog 100000000    # the goal of a backlog
    python -m benchmarks.delays --messages 0 --backlog 10000000 --batch-messages 1 --brokers 1

Not here: latency by itself (`latency.py`), memory with messages in queues (`memory_restart.py`).
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.commands import Help, guarded
from benchmarks.harness import (
    MESSAGE_BYTES_MAX,
    Comparison,
    Contender,
    Target,
    arguments,
    compare,
    decimal,
    number,
    percentile,
    progress,
    random_values,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.kit.cluster import Cluster

BURST, BACKLOG, QUIET = "burst", "backlog", "quiet"
CALL_MESSAGES = 50_000
STORED_PER_SECOND = 50_000
"""A burst is due after as long as it takes to store it at this rate, and some seconds."""
LEAD_S = 5.0
LOOK_S = 0.05
FLUSH_S = 3_600.0
RELEASE_S = 600.0
SERVE_S = 300.0
SECOND_US = 1_000_000
SCATTER = 7_368_787
"""A prime: batches that follow one another are due days apart."""
DISK_BYTES_PER_MESSAGE = 54
"""Beside the message: columns, and what is written before old segments are recycled."""
DISK_BYTES_PER_BATCH = 320
"""Its headers; batches of a backlog that comes in order are large."""


class Awaited(threading.Thread):
    """One message at a time, each awaited, on a topic of its own, until it is stopped."""

    def __init__(self, client: Client, value: bytes) -> None:
        super().__init__(name="awaited", daemon=True)
        self._client = client
        self._value = value
        self._ended = threading.Event()
        self.durations: list[float] = []

    def run(self) -> None:
        """Sends until `figures` is called."""
        with self._client.producer() as producer:
            while not self._ended.is_set():
                start = time.perf_counter()
                producer.send(QUIET, self._value).result(60)
                self.durations.append(time.perf_counter() - start)

    def figures(self) -> Mapping[str, float]:
        """Stops it, and returns the percentiles of all that was awaited."""
        self._ended.set()
        self.join()
        return {
            f"p{percent}_ms": percentile(self.durations, percent) * 1e3 for percent in (50, 99, 100)
        }


class Site:
    """The cluster with its topics, and what is done to them."""

    def __init__(self, cluster: Cluster, client: Client, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._client = client
        self._options = options
        self._values = random_values(
            min(CALL_MESSAGES, max(options.messages, options.backlog, 1)), options.message_bytes
        )
        self._arrow = pa.array(self._values, pa.binary())
        self._during: Mapping[str, float] = {}
        client.admin.create_topic(QUIET, queues=1)

    # --- a burst ----------------------------------------------------------------------------

    def before(self) -> Mapping[str, float]:
        """Latency of the quiet topic while nothing else happens."""
        awaited = Awaited(self._client, self._values[0])
        awaited.start()
        time.sleep(self._options.seconds)
        return awaited.figures()

    def during(self) -> Mapping[str, float]:
        """The same during the last burst."""
        return self._during

    def burst(self) -> Mapping[str, float]:
        """Stores a burst and waits until it is released."""
        admin, count = self._client.admin, self._options.messages
        admin.delete_topic(BURST, if_exists=True)
        admin.create_topic(BURST, queues=self._options.queues)
        store_s = self._options.store_seconds or LEAD_S + count / STORED_PER_SECOND
        due_s = math.ceil(time.time() + store_s)
        start = time.perf_counter()
        with self._client.producer() as producer:
            for first in range(0, count, CALL_MESSAGES):
                progress(f"  storing: {first:,} of {count:,} messages …")
                values = self._arrow.slice(0, min(CALL_MESSAGES, count - first))
                producer.send_many(BURST, values, deliver_at=due_s * SECOND_US)
            producer.flush(FLUSH_S)
        stored_s = time.perf_counter() - start
        if time.time() > due_s - 1:
            raise RuntimeError(
                f"to store the burst took {stored_s:.0f} s, and it was due after {store_s:.0f}:"
                " give a larger --store-seconds"
            )
        progress("  waiting for the burst …")
        time.sleep(max(0.0, due_s - 1 - time.time()))
        awaited = Awaited(self._client, self._values[0])
        awaited.start()
        first_s = last_s = math.nan
        while math.isnan(last_s):
            released = self._released()
            now_s = time.time()
            if released and math.isnan(first_s):
                first_s = now_s - due_s
            if released == count:
                last_s = now_s - due_s
            elif now_s > due_s + RELEASE_S:
                raise RuntimeError(f"{released:,} of {count:,} messages came in {RELEASE_S:.0f} s")
            else:
                time.sleep(LOOK_S)
        self._during = awaited.figures()
        rows = admin.delay_history(BURST, limit=10_000)
        return {
            "stored_messages_s": count / stored_s,
            "first_s": first_s,
            "last_s": last_s,
            "first_by_log_s": min(row.late_min_us for row in rows) / SECOND_US,
            "last_by_log_s": max(row.late_us for row in rows) / SECOND_US,
        }

    def _released(self) -> int:
        queues = self._client.admin.describe_topic(BURST).queues
        return sum(queue.log_end_offset for queue in queues)

    # --- a backlog --------------------------------------------------------------------------

    def fill(self) -> Mapping[str, float]:
        """Delays the backlog; the first of it is due an hour from now."""
        admin, count = self._client.admin, self._options.backlog
        admin.create_topic(BACKLOG, queues=self._options.queues)
        first_s = int(time.time()) + 3_600
        seconds = max(1, round(self._options.days * 86_400))
        start = time.perf_counter()
        with self._client.producer() as producer:
            for first in range(0, count, CALL_MESSAGES):
                progress(f"  delaying: {first:,} of {count:,} messages …")
                numbers = np.arange(first, min(first + CALL_MESSAGES, count))
                dues = (first_s + self._seconds(numbers, seconds)) * SECOND_US
                values = self._arrow.slice(0, len(numbers))
                producer.send_many(BACKLOG, values, deliver_at=pa.array(dues, pa.int64()))
            producer.flush(FLUSH_S)
        return {"messages_s": count / (time.perf_counter() - start)}

    def _seconds(self, numbers: np.ndarray[Any, np.dtype[np.int64]], seconds: int) -> Any:
        """In which of so many seconds each message is due."""
        messages = self._options.batch_messages
        if not messages:
            return numbers * seconds // self._options.backlog
        # Those that follow one another without a key go to one queue.
        return numbers // messages * SCATTER % seconds

    def memory(self) -> Mapping[str, float]:
        """The largest resident memory of a node, and what the topic tells of its backlog."""
        start = time.perf_counter()
        found = self._client.admin.delay_stats(BACKLOG)
        seconds = time.perf_counter() - start
        if found.messages != self._options.backlog:
            raise RuntimeError(f"{found.messages:,} messages are delayed, not the whole backlog")
        rss = max(node.resident_bytes() for node in self._cluster.brokers) / 2**20
        return {"rss_mib": rss, "batches": found.batches, "stats_ms": seconds * 1e3}

    def restart_slave(self) -> Mapping[str, float]:
        """Kills a slave; `seconds` is from its start until it has applied everything."""
        slave = self._cluster.slaves()[0]
        self._cluster.kill(slave)
        start = time.perf_counter()
        self._cluster.start_node(slave, SERVE_S)
        self._cluster.wait_caught_up(timeout=SERVE_S)
        return {"seconds": time.perf_counter() - start}

    def restart_all(self) -> Mapping[str, float]:
        """Kills all nodes; `seconds` is from their start until a message is acknowledged."""
        for node in self._cluster.nodes:
            self._cluster.kill(node)
        start = time.perf_counter()
        self._cluster.start(SERVE_S)
        with self._client.producer() as producer:
            producer.send(QUIET, b"again").result(SERVE_S)
        return {"seconds": time.perf_counter() - start}


def burst_contenders(site: Site) -> list[Contender]:
    """Returns what is run in turn for the burst."""
    return [
        Contender(name="awaited before", run=site.before),
        Contender(name="burst", run=site.burst),
        Contender(name="awaited during the burst", run=site.during),
    ]


BURST_TARGETS = (
    Target(contender="burst", metric="first_s", at_most=1),
    Target(contender="burst", metric="last_s", at_most=10),
    Target(contender="awaited during the burst", metric="p99_ms", of="awaited before", at_most=2),
)
BACKLOG_TARGETS = (
    Target(contender="backlog: a node", metric="rss_mib", at_most=400),
    Target(contender="backlog: restart a slave", metric="seconds", at_most=5),
    Target(contender="backlog: restart all", metric="seconds", at_most=5),
)


def run(options: argparse.Namespace) -> int:
    """Measures and prints; returns the exit status."""
    whole = Comparison(
        title=f"Delayed messages of {options.message_bytes} B, {options.queues} queues,"
        f" {options.brokers} replicas:"
        f" {options.messages:,} due in one second, {options.backlog:,} over {options.days:g} days"
    )
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", brokers=options.brokers) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        site = Site(cluster, client, options)
        promised: list[Target] = []
        if options.messages:
            contenders = burst_contenders(site)
            part = compare("", contenders, rounds=options.rounds, warm_ups=options.warm_ups)
            whole.rounds |= part.rounds
            promised += BURST_TARGETS
        if options.backlog:
            whole.rounds["backlog: filling"] = [site.fill()]
            steps = [("a node", site.memory), ("restart a slave", site.restart_slave)]
            steps += [("restart all", site.restart_all), ("a node, restarted", site.memory)]
            for name, step in steps if options.brokers > 1 else (steps[0], *steps[2:]):
                progress(f"  backlog: {name} …")
                whole.rounds[f"backlog: {name}"] = [step()]
            promised += [each for each in BACKLOG_TARGETS if each.contender in whole.rounds]
    whole.targets = promised
    progress("")
    return report(whole, options)


def main() -> int:
    """Command line."""
    parser = arguments("Measure how late a burst is, and what a backlog costs.", rounds=3)
    parser.formatter_class = Help
    parser.epilog = __doc__[__doc__.index("    python -m") : __doc__.index("Not here")]
    million = 1_000_000
    parser.add_argument(
        "--messages", type=number(0, 1 << 30), default=million, help="of a burst; 0: no burst"
    )
    parser.add_argument(
        "--backlog", type=number(0, 1 << 30), default=million, help="delayed over days; 0: none"
    )
    parser.add_argument("--days", type=decimal(0.001, 3_650), default=7.0)
    parser.add_argument("--message-bytes", type=number(1, MESSAGE_BYTES_MAX), default=200)
    parser.add_argument(
        "--batch-messages",
        type=number(0, 100_000),
        default=0,
        help="of a backlog that comes in no order; 0: in the order of delivery",
    )
    parser.add_argument("--brokers", type=number(1, 5), default=3, help="replicas of the log")
    parser.add_argument("--queues", type=number(1, 1_000), default=4)
    parser.add_argument(
        "--store-seconds",
        type=decimal(1, 86_400),
        default=None,
        help="a burst is due so long after its storing began; by its size if not given",
    )
    options = parser.parse_args()
    bursts = options.messages * (options.rounds + options.warm_ups)
    messages = bursts + options.backlog
    batches = messages // options.batch_messages if options.batch_messages else 0
    need = messages * (options.message_bytes + DISK_BYTES_PER_MESSAGE)
    need += batches * DISK_BYTES_PER_BATCH
    require_disk(parser, options.data, options.brokers * need + (2 << 30))
    return guarded(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
