"""Brokers and the one controller of a simulated cluster: production nodes, started and restarted.

How it works. A `BrokerHost` owns a disk and runs `BrokerNode` on it, one process after the other; a
supervisor starts it again some time after it died, as `semel up` does. Only two entry points of the
node are replaced: the end of the process is the end of a simulated process, and in half of the
worlds Raft's messages leave as datagrams (`SimLink`), which suffer more than streams do.

Not here: several controllers (`ensemble.py`), faults (`nemesis.py`), what must hold
(`invariants.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.config import BrokerConfig
from semel.broker.log import IndexUnavailable, LogConfig
from semel.broker.memory import pack_bodies
from semel.broker.node import BrokerNode
from semel.broker.raft import Message, encode_message
from semel.broker.replica.replica import Replica
from semel.broker.replication.receiver import split_message
from semel.controller.config import ControllerConfig
from semel.controller.node import ControllerNode
from semel.controller.store import MemoryStore, Transaction
from semel.controller.store.memory import Table
from semel.protos.errors import CorruptSegment, SemelError
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import own_levels
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.raft_pb2 import PeerCaller
from tests.kit.disk import SimFiles
from tests.world.disk import Disk
from tests.world.id_disk import IdDisk
from tests.world.loop import Killed, Process
from tests.world.world import World

CONTROLLER = "c1:7070"
CLUSTER = "simulated"
_ENDS = (
    "nput/output error",
    "changed the membership of this group, which is read from the log at the start",
)
"""Why a node may end itself: a failed write or sync, or what it asks for in so many words."""


def broker_host(number: int) -> str:
    return f"b{number}"


def broker_address(number: int) -> str:
    return f"b{number}:7171"


class SimLink:
    """A peer link that sends datagrams; frames come from the log, as in `replication/sender.py`."""

    def __init__(self, host: BrokerHost, replica: Replica, peer: NodeId) -> None:
        self._host = host
        self._replica = replica
        self._peer = peer

    @property
    def levels(self) -> Levels:
        """Feature levels of the program on the peer's machine."""
        return own_levels(self._host.cluster[self._peer].level_max)

    def send(self, message: Message) -> None:
        """Frames from the cache go at once; others are read in a thread first."""
        if not message.entries:
            self._transmit(message, [])
            return
        lo, hi = message.entries[0].index, message.entries[-1].index + 1
        frames = self._replica.log.cached_frames(lo, hi)
        if frames is not None:
            self._transmit(message, frames)
            return
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(None, self._replica.log.read_frames, lo, hi)
        reading.add_done_callback(lambda done: self._on_read(message, done))

    def _on_read(self, message: Message, reading: asyncio.Future[list[bytes]]) -> None:
        error = reading.exception()
        if error is None:
            self._transmit(message, reading.result())
        elif not isinstance(error, IndexUnavailable | CorruptSegment):
            raise error

    def _transmit(self, message: Message, frames: list[bytes]) -> None:
        last = message.entries[-1] if message.entries else None
        if last is not None and self._replica.log.term_at(last.index) != last.term:
            return
        if self.levels.max < self._replica.feature_levels.needed:
            return  # a stream to it would not be opened
        host = self._host
        world = host.world
        host.on_send(message, self._replica)
        bodies = self._replica.bodies
        carried = pack_bodies(message.entries[0].index, frames, bodies) if frames else ()
        data = b"".join((encode_message(message), *frames, *carried))
        target = host.cluster[self._peer]
        assert host.node is not None
        caller = host.node.identity.caller(self._peer)
        world.network.datagram(host.name, target.name, lambda: target.receive(caller, data))


class SimBroker(BrokerNode):
    """The production node with its two entry points."""

    def __init__(self, host: BrokerHost, process: Process, config: BrokerConfig) -> None:
        files = host.disk.mount(process)
        super().__init__(config, files=files, open_id_store=lambda: host.ids.mount(files))
        self._host = host
        self._process = process

    async def _serve(self) -> None:
        """Serves; clients learn where to ask for streams only in worlds where they do."""
        await super()._serve()
        if not self._host.world.asking:
            self._direct = cast("Any", SimpleNamespace(port=0))

    def _start_link(self, peer: NodeId, address: str) -> None:
        host, replica = self._host, self.replica
        if not host.streams:
            replica.peers.links[peer] = SimLink(host, replica, peer)  # type: ignore[assignment]
            self._links[peer] = address, self._start(_idle())
            return
        super()._start_link(peer, address)
        link = replica.peers.links[peer]
        send = link.send

        def watched_send(message: Message) -> None:
            host.on_send(message, replica)
            send(message)

        link.send = watched_send  # type: ignore[method-assign]

    async def _cancel_tasks(self) -> None:
        """Peers' streams end with the server."""
        self._host.context = None
        await super()._cancel_tasks()

    def _on_fatal(self, reason: str) -> None:
        """In a real process this call never returns."""
        if self._process.alive:
            self._host.world.count("node ended itself")
            if not self._may_end(reason):
                self._host.world.loop.errors.append(f"{self._process} ended itself: {reason}")
            self._host.world.crash(self._host.name, reason)
        raise Killed

    def _may_end(self, reason: str) -> bool:
        """Whether a fault explains it: a supervisor would hide a node that ends itself for any
        other reason."""
        no_room = "no room" in reason or "No space left" in reason
        unwritten = no_room and "cannot be written" in reason
        unread = self._host.damaged and "cannot read its newest entry" in reason
        return unwritten or unread or any(text in reason for text in _ENDS)


