"""Queues whose older messages are in an object store: the pointer, what the log forgets, cold
offsets, and what retention says of both halves."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    QueueState,
    Refused,
    StateDiverged,
    TieredApplied,
    TierState,
)
from semel.protos.errors import InvalidRequest, OffsetOutOfRange, Unavailable, UnsupportedVersion
from semel.protos.levels import TIER_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, START_US, control, header, ref
from tests.unit.broker.state.tiering import Tiering, digest, tiered

SECOND_US = 1_000_000


class TierGroup(Tiering):
    """A group with one queue of ten batches of ten messages, one a second."""

    def __init__(self, *, level: int = TIER_LEVEL, **settings: Any) -> None:
        super().__init__(queues=())
        self.raise_level(level)
        self.create(KEY, **settings)
        self.fence()
        for at in range(10):
            self.now_us = START_US + at * SECOND_US
            self.produce(header(10 * at - 1, last=10 * at + 9))


def bounds(queue: QueueState) -> tuple[int, int, int]:
    return queue.log_start_offset, queue.local_start, queue.log_end_offset


def test_pointer_and_forgotten_extents() -> None:
    group = TierGroup()
    assert (group.queue.tier, bounds(group.queue)) == (TierState(), (0, 0, 100))
    assert isinstance(group.tier(tiered(1, 0, 40)), Accepted)
    assert group.queue.tier == TierState(1, 501, digest(1), 0, 40)
    assert group.queue.bytes == 10 * group.queue.extents_from(0, 1)[0].length
    assert isinstance(group.forget(30), Accepted)
    queue = group.checked().queues[KEY]
    assert bounds(queue) == (0, 30, 100)
    assert queue.bytes == 7 * queue.extents_from(30, 1)[0].length
    assert len(list(queue.live_records(0, 1 << 40))) == 7
    assert isinstance(group.forget(20), Accepted)  # a late one lowers nothing
    assert bounds(queue) == (0, 30, 100)
    assert isinstance(group.forget(40), Accepted)
    assert bounds(queue) == (0, 40, 100)


def test_applied_manifests_are_told() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 40), commit=False)
    (result,) = group.commit()
    assert result == TieredApplied(queue_key=KEY, tier=group.queue.tier)


@pytest.mark.parametrize(
    "wrong",
    [
        tiered(2, 0, 50),
        tiered(4, 0, 50),
        tiered(3, 0, 50, previous_sha256=digest(1)),
        tiered(3, 0, 50, previous_sha256=b""),
        tiered(3, 0, 50, sha256=b""),
        tiered(3, 0, 50, sha256=digest(3)[1:]),
        tiered(3, 0, 50, length=0),
        tiered(3, 0, 30),
        tiered(3, 0, 45),
        tiered(3, 0, 101),
        tiered(3, 0, 110),
        tiered(3, 9, 50),
        tiered(3, 41, 50),
        tiered(3, -1, 50),
    ],
    ids=lambda record: f"{record.number}, {record.tier_start} to {record.tier_end}",
)
def test_what_does_not_follow_is_refused_with_the_present_pointer(
    wrong: control_pb2.Tiered,
) -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 30))
    group.tier(tiered(2, 10, 40))
    before = group.state.digest()
    decision = group.tier(wrong)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequest)
    assert str(group.queue.tier) in str(decision.error)
    assert f"manifest 2 ({digest(2).hex()}) of [10, 40)" in str(decision.error)
    assert group.state.digest() == before
    if wrong.tier_end != 45:  # in the middle of a batch: the log may have trimmed it meanwhile
        with pytest.raises(StateDiverged):
            group.apply(control(tiered=wrong))


def test_two_masters_one_after_the_other_propose_the_same_manifest() -> None:
    """The second finds the first one's in the log, and is refused."""
    group = TierGroup()
    group.tier(tiered(1, 0, 30))
    group.new_master()
    assert isinstance(group.tier(tiered(1, 0, 40)), Refused)
    assert group.queue.tier.end == 30


def test_one_manifest_is_in_flight_at_a_time() -> None:
    group = TierGroup()
    assert isinstance(group.tier(tiered(1, 0, 30), commit=False), Accepted)
    for record in (tiered(1, 0, 40), tiered(2, 0, 40)):
        decision = group.tier(record)
        assert isinstance(decision, Refused)
        assert decision.error.retriable
    group.commit()
    assert isinstance(group.tier(tiered(2, 0, 40)), Accepted)


def test_a_lost_manifest_may_be_proposed_again() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 30), commit=False)
    group.new_master()
    assert isinstance(group.tier(tiered(1, 0, 40)), Accepted)


