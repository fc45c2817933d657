"""What routes cost the controllers with very many clients: measured for some, and a model of more.

How it works. `--watches` clients with connections of their own watch the routes of one controller,
and as many those of one broker. Processor time and memory of both nodes are taken while the watches
open, while a group's master changes some times (a report of a node that there is not, of a group
that has no topics), and while clients ask for the routes of a topic.

    open_us       one watch that opens, connection included
    watch_kib     memory of one watch
    push_us       one watch that is told of a change
    routes_us     one question for a topic's routes
    probe_us      one question to a broker whether it is master

The model takes these costs and the clients' own waits (`semel.client.transport.controllers`) to
tell what `--clients` clients cost at `--nodes` broker nodes when something happens. Each client is
simulated with its random waits, in virtual time. Printed are the most calls in one second at one
controller and at one broker, and the processor time that this second takes, in cores. When a
master ends, all clients use its group, of three nodes, which elects another one after `--outage`
seconds, and those who watched the dead node ask; *at once* is what happens if every client asks as
one of few does.

    python -m benchmarks.route_changes [--watches 900] [--clients 100000,1000000] [--nodes 300]

Not here: clients that are attached and idle (`attached.py`), many topics (`many.py`).
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc.aio
import numpy as np
import psutil

from benchmarks.commands import Help
from benchmarks.harness import Comparison, arguments, number, progress, report, temporary_directory
from semel.broker.control_plane.route_cache import PUSHES_A_SECOND, WATCHES_MAX
from semel.broker.server.node_status import QUESTIONS_A_SECOND as ASKED_A_SECOND
from semel.client import connect
from semel.client.core.retry import Backoff
from semel.client.transport.controllers import SCATTER_S, WATCH_POLICY
from semel.client.transport.master_search import (
    CROWD_POLICY,
    CROWD_S,
    ELECTION_S,
    SEARCH_POLICY,
    WATCHED_S,
)
from semel.client.transport.streams import FEW
from semel.controller import ControllerConfig
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.v1 import broker_pb2, common_pb2
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.broker_pb2_grpc import BrokerStub
from semel.protos.v1.controller_pb2_grpc import ControllerStub
from tests.kit.cluster import Cluster, Node

TOLD: Final = levels_metadata(own_levels())
CHANGES: Final = 5
QUESTIONS: Final = 2_000
AT_ONCE: Final = 100
SETTLE_S: Final = 3.0
QUIET_GROUP: Final = 99
GROUP_NODES: Final = 3
SEED: Final = 1
CONTROLLER_WATCHES: Final = ControllerConfig(data=Path()).watches_max


@dataclass(frozen=True, slots=True)
class Costs:
    """What one of each takes at a node, in µs of one core, and a watch's memory in KiB."""

    open_us: float
    watch_kib: float
    push_us: float
    routes_us: float
    probe_us: float = 0.0

    def figures(self) -> Mapping[str, float]:
        """As figures of a report."""
        return {
            "open_us": self.open_us,
            "watch_kib": self.watch_kib,
            "push_us": self.push_us,
            "routes_us": self.routes_us,
            "probe_us": self.probe_us,
        }


