"""Members join, are promoted, leave, lose their disks; in one process, over real gRPC and disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.node import BrokerNode
from semel.broker.repair.quarantine import MARK_NAME
from semel.protos import compat
from semel.protos.errors import InvalidRequest, NotMaster, Unavailable
from semel.protos.ids import NodeId
from semel.protos.v1 import broker_pb2, common_pb2
from tests.kit.brokers import CLUSTER, BrokerGroup, RawClient, make_batch

LEARNER = broker_pb2.MEMBERSHIP_STATUS_LEARNER
VOTER = broker_pb2.MEMBERSHIP_STATUS_VOTER
REMOVED = broker_pb2.MEMBERSHIP_STATUS_REMOVED


async def produce(node: BrokerNode, start: int, count: int) -> None:
    """One batch a number; the producer's first call creates queue and row."""
    async with RawClient(node.address) as client:
        if start == 0:
            await client.create_queue()
            await client.fence(1)
        for number in range(start, start + count):
            (ack,) = await client.produce(make_batch(number - 1, [b"%d" % number]))
            assert ack.status == broker_pb2.PRODUCE_STATUS_COMMITTED, ack


async def check(group: BrokerGroup, messages: int) -> None:
    """Every running node recomputes the same, complete queue from its own log."""
    queue = await group.recomputed()
    assert queue.messages == messages
    assert queue.table_matches
    assert not queue.problems


async def until_counted(node: BrokerNode) -> None:
    async with compat.timeout(20):
        while node.replica.non_counting:
            await asyncio.sleep(0.01)


def voters(node: BrokerNode) -> list[int]:
    return sorted(node.replica.core.membership.voters)


async def test_a_group_of_one_grows_to_three_and_outlives_its_first_node(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, nodes=1) as group:
        first = await group.master()
        await produce(first, 0, 20)
        for number in (2, 3):
            joining = await group.join(number)
            assert joining.replica.role == "joining"
            assert joining.replica.non_counting
            await group.change(number, LEARNER)
            await until_counted(joining)
            assert joining.replica.role == "learner"
            await group.change(number, VOTER)
        assert voters(first) == [1, 2, 3]
        await produce(first, 20, 5)
        await group.stop(1)
        master = await group.master()
        await produce(master, 25, 5)
        await group.start(1)
        await check(group, 30)
        assert all(voters(node) == [1, 2, 3] for node in group.running.values())
        # The same again is success and no new entry.
        index = master.replica.state.membership.index
        reply = await group.change(2, VOTER)
        assert reply.membership_index == index


