"""The logs that released versions left: today's state machine makes the same states of them.

A group of which some members are upgraded applies one log with two versions; both must come to the
same bytes. `tools/recorded_logs.py` records the logs. As long as a version is not released, its
logs may be recorded anew: what its highest feature level allows is not final yet.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from semel.broker.state import State
from semel.broker.state.apply import rows
from semel.protos.frames import RecordKind
from semel.protos.v1 import control_pb2
from tools.recorded_logs import LOGS, RecordedLog, digests_of, read, records_of

VERSIONS = sorted(path.name for path in LOGS.iterdir())
RECORDED = {f"{version}-{name}": log for version in VERSIONS for name, log in read(LOGS / version)}
RARE = {"control.give_up_delayed"}
"""Kinds that no recorded log needs to have: an operator's last resort."""


@pytest.mark.parametrize("log", RECORDED.values(), ids=RECORDED)
def test_today_s_state_machine_makes_the_same_states(log: RecordedLog) -> None:
    assert digests_of(log.frames) == (log.digests, log.level)


@pytest.mark.parametrize("log", RECORDED.values(), ids=RECORDED)
def test_a_state_that_a_release_stored_is_read_and_goes_on(log: RecordedLog) -> None:
    """The checkpoint of an older program, and the log behind it."""
    middle = sorted(log.digests)[1]
    state = State()
    for frame in log.frames[:middle]:
        state.apply_frame(frame)
    state = State.from_bytes(b"".join(state.to_parts()))
    assert state.digest().hex() == log.digests[middle]
    for frame in log.frames[middle:]:
        state.apply_frame(frame)
    assert state.digest().hex() == log.digests[len(log.frames)]


def test_the_logs_of_the_newest_release_have_each_kind_of_record() -> None:
    found: set[str] = set()
    for _, log in read(LOGS / VERSIONS[-1]):
        assert dict(records_of(log.frames)) == log.records
        found |= log.records.keys()
    kinds = {kind.name.lower() for kind in RecordKind if kind is not RecordKind.CONTROL}
    oneof = control_pb2.ControlRecord.DESCRIPTOR.oneofs_by_name["record"]
    kinds |= {f"control.{one.name}" for one in oneof.fields}
    assert kinds - found <= RARE


def test_a_planted_change_of_a_rule_is_found() -> None:
    with patch.object(rows, "WINDOW_BYTES", 2 * rows.ENTRY.size):
        same = [digests_of(log.frames)[0] == log.digests for log in RECORDED.values()]
    assert not all(same)
