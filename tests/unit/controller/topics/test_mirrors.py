"""The controllers' part of mirrors: which clusters may be a pair, placement, promotion, names."""

from __future__ import annotations

from typing import Any

import pytest

from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.producers import EPOCH_STEP, ProducerService
from semel.controller.store import MemoryStore
from semel.controller.topics.foreign_topics import ID_STEP
from semel.controller.topics.mirrors import MirrorService
from semel.controller.topics.topic_table import TopicTable
from semel.protos.errors import InvalidRequest, UnknownTopic, UnsupportedVersion
from semel.protos.v1.common_pb2 import TopicSettings
from semel.protos.v1.controller_pb2 import (
    MirrorBegin,
    MirrorDrop,
    MirrorLook,
    MirrorPlace,
    MirrorProducers,
    MirrorPromote,
    MirrorPromoted,
    MirrorTopicsReply,
    MirrorTopicsRequest,
)
from semel.protos.v1.metadata_pb2 import (
    MIRROR_STAGE_COPYING,
    MIRROR_STAGE_PROMOTED,
    TOPIC_STATE_ACTIVE,
    MirroredQueue,
    RestoredProducer,
    TopicRecord,
)

BEGIN = MirrorBegin(source="near", next_producer_id=1_001)


class Controller:
    """The active controller of one epoch."""

    def __init__(self, epoch: ControllerEpoch) -> None:
        self.routes = RouteTable(epoch.cluster_id, epoch.number, lambda: None)
        self.table = TopicTable(epoch, self.routes, lambda _: None)
        self.producers = ProducerService(epoch, clock_us=lambda: 5)
        self.mirrors = MirrorService(epoch, self.table, self, self.producers, clock_us=lambda: 7)

    @classmethod
    async def begin(cls, store: MemoryStore) -> Controller:
        made = cls(await ControllerEpoch.begin(store, now_us=0, cluster_id="far"))
        await made.table.load()
        await made.mirrors.load()
        return made

    def group_ids(self) -> list[int]:
        return [1, 2]

    def roomy_groups(self) -> list[int]:
        return [1, 2]

    async def step(self, **step: Any) -> MirrorTopicsReply:
        return await self.mirrors.step(MirrorTopicsRequest(cluster_id="far", **step))

    async def own_topic(self, name: str = "own") -> None:
        record = TopicRecord(name=name, topic_id=1, state=TOPIC_STATE_ACTIVE, placement=[1])
        await self.table.add(record)


def queue(number: int, start: int, end: int, **fields: Any) -> MirroredQueue:
    return MirroredQueue(queue_id=number, slot_start=start, slot_end=end, **fields)


TWO = [queue(0, 0, 32_768), queue(1, 32_768, 65_536)]
SPLIT = [*TWO, queue(2, 0, 100, parent_id=0), queue(3, 100, 32_768, parent_id=0)]


def placing(queues: list[MirroredQueue], name: str = "orders", topic_id: int = 5) -> MirrorPlace:
    settings = TopicSettings(retention_ms=5)
    return MirrorPlace(name=name, topic_id=topic_id, settings=settings, queues=queues)


def promoting(queues: list[MirroredQueue]) -> MirrorPromote:
    made = MirrorPromote(topic_id=5, queues=queues)
    for each in made.queues:
        each.digest = b"digest"
    return made


async def test_from_the_beginning_to_the_promotion() -> None:
    store = MemoryStore()
    controller = await Controller.begin(store)
    for _ in range(2):
        await controller.step(begin=BEGIN)
        (topic,) = (await controller.step(place=placing(TWO))).topics
    assert sorted(topic.topic.placement) == [1, 2]
    controller = await Controller.begin(store)  # another controller goes on
    assert controller.mirrors.producer_ids_floor == 1_001 + ID_STEP
    assert (await controller.producers.open("", b"1")).producer_id >= 1_001 + ID_STEP
    assert controller.mirrors.is_taken("orders")
    assert controller.routes.topic("orders") is None, "nobody sees it"
    (topic,) = (await controller.step(place=placing(SPLIT))).topics
    groups = list(topic.topic.placement)
    assert groups[2] == groups[3] == groups[0], "what comes from one split stays together"
    with pytest.raises(InvalidRequest, match="is not being promoted"):
        await controller.step(promoted=MirrorPromoted(topic_id=5))
    wanted = [queue(0, 0, 32_768, child_ids=[2, 3]), *SPLIT[1:]]
    for _ in range(2):
        await controller.step(promote=promoting(wanted))
    with pytest.raises(InvalidRequest, match="it takes no copies"):
        await controller.step(place=placing(SPLIT))
    with pytest.raises(InvalidRequest, match="promote it to the end"):
        await controller.step(drop=MirrorDrop(topic_id=5))
    for _ in range(2):
        (topic,) = (await controller.step(promoted=MirrorPromoted(topic_id=5))).topics
    assert topic.stage == MIRROR_STAGE_PROMOTED
    route = controller.routes.topic("orders")
    assert route is not None
    assert [each.queue_id for each in route.queues] == [1, 2, 3]
    assert [each.queue_id for each in route.sealed] == [0]
    assert not controller.mirrors.is_taken("orders")


