"""Queues of a lost cluster: what the slice of a new one says of messages that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background.queue_restore import restore_queue
from semel.broker.server.restores_service import RestoresService
from semel.broker.state import (
    RESTORE_JOB,
    Accepted,
    ApplyResult,
    Duplicate,
    FenceApplied,
    Refused,
    RestoredSlice,
    State,
    make_slice,
    restore_slice,
    settings_message,
)
from semel.broker.state.apply import restored as module
from semel.broker.state.apply.id_windows import IdSettings
from semel.broker.state.apply.queues import QueueSettings
from semel.broker.state.apply.restored import TOKEN_STEP
from semel.broker.state.apply.rows import Row
from semel.protos.errors import CorruptSegment, DedupStateExpired, InvalidRequest, NotMaster
from semel.protos.ids import Offset
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1 import control_pb2, restores_pb2
from semel.tier import ObjectMissing
from tests.kit.state_log import KEY, control, header, ref
from tests.unit.broker.state.moving import Home
from tests.unit.broker.state.tiering import Tiering, tiered


class RestoreHome(Home, Tiering):
    """A broker group that loses a tiered queue, or gets it."""

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult:
        decision = self.admission.queues.admit_move(record.move_queue)
        if isinstance(decision, Refused):
            raise decision.error
        assert isinstance(decision, Accepted)
        self.entry.append(control(move_queue=record.move_queue))
        return self.commit()[-1]

    def lock(self, group: str, member: str = "m") -> Any:
        record = control_pb2.AcquireLock(
            group=group, queue=ref(), member_id=member, generation=7, lock_ms=1, session_ms=1
        )
        return self.apply(control(acquire_lock=record))[-1]

    def commit_offset(self, group: str, token: int, offset: int, metadata: bytes = b"") -> None:
        commit = control_pb2.QueueCommit(
            queue=ref(), token=token, offset=offset, metadata=metadata, metadata_version=1
        )
        self.apply(control(commit_offsets=control_pb2.CommitOffsets(group=group, commits=[commit])))

    def send(self, previous: int, last: int, **fields: Any) -> None:
        self.now_us += 1_000_000
        assert isinstance(self.produce(header(previous, last=last, **fields)), Accepted)


class MortalHome(RestoreHome):
    """A group whose master ends after some steps."""

    steps_left = 0

    async def submit_control(self, record: control_pb2.ControlRecord) -> ApplyResult:
        if not self.steps_left:
            raise NotMaster("the master is gone")
        self.steps_left -= 1
        return await super().submit_control(record)


@pytest.fixture
def lost() -> RestoreHome:
    """100 messages in 10 batches."""
    home = RestoreHome(1, queues=(KEY,), at_level=TIER_LEVEL)
    home.fence(name="loader")
    for at in range(10):
        home.send(10 * at - 1, 10 * at + 9)
    return home


@pytest.fixture
def new() -> RestoreHome:
    home = RestoreHome(2, at_level=TIER_LEVEL)
    home.now_us += 1_000_000_000
    return home


CREATE = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_start=0, slot_end=65_536)


def facts(home: RestoreHome) -> bytes:
    state = home.state
    return make_slice(home.queue, state.producers, state.groups, state.delays, TIER_LEVEL)


def cut(home: RestoreHome, **fields: Any) -> RestoredSlice:
    given = {"released": False, "ancestors_whole": True, "level": TIER_LEVEL} | fields
    return restore_slice(facts(home), **given)


def restore(home: RestoreHome, made: RestoredSlice) -> State:
    asyncio.run(restore_queue(home, CREATE, made))
    return home.checked()


def test_a_queue_begins_where_its_manifest_ends(lost: RestoreHome, new: RestoreHome) -> None:
    lost.tier(tiered(1, 0, 60))
    lost.forget(60)
    lost.trim(20)
    made = cut(lost)
    assert (made.log_end_offset, made.producers, made.reopened) == (60, 1, 0)
    assert made.source.queue.log_end_offset == 100
    queue = restore(new, made).queues[KEY]
    bounds = (queue.log_start_offset, queue.local_start, queue.log_end_offset, queue.bytes)
    assert bounds == (20, 60, 60, 0)
    assert queue.tier == lost.queue.tier
    assert queue.is_cold(59)
    # It goes on being tiered from there.
    new.fence(epoch=2)
    new.send(59, 69, epoch=2)
    assert isinstance(new.tier(tiered(2, 20, 70)), Accepted)
    new.checked()


def test_what_is_lost_is_taken_again_and_what_is_there_is_a_duplicate(
    lost: RestoreHome, new: RestoreHome
) -> None:
    lost.tier(tiered(1, 0, 60))
    restore(new, cut(lost))
    # An incarnation that lives on: the batch that is there, the one that is not, one too far.
    assert new.produce(header(49, last=59)) == Duplicate(Offset(50))
    assert not isinstance(new.produce(header(69, last=79)), Accepted)
    assert isinstance(new.produce(header(59, last=69)), Accepted)
    # And the next one is told where it is.
    fenced = new.fence(epoch=9)
    assert isinstance(fenced, FenceApplied)
    assert [row.last_sequence for row in fenced.rows] == [69]
    assert fenced.rows[0].name == "loader"


def test_the_check_bites_if_rows_are_not_cut(
    lost: RestoreHome, new: RestoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug is loss: a lost batch that is sent again counts as stored."""

    def whole(row: Any, end: int | None) -> Row | None:
        return real(row, None)

    real = module.cut_row
    monkeypatch.setattr(module, "cut_row", whole)
    lost.tier(tiered(1, 0, 60))
    restore(new, cut(lost))
    assert isinstance(new.produce(header(59, last=69)), Duplicate)


