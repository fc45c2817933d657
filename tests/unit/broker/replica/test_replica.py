"""One replica on a real log, without the network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.config import BrokerConfig
from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.log import HardStateFile, Log, LogConfig
from semel.broker.raft import RaftConfig, Role
from semel.broker.replica.feature_levels import FeatureLevels
from semel.broker.replica.member_book import Members
from semel.broker.replica.replica import Replica
from semel.broker.state import State
from semel.protos import compat
from semel.protos.errors import (
    DiskFull,
    SemelError,
    Throttled,
    Unavailable,
    UnsupportedVersion,
)
from semel.protos.frames import RecordKind, build_frame, decode_frame_header
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import own_levels
from semel.protos.v1.control_pb2 import ControlRecord, FeatureLevel

LOG = LogConfig(segment_bytes=1 << 20, ids_per_segment=64, fill_bytes_per_second=0)
HOUR_US = 3_600_000_000
RAFT = RaftConfig(
    tick_ms=1, heartbeat_ms=5, election_min_ms=10, election_max_ms=20, loop_gap_ms=30_000
)


class _Group:
    """What `FeatureLevels` asks of a replica."""

    is_master = True

    def __init__(self, levels: dict[int, int | None], *, reached: int = 0) -> None:
        self.config = SimpleNamespace(node_id=1, level_max=5)
        self.state = SimpleNamespace(feature_level=reached)
        links = {
            node: SimpleNamespace(levels=None if level is None else own_levels(level))
            for node, level in levels.items()
        }
        addresses = {1: "", **dict.fromkeys(levels, "")}
        self.peers = SimpleNamespace(links=links, addresses=addresses)
        self.submitted: list[int] = []
        self.refused: list[SemelError] = []
        """What the next calls are told."""

    async def wait_master(self) -> None:
        pass

    async def submit_control(self, record: ControlRecord) -> None:
        if self.refused:
            raise self.refused.pop()
        self.submitted.append(record.feature_level.level)


@pytest.mark.parametrize(
    ("levels", "reached", "submitted", "reason"),
    [
        ({}, 0, [2], ""),
        ({2: 2, 3: 5}, 0, [2], ""),
        ({2: 2, 3: 1}, 0, [], "with feature levels 0 to 1, .* at level 2: upgrade node 3"),
        ({2: None, 3: 2}, 0, [], "node 2 is not connected"),
        ({2: 0}, 2, [], ""),
        ({2: 0}, 1, [], "with feature levels 0 to 0, .* at level 2: upgrade node 2"),
    ],
)
def test_the_feature_level_rises_when_every_member_knows_it(
    levels: dict[int, int | None], reached: int, submitted: list[int], reason: str
) -> None:
    """A node of an older version would halt at the first entry that it does not know."""
    group = _Group(levels, reached=reached)
    for dry_run, found in ((True, []), (False, submitted)):
        asked = FeatureLevels(group).raise_to(2, dry_run=dry_run)  # type: ignore[arg-type]
        if reason:
            with pytest.raises((Unavailable, UnsupportedVersion), match=reason):
                asyncio.run(asked)
        else:
            asyncio.run(asked)
        assert group.submitted == found


def test_a_level_that_was_refused_is_not_awaited() -> None:
    """Else this master would name its level to nobody, and let in no member that lacks it."""

    async def refuse_beside_another() -> None:
        group = _Group({2: 3}, reached=1)
        levels = FeatureLevels(group)  # type: ignore[arg-type]
        for error in (DiskFull("no room"), Throttled("too many")):
            group.refused.append(error)
            with pytest.raises(type(error)):
                await levels.raise_to(2)
            assert levels.needed == 1
            assert levels.told().active == 1
        await levels.raise_to(2)
        group.refused.append(Throttled("too many"))
        with pytest.raises(Throttled):
            await levels.raise_to(2)
        assert levels.needed == 2, "the other call's is on its way"
        assert levels.told().active == 0

    asyncio.run(refuse_beside_another())


def test_only_a_master_names_the_level_and_only_its_own_proposals_count() -> None:
    async def depose() -> None:
        group = _Group({2: 3}, reached=1)
        levels = FeatureLevels(group)  # type: ignore[arg-type]
        assert levels.told().active == 1
        group.is_master = False
        assert levels.told().active == 0, "there may be a newer one that is not applied here"
        group.is_master = True
        await levels.raise_to(2)
        assert (levels.needed, levels.told().active) == (2, 0)
        assert not levels.begin(_no_proposer())
        assert (levels.needed, levels.told().active) == (1, 1), "the log did not take it"

    asyncio.run(depose())


def test_a_log_of_before_levels_gets_none_by_itself() -> None:
    """Its group may have a member whose program knows none."""
    group = _Group({2: 3})
    group.state.queues = {1: "a queue"}
    assert not FeatureLevels(group).begin(_no_proposer())  # type: ignore[arg-type]


def _no_proposer() -> Any:
    return None


@asynccontextmanager
async def _elected(directory: Path) -> AsyncIterator[Replica]:
    """A group of one on the log in `directory`, and master."""
    failures: list[str] = []
    log = Log.open(directory / "log", LOG)
    with ThreadPoolExecutor(1) as readers:
        replica = Replica(
            BrokerConfig(
                data=directory,
                cluster_id="test",
                group_id=GroupId(1),
                node_id=NodeId(1),
                listen="127.0.0.1:0",
                members={NodeId(1): "127.0.0.1:0"},
                raft=RAFT,
            ),
            log=log,
            hard_state=HardStateFile(directory / "hard_state"),
            state=State(),
            founding=Members(voters={NodeId(1): "127.0.0.1:0"}),
            logged_members={},
            readers=readers,
            on_fatal=failures.append,
            open_id_store=MemoryIdStore,
        )
        async with compat.timeout(60):
            while replica.core.role is not Role.MASTER and not failures:
                replica.driver.on_tick()
                await asyncio.sleep(0.001)
        try:
            yield replica
        finally:
            log.close()
    assert not failures


async def _time_of_first_own_entry(directory: Path) -> int:
    async with _elected(directory) as replica:
        last = replica.log.last_index
        (frame,) = replica.log.read_frames(last, last + 1)
    return decode_frame_header(frame).time_us


def test_log_time_does_not_fall_after_a_restart_when_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    """The newest entry is not applied yet and not in memory; its time counts all the same."""
    later_us = time.time_ns() // 1000 + HOUR_US
    log = Log.open(tmp_path / "log", LOG)
    frame, _ = build_frame(1, 1, later_us, [(RecordKind.NOOP, ())])
    log.append([frame])
    assert log.wait_synced(1, 10)
    log.close()
    HardStateFile(tmp_path / "hard_state").save(1, NodeId(1))
    assert asyncio.run(_time_of_first_own_entry(tmp_path)) >= later_us


def test_only_a_master_leaves_what_it_writes_in_the_page_cache(tmp_path: Path) -> None:
    async def resign() -> None:
        async with _elected(tmp_path) as replica:
            assert replica.log.page_cached
            replica.resign()
            assert not replica.log.page_cached

    asyncio.run(resign())


def test_a_replica_that_stops_takes_nothing_more_though_it_stays_master(tmp_path: Path) -> None:
    """What was on its way to the disk is applied meanwhile: that makes it no judge again, whose
    next entry would meet a closed log."""

    async def stop_while_an_entry_is_written() -> None:
        async with _elected(tmp_path) as replica, compat.timeout(60):
            await replica.wait_master()
            asked = asyncio.create_task(
                replica.submit_control(ControlRecord(feature_level=FeatureLevel(level=1)))
            )
            last = replica.log.last_index
            while replica.log.last_index == last:
                await asyncio.sleep(0)
            replica.stop(lambda: Unavailable("the node is stopping"))
            with pytest.raises(Unavailable, match="stopping"):
                await asked
            while replica.state.applied_index <= last:
                await asyncio.sleep(0)
            assert replica.core.role is Role.MASTER
            assert not replica.is_master

    asyncio.run(stop_while_an_entry_is_written())
