"""Canonical bytes: the same state has the same bytes, whatever way led to it; damage is seen."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from semel.broker.state import Membership, State, StateDiverged
from semel.protos.errors import CorruptSegment
from semel.protos.frames import RECORD_HEADER_STRUCT, RecordKind, build_frame
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MAX
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, control, header, ref

KEYS = tuple(QueueKey(TopicId(topic), QueueId(queue)) for topic in (9, 2) for queue in (3, 0))


@pytest.fixture
def group() -> Group:
    made = Group(queues=KEYS)
    made.apply(
        (
            RecordKind.MEMBERSHIP,
            [
                control_pb2.MembershipRecord(
                    voters=[common_pb2.NodeAddress(node_id=n, address=f"h:{n}") for n in (3, 1)],
                    learners=[common_pb2.NodeAddress(node_id=7, address="h:7", rack="r")],
                ).SerializeToString()
            ],
        )
    )
    made.fence(producer=8, keys=KEYS[::-1], name="späte Quelle")
    made.fence(producer=3, keys=KEYS)
    for sequence in range(70):
        made.produce(header(sequence - 1, producer=8, key=KEYS[0]))
        made.produce(header(sequence - 1, producer=3, key=KEYS[1]))
    made.apply(control(trim=control_pb2.Trim(queue=ref(KEYS[1]), log_start_offset=5)))
    for name in ("z", "a"):
        made.apply(
            control(
                acquire_lock=control_pb2.AcquireLock(
                    group=name, queue=ref(KEYS[0]), member_id="m", lock_ms=1, session_ms=2
                )
            )
        )
    made.apply(control(feature_level=control_pb2.FeatureLevel(level=1)))
    return made


def data(state: State) -> bytes:
    return b"".join(state.to_parts())


def test_replay_and_snapshot_lead_to_the_same_bytes(group: Group) -> None:
    whole = group.replayed()
    assert data(whole) == data(group.state)
    for cut in (0, 1, 4, 9, 77, len(group.frames) - 1):
        state = State()
        for frame in group.frames[:cut]:
            state.apply_frame(frame)
        state = State.from_bytes(data(state))
        for frame in group.frames[cut:]:
            state.apply_frame(frame)
        assert data(state) == data(whole)
        assert state.digest() == whole.digest()


def test_everything_comes_back(group: Group) -> None:
    back = State.from_bytes(memoryview(data(group.state)))
    assert (back.applied_index, back.applied_term) == (len(group.frames), 1)
    assert back.feature_level == 1
    assert [node.node_id for node in back.membership.voters] == [3, 1]
    assert back.membership == group.state.membership
    assert list(back.producers.rows()) == list(group.state.producers.rows())
    assert {row.name for row in back.producers.rows()} == {"späte Quelle", ""}
    assert list(back.live_records(0, 10**9)) == list(group.state.live_records(0, 10**9))
    assert list(back.queues) == sorted(KEYS)


def test_live_bytes_are_those_of_the_live_records(group: Group) -> None:
    state = group.state
    lengths: Counter[int] = Counter()
    for index, _, length in state.live_records(0, 10**9):
        lengths[index] += length
    bounds = range(len(group.frames) + 2)
    assert state.live_bytes_between(bounds) == [lengths[index] for index in bounds[:-1]]
    assert state.live_bytes_between([0, 10**9]) == [state.live_bytes] == [lengths.total()]


def test_every_damaged_byte_is_seen(group: Group) -> None:
    sound = data(group.state)
    chosen = {*range(100), *random.Random(1).sample(range(len(sound)), 300), len(sound) - 1}
    for at in chosen:
        with pytest.raises(CorruptSegment):
            State.from_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :])
        with pytest.raises(CorruptSegment):
            State.from_bytes(sound[:at])
    with pytest.raises(CorruptSegment):
        State.from_bytes(sound + b"\0")


def test_names_end_with_their_last_row(group: Group) -> None:
    for key in KEYS:
        record = group.admission.propose_expiry(key, now_us=group.now_us, idle_ms=0, rows_max=0)
        assert record is not None
        group.entry.append(control(expire_producers=record))
    group.commit()
    assert group.state.producers.row_count == 0
    assert "späte Quelle".encode() not in data(group.state)
    assert data(group.replayed()) == data(group.state)


def test_what_nobody_knows_halts() -> None:
    empty = State()
    frame, [at] = build_frame(1, 1, 0, [(RecordKind.CONTROL, [b"\xfa\x7f\x00"])])
    with pytest.raises(StateDiverged, match="upgrade"):
        empty.apply_frame(frame)
    frame, _ = build_frame(1, 1, 0, [(RecordKind.CONTROL, [b"\xff\xff\xff"])])
    with pytest.raises(StateDiverged):
        State().apply_frame(frame)
    unknown = bytearray(frame)
    unknown[at : at + 8] = RECORD_HEADER_STRUCT.pack(3, 99, 0)
    with pytest.raises(StateDiverged, match="kind 99"):
        State().apply_frame(bytes(unknown))
    group = Group()
    with pytest.raises(StateDiverged, match="feature level"):
        group.apply(control(feature_level=control_pb2.FeatureLevel(level=LEVEL_MAX + 1)))


def test_entries_come_in_order_and_time_never_falls() -> None:
    group = Group()
    with pytest.raises(StateDiverged, match="after"):
        group.state.apply_frame(group.frames[0])
    with pytest.raises(StateDiverged, match="goes back"):
        group.state.apply_frame(build_frame(3, 0, group.now_us, [(RecordKind.NOOP, [])])[0])
    with pytest.raises(StateDiverged, match="goes back"):
        group.state.apply_frame(build_frame(3, 1, group.now_us - 1, [(RecordKind.NOOP, [])])[0])
    assert group.state.membership == Membership(index=group.state.membership.index)
    assert KEY in group.state.queues


def test_impossible_control_records_halt() -> None:
    trim = control_pb2.Trim(queue=ref(), log_start_offset=1)
    with pytest.raises(StateDiverged, match="ends at 0"):
        Group().apply(control(trim=trim))
    for fence in (
        control_pb2.Fence(queues=[ref(QueueKey(TopicId(1), QueueId(1)))], producer_id=1, epoch=1),
        control_pb2.Fence(queues=[ref()], producer_id=1, epoch=1),
    ):
        group = Group()
        group.fence(epoch=2)
        with pytest.raises(StateDiverged, match="fence"):
            group.apply(control(fence=fence))
