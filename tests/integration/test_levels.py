"""Groups whose nodes run programs of different feature levels: what they take, and who is let in.

An older program is played by `level_max`: it refuses, by number, what that level did not know. What
a program from before levels were told does cannot be played; what is said to it is tested here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from semel.broker.node import BrokerNode
from semel.protos import compat
from semel.protos.errors import (
    CorruptSegment,
    InvalidRequest,
    SemelError,
    Unavailable,
    UnsupportedVersion,
    from_detail,
)
from semel.protos.levels import DELAY_LEVEL, LEVEL_MAX, UNTOLD_MAX, levels_metadata
from semel.protos.rpc import error_from_rpc
from semel.protos.streams import encode_ping
from semel.protos.v1 import broker_pb2, raft_pb2, raft_pb2_grpc
from semel.protos.v1.common_pb2 import Levels
from tests.kit.brokers import CLUSTER, BrokerGroup, RawClient, make_batch

OLD = DELAY_LEVEL - 1
HOUR_US = 3_600_000_000


async def raised(group: BrokerGroup, level: int, *, dry_run: bool = False) -> int:
    """Asks the master for a level; the one that the log has then."""
    request = broker_pb2.RaiseLevelRequest(
        cluster_id=CLUSTER, group_id=1, level=level, dry_run=dry_run
    )
    async with RawClient((await group.master()).address) as client:
        reply: broker_pb2.RaiseLevelReply = await client.call("RaiseLevel", request)
        return reply.level


async def delayed(client: RawClient, previous: int) -> SemelError | None:
    """Sends a message that is due in an hour; why it was refused."""
    due_us = time.time_ns() // 1000 + HOUR_US
    (ack,) = await client.produce(make_batch(previous, [b"later"], deliver_at_us=due_us))
    return from_detail(ack.error) if ack.HasField("error") else None


async def upgrade(group: BrokerGroup, node: int) -> None:
    """Restarts a node with the newest program."""
    await group.stop(node)
    del group.levels[node]
    await group.start(node)


async def heard_by_master(group: BrokerGroup, level: int) -> None:
    """Waits until the master could raise the level, as far as its peers are concerned."""
    async with compat.timeout(20):
        while True:
            try:
                await raised(group, level, dry_run=True)
                return
            except SemelError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_new_group_begins_at_the_newest_level(tmp_path: Path, nodes: int) -> None:
    async with BrokerGroup(tmp_path, nodes) as group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
        await group.settled()
        for node in group.running.values():
            assert node.replica.state.feature_level == LEVEL_MAX


async def test_a_group_rises_only_when_it_is_told_and_every_member_can(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    group.levels = dict.fromkeys(group.founding, OLD)
    async with group, compat.timeout(60):
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            refusal = await delayed(client, -1)
        assert isinstance(refusal, UnsupportedVersion), refusal
        assert refusal.level == DELAY_LEVEL
        for node in list(group.founding):
            with pytest.raises((UnsupportedVersion, Unavailable), match="node"):
                await raised(group, DELAY_LEVEL)
            await upgrade(group, node)
        master = await group.master()
        assert master.replica.state.feature_level == OLD, "a rolling upgrade changes no level"
        async with RawClient(master.address) as client:
            assert isinstance(await delayed(client, -1), UnsupportedVersion)
            await heard_by_master(group, DELAY_LEVEL)
            assert await raised(group, DELAY_LEVEL, dry_run=True) == OLD
            with pytest.raises(UnsupportedVersion, match=f"level {LEVEL_MAX + 1}: upgrade"):
                await raised(group, LEVEL_MAX + 1)
            for _ in range(2):
                assert await raised(group, LEVEL_MAX) == LEVEL_MAX
            assert await raised(group, DELAY_LEVEL) == LEVEL_MAX, "there is no way back"
            assert await delayed(client, -1) is None


async def test_a_member_below_the_level_is_not_fed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its directory is refused by the older program, and an empty one is given nothing."""
    group = BrokerGroup(tmp_path)
    async with group, compat.timeout(60):
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
        index = await group.settled()
        master = await group.master()
        old = next(node for node in group.founding if node != master.config.node_id)
        await group.running[old].checkpoints.write()
        await group.stop(old)
        group.levels[old] = OLD
        with pytest.raises(CorruptSegment, match=f"feature level {LEVEL_MAX}; .* upgrade it"):
            await BrokerNode(group.config(old)).__aenter__()
        group.wipe(old)
        with caplog.at_level(logging.ERROR, "semel.broker.replication.sender"):
            await group.start(old)
            while not any("peer is not let in" in record.message for record in caplog.records):
                await asyncio.sleep(0.01)
        (record, *_) = (r for r in caplog.records if "peer is not let in" in r.message)
        assert f"upgrade node {old}" in record.getMessage()
        assert group.running[old].replica.log.last_index == 0
        await upgrade(group, old)
        await group.running[old].replica.wait_applied(index, 30)


async def test_streams_end_when_the_level_rises(tmp_path: Path) -> None:
    """So that a client that connects anew hears the level that counts."""
    group = BrokerGroup(tmp_path, 1)
    group.levels = dict.fromkeys(group.founding, OLD)
    async with group, compat.timeout(30):
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
        await upgrade(group, 1)
        async with RawClient((await group.master()).address) as client:
            stream = client.produce_stream()
            await stream.write(encode_ping(1))
            assert (await stream.read()).pong == 1
            await raised(group, LEVEL_MAX)
            reply = await stream.read()
            assert "feature level has risen" in reply.error.message
            assert isinstance(from_detail(reply.error), Unavailable)


async def test_who_speaks_no_common_level_is_refused_before_its_request_is_read(
    tmp_path: Path,
) -> None:
    newer = Levels(min=LEVEL_MAX + 1, max=LEVEL_MAX + 2, version="9.1")
    async with BrokerGroup(tmp_path, 1) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            for told, kind, text in (
                (levels_metadata(newer), UnsupportedVersion, "9.1 .* upgrade this node"),
                ((("semel-levels-bin", b"\xff"),), InvalidRequest, "no Levels"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.stub.GetNodeStatus(
                        broker_pb2.NodeStatusRequest(), metadata=told, timeout=10
                    )
                error = error_from_rpc(caught.value)
                assert type(error) is kind
                with pytest.raises(kind, match=text):
                    raise error


async def test_a_peer_that_does_not_tell_its_levels_is_let_in_below_them(tmp_path: Path) -> None:
    """What it knows is not known, but it has followed a log up to the highest level of its time."""
    for level in (UNTOLD_MAX, LEVEL_MAX):
        group = BrokerGroup(tmp_path / str(level))
        group.levels = dict.fromkeys(group.founding, level)
        async with group, compat.timeout(30):
            master = await group.master()
            async with RawClient(master.address) as client:
                await client.create_queue()
                stub = raft_pb2_grpc.RaftPeerStub(client.channel)
                peer = next(node for node in group.founding if node != master.config.node_id)
                request = raft_pb2.OpenStreamRequest(
                    cluster_id=CLUSTER,
                    group_id=1,
                    node_id=peer,
                    founding_id=master.identity.founding,
                    to_node_id=master.config.node_id,
                )
                if level == UNTOLD_MAX:
                    assert (await stub.OpenStream(request)).feature_level_max == level
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.OpenStream(request)
                error = error_from_rpc(caught.value)
                assert isinstance(error, UnsupportedVersion)
                assert f"upgrade node {peer}" in error.message
