"""Empty nodes of groups that were founded before: more of them at once than may be lost, founders
of groups that have grown, strangers at a member's address, lost records, and operators who restore.

How it works. A plan gets one of these stories, by its seed, and a few of its own steps. *Two empty
nodes*: a node of three dies as soon as it counts, so it has nothing; the other two serve. Then one
of them loses its disk and the other, which has all that was acknowledged, is away: both nodes that
are left are empty, and must wait. *Stranger*: one of three is away for a moment, then another one,
with a node of another cluster at its address, while the third loses its disk. *Dies while it is
fed*: one is away, another one loses its disk and dies again before it has caught up. *Lost
founder*: a group of one grows to three, and its founder loses its disk. *Majority lost*: two of
three disks are lost, not the one that has everything, and an operator has the group restored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from semel.broker.membership.status import MembershipStatus
from semel.controller.records import FOUNDINGS
from semel.protos.ids import GroupId, NodeId
from tests.kit.disk import SimFiles
from tests.world.loop import Killed
from tests.world.nemesis import Nemesis
from tests.world.nodes import BrokerHost
from tests.world.operator import Operator
from tests.world.plan import NEEDS_PEERS, Plan, Step, with_steps
from tests.world.registry import Part, add_part, fault, random_of
from tests.world.run import Run

LATE: Final = "two empty nodes"
FOUNDER: Final = "lost founder"
MAJORITY: Final = "majority lost"
STRANGER: Final = "stranger"
FED: Final = "dies while it is fed"
STORIES: Final = (LATE, STRANGER, FED, FOUNDER, MAJORITY)
AWAY_S: Final = 1.2
_SPOILS: Final = NEEDS_PEERS | {"replace node", "grow"}
"""Faults that take disks or members from a group that has none to lose."""
_STRANGE_DATA: Final = Path("/sim/stranger")


def with_foundings(plan: Plan) -> Plan:
    random = random_of(plan, "foundings")
    story = STORIES[plan.seed % len(STORIES)]
    at = random.uniform(0.3, 0.8)
    times = [at + 0.3 * number for number in range(2, 9)] if story == FOUNDER else [at]
    steps = [Step(round(one, 6), story, random.getrandbits(32)) for one in times]
    if story == FOUNDER:
        steps.append(Step(0.0, "grow", random.getrandbits(32)))
    kept = tuple(step for step in plan.steps if step.kind not in _SPOILS and random.random() < 0.3)
    return dataclasses.replace(
        with_steps(dataclasses.replace(plan, steps=kept), steps),
        size=1 if story == FOUNDER else 3,
        victim=1 if story == FOUNDER else random.randrange(1, 4),
        duration_s=max(plan.duration_s, max(times) + 2 * AWAY_S + 0.5),
    )


def in_the_first_group(plan: Plan) -> Plan:
    """Its stories are the first broker group's, which no other part makes smaller, nor takes disks
    or members from."""
    grows = any(step.kind == FOUNDER for step in plan.steps)
    size = 1 if grows else 3
    return dataclasses.replace(
        plan,
        steps=tuple(
            step
            for step in plan.steps
            if step.kind not in _SPOILS or (grows and step.kind == "grow" and not step.at_s)
        ),
        size=size,
        victim=1 + (plan.victim - 1) % size,
    )


def _late(run: Run) -> BrokerHost | None:
    """The founder that comes late, in the story of that name."""
    if not any(step.kind == LATE for step in run.plan.steps):
        return None
    return run.hosts.get(NodeId(1 + Random(run.plan.seed).randrange(3)))


@contextmanager
def late_founder(run: Run) -> Iterator[None]:
    """One of the founders dies as soon as it counts, and stays away."""
    original = MembershipStatus._count
    held: set[str] = set()

    def _count(self: MembershipStatus) -> None:
        original(self)
        late = _late(run)
        if late is not None and not held and self._config == late.config:
            held.add(late.name)
            late.away_s = run.plan.duration_s + 2.0
            run.world.fault("founder away since the founding")
            run.world.crash(late.name, "held back")
            raise Killed

    with patch.object(MembershipStatus, "_count", _count):
        yield


def lose(nemesis: Nemesis, host: BrokerHost, name: str) -> None:
    """A node loses its directory and starts again soon."""
    nemesis.die(host, name)
    host.wipe()
    nemesis.run.group_of(host).invariants.forget(host)


def lose_the_record(nemesis: Nemesis) -> None:
    """The controller dies and has forgotten the groups' foundings."""
    (controller,) = nemesis.run.controllers
    nemesis.world.fault("founding record lost")
    nemesis.world.crash(controller.name, "kill")
    for key in [key for key in controller.table.entries if key.startswith(FOUNDINGS)]:
        del controller.table.entries[key]


def let_a_stranger_in(nemesis: Nemesis, host: BrokerHost, until_s: float) -> None:
    """A fresh node of another cluster listens at the address of one that is down."""
    config = host.config
    addresses = list(config.members.values())
    strange = {NodeId(number): address for number, address in enumerate(addresses, 17)}
    own = next(node for node, address in strange.items() if address == config.listen)
    host.begin_as(
        dataclasses.replace(
            config,
            data=_STRANGE_DATA,
            cluster_id="somebody-elses",
            group_id=GroupId(9),
            node_id=own,
            members=strange,
        ),
        SimFiles(),
    )
    nemesis.world.fault("stranger at a member's address")
    nemesis.world.later(until_s, host.end_as_itself)


