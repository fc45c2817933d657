"""Machines run an older program at first and are upgraded one by one under load; at last an
operator raises the cluster's level.

How it works. The plan draws the feature level that all programs speak at first: brokers,
controllers and clients refuse what that level lacks. The upgrader restarts machines
with the newest program, in any order, and asks for the newest level again and again: it must be
refused as long as one machine is older, and nothing may rise before it is granted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semel.protos.errors import SemelError, UnsupportedVersion
from semel.protos.levels import LEVEL_MAX, SPLIT_LEVEL
from tests.checking.raw_log import Fold
from tests.world.clients import ClientHost
from tests.world.nodes import BrokerHost, ControllerHost
from tests.world.plan import Plan, with_clients
from tests.world.registry import Part, add_part, program, random_of

if TYPE_CHECKING:
    from tests.world.run import Run

OLDER = tuple(range(SPLIT_LEVEL - 1, LEVEL_MAX))
"""The levels that programs may have at first."""


class Upgrader(ClientHost):
    """A client that upgrades the machines of a cluster, and raises its level."""

    def __init__(self, run: Run, host: str) -> None:
        super().__init__(run.world, host)
        self._run = run
        self._began = run.world.level_max
        self._told = False
        """True once the level was asked for when all machines knew it: it may have risen."""

    async def work(self, client: Any) -> None:
        world = self.world
        while True:
            self._check()
            older = self._older()
            if older and self.random.random() < 0.7:
                machine = self.random.choice(older)
                world.level_max = LEVEL_MAX  # nobody installs an older program any more
                machine.level_max = LEVEL_MAX
                world.count("machine upgraded")
                world.crash(machine.name, "upgraded")
                if len(older) == 1 and not self.stopping:
                    await self._hesitate()
            elif await self._raise(client):
                break
            await self.pause(0.02 if self.stopping else 0.06)
        self.done = True

    async def _hesitate(self) -> None:
        """Lets some time pass in which all could rise and nobody orders it."""
        for _ in range(10):
            await asyncio.sleep(0.06)
            self._check()

    async def _raise(self, client: Any) -> bool:
        """True once everything has the newest level."""
        older = [one for one in self._servers() if one.level_max < LEVEL_MAX]
        self._told |= not older
        try:
            plan = await client.admin.upgrade(LEVEL_MAX, dry_run=self.random.random() < 0.3)
        except UnsupportedVersion:
            self.world.count("level refused")
            return False
        except SemelError as error:
            self.world.tell(f"upgrade: {type(error).__name__}: {error.message}")
            return False
        servers = self._servers()  # without nodes that were removed from their group meanwhile
        unknowing = [one.name for one in older if one in servers]
        assert not unknowing, f"the level rises although {unknowing} do not know it"
        self._told = True
        if plan.dry_run:
            return not plan.changes
        self.world.count("level raised")
        return True

    def _older(self) -> list[BrokerHost | ControllerHost | ClientHost]:
        """Machines that are still to be upgraded."""
        programs = [one for one in self._run.clients if one is not self]
        return [one for one in (*self._servers(), *programs) if one.level_max < LEVEL_MAX]

    def _servers(self) -> list[BrokerHost | ControllerHost]:
        brokers = [host for host in self._run.hosts.values() if not host.retired]
        return [*brokers, *self._run.controllers]

    def _check(self) -> None:
        """Checks that nothing rises by itself, not even at the use of a feature that needs it."""
        for host in self._run.hosts.values():
            replica = host.replica
            if replica is not None and not self._told:
                level = replica.state.feature_level
                assert level <= self._began, f"{host.name} is at level {level}, which nobody asked"

    async def wind_up(self) -> None:
        """Goes on until everything has the newest level: others may need it to finish."""
        await asyncio.sleep(0.02)

    def verdict(self, fold: Fold) -> str:
        levels = {host.name: host.replica.state.feature_level for host in self._members()}
        wrong = {name: level for name, level in levels.items() if level != LEVEL_MAX}
        return f"not at the newest level: {wrong}" if wrong else ""

    def _members(self) -> Iterator[Any]:
        for group in self._run.groups:
            yield from group.members()


@program("upgrader", host="u")
def _upgrader(run: Run, host: str) -> Upgrader:
    return Upgrader(run, host)


def with_upgrades(plan: Plan) -> Plan:
    longer = replace(plan, duration_s=plan.duration_s + 1.5)
    return with_clients(longer, ("upgrader 1",))


@contextmanager
def _older_programs(run: Run) -> Iterator[None]:
    run.world.level_max = random_of(run.plan, "upgrades").choice(OLDER)
    yield


add_part(
    Part(
        name="upgrades",
        help="machines begin with older programs, and are upgraded one by one",
        add=with_upgrades,
        exchange=_older_programs,
    )
)
