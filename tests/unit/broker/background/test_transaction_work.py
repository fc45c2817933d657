"""What a master does for transactions unasked: the state of one group, and a fake of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.broker.background.transaction_work import TransactionWork
from semel.broker.config import BrokerConfig
from semel.broker.state import Refused, TransactionIds
from semel.protos import compat
from semel.protos.errors import (
    NotMaster,
    SemelError,
    Throttled,
    TransactionAborted,
    Unavailable,
)
from semel.protos.ids import GroupId, NodeId
from semel.protos.v1 import control_pb2, transactions_pb2
from semel.protos.v1 import transaction_records_pb2 as records
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.staging import A, Stage, staged, winner

OWN, OTHER = GroupId(1), GroupId(2)


class FakeLookUp:
    """It finds nothing."""

    def __init__(self, replica: FakeReplica) -> None:
        self.topics = replica.topics
        self.large = False
        self._replica = replica

    async def finish(self) -> None:
        self._replica.look_ups += 1

    async def next_rewrites(self) -> TransactionIds:
        return TransactionIds()

    def found(self) -> TransactionIds:
        return TransactionIds()


class FakeReplica:
    """The master of a group of one: what is submitted is applied at once."""

    def __init__(self, group: Stage) -> None:
        self.group = group
        self.state = group.state
        self.steps: list[str] = []
        """As they were applied."""
        self.confirming: Callable[[], None] = lambda: None
        """Called by each confirmation; may raise."""
        self.now_us = 0
        self.topics: frozenset[int] = frozenset()
        """Topics of what is pinned that compare message ids."""
        self.look_ups = 0

    async def confirm_read(self) -> None:
        self.confirming()

    def log_time_us(self) -> int:
        return self.now_us

    def look_up_pinned(self, transaction_id: str, attempt: int) -> FakeLookUp:
        return FakeLookUp(self)

    def hold_ids(self, topics: frozenset[int]) -> None:
        raise AssertionError("a few rounds are enough")

    def release_ids(self, topics: frozenset[int]) -> None:
        assert not topics

    async def submit_control(self, record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        await asyncio.sleep(0)
        decision = self.group.admission.admit_transaction(record.transaction)
        if isinstance(decision, Refused):
            raise decision.error
        self.group.entry.append(control(transaction=record.transaction))
        self.steps.append(str(record.transaction.WhichOneof("step")))
        return self.group.commit()[-1]


class FakeCalls:
    """The other groups: they are away, or say that all is well."""

    def __init__(self) -> None:
        self.away: SemelError | None = Unavailable("group 2 has no master")
        self.asked: list[tuple[int, str]] = []
        self.requests: list[Any] = []
        self.committed = False

    async def call(self, group: int, method: str, request: object, timeout_s: float) -> Any:
        self.asked.append((group, method))
        self.requests.append(request)
        if self.away is not None:
            raise self.away
        if method == "Publish":
            return transactions_pb2.PublishReply(duplicates=2, conflicts=1)
        return transactions_pb2.AbortReply(committed=self.committed)


def decided(*participants: int) -> tuple[TransactionWork, FakeReplica, FakeCalls]:
    """Epoch 0 of a transaction is decided, with something pinned here, and nothing is published."""
    group = Stage()
    group.open(A)
    head = staged(A, 0, 3)
    group.stage(head)
    group.step(begin=records.BeginTransaction(transaction_id="t", query_id="q"))
    group.pin(winner(A, {KEY: [head]}), attempt=1)
    group.step(
        decide=records.DecideTransaction(
            transaction_id="t", epoch=0, attempt=1, participants=participants
        )
    )
    return work_of(group)


def work_of(group: Stage) -> tuple[TransactionWork, FakeReplica, FakeCalls]:
    replica, calls = FakeReplica(group), FakeCalls()
    config = BrokerConfig(
        data=Path("unused"),
        cluster_id="c",
        group_id=OWN,
        node_id=NodeId(1),
        listen="127.0.0.1:0",
        members={NodeId(1): "127.0.0.1:0"},
    )
    return TransactionWork(config, replica, calls), replica, calls  # type: ignore[arg-type]


def published(replica: FakeReplica) -> bool:
    return replica.state.transactions.coordination.rows["t"].published


def test_an_epoch_is_finished_only_when_every_participant_has_published() -> None:
    work, replica, calls = decided(OWN, OTHER)

    async def play() -> None:
        assert not await work.redrive("t")
        assert replica.steps == ["publish"]
        assert not published(replica)
        calls.away = None
        assert await work.redrive("t")
        assert replica.steps == ["publish", "finish"]
        assert calls.asked == [(OTHER, "Publish")] * 2

    asyncio.run(play())
    assert published(replica)


def test_an_epoch_is_not_finished_while_nothing_is_published_here() -> None:
    """The other one has, and this one cannot: the same holds for the coordinator's own part."""
    work, replica, calls = decided(OWN, OTHER)
    calls.away = None
    real = replica.submit_control

    async def refuse(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        if record.transaction.HasField("publish"):
            raise Unavailable("not now")
        return await real(record)

    replica.submit_control = refuse  # type: ignore[method-assign]
    assert not asyncio.run(work.redrive("t"))
    assert not published(replica)


def test_the_next_epoch_waits_for_the_last_participant() -> None:
    work, replica, _ = decided(OTHER)
    assert not asyncio.run(work.redrive("t"))
    begun = replica.group.step(begin=records.BeginTransaction(transaction_id="t", query_id="q"))
    assert isinstance(begun, SemelError)
    assert "not published" in begun.message


# --- a participant whose pin is old


def pinned(*, coordinator: int) -> tuple[TransactionWork, FakeReplica, FakeCalls]:
    """Something is pinned here for attempt 1 at epoch 0, and nothing is decided."""
    group = Stage()
    group.open(A)
    head = staged(A, 0, 3)
    group.stage(head)
    group.step(begin=records.BeginTransaction(transaction_id="t", query_id="q"))
    group.pin(winner(A, {KEY: [head]}), attempt=1, coordinator=coordinator)
    return work_of(group)


def pins(replica: FakeReplica) -> list[str]:
    return list(replica.state.transactions.staging.pins)


@pytest.mark.parametrize("committed", [True, False])
def test_a_pin_ends_as_its_coordinator_says(committed: bool) -> None:
    work, replica, calls = pinned(coordinator=OTHER)
    calls.away = None
    calls.committed = committed
    assert asyncio.run(work.settle("t"))
    assert replica.steps == ["publish" if committed else "drop_pin"]
    assert replica.state.queues[KEY].log_end_offset == (3 if committed else 0)
    assert pins(replica) == []
    assert calls.asked == [(OTHER, "Abort")]
    assert calls.requests == [records.AbortTransaction(transaction_id="t", attempt=1)]


def test_a_pin_whose_coordinator_does_not_answer_stays() -> None:
    """It may be committed: nothing but the coordinator's word ends it."""
    work, replica, _ = pinned(coordinator=OTHER)
    with pytest.raises(Unavailable):
        asyncio.run(work.settle("t"))
    assert (replica.steps, pins(replica)) == ([], ["t"])


@pytest.mark.parametrize("committed", [True, False])
def test_a_pin_that_this_group_coordinates_is_asked_about_in_its_own_log(committed: bool) -> None:
    work, replica, calls = decided(OWN) if committed else pinned(coordinator=OWN)
    assert asyncio.run(work.settle("t"))
    assert replica.steps == ["abort", "publish" if committed else "drop_pin"]
    assert replica.state.queues[KEY].log_end_offset == (3 if committed else 0)
    assert calls.asked == []
    late = replica.group.step(
        decide=records.DecideTransaction(transaction_id="t", epoch=0, attempt=1)
    )
    assert isinstance(late, SemelError) is not committed, "aborted is for good"


def test_a_pin_is_asked_about_only_when_it_is_old() -> None:
    """An abort at the coordinator ends a commit that is on its way."""
    work, replica, calls = pinned(coordinator=OTHER)
    calls.away = None
    (pin,) = replica.state.transactions.staging.pins.values()
    patience_us = work._config.transaction_pin_ms * 1000

    async def look(age_us: int) -> None:
        replica.now_us = pin.pinned_us + age_us
        work._look_at_pins()
        await asyncio.gather(*work._working.values())

    asyncio.run(look(patience_us - 1))
    assert (calls.asked, pins(replica)) == ([], ["t"])
    asyncio.run(look(patience_us))
    assert (calls.asked, pins(replica)) == ([(OTHER, "Abort")], [])


def test_only_a_master_says_that_a_pin_is_published() -> None:
    """A node that is master no more, or has not applied everything, may not know of the pin: the
    coordinator would log that all is published, and nobody would ever publish it."""
    asked = records.PublishTransaction(transaction_id="t", epoch=0, attempt=1)
    group = Stage()
    work, replica, _ = work_of(group)

    def lost() -> None:
        raise NotMaster("not any more")

    replica.confirming = lost
    with pytest.raises(NotMaster):
        asyncio.run(work.publish(asked))

    def arrives() -> None:
        group.open(A)
        head = staged(A, 0, 3)
        group.stage(head)
        group.pin(winner(A, {KEY: [head]}), attempt=1)

    replica.confirming = arrives
    asyncio.run(work.publish(asked))
    assert replica.steps == ["publish"]
    replica.confirming = lambda: None
    asyncio.run(work.publish(asked))
    assert replica.steps == ["publish"], "again is the same"


def test_one_call_asks_the_coordinator_for_all_that_wait() -> None:
    work, replica, calls = pinned(coordinator=OTHER)
    calls.away = None
    calls.committed = True

    async def both() -> bool:
        return all(await asyncio.gather(work.settle("t"), work.settle("t")))

    assert asyncio.run(both())
    assert calls.asked == [(OTHER, "Abort")]
    assert replica.steps == ["publish"]


def test_a_publication_that_another_call_has_made_is_no_error() -> None:
    work, replica, _ = decided(OWN)

    async def ended(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        raise TransactionAborted("there is no such pin")

    replica.submit_control = ended  # type: ignore[method-assign]
    asked = records.PublishTransaction(transaction_id="t", epoch=0, attempt=1)
    asyncio.run(work.publish(asked))


def test_a_commit_is_told_what_all_participants_have_dropped_and_once() -> None:
    work, _, calls = decided(OWN, OTHER, GroupId(3))
    calls.away = None
    assert asyncio.run(work.redrive("t"))
    assert work.take_dropped("t", 1) == (0, 0)
    assert work.take_dropped("t", 0) == (4, 2)
    assert work.take_dropped("t", 0) == (0, 0)


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without"])
def test_message_ids_are_looked_up_again_when_too_much_has_happened_since(ids: bool) -> None:
    work, replica, _ = decided(OWN)
    refusals = [Throttled("look up again", retry_after_ms=1)] * (2 if ids else 1)
    admit = replica.submit_control
    replica.topics = frozenset([KEY.topic_id] if ids else [])

    async def submit(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        if record.transaction.HasField("publish") and refusals:
            raise refusals.pop()
        return await admit(record)

    replica.submit_control = submit  # type: ignore[method-assign]
    assert asyncio.run(work.redrive("t")) is ids
    assert published(replica) is ids
    assert replica.look_ups == (3 if ids else 1)


def test_what_a_participant_has_dropped_is_counted_once_however_often_it_is_asked() -> None:
    work, replica, calls = decided(OWN, OTHER)
    calls.away = None
    admit, refusals = replica.submit_control, [Unavailable("not yet")]

    async def submit(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        if record.transaction.HasField("publish") and refusals:
            raise refusals.pop()
        return await admit(record)

    replica.submit_control = submit  # type: ignore[method-assign]
    assert not asyncio.run(work.redrive("t"))
    assert asyncio.run(work.redrive("t"))
    assert calls.asked == [(OTHER, "Publish")] * 2
    assert work.take_dropped("t", 0) == (2, 1)


def test_a_publication_goes_on_without_its_caller_and_tells_every_one_what_it_dropped() -> None:
    """A coordinator waits only for a second, and a large publication takes longer."""
    work, replica, _ = pinned(coordinator=OTHER)
    asked = records.PublishTransaction(transaction_id="t", epoch=0, attempt=1)
    admit, go_on = replica.submit_control, asyncio.Event()

    async def submit(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        await go_on.wait()
        return replace(await admit(record), duplicates=3, conflicts=1)

    replica.submit_control = submit  # type: ignore[method-assign]

    async def play() -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with compat.timeout(0.01):
                    await work.publish(asked)
        waiting = asyncio.ensure_future(work.publish(asked))
        await asyncio.sleep(0)
        go_on.set()
        assert await waiting == (3, 1)
        assert await work.publish(asked) == (3, 1)

    asyncio.run(play())
    assert replica.steps == ["publish"]
    assert replica.look_ups == 1


def test_only_stagers_that_are_still_expired_when_it_is_applied_are_given_up() -> None:
    """One may be renewed while the record is on its way."""
    group = Stage()
    group.open(A)
    group.stage(staged(A, 0, 3))
    work, replica, _ = work_of(group)
    asyncio.run(work._end_expired())
    assert replica.steps == []
    replica.now_us = 1 << 60
    sent: list[control_pb2.ControlRecord] = []

    async def note(record: control_pb2.ControlRecord, looked_up: Any = None) -> Any:
        sent.append(record)
        raise NotMaster("not any more")

    replica.submit_control = note  # type: ignore[method-assign]
    asyncio.run(work._end_expired())
    (drop,) = (record.transaction.drop_stagers for record in sent)
    assert (list(drop.stager_ids), drop.expired_only) == ([A], True)