@fault(LATE)
def two_empty_nodes(nemesis: Nemesis) -> None:
    late = _late(nemesis.run)
    assert late is not None
    group = nemesis.run.groups[0]
    others = [host for host in group.hosts.values() if host is not late]
    lost, keeper = nemesis.random.sample(others, 2)
    if late.replica is not None or any(host.wiped for host in group.hosts.values()):
        return  # it is not late any more
    keeper.away_s = AWAY_S
    nemesis.die(keeper, "long absence")
    lose(nemesis, lost, "lost directory beside a late founder")
    late.start()
    if nemesis.run.ensemble is None and nemesis.run.plan.seed // len(STORIES) % 2:
        lose_the_record(nemesis)


@fault(STRANGER)
def stranger(nemesis: Nemesis) -> None:
    """Entries that are acknowledged while the first node is away are on the other two only."""
    group = nemesis.run.groups[0]
    behind, lost, keeper = nemesis.random.sample(list(group.hosts.values()), 3)
    behind.away_s = AWAY_S
    nemesis.die(behind, "long absence")

    def strike() -> None:
        if nemesis.run.healing or behind.replica is not None:
            return
        keeper.away_s = AWAY_S
        nemesis.die(keeper, "long absence")
        lose(nemesis, lost, "lost directory beside a stranger")
        if not keeper.alive:
            let_a_stranger_in(nemesis, keeper, AWAY_S - 0.1)

    nemesis.world.later(0.5, strike)


@fault(FED)
def dies_while_it_is_fed(nemesis: Nemesis) -> None:
    """It cannot have caught up: the one that is away would have to agree to that."""
    group = nemesis.run.groups[0]
    keeper = group.master()
    if keeper is None:
        return
    others = [host for host in group.hosts.values() if host is not keeper]
    behind, lost = nemesis.random.sample(others, 2)
    behind.away_s = 2 * AWAY_S
    nemesis.die(behind, "long absence")

    def strike() -> None:
        if nemesis.run.healing or group.master() is not keeper:
            return
        lose(nemesis, lost, "lost directory")
        strike_again()

    def strike_again() -> None:
        if nemesis.run.healing or behind.replica is not None:
            return
        if lost.replica is None or not lost.replica.log.last_index:
            nemesis.world.later(0.02, strike_again)
        elif lost.replica.non_counting:
            keeper.away_s = AWAY_S
            nemesis.die(keeper, "long absence")
            nemesis.die(lost, "death while it is fed")
            nemesis.world.later(0.2, behind.start)

    nemesis.world.later(0.3, strike)


@fault(FOUNDER)
def lost_founder(nemesis: Nemesis) -> None:
    group = nemesis.run.groups[0]
    founder = group.hosts[NodeId(1)]
    members = [group.hosts[node] for node in group.invariants.voters]
    counting = [
        host for host in members if host.replica is not None and not host.replica.non_counting
    ]
    if len(members) < 3 or len(counting) < len(members) or founder.wiped:
        return
    lose(nemesis, founder, "lost directory of a founder")
    others = [host.name for host in members if host is not founder]
    links = {(founder.name, one) for one in others} | {(one, founder.name) for one in others}
    nemesis.cut(links)
    nemesis.world.later(0.8, nemesis.world.network.heal)

    def strike_again() -> None:
        if not nemesis.run.healing and founder.replica is not None:
            nemesis.die(founder, "death before it is fed")

    if nemesis.random.random() > 0.4:
        nemesis.world.later(0.6, strike_again)


@fault(MAJORITY)
def majority_lost(nemesis: Nemesis) -> None:
    """Two disks are lost, but not the one that has all that is committed; an operator restores the
    group."""
    group = nemesis.run.groups[0]
    kept = next(
        (
            host
            for host in group.hosts.values()
            if host.replica is not None
            and not host.replica.non_counting
            and host.replica.log.synced_index >= group.invariants.newest
            and host.replica.core.commit_index == group.invariants.newest
        ),
        None,
    )
    if kept is None or any(host.wiped for host in group.hosts.values()):
        return
    for host in group.hosts.values():
        if host is not kept:
            lose(nemesis, host, "lost directory of a majority")

    async def restore(client: Any) -> None:
        found = await client.admin.restore_group(group.group_id, timeout=5.0)
        nemesis.world.seen["group begun anew"] += found.changed

    # The usual one may be at work on something that waits for this group.
    operator = Operator(nemesis.world, "o2")
    operator.bootstrap = nemesis.run.bootstrap
    operator.security = nemesis.run.security_of(operator)
    operator.ask("restored a group", restore)
    nemesis.run.clients.append(operator)
    operator.start()


add_part(
    Part(
        name="foundings",
        help="empty nodes of groups that were founded before: nobody founds them again",
        add=with_foundings,
        leave_out=in_the_first_group,
        exchange=late_founder,
    )
)
