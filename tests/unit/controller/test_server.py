"""The controller over real gRPC, with brokers that only remember queues."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from semel.controller.brokers.changes import Changes
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch
from semel.controller.server import ControllerService, Restart
from semel.controller.store import MemoryStore
from semel.protos.errors import (
    DataDirectoryError,
    InvalidRequest,
    NotMaster,
    PermissionDenied,
    SemelError,
    Throttled,
    TimedOut,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownProducer,
    UnknownTopic,
    UnsupportedVersion,
)
from semel.protos.levels import LEVEL_MAX, own_levels
from semel.protos.security.identity import Identity
from semel.protos.v1 import broker_pb2
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.broker_pb2_grpc import MembersServicer, add_MembersServicer_to_server
from tests.kit.controller_cluster import raised_by, refuse, running_cluster
from tests.kit.waiting import until_async


async def test_a_created_topic_is_in_the_routes_with_all_slots(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        await cluster.add_group(2)
        reply = await cluster.client.create("orders", 5)
        assert reply.created
        routes = await cluster.client.routes("orders")
        assert routes.topics[0] == reply.topic
        queues = routes.topics[0].queues
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3, 4]
        assert [queue.group_id for queue in queues] == [1, 2, 1, 2, 1]
        assert queues[0].slot_start == 0
        assert queues[-1].slot_end == 65_536
        assert [group.master_id for group in routes.groups] == [10, 20]
        assert len(cluster.brokers[0].queues) == 3
        assert len(cluster.brokers[1].queues) == 2


async def test_settings_get_defaults_and_can_be_altered(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        created = await cluster.client.create("orders", 1, settings={"retention_ms": 5})
        assert created.topic.settings.retention_ms == 5
        assert created.topic.settings.batch_bytes_max == 4 << 20
        request = pb.AlterTopicRequest(name="orders", settings={"retention_bytes": 77})
        altered = await cluster.client.call("AlterTopic", request)
        assert altered.topic.settings.retention_bytes == 77
        (queue,) = broker.queues.values()
        assert queue.settings == altered.topic.settings
        assert (await cluster.client.routes()).topics[0].settings == altered.topic.settings


async def test_an_existing_topic_is_success_only_when_asked_and_equal(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        await cluster.client.create("orders", 2)
        assert isinstance(await raised_by(cluster.client.create("orders", 2)), TopicExists)
        reply = await cluster.client.create("orders", 2, if_not_exists=True)
        assert not reply.created
        error = await raised_by(cluster.client.create("orders", 3, if_not_exists=True))
        assert isinstance(error, TopicExists)
        assert "2 queues" in error.message


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, InvalidRequest),
        ({"name": "a b"}, InvalidRequest),
        ({"name": "x" * 250}, InvalidRequest),
        ({"name": ".."}, InvalidRequest),
        ({"queues": 0}, InvalidRequest),
        ({"queues": 65_537}, InvalidRequest),
        ({"settings": {"retention_ms": -2}}, InvalidRequest),
        ({"settings": {"batch_bytes_max": 9 << 20}}, InvalidRequest),
        ({"settings": {"message_bytes_max": 4 << 20}}, InvalidRequest),
        ({"groups": [7]}, UnknownGroup),
    ],
)
async def test_senseless_topics_are_refused(
    tmp_path: Path, fields: dict[str, Any], error: type[SemelError]
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        given: dict[str, Any] = {"name": "orders", "queues": 1, **fields}
        assert type(await raised_by(cluster.client.create(**given))) is error
        assert not (await cluster.client.routes()).topics


async def test_without_brokers_a_topic_cannot_be_created(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        error = await raised_by(cluster.client.create("orders"))
        assert isinstance(error, Unavailable)
        assert "no broker" in error.message


async def test_unknown_things_are_named(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        client = cluster.client
        error = await raised_by(client.routes("nope"))
        assert isinstance(error, UnknownTopic)
        assert "'nope'" in error.message
        assert isinstance(await raised_by(client.delete("nope")), UnknownTopic)
        assert not (await client.delete("nope", if_exists=True)).deleted
        error = await raised_by(client.call("ListProducers", pb.ListProducersRequest(name="x")))
        assert isinstance(error, UnknownProducer)
        error = await raised_by(client.call("ListGroups", pb.ListGroupsRequest(group="x")))
        assert isinstance(error, UnknownGroup)


async def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        report = broker.report(cluster_id="other")
        error = await raised_by(cluster.client.call("ReportNode", report))
        assert isinstance(error, DataDirectoryError)
        assert "other" in error.message


async def test_slaves_hints_lead_to_the_master(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        one, two, three = await cluster.add_group(1, (1, 2, 3))
        one.master = two.master = three.master = three  # the controller still believes in one
        await cluster.client.create("orders", 2)
        assert len(three.queues) == 2
        assert three.calls == 1


async def test_creating_goes_on_after_the_caller_gave_up(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        broker.before = refuse
        error = await raised_by(cluster.client.create("orders", timeout=5.0))
        assert isinstance(error, TimedOut)
        assert "told to fail" in error.message
        assert not (await cluster.client.routes()).topics
        broker.before = None
        reply = await cluster.client.create("orders", if_not_exists=True)
        assert not reply.created
        assert len(broker.queues) == 4


async def test_deleting_frees_the_name_at_once_and_the_queues_later(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        first = await cluster.client.create("orders", 2)
        broker.before = refuse
        assert isinstance(await raised_by(cluster.client.delete("orders", timeout=0.3)), TimedOut)
        assert isinstance(await raised_by(cluster.client.routes("orders")), UnknownTopic)
        assert len(broker.queues) == 2
        broker.before = None
        second = await cluster.client.create("orders", 1)
        assert second.topic.topic_id != first.topic.topic_id
        await until_async(lambda: set(broker.queues) == {(second.topic.topic_id, 0)})


async def test_watchers_get_the_routes_at_once_and_after_each_change(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        watch = cluster.client.watch("orders")
        first = await watch.read()
        assert [group.master_id for group in first.groups] == [10]
        assert not first.topics
        await cluster.client.create("orders", 1)
        second = await watch.read()
        assert [topic.name for topic in second.topics] == ["orders"]
        await cluster.client.call("ReportNode", broker.report(term=4))
        third = await watch.read()
        assert third.groups[0].term == 4
        assert first.version < second.version < third.version
        watch.cancel()


async def test_who_watches_groups_is_not_woken_by_topics(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        watch = cluster.client.watch_groups()
        first = await watch.read()
        known = (await cluster.client.routes()).version
        await cluster.client.create("orders", 1)
        await cluster.client.call("ReportNode", broker.report(term=4))
        second = await watch.read()
        assert first.groups[0].term != 4
        assert second.groups[0].term == 4, "the topic came first, and nothing was sent for it"
        request = pb.GetRoutesRequest(known_version=known)
        changes = await cluster.client.call("GetRoutes", request)
        assert changes.changes_since == known
        assert [topic.name for topic in changes.topics] == ["orders"]
        watch.cancel()


async def test_status_tells_who_is_alive(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1, (1, 2, 3))
        await cluster.client.create("orders", 4)
        cluster.clock.now_ms += cluster.config.node_timeout_ms - 100
        await cluster.client.call("ReportNode", cluster.brokers[0].report(commit_index=9))
        cluster.clock.now_ms += 200
        status = await cluster.client.call("GetClusterStatus", pb.ClusterStatusRequest())
        (group,) = status.groups
        assert (group.master_id, group.queues, group.commit_index) == (1, 4, 9)
        assert [node.alive for node in group.nodes] == [True, False, False]
        assert [node.role for node in group.nodes] == ["master", "slave", "slave"]
        assert status.topics == 1
        assert status.controllers[0].role == "master"
        assert cluster.node is not None
        assert status.controllers[0].address == cluster.node.address


async def test_a_caller_that_hangs_up_leaves_a_whole_topic(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await go_on.wait()

        broker.before = hold
        creating = asyncio.ensure_future(cluster.client.create("orders", 3))
        await reached.wait()
        creating.cancel()
        go_on.set()
        broker.before = None
        reply = await cluster.client.create("orders", 3, if_not_exists=True)
        assert not reply.created
        assert set(broker.queues) == {(reply.topic.topic_id, number) for number in range(3)}


async def test_a_slow_watcher_gets_the_newest_routes_and_not_each() -> None:
    changes = Changes()
    routes = RouteTable("c", 1, changes.notify)
    role: Any = SimpleNamespace(active=lambda: SimpleNamespace(routes=routes, changes=changes))
    service = ControllerService(
        role, request_timeout_s=1, level_max=LEVEL_MAX, watches_max=lambda: 1
    )
    watch = service.WatchRoutes(pb.GetRoutesRequest(), None)
    first = await anext(watch)
    for term in range(1, 100):
        routes.set_group(pb.GroupRoute(group_id=1, term=term))
    second = await anext(watch)
    assert second.version == routes.version > first.version
    assert second.groups[0].term == 99
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    routes.set_group(pb.GroupRoute(group_id=1, term=100))
    third = await waiting
    assert third is not None
    assert third.groups[0].term == 100
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    changes.close()
    assert await waiting is None


async def test_more_clients_than_there_is_room_for_are_sent_to_brokers() -> None:
    changes = Changes()
    routes = RouteTable("c", 1, changes.notify)
    role: Any = SimpleNamespace(active=lambda: SimpleNamespace(routes=routes, changes=changes))
    service = ControllerService(
        role, request_timeout_s=1, level_max=LEVEL_MAX, watches_max=lambda: 1
    )
    watch = service.WatchRoutes(pb.GetRoutesRequest(), None)
    await anext(watch)
    with pytest.raises(Throttled, match="watch a broker's copy"):
        await anext(service.WatchRoutes(pb.GetRoutesRequest(), None))
    await watch.aclose()
    assert service.watches == 0
    await anext(service.WatchRoutes(pb.GetRoutesRequest(), None))


ENDED_OTHERWISE = {"WatchRoutes", "WatchRights", "GetClusterStatus", "RestartController"}
"""A watch ends with the changes that it waits for. The status is told by standbys too, which can
also be restarted, and nothing is awaited once the active controller is asked for its part."""


@pytest.mark.parametrize("method", pb.DESCRIPTOR.services_by_name["Controller"].methods_by_name)
async def test_the_end_of_the_epoch_ends_every_call(method: str) -> None:
    """Each method works inside `ActiveController.call`."""

    class Entered(Exception):
        pass

    @contextlib.contextmanager
    def call() -> Iterator[None]:
        raise Entered
        yield

    role: Any = SimpleNamespace(active=lambda: SimpleNamespace(call=call))
    service = ControllerService(
        role, request_timeout_s=1, level_max=LEVEL_MAX, watches_max=lambda: 1
    )
    if method in ENDED_OTHERWISE:
        assert not hasattr(getattr(service, method), "__wrapped__"), "not an exception any more"
        return
    with pytest.raises(Entered):
        await getattr(service, method)(None, None)


class FakeGuard:
    """Says who the caller is."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def admitted(self) -> Any:
        return SimpleNamespace(
            identity=Identity(self._kind, "ann", "c"), scopes=None, expires_s=None, login=False
        )


