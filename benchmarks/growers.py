"""The growers of `growth`: each brings a cluster from one point of its curve to the next.

How it works. A *grower* only ever adds, so that a curve is one cluster that grows, and takes the
fastest way through the real protocol: bulk calls for messages, one call for a topic's queues, raw
streams of fences and batches for producers, raw clients for consumers that are attached.

A *shape* is a choice of the client on a cluster that does not grow: the size of messages, batches
in flight, readers. It is measured at any point in any order.

Not here: the measuring (`growth_points.py`), clients of the raw protocol (`growth_client.py`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from benchmarks.attached import attached
from benchmarks.attached_client import MEMBERS, READ, WRITTEN
from benchmarks.growth_points import HOT_QUEUES, Figures, Site
from benchmarks.harness import progress, random_values
from benchmarks.side_by_side_client import ACK_S, produce
from benchmarks.workloads import SERVE_S, ClientError, ClientProcess

MAKE_S = 600
SMALL_BYTES = 10
PRODUCER_QUEUES = 16
"""Enough queues that none has more producers than it remembers."""
ROWS_AT_ONCE = 100_000
"""Rows that one client process makes."""
TRIES = 5
APPLICATION = 5
"""Number of consumers, and of producers, of one application."""
PROCESSES = 4
SPREAD_BYTES = 80 << 20
"""Bytes of one figure; the messages stay until the end."""
IN_FLIGHT_BATCH_BYTES = 64 << 10
"""Small enough that the window in batches is full before the one in bytes."""
READ_BYTES = 64 << 20
READ_CALL = 4 << 10


class GrowthClient(ClientProcess):
    """One process of `growth_client.py`."""

    MODULE = "benchmarks.growth_client"


class Grower(ABC):
    """Brings a site from point to point."""

    survives: ClassVar[bool] = True
    """True when the growth is still there after all nodes were killed and restarted."""

    def __init__(self, site: Site, held: ExitStack, rows_each: int) -> None:
        """`held` closes resources at the end; an idle producer wrote to `rows_each` queues."""
        self.site = site
        self.held = held
        self.rows_each = rows_each
        self.count = 0
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - not all do
        """Creates the topics that growing needs."""

    @abstractmethod
    def reach(self, point: int) -> None:
        """Grows to `point` from the one before. Raises ClientError, SemelError, RuntimeError."""

    def rates(self) -> Figures:
        """Rates that only this curve has."""
        return {}


class Messages(Grower):
    """Small messages in one topic."""

    def prepare(self) -> None:
        self.site.client.admin.create_topic("stored", queues=HOT_QUEUES)

    def reach(self, point: int) -> None:
        more, self.count = point - self.count, point
        bootstrap = self.site.cluster.bootstrap
        produce(bootstrap, "stored", records=more, size=SMALL_BYTES, how="arrow")


class Queues(Grower):
    """Topics that together have as many queues as the point; only `rates` writes to them."""

    def reach(self, point: int) -> None:
        self._largest = f"queues-{point}"
        self.site.client.admin.create_topic(self._largest, queues=point - self.count)
        self.count = point

    def rates(self) -> Figures:
        """The rate to all queues of the largest topic in turn."""
        return {"spread_msg_s": self.site.load(self._largest, volume=SPREAD_BYTES)["msg_s"]}


class Producers(Grower):
    """Rows of producers that stored one message in each of some queues.

    The producers are gone, and so are their messages.
    """

    def prepare(self) -> None:
        self.site.client.admin.create_topic("idle", queues=PRODUCER_QUEUES, retention_bytes=1)

    def reach(self, point: int) -> None:
        """Makes rows, and repeats a call that an election interrupted: made rows stay."""
        failed = 0
        while self.count < point:
            count = min(ROWS_AT_ONCE, point - self.count)
            progress(f"  {self.count:,} of {point:,} producer rows …")
            try:
                self._make(count)
            except ClientError:
                failed += 1
                if failed == TRIES:
                    raise
                continue
            self.count += count
        cluster = self.site.cluster
        known = cluster.status(cluster.master(), timeout=SERVE_S).producers
        if known < point:
            raise RuntimeError(f"the broker group knows {known:,} of {point:,} producer rows")
        deadline = time.monotonic() + SERVE_S
        while not 0 < self.site.messages("idle") <= PRODUCER_QUEUES:  # the newest of a queue stays
            if time.monotonic() > deadline:
                raise RuntimeError("the messages of idle producers are not trimmed")
            time.sleep(0.1)

    def _make(self, count: int) -> None:
        cluster = self.site.cluster
        with GrowthClient(
            "producers",
            controller=cluster.controller_address,
            broker=cluster.master().address,
            topic="idle",
            queues=PRODUCER_QUEUES,
            rows_each=self.rows_each,
            first=self.count,
            count=count,
            limit_s=MAKE_S,
        ) as process:
            process.result()


class Consumers(Grower):
    """Attached and idle: consumers that are members of groups, and as many producers."""

    survives = False

    def prepare(self) -> None:
        for topic in (WRITTEN, READ):
            self.site.client.admin.create_topic(topic, queues=MEMBERS)

    def reach(self, point: int) -> None:
        begun = self.count // APPLICATION
        more = point // APPLICATION - begun
        clients = attached(self.site.cluster, more, APPLICATION, min(PROCESSES, more), start=begun)
        self.held.enter_context(clients)
        self.count = point


GROWERS: Mapping[str, type[Grower]] = {
    "messages": Messages,
    "queues": Queues,
    "producers": Producers,
    "consumers": Consumers,
}


# --- shapes: what a client may choose -------------------------------------------------------------


def size(site: Site, point: int, figures: Collection[str], seconds: float) -> Figures:
    """Figures for messages of `point` bytes."""
    found = site.latency(size=point) if "latency" in figures else {}
    return found | (site.rate(size=point) if "rate" in figures else {})


def in_flight(site: Site, point: int, figures: Collection[str], seconds: float) -> Figures:
    """Figures for `point` unacknowledged batches to one queue."""
    return site.hot(figures, queues=1, batch_bytes=IN_FLIGHT_BATCH_BYTES, max_in_flight=point)


def readers(site: Site, point: int, figures: Collection[str], seconds: float) -> Figures:
    """Figures for `point` readers of one queue: reading together, then waiting for a message."""
    found: Figures = {}
    with (
        _read_topic(site) as topic,
        GrowthClient(
            "readers",
            controller=site.cluster.controller_address,
            broker=site.cluster.master().address,
            topic=topic,
            count=point,
            seconds=seconds,
        ) as process,
    ):
        process.wait_ready()
        if "latency" in figures:
            found |= site.awaited(topic)
        found |= site.memory() if "memory" in figures else {}
        process.tell()
        read = process.result()
    if "rate" in figures:
        found["read_mb_s"] = read["bytes"] / read["seconds"] / 1e6
    return found


@contextmanager
def _read_topic(site: Site) -> Iterator[str]:
    """A topic of one queue with messages to read."""
    with site.topic(1) as topic, site.client.producer() as producer:
        values = random_values(READ_CALL, 1 << 10)
        for _ in range(site.scaled(READ_BYTES // (READ_CALL << 10), 1)):
            producer.send_many(topic, values)
        producer.flush(ACK_S)
        yield topic


SHAPES: Mapping[str, Callable[[Site, int, Collection[str], float], Figures]] = {
    "sizes": size,
    "in-flight": in_flight,
    "readers": readers,
}