class Watchers:
    """Clients that watch the groups, each on a connection of its own."""

    def __init__(self, address: str, count: int) -> None:
        self._channels = [
            grpc.aio.insecure_channel(
                address, options=[*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(count)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._told = [0] * count
        """Highest term of the quiet group that each was told."""
        self._begun = 0

    async def open(self) -> None:
        """Returns when all have the routes."""
        for first in range(0, len(self._channels), AT_ONCE):
            last = min(first + AT_ONCE, len(self._channels))
            self._tasks += [asyncio.ensure_future(self._watch(at)) for at in range(first, last)]
            await _until(partial(self._has_begun, last))

    def _has_begun(self, count: int) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()  # a watch that was refused ends the run
        return self._begun >= count

    async def told(self, term: int) -> None:
        """Returns when all were told of this term of the quiet group."""
        await _until(lambda: min(self._told) >= term)

    async def close(self) -> None:
        """Ends all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _watch(self, at: int) -> None:
        stub: Any = ControllerStub(self._channels[at])
        begun = False
        async for routes in stub.WatchRoutes(pb.GetRoutesRequest(groups_only=True), metadata=TOLD):
            self._begun += not begun
            begun = True
            terms = [group.term for group in routes.groups if group.group_id == QUIET_GROUP]
            self._told[at] = max([self._told[at], *terms])


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - a look now and then costs less than an event a watch
        await asyncio.sleep(0.01)


async def measured(
    cluster: Cluster, node: Node, cluster_id: str, options: Any, terms: Iterable[int]
) -> Costs:
    """The costs at one node; `terms` gives rising terms of the quiet group."""
    process = psutil.Process(node.pid)

    def cpu_us() -> float:
        times = process.cpu_times()
        return float(times.user + times.system) * 1e6

    resident, before = node.resident_bytes(), cpu_us()
    watchers = Watchers(node.address, options.watches)
    try:
        progress(f"  {options.watches:,} watches of the {node.kind} …")
        await watchers.open()
        opened = cpu_us()
        grown = node.resident_bytes() - resident
        await asyncio.sleep(SETTLE_S)
        idle_us = cpu_us() - opened
        pushed_us = 0.0
        channel = grpc.aio.insecure_channel(cluster.controller_address, options=CHANNEL_OPTIONS)
        async with channel:
            for _, term in zip(range(CHANGES), terms, strict=False):
                start = cpu_us()
                await ControllerStub(channel).ReportNode(_report(cluster_id, term), metadata=TOLD)
                await watchers.told(term)
                await asyncio.sleep(SETTLE_S)
                pushed_us += max(0.0, cpu_us() - start - idle_us)
    finally:
        await watchers.close()
    start = cpu_us()
    async with grpc.aio.insecure_channel(node.address, options=CHANNEL_OPTIONS) as channel:
        stub: Any = ControllerStub(channel)
        for _ in range(QUESTIONS // AT_ONCE):
            asked = pb.GetRoutesRequest(topics=["orders"])
            await asyncio.gather(*(stub.GetRoutes(asked, metadata=TOLD) for _ in range(AT_ONCE)))
    asked_us = cpu_us() - start
    start = cpu_us()
    async with grpc.aio.insecure_channel(node.address, options=CHANNEL_OPTIONS) as channel:
        broker: Any = BrokerStub(channel)
        for _ in range(QUESTIONS // AT_ONCE if node.kind == "broker" else 0):
            looked = broker_pb2.NodeStatusRequest(role_only=True)
            await asyncio.gather(
                *(broker.GetNodeStatus(looked, metadata=TOLD) for _ in range(AT_ONCE))
            )
    probed_us = cpu_us() - start
    progress("")
    return Costs(
        open_us=(opened - before) / options.watches,
        watch_kib=grown / 1024 / options.watches,
        push_us=pushed_us / CHANGES / options.watches,
        routes_us=asked_us / QUESTIONS,
        probe_us=probed_us / QUESTIONS,
    )


def _report(cluster_id: str, term: int) -> pb.ReportNodeRequest:
    return pb.ReportNodeRequest(
        cluster_id=cluster_id,
        group_id=QUIET_GROUP,
        node=common_pb2.NodeAddress(node_id=QUIET_GROUP, address="127.0.0.1:1"),
        role="master",
        term=term,
        master_id=QUIET_GROUP,
        levels=own_levels(),
    )


class Model:
    """What happens at a controller and at one broker when something changes for all clients."""

    def __init__(
        self, clients: int, nodes: int, controller: Costs, broker: Costs, outage_s: float
    ) -> None:
        self._clients = clients
        self._outage_s = outage_s
        self._at_controller = min(clients, CONTROLLER_WATCHES)
        self._a_broker = math.ceil((clients - self._at_controller) / nodes)
        """Watches at one broker."""
        self._nodes = nodes
        self._controller = controller
        self._broker = broker
        self._random = random.Random(SEED)

    def places(self) -> Mapping[str, float]:
        """Where the clients watch, and the memory that this takes."""
        return {
            "controller_watches": self._at_controller,
            "broker_watches": self._a_broker,
            "controller_mib": self._at_controller * self._controller.watch_kib / 1024,
            "broker_mib": self._a_broker * self._broker.watch_kib / 1024,
            "broker_room": WATCHES_MAX - self._a_broker,
        }

    def change(self) -> Mapping[str, float]:
        """A group has a new master, or a group is new: every watch is told."""
        controller, paced = np.zeros(self._at_controller), self._paced()
        return self._peaks(
            controller, self._controller.push_us, paced, self._broker.push_us, told=paced
        )

    def _paced(self) -> Any:
        """When a broker tells each of those who watch it, in s after the change."""
        paced = np.arange(self._a_broker) / PUSHES_A_SECOND
        paced[paced < 0.1] = 0.0
        return paced

    def master_ends(self, *, at_once: bool = False) -> Mapping[str, float]:
        """The master of a group that all clients use dies: they ask one of its two other nodes.
        With `at_once` all of them ask as those do whose watches are at the controllers."""
        asked: list[float] = []
        told = self._paced() if self._a_broker else np.zeros(1)
        last = 0.0
        for client in range(self._clients):
            crowded = client >= self._at_controller
            until = self._outage_s + (float(told[client % len(told)]) if crowded else 0.0)
            scattered = self._clients > FEW and not at_once
            lost = crowded and client % self._nodes == 0  # it watched the node that died
            if scattered and lost:
                until = math.inf
            pause_s = 0.0 if at_once else min(self._clients, self._at_controller) / ASKED_A_SECOND
            backoff = Backoff(CROWD_POLICY if scattered else SEARCH_POLICY, self._random.random)
            first = (ELECTION_S, ELECTION_S + CROWD_S) if lost else WATCHED_S
            now = self._random.uniform(*first) if scattered else 0.0
            while now < until:
                node = self._random.randrange(GROUP_NODES - 1) if scattered else 0  # not the dead
                asked += [now] if node == 0 else []
                if now >= self._outage_s and node < GROUP_NODES - 1:
                    until = now  # it is told by whom it asks
                now += max(backoff.next_ms() / 1000, pause_s * (1 - 0.5 * self._random.random()))
            last = max(last, until)
        found = self._peaks(np.zeros(0), 0.0, np.array(asked), self._broker.probe_us)
        return {**found, "last_told_s": last}

    def controller_ends(self) -> Mapping[str, float]:
        """The active controller ends: those who watched it come to the next one, or to brokers."""
        waits = [self._waits_s() for _ in range(self._at_controller)]
        return self._peaks(np.array(waits), self._controller.open_us, np.zeros(0), 0.0)

    def broker_ends(self) -> Mapping[str, float]:
        """A broker ends: those who watched it spread over the others."""
        waits = [self._random.uniform(0, SCATTER_S) for _ in range(self._a_broker)]
        there = np.array([wait for wait in waits if self._random.random() * (self._nodes - 1) < 1])
        return self._peaks(np.zeros(0), 0.0, there, self._broker.open_us)

    def move(self) -> Mapping[str, float]:
        """A queue that all clients use moves: the old group's answers name the new group, which
        all of them know by their watches. Nobody asks for routes."""
        return self._peaks(np.zeros(0), 0.0, np.zeros(0), 0.0)

    def _waits_s(self) -> float:
        """How long a client waits until it opens a watch anew, if the next controller serves a
        second after the old one's end."""
        backoff, waited = Backoff(WATCH_POLICY, self._random.random), 0.0
        while waited < 1.0:
            waited += backoff.next_ms() / 1000
        return waited

    @staticmethod
    def _peaks(
        controller: Any,
        controller_us: float,
        broker: Any,
        broker_us: float,
        told: Any = None,
    ) -> Mapping[str, float]:
        """From the times of all calls in s: the busiest second of each."""
        found: dict[str, float] = {}
        for name, times, cost_us in (
            ("controller", controller, controller_us),
            ("broker", broker, broker_us),
        ):
            calls = int(np.bincount(times.astype(int)).max()) if len(times) else 0
            found |= {f"{name}_calls": calls, f"{name}_cores": calls * cost_us / 1e6}
        if told is not None and len(told):
            found["last_told_s"] = float(told.max())
        return found


def counts(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Command line."""
    parser = arguments("Measure what routes cost with very many clients.", rounds=1, seconds=1)
    parser.formatter_class = Help
    parser.add_argument("--watches", type=number(1, 900), default=900)
    parser.add_argument("--clients", type=counts, default=[100_000, 1_000_000])
    parser.add_argument("--nodes", type=number(2, 100_000), default=300, help="broker nodes")
    parser.add_argument("--outage", type=float, default=0.8, help="until a master is elected, in s")
    options = parser.parse_args()
    whole = Comparison(title=f"routes, {options.watches:,} watches at each node")
    with (
        temporary_directory(options.data) as data,
        Cluster(data / "cluster", brokers=1) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("orders", queues=10)
        cluster_id = client.admin.cluster_status().cluster_id
        terms = iter(range(1, 1_000))
        controller, broker = (
            asyncio.run(measured(cluster, node, cluster_id, options, terms))
            for node in (cluster.controller, cluster.brokers[0])
        )
    whole.rounds["controller"] = [controller.figures()]
    whole.rounds["broker"] = [broker.figures()]
    for clients in options.clients:
        model = Model(clients, options.nodes, controller, broker, options.outage)
        for name in ("places", "change", "move", "controller_ends", "broker_ends", "master_ends"):
            whole.rounds[f"{clients:,} clients: {name}"] = [getattr(model, name)()]
        whole.rounds[f"{clients:,} clients: … at once"] = [model.master_ends(at_once=True)]
    return report(whole, options)


if __name__ == "__main__":
    sys.exit(main())