@pytest.mark.parametrize("kind", ["admin", "client"])
@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("active", [True, False])
async def test_a_standby_with_rules_is_restarted_by_an_administrator_alone(
    active: bool, rules: bool, kind: str
) -> None:
    """The active controller's rules were checked before the call came here."""

    def role_active() -> Any:
        if not active:
            raise NotMaster("a standby")

    restarted: list[int] = []
    role: Any = SimpleNamespace(active=role_active, cluster_id="c")
    guard: Any = FakeGuard(kind)
    access: Any = SimpleNamespace() if rules else None
    service = ControllerService(
        role,
        request_timeout_s=1,
        level_max=LEVEL_MAX,
        watches_max=lambda: 1,
        guard=guard,
        access=access,
        started_us=77,
        restart=Restart(2, lambda: restarted.append(2)),
    )
    context: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1")
    for wrong in (("c", 1), ("d", 2)):
        request = pb.RestartControllerRequest(cluster_id=wrong[0], controller_id=wrong[1])
        with pytest.raises(InvalidRequest, match="this is controller 2 of cluster c"):
            await service.RestartController(request, context)
    request = pb.RestartControllerRequest(cluster_id="c", controller_id=2)
    if rules and not active and kind != "admin":
        with pytest.raises(PermissionDenied, match="administrator"):
            await service.RestartController(request, context)
        assert restarted == []
        return
    assert (await service.RestartController(request, context)).started_us == 77
    assert restarted == [2]


