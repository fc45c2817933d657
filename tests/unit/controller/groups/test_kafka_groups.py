"""Groups of Kafka's clients at a running controller: a gateway coordinates each while it lives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semel.controller import records
from semel.controller.groups.group import ConsumerGroup, Wish
from semel.controller.store import Transaction
from semel.protos.errors import (
    GroupKindConflict,
    InvalidRequest,
    UnknownGroup,
    UnknownMember,
    UnsupportedVersion,
)
from semel.protos.groups import GATEWAY_GROUP
from semel.protos.levels import KAFKA_LEVEL
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.metadata_pb2 import GroupKind, LevelRecord
from tests.kit.controller_cluster import Cluster, raised_by, running_cluster
from tests.kit.waiting import until_async

SESSION_MS = 2_000
ONE, TWO = "127.0.0.1:9092", "127.0.0.1:9093"


class Gateways:
    """What gateways ask of the controllers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def register(self, member: str, address: str = ONE, **more: Any) -> Any:
        asked: dict[str, Any] = {
            "group": GATEWAY_GROUP,
            "kind": GroupKind.GROUP_KIND_GATEWAYS,
        } | more
        request = pb.JoinGroupRequest(
            member_id=member, session_ms=SESSION_MS, address=address, **asked
        )
        return await self.cluster.client.call("JoinGroup", request)

    async def claim(self, group: str, member: str, address: str = ONE) -> Any:
        request = pb.JoinGroupRequest(
            group=group, member_id=member, kind=GroupKind.GROUP_KIND_KAFKA, address=address
        )
        return await self.cluster.client.call("JoinGroup", request)

    async def beat(self, member: str) -> Any:
        request = pb.HeartbeatGroupRequest(group=GATEWAY_GROUP, member_id=member)
        return await self.cluster.client.call("HeartbeatGroup", request)

    async def leave(self, group: str, member: str) -> None:
        request = pb.LeaveGroupRequest(group=group, member_id=member)
        await self.cluster.client.call("LeaveGroup", request)

    async def coordinator(self, group: str) -> str:
        (info,) = await self.list(group)
        assert info.kind == GroupKind.GROUP_KIND_KAFKA
        return next((str(member.address) for member in info.members), "")

    async def list(self, group: str = "") -> list[pb.GroupInfo]:
        reply = await self.cluster.client.call("ListGroups", pb.ListGroupsRequest(group=group))
        return list(reply.groups)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as started:
        await started.add_group(1)
        await started.client.create("orders", 4)
        yield started


@pytest.fixture
async def gateways(cluster: Cluster) -> Gateways:
    made = Gateways(cluster)
    await made.register("a", ONE)
    await made.register("b", TWO)
    return made


async def test_the_first_gateway_coordinates_and_others_hear_where(gateways: Gateways) -> None:
    first = await gateways.claim("k", "a")
    assert (first.member_id, first.address, list(first.assignment)) == ("a", ONE, [])
    second = await gateways.claim("k", "b", TWO)
    assert (second.member_id, second.address) == ("a", ONE)
    assert await gateways.coordinator("k") == ONE
    again = await gateways.claim("k", "a")
    assert (again.member_id, again.generation) == ("a", first.generation)


async def test_a_gateway_that_dies_frees_its_groups(cluster: Cluster, gateways: Gateways) -> None:
    first = await gateways.claim("k", "a")
    cluster.clock.now_ms += SESSION_MS - 1
    await gateways.beat("b")
    assert (await gateways.claim("k", "b", TWO)).member_id == "a"
    cluster.clock.now_ms += 1

    async def free() -> bool:
        return await gateways.coordinator("k") == ""

    await until_async(free)
    taken = await gateways.claim("k", "b", TWO)
    assert taken.member_id == "b"
    assert taken.generation > first.generation, "its locks fence those of the one before"
    assert isinstance(await raised_by(gateways.claim("k", "a")), UnknownMember)
    assert isinstance(await raised_by(gateways.beat("a")), UnknownMember)


async def test_a_gateway_may_give_a_group_up(gateways: Gateways) -> None:
    first = await gateways.claim("k", "a")
    await gateways.leave("k", "a")
    second = await gateways.claim("k", "b", TWO)
    assert (second.member_id, second.generation > first.generation) == ("b", True)