@pytest.mark.parametrize("end", [0, 10, 50, 90, 100])
def test_rows_are_cut_at_any_end(lost: RestoreHome, new: RestoreHome, end: int) -> None:
    lost.send(99, 100, count=0)  # a position mark
    if end:
        lost.tier(tiered(1, 0, end))
    state = restore(new, cut(lost))
    row = state.producers.find(KEY, 1)
    assert row is not None
    assert row.last_sequence == (100 if end == 100 else end - 1)
    assert state.queues[KEY].log_end_offset == end


def test_a_row_whose_window_does_not_reach_the_end_expires(
    lost: RestoreHome, new: RestoreHome
) -> None:
    lost.tier(tiered(1, 0, 100))
    lost.fence(producer=2)
    for at in range(64):
        lost.send(99 + at, 100 + at)
        if at < 63:
            lost.send(at - 1, at, producer=2)
    made = cut(lost)
    assert (made.producers, made.reopened) == (1, 1)
    restore(new, made)
    refused = new.produce(header(99, last=100))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, DedupStateExpired)
    refused = new.fence(epoch=9)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, DedupStateExpired)
    assert isinstance(new.fence(epoch=9, after_expiry=True), FenceApplied)
    # All that the other one stored is lost, and its row says so.
    assert isinstance(new.produce(header(-1, last=0, producer=2)), Accepted)


@pytest.mark.parametrize("fields", [{"released": True}, {"ancestors_whole": False}])
def test_rows_expire_where_nobody_can_tell(lost: RestoreHome, fields: dict[str, bool]) -> None:
    lost.tier(tiered(1, 0, 60))
    made = cut(lost, **fields)
    assert (made.producers, made.reopened) == (0, 1)
    lost.tier(tiered(2, 0, 100))  # nothing is lost of the queue itself
    assert cut(lost, **fields).reopened == (0 if "released" in fields else 1)


def test_delayed_messages_are_lost_and_their_producers_are_told(
    lost: RestoreHome, new: RestoreHome
) -> None:
    due = lost.now_us + 3_600_000_000
    lost.send(99, 104, due_us=due)
    lost.tier(tiered(1, 0, 100))
    made = cut(lost)
    assert (made.source.delayed.messages, made.producers, made.reopened) == (5, 0, 1)
    assert restore(new, made).delays.queues == {}