@pytest.mark.parametrize("local_start", [-1, 41, 100])
def test_nothing_is_forgotten_that_no_manifest_has(local_start: int) -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 40))
    group.tier(tiered(2, 0, 50), commit=False)  # in flight: it may be lost
    decision = group.forget(local_start)
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequest)
    assert bounds(group.queue) == (0, 0, 100)
    if local_start > 40:
        group.entry.clear()
        with pytest.raises(StateDiverged):
            group.apply(control(forget=control_pb2.Forget(queue=ref(), local_start=local_start)))


def test_readers_get_cold_offsets_elsewhere() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 50))
    group.forget(50)
    group.trim(20)
    queue = group.queue
    assert bounds(queue) == (20, 50, 100)
    assert [queue.is_cold(at) for at in (19, 20, 49, 50, 100)] == [False, True, True, False, False]
    assert queue.extents_from(50, 1)[0].base_offset == 50
    with pytest.raises(Unavailable, match="object store"):
        queue.extents_from(49, 1)
    with pytest.raises(OffsetOutOfRange) as raised:
        queue.extents_from(19, 1)
    assert (raised.value.log_start_offset, raised.value.log_end_offset) == (20, 100)
    times = [START_US + at * SECOND_US for at in range(10)]
    assert [queue.is_time_cold(time) for time in times] == [True] * 6 + [False] * 4
    assert queue.offset_for_time(times[6]) == 60
    group.forget(50)
    group.tier(tiered(2, 20, 100))
    group.forget(100)
    assert bounds(queue) == (20, 100, 100)
    assert queue.is_time_cold(times[9])
    assert not queue.is_time_cold(times[9] + 1)
    group.checked()


def test_commits_of_cold_offsets_are_valid() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 50))
    group.forget(50)
    for offset, wrong in ((0, False), (49, False), (101, True)):
        record = control_pb2.ResetOffset(group="g", queue=ref(), offset=offset)
        (result,) = group.apply(control(reset_offset=record))
        assert (result.error is not None) is wrong  # type: ignore[union-attr]


@pytest.mark.parametrize("start", [10, 40, 50, 70, 100])
def test_a_trim_takes_both_halves(start: int) -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 50))
    group.forget(40)
    group.trim(start)
    queue = group.checked().queues[KEY]
    assert bounds(queue) == (start, max(start, 40), 100)
    assert queue.tier == TierState(1, 501, digest(1), 0, 50)
    assert queue.tier_from == max(start, 50)
    # The next manifest leaves out what is gone; where it ends, the next range begins.
    assert isinstance(group.tier(tiered(2, start, max(50, start))), Accepted)
    if start < 100:
        assert isinstance(group.tier(tiered(3, start, 100)), Accepted)
    group.checked()


def test_a_trim_in_flight_does_not_make_a_manifest_wrong() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 30))
    trim = control_pb2.Trim(queue=ref(), log_start_offset=75)
    assert isinstance(group.admission.queues.admit_trim(trim), Accepted)
    group.entry.append(control(trim=trim))
    assert isinstance(group.tier(tiered(2, 0, 50)), Accepted)
    queue = group.checked().queues[KEY]
    assert (bounds(queue), queue.tier.end) == ((75, 75, 100), 50)
    # The first extent begins at 70, and readers begin behind it.
    assert queue.tier_from == 70
    assert isinstance(group.tier(tiered(3, 70, 70)), Accepted)
    assert isinstance(group.tier(tiered(4, 70, 90)), Accepted)
    assert bounds(queue) == (75, 75, 100)


def test_retention_of_the_manifest_takes_the_start_along() -> None:
    group = TierGroup()
    group.tier(tiered(1, 0, 50))
    group.forget(40)
    group.tier(tiered(2, 20, 50))
    assert bounds(group.queue) == (20, 40, 100)
    group.tier(tiered(3, 45, 60))
    assert bounds(group.queue) == (45, 45, 100)
    group.checked()


def test_what_is_old_enough_goes_to_the_tier() -> None:
    group = TierGroup(tier_after_ms=4_000)
    queue, now_us = group.queue, START_US + 9 * SECOND_US
    assert queue.tier_candidates(START_US + 3 * SECOND_US) is None
    assert queue.tier_candidates(START_US + 4 * SECOND_US) == 10
    assert queue.tier_candidates(now_us) == 60
    bases, lengths, times = queue.tier_columns(3)
    assert bases.tolist() == [0, 10, 20]
    assert lengths.tolist() == [queue.extents_from(0, 1)[0].length] * 3
    assert times.tolist() == [START_US + at * SECOND_US for at in range(3)]
    group.tier(tiered(1, 0, 50))
    assert queue.tier_candidates(now_us) == 60
    assert queue.tier_columns(100)[0].tolist() == [50, 60, 70, 80, 90]
    group.tier(tiered(2, 0, 60))
    assert queue.tier_candidates(now_us) is None
    group.tier(tiered(3, 0, 100))
    assert queue.tier_columns(100)[0].tolist() == []
    assert queue.tier_candidates(now_us + 100 * SECOND_US) is None
    assert TierGroup().queue.tier_candidates(now_us) is None


