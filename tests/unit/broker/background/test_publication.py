"""The rounds of a publication: look up, rewrite, propose, and how they come to an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.broker.background.publication import FREE_ROUNDS, ROUNDS_MAX, Publications
from semel.broker.state import Published, TransactionIds
from semel.protos.errors import NotMaster, SemelError, Throttled, TransactionAborted
from semel.protos.v1 import control_pb2, transaction_records_pb2

TOPIC = frozenset([7])
RECORD = transaction_records_pb2.PublishTransaction(transaction_id="t", attempt=3)


class FakeReplica:
    """What others do beside the publication is a script: for each round the batches to rewrite, or
    the refusal of the publication."""

    def __init__(self, *rounds: int | SemelError, topics: frozenset[int] = TOPIC) -> None:
        self.rounds = list(rounds)
        self.topics = topics
        self.large = False
        self.steps: list[str] = []
        self.looking: list[FakeLookUp] = []
        self.finishing: SemelError | None = None

    def look_up_pinned(self, transaction_id: str, attempt: int) -> FakeLookUp:
        assert (transaction_id, attempt) == ("t", 3)
        return FakeLookUp(self)

    def hold_ids(self, topics: frozenset[int]) -> None:
        assert topics == TOPIC
        self.steps.append("hold")

    def release_ids(self, topics: frozenset[int]) -> None:
        if topics:
            self.steps.append("release")

    async def submit_control(
        self, record: control_pb2.ControlRecord, looked_up: TransactionIds | None = None
    ) -> Any:
        await asyncio.sleep(0)
        step = record.transaction
        if step.HasField("rewrite"):
            assert step.rewrite == transaction_records_pb2.RewriteBatches(
                transaction_id="t", attempt=3
            )
            assert looked_up is not None
            self.steps.append(f"rewrite {len(looked_up.rewrites)}")
            return None
        assert step.publish == RECORD
        refused = self.rounds.pop(0) if self.rounds else None
        if isinstance(refused, SemelError):
            self.steps.append("refused")
            raise refused
        self.steps.append("publish")
        return Published(transaction_id="t", attempt=3, parts=())


class FakeLookUp:
    def __init__(self, replica: FakeReplica) -> None:
        self.replica = replica
        self.topics = replica.topics
        self.large = replica.large
        self.left: list[int] = []

    async def finish(self) -> None:
        self.replica.steps.append("look")
        await asyncio.sleep(0)
        if self.replica.finishing is not None:
            raise self.replica.finishing
        first = next(iter(self.replica.rounds), None)
        if isinstance(first, int):
            self.left = [2] * first
            del self.replica.rounds[0]

    async def next_rewrites(self) -> TransactionIds:
        rewrites: Any = [None] * (self.left.pop() if self.left else 0)
        return TransactionIds(rewrites=rewrites)

    def found(self) -> TransactionIds:
        return TransactionIds(term=1)


async def publish(replica: FakeReplica) -> list[str]:
    await Publications(replica).publish(RECORD)
    return replica.steps


def busy() -> Throttled:
    return Throttled("look up again", retry_after_ms=0)


async def test_what_loses_nothing_is_published_at_once() -> None:
    assert await publish(FakeReplica()) == ["look", "publish"]


async def test_after_a_rewrite_everything_is_looked_up_again() -> None:
    steps = await publish(FakeReplica(2, 1))
    assert steps == [
        *("look", "rewrite 2", "rewrite 2"),
        *("look", "rewrite 2"),
        *("look", "publish"),
    ]


async def test_ids_of_others_are_held_back_when_too_many_rounds_were_in_vain() -> None:
    replica = FakeReplica(busy(), 1, busy(), busy(), 1)
    steps = await publish(replica)
    assert steps[: steps.index("hold")].count("look") == FREE_ROUNDS
    assert steps.count("hold") == steps.count("release") == 1
    assert steps[-2:] == ["publish", "release"]


@pytest.mark.parametrize("error", [NotMaster("not any more"), TransactionAborted("no pin")])
async def test_ids_are_not_held_back_after_an_end(error: SemelError) -> None:
    replica = FakeReplica(busy(), busy(), busy(), error)
    with pytest.raises(type(error)):
        await publish(replica)
    assert replica.steps[-2:] == ["refused", "release"]


@pytest.mark.parametrize("endless", [busy(), 1])
async def test_it_gives_up_in_the_end(endless: Any) -> None:
    replica = FakeReplica(*[endless] * 100)
    with pytest.raises(Throttled):
        await publish(replica)
    assert replica.steps.count("look") == ROUNDS_MAX
    assert replica.steps[-1] == "release"


async def test_without_message_ids_a_refusal_is_the_answer() -> None:
    replica = FakeReplica(busy(), topics=frozenset())
    with pytest.raises(Throttled):
        await publish(replica)
    assert replica.steps == ["look", "refused"]


async def test_an_index_that_cannot_be_read_is_asked_again() -> None:
    replica = FakeReplica()
    replica.finishing = busy()
    with pytest.raises(Throttled):
        await publish(replica)
    assert replica.steps.count("look") == ROUNDS_MAX


@pytest.mark.parametrize("large", [True, False])
async def test_large_ones_are_published_one_after_the_other(large: bool) -> None:
    replica = FakeReplica()
    replica.large = large
    publications = Publications(replica)
    await asyncio.gather(*(publications.publish(RECORD) for _ in range(2)))
    one_by_one = ["look", "publish", "look", "publish"]
    assert replica.steps == (one_by_one if large else sorted(one_by_one))
