"""A whole group under a nemesis: one event queue, one seed.

How it works. Time is the time of the next event. The network delays, loses, repeats and reorders;
links may be cut one way. A nemesis acts at random times: partitions, crashes, pauses, slow disks,
compaction, changes of membership, transfers. Then everything is healed, and the group must agree
and go on (`settle`): safety is checked all along, liveness at the end.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import assert_never

from semel.broker.raft import EntryMeta, Membership, Message, RaftConfig, RaftCore, Role
from semel.broker.raft.membership_history import add_learner, promote, remove
from semel.protos.errors import InvalidRequest, NotMaster, Throttled
from semel.protos.ids import NodeId
from tests.sim.checker import Checker, require
from tests.sim.disk import SimDisk
from tests.sim.node import ENTRY_BYTES, SimNode, Work

SIM_CONFIG = RaftConfig(
    tick_ms=45,
    heartbeat_ms=60,
    election_min_ms=200,
    election_max_ms=400,
    unreachable_max_ms=60,
    check_quorum_ms=400,
    log_stall_ms=600,
    loop_gap_ms=150,
    transfer_ms=300,
    append_bytes_max=3 * ENTRY_BYTES,
    inflight_bytes_max=8 * ENTRY_BYTES,
    inflight_messages_max=4,
    promote_lag_max=3,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad it is; probabilities per message, times in milliseconds."""

    loss: float = 0.02
    repeat: float = 0.02
    slow: float = 0.03
    slow_max_ms: float = 400.0
    latency_max_ms: float = 12.0
    sync_max_ms: float = 12.0
    sync_stall: float = 0.004
    sync_stall_max_ms: float = 1500.0
    notice_max_ms: float = 5.0
    fault_every_ms: float = 120.0
    proposal_every_ms: float = 30.0


CALM = Weather(loss=0, repeat=0, slow=0, sync_stall=0, latency_max_ms=4, sync_max_ms=4)