async def test_topics_of_all_groups_are_placed_by_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        await cluster.client.create("first", 3)
        await cluster.add_group(2)
        second = await cluster.client.create("second", 3)
        assert [queue.group_id for queue in second.topic.queues] == [2, 2, 2]
        chosen = await cluster.client.create("chosen", 2, groups=[1])
        assert [queue.group_id for queue in chosen.topic.queues] == [1, 1]
        await cluster.client.delete("first")
        third = await cluster.client.create("third", 3)
        assert [queue.group_id for queue in third.topic.queues] == [1, 1, 2]


async def test_a_group_without_room_or_with_much_to_do_gets_fewer_queues(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (one,) = await cluster.add_group(1)
        (two,) = await cluster.add_group(2)
        await cluster.client.create("even", 4)
        busy = {"produced_bytes": 50 << 20, "disk_free_bytes": 50, "disk_total_bytes": 100}
        await cluster.client.call("ReportNode", one.report(load=busy))
        created = await cluster.client.create("busy", 4)
        assert [queue.group_id for queue in created.topic.queues] == [2, 2, 2, 2]
        reports: dict[str, dict[str, Any]] = {
            "full": {"disk_full": True},
            "nearly-full": {"load": {"disk_free_bytes": 4, "disk_total_bytes": 99}},
        }
        for name, full in reports.items():
            await cluster.client.call("ReportNode", one.report())
            await cluster.client.call("ReportNode", two.report(**full))
            created = await cluster.client.create(name, 2)
            assert [queue.group_id for queue in created.topic.queues] == [1, 1]
        await cluster.client.call("ReportNode", one.report(disk_full=True))
        created = await cluster.client.create("all-full", 3)  # better there than nowhere
        assert {queue.group_id for queue in created.topic.queues} <= {1, 2}
        status = await cluster.client.call("GetClusterStatus", pb.ClusterStatusRequest())
        assert status.groups[1].nodes[0].load.disk_free_bytes == 4


async def test_a_group_whose_master_is_silent_gets_no_new_queues(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.add_group(1)
        await cluster.add_group(2)
        cluster.clock.now_ms += cluster.config.node_timeout_ms + 1
        await cluster.client.call("ReportNode", cluster.brokers[1].report())
        topic = (await cluster.client.create("orders", 2)).topic
        assert [queue.group_id for queue in topic.queues] == [2, 2]


async def test_a_group_that_lost_queues_is_an_operators_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        await cluster.client.create("orders", 3)
        broker.queues.clear()
        for _ in range(3):
            await cluster.report()
            cluster.clock.now_ms += 5_000
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [record.getMessage() for record in errors] == [
            record.getMessage() for record in errors if "found=0 placed=3" in record.getMessage()
        ]
        assert len(errors) == 1
        assert not broker.queues


async def test_a_topic_may_be_altered_while_it_is_created(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        broker.before = refuse
        assert isinstance(await raised_by(cluster.client.create("orders", timeout=0.2)), TimedOut)
        request = pb.AlterTopicRequest(name="orders", settings={"retention_ms": 7})
        altering = asyncio.ensure_future(cluster.client.call("AlterTopic", request))
        await until_async(lambda: broker.calls > 2)
        broker.before = None
        altered = await altering
        assert altered.topic.settings.retention_ms == 7
        assert {queue.settings.retention_ms for queue in broker.queues.values()} == {7}
        assert (await cluster.client.routes("orders")).topics[0] == altered.topic


async def test_a_topic_may_be_deleted_while_it_is_created(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        broker.after = refuse
        creating = asyncio.ensure_future(raised_by(cluster.client.create("orders", 2)))
        await until_async(lambda: broker.queues)
        deleting = asyncio.ensure_future(cluster.client.delete("orders"))
        await until_async(lambda: broker.calls > 2)
        broker.after = None
        assert (await deleting).deleted
        assert isinstance(await creating, UnknownTopic)
        assert not broker.queues
        assert await cluster.store.scan("/deleting/") == {}


class Handing(MembersServicer):
    """Remembers who was to get the mastership."""

    def __init__(self) -> None:
        self.asked: list[broker_pb2.TransferMastershipRequest] = []

    async def TransferMastership(  # noqa: N802
        self, request: broker_pb2.TransferMastershipRequest, context: Any
    ) -> broker_pb2.TransferMastershipReply:
        self.asked.append(request)
        return broker_pb2.TransferMastershipReply(master_id=request.node_id)


async def test_a_master_elsewhere_is_asked_to_hand_over_to_the_preferred_rack(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.config = dataclasses.replace(
            cluster.config, preferred_rack="near", preferred_after_ms=1
        )
        await cluster.restart()
        one, two = await cluster.add_group(1, (1, 2))
        handing = Handing()
        server = grpc.aio.server()
        add_MembersServicer_to_server(handing, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            master = one.report(node={"node_id": 1, "address": address, "rack": "far"})
            slave = two.report(node={"node_id": 2, "address": two.address, "rack": "near"})
            await cluster.client.call("ReportNode", master)
            await cluster.client.call("ReportNode", slave)

            def later() -> bool:
                cluster.clock.now_ms += 1
                return bool(handing.asked)

            await until_async(later, 20.0)
        finally:
            await server.stop(None)
        assert cluster.node is not None
        (asked,) = handing.asked[:1]
        assert (asked.group_id, asked.node_id) == (1, 2)
        assert asked.cluster_id == cluster.node.cluster_id


async def test_a_node_that_is_older_than_the_metadata_is_not_taken_in(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (node,) = await cluster.add_group(1)
        older = node.report(levels=own_levels(LEVEL_MAX - 1))
        for report in older, node.report(levels=None):
            error = await raised_by(cluster.client.call("ReportNode", report))
            assert isinstance(error, UnsupportedVersion)
            assert f"upgrade node {node.node_id}" in error.message


async def test_the_metadatas_level_rises_once_every_group_has_it(tmp_path: Path) -> None:
    store = MemoryStore()
    await ControllerEpoch.begin(store, now_us=1, level_max=4)
    async with running_cluster(tmp_path, store) as cluster:
        (node,) = await cluster.add_group(1)

        async def ask(level: int, *, dry_run: bool = False) -> Any:
            request = pb.RaiseMetadataLevelRequest(level=level, dry_run=dry_run)
            return await cluster.client.call("RaiseMetadataLevel", request)

        await cluster.client.call("ReportNode", node.report(levels=own_levels(active=4)))
        assert (await ask(3)).level == 4, "there is no way back"
        assert (await ask(LEVEL_MAX, dry_run=True)).level == 4
        error = await raised_by(ask(LEVEL_MAX))
        assert isinstance(error, Unavailable)
        assert "broker group 1 has not reported" in error.message
        error = await raised_by(ask(LEVEL_MAX + 1, dry_run=True))
        assert isinstance(error, UnsupportedVersion)
        await cluster.restart()  # the group is known, and what its level is nobody has said
        error = await raised_by(ask(LEVEL_MAX))
        assert isinstance(error, Unavailable)
        assert "broker group 1 has not reported" in error.message
        await cluster.client.call("ReportNode", node.report(levels=own_levels(active=LEVEL_MAX)))
        for _ in range(2):
            assert (await ask(LEVEL_MAX)).level == LEVEL_MAX
        status = await cluster.client.call("GetClusterStatus", pb.ClusterStatusRequest())
        assert status.levels.active == LEVEL_MAX
