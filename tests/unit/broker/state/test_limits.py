"""What a group remembers is bounded where it begins, not only by whoever looks now and then."""

from __future__ import annotations

from typing import Any

from semel.broker.state import Accepted, Refused
from semel.protos.errors import Throttled, TransactionAborted
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import control_pb2
from semel.protos.v1 import transaction_records_pb2 as steps
from tests.kit.state_log import ref, unapplied_count
from tests.unit.broker.state.in_flight import (
    FIRST,
    SECOND_US,
    Master,
    Request,
    control,
    create,
    run,
    step,
)
from tests.unit.broker.state.staging import HOUR_MS


def begin(name: str, *, epoch: int | None = None) -> Request:
    return step(begin=steps.BeginTransaction(transaction_id=name, query_id="q", epoch=epoch))


def decide(name: str, attempt: int, *participants: int) -> Request:
    return step(
        decide=steps.DecideTransaction(
            transaction_id=name, epoch=0, attempt=attempt, participants=participants
        )
    )


def fence(producer: int) -> Request:
    return control(fence=control_pb2.Fence(queues=[ref(FIRST)], producer_id=producer, epoch=1))


def master(**limits: Any) -> Master:
    made = Master(**limits)
    made.ask(control(feature_level=control_pb2.FeatureLevel(level=5)))
    made.ask(control(create_queue=create(FIRST)))
    made.apply()
    return made


def names(group: Master) -> set[str]:
    return set(group.state.transactions.coordination.rows)


def test_ever_new_transaction_ids_stay_below_the_limit() -> None:
    """At any rate: each makes room for itself, in the entry that it is in."""

    async def play() -> None:
        group = master(transactions_max=10)
        for number in range(100):
            assert group.ask(begin(f"t{number}"))
            group.apply()
            attempt = group.state.transactions.coordination.rows[f"t{number}"].attempt
            group.ask(decide(f"t{number}", attempt))
            group.apply()
            assert len(names(group)) == min(number + 1, 10)
        assert names(group) == {f"t{number}" for number in range(90, 100)}

    run(play())


def test_ids_in_flight_count() -> None:
    async def play() -> None:
        group = master(transactions_max=10)
        taken = [group.ask(begin(f"t{number}")) for number in range(30)]
        assert taken == [True] * 10 + [False] * 20
        group.apply()
        assert len(names(group)) == 10
        assert unapplied_count(group.admission) == 0

    run(play())


def test_an_id_that_is_known_needs_no_room() -> None:
    async def play() -> None:
        group = master(transactions_max=2)
        for name in ("a", "b", "a"):
            assert group.ask(begin(name))
            group.apply()
        assert names(group) == {"a", "b"}
        assert group.ask(begin("c"))
        group.apply()
        assert names(group) == {"a", "c"}  # b was idle for longer

    run(play())


def test_open_attempts_are_forgotten_last_and_can_not_be_decided_then() -> None:
    async def play() -> None:
        group = master(transactions_max=2)
        for name in ("open", "done"):
            group.ask(begin(name))
            group.apply()
        group.ask(decide("done", 2))
        group.apply()
        group.ask(begin("new"))
        group.apply()
        assert names(group) == {"open", "new"}
        group.ask(begin("newer"))
        group.apply()
        assert names(group) == {"new", "newer"}
        late = steps.DecideTransaction(transaction_id="open", epoch=0, attempt=1)
        error = group.state.transactions.coordination.decide(late, group.now_us)
        assert isinstance(error, TransactionAborted)

    run(play())


def test_what_is_not_published_or_just_changes_is_not_forgotten() -> None:
    async def play() -> None:
        group = master(transactions_max=2)
        for name in ("unpublished", "busy"):
            group.ask(begin(name))
            group.apply()
        group.ask(decide("unpublished", 1, 1, 2))
        group.apply()
        assert group.ask(begin("busy"))
        assert not group.ask(begin("new"))
        group.apply()
        assert names(group) == {"unpublished", "busy"}

    run(play())


def test_the_order_of_idleness_survives_a_checkpoint() -> None:
    async def play() -> None:
        group = master(transactions_max=3)
        for name in ("c", "b", "a"):
            group.now_us += SECOND_US
            group.ask(begin(name))
            group.apply()
        again = Master(group.data, transactions_max=3)
        again.ask(begin("new"))
        again.apply()
        assert names(again) == {"b", "a", "new"}

    run(play())


def test_a_smaller_limit_is_reached_with_the_next_new_id() -> None:
    async def play() -> None:
        group = master()
        for number in range(20):
            group.now_us += SECOND_US
            group.ask(begin(f"t{number}"))
            group.apply()
        again = Master(group.data, transactions_max=5)
        again.ask(begin("new"))
        again.apply()
        assert names(again) == {"new", *(f"t{number}" for number in range(16, 20))}

    run(play())


def test_writers_that_stage_nothing_are_bounded() -> None:
    """Those that are in flight count, too."""

    async def play() -> None:
        group = master(stagers_max=3)
        decisions = []
        for number in range(5):
            opening = steps.OpenStager(
                transaction_id="t",
                stager_id=STAGER_ID_MIN + number,
                ttl_ms=HOUR_MS,
                queues=[ref(FIRST)],
            )
            record = steps.TransactionRecord(open_stager=opening)
            decisions.append(group.admission.admit_transaction(record))
        assert decisions[:3] == [Accepted()] * 3
        for refused in decisions[3:]:
            assert isinstance(refused, Refused)
            assert isinstance(refused.error, Throttled)

    run(play())


def test_a_stager_that_is_known_may_open_more_at_the_limit() -> None:
    async def play() -> None:
        group = master(stagers_max=1)
        opening = steps.OpenStager(
            transaction_id="t", stager_id=STAGER_ID_MIN, ttl_ms=HOUR_MS, queues=[ref(FIRST)]
        )
        for _ in range(2):
            assert group.ask(step(open_stager=opening))
            group.apply()
        opening.stager_id += 1
        assert not group.ask(step(open_stager=opening))

    run(play())


def test_ever_new_producers_stay_near_the_limit() -> None:
    async def play() -> None:
        group = master(producers_max=32)
        most = 0
        for number in range(1, 400):
            group.now_us += SECOND_US
            assert group.ask(fence(number))
            group.apply()
            most = max(most, group.state.producers.row_count)
        assert 32 < most <= 34
        assert group.state.producers.find(FIRST, 399) is not None

    run(play())


def test_a_look_at_a_queue_with_millions_of_rows_pauses_no_proposals() -> None:
    """Its record ends a few thousand of them; more bytes would count as not applied yet."""

    async def play() -> None:
        group = master()
        assert group.ask(fence(1))
        group.apply()
        group.proposer.submit_expiry(
            FIRST, now_us=group.now_us + SECOND_US, idle_ms=0, rows_max=10_000_000
        )
        assert group.propose()
        assert group.proposer.unapplied_bytes < 1 << 20

    run(play())


def test_producers_that_wrote_lately_keep_their_rows() -> None:
    """A limit below the number of those that write now must not make them fence for ever."""

    async def play() -> None:
        group = master(producers_max=4)
        for number in range(1, 10):
            group.now_us += SECOND_US
            group.ask(fence(number))
            group.apply()
        assert group.state.producers.row_count == 9
        group.now_us += 60 * SECOND_US
        group.ask(fence(10))
        group.apply()
        assert group.state.producers.row_count <= 5

    run(play())
