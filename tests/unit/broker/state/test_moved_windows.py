"""Windows of message ids when queues come from other broker groups and leave."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    CopiedIds,
    MoveApplied,
    Refused,
    State,
    StateDiverged,
    TableVerifier,
)
from semel.broker.state.apply.id_windows import MOVED_ID_BYTES
from semel.protos.errors import InvalidRequest, SemelError, Throttled
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.id_group import OTHER, SEED, IdGroup, dedup
from tests.kit.state_log import KEY, control, ref

COMING = QueueKey(TopicId(7), QueueId(5))
ALONE = QueueKey(TopicId(55), QueueId(0))


def step_of(name: str, key: QueueKey, **fields: Any) -> control_pb2.MoveQueue:
    given = {"job": 1, "group_id": 2, **fields}
    return control_pb2.MoveQueue(queue=ref(key), step=f"MOVE_STEP_{name}", **given)


def propose(group: IdGroup, record: control_pb2.MoveQueue) -> SemelError | None:
    decision = group.admission.queues.admit_move(record)
    if not isinstance(decision, Accepted):
        return decision.error
    group.entry.append(control(move_queue=record))
    return None


def take(group: IdGroup, name: str, key: QueueKey, **fields: Any) -> SemelError | None:
    """One step, applied; the refusal, if any."""
    error = propose(group, step_of(name, key, **fields))
    if error is not None:
        return error
    result = group.commit()[-1]
    assert isinstance(result, MoveApplied)
    return result.error


def create_of(key: QueueKey, settings: common_pb2.IdDedup | None) -> control_pb2.CreateQueue:
    return control_pb2.CreateQueue(
        queue=ref(key),
        topic="t",
        slot_start=0,
        slot_end=16_384,
        settings=common_pb2.TopicSettings(dedup=settings),
    )


def ids_step(count: int, start: int = 0, key: QueueKey = COMING, **other: Any) -> Any:
    given = {"ids": bytes(MOVED_ID_BYTES * count), "seed": SEED, **other}
    return step_of("IDS", key, ids_from=start, ids_to=start + 10, **given)


@pytest.fixture
def group() -> IdGroup:
    """A queue is on its way to a group that has two of the topic."""
    group = IdGroup()
    assert take(group, "BEGIN", COMING, create=create_of(COMING, dedup())) is None
    return group


def test_a_queue_on_its_way_counts_for_the_budget(group: IdGroup) -> None:
    before = IdGroup().state.live_slots(KEY.topic_id)
    assert group.state.live_slots(KEY.topic_id) == before + 16_384


def test_moved_ids_arrive_between_those_of_batches(group: IdGroup) -> None:
    tables = TableVerifier(State.from_bytes(b"".join(group.state.to_parts())))
    at = len(group.frames)
    first = group.window.next_arrival
    assert propose(group, ids_step(3)) is None
    moved = group.entry[-1]
    record = control_pb2.ControlRecord.FromString(bytes(moved[1][0])).move_queue
    assert record.first_arrival == first
    second = ids_step(2, 10)
    assert propose(group, second) is None
    assert second.first_arrival == first + 3
    *_, result = group.commit()
    assert isinstance(result, MoveApplied)
    assert (result.error, result.first_arrival, result.ids) == (None, first + 3, 2)
    assert group.window.next_arrival == first + 5
    assert group.state.id_windows.copied == {COMING: CopiedIds(20)}
    for frame in group.frames[at:]:
        tables.feed(frame)
    assert not tables.problems


def test_ids_that_do_not_follow_are_said_to_and_taken(group: IdGroup) -> None:
    """The window has taken them in already: an index with more ids than needed does no harm."""
    first = group.window.next_arrival
    assert propose(group, ids_step(1, 10)) is None
    (result,) = group.commit()
    assert isinstance(result, MoveApplied)
    assert isinstance(result.error, InvalidRequest)
    assert group.window.next_arrival == first + 1
    assert group.state.id_windows.copied == {}


@pytest.mark.parametrize(
    "wrong",
    [
        ids_step(1, seed=b"another seed----"),
        ids_step(1, ids=bytes(MOVED_ID_BYTES + 1)),
        ids_step(1, key=ALONE),
    ],
)
def test_ids_of_no_window_or_another_one_are_refused(group: IdGroup, wrong: Any) -> None:
    assert isinstance(propose(group, wrong), InvalidRequest)


@pytest.mark.parametrize("name", ["ABORT", "FORWARD"])
def test_no_ids_are_accepted_while_the_window_may_end(group: IdGroup, name: str) -> None:
    assert propose(group, step_of(name, COMING)) is None
    assert isinstance(propose(group, ids_step(1)), Throttled)
    decision = group.send(group.batch([(b"a", b"1")]))
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, Throttled)


def test_an_ingest_waits_for_all_ids(group: IdGroup) -> None:
    assert propose(group, ids_step(3)) is None
    group.commit()
    error = take(group, "INGEST", COMING, ids_to=11)
    assert "have come up to 10, not 11" in str(error)
    error = take(group, "INGEST", COMING, ids_to=10)
    assert "slice" in str(error)  # the next thing that is missing


def test_a_window_comes_and_goes_with_the_queues_of_its_topic() -> None:
    group = IdGroup()
    windows = group.state.id_windows
    assert take(group, "BEGIN", ALONE, create=create_of(ALONE, dedup())) is None
    assert ALONE.topic_id in windows.topics
    assert propose(group, ids_step(2, key=ALONE)) is None
    group.commit()
    state = State.from_bytes(b"".join(group.state.to_parts()))
    assert state.id_windows.copied == {ALONE: CopiedIds(10)}
    assert take(group, "ABORT", ALONE) is None
    assert ALONE.topic_id not in windows.topics
    assert windows.copied == {}
    for key in (KEY, OTHER):
        assert KEY.topic_id in windows.topics
        assert take(group, "SEAL", key) is None
        assert take(group, "FORWARD", key) is None
    assert KEY.topic_id not in windows.topics


def test_moved_ids_of_another_place_halt_the_node(group: IdGroup) -> None:
    for wrong in (ids_step(1, first_arrival=99), ids_step(1, seed=b"another seed----")):
        with pytest.raises(StateDiverged):
            group.apply(control(move_queue=wrong))


def test_arrivals_of_a_window_that_begins_again_are_above_those_of_the_one_before() -> None:
    """Both have the topic's seed, and a node may still have the index of the first one."""
    group = IdGroup()
    ends = [0]
    for job in (1, 2):
        create = create_of(ALONE, dedup())
        assert take(group, "BEGIN", ALONE, job=job, create=create) is None
        window = group.state.id_windows.topics[ALONE.topic_id]
        assert window.first_arrival == window.next_arrival > ends[-1]
        assert propose(group, ids_step(3, key=ALONE, job=job)) is None
        group.commit()
        ends.append(window.next_arrival)
        assert take(group, "ABORT", ALONE, job=job) is None
        assert ALONE.topic_id not in group.state.id_windows.topics
