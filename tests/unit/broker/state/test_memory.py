"""Queues in memory: the log has headers, and what is lost is told."""

from __future__ import annotations

import pytest

from semel.broker.state import Accepted, Admission, Duplicate, Refused, State, StateDiverged
from semel.broker.state.apply.lost_offsets import (
    MEMORY_BYTES_DEFAULT,
    RECORD_BYTES,
    Lost,
    LostRange,
)
from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.frames import RecordKind
from semel.protos.ids import Offset, Term
from semel.protos.levels import COMPACTION_LEVEL, MEMORY_LEVEL
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import common_pb2, control_pb2, transaction_records_pb2
from tests.kit.memory_log import SETTINGS, MemoryGroup
from tests.kit.state_log import KEY, START_US, Group, Record, batch_record, control, header, ref


def test_the_log_has_headers_and_extents_have_whole_lengths() -> None:
    group = MemoryGroup()
    heads = [group.send(-1, 3), group.send(2, 2)]
    queue = group.state.queues[KEY]
    whole = [RECORD_BYTES + head.body_length for head in heads]
    assert [extent.length for extent in queue.extents_from(0, 1 << 30)] == whole
    assert (queue.bytes, queue.log_bytes) == (sum(whole), 2 * RECORD_BYTES)
    records = list(group.state.live_records(0, 99))
    assert [length for _, _, length in records] == [RECORD_BYTES] * 2
    assert [len(group.payload(*record[:2])) for record in records] == [RECORD_BYTES] * 2
    assert group.state.live_bytes == 2 * RECORD_BYTES
    assert sum(group.state.live_bytes_between([0, 4, 99])) == 2 * RECORD_BYTES


def test_many_records_count_by_their_length_in_the_log() -> None:
    group = MemoryGroup()
    for number in range(1_100):
        group.send(number - 1)
    assert sum(group.state.live_bytes_between([0, 500, 9_999])) == 1_100 * RECORD_BYTES
    assert all(group.state.live_bytes_between([0, 500, 9_999]))


def test_a_retry_is_a_duplicate_also_of_what_is_lost() -> None:
    group = MemoryGroup()
    head = group.send(-1, 3)
    group.lose(0, 3)
    answer = group.admission.admit_batch(head, 0, time_us=group.now_us)
    assert answer == Duplicate(Offset(0))
    group.new_master()
    assert group.admission.admit_batch(head, 0, time_us=group.now_us) == Duplicate(Offset(0))
    assert group.state.queues[KEY].lost.end_at(2) == 3


def test_lost_offsets_are_part_of_the_canonical_bytes() -> None:
    group = MemoryGroup()
    for number in range(6):
        group.send(number - 1)
    group.lose(1, 2)
    group.lose(4, 6)
    state = State.from_bytes(b"".join(group.state.to_parts()))
    assert state.digest() == group.state.digest() == group.replayed().digest()
    queue = state.queues[KEY]
    assert queue.lost.ranges == [(1, 2), (4, 6)]
    assert (queue.lost.messages, queue.settings.memory_bytes) == (3, 1 << 20)
    assert [queue.lost.end_at(offset) for offset in range(7)] == [None, 2, None, None, 6, 6, None]


def test_ranges_become_one_and_are_counted_once() -> None:
    lost = Lost()
    for start, end in ((10, 20), (30, 40), (20, 30), (5, 12), (15, 18)):
        lost.add(start, end)
    assert (lost.ranges, lost.messages) == ([LostRange(5, 40)], 35)
    lost.add(50, 60)
    lost.trim(55)
    assert (lost.ranges, lost.messages) == ([(55, 60)], 45)
    lost.trim(60)
    assert lost.ranges == []


def test_what_is_trimmed_is_not_lost_as_well() -> None:
    group = MemoryGroup()
    for number in range(4):
        group.send(number - 1)
    group.trim(2)
    group.lose(0, 3)
    lost = group.state.queues[KEY].lost
    assert (lost.ranges, lost.messages) == ([(2, 3)], 1)
    group.lose(0, 2)
    assert (lost.ranges, lost.messages) == ([(2, 3)], 1)


def test_a_topic_in_memory_needs_the_level_and_its_default_is_a_gibibyte() -> None:
    group = Group(queues=())
    group.raise_level(COMPACTION_LEVEL)
    record = control_pb2.CreateQueue(queue=ref(), topic="t", slot_end=9, settings=SETTINGS)
    refused = group.admission.queues.admit_create_queue(record)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnsupportedVersion)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=SETTINGS)
    assert isinstance(group.admission.queues.admit_alter_topic(alter), Refused)
    group.apply(control(create_queue=record))  # of a log that never had the level
    assert not group.state.queues[KEY].in_memory
    unbounded = common_pb2.TopicSettings(storage=common_pb2.STORAGE_MEMORY)
    settings = MemoryGroup(unbounded).state.queues[KEY].settings
    assert settings.memory_bytes == MEMORY_BYTES_DEFAULT


