"""Seconds without a master: from a signal to the next acknowledgement, again and again.

How it works. A producer sends one message after the other. Each round kills (or freezes) the master
while it does, and takes the time from the signal to the acknowledgement of a message that was sent
after it. Then the node is started again (or woken) and has to catch up before the next round, so
every round starts from a healthy group of three.

    python -m benchmarks.failover [--signal KILL|STOP] [--rounds 20]

Not here: whether nothing was lost or doubled meanwhile; tests show that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    percentile,
    report,
    require_disk,
    temporary_directory,
)
from semel.client import Client, connect
from tests.integration.cluster import Cluster

TOPIC = "failover"
BEFORE_SECONDS = 1.0
"""How long messages flow before the signal."""
LIMITS = {"KILL": 1.5, "STOP": 3.0}
"""Promised 99th percentile in seconds."""


@dataclass(slots=True, kw_only=True)
class Failover:
    """A cluster with a producer whose master goes away."""

    cluster: Cluster
    client: Client
    signal: str
    all_seconds: list[float] = field(default_factory=list)

    def run(self) -> Mapping[str, float]:
        """One round: `seconds` without an acknowledgement."""
        with self.client.producer() as producer:
            until = time.perf_counter() + BEFORE_SECONDS
            while time.perf_counter() < until:
                producer.send(TOPIC, b"before").result(30)
            master = self.cluster.master()
            start = time.perf_counter()
            if self.signal == "KILL":
                self.cluster.kill(master)
            else:
                self.cluster.pause(master)
            producer.send(TOPIC, b"after").result(60)
            seconds = time.perf_counter() - start
        if self.signal == "KILL":
            self.cluster.start_node(master)
        else:
            self.cluster.resume(master)
        self.cluster.wait_caught_up()
        self.all_seconds.append(seconds)
        return {"seconds": seconds}

    def all_rounds(self) -> Mapping[str, float]:
        """Over all rounds so far."""
        return {
            "p50_s": percentile(self.all_seconds, 50),
            "p99_s": percentile(self.all_seconds, 99),
            "worst_s": max(self.all_seconds),
        }


def main() -> int:
    """Command line."""
    parser = arguments("Measure the time without a master.", rounds=20)
    parser.add_argument("--signal", choices=sorted(LIMITS), default="KILL")
    options = parser.parse_args()
    require_disk(parser, options.data, 1 << 30)
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster") as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic(TOPIC, queues=1)
        failover = Failover(cluster=cluster, client=client, signal=options.signal)
        name = f"SIG{options.signal}"
        comparison = compare(
            f"Failover: from {name} of the master to the next acknowledgement",
            [Contender(name=name, run=failover.run)],
            rounds=options.rounds,
            warm_ups=0,
            targets=[
                Target(contender="all rounds", metric="p99_s", at_most=LIMITS[options.signal])
            ],
        )
        comparison.rounds["all rounds"] = [failover.all_rounds()]
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
