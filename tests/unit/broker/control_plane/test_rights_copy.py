"""The broker's copy of the rules: which one is in force, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.control_plane import rights_copy
from semel.broker.control_plane.kept_rights import RightsFile
from semel.broker.control_plane.rights_copy import PATIENCE_S, RightsCopy
from semel.protos.errors import PermissionDenied, SemelError, Unavailable
from semel.protos.security.access import AccessControl
from semel.protos.security.declared import Need
from semel.protos.security.enforcement import CALLER, Caller
from semel.protos.security.guard import Guard
from semel.protos.security.rules import Action, Kind
from semel.protos.v1.metadata_pb2 import RightsRecord
from tests.kit.disk import SimFiles

AGE_MAX_S = 3_600.0
DIRECTORY = Path("/data")
ALICE = Caller(principal="user:alice")
WRITE = Need(Action.WRITE, Kind.TOPIC, "orders")
ONE, TWO = "c1:7070", "c2:7070"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.wall_ahead = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now + self.wall_ahead


class Copy:
    """A copy of one node, whose controllers are played by the test."""

    def __init__(self, clock: Clock, files: SimFiles) -> None:
        self.access = AccessControl("c", Guard(None), cast("Any", SimpleNamespace()), None)
        self.file = RightsFile(DIRECTORY, files)
        self.copy = RightsCopy(
            lambda: (), None, self.access, cast("Any", None), self.file, AGE_MAX_S
        )
        self.clock = clock
        self.ended: list[SemelError] = []

    def told(self, version: int, *rules: str, by: str = ONE) -> None:
        self.copy._take(by, RightsRecord(version=version, rules=rules))

    def silent(self, by: str = ONE) -> None:
        self.copy._told.pop(by, None)

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.copy._confirm()
        await self.copy._maybe_save()

    async def restarted(self, files: SimFiles, away_s: float) -> Copy:
        self.clock.now += away_s
        other = Copy(self.clock, files)
        await other.copy.load()
        return other

    @property
    def allows(self) -> bool:
        """Raises Unavailable while no rules are known."""
        try:
            self.access.enforcer.check_needs("/a/b", [WRITE], ALICE)
        except PermissionDenied:
            return False
        except SemelError as error:
            if isinstance(error, Unavailable):
                raise
            return False
        return True


RULE = "allow user:alice write topic:orders"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rights_copy, "time", made)
    return made


@pytest.fixture
def files() -> SimFiles:
    return SimFiles()


async def test_the_newest_rules_are_in_force_and_no_older_ones(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    with pytest.raises(Unavailable, match="has not heard yet"):
        node.allows  # noqa: B018
    node.told(3, RULE)
    assert node.allows
    node.told(4)
    assert not node.allows
    node.told(3, RULE, by=TWO)
    assert not node.allows, "a controller that was replaced brings nothing back"


async def test_a_node_that_was_restarted_goes_by_its_copy_when_nobody_tells_anything(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(3, RULE)
    await node.later(0)
    node = await node.restarted(files, away_s=60)
    with pytest.raises(Unavailable):
        node.allows  # noqa: B018
    running = asyncio.ensure_future(node.copy.run())
    try:
        await asyncio.sleep(0)
        clock.now += PATIENCE_S
        await asyncio.sleep(0.3)
    finally:
        running.cancel()
    assert node.allows
    assert node.copy.age_s() == pytest.approx(60 + PATIENCE_S)


async def test_what_a_controller_tells_comes_before_the_copy(clock: Clock, files: SimFiles) -> None:
    node = Copy(clock, files)
    node.told(3, RULE)
    await node.later(0)
    node = await node.restarted(files, away_s=60)
    node.told(4)
    assert not node.allows
    node.copy._maybe_go_by_kept()
    assert not node.allows
    await node.later(0)
    kept = node.file.load()
    assert kept is not None
    assert kept.record.version == 4


async def test_a_replaced_controller_brings_nothing_back_after_a_restart(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(4)
    await node.later(0)
    node = await node.restarted(files, away_s=60)
    node.told(3, RULE)
    assert not node.allows
    assert node.access.version == 4


async def test_a_copy_that_nobody_confirms_is_forgotten_for_its_age(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(3, RULE)
    await node.later(10 * AGE_MAX_S)
    assert node.allows, "the watch lasts"
    ended: list[SemelError] = []
    token = CALLER.set(ALICE)
    with node.access.enforcer.gate("/a/b", ended.append) as gate:
        gate.admit([WRITE])
        node.silent()
        await node.later(AGE_MAX_S - 1)
        assert node.allows
        assert not ended
        await node.later(1)
        with pytest.raises(Unavailable, match="only administrators in"):
            node.allows  # noqa: B018
        assert [type(error) for error in ended] == [Unavailable]
        with pytest.raises(Unavailable):
            gate.admit([WRITE])
    CALLER.reset(token)
    root = Caller(principal="user:root", administrator=True)
    node.access.enforcer.check_needs("/a/b", [WRITE], root)
    node.told(3, RULE)
    assert node.allows, "the same rules again"


async def test_an_administrator_s_stream_goes_on_without_rules(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(3)
    ended: list[SemelError] = []
    token = CALLER.set(Caller(principal="user:root", administrator=True))
    with node.access.enforcer.gate("/a/b", ended.append):
        node.access.forget("too old")
        assert not ended
    CALLER.reset(token)


async def test_a_copy_on_the_disk_is_not_taken_for_younger_than_it_is(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(3, RULE)
    await node.later(0)
    await node.later(AGE_MAX_S / 2)  # confirmed all the time, and saved now and then
    node.silent()
    before = clock.now
    node = await node.restarted(files, away_s=AGE_MAX_S * 0.9)
    node.copy._maybe_go_by_kept()
    assert node.allows
    assert node.copy.age_s() >= clock.now - before
    node = await node.restarted(files, away_s=AGE_MAX_S * 0.11)
    node.copy._maybe_go_by_kept()
    with pytest.raises(Unavailable):
        node.allows  # noqa: B018


async def test_a_clock_that_was_set_back_makes_no_time_in_the_future(
    clock: Clock, files: SimFiles
) -> None:
    node = Copy(clock, files)
    node.told(3, RULE)
    await node.later(0)
    clock.wall_ahead = -1e6
    node = await node.restarted(files, away_s=60)
    node.copy._maybe_go_by_kept()
    assert node.copy.age_s() == 0
    await node.later(AGE_MAX_S)
    with pytest.raises(Unavailable):
        node.allows  # noqa: B018


async def test_a_full_disk_takes_nothing_from_a_node_that_runs(
    clock: Clock, files: SimFiles, caplog: pytest.LogCaptureFixture
) -> None:
    node = Copy(clock, files)
    files.full = ("RIGHTS", "write")
    node.told(3, RULE)
    await node.later(0)
    assert node.allows
    assert "cannot be kept" in caplog.text
