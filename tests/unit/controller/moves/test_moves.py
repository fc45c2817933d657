"""Moves of queues: decided once, finished or undone after a crash between any two steps."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from semel.controller.active import active_controller as active
from semel.controller.moves import moves
from semel.controller.moves.moves import MoveService
from semel.controller.store import MemoryStore, Transaction
from semel.protos import compat, errors
from semel.protos.errors import SemelError, Unavailable
from semel.protos.frames import RecordKind, iter_records
from semel.protos.levels import COMPACTED_MOVE_LEVEL
from semel.protos.v1 import control_pb2
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import Compaction, TopicSettings
from semel.protos.v1.metadata_pb2 import (
    MOVE_STAGE_ABORTING,
    MOVE_STAGE_DECIDED,
    MoveRecord,
    MoveStage,
)
from tests.kit.controller_cluster import Client, raised_by, running_cluster
from tests.kit.waiting import until_async
from tests.unit.broker.state.moving import Home
from tests.unit.controller.crashing import CrashingStore, CrashPoints, crash
from tests.unit.controller.moving import (
    add_groups,
    check_whole,
    key_of,
    move,
    settled,
    statuses,
    topic_of,
)


class GatedStore(MemoryStore):
    """Keeps moves from a stage, and whoever comes after it, until the gate is open."""

    def __init__(self, stage: MoveStage) -> None:
        super().__init__()
        self._stage = stage
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.waiting = 0
        self._turn = asyncio.Lock()

    async def transact(self, transaction: Transaction) -> int:
        if self._stage in stages_in(transaction):
            self.reached.set()
        if self.reached.is_set():
            self.waiting += 1
            async with self._turn:  # in the order of their coming
                await self.open.wait()
                return await super().transact(transaction)
        return await super().transact(transaction)


class RefusingStore(MemoryStore):
    """Refuses to store moves in a stage, with one error after the other."""

    def __init__(self, stage: MoveStage, refusals: list[SemelError]) -> None:
        super().__init__()
        self._stage = stage
        self.refusals = refusals

    async def transact(self, transaction: Transaction) -> int:
        if self.refusals and self._stage in stages_in(transaction):
            raise self.refusals.pop()
        return await super().transact(transaction)


def stages_in(transaction: Transaction) -> list[MoveStage]:
    """The stages of the moves that the transaction writes."""
    return [
        MoveRecord.FromString(value).stage
        for path, value in transaction.puts.items()
        if path.startswith("/moves/")
    ]


async def through(client: Client) -> None:
    """Moves the queue and waits for the end, which a crash makes an error."""
    await move(client)
    while [each for each in await statuses(client) if each.stage != "aborted"]:
        await asyncio.sleep(0.005)


async def test_a_queue_moves_and_the_routes_follow(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        before = await topic_of(cluster)
        status = await move(cluster.client)
        assert (status.source, status.target, status.topic) == (1, 2, "orders")
        assert await settled(cluster) == []
        after = await topic_of(cluster)
        assert check_whole(brokers, after) == 2
        assert after.topic_id == before.topic_id
        assert list(await cluster.store.scan("/moves/")) == []
        await move(cluster.client, 1)
        assert await settled(cluster) == []
        assert check_whole(brokers, await topic_of(cluster)) == 1


def steps_of(home: Home) -> list[str]:
    """The steps of moves in a group's log."""
    records = [
        control_pb2.ControlRecord.FromString(bytes(payload))
        for frame in home.frames
        for _, kind, payload in iter_records(frame)
        if kind is RecordKind.CONTROL
    ]
    names = control_pb2.MoveStep.Name
    return [
        names(record.move_queue.step).removeprefix("MOVE_STEP_")
        for record in records
        if record.HasField("move_queue")
    ]


async def test_a_compacted_queue_is_held_until_its_move_has_ended(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster, level=COMPACTED_MOVE_LEVEL)
        source, target = (broker.home for broker in brokers)
        settings = TopicSettings(compaction=Compaction(tombstone_ms=1_000))
        await cluster.client.create("orders", 1, groups=[1], settings=settings)
        topic = await topic_of(cluster)
        held: list[bool] = []

        async def look() -> None:
            place = target.state.moves.places.get(key_of(topic))
            if place is not None and key_of(topic) in source.state.queues:
                held.append(source.state.moves.holds(key_of(topic), place.job))

        brokers[1].before = look
        await move(cluster.client)
        assert await settled(cluster) == []
        assert len(held) >= 2
        assert all(held), "nothing is copied before"
        assert steps_of(source) == ["HOLD", "SEAL", "FORWARD"]
        assert check_whole(brokers, await topic_of(cluster)) == 2
        brokers[1].before = None
        refusals = [errors.InvalidRequest("planted")]

        async def fail() -> None:
            if refusals:
                raise refusals.pop()

        brokers[0].before = fail
        await move(cluster.client, 1)
        assert len(await settled(cluster)) == 1, "it was given up"
        assert steps_of(target)[-2:] == ["HOLD", "UNSEAL"]
        assert not target.state.queues[key_of(topic)].held


