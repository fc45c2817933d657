"""A gateway dies in a commit: the next one finishes it, unless something is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.gateway.transactions.coordinator import TransactionCoordinator
from semel.gateway.transactions.ledger import Attempt, Found, Stage
from semel.gateway.transactions.numbers import stager_id_of
from semel.gateway.transactions.standing import Producer
from semel.protos.errors import Unavailable
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from tests.kit.transaction_world import ModelLedger, TransactionWorld
from tests.kit.virtual_time import run_virtually

ID = "booking"
QUEUES = [
    QueueRoute(
        key=QueueKey(TopicId(1), QueueId(number)),
        group_id=GroupId(1),
        slot_start=number,
        slot_end=number + 1,
    )
    for number in range(4)
]
VALUES = ["0", "1", "2"]
"""One for each queue but the last, at which nothing is staged."""


class Dying(ModelLedger):
    """The ledger of a gateway that dies when it has pinned on so many broker groups."""

    def __init__(self, world: TransactionWorld, pins: int) -> None:
        super().__init__(world)
        self._pins = pins

    async def commit(self, begun: Attempt, stages: Sequence[Stage]) -> None:
        if not stages:
            return await super().commit(begun, stages)
        claimed: dict[GroupId, dict[int, int]] = {}
        for stage in stages:
            if stage.parts:
                count = sum(part.messages for part in stage.parts)
                claimed.setdefault(stage.group, {})[stage.stager_id] = count
        for group in sorted(claimed)[: self._pins]:
            self._world.pin(group, begun, claimed[group])
        raise Unavailable("the gateway has died")


class Blind(ModelLedger):
    """A ledger that does not tell what is pinned."""

    async def find(self) -> Found:
        found = await super().find()
        return found._replace(pinned=[])


async def _dead_in_commit(
    world: TransactionWorld, pins: int
) -> tuple[TransactionCoordinator, Producer]:
    """Returns the gateway that has died, and who had asked it to commit."""
    first, ledger = TransactionCoordinator(ID), Dying(world, pins)
    given = await first.initialise(ledger, 60_000)
    producer = Producer(ID, given.producer_id, given.epoch)
    assert await first.add(ledger, producer, QUEUES) is ErrorCode.none
    epoch = world.row.begun_epoch
    for queue, value in zip(QUEUES, VALUES, strict=False):
        assert world.stage(stager_id_of(ID, epoch, queue.key), queue.key, value)
    with pytest.raises(Unavailable):
        await first.end(ledger, producer, True)
    assert len(world.pins) == pins
    return first, producer


async def _end(world: TransactionWorld, producer: Producer, committed: bool) -> ErrorCode:
    return await TransactionCoordinator(ID).end(ModelLedger(world), producer, committed)


@pytest.mark.parametrize("pins", [0, 1, 2])
def test_a_commit_is_finished_by_the_next_gateway(pins: int) -> None:
    async def scene() -> None:
        world = TransactionWorld(1, faulty=False)
        dead, producer = await _dead_in_commit(world, pins)
        for _ in range(2):  # also when it is asked again
            assert await _end(world, producer, True) is ErrorCode.none
        assert sorted(value for _, value in world.published) == VALUES
        assert await _end(world, producer, False) is ErrorCode.invalid_txn_state
        # And if it was not dead, it hears the same.
        assert await dead.end(ModelLedger(world), producer, True) is ErrorCode.none
        assert sorted(value for _, value in world.published) == VALUES

    run_virtually(scene())


@pytest.mark.parametrize("pins", [0, 1, 2])
def test_a_commit_that_was_not_decided_may_be_given_up_and_is_no_success_then(pins: int) -> None:
    async def scene() -> None:
        world = TransactionWorld(1, faulty=False)
        dead, producer = await _dead_in_commit(world, pins)
        assert await _end(world, producer, False) is ErrorCode.none
        world.end_lost()
        assert await _end(world, producer, True) is ErrorCode.invalid_txn_state
        assert await dead.end(ModelLedger(world), producer, True) is ErrorCode.invalid_txn_state
        assert not world.published

    run_virtually(scene())


def test_a_queue_that_moves_before_the_rest_is_pinned_ends_it() -> None:
    async def scene() -> None:
        world = TransactionWorld(1, faulty=False)
        _, producer = await _dead_in_commit(world, 1)
        (unpinned,) = {world.group_of(queue.key) for queue in QUEUES} - world.pins.keys()
        moving = next(queue.key for queue in QUEUES if world.group_of(queue.key) == unpinned)
        world.move(moving)
        assert await _end(world, producer, True) is ErrorCode.unknown_producer_id
        assert await _end(world, producer, False) is ErrorCode.none
        assert not world.published

    run_virtually(scene())


def test_who_does_not_see_what_is_pinned_is_caught() -> None:
    async def scene() -> None:
        world = TransactionWorld(1, faulty=False)
        _, producer = await _dead_in_commit(world, 1)
        await TransactionCoordinator(ID).end(Blind(world), producer, True)
        world.end_lost()
        assert sorted(value for _, value in world.published) in ([], VALUES)

    with pytest.raises(AssertionError):
        run_virtually(scene())