class BrokerHost:
    """One broker's machine."""

    def __init__(
        self,
        world: World,
        number: int,
        cluster: dict[NodeId, BrokerHost],
        config: BrokerConfig,
    ) -> None:
        self.world = world
        self.number = NodeId(number)
        self.name = broker_host(number)
        self.cluster = cluster
        """All machines of its broker group."""
        self.config = config
        self.disk = Disk(world, self.name)
        self.ids = IdDisk(Random(f"{world.seed} ids of {self.name}"))
        self.process: Process | None = None
        self.node: SimBroker | None = None
        self.context: Context | None = None
        """The context of the running process, once it serves."""
        self.level_max = world.level_max
        """Highest feature level of the program that its next process runs."""
        self.starts = 0
        self.power_lost = False
        self.restart_s: Callable[[], float] = lambda: 0.3
        self.refused = ""
        """Why the last process could not start, if it could not."""
        self.streams = False
        """True when peers are reached by streams of bytes, false for datagrams."""
        self.damaged = False
        """True once bytes of its disk were changed behind its back."""
        self.wiped = False
        self.retired = False
        """True once it has left its group; it is not started again."""
        self.right_time = False
        """Its wall clock is right when it starts; else nodes' clocks are far apart."""
        self.away_s = 0.0
        """How long it stays away after the next death, if above 0."""
        self._instead: tuple[BrokerConfig, SimFiles, IdDisk] | None = None
        """Configuration of another machine at this address, and this machine's disk meanwhile."""
        self.on_send: Callable[[Message, Replica], None] = lambda *_: None
        self.on_started: Callable[[BrokerHost], None] = lambda _: None
        world.crashes[self.name] = self._on_crash

    @property
    def replica(self) -> Replica | None:
        """The replica of a node that has opened its data; None otherwise."""
        if self.process is None or not self.process.alive or self.node is None:
            return None
        return None if self._instead else getattr(self.node, "replica", None)

    @property
    def alive(self) -> bool:
        """True while a process runs, whether it serves or not."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Starts it, as a supervisor does, unless it runs or has left its group."""
        if self.retired or (self.process is not None and self.process.alive) or self._instead:
            return
        self._after_death()
        self._begin()

    def begin_as(self, config: BrokerConfig, files: SimFiles) -> None:
        """Starts another machine at this one's address; only while this one is down."""
        self._after_death()
        self._instead = config, self.disk.files, self.ids
        self.disk.files, self.ids = files, IdDisk(self.ids.random)
        self._begin()

    def end_as_itself(self) -> None:
        """Ends the other machine and starts this one."""
        if self._instead is None:
            return
        self.world.crash(self.name, "the stranger has left")
        _, self.disk.files, self.ids = self._instead
        self._instead = None
        self.start()

    def _after_death(self) -> None:
        """Leaves on the disk what the end of the last process has left there."""
        if self.starts:
            if self.power_lost:
                self.disk.after_power_cut()
            else:
                self.disk.after_kill()
            self.ids.reopen()
        self.power_lost = False

    def _begin(self) -> None:
        self.starts += 1
        self.node = self.context = None

        def prepare(process: Process) -> None:
            old = self.process
            self.process = process
            if old is not None:
                process.wall_offset = old.wall_offset
                process.clock_rate = old.clock_rate
            process.clock_offset = self.world.random.uniform(0, 1000)
            if self.right_time:
                process.wall_offset = -process.clock_offset
            process.on_death.append(self._peers_hear)

        self.world.start(self.name, self.starts, self._main, prepare)

    async def _main(self) -> None:
        process = self.process
        assert process is not None
        config = self.config if self._instead is None else self._instead[0]
        config = replace(config, level_max=self.level_max)
        node = self.node = SimBroker(self, process, config)
        try:
            await node.__aenter__()
        except (SemelError, OSError) as error:
            self.refused = f"{type(error).__name__}: {error}"
            self.world.count("node refused to start")
            self.world.crash(self.name, self.refused)
            return
        self.refused = ""
        if self._instead is not None:
            return
        self.world.tell(f"serves from index {node.replica.log.first_index}")
        self.context = copy_context()
        self.on_started(self)

    def wipe(self) -> None:
        """Loses the data directory; only while the node is down."""
        self.disk.misdirect_in = None
        self.disk.files = SimFiles()
        self.ids.lose()
        self.wiped = True

    def retire(self) -> None:
        """Stops a node that was removed from its group, as an operator does."""
        self.retired = True
        self.world.crash(self.name, "removed from the group")

    def receive(self, caller: PeerCaller, data: bytes) -> None:
        """Takes a datagram that has arrived."""
        node = self.node
        if self.replica is not None and node is not None and self.context is not None:
            self.world.loop.call_soon(self._deliver, node, caller, data, context=self.context)

    @staticmethod
    def _deliver(node: SimBroker, caller: PeerCaller, data: bytes) -> None:
        """Every datagram's caller is checked, as there is no stream that was opened once."""
        try:
            node.identity.check_caller(caller, broker_address(caller.node_id))
        except SemelError:
            return
        replica = node.replica
        message, frames, carried = split_message(memoryview(data))
        replica.driver.on_message(message, frames, carried)

    def _peers_hear(self) -> None:
        """A broken connection tells the peers, unless the link is cut."""
        world = self.world
        if self.streams:
            return  # theirs break
        for peer in self.cluster.values():
            if peer is not self and (self.name, peer.name) not in world.network.cut:
                world.later(world.network.latency(), partial(peer.on_unreachable, self))

    def on_unreachable(self, other: BrokerHost) -> None:
        replica = self.replica
        if replica is not None and self.context is not None:
            self.world.loop.call_soon(
                replica.driver.on_peer_unreachable, other.number, context=self.context
            )

    def _on_crash(self, why: str) -> None:
        wait = self.away_s or self.restart_s()
        self.away_s = 0.0
        self.world.later(wait, self.start)