@pytest.mark.parametrize("again", [False, True])
async def test_a_crash_between_any_two_steps_leaves_the_queue_in_one_place(
    tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "RECONCILE_S", 3_600)  # nothing may be left to that
    hit, stop_at, seen = True, 0, set()
    while hit:
        points = CrashPoints()
        async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
            brokers = await add_groups(cluster)
            await cluster.client.create("orders", 1, groups=[1])
            for broker in brokers:
                broker.before = broker.after = points.point
            hit = await crash(cluster, points, stop_at, through)
            await settled(cluster)
            if again:
                topic = await topic_of(cluster)
                if topic.queues[0].group_id == 1:
                    await move(cluster.client)
                    await settled(cluster)
            seen.add(check_whole(brokers, await topic_of(cluster)))
        stop_at += 1 if stop_at < 6 else 2 + again
    assert stop_at > 20  # seven transactions and calls and more: each before and after
    assert seen == ({2} if again else {1, 2})


@pytest.mark.parametrize("seed", range(6))
async def test_any_history_ends_with_each_queue_in_one_place(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moves and their giving up, failing brokers and crashes in a random order, many at once."""
    monkeypatch.setattr(active, "RECONCILE_S", 3_600)
    monkeypatch.setattr(moves, "SEALED_S", 0.1)
    dice = random.Random(seed)

    async def sometimes_fail() -> None:
        await asyncio.sleep(dice.choice([0, 0, 0.01]))
        if dice.random() < 0.3:
            raise Unavailable("by chance")

    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 3)
        for broker in brokers:
            broker.before = broker.after = sometimes_fail
        decided: set[str] = set()
        for _ in range(4):
            running = [
                asyncio.ensure_future(
                    move(
                        cluster.client,
                        dice.choice([1, 2]),
                        queue_id=dice.randrange(3),
                        cancel=dice.random() < 0.3,
                    )
                )
                for _ in range(6)
            ]
            await asyncio.sleep(dice.choice([0.02, 0.2]))
            if dice.random() < 0.6:
                await cluster.restart()
                await cluster.report()
            results = await asyncio.gather(*running, return_exceptions=True)
            decided |= {type(result).__name__ for result in results}
        for broker in brokers:
            broker.before = broker.after = None
        await cluster.report()
        await settled(cluster)
        topic = await topic_of(cluster)
        for queue_id in range(3):
            check_whole(brokers, topic, queue_id)
        assert decided <= {
            *("MoveStatus", "InvalidRequest", "Throttled", "Unavailable", "CancelledError")
        }


# --- given up -------------------------------------------------------------------------------------


async def test_a_move_is_given_up_before_it_is_decided(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        gate = asyncio.Event()
        brokers[1].before = gate.wait
        await move(cluster.client)
        given_up = await move(cluster.client, cancel=True)
        assert given_up.stage in ("aborting", "aborted")
        gate.set()
        (status,) = await settled(cluster)
        assert (status.stage, status.reason) == ("aborted", "given up by an operator")
        assert check_whole(brokers, await topic_of(cluster)) == 1
        assert (await move(cluster.client, cancel=True)).stage == "aborted"
        await move(cluster.client)
        assert await settled(cluster) == []
        assert check_whole(brokers, await topic_of(cluster)) == 2
        assert "is not being moved" in str(await raised_by(move(cluster.client, cancel=True)))


async def test_a_target_that_never_answers_gives_the_queue_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "SEALED_S", 0.05)
    async with running_cluster(tmp_path) as cluster:
        source, target = await add_groups(cluster)
        topic = (await cluster.client.create("orders", 1, groups=[1])).topic
        key = key_of(topic)

        async def dead_once_it_is_sealed() -> None:
            if source.home.state.queues[key].frozen:
                raise Unavailable("the target is dead")

        target.before = dead_once_it_is_sealed
        await move(cluster.client)
        await until_async(lambda: key in source.home.state.moves.places)
        (status,) = await settled(cluster)
        assert "the target is dead" in status.reason
        assert check_whole([source, target], await topic_of(cluster)) == 1


@pytest.mark.parametrize("refusal", [Unavailable("not now"), errors.InvalidRequest("never")])
async def test_what_is_decided_is_not_given_up(tmp_path: Path, refusal: SemelError) -> None:
    """Whatever the target says: the other decision would come too late."""
    async with running_cluster(tmp_path) as cluster:
        source, target = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        refusing = asyncio.Event()

        async def no_activation() -> None:
            (place,) = target.home.state.moves.places.values() or [None]
            if place is not None and place.state.name == "READY" and not refusing.is_set():
                raise refusal

        await move(cluster.client)
        target.before = no_activation
        async with compat.timeout(20):
            while [each.stage for each in await statuses(cluster.client)] != ["decided"]:
                await asyncio.sleep(0.005)
        error = await raised_by(move(cluster.client, cancel=True))
        assert isinstance(error, errors.InvalidRequest)
        assert "is decided" in error.message
        unfinished = (
            await cluster.client.call("GetClusterStatus", pb.ClusterStatusRequest())
        ).unfinished
        assert [each.step for each in unfinished] == ["moving queue 0 to group 2"]
        refusing.set()
        assert await settled(cluster) == []
        assert check_whole([source, target], await topic_of(cluster)) == 2


async def test_the_next_controllers_moves_are_newer_than_all_before(tmp_path: Path) -> None:
    """Brokers take the steps of an older job for late ones."""
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        first = await move(cluster.client)
        assert await settled(cluster) == []
        await cluster.restart()
        await cluster.report()
        second = await move(cluster.client, 1)
        assert second.job > first.job
        assert await settled(cluster) == []
        assert check_whole(brokers, await topic_of(cluster)) == 1


async def test_a_move_is_decided_when_the_target_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may end before that, because its time is over."""
    pull, told = MoveService._pull, [False, False]
    stages: list[str] = []

    async def slow(self: MoveService, record: MoveRecord, *, finish: bool) -> Any:
        found = await pull(self, record, finish=finish)
        if finish:
            stages.append(MoveStage.Name(record.stage))
            found.ready = told.pop(0) if told else found.ready
        return found

    monkeypatch.setattr(MoveService, "_pull", slow)
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        await move(cluster.client)
        assert await settled(cluster) == []
        assert stages == ["MOVE_STAGE_SEALING"] * 3
        assert check_whole(brokers, await topic_of(cluster)) == 2


async def test_a_move_that_is_decided_while_it_is_given_up_goes_on(tmp_path: Path) -> None:
    """The operator is told so, and not that it was given up."""
    gate = GatedStore(MOVE_STAGE_DECIDED)
    async with running_cluster(tmp_path, gate) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        await move(cluster.client)
        await gate.reached.wait()
        giving_up = asyncio.ensure_future(raised_by(move(cluster.client, cancel=True)))
        await until_async(lambda: gate.waiting == 2)
        gate.open.set()
        assert "is decided and goes on" in str(await giving_up)
        assert await settled(cluster) == []
        assert check_whole(brokers, await topic_of(cluster)) == 2


async def test_a_move_that_its_source_refuses_is_given_up_and_one_that_may_pass_is_not(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        source, target = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        refusals: list[SemelError] = [
            Unavailable("the target is being started"),
            errors.Throttled("the target is busy", retry_after_ms=1),
        ]

        async def refuse() -> None:
            if refusals:
                raise refusals.pop(0)

        target.before = refuse
        await move(cluster.client)
        assert await settled(cluster) == []
        assert check_whole([source, target], await topic_of(cluster)) == 2
        refusals.append(errors.InvalidRequest("never with this queue"))
        source.before = refuse
        await move(cluster.client, 1)
        (status,) = await settled(cluster)
        assert "never with this queue" in status.reason
        assert check_whole([source, target], await topic_of(cluster)) == 2
        # It says that it may be asked again, but at another group.
        refusals.append(errors.QueueMoved("not here any more"))
        await move(cluster.client, 1)
        (status,) = await settled(cluster)
        assert "not here any more" in status.reason


async def test_a_target_that_answers_in_time_gets_a_queue_that_is_sealed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        source, target = await add_groups(cluster)
        topic = (await cluster.client.create("orders", 1, groups=[1])).topic
        told: list[bool] = []

        async def away_once_it_is_sealed() -> None:
            if source.home.state.queues[key_of(topic)].frozen and not told:
                told.append(True)
                raise Unavailable("a master is being elected")

        target.before = away_once_it_is_sealed
        await move(cluster.client)
        assert await settled(cluster) == []
        assert told
        assert check_whole([source, target], await topic_of(cluster)) == 2


@pytest.mark.parametrize("refusal", [errors.Throttled("busy"), errors.DiskFull("no room")])
async def test_a_move_is_given_up_once_the_store_takes_it(
    tmp_path: Path,
    refusal: SemelError,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(active, "RECONCILE_S", 3_600)  # nothing may be left to that
    store = RefusingStore(MOVE_STAGE_ABORTING, [refusal] * 2)
    async with running_cluster(tmp_path, store) as cluster:
        source, target = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        answers: list[SemelError] = [errors.InvalidRequest("never with this queue")] * 3

        async def refuse() -> None:
            if answers:
                raise answers.pop()

        target.before = refuse
        await move(cluster.client)
        (status,) = await settled(cluster)
        assert "never with this queue" in status.reason
        assert check_whole([source, target], await topic_of(cluster)) == 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_deleted_topic_takes_its_move_along(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        gate = asyncio.Event()
        brokers[1].before = gate.wait
        await move(cluster.client)
        deleting = asyncio.ensure_future(cluster.client.delete("orders"))
        await until_async(lambda: brokers[1].calls > 0)
        gate.set()
        await deleting
        await settled(cluster)
        for broker in brokers:
            state = broker.home.state
            assert not state.queues
            assert not state.moves.places
            assert not state.moves.incoming
        assert list(await cluster.store.scan("/deleting/")) == []


async def test_a_deleted_topic_is_forgotten_where_its_queue_was(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        await move(cluster.client)
        await settled(cluster)
        assert brokers[0].home.state.moves.places
        await cluster.client.delete("orders")
        assert not any(broker.home.state.moves.places for broker in brokers)


async def test_a_move_is_given_up_while_its_queue_is_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers write as fast as the queue is copied, so that the copying does not end."""
    monkeypatch.setattr(moves, "SEAL_BYTES", 0)
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        topic = (await cluster.client.create("orders", 1, groups=[1])).topic
        brokers[1].batches_a_pull = 0
        await move(cluster.client)
        await until_async(lambda: brokers[1].pulls >= 3)
        await move(cluster.client, cancel=True)
        (given_up,) = await settled(cluster)
        assert "operator" in given_up.reason
        assert check_whole(brokers, topic) == 1


# --- settings -------------------------------------------------------------------------------------


async def test_settings_that_change_when_the_queue_is_activated_arrive(tmp_path: Path) -> None:
    """The target has the queue, and the routes do not say so yet: the source is told."""
    async with running_cluster(tmp_path) as cluster:
        _, target = await add_groups(cluster)
        topic = (await cluster.client.create("orders", 1, groups=[1])).topic
        told: list[bool] = []

        async def alter() -> None:
            if key_of(topic) in target.home.state.queues and not told:
                told.append(True)
                request = pb.AlterTopicRequest(name="orders", settings={"retention_ms": 7_000})
                await cluster.client.call("AlterTopic", request)

        target.after = alter
        await move(cluster.client)
        await settled(cluster)
        assert told
        queues = target.home.state.queues
        await until_async(lambda: queues[key_of(topic)].settings.retention_ms == 7_000)


async def test_settings_that_change_during_a_move_arrive(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        _, target = await add_groups(cluster)
        topic = (await cluster.client.create("orders", 1, groups=[1])).topic
        gate = asyncio.Event()
        target.before = gate.wait
        await move(cluster.client)
        alter = pb.AlterTopicRequest(name="orders", settings={"retention_ms": 7_000})
        await cluster.client.call("AlterTopic", alter)
        gate.set()
        await settled(cluster)
        queue = target.home.state.queues[key_of(topic)]
        assert queue.settings.retention_ms == 7_000


async def test_without_the_drivers_a_crash_leaves_a_move_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a controller that does not go on with the moves that it finds."""
    points = CrashPoints()
    async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])
        for broker in brokers:
            broker.before = broker.after = points.point

        monkeypatch.setattr(MoveService, "start", lambda _: None)
        assert await crash(cluster, points, 5, through)
        with pytest.raises(TimeoutError):
            async with compat.timeout(0.3):
                await settled(cluster)
