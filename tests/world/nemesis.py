"""What goes wrong and when: a plan made from the seed, a list of steps that can be shortened.

How it works. A plan is drawn before the run: which faults this seed exaggerates, the weather, and a
list of steps, each with its time and its own random number, from which it chooses victims when it
is carried out. So a shorter list is a valid plan too, and a failing run can be shrunk. After the
last step everything is healed.

Damage (rot, a lost directory) strikes one node a run: what all copies have lost nobody can mend.

Not here: what a fault does below (`disk.py`, `network.py`, `world.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from semel.broker.raft import Role
from semel.protos.ids import NodeId
from tests.world.clients import TOPIC, Loader, Member
from tests.world.network import Weather
from tests.world.nodes import broker_address
from tests.world.operator import brief_topic, fence_all

if TYPE_CHECKING:
    from tests.world.nodes import BrokerHost
    from tests.world.run import Run

NODES_MAX = 7
"""Brokers that a run ever starts."""
IO_KINDS = ("write", "sync", "syncdir", "create", "rename", "remove", "allocate")

FAULTS: dict[str, int] = {
    "kill": 10,
    "kill master": 8,
    "power cut": 8,
    "crash in operation": 16,
    "all lose power": 2,
    "stop": 6,
    "stop master": 6,
    "partition": 8,
    "isolate master": 6,
    "one-way cut": 8,
    "heal": 14,
    "disk stall": 6,
    "disk error": 3,
    "disk full": 6,
    "rot": 6,
    "misdirected write": 12,
    "lost directory": 1,
    "wall clock jump": 4,
    "planned restart": 5,
    "controller crash": 3,
    "controller crash in a write": 5,
    "brief topic": 4,
    "client crash": 10,
    "client stop": 5,
    "member stop": 5,
    "checkpoint": 6,
    "long absence": 6,
    "expiry": 8,
    "zombie": 3,
    "fence all": 2,
    "replace node": 3,
    "grow": 2,
    "transfer": 4,
    "drain": 3,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One fault."""

    at_s: float
    """After the start of the load."""
    kind: str
    chance: int
    """Seed of its choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a seed decides."""

    seed: int
    size: int
    """Founding nodes of the broker group."""
    steps: tuple[Step, ...]
    duration_s: float
    loss: float
    repeat: float
    slow: float
    latency_max_s: float
    sync_max_s: float
    clients: tuple[str, ...]
    lines: int
    """Of each loader's source."""
    send_mean_s: float
    send_timeout_ms: int
    victim: int
    """The node whose disk may rot."""
    segment_bytes: int
    checkpoint_records: int
    retention_bytes: int
    """Of the topic; 0 for none."""
    producers_max: int
    """Rows of a queue's sequence table."""
    producer_idle_ms: int
    queues: int
    cache_bytes: int
    lock_ms: int
    value_bytes: int
    """Messages are padded to so much."""
    checkpoint_keep: int
    skew: float
    """Of the nodes' clock rates."""