class SimStore(MemoryStore):
    """The store as one process of a controller has it; the table outlives the process."""

    def __init__(self, host: ControllerHost) -> None:
        super().__init__()
        self._host = host
        self._table = host.table

    async def _transact(self, transaction: Transaction) -> int:
        host = self._host
        host.crash_in = None if host.crash_in is None else host.crash_in - 1
        dies = host.crash_in is not None and host.crash_in < 0
        await asyncio.sleep(host.world.random.uniform(0, 0.004))
        if dies and not host.crash_after:
            host.die("controller crash before a write")
        revision = await super()._transact(transaction)
        if dies:
            host.die("controller crash after a write")
        return revision


class ControllerHost:
    """The controller's machine; what it stored survives."""

    def __init__(self, world: World, name: str = "c1", cluster_id: str = "") -> None:
        """`cluster_id` is by default that of all worlds of one cluster."""
        self.world = world
        self.name = name
        self.cluster_id = cluster_id
        self.table = Table()
        self.level_max = world.level_max
        """Highest feature level of the program that its next process runs."""
        self.starts = 0
        self.crash_in: int | None = None
        """Writes to the store until the process dies in one."""
        self.crash_after = False
        """True: it dies behind the write, before anybody hears of it; false: before the write."""
        self.answer_lost = False
        """True: it lives, and never hears that the write is durable."""
        self.retired = False
        """True once its machine is gone; it is not started again."""
        world.crashes[self.name] = self._on_crash

    def start(self) -> None:
        if self.retired or self.name in self.world.hosts:
            return
        self.starts += 1
        self.crash_in = None
        self.world.start(self.name, self.starts, self._main)

    def die(self, why: str) -> None:
        """In the process. Raises Killed."""
        self.world.fault(why)
        self.world.crash(self.name, why)
        raise Killed

    async def _main(self) -> None:
        config = ControllerConfig(
            data=Path(f"/sim/{self.name}"),
            listen=f"{self.name}:7070",
            cluster_id=self.cluster_id or CLUSTER,
            level_max=self.level_max,
        )
        node = ControllerNode(config, store=SimStore(self))
        await node.__aenter__()
        self.world.tell("controller serves")
        error = await node.failed()
        self.world.crash(self.name, str(error))

    def _on_crash(self, why: str) -> None:
        self.world.later(0.5, self.start)


async def _idle() -> None:
    """A link without streams has nothing to keep open."""
    await asyncio.get_running_loop().create_future()


def broker_config(
    number: int,
    founders: range,
    log: LogConfig,
    *,
    joins: bool,
    group_id: GroupId,
    controllers: tuple[str, ...] = (CONTROLLER,),
    cluster_id: str = "",
    **options: Any,
) -> BrokerConfig:
    """Small and quick enough that everything rare happens soon."""
    members = {NodeId(one): broker_address(one) for one in founders}
    return BrokerConfig(
        data=Path(f"/sim/b{number}"),
        cluster_id=cluster_id or CLUSTER,
        group_id=group_id,
        node_id=NodeId(number),
        listen=broker_address(number),
        members={} if joins else members,
        join=tuple(members.values()) if joins else (),
        controllers=controllers,
        log=log,
        report_ms=200,
        **options,
    )
