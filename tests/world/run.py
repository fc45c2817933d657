"""One run: a cluster under load, a nemesis, then peace, and the verdict.

How it works. One, three or five brokers, controllers and some clients start; once the topic exists
the plan's steps strike. Then all is healed and the clients finish what they have begun: the cluster
must come to rest in time (`PATIENCE_S`), and the checker of `tests/checking` judges the history
against the raw logs of the group's members. Anything that is wrong ends the run with a `Failed`
that names it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from semel.broker.log import IndexUnavailable, LogConfig, writer
from semel.broker.log.reader import record_of
from semel.broker.replica.replica import Replica
from semel.client import session as client_session
from semel.protos import listening
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, NodeId
from semel.protos.security.credentials import Security
from tests.checking.exactly_once import Report, Restored, Violation, check
from tests.checking.moves import Journeys
from tests.checking.raw_log import NodeLog
from tests.world.clients import READS, TOPIC, ClientHost, SimRuntime
from tests.world.consumption import Told
from tests.world.creator import Creator
from tests.world.ensemble import Ensemble, GroupControllerHost
from tests.world.groups import BrokerGroup
from tests.world.hosting import hosted
from tests.world.loop import Process
from tests.world.nemesis import Nemesis
from tests.world.network import Weather
from tests.world.nodes import CONTROLLER, BrokerHost, ControllerHost, SimBroker, broker_config
from tests.world.operator import Operator
from tests.world.plan import NODES_MAX, Plan, make_plan
from tests.world.quiet import Quiet
from tests.world.registry import all_parts, make_program
from tests.world.world import World

_PIN_MS = 400
T = TypeVar("T")
BOOT_S = 20.0
PATIENCE_S = 60.0
"""A run comes to rest within this time plus BACKLOG times what its plan took: messages that are to
be tried again, under locks of 200 ms, take several times as long as sending them."""
BACKLOG = 4
WINDOWS = 8
"""It may take so many times as long while consumer groups commit more in each such time: where a
queue has room for one producer, each copy of a message fences anew."""


class Failed(AssertionError):
    """The run showed that something is wrong; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run without a failure."""

    seen: Counter[str]
    steps: int
    fingerprint: str
    report: Report


class Run:
    """One plan, carried out. Use `execute`."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed, traced=traced)
        self.healing = False
        self.groups: list[BrokerGroup] = []
        self.clients: list[ClientHost] = []
        self.controllers: list[ControllerHost] = []
        self.ensemble: Ensemble | None = None
        """The store of several controllers."""
        self.bootstrap = CONTROLLER
        if plan.controllers > 1:
            numbers = range(1, plan.controllers + 1)
            self.bootstrap = ",".join(f"c{number}:7070" for number in numbers)
        self.operator: Operator
        self.security_of: Callable[[ClientHost], Security | None] = lambda _: None
        """The certificate of a program; None in a world without TLS."""
        self.rules: tuple[str, ...] = ()
        """Rules of who may do what, which are there before all programs."""
        self._shared: dict[type[object], object] = {}
        self._scrubs: dict[Process, bool] = {}
        """For each process on a damaged disk, whether its last scrub is through."""

    def execute(self) -> Result:
        """Raises Failed."""
        known = all_parts()  # imported before their modules' names are exchanged
        with ExitStack() as stack:
            stack.enter_context(Quiet(self.world))
            stack.enter_context(hosted(self.world))
            stack.enter_context(patch.object(client_session, "shared_runtime", self._runtime))
            stack.enter_context(patch.object(listening, "check_free", lambda *_: None))
            stack.enter_context(patch.object(writer, "_SMALL_BYTES", self.plan.kernel_bytes))
            for name in self.plan.parts:
                stack.enter_context(known[name].exchange(self))
            stack.callback(self.world.end)
            return self._execute()

    def shared(self, kind: type[T]) -> T:
        """The run's only instance of a class without arguments, which programs share."""
        if kind not in self._shared:
            self._shared[kind] = kind()
        found = self._shared[kind]
        assert isinstance(found, kind)
        return found

    def _runtime(self) -> Any:
        return SimRuntime(self.world.loop)

    def _execute(self) -> Result:
        world, plan = self.world, self.plan
        self._boot()
        nemesis = Nemesis(self)
        for client in self.clients:
            client.start()
        self._run_until(world.now + plan.duration_s)
        self._heal(nemesis)
        self._come_to_rest()
        report = self._judge()
        world.seen["world of streams" if plan.streams else "world of datagrams"] += 1
        world.seen["writer paused"] += world.network.writers_paused
        return Result(
            seen=world.seen,
            steps=world.loop.steps,
            fingerprint=world.fingerprint,
            report=report,
        )

    def _boot(self) -> None:
        self._begin_brokers()
        self._create()
        self._make_clients()

    def _begin_brokers(self) -> None:
        """Broker groups and controllers; all is empty."""
        world, plan = self.world, self.plan
        told, journeys, first = Told(), Journeys(), 1
        for number, size in enumerate(plan.groups, 1):
            group = BrokerGroup(world, GroupId(number), range(first, first + size))
            self.groups.append(group)
            first += size
            for node in group.founders:
                self._add(group, node, joins=False)
            group.begin(told, journeys)
        self._begin_controllers()
        for host in self.hosts.values():
            self._begin(host)

    def _create(self) -> None:
        """The topic, which the first program makes."""
        creator = Creator(self.world, "a1", self.plan, self.home_groups, self.rules)
        creator.bootstrap = self.bootstrap
        creator.security = self.security_of(creator)
        creator.start()
        self._run_until(BOOT_S, lambda: creator.done)
        if not creator.done:
            raise Failed("the cluster did not come up")

    def _begin_controllers(self) -> None:
        world, plan = self.world, self.plan
        if plan.controllers == 1:
            self.controllers.append(ControllerHost(world))
        else:
            ensemble = self.ensemble = Ensemble(world, self.groups[0].invariants.demand)
            self.controllers += [
                GroupControllerHost(world, number, ensemble, plan.lease_s)
                for number in range(1, plan.controllers + 1)
            ]
        for controller in self.controllers:
            controller.start()

    def _add(self, group: BrokerGroup, number: int, *, joins: bool) -> BrokerHost:
        world, plan = self.world, self.plan
        log = LogConfig(
            segment_bytes=plan.segment_bytes,
            ids_per_segment=48,
            fill_bytes_per_second=0,
            cache_bytes=plan.cache_bytes,
            read_cache_bytes=plan.cache_bytes,
            recycle_max=1,
            checkpoint_keep=plan.checkpoint_keep,
        )
        config = broker_config(
            number,
            group.founders,
            log,
            joins=joins,
            group_id=group.group_id,
            controllers=tuple(self.bootstrap_of(group).split(",")),
            cluster_id=self.cluster_of(group),
            checkpoint_records=plan.checkpoint_records,
            retention_check_ms=400,
            retained_log_bytes=1_024,
            producers_per_queue_max=plan.producers_max,
            producer_idle_ms=plan.producer_idle_ms,
            transaction_pin_ms=_PIN_MS,
        )
        host = BrokerHost(world, number, group.hosts, config)
        group.hosts[host.number] = host
        host.streams = plan.streams
        host.disk.kernel_syncs = plan.kernel_bytes > 0
        host.disk.system = world.system
        host.disk.system_calls_vary = plan.system_calls_vary
        host.restart_s = lambda: world.random.choice((0.01, 0.1, 0.4))
        return host

    def _begin(self, host: BrokerHost) -> None:
        world, plan = self.world, self.plan
        host.start()
        assert host.process is not None
        host.process.clock_rate = 1 + world.random.uniform(-plan.skew, plan.skew)
        host.disk.sync_max_s = plan.sync_max_s
        host.disk.remove_max_s = plan.remove_max_s

    @property
    def hosts(self) -> dict[NodeId, BrokerHost]:
        """Hosts of all broker groups."""
        return {number: host for group in self.groups for number, host in group.hosts.items()}

    def group_of(self, host: BrokerHost) -> BrokerGroup:
        """The broker group of a node."""
        (found,) = (one for one in self.groups if one.group_id == host.config.group_id)
        return found

    def bootstrap_of(self, group: BrokerGroup) -> str:
        """The addresses of the controllers of a broker group."""
        return self.bootstrap

    def cluster_of(self, group: BrokerGroup) -> str:
        """The id of a broker group's cluster; empty for the one of all worlds."""
        return ""

    @property
    def home_groups(self) -> range | None:
        """The broker groups of the topic; None for those that the controllers choose."""
        return range(1, len(self.plan.groups) + 1) if self.plan.more_groups else None

    def join(self, group: BrokerGroup) -> BrokerHost | None:
        """A new, empty node that waits to be added; None when there have been enough."""
        number = len(self.hosts) + 1
        if number > NODES_MAX:
            return None
        host = self._add(group, number, joins=True)
        group.invariants.watch(host)
        self._begin(host)
        return host

    def _make_clients(self) -> None:
        world, plan = self.world, self.plan
        for name in plan.clients:
            client = make_program(self, name)
            client.value_bytes = plan.value_bytes
            client.bootstrap = self.bootstrap
            client.security = self.security_of(client)
            client.log_time_us = self._log_time_us
            client.quiet = partial(self._is_quiet, client.stage)
            self.clients.append(client)
        self.operator = Operator(world, "o1")
        self.operator.bootstrap = self.bootstrap
        self.operator.security = self.security_of(self.operator)
        self.clients.append(self.operator)

    def _run_until(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        world = self.world
        while world.now < until and not (self._broken() or done()):
            # `done` looks at much: not after every event.
            world.loop.run(min(until, world.now + 0.05))
        for group in self.groups:
            if group.invariants.failure is not None:
                raise Failed(f"invariant: {group.invariants.failure}")
        if world.loop.errors:
            raise Failed(f"unhandled: {world.loop.errors[0]}")

    def _broken(self) -> bool:
        return self.world.loop.broken or bool(self.world.loop.errors)

    # --- peace

    def _heal(self, nemesis: Nemesis) -> None:
        self.healing = True
        for controller in self.controllers:
            controller.crash_in = None
        world = self.world
        world.tell("healing")
        world.network.weather = Weather(latency_max_s=0.003)
        world.network.heal()
        for client in self.clients:
            client.stopping = True
        for host in self.hosts.values():
            host.disk.has_room()
            host.ids.full = False
            host.disk.crash_in = host.disk.fail_in = host.disk.misdirect_in = None
            host.disk.stalled_until = 0.0
            host.disk.sync_max_s = 0.002

    def _come_to_rest(self) -> None:
        world, healed_s = self.world, self.world.now
        for _ in range(WINDOWS):
            before = self._committed()
            self._run_until(world.now + PATIENCE_S + BACKLOG * self.plan.duration_s, self._at_rest)
            if self._at_rest():
                return
            if self._committed() <= before:
                break
        took_s = world.now - healed_s
        raise Failed(f"not at rest {took_s:g} s after all was healed: {self._state()}")

    def _committed(self) -> int:
        """How many messages consumer groups have behind them, all together."""
        return sum(group.invariants.folded.consumption.committed for group in self.groups)

    def _at_rest(self) -> bool:
        self._replace_refused()
        if not all(client.done for client in self.clients):
            return False
        self._scrub()
        return all(
            {host.number for host in up} == group.invariants.voters
            and len({host.replica.state.applied_index for host in up if host.replica}) == 1
            and all(
                self._only_topics(host)
                and not self._moving(host)
                and not self._undecided(host)
                and not self._delaying(host)
                and not self._lacking(host)
                for host in up
            )
            for group in self.groups
            for up in [self._up(group)]
        )

    def _only_topics(self, host: BrokerHost) -> bool:
        """Nothing is left of topics that were deleted, or half made."""
        assert host.replica is not None
        known = {TOPIC, *self.made_topics}
        return all(queue.topic in known for queue in host.replica.state.queues.values())

    @staticmethod
    def _moving(host: BrokerHost) -> bool:
        """Whether a queue is on its way to another group."""
        assert host.replica is not None
        moves = host.replica.state.moves
        return moves.frozen_count > 0 or bool(moves.incoming)

    @staticmethod
    def _undecided(host: BrokerHost) -> bool:
        """Whether a transaction is pinned, or not published everywhere."""
        assert host.replica is not None
        transactions = host.replica.state.transactions
        return bool(transactions.staging.pins or transactions.coordination.unpublished)

    def _log_time_us(self) -> int:
        """Log time of the newest entry that a node has applied, in the group furthest behind."""
        times = []
        for group in self.groups:
            replicas = (host.replica for host in group.hosts.values())
            times.append(max((one.state.log_time_us for one in replicas if one), default=0))
        return min(times)

    @staticmethod
    def _delaying(host: BrokerHost) -> bool:
        """Whether a message is not due yet."""
        assert host.replica is not None
        return bool(host.replica.state.delays.queues)

    @staticmethod
    def _lacking(host: BrokerHost) -> bool:
        """Whether the node may lack bodies of a topic in memory."""
        assert host.replica is not None
        return host.replica.bodies.missing_to > 0

    def _up(self, group: BrokerGroup) -> list[BrokerHost]:
        """Members that serve, are whole with their indexes of ids, and have applied all that they
        hold."""
        return [
            host
            for host in group.members()
            if host.replica is not None
            and host.context is not None
            and self._is_whole(host, host.replica)
            and not host.replica.ids.behind
            and self._has_given_up(host.replica)
            and host.replica.state.applied_index
            == host.replica.log.last_index
            == host.replica.log.synced_index
            == group.invariants.newest
        ]

    @staticmethod
    def _has_given_up(replica: Replica) -> bool:
        """Whether windows begin behind the ids that all members have lost."""
        windows = replica.state.id_windows.topics
        return all(
            topic_id not in windows or at <= windows[topic_id].first_arrival
            for topic_id, at in replica.ids.forgotten.items()
        )

    def _is_whole(self, host: BrokerHost, replica: Replica) -> bool:
        """Whether nothing is left to repair, and the whole disk was looked at."""
        if not host.damaged:
            return not replica.log.damaged
        log = replica.log
        return (
            host.process is not None
            and self._scrubs.get(host.process, False)
            and log.damaged.keys() <= replica.lost_entries
            and not log.damaged_records
            and not log.checkpoints_damaged
        )

    def _replace_refused(self) -> None:
        """Replaces a node that halts because of rot by an empty one, as its message asks."""
        for host in self.hosts.values():
            down = host.process is not None and not host.process.alive
            if down and host.refused and host.damaged and not host.wiped:
                self.world.count("damaged node replaced")
                host.wipe()
                self.group_of(host).invariants.forget(host)

    def _scrub(self) -> None:
        """Runs each damaged node's own scrub once, which finds what is still undiscovered."""
        for host in self.hosts.values():
            process, node = host.process, host.node
            if not host.damaged or host.context is None or process is None or node is None:
                continue
            if process.alive and process not in self._scrubs:
                self._scrubs[process] = False

                async def scrub(process: Process = process, node: SimBroker = node) -> None:
                    await node.scrub._pass()
                    self._scrubs[process] = True
                    if node.replica.log.damaged:
                        self.world.count("damage found by the scrub")

                self.world.loop.call_soon(
                    lambda scrub=scrub: asyncio.get_running_loop().create_task(scrub()),
                    context=host.context,
                )

    @property
    def made_topics(self) -> list[str]:
        """Topics that programs make as soon as they begin."""
        return sorted({topic for client in self.clients for topic in client.topics})

    def _is_quiet(self, stage: int) -> bool:
        """Whether all programs of earlier stages are done."""
        return all(client.done for client in self.clients if client.stage < stage)

    def is_read(self, consumer_group: str, topics: Collection[str] = (TOPIC,)) -> bool:
        """Whether nobody writes to these topics any more, and the group has committed all that is
        stored in them."""
        if not self._is_quiet(READS):
            return False
        masters = [group.judge() for group in self.groups]
        for replica in masters:
            if replica is None:
                return False
            groups = replica.state.groups
            for key, queue in replica.state.queues.items():
                if queue.topic not in topics:
                    continue
                if key in replica.state.delays.queues:
                    return False  # it has still to come
                held = groups.lookup(consumer_group, key)
                done = held.committed_offset if held is not None else 0
                if done < queue.log_end_offset and queue.log_end_offset > queue.log_start_offset:
                    return False
        return True

    def _state(self) -> str:
        nodes = []
        for host in self.hosts.values():
            replica = host.replica
            if replica is None:
                nodes.append(f"{host.name} down ({host.refused})")
            else:
                nodes.append(
                    f"{host.name} {replica.role} term {replica.term} applied "
                    f"{replica.state.applied_index} commit {replica.core.commit_index} last "
                    f"{replica.log.last_index} damaged {sorted(replica.log.damaged)}"
                )
        left = [client.name for client in self.clients if not client.done]
        return "; ".join(
            [
                *nodes,
                f"unfinished clients: {left}",
                f"committed {[group.invariants.newest for group in self.groups]}",
            ]
        )

    def _judge(self) -> Report:
        report = self._check([log for group in self.groups for log in self._logs(group)])
        for client in self.clients:
            wrong = client.verdict(report.fold)
            if wrong:
                raise Failed(wrong)
        return report

    def _check(self, logs: Sequence[NodeLog], restored: Restored | None = None) -> Report:
        try:
            return check(self.world.history, logs, others=self.made_topics, restored=restored)
        except Violation as violation:
            raise Failed(f"history: {violation}") from None

    def _logs(self, group: BrokerGroup) -> list[NodeLog]:
        memory = group.invariants
        logs = [
            NodeLog(
                group=group.group_id, node=0, frames=memory.committed, commit_index=memory.newest
            )
        ]
        for host in group.members():
            replica = host.replica
            assert replica is not None
            state = replica.state
            logs.append(
                NodeLog(
                    group=group.group_id,
                    node=host.number,
                    frames=self._stored(host, replica),
                    commit_index=replica.core.commit_index,
                    applied_index=state.applied_index,
                    state=b"".join(state.to_parts()),
                )
            )
            self._check_records(host, memory.committed)
        return logs

    @staticmethod
    def _stored(host: BrokerHost, replica: Replica) -> dict[int, bytes]:
        """The node's frames, read from its disk and not from its memory."""
        store = replica.log._store
        frames = {}
        for index in range(store.index.first_index, store.index.last_index + 1):
            if index in replica.lost_entries:
                continue  # what is still needed of it stands in a kept file
            segment = store.index.locate(index)
            inode = host.disk.files.names_now[store.directory / segment.file_name]
            assert inode is not None
            start, end = segment.place(index)
            frames[index] = bytes(inode.data[start:end])
        return frames

    @staticmethod
    def _check_records(host: BrokerHost, committed: dict[int, bytes]) -> None:
        """Checks that every live record can be read, wherever the cleaner has put it."""
        assert host.replica is not None
        log, state = host.replica.log, host.replica.state
        for index, position, length in state.live_records(0, state.applied_index + 1):
            frame = committed[index]
            try:
                found = log.read_record(index, position, length)
            except (SemelError, IndexUnavailable) as error:
                raise Failed(f"{host.name}: a live record cannot be read: {error}") from None
            if bytes(found) != bytes(record_of(frame, position, length)):
                raise Failed(f"{host.name}: the record at {position} of entry {index} is another")


def run_plan(
    plan: Plan, *, plant: AbstractContextManager[object] | None = None, traced: bool = False
) -> tuple[Result | None, str, list[str]]:
    """The result, or what failed with the trace."""
    run = Run(plan, traced=traced)
    with plant if plant is not None else nullcontext():
        try:
            result = run.execute()
        except Failed as failure:
            return None, str(failure), run.world.trace or []
        except SemelError as failure:
            return None, f"checker could not read: {failure}", run.world.trace or []
        except Exception:
            error = "the simulator itself: " + traceback.format_exc(limit=-6)
            return None, error, run.world.trace or []
    return result, "", run.world.trace or []


def run_seed(seed: int) -> Result:
    """Raises Failed."""
    return Run(make_plan(seed)).execute()
