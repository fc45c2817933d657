"""Topics survive a crash of the controller between any two of its steps.

Each test counts the points at which a step could be cut (before and after every transaction, before
and after every call to a broker), lets the controller stop dead at one of them, starts another one
over the same store, and does so for every point that there is.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from semel.controller.active import active_controller as active
from semel.controller.store import Transaction
from semel.controller.topics.topics import TopicService
from semel.protos.errors import SemelError, Unavailable
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import TopicSettings
from tests.kit.controller_cluster import Client, running_cluster
from tests.kit.waiting import until_async
from tests.unit.controller.crashing import CrashingStore, CrashPoints, crash, settled


@pytest.mark.parametrize("again", [False, True])
async def test_a_crash_while_creating_leaves_a_topic_or_nothing(
    tmp_path: Path, again: bool
) -> None:
    hit, stop_at, seen = True, 0, set()
    while hit:
        points = CrashPoints()
        async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
            for group in (1, 2):
                for broker in await cluster.add_group(group):
                    broker.before = broker.after = points.point
            hit = await crash(cluster, points, stop_at, lambda c: c.create("orders", 3))
            if again:
                await cluster.client.create("orders", 3, if_not_exists=True)
            await settled(cluster)
            topics = (await cluster.client.routes()).topics
            owned = {(topic.topic_id, queue.queue_id) for topic in topics for queue in topic.queues}
            assert len(owned) == (3 if topics else 0)
            assert {key for broker in cluster.brokers for key in broker.queues} == owned
            seen.add(bool(topics))
        stop_at += 1
    assert stop_at > 6  # two transactions, two groups: each before and after
    assert seen == ({True} if again else {True, False})


async def test_a_crash_while_deleting_leaves_the_whole_topic_or_nothing(tmp_path: Path) -> None:
    hit, stop_at, seen = True, 0, set()
    while hit:
        points = CrashPoints()
        async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
            for group in (1, 2):
                for broker in await cluster.add_group(group):
                    broker.before = broker.after = points.point
            await cluster.client.create("orders", 3)
            hit = await crash(cluster, points, stop_at, lambda c: c.delete("orders"))
            await settled(cluster)
            topics = (await cluster.client.routes()).topics
            left = sum(len(broker.queues) for broker in cluster.brokers)
            assert left == (3 if topics else 0)
            assert list(await cluster.store.scan("/deleting/")) == []
            seen.add(bool(topics))
        stop_at += 1
    assert stop_at > 6
    assert seen == {True, False}


async def test_a_crash_while_altering_leaves_one_setting_everywhere(tmp_path: Path) -> None:
    hit, stop_at, seen = True, 0, set()
    request = pb.AlterTopicRequest(name="orders", settings={"retention_ms": 7})
    while hit:
        points = CrashPoints()
        async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
            for group in (1, 2):
                for broker in await cluster.add_group(group):
                    broker.before = broker.after = points.point
            await cluster.client.create("orders", 3)
            hit = await crash(cluster, points, stop_at, lambda c: c.call("AlterTopic", request))
            await settled(cluster)
            (topic,) = (await cluster.client.routes()).topics
            told = {
                queue.settings.retention_ms
                for broker in cluster.brokers
                for queue in broker.queues.values()
            }
            assert told == {topic.settings.retention_ms}
            seen |= {value == 7 for value in told}
        stop_at += 1
    assert stop_at > 6
    assert seen == {True, False}


async def test_without_the_drivers_a_crash_leaves_half_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a controller that does not go on with what it finds unfinished."""
    points = CrashPoints()
    async with running_cluster(tmp_path, CrashingStore(points)) as cluster:
        for broker in await cluster.add_group(1):
            broker.before = broker.after = points.point
        monkeypatch.setattr(TopicService, "start", lambda _: None)
        assert await crash(cluster, points, 3, lambda c: c.create("orders", 3))
        with pytest.raises(TimeoutError):
            await settled(cluster, within_s=0.3)


