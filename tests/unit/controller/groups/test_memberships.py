"""Consumer groups through a running controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.groups.group import ConsumerGroup
from semel.controller.groups.memberships import MembershipService
from semel.controller.store import MemoryStore, Transaction
from semel.protos import compat
from semel.protos.errors import (
    DiskFull,
    InvalidRequest,
    MemberFenced,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.metadata_pb2 import ConsumerGroupRecord
from tests.kit.controller_cluster import Clock, Cluster, raised_by, running_cluster
from tests.kit.waiting import until_async

SESSION_MS = 3_000


class Consumers:
    """Members of one group that do what a client does."""

    def __init__(self, cluster: Cluster, group: str = "g") -> None:
        self.cluster = cluster
        self.group = group

    async def join(self, member: str, *topics: str) -> Any:
        request = pb.JoinGroupRequest(
            group=self.group, member_id=member, topics=topics, session_ms=SESSION_MS, client="test"
        )
        return await self.cluster.client.call("JoinGroup", request)

    async def beat(self, member: str) -> Any:
        request = pb.HeartbeatGroupRequest(group=self.group, member_id=member)
        return await self.cluster.client.call("HeartbeatGroup", request)

    async def leave(self, member: str) -> None:
        request = pb.LeaveGroupRequest(group=self.group, member_id=member)
        await self.cluster.client.call("LeaveGroup", request)

    async def assigned(self, member: str, count: int) -> Any:
        """Beats until the member has so many queues."""
        async with compat.timeout(60):
            while len((reply := await self.beat(member)).assignment) != count:
                await asyncio.sleep(0.01)
        return reply


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as started:
        await started.add_group(1)
        await started.client.create("orders", 4)
        yield started


async def test_members_share_the_queues_and_the_generation_rises(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    first = await consumers.join("a", "orders")
    assert len(first.assignment) == 4
    assert first.heartbeat_ms == 1_000
    second = await consumers.join("b", "orders")
    assert len(second.assignment) == 2
    assert second.generation > first.generation
    both = [*(await consumers.beat("a")).assignment, *second.assignment]
    assert sorted(queue.queue_id for queue in both) == [0, 1, 2, 3]
    await consumers.leave("b")
    again = await consumers.beat("a")
    assert len(again.assignment) == 4
    assert again.generation > second.generation


async def test_a_member_without_an_id_gets_one(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    one, two = await consumers.join("", "orders"), await consumers.join("", "orders")
    assert one.member_id
    assert one.member_id != two.member_id


class GatedStore(MemoryStore):
    """A disk that takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        """Transactions that wait for the gate."""

    async def _persist(self, transaction: Transaction, revision: int) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1


async def test_joins_during_a_write_become_one_generation(tmp_path: Path) -> None:
    store = GatedStore()
    async with running_cluster(tmp_path, store) as cluster:
        await cluster.add_group(1)
        await cluster.client.create("orders", 4)
        consumers = Consumers(cluster)
        before = await store.revision()
        store.gate.clear()
        joins = [asyncio.ensure_future(consumers.join(f"m{n}", "orders")) for n in range(30)]
        joined = 0
        while joined < 30:
            groups = (await cluster.client.call("ListGroups", pb.ListGroupsRequest())).groups
            joined = len(groups[0].members) if groups else 0
        store.gate.set()
        await asyncio.gather(*joins)
        assert await store.revision() - before == 2
        replies = [await consumers.beat(f"m{n}") for n in range(30)]
        assert {reply.generation for reply in replies} == {before + 2}
        assert sum(len(reply.assignment) for reply in replies) == 4


