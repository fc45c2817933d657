"""One replica on a real log, without the network."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semel.broker.config import BrokerConfig
from semel.broker.log import HardStateFile, Log, LogConfig
from semel.broker.members import Members
from semel.broker.raft import RaftConfig, Role
from semel.broker.replica import Replica
from semel.broker.state import State
from semel.protos.frames import RecordKind, build_frame, decode_frame_header
from semel.protos.ids import GroupId, NodeId

LOG = LogConfig(segment_bytes=1 << 20, ids_per_segment=64, fill_bytes_per_second=0)
HOUR_US = 3_600_000_000
RAFT = RaftConfig(
    tick_ms=1, heartbeat_ms=5, election_min_ms=10, election_max_ms=20, loop_gap_ms=30_000
)


async def _time_of_first_own_entry(directory: Path) -> int:
    """A group of one starts on the log in `directory` and is elected."""
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
        )
        async with asyncio.timeout(10):
            while replica.core.role is not Role.MASTER and not failures:
                replica.on_tick()
                await asyncio.sleep(0.001)
        (frame,) = log.read_frames(log.last_index, log.last_index + 1)
        log.close()
    assert not failures
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
