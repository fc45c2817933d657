"""A broker group over real gRPC and disk: exactly once, whatever stops and starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.broker.background.retention import Retention
from semel.broker.log import LogConfig
from semel.broker.log.files import OsFile
from semel.protos import compat
from semel.protos.errors import DiskFull, ProducerFenced, StorageError, from_detail
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import encode_produce
from semel.protos.v1 import broker_pb2, common_pb2
from tests.kit.brokers import QUEUE, QUICK_CLEANING, BrokerGroup, RawClient, make_batch

COMMITTED = broker_pb2.PRODUCE_STATUS_COMMITTED
DUPLICATE = broker_pb2.PRODUCE_STATUS_DUPLICATE


def values(start: int, count: int, size: int = 10) -> list[bytes]:
    return [str(number).encode().rjust(size, b".") for number in range(start, start + count)]


async def test_a_retry_after_a_change_of_master_finds_its_original(tmp_path: Path) -> None:
    first, second = values(0, 3), values(3, 4)
    async with BrokerGroup(tmp_path) as group:
        old = await group.master()
        async with RawClient(old.address) as client:
            await client.create_queue()
            assert (await client.fence(1)).last_sequence == -1
            acks = await client.produce(make_batch(-1, first), make_batch(2, second))
            assert [(ack.status, ack.base_offset) for ack in acks] == [
                (COMMITTED, 0),
                (COMMITTED, 3),
            ]
        await group.stop(old.config.node_id)
        new = await group.master()
        assert new is not old
        async with RawClient(new.address) as client:
            acks = await client.produce(make_batch(2, second), make_batch(-1, first))
            assert sorted((ack.status, ack.base_offset) for ack in acks) == [
                (DUPLICATE, 0),
                (DUPLICATE, 3),
            ]
            assert await client.values() == first + second


async def test_all_nodes_restart_with_everything(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, checkpoint_records=3)
    async with group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            for number in range(20):
                await client.produce(make_batch(number - 1, values(number, 1)))
        await group.settled()
        for node in group.running.values():
            await node.checkpoints.write()
        async with RawClient((await group.master()).address) as client:
            await client.produce(make_batch(19, values(20, 5)))
    async with group:
        master = await group.master()
        assert master.checkpoints.index > 0
        async with RawClient(master.address) as client:
            assert await client.values() == values(0, 25)
            (ack,) = await client.produce(make_batch(19, values(20, 5)))
            assert (ack.status, ack.base_offset) == (DUPLICATE, 20)
            row = await client.fence(2)
            assert (row.last_sequence, row.epoch) == (24, 2)
            (ack,) = await client.produce(make_batch(24, values(25, 1), epoch=1))
            error = from_detail(ack.error)
            assert isinstance(error, ProducerFenced)
            assert error.current_epoch == 2


async def test_every_node_recomputes_the_same_from_its_own_log(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            for number in range(0, 50, 5):
                await client.produce(make_batch(number - 1, values(number, 5)))
        queue = await group.recomputed()
        assert queue.messages == 50
        assert queue.duplicates == queue.missing == 0
        assert queue.table_matches
        assert not queue.problems


async def test_verify_catches_a_table_that_differs_from_the_log(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, nodes=1) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            await client.produce(make_batch(-1, values(0, 5)))
            row = node.replica.state.producers.find(QUEUE, 5)
            assert row is not None
            row.last_sequence -= 1  # the planted bug
            assert not (await client.verify())[QUEUE].table_matches


@pytest.mark.parametrize("nodes", [1, 3, 5])
async def test_groups_of_every_size_serve(tmp_path: Path, nodes: int) -> None:
    async with BrokerGroup(tmp_path, nodes=nodes) as group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            await client.produce(make_batch(-1, values(0, 2)))
        await group.settled()
        for node in group.running.values():
            async with RawClient(node.address) as client:
                assert await client.values(any_replica=True) == values(0, 2)


async def test_an_empty_node_catches_up_by_snapshot_and_does_not_vote_before(
    tmp_path: Path,
) -> None:
    """Its group has trimmed and cleaned the entries it would need."""
    group = BrokerGroup(tmp_path, **QUICK_CLEANING)
    settings = common_pb2.TopicSettings(retention_bytes=100_000)
    async with group:
        master = await group.master()
        lost = next(node for node in group.addresses if node != master.config.node_id)
        await group.stop(lost)
        async with RawClient(master.address) as client:
            await client.create_queue(settings=settings)
            await client.fence(1)
            for number in range(120):
                await client.produce(make_batch(number - 1, values(number, 1, size=8_000)))
            while master.replica.log.first_index == 1:
                await asyncio.sleep(0.05)
            assert master.replica.state.queues[QUEUE].log_start_offset > 0
        group.wipe(lost)
        node = await group.start(lost)
        assert node.replica.non_counting
        await group.settled()
        while node.replica.non_counting:
            await asyncio.sleep(0.01)
        assert node.replica.log.first_index > 1
        async with RawClient(node.address) as client:
            start = node.replica.state.queues[QUEUE].log_start_offset
            header, parts = await client.fetch(offset=start, any_replica=True)
            assert header.results[0].batches[0].base_offset == start
            assert parts
        # and it can lead the group
        for other in list(group.running):
            if other not in (lost, master.config.node_id):
                await group.stop(other)
        async with RawClient((await group.master()).address) as client:
            (ack,) = await client.produce(make_batch(118, values(119, 1, size=8_000)))
            assert ack.status == DUPLICATE
            (ack,) = await client.produce(make_batch(119, values(120, 1)))
            assert ack.status == COMMITTED


async def test_retention_by_bytes_gives_the_disk_back(tmp_path: Path) -> None:
    settings = common_pb2.TopicSettings(retention_bytes=200_000)
    async with BrokerGroup(
        tmp_path,
        nodes=1,
        log=LogConfig(segment_bytes=64 << 10),
        retained_log_bytes=64 << 10,
        retention_check_ms=50,
    ) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue(settings=settings)
            await client.fence(1)
            for number in range(250):
                await client.produce(make_batch(number - 1, values(number, 1, size=8_000)))
            queue = node.replica.state.queues[QUEUE]
            while queue.bytes > 200_000 or node.replica.log.stats().segment_bytes > 800_000:
                await asyncio.sleep(0.05)
            offsets = (
                await client.call(
                    "ListOffsets", broker_pb2.ListOffsetsRequest(queues=[queue_ref(QUEUE)])
                )
            ).queues[0]
            assert offsets.high_watermark == 250
            assert 200 < offsets.log_start_offset < 250
            header, _ = await client.fetch(offset=0)
            assert header.results[0].error.log_start_offset == offsets.log_start_offset
            assert (await client.verify())[QUEUE].missing == 0


async def test_a_group_that_falls_silent_gives_the_disk_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cleaned with two checkpoints only: the second one waits for no traffic."""
    clean = Retention._clean

    async def later(self: Retention) -> None:
        """Not yet."""

    monkeypatch.setattr(Retention, "_clean", later)
    async with BrokerGroup(tmp_path, nodes=1, **QUICK_CLEANING) as group:
        node = await group.master()
        log = node.replica.log
        async with RawClient(node.address) as client:
            await client.create_queue(settings=common_pb2.TopicSettings(retention_bytes=200_000))
            await client.fence(1)
            for number in range(60):
                await client.produce(make_batch(number - 1, values(number, 1, size=8_000)))
            await node.checkpoints.write()
            await client.produce(make_batch(59, values(60, 1)))
        assert log.compact_limit == 0
        monkeypatch.setattr(Retention, "_clean", clean)
        async with compat.timeout(10):
            while log.first_index == 1:
                await asyncio.sleep(0.02)