async def test_a_silent_members_queues_go_to_the_others(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    await consumers.join("a", "orders")
    await consumers.join("b", "orders")
    cluster.clock.now_ms += SESSION_MS - 1
    await consumers.beat("a")
    cluster.clock.now_ms += 1
    await consumers.assigned("a", 4)
    assert isinstance(await raised_by(consumers.beat("b")), UnknownMember)
    await consumers.join("b", "orders")
    await consumers.assigned("a", 2)


async def test_after_a_restart_members_go_on_without_joining_and_nothing_moves(
    cluster: Cluster,
) -> None:
    consumers = Consumers(cluster)
    await consumers.join("a", "orders")
    b = await consumers.join("b", "orders")
    a = await consumers.beat("a")
    await cluster.restart()
    cluster.clock.now_ms += SESSION_MS  # nobody could beat while it was down
    assert await consumers.beat("a") == a
    assert await consumers.beat("b") == b
    assert await consumers.join("b", "orders") == b
    cluster.clock.now_ms += SESSION_MS - 1
    await consumers.beat("a")
    cluster.clock.now_ms += 1
    await consumers.assigned("a", 4)


async def test_topics_that_are_created_and_deleted_change_the_assignment(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    await cluster.client.create("extra", 2)
    await consumers.join("a", "orders", "extra")
    await cluster.client.delete("extra")
    await consumers.assigned("a", 4)
    created = await cluster.client.create("extra", 1)
    reply = await consumers.assigned("a", 5)
    assert created.topic.topic_id in {queue.topic_id for queue in reply.assignment}


async def test_a_forgotten_group_never_repeats_a_generation(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    for _ in range(3):
        await consumers.join("a", "orders")
        await consumers.leave("a")
    last = await consumers.join("a", "orders")
    forget = pb.ForgetGroupRequest(group="g")
    error = await raised_by(cluster.client.call("ForgetGroup", forget))
    assert isinstance(error, InvalidRequest)
    await consumers.leave("a")
    await cluster.client.call("ForgetGroup", forget)
    assert isinstance(await raised_by(cluster.client.call("ForgetGroup", forget)), UnknownGroup)
    assert isinstance(await raised_by(consumers.beat("a")), UnknownMember)
    await cluster.restart()
    assert (await consumers.join("a", "orders")).generation > last.generation


async def served(store: MemoryStore, **limits: Callable[[], int]) -> MembershipService:
    """The groups of a controller that knows one topic of four queues, without its task."""
    epoch = await ControllerEpoch.begin(store, now_us=0)
    routes = RouteTable("c", 1, lambda: None)
    queues = [pb.QueueRoute(queue_id=number) for number in range(4)]
    routes.set_topic(pb.TopicRoute(name="orders", topic_id=1, queues=queues))
    return MembershipService(epoch, routes, clock=Clock(), loop_clock=Clock(), **limits)


def joining(member: str) -> pb.JoinGroupRequest:
    return pb.JoinGroupRequest(group="g", member_id=member, topics=["orders"])


async def test_two_that_join_a_new_group_at_once_are_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    service = await served(store)
    revision = store.revision

    async def slow() -> int:
        found = await revision()
        await _others()
        return found

    monkeypatch.setattr(store, "revision", slow)
    replies = await asyncio.gather(service.join(joining("a")), service.join(joining("b")))
    assert [len(reply.assignment) for reply in replies] == [2, 2]
    assert service.counts() == (1, 2)


async def test_a_process_that_was_replaced_is_told_so() -> None:
    service = await served(MemoryStore())
    for incarnation in (b"old", b"new"):
        request = joining("a")
        request.incarnation = incarnation
        await service.join(request)
    beat = pb.HeartbeatGroupRequest(group="g", member_id="a", incarnation=b"old")
    with pytest.raises(MemberFenced):
        await service.heartbeat(beat)
    await service.leave("g", "a", b"old")
    beat.incarnation = b"new"
    assert len((await service.heartbeat(beat)).assignment) == 4
    await service.leave("g", "a", b"new")
    assert service.counts() == (1, 0)


async def _others() -> None:
    """Lets all other tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_assignment_whose_caller_has_gone_is_not_given_another_generation_twice() -> None:
    """The store would hold one assignment, and members be told another of the same generation."""
    store = GatedStore()
    service = await served(store)
    await service.join(joining("a"))
    store.gate.clear()
    gone = asyncio.ensure_future(service.join(joining("b")))
    await _others()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    store.gate.set()
    await _others()
    key = records.consumer_group_key("g")
    stored = records.load(ConsumerGroupRecord, key, (await store.scan(records.CONSUMERS))[key])
    told = await service.heartbeat(pb.HeartbeatGroupRequest(group="g", member_id="a"))
    assert told.generation == stored.generation
    assert len(told.assignment) == 2
    assert (await service.join(joining("c"))).generation == stored.generation + 1


async def test_a_member_that_comes_while_its_group_is_forgotten_is_in_it() -> None:
    store = GatedStore()
    service = await served(store)
    await service.join(joining("a"))
    await service.leave("g", "a")
    store.gate.clear()
    forgetting = asyncio.ensure_future(service.forget("g"))
    await _others()
    coming = asyncio.ensure_future(service.join(joining("b")))
    await _others()
    store.gate.set()
    await forgetting
    assert len((await coming).assignment) == 4
    again = await service.heartbeat(pb.HeartbeatGroupRequest(group="g", member_id="b"))
    assert len(again.assignment) == 4
    assert set(await store.scan(records.CONSUMERS)) == {records.consumer_group_key("g")}


async def refuse(transaction: Transaction) -> int:
    raise DiskFull("no room")


async def test_a_forgotten_group_is_not_stored_by_a_member_that_came_and_left_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = GatedStore()
    service = await served(store)
    await service.join(joining("a"))
    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", refuse)
        with pytest.raises(DiskFull):
            await service.leave("g", "a")  # so that there is still something to store
    store.gate.clear()
    forgetting = asyncio.ensure_future(service.forget("g"))
    await _others()
    coming = asyncio.ensure_future(service.join(joining("b")))
    await _others()
    leaving = asyncio.ensure_future(service.leave("g", "b"))
    await _others()
    store.gate.set()
    await forgetting
    await leaving
    with pytest.raises(UnknownMember):
        await coming
    assert await service.list("") == []
    assert await store.scan(records.CONSUMERS) == {}


async def test_a_group_is_forgotten_though_the_caller_has_gone() -> None:
    """The store would hold no group, and members be told of one."""
    store = GatedStore()
    service = await served(store)
    await service.join(joining("a"))
    await service.leave("g", "a")
    store.gate.clear()
    gone = asyncio.ensure_future(service.forget("g"))
    await _others()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    store.gate.set()
    await _others()
    assert await store.scan(records.CONSUMERS) == {}
    assert await service.list("") == []


async def test_a_group_that_the_store_does_not_forget_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    service = await served(store)
    await service.join(joining("a"))
    await service.leave("g", "a")
    with monkeypatch.context() as patched:
        patched.setattr(store, "transact", refuse)
        with pytest.raises(DiskFull):
            await service.forget("g")
    assert [group.group for group in await service.list("")] == ["g"]
    await service.forget("g")
    assert await service.list("") == []
    assert await store.scan(records.CONSUMERS) == {}


async def test_groups_are_listed_with_their_members(cluster: Cluster) -> None:
    await Consumers(cluster, "one").join("a", "orders")
    await Consumers(cluster, "two/ä").join("b", "orders")
    groups = (await cluster.client.call("ListGroups", pb.ListGroupsRequest())).groups
    assert [group.group for group in groups] == ["one", "two/ä"]
    (member,) = groups[0].members
    assert (member.member_id, member.client, list(member.topics)) == ("a", "test", ["orders"])
    assert len(member.assignment) == 4


async def test_senseless_joins_are_refused(cluster: Cluster) -> None:
    consumers = Consumers(cluster)
    assert isinstance(await raised_by(consumers.join("a", "orders", "nope")), UnknownTopic)
    assert isinstance(await raised_by(consumers.join("a")), InvalidRequest)
    assert isinstance(await raised_by(Consumers(cluster, "").join("a", "orders")), InvalidRequest)
    error = await raised_by(consumers.join("a\n", "orders"))
    assert isinstance(error, InvalidRequest)
    assert "member id" in error.message
    assert isinstance(await raised_by(consumers.beat("a")), UnknownMember)
    assert isinstance(await raised_by(consumers.leave("a")), UnknownGroup)


@pytest.mark.parametrize("noticed", [True, False])
async def test_nobody_is_dropped_because_the_controller_stood_still(noticed: bool) -> None:
    """The second case is the planted bug: the gap goes unnoticed, and the member is dropped."""
    clock = Clock()
    epoch = await ControllerEpoch.begin(MemoryStore(), now_us=0)
    routes = RouteTable("c", 1, lambda: None)
    routes.set_topic(pb.TopicRoute(name="orders", topic_id=1, queues=[pb.QueueRoute(queue_id=0)]))
    service = MembershipService(
        epoch, routes, clock=clock, loop_clock=clock if noticed else lambda: 0
    )
    await service.join(
        pb.JoinGroupRequest(group="g", member_id="m", topics=["orders"], session_ms=SESSION_MS)
    )
    running = asyncio.ensure_future(service.run())
    await asyncio.sleep(0)
    clock.now_ms += 60_000
    async with compat.timeout(60):
        reads = clock.reads
        while clock.reads < reads + 3:  # it looks at the clock, and at everybody
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert bool((await service.list("g"))[0].members) is noticed


@pytest.mark.parametrize("moment", ["while it waits for the store", "before it is woken"])
async def test_a_standstill_is_noticed_whatever_the_controller_was_doing(moment: str) -> None:
    clock, store = Clock(), GatedStore()
    epoch = await ControllerEpoch.begin(store, now_us=0)
    routes = RouteTable("c", 1, lambda: None)
    service = MembershipService(epoch, routes, clock=clock, loop_clock=clock)

    def add_queue() -> None:
        queues = [pb.QueueRoute(queue_id=number) for number in range(len(held()) + 1)]
        routes.set_topic(pb.TopicRoute(name="orders", topic_id=1, queues=queues))
        service.on_topic_changed("orders")

    def held() -> Any:
        groups = service._groups.values()
        return next((group.reply("m").assignment for group in groups), [])

    add_queue()
    await service.join(joining("m"))
    running = asyncio.ensure_future(service.run())
    try:
        if moment == "while it waits for the store":
            store.gate.clear()
            add_queue()
            await until_async(lambda: store.waiting)
            clock.now_ms += 60_000
            store.gate.set()
        else:
            await until_async(lambda: service._groups["g"].settled and not service._wake.is_set())
            clock.now_ms += 60_000
            add_queue()
        async with compat.timeout(60):
            reads = clock.reads
            while clock.reads < reads + 6:  # it looks at everybody, more than once
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [each.member_id for each in (await service.list("g"))[0].members] == ["m"]
    assert len(held()) == 2


@pytest.mark.parametrize("adopts_first", [False, True])
async def test_nobody_is_told_an_assignment_before_it_is_stored(
    adopts_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another controller would not know it. The second case is the planted bug: it counts as soon
    as it is planned."""
    if adopts_first:
        plan = ConsumerGroup.plan

        def planned(group: ConsumerGroup, topics: Any) -> Any:
            found = plan(group, topics)
            if found is not None:
                group.adopt(found)
            return found

        monkeypatch.setattr(ConsumerGroup, "plan", planned)
        monkeypatch.setattr(MembershipService, "_settle_once", _settle_without_adopting)
    store = GatedStore()
    epoch = await ControllerEpoch.begin(store, now_us=0)
    routes = RouteTable("c", 1, lambda: None)
    queues = [pb.QueueRoute(queue_id=number) for number in range(2)]
    routes.set_topic(pb.TopicRoute(name="orders", topic_id=1, queues=queues))
    service = MembershipService(epoch, routes, clock=Clock(), loop_clock=Clock())

    def joining(member: str) -> pb.JoinGroupRequest:
        return pb.JoinGroupRequest(group="g", member_id=member, topics=["orders"])

    def beat(member: str) -> Any:
        return service.heartbeat(pb.HeartbeatGroupRequest(group="g", member_id=member))

    before = await service.join(joining("a"))
    store.gate.clear()
    second = asyncio.ensure_future(service.join(joining("b")))
    await _others()
    assert not second.done()
    early = await beat("a")
    assert (early.generation == before.generation) is not adopts_first
    assert (len(early.assignment) == 2) is not adopts_first
    store.gate.set()
    told = await second
    assert told.generation > before.generation
    record = records.load(
        ConsumerGroupRecord,
        records.consumer_group_key("g"),
        (await store.scan(records.CONSUMERS))[records.consumer_group_key("g")],
    )
    assert record.generation == told.generation
    assert len((await beat("a")).assignment) == 1


async def _settle_without_adopting(
    self: MembershipService, group: ConsumerGroup, wanted: int
) -> None:
    async with self._lock(group):
        if group.settled_changes >= wanted:
            return
        plan = group.plan(self._topics(group))
        assert plan is not None
        record = ConsumerGroup("g", generation=plan.generation - 1).record(plan)
        key = records.consumer_group_key(group.name)
        await self._epoch.transact(puts={key: records.dump(record)})


async def test_one_group_or_member_too_many_is_refused_and_the_others_go_on() -> None:
    service = await served(MemoryStore(), groups_max=lambda: 2, members_max=lambda: 2)
    await service.join(joining("a"))
    await service.join(joining("b"))
    with pytest.raises(InvalidRequest, match="--group-members-max"):
        await service.join(joining("c"))
    await service.join(joining("a"))
    other = joining("a")
    other.group = "h"
    await service.join(other)
    other.group = "i"
    with pytest.raises(InvalidRequest, match="--groups-max"):
        await service.join(other)
    await service.leave("g", "a")
    await service.join(joining("c"))