class Cluster:
    """Nodes 1..size are voters at the start; two more stand by."""

    def __init__(
        self,
        seed: int,
        *,
        core_class: type[RaftCore] = RaftCore,
        trust_completions: bool = False,
        weather: Weather | None = None,
        config: RaftConfig = SIM_CONFIG,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.core_class = core_class
        self.config = config
        self.checker = Checker()
        size = self.random.choice([1, 3, 3, 3, 3, 5, 5])
        self.weather = weather or self._random_weather()
        self.events = 0
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._payloads = count(1)
        self._contexts = count(1)
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._pulling: set[NodeId] = set()
        self._faults = True
        actions: dict[Callable[[], None], int] = {
            self._partition: 10,
            self._cut_one_way: 8,
            self._heal_network: 14,
            self._crash: 14,
            self._crash_all: 1,
            self._pause: 5,
            self._compact: 14,
            self._change_membership: 16,
            self._transfer: 6,
            self._refuse: 6,
        }
        # Swarm testing: every seed leaves some faults out and exaggerates others, so that rare
        # combinations come up that an average mix would drown.
        self._actions = list(actions)
        self._weights = [
            weight * self.random.choice((0, 1, 1, 2, 5)) for weight in actions.values()
        ]
        self._weights[2] = max(self._weights[2], 5)
        founding = Membership(voters=frozenset(NodeId(n) for n in range(1, size + 1)))
        self.nodes: dict[NodeId, SimNode] = {}
        for number in range(1, size + 3):
            node_id = NodeId(number)
            disk = SimDisk(founding, trust_completions=trust_completions)
            self.nodes[node_id] = SimNode(self, node_id, disk)
        self.disks = {node_id: node.disk for node_id, node in self.nodes.items()}

    def _random_weather(self) -> Weather:
        """Some seeds look for slow disks, some for a lossy network, some for quiet races."""
        random = self.random
        return Weather(
            loss=random.choice([0.0, 0.02, 0.1]),
            repeat=random.choice([0.0, 0.05]),
            slow=random.choice([0.0, 0.03, 0.15]),
            latency_max_ms=random.choice([4.0, 12.0, 40.0]),
            sync_max_ms=random.choice([3.0, 12.0, 80.0, 250.0]),
            sync_stall=random.choice([0.0, 0.01]),
            notice_max_ms=random.choice([1.0, 10.0, 200.0]),
            fault_every_ms=random.choice([60.0, 120.0, 200.0]),
        )

    # --- the world of a node

    @property
    def now_ms(self) -> int:
        return int(self._now)

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self._now + delay_ms, next(self._sequence), action))

    def schedule(self, node: SimNode, what: Work, action: Callable[[], None]) -> None:
        random, weather = self.random, self.weather
        match what:
            case Work.TICK:
                delay = random.uniform(25, 45)
            case Work.HARD_STATE | Work.FLUSH:
                delay = self._sync_ms()
            case Work.NOTICE:
                delay = random.choice((0.0, random.uniform(0, weather.notice_max_ms)))
            case Work.PULL:
                delay = random.uniform(1, 300)
            case Work.INSTALL:
                delay = 5 * self._sync_ms()
            case _:
                assert_never(what)
        self.later(delay, action)

    def _sync_ms(self) -> float:
        weather, random = self.weather, self.random
        if random.random() < weather.sync_stall:
            self.checker.seen["disk stall"] += 1
            return random.uniform(200, weather.sync_stall_max_ms)
        return random.uniform(0.1, weather.sync_max_ms)

    def transmit(self, data: bytes, message: Message, payloads: tuple[int, ...]) -> None:
        weather, random = self.weather, self.random
        link = (message.source, message.target)
        target = self.nodes[message.target]
        if link in self._cut or random.random() < weather.loss:
            return
        metas: tuple[EntryMeta, ...] = message.entries
        for _ in range(2 if random.random() < weather.repeat else 1):
            delay = random.uniform(0.1, weather.latency_max_ms)
            if random.random() < weather.slow:
                delay += random.uniform(0, weather.slow_max_ms)
            self.later(delay, lambda: target.receive(data, metas, payloads))

    def pull_snapshot(self, puller: SimNode, offer: Message) -> None:
        source = self.nodes[offer.source]
        links = {(puller.node_id, offer.source), (offer.source, puller.node_id)}

        def pulled() -> None:
            self._pulling.discard(puller.node_id)
            mark = offer.snapshot
            assert mark is not None
            checkpoint = source.disk.checkpoint
            reachable = source.up and not source.paused and not links & self._cut
            good = reachable and checkpoint.mark.index >= mark.index
            puller.snapshot_pulled(checkpoint if good else None)

        if puller.node_id not in self._pulling:
            self._pulling.add(puller.node_id)
            puller.later(Work.PULL, pulled)

    # --- running

    def run(self, duration_ms: float) -> None:
        """Faults for a while, then peace; raises AssertionError when anything is wrong."""
        for node in self.nodes.values():
            node.start()
        self.later(0, self._propose)
        self.later(self.random.uniform(0, 500), self._nemesis)
        self.run_until(duration_ms)
        self.settle()

    def run_until(self, end_ms: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_ms:
            self._now, _, action = heapq.heappop(queue)
            self.events += 1
            action()
        self._now = max(self._now, end_ms)

    @property
    def master(self) -> SimNode | None:
        """The master of the highest term, as it sees itself."""
        masters = [
            node for node in self.nodes.values() if node.up and node.core.role is Role.MASTER
        ]
        return max(masters, key=lambda node: node.core.term, default=None)

    def _propose(self) -> None:
        if not self._faults:
            return
        self.later(self.random.uniform(0, 2 * self.weather.proposal_every_ms), self._propose)
        for node in self.nodes.values():
            if node.up and not node.paused and node.core.role is Role.MASTER:
                for _ in range(self.random.choice((1, 1, 2, 5))):
                    node.propose(next(self._payloads))
                if self.random.random() < 0.3:
                    context = next(self._contexts)
                    self.checker.on_read_asked(context)
                    node.core.read_index(context, self.now_ms)
                    node.perform()

    # --- faults

    def _nemesis(self) -> None:
        if not self._faults:
            return
        self.later(self.random.uniform(0, 2 * self.weather.fault_every_ms), self._nemesis)
        self.random.choices(self._actions, self._weights)[0]()

    def _partition(self) -> None:
        """Two sides that do not hear each other; often the master is alone."""
        self.checker.seen["partition"] += 1
        nodes = list(self.nodes)
        master = self.master
        if master is not None and self.random.random() < 0.5:
            side = {master.node_id}
        else:
            side = set(self.random.sample(nodes, self.random.randint(1, len(nodes) - 1)))
        self._cut = {(a, b) for a in nodes for b in nodes if (a in side) != (b in side)}

    def _cut_one_way(self) -> None:
        self.checker.seen["one-way cut"] += 1
        source, target = self.random.sample(list(self.nodes), 2)
        if self.random.random() < 0.5:
            self._cut.add((source, target))
        else:
            self._cut |= {(source, other) for other in self.nodes}

    def _heal_network(self) -> None:
        self._cut.clear()

    def _crash(self, chosen: SimNode | None = None) -> None:
        up = [node for node in self.nodes.values() if node.up]
        if not up:
            return
        master = self.master if self.random.random() < 0.3 else None
        node = chosen or master or self.random.choice(up)
        node.crash()
        self._pulling.discard(node.node_id)
        self.checker.seen["crash"] += 1
        self.later(self.random.choice((1, 50, 200, 700)), lambda: self._restart(node))

    def _crash_all(self) -> None:
        for node in list(self.nodes.values()):
            if node.up:
                self._crash(node)

    def _restart(self, node: SimNode) -> None:
        if not node.up:
            node.start()

    def _pause(self) -> None:
        """SIGSTOP; the master more often than others."""
        node = self.master if self.random.random() < 0.6 else None
        node = node or self.random.choice(list(self.nodes.values()))
        if not node.up or node.paused:
            return
        self.checker.seen["pause"] += 1
        node.pause()
        incarnation = node.incarnation

        def resume() -> None:
            if node.incarnation == incarnation and node.paused:
                node.resume()

        self.later(self.random.choice((50, 200, 700)), resume)

    def _compact(self) -> None:
        for node in self.nodes.values():
            if node.up and not node.paused and self.random.random() < 0.5:
                first = node.disk.first_index
                node.compact(self.random.randint(first, max(first, node.applied_index) + 1))

    def _change_membership(self) -> None:
        for node in self.nodes.values():
            if not node.up or node.paused or node.core.role is not Role.MASTER:
                continue
            current = node.core.membership
            choices = [add_learner(current, n) for n in self.nodes if n not in current.nodes]
            choices += [promote(current, n) for n in current.learners] * 3
            if len(current.voters) > 1:
                choices += [remove(current, n) for n in current.nodes if len(current.voters) > 1]
            chosen = self.random.choice(choices)
            try:
                node.core.propose_membership_allowed(chosen)
            except (InvalidRequest, NotMaster, Throttled):
                self.checker.seen["membership change refused"] += 1
                continue
            node.propose(next(self._payloads), chosen)

    def _transfer(self) -> None:
        node = self.master
        if node is None or node.paused:
            return
        others = sorted(node.core.membership.voters - {node.node_id})
        if others:
            self.checker.seen["transfer"] += 1
            with contextlib.suppress(Throttled):  # the chosen one is non-counting
                node.core.transfer_mastership(self.random.choice(others), self.now_ms)
            node.perform()

    def _refuse(self) -> None:
        """Someone hears that the master's process is gone, rightly or not."""
        for node in self.nodes.values():
            if node.up and not node.paused and self.random.random() < 0.5:
                peer = node.core.master_id or self.random.choice(list(self.nodes))
                if peer != node.node_id:
                    node.core.on_peer_unreachable(peer, self.now_ms)
                    node.perform()

    # --- peace

    def settle(self, within_ms: float = 12_000) -> None:
        """Heal everything: then one master, new entries committed, all members equal."""
        self._faults = False
        self._cut.clear()
        self.weather = replace(CALM)
        for node in self.nodes.values():
            if not node.up:
                node.start()
            elif node.paused:
                node.resume()
        deadline_ms = self._now + within_ms
        index = payload = None
        while self._now < deadline_ms:
            self.run_until(self._now + 100)
            master = self.master
            if master is None:
                continue
            if payload is None or master.disk.last_index < (index or 0):
                payload = next(self._payloads)
                index = master.propose(payload)
                if index is None:
                    payload = None
                continue
            members = [self.nodes[n] for n in master.core.membership.nodes]
            if all(node.applied_index >= (index or 0) for node in members):
                self.checker.seen["settled"] += 1
                return
        master = self.master
        states = {
            node.node_id: (
                node.core.role.name,
                node.core.term,
                node.core.master_id,
                node.core.commit_index,
                node.disk.last_index,
            )
            for node in self.nodes.values()
        }
        require(False, f"no progress within {within_ms} ms of peace: {states}")


def run_seed(
    seed: int,
    *,
    core_class: type[RaftCore] = RaftCore,
    trust_completions: bool = False,
    duration_ms: float = 4000,
) -> Cluster:
    """One whole run; the cluster is returned for its counters. Raises AssertionError."""
    cluster = Cluster(seed, core_class=core_class, trust_completions=trust_completions)
    cluster.run(duration_ms)
    return cluster
