"""Two clusters at two sites: one is mirrored to the other one, which is promoted when it is lost.

How it works. Both clusters have a controller and three brokers each, in one world. Programs use the
*near* one while `semel mirror`'s own code copies it to the *far* one. Masters, controllers and
mirrors die, links between the sites are cut one way and both ways, a second mirror takes over,
queues are split, messages are delayed. Then comes the fail-over:

    lost      the near site is gone at once, with whatever was not copied
    alive     its programs are gone, and it goes on while the far site is promoted, as does a mirror
    planned   its programs have ended, and the mirror has copied all of it

Afterwards the programs go on at the far site under the names that they had: loaders send their
whole source again, members read on. Each site has a history of its own. The checker judges the near
one as any cluster; what its log had is known then, so each slice that ever settled is held against
it (`standby.py`). The far one is judged with what has come of the near one as a part of its log: so
it finds a message that was copied and reads differently, is stored a second time, or is not there.

`./run soak mirrors --seeds A:B` runs many.

Not here: what a seed decides (`sites_plan.py`), the mirror and the operator (`mirroring.py`).
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from semel.broker.server import mirror_source
from semel.broker.state import make_slice
from semel.client.core.retry import BackoffPolicy
from semel.client.mirror import ending, topic_copy
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId
from tests.checking.delays import messages_of
from tests.checking.exactly_once import Report, Restored
from tests.checking.history import History, Send
from tests.checking.moves import Journeys
from tests.checking.raw_log import Fold, NodeLog, fold
from tests.world import stories
from tests.world.carried import Lost
from tests.world.clients import ClientHost, Loader
from tests.world.consumption import Told
from tests.world.groups import BrokerGroup
from tests.world.mirroring import FAR, FAR_CLUSTER, NEAR, MirrorProgram, Promoter
from tests.world.nemesis import Nemesis
from tests.world.nodes import ControllerHost
from tests.world.registry import fault, program
from tests.world.run import PATIENCE_S, Failed, Result, Run
from tests.world.sites_plan import SitesPlan, plan_of
from tests.world.standby import Standby

COPIED_S: Final = 40.0
PROMOTED_S: Final = 60.0


class NothingCopied(Exception):
    """The near site was lost before a queue was copied whole."""


class TwoSites(Run):
    """The world of both sites. The broker groups of the run are that of the near and that of the
    far one; from the fail-over on, the latter alone."""

    def __init__(self, plan: SitesPlan, *, traced: bool = False) -> None:
        super().__init__(plan.first, traced=traced)
        self.sites = plan
        self.standby: Standby
        self._strikes: list[tuple[str, Any]] = []
        """Steps of a mirror, and what happens at the next such step."""

    # --- both sites

    def bootstrap_of(self, group: BrokerGroup) -> str:
        return NEAR if group.group_id == 1 else FAR

    def cluster_of(self, group: BrokerGroup) -> str:
        return "" if group.group_id == 1 else FAR_CLUSTER

    def _log_time_us(self) -> int:
        """That of the site where programs are: the other one may have no entries for long."""
        replicas = (host.replica for host in self.groups[0].hosts.values())
        return max((one.state.log_time_us for one in replicas if one), default=0)

    @property
    def home_groups(self) -> range | None:
        return None

    def _begin_brokers(self) -> None:
        world = self.world
        for number, first in ((1, 1), (2, 4)):
            group = BrokerGroup(world, GroupId(number), range(first, first + 3))
            self.groups.append(group)
            for node in group.founders:
                # What is delayed at one site is due at the other one by its clocks.
                self._add(group, node, joins=False).right_time = True
            group.begin(Told(), Journeys())
        self.controllers += [ControllerHost(world), ControllerHost(world, "c2", FAR_CLUSTER)]
        for controller in self.controllers:
            controller.start()
        for host in self.hosts.values():
            self._begin(host)

    def site_of(self, near: bool) -> list[str]:
        """The machines of one site, without programs."""
        hosts = [host.name for host in self.hosts.values() if (host.config.group_id == 1) is near]
        return [*hosts, "c1" if near else "c2"]

    def strike_at(self, step: str, action: Any) -> None:
        """Does something at the next such step of a mirror."""
        self._strikes.append((step, action))

    def _on_copied(self, step: str) -> None:
        struck = next((one for one in self._strikes if one[0] == step), None)
        if struck is not None and not self.healing:
            self._strikes.remove(struck)
            self.world.count(f"strike in a mirror: {step}")
            self.world.later(0.0, struck[1])

    # --- the story

    def _execute(self) -> Result:
        with _quick(self.sites):
            return self._live()

    def _live(self) -> Result:
        world, sites = self.world, self.sites
        self._boot()
        near, far = self.groups
        folded = far.invariants.folded
        standby = self.standby = Standby(
            left=Lost(fold=Fold(), history=world.history, loaders={}),
            world=world,
            places=folded.places,
            consumption=folded.consumption,
            source=near.invariants.folded.consumption,
            frames=far.invariants.committed,
            journeys=folded.places.journeys,
            told=folded.consumption.told,
            on_copied=self._on_copied,
        )
        folded.on_restore = standby.on_step
        nemesis = Nemesis(self)
        for client in self.clients:
            if client.name != "mi2":  # it begins with a fault
                client.start()
        self._run_until(world.now + sites.first.duration_s)
        if sites.fail_over == "planned":
            self._heal(nemesis)
            patience_s = COPIED_S + PATIENCE_S
            self._run_until(world.now + patience_s, self._is_copied)
            if not self._is_copied():
                raise Failed(f"not copied in {patience_s:g} s: {self._state()}")
        world.count(f"fail-over: {sites.fail_over}")
        self._fail_over(near, far)
        if not standby.slices:
            if standby.is_whole(sites.first.queues):
                raise Failed("each queue was whole once, and nothing could be promoted")
            raise NothingCopied
        self._second_life(far)
        world.seen["at rest"] += 1
        report = self._judge()
        if missing := standby.missing(report.fold):
            raise Failed(missing)
        self._count(report)
        return Result(
            seen=world.seen,
            steps=world.loop.steps,
            fingerprint=world.fingerprint,
            report=report,
        )

    def _is_copied(self) -> bool:
        """Whether the near site has ended its work, and a promotion would have all of it."""
        if not all(one.done for one in self.clients if not isinstance(one, MirrorProgram)):
            return False
        source, target = (group.judge() for group in self.groups)
        if source is None or target is None:
            return False
        state = source.state
        for key, queue in state.queues.items():
            incoming = target.state.moves.incoming.get(key)
            if incoming is None or incoming.mirror is None:
                return False
            known = state.producers, state.groups, state.delays, state.feature_level
            if incoming.mirror.settled != make_slice(queue, *known):
                return False
        return True

    def _fail_over(self, near: BrokerGroup, far: BrokerGroup) -> None:
        world, sites = self.world, self.sites
        programs = self.clients
        gone = [one for one in programs if not isinstance(one, MirrorProgram)]
        mirrors = self.clients = [one for one in programs if isinstance(one, MirrorProgram)]
        self._end(gone)
        if sites.fail_over == "lost":
            self._end(mirrors)
            self._lose(near)
        world.network.heal()
        self.healing = False
        self.plan = replace(sites.first, steps=sites.during)
        Nemesis(self)
        promoter = Promoter(world, "a2")
        promoter.start()
        self._run_until(world.now + PROMOTED_S, lambda: promoter.done)
        if not promoter.done:
            raise Failed(f"not promoted in {PROMOTED_S:g} s: {self._state()}")
        self._end(mirrors)
        self._judge_near(near, programs)
        if sites.fail_over == "planned" and (lost := self.standby.lost()):
            raise Failed(f"all was copied, and these are lost: {lost[:5]}")
        if wrong := self._wrong_ends(promoter):
            raise Failed(wrong)
        if sites.fail_over != "lost":
            self._lose(near)

    def _end(self, programs: Sequence[ClientHost]) -> None:
        """Programs are gone, and not started again."""
        for client in programs:
            client.done = True
            self.world.crash(client.name, "its site is lost")

    def _lose(self, near: BrokerGroup) -> None:
        """The near site is no more."""
        controllers = [one for one in self.controllers if one.name == "c1"]
        for host in near.hosts.values():
            host.retired = True
        for controller in controllers:
            controller.retired = True
        for name in self.site_of(near=True):
            self.world.crash(name, "its site is lost")
        self.groups = [group for group in self.groups if group is not near]
        self.controllers = [one for one in self.controllers if one not in controllers]

    def _judge_near(self, near: BrokerGroup, programs: Sequence[ClientHost]) -> None:
        known = near.invariants
        log = NodeLog(
            group=near.group_id, node=0, frames=known.committed, commit_index=known.newest
        )
        report = self._check_near(log)
        for client in programs:
            if wrong := client.verdict(report.fold):
                raise Failed(wrong)
        loaders = {one.name: one.notes for one in programs if isinstance(one, Loader)}
        self.standby.left = Lost(fold=report.fold, history=self.world.history, loaders=loaders)
        if wrong := self.standby.wrong():
            raise Failed(wrong)

    def _check_near(self, log: NodeLog) -> Report:
        """The near site is not at rest: delayed messages may wait, which have no offsets yet."""
        delayed = fold(log.frames).delayed
        waits = {
            digest
            for held in delayed.waiting.values()
            for batch in held.values()
            for _, _, digest in messages_of(batch)
        }
        whole, self.world.history = self.world.history, History()
        for note in whole.notes:
            if not (isinstance(note, Send) and note.digest in waits):
                self.world.history.add(note)
        try:
            report = super()._check([log], Restored())
        finally:
            self.world.history = whole
        report.fold.delayed = delayed  # that of one log
        return report

    def _wrong_ends(self, promoter: Promoter) -> str:
        """Whether the operator was told where each queue goes on."""
        ends = {int(key.queue_id): found for key, found in self.standby.slices.items()}
        wanted = {number: found.queue.log_end_offset for number, found in ends.items()}
        told = promoter.ends
        return "" if told == wanted else f"the operator was told {told}, the log says {wanted}"

    def _second_life(self, far: BrokerGroup) -> None:
        world, second = self.world, self.sites.second
        world.history = History()
        self.bootstrap, self.plan, self.clients = FAR, second, []
        self._make_clients()
        loaders = [client for client in self.clients if isinstance(client, Loader)]
        self.standby.take_notes(world.history, loaders)
        nemesis = Nemesis(self)
        for client in self.clients:
            client.start()
        self._run_until(world.now + second.duration_s)
        self._heal(nemesis)
        patience_s = PATIENCE_S + 4 * second.duration_s
        self._run_until(world.now + patience_s, self._at_rest)
        if not self._at_rest():
            raise Failed(f"not at rest {patience_s:g} s after all was healed: {self._state()}")

    def _check(self, logs: Sequence[NodeLog], restored: Restored | None = None) -> Report:
        return super()._check(logs, restored or self.standby.restored())

    def _count(self, report: Report) -> None:
        seen, standby = self.world.seen, self.standby
        for key, found in standby.slices.items():
            seen["queue promoted"] += 1
            seen["child of a split promoted"] += found.queue.parent is not None
            seen["message promoted"] += found.queue.log_end_offset
            seen["delayed message promoted"] += found.delayed.messages
            seen["row of a producer promoted"] += found.producers.row_count
            seen["group promoted"] += sum(1 for _ in found.groups.states())
            seen["slice settled"] += len(standby.settled[key])
        seen["message lost with its site"] += len(standby.lost())
        seen["message acknowledged"] += report.ok


@contextmanager
def _quick(sites: SitesPlan) -> Iterator[None]:
    """Mirrors look at topics often, give up soon, and bring little at a time."""
    retry = BackoffPolicy(initial_ms=20, max_ms=300)
    with ExitStack() as stack:
        for module, name, value in (
            (topic_copy, "LOOK_S", 0.25),
            (topic_copy, "CALL_S", 1.5),
            (topic_copy, "RETRY", retry),
            (ending, "CALL_S", 1.5),
            (mirror_source, "READ_BYTES_MAX", sites.read_bytes),
            (mirror_source, "PART_BYTES", sites.part_bytes),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


@program("mirror", host="mi")
def _mirror(run: Run, host: str) -> MirrorProgram:
    assert isinstance(run, TwoSites)
    return MirrorProgram(run.world, host, run.sites.settle_s)


# --- faults


def _sites(nemesis: Nemesis) -> TwoSites:
    assert isinstance(nemesis.run, TwoSites)
    return nemesis.run


def _cut(nemesis: Nemesis, *, both: bool) -> None:
    """Cuts the mirrors off from one site, or the way back from it."""
    run = _sites(nemesis)
    site = run.site_of(near=nemesis.random.random() < 0.5)
    mirrors = [one.name for one in run.clients if isinstance(one, MirrorProgram)]
    ways = [(mirror, host) for mirror in mirrors for host in site]
    back = [(host, mirror) for mirror, host in ways]
    chosen = nemesis.random.choice((ways, back)) if not both else [*ways, *back]
    nemesis.cut(set(chosen))
    nemesis.world.count("site cut" if both else "site cut one way")
    nemesis.world.later(nemesis.random.uniform(0.3, 2.0), nemesis.world.network.heal)


@fault("site cut")
def _site_cut(nemesis: Nemesis) -> None:
    _cut(nemesis, both=True)


@fault("site cut one way")
def _site_cut_one_way(nemesis: Nemesis) -> None:
    _cut(nemesis, both=False)


@fault("mirror crash")
def _mirror_crash(nemesis: Nemesis) -> None:
    _kill_mirrors(nemesis.run)


def _kill_mirrors(run: Run) -> None:
    for client in run.clients:
        if isinstance(client, MirrorProgram) and client.name in run.world.hosts:
            run.world.fault("mirror crash")
            run.world.crash(client.name, "kill")


@fault("mirror stop")
def _mirror_stop(nemesis: Nemesis) -> None:
    """It goes on later with an answer that is old by then."""
    for process in nemesis.running_clients(MirrorProgram):
        nemesis.stop_a_while(process, "mirror stop")


@fault("another mirror")
def _another_mirror(nemesis: Nemesis) -> None:
    for client in nemesis.run.clients:
        if client.name == "mi2" and not client.starts:
            nemesis.world.fault("another mirror")
            client.start()


@fault("far controller crash")
def _far_controller_crash(nemesis: Nemesis) -> None:
    if "c2" in nemesis.world.hosts:
        nemesis.world.fault("far controller crash")
        nemesis.world.crash("c2", "kill")


@fault("promoter crash")
def _promoter_crash(nemesis: Nemesis) -> None:
    if "a2" in nemesis.world.hosts:
        nemesis.world.fault("promoter crash")
        nemesis.world.crash("a2", "kill")


@fault("strike in a mirror")
def _strike(nemesis: Nemesis) -> None:
    """Something dies at the next step of a mirror that the far log has."""
    run, random = _sites(nemesis), nemesis.random
    step = random.choice(("mirror", "floor", "part", "settle", "settle", "promote"))

    def kill_a_master(number: int) -> None:
        group = next((one for one in run.groups if one.group_id == number), None)
        host = None if group is None else group.master()
        if host is not None:
            host.power_lost = random.random() < 0.5
            nemesis.die(host, "kill of the master in a step")

    actions = (
        lambda: _kill_mirrors(run),
        lambda: kill_a_master(1),
        lambda: kill_a_master(2),
        lambda: _far_controller_crash(nemesis),
        lambda: _promoter_crash(nemesis),
    )
    run.strike_at(step, random.choice(actions))


# --- many seeds


def run_sites(
    seed: int, *, plant: AbstractContextManager[object] | None = None, traced: bool = False
) -> tuple[Counter[str], str, list[str]]:
    """What was seen, what failed, and the trace."""
    run = TwoSites(plan_of(seed), traced=traced)
    error = ""
    with plant if plant is not None else nullcontext():
        try:
            run.execute()
        except NothingCopied:
            run.world.seen["lost before anything was copied"] += 1
        except (Failed, SemelError) as failure:
            error = str(failure)
        except Exception:
            error = "the simulator itself: " + traceback.format_exc(limit=-6)
    return run.world.seen, error, run.world.trace or []


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    return stories.main(run_sites, "mirrors", arguments)