async def test_everything_durable_returns(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1, (1, 2, 3))
        client = cluster.client
        await client.create("orders", 3)
        opened = await client.call("OpenProducer", pb.OpenProducerRequest(name="p", open_id=b"1"))
        join = pb.JoinGroupRequest(group="g", member_id="m", topics=["orders"])
        joined = await client.call("JoinGroup", join)
        before = await client.routes()
        assert cluster.node is not None
        cluster_id = cluster.node.cluster_id

        await cluster.restart()
        client = cluster.client
        after = await client.routes()
        assert after.version > before.version
        assert after.cluster_id == cluster_id
        assert after.groups == before.groups
        assert after.topics == before.topics
        reopened = await client.call("OpenProducer", pb.OpenProducerRequest(name="p", open_id=b"2"))
        assert (reopened.producer_id, reopened.epoch) == (opened.producer_id, opened.epoch + 1)
        beat = pb.HeartbeatGroupRequest(group="g", member_id="m", generation=joined.generation)
        assert await client.call("HeartbeatGroup", beat) == joined


async def test_a_new_master_is_tried_at_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one, two = await cluster.add_group(1, (1, 2))
        await one.stop()
        one.master = two.master = one
        creating = asyncio.ensure_future(cluster.client.create("orders", 1))
        await until_async(lambda: two.calls > 0)
        two.master = two
        await cluster.client.call("ReportNode", two.report(term=2))
        reply = await creating
        assert reply.created
        assert len(two.queues) == 1


async def test_an_impossible_store_is_told_by_name(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.store.transact(Transaction(puts={"/topics/x": b"\xff\xff"}))
        await cluster.stop()
        with pytest.raises(SemelError, match="/topics/x"):
            await cluster.start()


@pytest.mark.parametrize("seed", range(8))
async def test_any_history_ends_with_whole_topics(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creates, alters, deletes, failing brokers and crashes in a random order, many at once."""
    monkeypatch.setattr(active, "RECONCILE_S", 3_600)  # nothing may be left to that
    dice = random.Random(seed)

    async def sometimes_fail() -> None:
        await asyncio.sleep(dice.choice([0, 0, 0.01]))
        if dice.random() < 0.3:
            raise Unavailable("by chance")

    def operation(client: Client) -> Awaitable[Any]:
        name = dice.choice("abc")
        timeout = dice.choice([0.05, 0.3])
        match dice.randrange(3):
            case 0:
                return client.create(
                    name, dice.randrange(1, 6), if_not_exists=dice.random() < 0.5, timeout=timeout
                )
            case 1:
                return client.delete(name, if_exists=dice.random() < 0.5, timeout=timeout)
            case _:
                settings = TopicSettings(retention_ms=dice.randrange(1, 1_000))
                request = pb.AlterTopicRequest(name=name, settings=settings)
                return client.call("AlterTopic", request, timeout)

    async with running_cluster(tmp_path) as cluster:
        for group in (1, 2):
            for broker in await cluster.add_group(group):
                broker.before = broker.after = sometimes_fail
        outcomes: Counter[str] = Counter()
        for _ in range(5):
            running = [asyncio.ensure_future(operation(cluster.client)) for _ in range(6)]
            if dice.random() < 0.5:
                await asyncio.sleep(dice.choice([0, 0.02]))
                await cluster.restart()
                await cluster.report()
            results = await asyncio.gather(*running, return_exceptions=True)
            outcomes.update(type(result).__name__ for result in results)
        for broker in cluster.brokers:
            broker.before = broker.after = None
            await cluster.client.call("ReportNode", broker.report(term=9))
        await settled(cluster, within_s=20)
        topics = (await cluster.client.routes()).topics
        wanted = {
            (topic.topic_id, queue.queue_id): (queue.group_id, topic.settings.retention_ms)
            for topic in topics
            for queue in topic.queues
        }
        found = {
            key: (broker.group_id, create.settings.retention_ms)
            for broker in cluster.brokers
            for key, create in broker.queues.items()
        }
        assert found == wanted
        assert outcomes.keys() <= {
            "CreateTopicReply",
            "DeleteTopicReply",
            "AlterTopicReply",
            "TimedOut",
            "Unavailable",
            "TopicExists",
            "UnknownTopic",
            "CancelledError",
        }
        assert len(outcomes) > 2