def test_a_topic_stays_in_memory_or_in_the_log() -> None:
    group = MemoryGroup()
    for settings in (
        common_pb2.TopicSettings(),
        common_pb2.TopicSettings(storage=common_pb2.STORAGE_LOG),
    ):
        alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
        refused = group.admission.queues.admit_alter_topic(alter)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, InvalidRequest)
        group.apply(control(alter_topic=alter))
        assert group.state.queues[KEY].settings.memory_bytes == 1 << 20
    more = common_pb2.TopicSettings(storage=common_pb2.STORAGE_MEMORY, memory_bytes=5 << 20)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=more)
    assert isinstance(group.admission.queues.admit_alter_topic(alter), Accepted)
    group.apply(control(alter_topic=alter))
    assert group.state.queues[KEY].settings.memory_bytes == 5 << 20


@pytest.mark.parametrize(
    "settings",
    [
        common_pb2.TopicSettings(compaction=common_pb2.Compaction(tombstone_ms=1)),
        common_pb2.TopicSettings(dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=bytes(16))),
    ],
)
def test_a_topic_in_memory_is_neither_compacted_nor_compares_ids(
    settings: common_pb2.TopicSettings,
) -> None:
    settings.MergeFrom(SETTINGS)
    group = MemoryGroup()
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
    refused = group.admission.queues.admit_alter_topic(alter)
    assert isinstance(refused, Refused)
    assert "in memory" in refused.error.message


def test_delayed_and_staged_batches_are_refused() -> None:
    group = MemoryGroup()
    delayed = header(-1, due_us=START_US + 10_000_000)
    stager = transaction_records_pb2.TransactionRecord(
        open_stager=transaction_records_pb2.OpenStager(stager_id=STAGER_ID_MIN, queues=[ref()])
    )
    for refused in (
        group.admission.admit_batch(delayed, 0, time_us=START_US),
        group.admission.admit_transaction(stager),
    ):
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, InvalidRequest)
        assert "in memory" in refused.error.message


def test_only_applied_offsets_of_a_queue_in_memory_can_be_lost() -> None:
    group = MemoryGroup()
    group.send(-1, 3)
    for bounds in ((0, 4), (2, 2), (-1, 1)):
        record = control_pb2.LoseMemory(queue=ref(), from_offset=bounds[0], to_offset=bounds[1])
        assert isinstance(group.admission.queues.admit_lose_memory(record), Refused)
    durable = Group()
    durable.fence()
    durable.produce(header(-1))
    record = control_pb2.LoseMemory(queue=ref(), from_offset=0, to_offset=1)
    assert isinstance(durable.admission.queues.admit_lose_memory(record), Refused)
    durable.raise_level(MEMORY_LEVEL)
    assert isinstance(durable.admission.queues.admit_lose_memory(record), Refused)
    with pytest.raises(StateDiverged, match="from memory"):
        durable.apply(control(lose_memory=record))


def test_a_record_of_the_wrong_kind_halts_the_node() -> None:
    whole = batch_record(header(-1), 0, START_US, 1)
    bare: Record = RecordKind.MEMORY, [b"".join(whole[1])[:RECORD_BYTES]]
    with pytest.raises(StateDiverged):
        MemoryGroup().apply(whole)
    with pytest.raises(StateDiverged):
        MemoryGroup().apply((RecordKind.MEMORY, whole[1]))
    durable = Group()
    durable.fence()
    with pytest.raises(StateDiverged, match="level"):
        durable.apply(bare)
    durable = Group()
    durable.fence()
    durable.raise_level(MEMORY_LEVEL)
    with pytest.raises(StateDiverged):
        durable.apply(bare)


def test_children_of_a_split_are_in_memory_and_have_lost_nothing() -> None:
    group = MemoryGroup()
    group.send(-1, 3)
    group.lose(0, 3)
    split = control_pb2.SplitQueue(
        queue=ref(),
        children=[
            control_pb2.ChildQueue(queue_id=1, slot_start=0, slot_end=100),
            control_pb2.ChildQueue(queue_id=2, slot_start=100, slot_end=65_536),
        ],
    )
    assert isinstance(group.admission.queues.admit_split(split), Accepted)
    group.entry.append(control(split_queue=split))
    group.commit()
    children = [queue for key, queue in group.state.queues.items() if key != KEY]
    assert [(child.in_memory, child.lost.ranges) for child in children] == [(True, [])] * 2


def test_a_new_master_knows_what_is_in_memory() -> None:
    group = MemoryGroup()
    admission = Admission(group.state, term=Term(1))
    assert admission.in_memory(KEY)
    assert not Admission(Group().state, term=Term(1)).in_memory(KEY)