async def test_two_masters_never_serve_one_term(tmp_path: Path) -> None:
    """Restarting one node after the other moves mastership and never doubles it."""
    async with BrokerGroup(tmp_path) as group:
        terms: dict[int, int] = {}
        for _ in range(4):
            master = await group.master()
            term = master.replica.term
            assert terms.setdefault(term, master.config.node_id) == master.config.node_id
            await group.stop(master.config.node_id)
            await group.start(master.config.node_id)


async def test_a_damaged_entry_is_repaired_from_a_peer(tmp_path: Path) -> None:
    """Entries that the node has not applied are repaired when it starts, older ones when read."""
    group = BrokerGroup(tmp_path)
    async with group:
        master = await group.master()
        hurt = next(node for node in group.addresses if node != master.config.node_id)
        async with RawClient(master.address) as client:
            await client.create_queue()
            await client.fence(1)
            for number in range(10):
                await client.produce(make_batch(number - 1, values(number, 1, size=5_000)))
        await group.settled()
        await group.stop(hurt)
        (segment,) = (tmp_path / str(hurt) / "log").glob("log-*/segment*")
        data = bytearray(segment.read_bytes())
        for number in (2, 6):
            at = data.index(str(number).encode().rjust(100, b"."))
            data[at] ^= 0xFF
        segment.write_bytes(data)
        node = await group.start(hurt)
        await group.settled()
        async with RawClient(node.address) as client:
            assert await client.values(any_replica=True) == values(0, 10, size=5_000)
        assert not node.replica.log.damaged