def make_plan(seed: int) -> Plan:
    """The plan of a seed: swarm testing, every seed leaves some faults out."""
    random = Random(seed * 2 + 1)
    duration = random.choice((0.5, 0.8, 1.2, 1.8))
    weights = {kind: weight * random.choice((0, 0, 1, 1, 2, 5)) for kind, weight in FAULTS.items()}
    weights["heal"] = max(weights["heal"], 10)
    size = random.choices((1, 3, 5), (8, 84, 8))[0]
    if size == 1:  # what it loses nobody else has
        weights |= dict.fromkeys(("rot", "misdirected write", "lost directory"), 0)
        weights["grow"] = max(weights["grow"], 20)
    expiring = random.random() < 0.3
    weights["expiry"] = 20 if expiring else 0
    every = random.choice((0.06, 0.1, 0.16, 0.25))
    steps: list[Step] = []
    at = random.uniform(0, 0.3)
    while at < duration:
        kind = random.choices(list(weights), list(weights.values()))[0]
        steps.append(Step(round(at, 6), kind, random.getrandbits(32)))
        at += random.uniform(0, 2 * every)
    # Rows end here while their producers are busy. A loader that dies then has lost what tells it
    # where to resume, and reads what is stored: so nothing may be trimmed.
    forgetful = expiring and random.random() < 0.5
    clients = ["sender 3" if expiring and not forgetful else "loader 1", "sender 1", "member 1"]
    clients += [
        name
        for name, share in (
            ("loader 2", 0 if expiring else 0.25),
            ("sender 2", 0.25),
            ("hasty 1", 0.3),
            ("doubter 1", 0.4),
            ("member 2", 0.4),
            ("watcher 1", 0.6),
        )
        if random.random() < share
    ]
    return Plan(
        seed=seed,
        size=size,
        steps=tuple(steps),
        duration_s=duration,
        loss=random.choice((0.0, 0.01, 0.05)),
        repeat=random.choice((0.0, 0.0, 0.05)),
        slow=random.choice((0.0, 0.02, 0.1)),
        latency_max_s=random.choice((0.002, 0.005, 0.02)),
        sync_max_s=random.choice((0.002, 0.006, 0.03)),
        clients=tuple(clients),
        lines=random.choice((8, 16, 30)),
        send_mean_s=random.choice((0.04, 0.08, 0.15)),
        send_timeout_ms=random.choice((800, 3000, 20_000)),
        victim=random.randrange(1, size + 1),
        segment_bytes=random.choice((16_384, 16_384, 24_576)),
        checkpoint_records=random.choice((5, 10, 60)),
        retention_bytes=0 if forgetful else random.choice((0, 1_500, 4_000)),
        producers_max=1 if expiring else 100,
        producer_idle_ms=random.choice((100, 400)) if expiring else 7 * 24 * 3_600_000,
        queues=random.choice((1, 2, 2, 3)),
        cache_bytes=random.choice((0, 4_096, 32 << 20)),
        lock_ms=random.choice((200, 500, 1_000)),
        value_bytes=random.choice((0, 0, 300, 800)),
        checkpoint_keep=random.choice((1, 2)),
        skew=random.choice((0.0, 0.01, 0.05)),
    )


def with_splits(plan: Plan) -> Plan:
    """The plan with queues that are split meanwhile, and without the clients that speak the
    protocol by themselves, for they know nothing of it."""
    random = Random(plan.seed * 2 + 7)
    splits = [
        Step(round(random.uniform(0, plan.duration_s), 6), "split", random.getrandbits(32))
        for _ in range(random.choice((1, 2, 4)))
    ]
    steps = sorted((*plan.steps, *splits), key=lambda step: step.at_s)
    clients = tuple(name for name in plan.clients if name.split()[0] not in ("hasty", "doubter"))
    return replace(plan, steps=tuple(steps), clients=clients)


