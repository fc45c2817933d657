"""The controllers' part of a restore: what it refuses, that steps repeat, and ids that rise."""

from __future__ import annotations

from typing import Any

import pytest

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.producers import EPOCH_STEP, EPOCH_US, ProducerService
from semel.controller.store import MemoryStore
from semel.controller.topics.foreign_topics import ID_STEP
from semel.controller.topics.restores import RestoreService
from semel.controller.topics.topic_table import TopicTable
from semel.protos.errors import InvalidRequest, Unavailable, UnsupportedVersion
from semel.protos.v1.common_pb2 import TopicSettings
from semel.protos.v1.controller_pb2 import (
    RestoreActivate,
    RestoreBegin,
    RestoreClusterReply,
    RestoreClusterRequest,
    RestoreEnd,
    RestoreLook,
    RestorePlace,
    RestorePlaced,
    RestoreProducers,
)
from semel.protos.v1.metadata_pb2 import (
    RESTORE_STAGE_ENDED,
    RESTORE_STAGE_RESTORING,
    TOPIC_STATE_ACTIVE,
    RestorableQueue,
    RestoredProducer,
    TopicRecord,
)

BEGIN = RestoreBegin(url="s3://b/p", folder="old", owner="old")


class Controller:
    """The active controller of one epoch."""

    def __init__(self, epoch: ControllerEpoch, groups: list[int]) -> None:
        self.groups = groups
        self.epoch = epoch
        self.routes = RouteTable(epoch.cluster_id, epoch.number, lambda: None)
        self.table = TopicTable(epoch, self.routes, lambda _: None)
        self.producers = ProducerService(epoch, clock_us=lambda: 5)
        self.now_us = 7
        self.restores = RestoreService(
            epoch, self.table, self, self.producers, clock_us=lambda: self.now_us
        )

    @classmethod
    async def begin(cls, store: MemoryStore, groups: list[int] | None = None) -> Controller:
        epoch = await ControllerEpoch.begin(store, now_us=0, cluster_id="new")
        made = cls(epoch, [1, 2] if groups is None else groups)
        await made.table.load()
        await made.restores.load()
        return made

    def group_ids(self) -> list[int]:
        return self.groups

    def roomy_groups(self) -> list[int]:
        return self.groups

    async def step(self, **step: Any) -> RestoreClusterReply:
        return await self.restores.step(RestoreClusterRequest(cluster_id="new", **step))


def queue(number: int, start: int, end: int, **fields: Any) -> RestorableQueue:
    return RestorableQueue(
        queue_id=number, slot_start=start, slot_end=end, facts=f"f{number}", **fields
    )


WHOLE = [queue(0, 0, 32_768), queue(1, 32_768, 65_536)]
SPLIT = [
    queue(0, 0, 65_536, child_ids=[1, 2]),
    queue(1, 0, 40_000, parent_id=0),
    queue(2, 40_000, 65_536, parent_id=0),
]


def placing(name: str, topic_id: int, queues: list[RestorableQueue]) -> RestorePlace:
    return RestorePlace(
        name=name, topic_id=topic_id, settings=TopicSettings(retention_ms=5), queues=queues
    )


TOLD = RestoreProducers(
    producers=[RestoredProducer(name="loader", producer_id=12, epoch=3)], producer_id_max=99
)


async def test_a_restore_from_the_beginning_to_the_end() -> None:
    store = MemoryStore()
    controller = await Controller.begin(store)
    assert not (await controller.step(look=RestoreLook())).HasField("restore")
    for step in (
        {"begin": BEGIN},
        {"begin": BEGIN},
        {"place": placing("orders", 5, WHOLE)},
        {"place": placing("audit", 6, SPLIT)},
        {"producers": TOLD},
        {"placed": RestorePlaced()},
        {"placed": RestorePlaced()},
    ):
        await controller.step(**step)
    assert controller.routes.topic("orders") is None, "nobody sees it before its queues are there"
    controller = await Controller.begin(store)  # another controller goes on
    assert controller.restores.producer_ids_floor == 99 + ID_STEP
    reply = await controller.step(look=RestoreLook())
    assert reply.restore.stage == RESTORE_STAGE_RESTORING
    orders, audit = reply.topics
    assert sorted(orders.topic.placement) == [1, 2]
    assert len(set(audit.topic.placement)) == 1, "what comes from one split stays together"
    assert [each.sealed for each in audit.topic.queues] == [True, False, False]
    assert not orders.topic.queues, "slots follow from the number of queues"
    later = await controller.step(look=RestoreLook(after_topic_id=5))
    assert [each.topic.name for each in later.topics] == ["audit"]
    with pytest.raises(InvalidRequest, match="is not active yet"):
        await controller.step(end=RestoreEnd())
    for topic_id in (5, 6, 5):
        await controller.step(activate=RestoreActivate(topic_id=topic_id))
    route = controller.routes.topic("orders")
    assert route is not None
    assert route.topic_id == 5
    await controller.step(end=RestoreEnd())
    reply = await controller.step(end=RestoreEnd())
    assert reply.restore.stage == RESTORE_STAGE_ENDED
    # A named producer goes on far above, a new one gets an id that nobody can have.
    opened = await controller.producers.open("loader", b"1")
    assert (opened.producer_id, opened.epoch) == (12, 3 + EPOCH_STEP + 1)
    assert (await controller.producers.open("", b"2")).producer_id >= 99 + ID_STEP


