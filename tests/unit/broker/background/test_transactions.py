"""What a master does for transactions unasked: the state of one group, and a fake of another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from semel.broker.background.transactions import TransactionWork
from semel.broker.config import BrokerConfig
from semel.broker.state import Refused
from semel.protos.errors import SemelError, Unavailable
from semel.protos.ids import GroupId, NodeId
from semel.protos.v1 import control_pb2
from semel.protos.v1 import transaction_records_pb2 as records
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.staging import A, Stage, staged, winner

OWN, OTHER = GroupId(1), GroupId(2)


class FakeReplica:
    """The master of a group of one: what is submitted is applied at once."""

    def __init__(self, group: Stage) -> None:
        self.group = group
        self.state = group.state
        self.steps: list[str] = []
        """As they were applied."""

    async def confirm_read(self) -> None:
        pass

    async def submit_control(self, record: control_pb2.ControlRecord) -> Any:
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

    async def call(self, group: int, method: str, request: object, timeout_s: float) -> Any:
        self.asked.append((group, method))
        if self.away is not None:
            raise self.away


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
    duty, replica, calls = decided(OWN, OTHER)

    async def play() -> None:
        assert not await duty.redrive("t")
        assert replica.steps == ["publish"]
        assert not published(replica)
        calls.away = None
        assert await duty.redrive("t")
        assert replica.steps == ["publish", "finish"]
        assert calls.asked == [(OTHER, "Publish")] * 2

    asyncio.run(play())
    assert published(replica)


def test_an_epoch_is_not_finished_while_nothing_is_published_here() -> None:
    """The other one has, and this one cannot: the same holds for the coordinator's own part."""
    duty, replica, calls = decided(OWN, OTHER)
    calls.away = None
    real = replica.submit_control

    async def refuse(record: control_pb2.ControlRecord) -> Any:
        if record.transaction.HasField("publish"):
            raise Unavailable("not now")
        return await real(record)

    replica.submit_control = refuse  # type: ignore[method-assign]
    assert not asyncio.run(duty.redrive("t"))
    assert not published(replica)


def test_the_next_epoch_waits_for_the_last_participant() -> None:
    duty, replica, _ = decided(OTHER)
    assert not asyncio.run(duty.redrive("t"))
    begun = replica.group.step(begin=records.BeginTransaction(transaction_id="t", query_id="q"))
    assert isinstance(begun, SemelError)
    assert "not published" in begun.message