async def test_coordinators_outlive_a_controller(cluster: Cluster, gateways: Gateways) -> None:
    await gateways.claim("k", "a")
    await cluster.restart()
    await cluster.report()
    assert await gateways.coordinator("k") == ONE
    assert (await gateways.claim("k", "b", TWO)).member_id == "a"
    assert {m.address for g in await gateways.list(GATEWAY_GROUP) for m in g.members} == {ONE, TWO}
    cluster.clock.now_ms += 2 * SESSION_MS

    async def free() -> bool:
        return await gateways.coordinator("k") == ""

    await until_async(free)


async def test_kinds_do_not_mix(cluster: Cluster, gateways: Gateways) -> None:
    async def consume(group: str) -> Any:
        request = pb.JoinGroupRequest(group=group, topics=["orders"], session_ms=SESSION_MS)
        return await cluster.client.call("JoinGroup", request)

    await gateways.claim("k", "a")
    error = await raised_by(consume("k"))
    assert isinstance(error, GroupKindConflict)
    assert "one of Kafka's clients" in error.message
    member = (await consume("s")).member_id
    assert isinstance(await raised_by(gateways.claim("s", "a")), GroupKindConflict)
    await gateways.leave("k", "a")
    await gateways.leave("s", member)
    assert isinstance(await raised_by(consume("k")), GroupKindConflict), "also without members"
    assert isinstance(await raised_by(gateways.claim("s", "a")), GroupKindConflict)
    await cluster.client.call("ForgetGroup", pb.ForgetGroupRequest(group="k"))
    assert (await consume("k")).member_id


async def test_the_group_of_gateways_is_nobodys(cluster: Cluster, gateways: Gateways) -> None:
    wrong = pb.JoinGroupRequest(group=GATEWAY_GROUP, topics=["orders"])
    assert isinstance(await raised_by(cluster.client.call("JoinGroup", wrong)), InvalidRequest)
    elsewhere = gateways.register("c", group="mine")
    assert isinstance(await raised_by(elsewhere), InvalidRequest)
    assert isinstance(await raised_by(gateways.register("c", address="")), InvalidRequest)
    reading = gateways.register("c", topics=["orders"])
    assert isinstance(await raised_by(reading), InvalidRequest)
    forget = cluster.client.call("ForgetGroup", pb.ForgetGroupRequest(group=GATEWAY_GROUP))
    assert isinstance(await raised_by(forget), InvalidRequest)
    assert isinstance(await raised_by(gateways.claim("k", "nobody")), UnknownMember)
    assert isinstance(await raised_by(gateways.list("k")), UnknownGroup)
    await gateways.claim("k", "a")
    assert [info.group for info in await gateways.list()] == ["k"]


async def test_before_its_level_the_metadata_holds_none(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        store = cluster.store
        entry = await store.get(records.LEVEL)
        assert entry is not None
        await store.transact(
            Transaction(puts={records.LEVEL: records.dump(LevelRecord(level=KAFKA_LEVEL - 1))})
        )
        await cluster.restart()
        error = await raised_by(Gateways(cluster).register("a"))
        assert isinstance(error, UnsupportedVersion)
        assert error.level == KAFKA_LEVEL


async def test_gateways_that_clients_reach_otherwise_than_the_others_are_refused(
    cluster: Cluster,
) -> None:
    gateways = Gateways(cluster)
    await gateways.register("old", "127.0.0.1:9091")  # an older program does not say
    await gateways.register("a", ONE, protocol="SSL")
    for other in ("PLAINTEXT", "SASL_SSL"):
        refused = await raised_by(gateways.register("b", TWO, protocol=other))
        assert isinstance(refused, InvalidRequest)
        assert f"by {other}, and the one at {ONE} by SSL" in refused.message
    await gateways.register("b", TWO, protocol="SSL")
    await gateways.register("b", TWO, protocol="SSL")
    await gateways.leave(GATEWAY_GROUP, "a")
    await gateways.leave(GATEWAY_GROUP, "b")
    await gateways.register("c", ONE, protocol="SASL_SSL")


def test_how_gateways_are_reached_outlives_the_controller() -> None:
    kind = GroupKind.GROUP_KIND_GATEWAYS
    group = ConsumerGroup(GATEWAY_GROUP, generation=1, kind=kind)
    group.join("a", Wish(topics=(), kind=kind, address=ONE, protocol="SASL_SSL"), 0)
    plan = group.plan({})
    assert plan is not None
    back = ConsumerGroup.restore(group.record(plan), 0)
    with pytest.raises(InvalidRequest):
        back.check_protocol("b", "SSL")
    back.check_protocol("b", "SASL_SSL")
