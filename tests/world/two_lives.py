"""A cluster that is lost with all of its machines, and comes back from its tier.

How it works. Two runs follow one another. The first is a world with an object store that ends
without a warning: all machines are gone. In the second one new and empty machines begin a cluster
of another name with the objects of the first, while nodes die and the store fails; an operator
restores it, again and again until it is done. Then the programs go on under the names that they
had: loaders send their whole source again, members go on reading, an archivist reads everything.

The checker judges the second life by the logs of the new machines and by what has come back of the
lost cluster, in which every message, sequence and offset is known (`lost_cluster.py`). So it finds
a message that was tiered and reads differently, one that is stored twice because its sequence was
forgotten, and one that is never stored because a lost one counts as stored.

`./run soak restores --seeds A:B` runs many.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

from semel.protos.errors import InvalidRequest, SemelError
from tests.checking.exactly_once import Report
from tests.checking.raw_log import NodeLog
from tests.world import nodes, stories
from tests.world import run as run_module
from tests.world.clients import ClientHost, Loader
from tests.world.lost_cluster import Comeback, LostCluster, published_of
from tests.world.nemesis import Nemesis
from tests.world.object_store import URL
from tests.world.plan import Plan, Step, make_plan
from tests.world.registry import with_parts
from tests.world.run import Failed, Result, Run
from tests.world.tier_checks import TierChecks
from tests.world.world import World

_FIRST: Final = ("loader 1", "loader 2", "sender 1", "member 1", "archivist 1", "outsider 1")
_SECOND: Final = ("loader 1", "loader 2", "sender 8", "member 1", "archivist 1")
_FAULTS: Final = (
    *("kill master", "kill master", "kill", "store down", "store denies", "checkpoint"),
    *("controller crash", "controller crash in a write", "all lose power"),
)
RESTORED_S: Final = 60.0
TOO_NEW: Final = "the tier has no facts"


def plans_of(seed: int) -> tuple[Plan, Plan, tuple[Step, ...]]:
    """The plan of each life, and what strikes while the second one is restored."""
    random = Random(f"{seed} lives")
    plan = with_parts(replace(make_plan(seed), clients=()), ("tiers",))
    plan = replace(
        plan,
        clients=_FIRST,
        more_groups=(),
        retention_bytes=0,
        producers_max=100,
        lines=random.choice((20, 40, 70)),
        duration_s=random.uniform(1.5, 4.0),
    )
    second = replace(plan, clients=_SECOND, duration_s=random.uniform(0.5, 2.5))
    second = replace(second, steps=_steps(random, second.duration_s))
    return plan, second, _steps(random, 3.0)


def _steps(random: Random, end_s: float) -> tuple[Step, ...]:
    kinds = random.choices(_FAULTS, k=random.choice((0, 3, 6)))
    return tuple(
        Step(round(random.uniform(0.0, end_s), 6), kind, random.getrandbits(32)) for kind in kinds
    )


@contextmanager
def _noting(facts_ms: int, *, restores: bool) -> Iterator[None]:
    """Masters note facts often; `restores`: nodes wait for the tier of another cluster."""
    made = vars(run_module)["broker_config"]  # as the tier's part has left it
    config = partial(made, tier_facts_ms=facts_ms, tier_restore=restores)
    with patch.object(run_module, "broker_config", config):
        yield


class FirstLife(Run):
    """The cluster that is lost."""

    lost: LostCluster

    def _execute(self) -> Result:
        world, plan, checks = self.world, self.plan, self.shared(TierChecks)
        with _noting(Random(f"{plan.seed} facts").choice((1, 100, 400)), restores=False):
            self._boot()
            for group in self.groups:
                group.invariants.folded.on_tier = checks.on_record
            Nemesis(self)
            for client in self.clients:
                client.start()
            self._run_until(world.now + plan.duration_s)
        memories = [(group.group_id, group.invariants) for group in self.groups]
        logs = [
            NodeLog(group=number, node=0, frames=one.committed, commit_index=one.newest)
            for number, one in memories
        ]
        report = self._check(logs)
        for client in self.clients:
            if wrong := client.verdict(report.fold):
                raise Failed(wrong)
        assert checks.store is not None
        self.lost = LostCluster(
            at_s=world.now,
            fold=report.fold,
            history=world.history,
            loaders={one.name: one.notes for one in self.clients if isinstance(one, Loader)},
            objects=checks.store.versions,
            decided={key: list(known) for key, known in checks.decided.items()},
            published=published_of(checks),
        )
        return self._result(report)

    def _result(self, report: Report) -> Result:
        world = self.world
        return Result(
            seen=world.seen,
            steps=world.loop.steps,
            fingerprint=world.fingerprint,
            report=report,
        )


class SecondLife(Run):
    """The cluster that is restored."""

    def __init__(
        self, plan: Plan, first: FirstLife, during: tuple[Step, ...], *, traced: bool = False
    ) -> None:
        """`during` strikes while it is restored."""
        super().__init__(plan, traced=traced)
        self._during = during
        self._lost = first.lost
        self.world.loop.now = first.lost.at_s  # the store's objects have their times
        self._known = first.shared(TierChecks)
        self._comeback: Comeback

    def _execute(self) -> Result:
        with _noting(Random(f"{self.plan.seed} facts").choice((1, 100, 400)), restores=True):
            return super()._execute()

    def _boot(self) -> None:
        checks, known = self.shared(TierChecks), self._known
        assert checks.store is not None
        checks.store.versions = self._lost.objects
        checks.decided, checks.files, checks.gone = known.decided, known.files, known.gone
        self._begin_brokers()
        (group,) = self.groups
        folded = group.invariants.folded
        self._comeback = Comeback(
            left=self._lost,
            checks=checks,
            journeys=folded.places.journeys,
            told=folded.consumption.told,
        )
        folded.on_restore, folded.on_tier = self._comeback.on_step, checks.on_record
        later, self.plan = self.plan, replace(self.plan, steps=self._during)
        Nemesis(self)
        self.plan = later
        restorer = _Restorer(self.world, "a1")
        restorer.bootstrap = self.bootstrap
        restorer.start()
        self._run_until(self.world.now + RESTORED_S, lambda: restorer.done)
        if not restorer.done:
            raise Failed(f"not restored in {RESTORED_S:g} s: {self._state()}")
        if restorer.too_new:
            raise TooNew
        if wrong := self._comeback.wrong():
            raise Failed(wrong)
        self._make_clients()
        loaders = [client for client in self.clients if isinstance(client, Loader)]
        self._comeback.take_notes(self.world.history, loaders)
        self._count()

    def _count(self) -> None:
        seen, lost = self.world.seen, self._lost
        for key, found in self._comeback.slices.items():
            end = found.queue.log_end_offset
            rows = [row for row in lost.fold.rows if row.queue == key]
            seen["queue restored"] += 1
            seen["message restored"] += sum(row.offset < end for row in rows)
            seen["message lost"] += sum(row.offset >= end for row in rows)
            seen["row of a producer restored"] += found.producers.row_count
            seen["group restored"] += sum(1 for _ in found.groups.states())
            reopened = {row.producer_id for row in rows if row.offset < end}
            known = {int(row.producer_id) for row in found.producers.rows(key)}
            seen["row of a producer expired"] += len(reopened - known)

    def _check(self, logs: Any, restored: Any = None) -> Report:
        return super()._check(logs, self._comeback.restored())


class _Restorer(ClientHost):
    """The operator, who tries until it is done."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.too_new = False

    async def work(self, client: Any) -> None:
        try:
            done = await client.admin.restore_cluster(URL, timeout=3.0)
        except InvalidRequest as error:
            if TOO_NEW not in error.message:
                raise
            self.too_new = True
        except SemelError:
            self.world.count("restore goes on later")
            raise
        else:
            self.too_new = not done.topics
        self.done = True


class TooNew(Exception):
    """The cluster was lost before the store had anything of it."""


def run_lives(
    seed: int, *, plant: AbstractContextManager[object] | None = None, traced: bool = False
) -> tuple[Counter[str], str, list[str]]:
    """What was seen in both lives, what failed, and the trace."""
    one, other, during = plans_of(seed)
    first = FirstLife(one, traced=traced)
    runs: list[Run] = [first]
    error = ""
    with plant if plant is not None else nullcontext():
        try:
            first.execute()
            with patch.object(nodes, "CLUSTER", "anew"):
                second = SecondLife(other, first, during, traced=traced)
                runs.append(second)
                second.execute()
                second.world.seen["at rest"] += 1
        except TooNew:
            runs[-1].world.seen["lost before the store had anything"] += 1
        except (Failed, SemelError) as failure:
            error = f"life {len(runs)}: {failure}"
        except Exception:
            error = "the simulator itself: " + traceback.format_exc(limit=-6)
    seen = Counter[str]()
    for each in runs:
        seen += each.world.seen
    return seen, error, [line for each in runs for line in each.world.trace or []]


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    return stories.main(run_lives, "restores", arguments)