async def test_a_damaged_entry_of_a_group_of_one_is_named_and_the_rest_served(
    tmp_path: Path,
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            for number in range(5):
                await client.produce(make_batch(number - 1, values(number, 1, size=5_000)))
        await node.checkpoints.write()
    (segment,) = (tmp_path / "1" / "log").glob("log-*/segment*")
    data = bytearray(segment.read_bytes())
    data[data.index(b"2".rjust(100, b"."))] ^= 0xFF
    segment.write_bytes(data)
    async with group, RawClient((await group.master()).address) as client:
        header, _ = await client.fetch(offset=2, max_bytes=1)
        error = from_detail(header.results[0].error)
        assert isinstance(error, StorageError)
        for offset in (0, 3):
            _, parts = await client.fetch(offset=offset, max_bytes=1)
            assert len(parts) == 1
        found = (await client.verify())[QUEUE]
        assert found.messages == 4
        assert found.missing == 2, "the offset, and the link in its producer's chain"


async def test_a_replica_whose_memory_contradicts_the_log_halts(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, nodes=1) as group:
        node = await group.master()
        halted = asyncio.Event()
        reasons: list[str] = []

        def on_fatal(reason: str) -> None:  # would end this process
            reasons.append(reason)
            halted.set()

        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            node.replica.on_fatal = on_fatal
            append = node.replica.log.append

            def append_and_corrupt(frames: list[bytes], *, wait_for_room: bool) -> None:
                append(frames, wait_for_room=wait_for_room)  # judged, not yet applied
                node.replica.state.queues[QUEUE].log_end_offset += 1

            node.replica.log.append = append_and_corrupt  # type: ignore[method-assign,assignment]
            stream = client.produce_stream()
            await stream.write(encode_produce([make_batch(-1, values(0, 1))]))
            async with compat.timeout(10):
                await halted.wait()
            stream.cancel()
        assert "StateDiverged" in reasons[0]


async def test_a_full_disk_refuses_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for another segment: a clear error for producers, everything else goes on."""
    full = False
    allocate = OsFile.allocate

    def allocate_unless_full(self: OsFile, length: int) -> None:
        if full:
            raise DiskFull("no space left on this device, by the test")
        allocate(self, length)

    monkeypatch.setattr(OsFile, "allocate", allocate_unless_full)
    async with BrokerGroup(
        tmp_path, nodes=1, log=LogConfig(segment_bytes=64 << 10, recycle_max=1)
    ) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            full = True
            stored = 0
            refused = None
            while refused is None:  # until the segments that were prepared are full
                batch = make_batch(stored - 1, values(stored, 1, size=8_000))
                try:
                    async with compat.timeout(2):
                        (ack,) = await client.produce(batch)
                except TimeoutError:
                    continue  # it was taken just before: it waits for room and is not acknowledged
                if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                    refused = from_detail(ack.error)
                else:
                    stored += 1
            assert isinstance(refused, DiskFull)
            assert len(await client.values()) == stored
            full = False
            while True:
                (ack,) = await client.produce(batch)
                if ack.status in (COMMITTED, DUPLICATE):
                    break
                await asyncio.sleep(0.05)
            assert await client.values() == values(0, stored + 1, size=8_000)
            assert (await client.verify())[QUEUE].table_matches