def test_groups_go_on_and_old_tokens_count_no_more(lost: RestoreHome, new: RestoreHome) -> None:
    behind, ahead = lost.lock("behind"), lost.lock("ahead")
    lost.commit_offset("behind", behind.token, 40, b"m")
    lost.commit_offset("ahead", ahead.token, 80, b"m")
    lost.tier(tiered(1, 0, 60))
    made = cut(lost)
    assert (made.groups, made.groups_back) == (2, 1)
    groups = restore(new, made).groups
    found = {name: state for name, _, state in groups.states()}
    assert {name: state.committed_offset for name, state in found.items()} == {
        "behind": 40,
        "ahead": 60,
    }
    assert not any(state.owner or state.metadata or state.generation for state in found.values())
    granted = new.lock("behind", "other")
    assert granted.token > TOKEN_STEP > behind.token
    new.commit_offset("behind", behind.token, 50)
    state = new.state.groups.lookup("behind", KEY)
    assert state is not None
    assert state.committed_offset == 40
    lost.tier(tiered(2, 0, 100))
    kept = cut(lost)
    assert kept.groups_back == 0


def test_every_step_may_be_repeated_and_goes_on_after_a_crash(
    lost: RestoreHome, new: RestoreHome
) -> None:
    lost.tier(tiered(1, 0, 60))
    made = cut(lost)
    whole, steps = restore(new, made), 0
    while True:
        home = MortalHome(2, at_level=TIER_LEVEL)
        home.steps_left = steps
        try:
            asyncio.run(restore_queue(home, CREATE, made))
        except NotMaster:
            home.restart()
            home.steps_left = 1 << 10
            asyncio.run(restore_queue(home, CREATE, made))
            assert home.checked().queues[KEY].tier == whole.queues[KEY].tier
            assert home.state.producers.queue_digest(KEY) == whole.producers.queue_digest(KEY)
        else:
            break
        steps += 1
    assert steps == 5
    asyncio.run(restore_queue(new, CREATE, made))
    assert new.state.moves.places[KEY].job == RESTORE_JOB


def test_a_repeated_call_needs_no_facts_that_were_collected_since(
    lost: RestoreHome, new: RestoreHome
) -> None:
    """The restored queue notes facts of its own, and those that it was made of become garbage."""
    lost.tier(tiered(1, 0, 60))
    config: Any = SimpleNamespace(cluster_id="new")
    called: list[object] = []

    class Place:
        url, folder = "s3://tier", "old"

        async def call(self, work: Callable[[Any], Any]) -> Any:
            called.append(work)
            raise ObjectMissing("the facts do not exist")

    async def ready(*_: object) -> None:
        pass

    node: Any = SimpleNamespace(wait_master=ready, require_level=ready, state=new.state)
    stand_in: Any = Place()
    service = RestoresService(config, node, stand_in)
    request = restores_pb2.RestoreQueueRequest(cluster_id="new", url="s3://tier", create=CREATE)
    with pytest.raises(InvalidRequest, match="do not exist"):
        asyncio.run(service.RestoreQueue(request, None))
    assert len(called) == 1
    node.state = restore(new, cut(lost))
    asyncio.run(service.RestoreQueue(request, None))
    assert len(called) == 1


def test_a_queue_that_is_there_is_left_alone(lost: RestoreHome) -> None:
    lost.tier(tiered(1, 0, 60))
    made, before = cut(lost), b"".join(lost.state.to_parts())
    with pytest.raises(InvalidRequest, match="is on this broker group already"):
        asyncio.run(restore_queue(lost, CREATE, made))
    assert b"".join(lost.state.to_parts()) == before


def test_what_is_no_slice_is_refused(lost: RestoreHome) -> None:
    for data in (b"x", facts(lost)[:-1], b""):
        with pytest.raises(CorruptSegment):
            restore_slice(data, released=False, ancestors_whole=True, level=TIER_LEVEL)


def test_settings_are_read_as_they_were() -> None:
    settings = QueueSettings(retention_ms=5, tier_after_ms=3, local_retention_ms=4)
    ids = IdSettings(window_bytes=1 << 20, keep_ms=9, keep_first=True, seed=b"s" * 16)
    message = settings_message(settings, ids)
    assert QueueSettings.from_message(message, TIER_LEVEL) == settings
    assert IdSettings.from_message(message) == ids
    assert not settings_message(settings, None).HasField("dedup")
