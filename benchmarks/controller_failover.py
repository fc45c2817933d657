"""Seconds without a controller: from the moment the master goes to the next change of metadata.

How it works. Three controllers with a store of their own or in a ZooKeeper of three real servers,
and one broker. Each round takes the active controller away, at once has a client create a topic,
and takes the time until the topic can be written: the others have to notice, elect, load, be found
by client and broker, and bring the queue to the broker. Then the controller is brought back, and
the next round begins when all three are in the group again.

    kill        SIGKILL of the active controller
    stop        SIGSTOP

    python -m benchmarks.controller_failover [--how kill|stop] [--store zookeeper] [--rounds 20]

Not here: that nothing is lost meanwhile; tests show that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack

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
from tests.kit.cluster import Cluster
from tests.kit.zookeeper import running_ensemble

LIMIT_S = 3.0
RETURN_TIMEOUT_S = 60.0


class Failover:
    """Three controllers, of which the active one goes away and comes back."""

    def __init__(self, cluster: Cluster, client: Client, how: str) -> None:
        self._cluster = cluster
        self._client = client
        self._how = how
        self.all_seconds: list[float] = []

    def run(self) -> Mapping[str, float]:
        """Runs one round; `seconds` is the time without a controller."""
        cluster = self._cluster
        master = cluster.active_controller()
        start = time.perf_counter()
        if self._how == "kill":
            cluster.kill(master)
        else:
            cluster.pause(master)
        self._client.admin.create_topic(f"round-{len(self.all_seconds)}", queues=1)
        seconds = time.perf_counter() - start
        if self._how == "kill":
            cluster.start_node(master)
        else:
            cluster.resume(master)
        self._wait_whole()
        self.all_seconds.append(seconds)
        return {"seconds": seconds}

    def _wait_whole(self) -> None:
        deadline = time.monotonic() + RETURN_TIMEOUT_S
        wanted = ["master", "standby", "standby"]
        while True:
            status = self._cluster.controller_status(self._cluster.active_controller())
            if status is not None and wanted == sorted(
                controller.role for controller in status.controllers if controller.alive
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError("the controllers did not all come back")
            time.sleep(0.05)

    def all_rounds(self) -> Mapping[str, float]:
        """The figures over all rounds so far."""
        return outage(self.all_seconds)


def main() -> int:
    """Command line."""
    parser = arguments("Measure the time without a controller.", rounds=20)
    parser.add_argument("--how", choices=["kill", "stop"], default="kill")
    parser.add_argument("--store", choices=["embedded", "zookeeper"], default="embedded")
    options = parser.parse_args()
    require_disk(parser, options.data, 1 << 30)
    how: str = options.how
    with ExitStack() as stack:
        data = stack.enter_context(temporary_directory(options.data))
        metadata = None
        if options.store == "zookeeper":
            servers = stack.enter_context(running_ensemble(data / "zookeeper"))
            metadata = f"zookeeper://{','.join(server.address for server in servers)}/semel"
        cluster = stack.enter_context(
            Cluster(data / "cluster", brokers=1, controllers=3, metadata=metadata)
        )
        client = stack.enter_context(connect(cluster.bootstrap))
        failover = Failover(cluster, client, how)
        comparison = compare(
            f"Controllers ({how}, {options.store}): from its going to the next change of metadata",
            [Contender(name=how, run=failover.run)],
            rounds=options.rounds,
            warm_ups=0,
            targets=[Target(contender="all rounds", metric="worst_s", at_most=LIMIT_S)],
        )
        comparison.rounds["all rounds"] = [failover.all_rounds()]
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
