"""Makes things go wrong: carries out the steps of a plan.

How it works. Each step has a random number of its own, from which it chooses victims when it is
carried out. After the last one everything is healed (`run.py`). A step of the kind "kill master" is
the method `_kill_master` here, or the function that is registered under that name (`registry.py`),
which uses the methods without an underscore.

Not here: which steps, and when (`plan.py`), faults of disks (`disk_faults.py`) and of parts
(`parts/`), what a fault does below (`network.py`, `world.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from semel.broker.snapshots.checkpoints import Checkpoints
from tests.checking.moves import Did
from tests.world.clients import TOPIC, Loader, Member
from tests.world.network import Weather
from tests.world.nodes import broker_address
from tests.world.operator import brief_topic, fence_all
from tests.world.plan import NODES_MAX, Step
from tests.world.registry import find_fault

if TYPE_CHECKING:
    from tests.world.groups import BrokerGroup
    from tests.world.loop import Process
    from tests.world.nodes import BrokerHost, ControllerHost
    from tests.world.run import Run

IO_KINDS = ("write", "sync", "syncdir", "create", "rename", "remove", "allocate")


class Nemesis:
    """Carries a plan out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self.random = Random(0)
        plan = run.plan
        self.world.network.weather = Weather(
            loss=plan.loss, repeat=plan.repeat, slow=plan.slow, latency_max_s=plan.latency_max_s
        )
        self._armed: list[tuple[Did | str, Callable[[BrokerGroup], None]]] = []
        """Faults that wait for a step of a move or of a transaction."""
        for group in run.groups:
            group.invariants.folded.on_step = partial(self._on_step, group)
        for step in plan.steps:
            self.world.later(step.at_s, partial(self.strike, step))

    @property
    def hosts(self) -> list[BrokerHost]:
        """All nodes that belong to a group, or wait to be added."""
        return [host for host in self.run.hosts.values() if not host.retired]

    def strike(self, step: Step) -> None:
        if self.run.healing:
            return
        self.random = Random(step.chance)
        self.world.tell(f"nemesis: {step.kind}")
        registered = find_fault(step.kind)
        if registered is not None:
            registered(self)
            return
        own = "_" + step.kind.replace(" ", "_").replace("-", "_")
        action: Callable[[], None] = getattr(self, own)
        action()

    def one(self) -> BrokerHost:
        """Any node."""
        return self.random.choice(self.hosts)

    def group(self) -> BrokerGroup:
        """Any broker group."""
        groups = self.run.groups
        return groups[0] if len(groups) == 1 else self.random.choice(groups)

    @property
    def topics(self) -> list[str]:
        """The topic of all programs, and those that some programs make."""
        return [TOPIC, *self.run.made_topics]

    def master(self) -> BrokerHost | None:
        """The master of any broker group, if it has one."""
        return self.group().master()

    def die(self, host: BrokerHost, name: str) -> None:
        """Kills the node's process, if it runs; `name` is the name of the fault."""
        if host.process is not None and host.process.alive:
            self.world.fault(name)
            self.world.crash(host.name, name)

    # --- processes

    def _kill(self) -> None:
        self.die(self.one(), "kill")

    def _kill_master(self) -> None:
        host = self.master()
        if host is not None:
            self.die(host, "kill of the master")

    def _power_cut(self) -> None:
        host = self.one()
        host.power_lost = True
        self.die(host, "power cut")

    def _power_cut_of_the_master(self) -> None:
        host = self.master()
        if host is not None:
            host.power_lost = True
            self.die(host, "power cut of the master")

    def _all_lose_power(self) -> None:
        for host in self.hosts:
            host.power_lost = True
            self.die(host, "power cut of all")

    def _crash_in_operation(self) -> None:
        host = self.one()
        host.disk.crash_kind = self.random.choice(("", "", *IO_KINDS))
        often = host.disk.crash_kind in ("", "write", "sync")
        host.disk.crash_in = self.random.randrange(0, 12) if often else 0
        host.power_lost = self.random.random() < 0.6

    def _long_absence(self) -> None:
        host = self.one()
        host.away_s = self.random.uniform(0.8, 1.8)
        self.die(host, "long absence")

    def _stop_host(self, host: BrokerHost, name: str) -> None:
        if host.process is not None and host.process.alive:
            self.world.fault(name)
            until = self.world.now + self.random.choice((0.1, 0.4, 1.2, 1.8))
            self.world.loop.stop_process(host.process, until)

    def _stop(self) -> None:
        self._stop_host(self.one(), "stop")

    def _stop_master(self) -> None:
        host = self.master()
        if host is not None:
            self._stop_host(host, "stop of the master")

    def _long_stop_of_the_master(self) -> None:
        """Stops the master until another one is elected and has written."""
        host = self.master()
        if host is not None and host.process is not None:
            self.world.fault("long stop of the master")
            self.world.loop.stop_process(host.process, self.world.now + 1.8)

    def _expiry(self) -> None:
        """Expires producers at once, as the background work does every minute."""
        host = self.master()
        replica = host.replica if host is not None else None
        if host is not None and replica is not None and host.context is not None:
            for key in list(replica.state.queues):
                self.world.loop.call_soon(replica.expire_producers, key, context=host.context)

    def _zombie(self) -> None:
        """Starts a second program under a durable name while the first one still runs."""
        loaders = [one for one in self.run.clients if isinstance(one, Loader) and not one.done]
        if loaders and self.world.hosts.pop(loaders[0].name, None) is not None:
            self.world.fault("zombie")
            loaders[0].start()

    def _fence_all(self) -> None:
        """A stranger fences every producer; each begins again as another incarnation."""
        self.run.operator.ask("fenced all", fence_all)

    def arm(self, step: Did | str, actions: Sequence[Callable[[BrokerGroup], None]]) -> None:
        """Has one of the actions strike at the next such step, in its group or in another one."""
        group = self.random.choice((None, *self.run.groups))
        action = self.random.choice(actions)
        self._armed.append((step, lambda where: action(where if group is None else group)))

    def _on_step(self, group: BrokerGroup, what: str, step: Did | str) -> None:
        """The first armed fault that waits for such a step strikes."""
        armed = next((one for one in self._armed if one[0] == step), None)
        if armed is not None and not self.run.healing:
            self._armed.remove(armed)
            self.world.count(f"strike in a {what}: {step}")
            self.world.later(0.0, lambda: armed[1](group))

    def kill_clients(self, kind: type) -> Callable[[BrokerGroup], None]:
        """An action for `arm`: the programs of all clients of that class die."""

        def kill(_: BrokerGroup) -> None:
            for client in self.run.clients:
                if isinstance(client, kind):
                    self.world.crash(client.name, "client crash")

        return kill

    def running_clients(self, kind: type) -> list[Process]:
        """The processes of all clients of that class that run now."""
        hosts = self.world.hosts
        named = [client.name for client in self.run.clients if isinstance(client, kind)]
        return [hosts[name] for name in named if name in hosts]

    def stop_a_while(self, process: Process, name: str) -> None:
        """Stops a process, which then goes on with what it was about to do; `name` is the name of
        the fault."""
        self.world.fault(name)
        self.world.loop.stop_process(process, self.world.now + self.random.uniform(0.5, 1.5))

    def kill_controller(self, _: BrokerGroup) -> None:
        """An action for `arm`: the controller dies."""
        self._controller_crash()

    def kill_master_of(self, group: BrokerGroup) -> None:
        """An action for `arm`: the master of the group dies."""
        host = group.master()
        if host is not None:
            self.die(host, "kill of the master in a step")

    def cut_off_from_controllers(self, group: BrokerGroup) -> None:
        """An action for `arm`: clients and the other group learn more than this group meanwhile."""
        names = [controller.name for controller in self.run.controllers]
        self.cut({(name, host.name) for name in names for host in group.hosts.values()})
        self.world.later(0.9, self._heal)

    def cut_off_from_each_other(self, _: BrokerGroup) -> None:
        """An action for `arm`: the two broker groups do not reach each other for a while."""
        if len(self.run.groups) < 2:
            return
        first, second = ([host.name for host in group.hosts.values()] for group in self.run.groups)
        self.cut({(a, b) for a in first for b in second} | {(b, a) for a in first for b in second})
        self.world.later(0.5, self._heal)

    # --- members

    def _replace_node(self) -> None:
        """A new node takes the place of one, dead or alive."""
        old = self.one()
        new = None if self.run.operator.jobs else self.run.join(self.run.group_of(old))
        if new is None:
            return
        if self.random.random() < 0.4:
            old.away_s = 1.0
            self.die(old, "death of a node that is replaced")

        async def replace(client: Any) -> None:
            await client.admin.replace_node(
                old.number, new.number, address=broker_address(new.number), timeout=10.0
            )
            old.retire()

        self.run.operator.ask("replaced a node", replace)

    def _all_others_replaced(self) -> None:
        """New nodes take the places of all nodes but one, which is away meanwhile."""
        away = self.one()
        group = self.run.group_of(away)
        others = [host for host in group.members() if host is not away]
        if self.run.operator.jobs or len(self.run.hosts) + len(others) > NODES_MAX:
            return
        pairs = [(old, new) for old in others if (new := self.run.join(group)) is not None]
        away.away_s = 3.0
        self.die(away, "absence while all others are replaced")

        async def replace(client: Any) -> None:
            for old, new in pairs:
                await client.admin.replace_node(
                    old.number, new.number, address=broker_address(new.number), timeout=10.0
                )
                old.retire()

        self.run.operator.ask("replaced all others", replace)

    def _grow(self) -> None:
        """Two new nodes join: a group of one becomes one of three, three become five."""
        group = self.group()
        size = len(group.invariants.voters) + 2
        if self.run.operator.jobs or size not in (3, 5) or len(self.run.hosts) + 2 > NODES_MAX:
            return
        added = [self.run.join(group), self.run.join(group)]
        nodes = {host.number: broker_address(host.number) for host in added if host is not None}

        async def grow(client: Any) -> None:
            await client.admin.grow_group(group.group_id, size, nodes=nodes, timeout=10.0)

        self.run.operator.ask(f"grew to {size}", grow)

    def _transfer(self) -> None:
        group_id = self.group().group_id

        async def transfer(client: Any) -> None:
            await client.admin.transfer_mastership(group_id, timeout=5.0)

        self.run.operator.ask("transferred", transfer, once=True)

    def _drain(self) -> None:
        host = self.master() or self.one()

        async def drain(client: Any) -> None:
            await client.admin.drain_node(host.number, seconds=0.5, timeout=5.0)

        self.run.operator.ask("drained", drain, once=True)

    def _planned_restart(self) -> None:
        host = self.master() if self.random.random() < 0.7 else self.one()
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
        name = self.controller().name
        if name in self.world.hosts:
            self.world.fault("controller crash")
            self.world.crash(name, "kill")

    def controller(self) -> ControllerHost:
        """The active controller, as the store knows it; sometimes another one."""
        controllers, ensemble = self.run.controllers, self.run.ensemble
        if ensemble is None:
            return controllers[0]
        held = [one for one in controllers if one.name == ensemble.holder]
        return held[0] if held and self.random.random() < 0.8 else self.random.choice(controllers)

    def cut(self, links: set[tuple[str, str]]) -> None:
        """Cuts links, each from one host to another one."""
        self.world.network.set_cuts(self.world.network.cut | links)

    def _controller_crash_in_a_write(self) -> None:
        """The controller dies just before or just after one of its next writes to the store, or
        never hears what became of the write."""
        controller = self.controller()
        controller.crash_in = self.random.randrange(0, 4)
        how = self.random.random()
        controller.crash_after = how < 0.5
        controller.answer_lost = self.run.ensemble is not None and how >= 0.7

    def _brief_topic(self) -> None:
        self.make_brief_topic()

    def make_brief_topic(self) -> None:
        """Has the operator make a topic and delete it at once."""
        name = f"brief-{self.random.randrange(10**6)}"
        self.run.operator.ask("made and deleted a topic", brief_topic(name))

    def _client_crash(self) -> None:
        client = self.random.choice(self.run.clients)
        if client.name in self.world.hosts and not client.done:
            self.world.fault(f"{type(client).__name__.lower()} crash")
            self.world.crash(client.name, "kill")

    def _client_stop(self) -> None:
        client = self.random.choice(self.run.clients)
        process = self.world.hosts.get(client.name)
        if process is not None:
            self.world.fault("client stop")
            self.world.loop.stop_process(process, self.world.now + self.random.uniform(0.2, 1.2))

    def _member_stop(self) -> None:
        """A consumer sleeps until its session is over, and wakes with its messages in hand."""
        for client in self.run.clients:
            process = self.world.hosts.get(client.name)
            if isinstance(client, Member) and process is not None:
                self.world.fault("member stop")
                until = self.world.now + self.random.uniform(0.9, 2.0)
                self.world.loop.stop_process(process, until)
                return

    def _member_unheard(self) -> None:
        """Requests of a consumer wait on their way, and arrive when others hold its locks."""
        names = [client.name for client in self.run.clients if isinstance(client, Member)]
        unheard = self.random.choice(names or [""])
        self.world.count("member unheard")
        cuts = {(unheard, name) for name in self.names()}
        self.world.network.set_cuts(self.world.network.cut | cuts)

    # --- network

    def names(self) -> list[str]:
        """Names of the brokers' hosts."""
        return [host.name for host in self.hosts]

    def _cut_off(self, side: set[str], name: str) -> None:
        everybody = [*self.names(), *(client.name for client in self.run.clients)]
        if self.random.random() < 0.5:
            everybody = self.names()  # clients reach both sides
        cuts = {(a, b) for a in everybody for b in everybody if (a in side) != (b in side)}
        self.world.count(name)
        self.world.network.set_cuts(self.world.network.cut | cuts)

    def _partition(self) -> None:
        self._cut_off({self.one().name}, "partition")

    def _two_masters(self) -> None:
        """The master reaches all clients, which may still believe it, and no other node."""
        host = self.master()
        if host is not None:
            others = [name for name in self.names() if name != host.name]
            cuts = {(host.name, name) for name in others} | {(name, host.name) for name in others}
            self.world.count("master without a group")
            self.world.network.set_cuts(self.world.network.cut | cuts)

    def _isolate_master(self) -> None:
        host = self.master()
        if host is not None:
            self._cut_off({host.name}, "isolated master")

    def _one_way_cut(self) -> None:
        if len(self.names()) < 2:
            return
        source, target = self.random.sample(self.names(), 2)
        self.world.count("one-way cut")
        cuts = {(source, target)}
        if self.random.random() < 0.4:
            cuts |= {(source, other) for other in self.names()}
        self.world.network.set_cuts(self.world.network.cut | cuts)

    def _heal(self) -> None:
        self.world.network.heal()

    # --- clocks and housekeeping

    def _wall_clock_jump(self) -> None:
        host = self.one()
        if host.process is not None:
            self.world.fault("wall clock jump")
            host.process.wall_offset += self.random.choice((-3600.0, 3600.0))

    def _checkpoint(self) -> None:
        self.write_checkpoints()

    def write_checkpoints(self) -> None:
        """All nodes write a checkpoint now, so that logs can be cleaned."""
        for host in self.hosts:
            if host.replica is not None and host.context is not None and host.node is not None:
                checkpoints = host.node.checkpoints

                async def write(checkpoints: Checkpoints = checkpoints) -> None:
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