async def test_a_split_that_is_not_promoted_is_none() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.step(place=placing(SPLIT))
    await controller.step(promote=promoting(TWO))
    (topic,) = (await controller.step(promoted=MirrorPromoted(topic_id=5))).topics
    assert (len(topic.queues), len(topic.topic.placement)) == (2, 2)
    route = controller.routes.topic("orders")
    assert route is not None
    assert not route.sealed


async def test_what_is_promoted_owns_every_slot() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.step(place=placing(SPLIT))
    for wrong in (SPLIT, TWO[:1], [TWO[1]]):
        with pytest.raises(InvalidRequest):
            await controller.step(promote=promoting(wrong))
    with pytest.raises(UnknownTopic):
        await controller.step(promoted=MirrorPromoted(topic_id=9))


async def test_a_cluster_with_topics_of_its_own_is_no_target() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.own_topic()
    with pytest.raises(InvalidRequest, match="mirror into a cluster that is new"):
        await controller.step(begin=BEGIN)
    # Unless its source was its target: then their ids are apart.
    await controller.step(
        begin=MirrorBegin(source="near", next_producer_id=9, source_is_target=True)
    )
    assert controller.mirrors.producer_ids_floor == 0
    with pytest.raises(InvalidRequest, match="is the target of cluster near"):
        await controller.step(begin=MirrorBegin(source="third"))


async def test_a_cluster_with_named_producers_is_no_target() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.producers.open("loader", b"1")
    with pytest.raises(InvalidRequest, match="producers, such as 'loader'"):
        await controller.step(begin=BEGIN)
    for wrong in ("", "far"):
        with pytest.raises(InvalidRequest, match="cannot mirror itself"):
            await controller.step(begin=MirrorBegin(source=wrong))


async def test_nothing_is_placed_before_the_cluster_is_a_target() -> None:
    controller = await Controller.begin(MemoryStore())
    with pytest.raises(InvalidRequest, match="target of no mirror"):
        await controller.step(place=placing(TWO))


async def test_two_topics_of_one_name_are_refused() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.own_topic("orders")
    with pytest.raises(InvalidRequest, match="another topic with the name 'orders'"):
        await controller.step(place=placing(TWO))
    await controller.step(place=placing(TWO, name="audit"))
    with pytest.raises(InvalidRequest, match="another topic with the name 'audit'"):
        await controller.step(place=placing(TWO, name="audit", topic_id=6))


async def test_a_dropped_topic_may_come_again() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.step(place=placing(TWO))
    for _ in range(2):
        await controller.step(drop=MirrorDrop(topic_id=5))
    assert not controller.mirrors.is_taken("orders")
    assert not (await controller.step(look=MirrorLook())).topics
    await controller.step(place=placing(TWO, topic_id=6))


async def test_a_topic_that_was_promoted_and_deleted_may_be_mirrored_again() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    await controller.step(place=placing(TWO))
    await controller.step(promote=promoting(TWO))
    await controller.step(promoted=MirrorPromoted(topic_id=5))
    known = controller.table.known("orders")
    await controller.table.remove(known)
    assert not (await controller.step(look=MirrorLook())).topics
    controller.table._ids.clear()  # as its deletion does
    (topic,) = (await controller.step(place=placing(TWO))).topics
    assert topic.stage == MIRROR_STAGE_COPYING


async def test_names_of_producers_are_taken_over() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    told = [RestoredProducer(name="loader", producer_id=12, epoch=3)]
    await controller.step(producers=MirrorProducers(producers=told))
    opened = await controller.producers.open("loader", b"1")
    assert (opened.producer_id, opened.epoch) == (12, 3 + EPOCH_STEP + 1)
    await controller.step(producers=MirrorProducers(producers=told))
    opened = await controller.producers.open("loader", b"2")
    assert opened.epoch == 3 + EPOCH_STEP + 2, "telling it again changes nothing"
    later = [RestoredProducer(name="loader", producer_id=12, epoch=opened.epoch + 9)]
    await controller.step(producers=MirrorProducers(producers=later))
    assert (await controller.producers.open("loader", b"3")).epoch > opened.epoch + 9


async def test_a_name_that_is_another_producers_is_refused_or_left_to_it() -> None:
    controller = await Controller.begin(MemoryStore())
    await controller.step(begin=BEGIN)
    own = await controller.producers.open("loader", b"1")
    told = [
        RestoredProducer(name="audit", producer_id=11, epoch=3),
        RestoredProducer(name="loader", producer_id=12, epoch=3),
    ]
    with pytest.raises(InvalidRequest, match="'loader' is another one here"):
        await controller.step(producers=MirrorProducers(producers=told))
    assert [each.name for each in await controller.producers.list("")] == ["loader"]
    await controller.step(producers=MirrorProducers(producers=told, forget=True))
    assert (await controller.producers.open("loader", b"2")).producer_id == own.producer_id
    assert (await controller.producers.open("audit", b"3")).producer_id == 11


async def test_steps_of_another_cluster_and_of_a_lower_level_are_refused() -> None:
    controller = await Controller.begin(MemoryStore())
    with pytest.raises(InvalidRequest, match="this is cluster far"):
        await controller.mirrors.step(MirrorTopicsRequest(cluster_id="near"))
    with pytest.raises(InvalidRequest, match="has no such step"):
        await controller.step()
    epoch = await ControllerEpoch.begin(MemoryStore(), now_us=0, cluster_id="far", level_max=8)
    with pytest.raises(UnsupportedVersion):
        await Controller(epoch).step(look=MirrorLook())