async def test_a_dead_node_is_replaced_and_learns_that_it_is_out(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        dead = next(node for node in group.addresses if node != master.config.node_id)
        await produce(master, 0, 10)
        await group.stop(dead)
        new = await group.join(4)
        await group.change(4, LEARNER)
        await until_counted(new)
        await group.change(4, VOTER)
        reply = await group.change(dead, REMOVED)
        assert dead not in {member.node.node_id for member in reply.members}
        await produce(master, 10, 10)
        assert dead not in master.replica.peers.links
        await check(group, 20)
        # It comes back with its old data, is told, and disturbs nobody.
        term = master.replica.term
        back = await group.start(dead)
        async with compat.timeout(20):
            while back.replica.role != "removed":
                await asyncio.sleep(0.02)
        assert back.replica.removed_at == reply.membership_index
        async with RawClient(back.address) as client:
            with pytest.raises(NotMaster, match="no member of group"):
                await client.call(
                    "FenceProducer",
                    broker_pb2.FenceProducerRequest(
                        producer_id=5,
                        epoch=9,
                        session=1,
                        queues=[common_pb2.QueueRef(topic_id=77, queue_id=0)],
                    ),
                )
        assert master.replica.term == term
        await group.stop(dead)
        # And it may come back for good, as a learner first.
        back = await group.start(dead)
        await group.change(dead, LEARNER)
        await group.change(dead, VOTER)
        async with compat.timeout(20):
            while back.replica.role != "slave":
                await asyncio.sleep(0.02)
        await check(group, 20)


async def test_a_node_that_was_away_finds_a_master_that_it_never_heard_of(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        old = await group.master()
        away, left = (node for node in group.addresses if node != old.config.node_id)
        await produce(old, 0, 5)
        await group.settled()
        await group.stop(away)
        new = await group.join(4)
        await group.change(4, LEARNER)
        await until_counted(new)
        await group.change(4, VOTER)
        await group.change(left, REMOVED)
        await group.stop(left)
        await until_counted(new)
        await old.changes.transfer(new.config.node_id)
        assert (await group.master()) is new
        await produce(new, 5, 5)
        back = await group.start(away)
        assert new.config.node_id not in back.replica.peers.addresses
        await check(group, 10)
        assert back.replica.core.master_id == new.config.node_id
        assert voters(back) == voters(new)


async def test_a_master_that_is_removed_hands_over_first(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        old = await group.master()
        await produce(old, 0, 5)
        await group.change(old.config.node_id, REMOVED)
        new = await group.master()
        assert new is not old
        assert old.config.node_id not in voters(new)
        await produce(new, 5, 5)
        async with compat.timeout(20):
            while old.replica.role != "removed":
                await asyncio.sleep(0.02)
        await group.stop(old.config.node_id)
        await check(group, 10)
        # Nor does it count when it has lost its disk as well, and all that it knew.
        group.wipe(old.config.node_id)
        back = await group.start(old.config.node_id)
        async with compat.timeout(20):
            while back.replica.role != "removed":
                await asyncio.sleep(0.02)
        assert back.replica.non_counting


async def test_a_node_that_lost_its_disk_is_fed_by_the_same_master(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        lost = next(node for node in group.addresses if node != master.config.node_id)
        await produce(master, 0, 20)
        await group.settled()
        term = master.replica.term
        await group.stop(lost)
        group.wipe(lost)
        node = await group.start(lost)
        assert node.replica.non_counting
        await until_counted(node)
        assert not (tmp_path / str(lost) / MARK_NAME).exists()
        assert master.replica.term == term, "a new master would have fed it anyway"
        await check(group, 20)


async def test_a_node_that_caught_up_halfway_is_still_non_counting_after_a_restart(
    tmp_path: Path,
) -> None:
    """Its log is not empty any more; that proves nothing about what it once acknowledged."""
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        await produce(master, 0, 20)
        lost, other = (node for node in group.addresses if node != master.config.node_id)
        await group.settled()
        await group.stop(lost)
        group.wipe(lost)
        await group.stop(other)  # no quorum without the lost node: no confirmed read, no end
        node = await group.start(lost)
        async with compat.timeout(20):
            while not node.replica.log.last_index:
                await asyncio.sleep(0.01)
        assert node.replica.non_counting
        await group.stop(lost)
        assert (tmp_path / str(lost) / MARK_NAME).exists()
        node = await group.start(lost)
        assert node.replica.log.last_index, "it restarted with a log"
        assert node.replica.non_counting
        await group.start(other)
        await until_counted(node)
        await check(group, 20)


async def test_a_group_that_restarts_is_not_taken_for_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nodes that have just started know of nothing committed; their logs say that there is more."""
    async with BrokerGroup(tmp_path) as group:
        await produce(await group.master(), 0, 5)
        await group.settled()
        assert not any(node.checkpoints.index for node in group.running.values()), "it would tell"
    lost, slow, whole = group.addresses
    group.wipe(lost)
    await group.start(slow)
    node = await group.start(lost)
    async with compat.timeout(20):
        while "is lost but the group has a history" not in caplog.text:
            await asyncio.sleep(0.01)
    assert node.replica.non_counting
    assert group.running[slow].replica.core.commit_index == 0, "it knew, and proved nothing"
    await group.start(whole)
    await until_counted(node)
    await check(group, 5)
    for running in list(group.running):
        await group.stop(running)


async def test_changes_that_would_harm_the_group_are_refused(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        own = master.config.node_id
        first, second = (node for node in group.addresses if node != own)
        await group.stop(first)
        progress = master.replica.core.status
        async with compat.timeout(20):
            while progress().progress[first].recently_active:
                await asyncio.sleep(0.02)
        with pytest.raises(InvalidRequest, match="no quorum, because"):
            await group.change(second, REMOVED)
        group.addresses[4] = "127.0.0.1:1"  # type: ignore[index]
        with pytest.raises(InvalidRequest, match="does not answer at"):
            await group.change(4, LEARNER)
        group.addresses[4] = group.addresses[second]  # type: ignore[index]
        with pytest.raises(InvalidRequest, match="another member listens at"):
            await group.change(4, LEARNER)
        with pytest.raises(InvalidRequest, match="no learner of the group"):
            await group.change(4, VOTER)
        request = broker_pb2.ChangeMemberRequest(cluster_id="other", group_id=1)
        async with RawClient(master.address) as client:
            with pytest.raises(InvalidRequest, match="of cluster test-cluster; the call is for"):
                await client.call("ChangeMember", request)
        assert voters(master) == [1, 2, 3]
        assert await group.change(9 if 9 in group.addresses else 4, REMOVED), "gone already"


async def test_mastership_goes_where_it_is_sent_and_a_drained_node_gets_none(
    tmp_path: Path,
) -> None:
    async with BrokerGroup(tmp_path) as group:
        old = await group.master()
        own = old.config.node_id
        first, second = (node for node in group.addresses if node != own)
        await group.settled()
        drain = broker_pb2.DrainNodeRequest(cluster_id=CLUSTER, group_id=1, drain_ms=60_000)
        transfer = broker_pb2.TransferMastershipRequest(cluster_id=CLUSTER, group_id=1)
        async with RawClient(group.running[first].address) as client:
            assert not (await client.call("DrainNode", drain)).was_master
        async with RawClient(old.address) as client:
            transfer.node_id = first
            with pytest.raises(Unavailable, match=f"node {first} is drained"):
                await client.call("TransferMastership", transfer)
            reply = await client.call("DrainNode", drain)
            assert (reply.was_master, reply.master_id) == (True, second)
        async with RawClient(group.running[second].address) as client:
            transfer.node_id = 0
            with pytest.raises(Unavailable, match="stays master"):
                await client.call("TransferMastership", transfer)
            await group.running[second].replica.wait_master()
            async with RawClient(old.address) as drained:
                drain.drain_ms = 0
                await drained.call("DrainNode", drain)
            reply = await client.call("TransferMastership", transfer)
            assert reply.master_id == own
            transfer.node_id = own
            assert (await client.call("TransferMastership", transfer)).master_id == own


async def test_a_stop_that_is_cancelled_while_it_hands_over_closes_everything(
    tmp_path: Path,
) -> None:
    """Else the log would stay open, and server and tasks go on."""
    async with BrokerGroup(tmp_path, nodes=1) as group:
        node = await group.master()
        handing_over = asyncio.Event()

        async def transfer(
            wanted: NodeId | None, *, ignore_memory: bool = False
        ) -> tuple[NodeId, int]:
            handing_over.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody ends it")

        node.changes.transfer = transfer  # type: ignore[method-assign]
        stopping = asyncio.create_task(node.__aexit__(None, None, None))
        await handing_over.wait()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        del group.running[NodeId(1)]
        assert all(task.done() for task in node._tasks)
        await group.start(1)  # neither its directory nor its port is in use
        await group.master()
