"""Seconds without a master: from the moment it goes to the next acknowledgement, again and again.

How it works. A thread sends one message after the other and awaits each. Each round takes the
master away in one of four ways, and takes the time from that moment to the acknowledgement of the
first message that was sent after it; for a planned hand-over it takes the longest time between two
acknowledgements while the hand-over lasts. Then the node is brought back and must catch up before
the next round, so every round starts from a healthy group of three. A failed send ends the run.

    kill        SIGKILL of the master
    stop        SIGSTOP
    isolate     everything the master sends or receives is cut, at proxies on all its links
    transfer    mastership is handed to another node, as for a planned restart

    python -m benchmarks.failover [--how kill|stop|isolate|transfer] [--rounds 20]

Not here: whether a message was lost or doubled meanwhile; tests show that.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import grpc

from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    outage,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from semel.protos.v1 import broker_pb2, broker_pb2_grpc
from tests.faults.proxied import ProxiedCluster
from tests.kit.cluster import Cluster, Node

TOPIC = "failover"
BEFORE_S = 1.0
"""How long messages flow before the master is taken away."""
AFTER_S = 0.5
"""How long messages flow after a planned hand-over, so that a late gap is seen."""
SEND_TIMEOUT_S = 60.0
LIMITS = {"kill": 1.5, "stop": 3.0, "isolate": 3.0, "transfer": 0.1}
"""Promised 99th percentile in seconds, by the way in which the master goes."""


class Sender:
    """A thread that sends one message after the other. `sent` has (start, end) of each, in s."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.sent: list[tuple[float, float]] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client.producer() as producer:
                while not self._stop.is_set():
                    start = time.perf_counter()
                    producer.send(TOPIC, b"message").result(SEND_TIMEOUT_S)
                    self.sent.append((start, time.perf_counter()))
        except BaseException as error:
            self._error = error

    def first_after(self, moment: float) -> float:
        """The acknowledgement time of the first message sent at `moment` or later; waits for it."""
        while True:
            self.check()
            later = [end for start, end in self.sent[-50:] if start >= moment]
            if later:
                return later[0]
            time.sleep(0.001)

    def longest_gap(self, since: float) -> float:
        """The longest time between two acknowledgements since the given moment."""
        ends = [end for _, end in self.sent if end >= since]
        return max(after - before for before, after in pairwise(ends))

    def check(self) -> None:
        """Raises the error of a failed send, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.check()


class Failover:
    """A cluster with a sender whose master goes away and comes back."""

    def __init__(self, cluster: Cluster, client: Client, how: str) -> None:
        self._cluster = cluster
        self._client = client
        self._how = how
        self.all_seconds: list[float] = []

    def run(self) -> Mapping[str, float]:
        """Runs one round; `seconds` is the time without an acknowledgement."""
        sender = Sender(self._client)
        try:
            time.sleep(BEFORE_S)
            master = self._cluster.master()
            if self._how == "transfer":
                seconds = self._planned(sender, master)
            else:
                take, bring_back = self._ways()
                start = time.perf_counter()
                take(master)
                seconds = sender.first_after(start) - start
                bring_back(master)
        finally:
            sender.close()
        self._cluster.wait_caught_up()
        self.all_seconds.append(seconds)
        return {"seconds": seconds}

    def _planned(self, sender: Sender, master: Node) -> float:
        start = time.perf_counter()
        with grpc.insecure_channel(master.address) as channel:
            broker_pb2_grpc.MembersStub(channel).TransferMastership(
                broker_pb2.TransferMastershipRequest(
                    cluster_id=self._cluster.status(master).cluster_id, group_id=master.group
                ),
                timeout=10,
            )
        time.sleep(AFTER_S)
        return sender.longest_gap(start)

    def _ways(self) -> tuple[Callable[[Node], object], Callable[[Node], object]]:
        """The functions that take the master away and that bring it back."""
        cluster = self._cluster
        if self._how == "kill":
            return cluster.kill, cluster.start_node
        if self._how == "stop":
            return cluster.pause, cluster.resume
        assert isinstance(cluster, ProxiedCluster)
        return (
            lambda master: cluster.network.cut(cluster.around(master)),
            lambda master: cluster.network.free(cluster.around(master)),
        )

    def all_rounds(self) -> Mapping[str, float]:
        """The figures over all rounds so far."""
        return outage(self.all_seconds)


def main() -> int:
    """Command line."""
    parser = arguments("Measure the time without a master.", rounds=20)
    parser.add_argument("--how", choices=sorted(LIMITS), default="kill")
    options = parser.parse_args()
    require_disk(parser, options.data, 1 << 30)
    how: str = options.how
    kind = ProxiedCluster if how == "isolate" else Cluster
    with (
        temporary_directory(options.data) as data,
        kind(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=1)
        failover = Failover(cluster, client, how)
        comparison = compare(
            f"Failover ({how}): from the master's going to the next acknowledgement",
            [Contender(name=how, run=failover.run)],
            rounds=options.rounds,
            warm_ups=0,
            targets=[Target(contender="all rounds", metric="p99_s", at_most=LIMITS[how])],
        )
        comparison.rounds["all rounds"] = [failover.all_rounds()]
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