async def test_only_an_empty_cluster_is_restored() -> None:
    store = MemoryStore()
    controller = await Controller.begin(store)
    await controller.table.add(
        TopicRecord(name="mine", topic_id=1, state=TOPIC_STATE_ACTIVE, placement=[1])
    )
    before = await store.scan("")
    assert "not empty, it has 1 topics" in (await controller.step(look=RestoreLook())).refusal
    with pytest.raises(InvalidRequest, match="not empty"):
        await controller.step(begin=BEGIN)
    assert await store.scan("") == before

    store = MemoryStore()
    controller = await Controller.begin(store)
    await controller.producers.open("loader", b"1")
    with pytest.raises(InvalidRequest, match="1 producers, such as 'loader'"):
        await controller.step(begin=BEGIN)


async def test_ids_that_were_reserved_before_are_not_given_out_any_more() -> None:
    controller = await Controller.begin(MemoryStore())
    assert (await controller.producers.open("", b"1")).producer_id == 1
    await controller.step(begin=BEGIN)
    await controller.step(producers=TOLD)
    for call in (b"1", b"2"):
        assert (await controller.producers.open("", call)).producer_id >= 99 + ID_STEP
    opened = await controller.producers.open("loader", b"3")
    await controller.step(producers=TOLD)  # again, after a crash of the command
    again = await controller.producers.open("loader", b"4")
    assert again.epoch == opened.epoch + 1


async def test_steps_out_of_turn_and_bad_topics_are_refused() -> None:
    store = MemoryStore()
    controller = await Controller.begin(store)
    for step in (
        {"place": placing("a", 1, WHOLE)},
        {"producers": TOLD},
        {"placed": RestorePlaced()},
        {"activate": RestoreActivate(topic_id=1)},
        {"end": RestoreEnd()},
    ):
        with pytest.raises(InvalidRequest, match="does not fit"):
            await controller.step(**step)
    with pytest.raises(InvalidRequest, match="no such step"):
        await controller.step()
    with pytest.raises(InvalidRequest, match="the caller means other"):
        await controller.restores.step(
            RestoreClusterRequest(cluster_id="other", look=RestoreLook())
        )
    await controller.step(begin=BEGIN)
    with pytest.raises(InvalidRequest, match="is restored from s3://b/p"):
        await controller.step(begin=RestoreBegin(url="s3://b/q", folder="old", owner="old"))
    before = await store.scan("")
    for queues, says in (
        (WHOLE[:1], "owns slot 32768"),
        (WHOLE[1:], "not numbered from 0"),
        ([queue(0, 0, 40_000), WHOLE[1]], "owns slot 40000, or two do"),
        ([SPLIT[0], queue(1, 0, 65_536, parent_id=7)], "that is not there"),
        ([], "1 to"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            await controller.step(place=placing("a", 1, queues))
    with pytest.raises(InvalidRequest, match="is no topic name"):
        await controller.step(place=placing("a/b", 1, WHOLE))
    with pytest.raises(InvalidRequest, match="were not told yet"):
        await controller.step(placed=RestorePlaced())
    assert await store.scan("") == before
    await controller.step(place=placing("a", 1, WHOLE))
    with pytest.raises(InvalidRequest, match="two topics with the name"):
        await controller.step(place=placing("a", 2, WHOLE))
    controller.groups = []
    with pytest.raises(Unavailable, match="Start the brokers"):
        await controller.step(place=placing("b", 3, WHOLE))


async def test_a_restore_that_begins_again_forgets_an_unfinished_plan() -> None:
    store = MemoryStore()
    controller = await Controller.begin(store)
    await controller.step(begin=BEGIN)
    await controller.step(place=placing("a", 1, WHOLE))
    await controller.step(begin=BEGIN)
    assert records.restoring_key(1) not in await store.scan("")
    await controller.step(place=placing("a", 1, WHOLE))
    await controller.step(producers=TOLD)
    await controller.step(placed=RestorePlaced())
    await controller.step(begin=BEGIN)
    assert records.restoring_key(1) in await store.scan(""), "from here on the plan stands"


async def test_a_name_that_was_taken_meanwhile_is_told() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.step(place=placing("a", 1, WHOLE))
    await controller.step(producers=TOLD)
    await controller.step(placed=RestorePlaced())
    await controller.table.add(
        TopicRecord(name="a", topic_id=9, state=TOPIC_STATE_ACTIVE, placement=[1])
    )
    with pytest.raises(InvalidRequest, match="was created since the restore began"):
        await controller.step(activate=RestoreActivate(topic_id=1))


async def test_metadata_of_an_older_level_is_refused() -> None:
    epoch = await ControllerEpoch.begin(MemoryStore(), now_us=0, cluster_id="new", level_max=8)
    with pytest.raises(UnsupportedVersion):
        await Controller(epoch, [1]).step(look=RestoreLook())


async def test_epochs_and_ids_begin_above_the_clock_as_well() -> None:
    controller = await Controller.begin(MemoryStore())
    controller.now_us = 1 << 52
    await controller.step(begin=BEGIN)
    await controller.step(producers=TOLD)
    assert (await controller.producers.open("loader", b"1")).epoch == (1 << 52) // EPOCH_US + 1
    assert (await controller.producers.open("", b"2")).producer_id >= 1 << 52
