"""Batches of a transaction go to its stager at the queue, each in its place, by any gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semel.gateway.producing.kafka_lanes import BatchOutcome
from semel.gateway.producing.stage_lanes import REBINDS_MAX, Place, StageProducers
from semel.gateway.transactions.numbers import epoch_of, stager_id_of
from semel.protos.errors import (
    QueueSealed,
    SemelError,
    TransactionAborted,
    TransactionFenced,
    Unavailable,
)
from semel.protos.ids import GroupId
from semel.protos.v1 import control_pb2
from tests.kit.staging_world import GROUPS, ID, KEY, Gateway, StagingWorld
from tests.kit.virtual_time import run_virtually

EPOCH = 5
"""Kafka's, and the incarnation."""
FIRST = epoch_of(EPOCH, 1)
SECOND = epoch_of(EPOCH, 3)


def run(scene: Callable[[StagingWorld], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scene(StagingWorld()))


async def settle() -> None:
    """All that can go on by itself has."""
    await asyncio.sleep(1.0)


def error_of(told: list[BatchOutcome]) -> SemelError | None:
    (outcome,) = told
    return outcome.error


def test_batches_go_to_the_open_stager_in_their_order() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        told = [gateway.put(EPOCH, 700 + 2 * number, [b"%d" % number, b"x"]) for number in range(5)]
        await settle()
        assert [error_of(each) for each in told] == [None] * 5
        assert world.staged(FIRST)[::2] == [b"%d" % number for number in range(5)]
        assert world.opened == [(FIRST, 701)], "the base is in the log, before anything is staged"

    run(scene)


def test_another_gateway_goes_on_and_knows_what_is_sent_again() -> None:
    async def scene(world: StagingWorld) -> None:
        one, other = Gateway(world), Gateway(world)
        world.begin(FIRST)
        one.put(EPOCH, 700, [b"a", b"b"])
        await settle()
        again = other.put(EPOCH, 700, [b"a", b"b"])
        new = other.put(EPOCH, 702, [b"c"])
        await settle()
        assert (error_of(again), error_of(new)) == (None, None)
        assert world.staged(FIRST) == [b"a", b"b", b"c"]
        assert other.lanes.duplicates == 1
        back = one.put(EPOCH, 703, [b"d"])  # the first one's stager is open under the same base
        await settle()
        assert error_of(back) is None
        assert world.staged(FIRST) == [b"a", b"b", b"c", b"d"]

    run(scene)


def test_another_gateway_goes_on_with_what_follows() -> None:
    async def scene(world: StagingWorld) -> None:
        one, other = Gateway(world), Gateway(world)
        world.begin(FIRST)
        one.put(EPOCH, 700, [b"a", b"b"])
        await settle()
        told = [other.put(EPOCH, 702, [b"c"]), other.put(EPOCH, 703, [b"d"])]
        await settle()
        assert [error_of(each) for each in told] == [None, None]
        assert world.staged(FIRST) == [b"a", b"b", b"c", b"d"]

    run(scene)


def test_two_gateways_that_begin_at_a_time_agree_on_the_base() -> None:
    async def scene(world: StagingWorld) -> None:
        one, other = Gateway(world), Gateway(world)
        world.begin(FIRST)
        # A client that got no answer sends the first batch to the other gateway, and the next.
        told = [
            one.put(EPOCH, 700, [b"a"]),
            other.put(EPOCH, 700, [b"a"]),
            other.put(EPOCH, 701, [b"b"]),
        ]
        await settle()
        assert [error_of(each) for each in told] == [None] * 3
        assert world.staged(FIRST) == [b"a", b"b"]

    run(scene)


def test_what_is_fenced_by_the_first_batch_of_a_later_number_does_not_land() -> None:
    """The client has given its first batch up, so that the second one is the transaction's first in
    the queue; the first one is still at a slow gateway."""

    async def scene(world: StagingWorld) -> None:
        slow, quick = Gateway(world), Gateway(world)
        world.begin(FIRST)
        slow.wires_by_group[GROUPS[0]].held = True
        late = slow.put(EPOCH, 700, [b"a"])
        await settle()
        first = quick.put(EPOCH, 701, [b"b"])
        await settle()
        assert error_of(first) is None
        slow.wires_by_group[GROUPS[0]].release()
        await settle()
        assert world.staged(FIRST) == [b"b"]
        assert error_of(late) is not None

    run(scene)


def test_a_batch_that_was_on_its_way_goes_to_the_next_transaction_of_its_epoch() -> None:
    """Which is open at the queue when the stager that the lane knows is gone."""

    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        gateway.put(EPOCH, 700, [b"old"])
        await settle()
        world.drop()
        world.begin(SECOND)
        new = [gateway.put(EPOCH, 701, [b"a"]), gateway.put(EPOCH, 702, [b"b"])]
        await settle()
        assert [error_of(each) for each in new] == [None, None]
        assert world.staged(SECOND) == [b"a", b"b"]
        assert (SECOND, 702) in world.opened

    run(scene)


def test_what_belongs_to_no_open_transaction_fails_and_all_behind_it() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        gateway.put(EPOCH, 700, [b"old"])
        await settle()
        world.drop()
        told = [gateway.put(EPOCH, 701 + number, [b"x"]) for number in range(3)]
        await settle()
        assert [type(error_of(each)) for each in told] == [TransactionAborted] * 3
        assert world.staged(FIRST) == [b"old"]
        assert not gateway.lanes.lane_count
        assert gateway.wires_by_group[GROUPS[0]].in_flight_bytes == 0

    run(scene)


def test_a_stager_of_before_is_never_gone_back_to() -> None:
    """What staged the batch is gone; an older transaction's stager, which somebody forgot to drop,
    is open at the queue."""

    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        world.begin(SECOND)
        gateway.put(EPOCH, 700, [b"a"])
        await settle()
        assert world.staged(SECOND) == [b"a"]
        del world.staging[GROUPS[0]].stagers[stager_id_of(ID, SECOND, KEY)]
        late = gateway.put(EPOCH, 701, [b"b"])
        await settle()
        assert isinstance(error_of(late), TransactionAborted)
        assert world.staged(FIRST) == []

    run(scene)


def test_another_epoch_is_fenced_and_stages_nothing() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(epoch_of(EPOCH + 1, 1))
        late = gateway.put(EPOCH, 700, [b"zombie"])
        await settle()
        assert isinstance(error_of(late), TransactionFenced)
        assert not world.values

    run(scene)


def test_a_queue_that_moved_is_looked_up_before_it_counts_as_not_open() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.move()
        world.begin(FIRST)
        told = gateway.put(EPOCH, 700, [b"a"])
        await settle()
        assert error_of(told) is None
        assert world.staged(FIRST) == [b"a"]
        assert gateway.looked_up == 1

    run(scene)


def test_what_was_staged_before_a_move_is_not_begun_anew_behind_it() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        gateway.put(EPOCH, 700, [b"a"])
        await settle()
        world.drop()
        world.move()
        late = gateway.put(EPOCH, 701, [b"b"])
        await settle()
        assert error_of(late) is not None
        assert world.staged(FIRST) == [b"a"]
        assert not world.staging[GROUPS[1]].stagers

    run(scene)


def test_a_split_that_is_not_known_yet_makes_the_client_look_for_the_leader() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.split()
        world.row.begun_epoch, world.row.attempt = FIRST, 1
        told = gateway.put(EPOCH, 700, [b"a"])
        await settle()
        assert isinstance(error_of(told), Unavailable)
        assert gateway.looked_up == 1

    run(scene)


@pytest.mark.parametrize("bound", [True, False])
def test_a_split_under_an_open_transaction_is_told(bound: bool) -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        if bound:
            gateway.put(EPOCH, 700, [b"a"])
            await settle()
        world.split()
        late = gateway.put(EPOCH, 701, [b"b"])
        await settle()
        error = error_of(late)
        assert isinstance(error, QueueSealed)
        (split,) = gateway.splits
        record = control_pb2.SplitQueue.FromString(split.split_record)
        assert [child.queue_id for child in record.children] == [1, 2]
        assert world.staged(FIRST) == ([b"a"] if bound else [])

    run(scene)


def test_who_has_lost_the_base_begins_no_second_one() -> None:
    """Something is staged, and the batch that comes would be taken for the first."""

    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        stager = world.staging[GROUPS[0]].stagers[stager_id_of(ID, FIRST, KEY)]
        real = world.describe

        def stale(group: Any) -> Any:
            reply = real(group)  # as of before anything was staged
            stager.queues[KEY].session, stager.queues[KEY].last_sequence = 100, 3
            return reply

        world.describe = stale  # type: ignore[method-assign]
        told = gateway.put(EPOCH, 700, [b"a"])
        await settle()
        assert isinstance(error_of(told), TransactionAborted)
        assert not world.values

    run(scene)


def test_searching_anew_has_an_end() -> None:
    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        world.begin(FIRST)
        real = world.stage

        def refusing(group: GroupId, payload: bytes, values: list[bytes]) -> bool | SemelError:
            world.drop()
            world.begin(world.row.begun_epoch + 2)
            return real(group, payload, values)

        world.stage = refusing  # type: ignore[method-assign]
        told = gateway.put(EPOCH, 700, [b"a"])
        await asyncio.sleep(60.0)
        assert isinstance(error_of(told), TransactionAborted)
        assert len(world.opened) == REBINDS_MAX + 1
        assert not world.values

    run(scene)


def test_a_producer_has_as_many_transactions_as_it_likes() -> None:
    """Each has another stager, and its first batch finds that of the one before gone."""

    async def scene(world: StagingWorld) -> None:
        gateway = Gateway(world)
        for number in range(3 * REBINDS_MAX):
            world.drop()
            world.begin(epoch_of(EPOCH, 2 * number + 1))
            told = gateway.put(EPOCH, number, [b"%d" % number])
            await settle()
            assert error_of(told) is None, f"in transaction {number}"
            assert world.staged(epoch_of(EPOCH, 2 * number + 1)) == [b"%d" % number]

    run(scene)


def test_who_takes_its_own_batch_for_the_first_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: StageProducers, lane: Any, stager: Any) -> Place:
        session = lane.waiting[0].base_sequence + 1
        return Place(session, await self._open(lane, stager, session))

    monkeypatch.setattr(StageProducers, "_claim", careless)
    with pytest.raises(AssertionError):
        test_another_gateway_goes_on_with_what_follows()


def test_who_goes_back_to_an_older_stager_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StageProducers._open_at

    async def forgetful(self: StageProducers, lane: Any, group: Any) -> Any:
        lane.after_epoch = -1
        return await real(self, lane, group)

    monkeypatch.setattr(StageProducers, "_open_at", forgetful)
    with pytest.raises(AssertionError):
        test_a_stager_of_before_is_never_gone_back_to()


def test_who_counts_over_all_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = StageProducers.perform

    def counting(self: StageProducers, lane: Any, decisions: Any) -> None:
        before = lane.rebinds
        real(self, lane, decisions)
        lane.rebinds = before

    monkeypatch.setattr(StageProducers, "perform", counting)
    with pytest.raises(AssertionError):
        test_a_producer_has_as_many_transactions_as_it_likes()
