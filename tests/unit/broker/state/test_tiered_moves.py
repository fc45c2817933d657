"""Queues move with the pointer to what the object store has of them, and split without it."""

from __future__ import annotations

import pytest

from semel.broker.state import Accepted, Refused, make_slice
from semel.broker.state.apply.slices import SLICE_VERSION, SLICE_WITH_STATE, read_slice
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, control, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice, copy_some, move
from tests.unit.broker.state.tiering import Tiering, digest, tiered


class TierHome(Home, Tiering):
    """A broker group whose queue is tiered."""


@pytest.fixture
def source() -> TierHome:
    home = TierHome(1, queues=(KEY,), at_level=TIER_LEVEL)
    home.fence()
    for at in range(10):
        home.now_us += 1_000_000
        home.produce(header(10 * at - 1, last=10 * at + 9))
    return home


@pytest.fixture
def target() -> TierHome:
    return TierHome(2, at_level=TIER_LEVEL)


def slice_of(home: TierHome) -> bytes:
    state = home.state
    return make_slice(home.queue, state.producers, state.groups, state.delays)


@pytest.mark.parametrize("forgotten", [0, 30, 50, 100])
def test_a_move_copies_what_the_log_has_and_hands_over_the_pointer(
    source: TierHome, target: TierHome, forgotten: int
) -> None:
    source.tier(tiered(1, 0, max(50, forgotten)))
    source.forget(forgotten)
    source.trim(20)
    pointer, length = source.queue.tier, source.queue.bytes
    local_start = max(20, forgotten)
    move(source, target)
    queue = target.checked().queues[KEY]
    assert queue.tier == pointer
    assert (queue.log_start_offset, queue.local_start, queue.log_end_offset) == (
        20,
        local_start,
        100,
    )
    assert queue.bytes == length
    assert queue.is_cold(20) is (forgotten > 20)
    assert [each.base_offset for each in queue.extents_from(local_start, 1 << 40)] == [
        *range(local_start, 100, 10)
    ]
    # The new group goes on where the old one was.
    assert isinstance(target.tier(tiered(2, 20, 100)), Accepted)
    assert isinstance(target.forget(100), Accepted)
    move(target, source, 2)
    queue = source.checked().queues[KEY]
    assert (queue.tier.number, queue.local_start, queue.bytes) == (2, 100, 0)


def test_the_log_forgets_while_it_is_copied(source: TierHome, target: TierHome) -> None:
    assert begin(source, target, 1) is None
    copy_some(source, target, 5)
    source.tier(tiered(1, 0, 80))
    source.forget(70)
    copy_some(source, target, 1)
    assert source.step("SEAL", 1, target.number) is None
    assert bring_slice(source, target, 1) is None
    assert target.step("ACTIVATE", 1, source.number) is None
    queue = target.checked().queues[KEY]
    assert (queue.log_start_offset, queue.local_start) == (0, 70)


def test_nothing_is_tiered_between_seal_and_activation(source: TierHome, target: TierHome) -> None:
    source.tier(tiered(1, 0, 50))
    assert begin(source, target, 1) is None
    copy_some(source, target, 100)
    for decision in (target.tier(tiered(2, 0, 60)), target.forget(50)):
        assert isinstance(decision, Refused)  # it lives at the source
    assert source.step("SEAL", 1, target.number) is None
    before = slice_of(source)
    for decision in (source.tier(tiered(2, 0, 60)), source.forget(50)):
        assert isinstance(decision, Refused)
        assert decision.error.retriable
    assert bring_slice(source, target, 1) is None
    for decision in (target.tier(tiered(2, 0, 60)), target.forget(50)):
        assert isinstance(decision, Refused)
    assert slice_of(source) == before
    assert source.step("UNSEAL", 1, target.number) is None
    assert isinstance(source.tier(tiered(2, 0, 60)), Accepted)


def test_a_seal_in_flight_keeps_manifests_out(source: TierHome, target: TierHome) -> None:
    assert begin(source, target, 1) is None
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step="MOVE_STEP_SEAL")
    assert isinstance(source.admission.queues.admit_move(record), Accepted)
    source.entry.append(control(move_queue=record))
    assert isinstance(source.tier(tiered(1, 0, 50), commit=False), Refused)
    assert isinstance(source.forget(0), Refused)


def test_a_manifest_in_flight_is_in_the_slice(source: TierHome, target: TierHome) -> None:
    assert begin(source, target, 1) is None
    copy_some(source, target, 100)
    source.tier(tiered(1, 0, 50), commit=False)
    record = control_pb2.MoveQueue(queue=ref(), job=1, group_id=2, step="MOVE_STEP_SEAL")
    assert isinstance(source.admission.queues.admit_move(record), Accepted)
    source.entry.append(control(move_queue=record))
    source.commit()
    assert bring_slice(source, target, 1) is None
    assert target.step("ACTIVATE", 1, source.number) is None
    assert target.queue.tier.sha256 == digest(1)


def test_slices_have_the_higher_version_only_with_a_pointer(source: TierHome) -> None:
    def version(data: bytes) -> int:
        return control_pb2.QueueSlice.FromString(data).version

    assert version(slice_of(source)) == SLICE_VERSION
    source.tier(tiered(1, 0, 50))
    source.forget(40)
    data = slice_of(source)
    assert version(data) == SLICE_WITH_STATE
    found = read_slice(data).queue
    assert (found.tier, found.local_start) == (source.queue.tier, 40)


def test_a_copy_that_lacks_what_the_log_has_is_refused(source: TierHome, target: TierHome) -> None:
    source.tier(tiered(1, 0, 50))
    source.forget(40)
    assert begin(source, target, 1) is None
    assert source.step("SEAL", 1, target.number) is None
    data = slice_of(source)
    assert target.step("FLOOR", 1, 1, offset=50) is None
    error = bring_slice(source, target, 1, data)
    assert isinstance(error, InvalidRequest)
    assert "incomplete" in str(error)


def test_the_manifest_stays_with_the_parent_of_a_split(source: TierHome) -> None:
    source.tier(tiered(1, 0, 50))
    source.forget(30)
    record = control_pb2.SplitQueue(
        queue=ref(),
        children=[
            control_pb2.ChildQueue(queue_id=1, slot_start=0, slot_end=100),
            control_pb2.ChildQueue(queue_id=2, slot_start=100, slot_end=65_536),
        ],
    )
    assert isinstance(source.admission.queues.admit_split(record), Accepted)
    source.entry.append(control(split_queue=record))
    source.commit()
    child = source.checked().queues[QueueKey(KEY.topic_id, QueueId(1))]
    assert (child.tier.number, child.local_start) == (0, 0)
    # The parent goes on being tiered, to its end.
    assert isinstance(source.tier(tiered(2, 0, 100)), Accepted)
    assert isinstance(source.forget(100), Accepted)
    assert source.queue.is_cold(99)
    # What only the object store has must be read, too, before a child may move.
    error = source.step("SEAL", 1, 2)
    assert isinstance(error, InvalidRequest)


def test_a_deleted_queue_takes_its_pointer_along(source: TierHome) -> None:
    source.tier(tiered(1, 0, 50), commit=False)
    record = control_pb2.DeleteQueue(queue=ref())
    assert isinstance(source.admission.queues.admit_delete_queue(record), Accepted)
    source.entry.append(control(delete_queue=record))
    assert isinstance(source.tier(tiered(2, 0, 60), commit=False), Refused)
    source.commit()
    assert KEY not in source.checked().queues
    assert isinstance(source.tier(tiered(2, 0, 60)), Refused)
