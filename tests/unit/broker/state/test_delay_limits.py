"""The limit of what is due in one second: what is refused, and what goes on beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from semel.broker.state import (
    Accepted,
    Admission,
    DueLoad,
    Duplicate,
    QueueSettings,
    Refused,
    StateDiverged,
)
from semel.broker.state.admission.due_loads import DueLoads
from semel.broker.state.apply.delay_limits import share_of
from semel.protos.batch import BROKER_HEADER_BYTES, BatchHeader
from semel.protos.errors import DelayThrottled, Throttled, UnsupportedVersion
from semel.protos.ids import QueueId, QueueKey, Term, TopicId
from semel.protos.levels import DELAY_LIMIT_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from semel.protos.v1 import transaction_records_pb2 as steps
from tests.kit.id_group import IdGroup
from tests.kit.state_log import KEY, START_US, control, header, ref
from tests.unit.broker.state.delaying import SECOND_US, late, restarted
from tests.unit.broker.state.staging import A, B, Stage, staged, winner

LIMIT = 10
SECOND = START_US // SECOND_US


class Limited(Stage):
    """A topic with a limit, in one queue of all slots."""

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__(level=DELAY_LIMIT_LEVEL)
        self.fence()
        self.limit(limit)

    def limit(self, limit: int) -> None:
        record = control_pb2.AlterTopic(
            topic_id=KEY.topic_id, settings=common_pb2.TopicSettings(delay_per_second_max=limit)
        )
        assert self.admission.queues.admit_alter_topic(record) == Accepted()
        self.entry.append(control(alter_topic=record))
        self.commit()

    def due(self, seconds: int, topic_id: int = KEY.topic_id) -> int:
        return self.admission.dues.load(topic_id, START_US + seconds * SECOND_US).messages


@pytest.fixture
def group() -> Limited:
    return Limited()


def refusal(decision: object) -> DelayThrottled:
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, DelayThrottled)
    return decision.error


def test_a_batch_without_room_is_refused_with_how_full_the_second_is(group: Limited) -> None:
    assert isinstance(group.produce(late(-1, 5, last=7)), Accepted)
    error = refusal(group.produce(late(7, 5.5, last=10)))
    assert (error.due_us, error.due_messages, error.due_messages_max) == (
        (SECOND + 5) * SECOND_US,
        8,
        10,
    )
    assert isinstance(error, Throttled)
    assert not error.retriable
    for part in ("'orders'", "8 messages", "takes 10", "3 more", "--delay-per-second-max"):
        assert part in error.message
    assert isinstance(group.produce(late(7, 5.9, last=9)), Accepted), "what fits is stored"
    refusal(group.produce(late(9, 5)))
    assert isinstance(group.produce(late(9, 6)), Accepted), "another second is another matter"
    assert isinstance(group.produce(header(10)), Accepted), "and what is not delayed, too"


def test_what_is_in_flight_counts(group: Limited) -> None:
    assert isinstance(group.produce(late(-1, 5, last=5), commit=False), Accepted)
    refusal(group.produce(late(5, 5, last=10), commit=False))
    assert isinstance(group.produce(late(5, 5, last=9), commit=False), Accepted)
    assert group.due(5) == 10
    group.commit()
    assert group.due(5) == 10
    assert not group.admission.dues._pending
    refusal(group.produce(late(9, 5)))


def test_the_load_of_a_second_is_messages_and_stored_bytes(group: Limited) -> None:
    batch = late(-1, 5, last=2)
    expected = DueLoad(3, BROKER_HEADER_BYTES + batch.batch_length)
    group.produce(batch, commit=False)
    assert group.admission.dues.load(KEY.topic_id, batch.deliver_at_us) == expected
    group.commit()
    assert group.admission.dues.load(KEY.topic_id, batch.deliver_at_us) == expected
    assert group.state.delays.bytes == expected.bytes


def test_releases_make_room(group: Limited) -> None:
    group.produce(late(-1, 1, last=9))
    refusal(group.produce(late(9, 1)))
    group.now_us += 2 * SECOND_US
    group.release()
    assert group.due(1) == 0
    assert isinstance(group.produce(late(9, 1)), Accepted)


def test_a_retry_of_what_is_stored_is_a_duplicate_in_a_full_second(group: Limited) -> None:
    group.produce(late(-1, 5, last=9))
    group.limit(1)
    assert isinstance(group.produce(late(-1, 5, last=9)), Duplicate)


def test_a_refused_batch_leaves_the_chain_as_it_was(group: Limited) -> None:
    group.produce(late(-1, 5, last=9))
    refusal(group.produce(late(9, 5, last=12)))
    assert isinstance(group.produce(header(9)), Accepted)
    row = group.state.producers.find(KEY, 1)
    assert row is not None
    assert row.last_sequence == 10


def test_a_limit_that_is_lifted_refuses_nothing(group: Limited) -> None:
    group.limit(-1)
    assert group.state.queues[KEY].settings == QueueSettings()
    assert isinstance(group.produce(late(-1, 5, last=999)), Accepted)


def test_the_limit_and_the_counts_survive_a_restart(group: Limited) -> None:
    group.produce(late(-1, 5, last=7))
    again = restarted(group.state)
    assert again.queues[KEY].settings.delay_per_second_max == LIMIT
    group.new_master()
    refusal(group.produce(late(7, 5, last=10)))
    assert isinstance(group.produce(late(7, 5, last=9)), Accepted)


@pytest.mark.parametrize(
    ("limit", "slots", "share"),
    [(10, 65_536, 10), (10, 32_768, 5), (10, 1, 1), (10, 0, 0), (1, 32_768, 1), (7, 32_768, 4)],
)
def test_a_group_has_the_part_of_its_slots(limit: int, slots: int, share: int) -> None:
    assert share_of(limit, slots) == share


def test_queues_that_come_and_go_change_the_share() -> None:
    group = Limited()
    halves = [QueueKey(TopicId(9), QueueId(number)) for number in (0, 1)]

    def create(key: QueueKey) -> None:
        record = control_pb2.CreateQueue(
            queue=ref(key),
            topic="halves",
            slot_start=32_768 * key.queue_id,
            slot_end=32_768 * (key.queue_id + 1),
            settings=common_pb2.TopicSettings(delay_per_second_max=10),
        )
        assert group.admission.queues.admit_create_queue(record) == Accepted()
        group.entry.append(control(create_queue=record))
        group.commit()
        group.fence(keys=(key,))

    create(halves[0])
    refusal(group.produce(late(-1, 5, last=5, key=halves[0])))
    assert isinstance(group.produce(late(-1, 5, last=4, key=halves[0])), Accepted)
    refusal(group.produce(late(4, 5, key=halves[0])))
    create(halves[1])
    assert isinstance(group.produce(late(-1, 5, last=4, key=halves[1])), Accepted)
    refusal(group.produce(late(4, 5, key=halves[0])))
    record = control_pb2.DeleteQueue(queue=ref(halves[1]))
    group.admission.queues.admit_delete_queue(record)
    group.entry.append(control(delete_queue=record))
    group.commit()
    assert group.due(5, 9) == 5
    refusal(group.produce(late(4, 5, key=halves[0])))


def test_a_log_below_the_level_takes_no_limit() -> None:
    group = Stage(level=DELAY_LIMIT_LEVEL - 1)
    wanted = common_pb2.TopicSettings(delay_per_second_max=1)
    alter = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=wanted)
    create = control_pb2.CreateQueue(
        queue=ref(QueueKey(TopicId(9), QueueId(0))), slot_end=65_536, settings=wanted
    )
    move = control_pb2.MoveQueue(
        queue=create.queue, job=1, group_id=2, step=control_pb2.MOVE_STEP_BEGIN, create=create
    )
    queues = group.admission.queues
    for decision in (
        queues.admit_alter_topic(alter),
        queues.admit_create_queue(create),
        queues.admit_move(move),
    ):
        assert isinstance(decision, Refused)
        assert isinstance(decision.error, UnsupportedVersion)
    with pytest.raises(StateDiverged):
        group.apply(control(alter_topic=alter))


def test_the_bytes_below_the_level_have_no_limit() -> None:
    low = Stage(level=DELAY_LIMIT_LEVEL - 1)
    before = len(b"".join(low.state.queues[KEY].parts(DELAY_LIMIT_LEVEL, limits=False)))
    assert len(b"".join(low.state.queues[KEY].parts(DELAY_LIMIT_LEVEL))) == before + 8
    assert restarted(low.state).queues[KEY].settings == QueueSettings()


# --- transactions -------------------------------------------------------------------------------


def delayed(stager: int, base: int, count: int, seconds: int = 5) -> BatchHeader:
    plain = staged(stager, base, count)
    return replace(plain, deliver_at_us=START_US + seconds * SECOND_US)


def stage(group: Limited, stager: int, *heads: BatchHeader, txn: str) -> Any:
    group.open(stager, txn=txn)
    for head in heads:
        assert group.stage(head) == "staged", "what is staged counts for nothing"
    return winner(stager, {KEY: heads})


def test_a_transaction_is_refused_as_a_whole_when_it_is_pinned(group: Limited) -> None:
    group.produce(late(-1, 5, last=3))
    some = stage(group, A, delayed(A, 0, 4), delayed(A, 4, 3), txn="t")
    error = group.pin(some)
    assert isinstance(error, DelayThrottled)
    assert (error.due_messages, error.due_messages_max) == (4, 10)
    assert "7 more" in error.message
    assert not group.state.transactions.staging.pins
    fewer = stage(group, B, delayed(B, 0, 6), txn="u")
    assert group.pin(fewer, txn="u") == ()


def test_what_is_pinned_counts_for_others_and_is_published_for_certain(group: Limited) -> None:
    some = stage(group, A, delayed(A, 0, 6), txn="t")
    assert group.pin(some) == ()
    refusal(group.produce(late(-1, 5, last=4)))
    other = stage(group, B, delayed(B, 0, 5), txn="u")
    assert isinstance(group.pin(other, txn="u"), DelayThrottled)
    assert isinstance(group.produce(late(-1, 5, last=3)), Accepted)
    assert group.due(5) == 4, "it is due once it is published"
    group.limit(1)
    assert group.pin(some) == (), "a pin that is repeated is not judged again"
    group.publish()
    assert group.due(5) == 10


def test_a_pin_that_is_dropped_gives_its_room_back(group: Limited) -> None:
    some = stage(group, A, delayed(A, 0, 10), txn="t")
    group.pin(some)
    refusal(group.produce(late(-1, 5)))
    group.step(drop_pin=steps.DropPin(transaction_id="t", attempt=1))
    assert isinstance(group.produce(late(-1, 5, last=9)), Accepted)


def test_what_is_not_delayed_needs_no_room(group: Limited) -> None:
    group.produce(late(-1, 5, last=9))
    at_once = stage(group, A, staged(A, 0, 50), txn="t")
    assert group.pin(at_once) == ()


# --- message ids --------------------------------------------------------------------------------


def test_known_ids_are_duplicates_in_a_full_second_and_new_ones_are_refused() -> None:
    group = IdGroup()
    group.raise_level(DELAY_LIMIT_LEVEL)
    given = group.state.id_windows.topics[KEY.topic_id].settings
    settings = common_pb2.TopicSettings(
        delay_per_second_max=1,
        dedup=common_pb2.IdDedup(window_bytes=given.window_bytes, seed=given.seed),
    )
    group.apply(control(alter_topic=control_pb2.AlterTopic(topic_id=7, settings=settings)))
    group.admission = Admission(group.state, term=Term(group.term))
    due_us = group.now_us + 5 * SECOND_US
    first = group.produce_ids([(b"a", b"x")], due_us=due_us)
    assert isinstance(first, Accepted)
    again = group.produce_ids([(b"a", b"x")], due_us=due_us, producer=2)
    assert isinstance(again, Accepted), "nothing of it is stored"
    before = group.window.next_arrival, group.index.end_arrival
    refusal(group.produce_ids([(b"b", b"y")], due_us=due_us, producer=2))
    assert (group.window.next_arrival, group.index.end_arrival) == before
    later = group.produce_ids([(b"b", b"y")], due_us=due_us + SECOND_US, producer=2)
    assert isinstance(later, Accepted)


# --- planted ------------------------------------------------------------------------------------


def test_a_count_without_what_is_in_flight_is_noticed(
    group: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(DueLoads, "_change", forget)
    with pytest.raises(AssertionError):
        test_what_is_in_flight_counts(group)