class Nemesis:
    """Carries a plan out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self._random = Random(0)
        plan = run.plan
        self.world.network.weather = Weather(
            loss=plan.loss, repeat=plan.repeat, slow=plan.slow, latency_max_s=plan.latency_max_s
        )
        for step in plan.steps:
            self.world.later(step.at_s, lambda step=step: self.strike(step))  # type: ignore[misc]

    @property
    def hosts(self) -> list[BrokerHost]:
        """All nodes that belong to the group, or wait to."""
        return [host for host in self.run.hosts.values() if not host.retired]

    def strike(self, step: Step) -> None:
        if self.run.healing:
            return
        self._random = Random(step.chance)
        self.world.tell(f"nemesis: {step.kind}")
        action: Callable[[], None] = getattr(
            self, "_" + step.kind.replace(" ", "_").replace("-", "_")
        )
        action()

    def _one(self) -> BrokerHost:
        return self._random.choice(self.hosts)

    def _master(self) -> BrokerHost | None:
        for host in self.hosts:
            replica = host.replica
            if replica is not None and replica.core.role is Role.MASTER:
                return host
        return None

    def _die(self, host: BrokerHost, name: str) -> None:
        if host.process is not None and host.process.alive:
            self.world.fault(name)
            self.world.crash(host.name, name)

    # --- processes

    def _kill(self) -> None:
        self._die(self._one(), "kill")

    def _kill_master(self) -> None:
        host = self._master()
        if host is not None:
            self._die(host, "kill of the master")

    def _power_cut(self) -> None:
        host = self._one()
        host.power_lost = True
        self._die(host, "power cut")

    def _all_lose_power(self) -> None:
        for host in self.hosts:
            host.power_lost = True
            self._die(host, "power cut of all")

    def _crash_in_operation(self) -> None:
        host = self._one()
        host.disk.crash_kind = self._random.choice(("", "", *IO_KINDS))
        often = host.disk.crash_kind in ("", "write", "sync")
        host.disk.crash_in = self._random.randrange(0, 12 if often else 2)
        host.power_lost = self._random.random() < 0.6

    def _long_absence(self) -> None:
        host = self._one()
        host.away_s = self._random.uniform(0.8, 1.8)
        self._die(host, "long absence")

    def _stop_host(self, host: BrokerHost, name: str) -> None:
        if host.process is not None and host.process.alive:
            self.world.fault(name)
            until = self.world.now + self._random.choice((0.1, 0.4, 1.2, 1.8))
            self.world.loop.stop_process(host.process, until)

    def _stop(self) -> None:
        self._stop_host(self._one(), "stop")

    def _stop_master(self) -> None:
        host = self._master()
        if host is not None:
            self._stop_host(host, "stop of the master")

    def _expiry(self) -> None:
        """What maintenance does every minute."""
        host = self._master()
        replica = host.replica if host is not None else None
        if host is not None and replica is not None and host.context is not None:
            for key in list(replica.state.queues):
                self.world.loop.call_soon(replica.expire_producers, key, context=host.context)

    def _zombie(self) -> None:
        """A second program begins under a durable name while the first still runs."""
        loaders = [one for one in self.run.clients if isinstance(one, Loader) and not one.done]
        if loaders and self.world.hosts.pop(loaders[0].name, None) is not None:
            self.world.fault("zombie")
            loaders[0].start()

    def _fence_all(self) -> None:
        """A stranger fences every producer; each begins again as another incarnation."""
        self.run.operator.ask("fenced all", fence_all)

    def _split(self) -> None:
        """A queue that is open when the operator comes to it."""
        choice = self._random.random()

        async def split(client: Any) -> None:
            route = await client._session.cluster.topic(TOPIC, refresh=True)
            queue = route.queues[int(choice * len(route.queues))].key.queue_id
            await client.admin.split_queue(TOPIC, queue, children=2 + int(choice * 100) % 2)

        self.run.operator.ask("split a queue", split)

    # --- members

    def _replace_node(self) -> None:
        """A new node takes the place of one, dead or alive."""
        old = self._one()
        new = None if self.run.operator.jobs else self.run.join()
        if new is None:
            return
        if self._random.random() < 0.4:
            old.away_s = 1.0
            self._die(old, "death of a node that is replaced")

        async def replace(client: Any) -> None:
            await client.admin.replace_node(
                old.number, new.number, address=broker_address(new.number), timeout=10.0
            )
            old.retire()

        self.run.operator.ask("replaced a node", replace)

    def _grow(self) -> None:
        """Two new nodes join: a group of one becomes one of three, three become five."""
        size = len(self.run.invariants.voters) + 2
        if self.run.operator.jobs or size not in (3, 5) or len(self.run.hosts) + 2 > NODES_MAX:
            return
        added = [self.run.join(), self.run.join()]
        nodes = {host.number: broker_address(host.number) for host in added if host is not None}

        async def grow(client: Any) -> None:
            await client.admin.grow_group(1, size, nodes=nodes, timeout=10.0)

        self.run.operator.ask(f"grew to {size}", grow)

    def _transfer(self) -> None:
        async def transfer(client: Any) -> None:
            await client.admin.transfer_mastership(1)

        self.run.operator.ask("transferred", transfer, once=True)

    def _drain(self) -> None:
        host = self._master() or self._one()

        async def drain(client: Any) -> None:
            await client.admin.drain_node(host.number, seconds=0.5)

        self.run.operator.ask("drained", drain, once=True)

    def _planned_restart(self) -> None:
        host = self._master() if self._random.random() < 0.7 else self._one()
        if host is None or host.replica is None or host.context is None:
            return
        node = host.node
        assert node is not None
        self.world.count("planned restart")

        async def leave() -> None:
            await node.__aexit__(None, None, None)
            self.world.crash(host.name, "stopped as planned")

        self.world.loop.call_soon(
            lambda: asyncio.get_running_loop().create_task(leave()), context=host.context
        )

    def _controller_crash(self) -> None:
        if "c1" in self.world.hosts:
            self.world.fault("controller crash")
            self.world.crash("c1", "kill")

    def _controller_crash_in_a_write(self) -> None:
        """It dies just before or just after one of its next writes to the store."""
        controller = self.run.controller
        controller.crash_in = self._random.randrange(0, 4)
        controller.crash_after = self._random.random() < 0.5

    def _brief_topic(self) -> None:
        name = f"brief-{self._random.randrange(10**6)}"
        self.run.operator.ask("made and deleted a topic", brief_topic(name))

    def _client_crash(self) -> None:
        client = self._random.choice(self.run.clients)
        if client.name in self.world.hosts and not client.done:
            self.world.fault(f"{type(client).__name__.lower()} crash")
            self.world.crash(client.name, "kill")

    def _client_stop(self) -> None:
        client = self._random.choice(self.run.clients)
        process = self.world.hosts.get(client.name)
        if process is not None:
            self.world.fault("client stop")
            self.world.loop.stop_process(process, self.world.now + self._random.uniform(0.2, 1.2))

    def _member_stop(self) -> None:
        """A consumer sleeps until its session is over, and wakes with its messages in hand."""
        for client in self.run.clients:
            process = self.world.hosts.get(client.name)
            if isinstance(client, Member) and process is not None:
                self.world.fault("member stop")
                until = self.world.now + self._random.uniform(0.9, 2.0)
                self.world.loop.stop_process(process, until)
                return

    # --- network

    def _names(self) -> list[str]:
        return [host.name for host in self.hosts]

    def _cut_off(self, side: set[str], name: str) -> None:
        everybody = [*self._names(), *(client.name for client in self.run.clients)]
        if self._random.random() < 0.5:
            everybody = self._names()  # clients reach both sides
        cuts = {(a, b) for a in everybody for b in everybody if (a in side) != (b in side)}
        self.world.count(name)
        self.world.network.set_cuts(self.world.network.cut | cuts)

    def _partition(self) -> None:
        self._cut_off({self._one().name}, "partition")

    def _isolate_master(self) -> None:
        host = self._master()
        if host is not None:
            self._cut_off({host.name}, "isolated master")

    def _one_way_cut(self) -> None:
        if len(self._names()) < 2:
            return
        source, target = self._random.sample(self._names(), 2)
        self.world.count("one-way cut")
        cuts = {(source, target)}
        if self._random.random() < 0.4:
            cuts |= {(source, other) for other in self._names()}
        self.world.network.set_cuts(self.world.network.cut | cuts)

    def _heal(self) -> None:
        self.world.network.heal()

    # --- disks

    def _disk_stall(self) -> None:
        self.world.fault("disk stall")
        host = self._master() if self._random.random() < 0.5 else self._one()
        if host is not None:
            host.disk.stalled_until = self.world.now + self._random.choice((0.3, 1.3))

    def _disk_error(self) -> None:
        self._one().disk.fail_in = self._random.randrange(0, 6)

    def _disk_full(self) -> None:
        host = self._master() if self._random.random() < 0.7 else self._one()
        if host is None:
            return
        self.world.fault("disk full")
        files = host.disk.files
        files.room = 0

        def room() -> None:
            host.disk.files.room = files.room = None

        self.world.later(self._random.choice((0.02, 0.1, 0.4, 1.2)), room)

    def _rot(self) -> None:
        """Flips bits, zeroes a block or copies one elsewhere, in one node's files."""
        host = self.run.hosts[NodeId(self.run.plan.victim)]
        files = host.disk.files
        random = self._random
        kinds = ("segment-", "segment-", "segment-", "checkpoint-", "kept-", "hard_state")
        kind = random.choice(kinds)
        paths = sorted(
            path
            for path, inode in files.names_now.items()
            if inode is not None and path.name.startswith(kind) and not path.name.endswith(".tmp")
        )
        if not paths:
            return
        path = random.choice(paths)
        inode = files.names_now[path]
        assert inode is not None
        data = inode.data
        used = len(bytes(data).rstrip(b"\0"))
        if used < 64:
            return
        at = random.randrange(0, used)
        how = random.choice(("flip", "flip", "zero", "misdirect"))
        if how == "flip":
            new = bytes([data[at] ^ (1 << random.randrange(8))])
        elif how == "zero":
            at -= at % 512
            new = bytes(min(512, len(data) - at))
        else:
            at -= at % 512
            source = random.randrange(0, used) // 512 * 512
            new = bytes(data[source : source + 512])[: len(data) - at]
        if kind == "hard_state" and host.disk.vote_struck:
            return  # one block a run: the format promises no more
        if bytes(data[at : at + len(new)]) == new:
            return
        host.disk.vote_struck |= kind == "hard_state"
        host.damaged = True
        host.disk.damage(path, at, new)
        self.world.fault(f"rot in {kind.strip('-')}")

    def _misdirected_write(self) -> None:
        """One of the next writes of the node that may rot succeeds, and lies elsewhere."""
        host = self.run.hosts[NodeId(self.run.plan.victim)]

        def bitten() -> None:
            host.damaged = True

        host.disk.on_misdirected = bitten
        # Not the very next one, which may be the ID of a frame that was misdirected before.
        host.disk.misdirect_in = self._random.randrange(2, 12)
        host.disk.misdirect_file = self._random.choice(
            ("", "segment", "segment", "checkpoint", "kept", "hard_state")
        )
        if host.disk.misdirect_file in ("checkpoint", "kept", "hard_state"):
            host.disk.misdirect_in = self._random.randrange(0, 2)

    def _lost_directory(self) -> None:
        host = self.run.hosts[NodeId(self.run.plan.victim)]
        if host.wiped:
            return
        self._die(host, "lost directory")
        host.wipe()
        self.run.invariants.forget(host)

    # --- clocks and housekeeping

    def _wall_clock_jump(self) -> None:
        host = self._one()
        if host.process is not None:
            self.world.fault("wall clock jump")
            host.process.wall_offset += self._random.choice((-3600.0, 3600.0))

    def _checkpoint(self) -> None:
        """Everybody writes one now, so that logs can be cleaned."""
        for host in self.hosts:
            if host.replica is not None and host.context is not None and host.node is not None:
                checkpoints = host.node.checkpoints

                async def write(checkpoints=checkpoints) -> None:  # type: ignore[no-untyped-def]
                    try:
                        await checkpoints.write()
                    except Exception:
                        self.world.count("checkpoint failed")
                    else:
                        self.world.count("checkpoint")

                self.world.loop.call_soon(
                    lambda write=write: asyncio.get_running_loop().create_task(write()),
                    context=host.context,
                )