def test_the_log_forgets_what_is_old_and_in_the_tier() -> None:
    group = TierGroup(tier_after_ms=1_000, local_retention_ms=5_000)
    queue, now_us = group.queue, START_US + 9 * SECOND_US
    assert queue.forget_target(now_us) is None
    group.tier(tiered(1, 0, 30))
    assert queue.forget_target(now_us) == 30
    group.tier(tiered(2, 0, 80))
    assert queue.forget_target(now_us) == 40
    group.forget(40)
    assert queue.forget_target(now_us) is None
    assert queue.forget_target(now_us + 100 * SECOND_US) == 80


@pytest.mark.parametrize("local_retention_ms", [0, -1])
def test_without_local_retention_nothing_is_forgotten(local_retention_ms: int) -> None:
    group = TierGroup(tier_after_ms=1_000, local_retention_ms=local_retention_ms)
    group.tier(tiered(1, 0, 100))
    assert group.queue.forget_target(START_US + 1_000 * SECOND_US) is None


def test_retention_by_age_counts_both_halves() -> None:
    group = TierGroup(retention_ms=6_000)
    queue, now_us = group.queue, START_US + 9 * SECOND_US
    assert queue.retention_target(now_us) == 30
    assert queue.cold_retention(now_us) is None
    group.tier(tiered(1, 0, 60))
    assert queue.retention_target(now_us) == 30
    group.forget(40)
    # All that the log has is young enough. Of the cold part the manifest knows.
    assert queue.retention_target(now_us) is None
    cold = queue.cold_retention(now_us)
    assert cold is not None
    assert cold == (now_us - 6 * SECOND_US, None)
    assert queue.retention_target(now_us + 3 * SECOND_US) == 60
    group.tier(tiered(2, 0, 100))
    group.forget(100)
    assert queue.retention_target(now_us + 6 * SECOND_US) is None
    assert queue.retention_target(now_us + 6 * SECOND_US + 1) == 100


def test_retention_by_size_counts_both_halves() -> None:
    length = TierGroup().queue.extents_from(0, 1)[0].length
    group = TierGroup(retention_bytes=8 * length)
    queue, now_us = group.queue, START_US
    assert queue.retention_target(now_us) == 20
    group.tier(tiered(1, 0, 60))
    group.forget(50)
    assert queue.retention_target(now_us) is None
    assert queue.cold_retention(now_us) == (None, 3 * length)
    group.produce(header(99, last=109))
    assert queue.cold_retention(now_us) == (None, 8 * length - queue.bytes)


def test_a_tiered_queue_is_not_compacted() -> None:
    compaction = common_pb2.Compaction(tombstone_ms=1_000)
    group = TierGroup()
    group.tier(tiered(1, 0, 50))
    alter = control_pb2.AlterTopic(
        topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(compaction=compaction)
    )
    group.entry.append(control(alter_topic=alter))
    assert isinstance(group.admission.queues.admit_alter_topic(alter), Accepted)
    group.commit()
    assert group.queue.settings.compaction is None
    group.checked()
    compacted = TierGroup(compaction=compaction)
    decision = compacted.tier(tiered(1, 0, 50))
    assert isinstance(decision, Refused)
    assert "compacted" in str(decision.error)


@pytest.mark.parametrize(
    "record",
    [{"tiered": tiered(1, 0, 50)}, {"forget": control_pb2.Forget(queue=ref())}],
    ids=["tiered", "forget"],
)
def test_a_log_of_a_lower_level_that_holds_them_halts(record: dict[str, Any]) -> None:
    group = TierGroup(level=TIER_LEVEL - 1)
    with pytest.raises(StateDiverged, match="feature level"):
        group.apply(control(**record))


def test_below_the_level_nothing_of_it_exists() -> None:
    settings = common_pb2.TopicSettings(tier_after_ms=1_000, local_retention_ms=2_000)
    group = TierGroup(level=TIER_LEVEL - 1)
    before = b"".join(group.state.to_parts())
    forget = control_pb2.Forget(queue=ref(), local_start=0)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
    for decision in (
        group.tier(tiered(1, 0, 50)),
        group.admission.queues.admit_forget(forget),
        group.admission.queues.admit_alter_topic(alter),
    ):
        assert isinstance(decision, Refused)
        assert isinstance(decision.error, UnsupportedVersion)
        assert decision.error.level == TIER_LEVEL
    # A log of an older program may hold the settings, which it did not know: nor are they there.
    group.apply(control(alter_topic=alter))
    assert group.queue.settings.tier_after_ms == 0
    assert len(b"".join(group.checked().to_parts())) == len(before)
    higher = TierGroup(tier_after_ms=1_000, local_retention_ms=2_000)
    assert higher.queue.settings.tier_after_ms == 1_000
    assert higher.checked().queues[KEY].settings.local_retention_ms == 2_000
