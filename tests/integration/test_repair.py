"""Damaged files of nodes: repaired by the others, cut if nobody acknowledged them, or refused."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from semel.broker.log import Log, LogConfig, OsFiles, RecordRef
from semel.protos.errors import CorruptSegment, StorageError, from_detail
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch
from tests.kit.waiting import until_async

SIZE = 5_000


class Rebooted(OsFiles):
    """The same disk, after the machine was started anew."""

    def boot(self) -> int:
        return super().boot() ^ 1


def value(number: int) -> bytes:
    return str(number).encode().rjust(SIZE, b".")


async def store(group: BrokerGroup, start: int, count: int) -> None:
    async with RawClient((await group.master()).address) as client:
        if start == 0:
            await client.create_queue()
            await client.fence(1)
        for number in range(start, start + count):
            (ack,) = await client.produce(make_batch(number - 1, [value(number)]))
            assert ack.status == broker_pb2.PRODUCE_STATUS_COMMITTED


async def killed_after(
    directory: Path, count: int, *, nodes: int = 3, checkpoints: bool = False
) -> BrokerGroup:
    """A group whose processes were all killed at once, with so many messages, an entry each."""
    group = BrokerGroup(
        directory / "group",
        nodes=nodes,
        log=LogConfig(segment_bytes=1 << 20, ids_per_segment=1024, fill_bytes_per_second=0),
    )
    async with group:
        await store(group, 0, count)
        index = await group.settled()
        # A slave may have applied what it has not written yet; the files are copied as they are.
        logs = [started.replica.log for started in group.running.values()]
        await until_async(lambda: all(log.synced_index >= index for log in logs))
        if checkpoints:
            for started in group.running.values():
                await started.checkpoints.write()
        shutil.copytree(group.directory, directory / "killed")
    shutil.rmtree(group.directory)
    (directory / "killed").rename(group.directory)
    return group


def flip(group: BrokerGroup, node: int, number: int) -> None:
    """Damages the stored copy of one message."""
    (segment,) = (
        path
        for path in (group.directory / str(node) / "log").glob("log-*/segment*")
        if value(number) in path.read_bytes()
    )
    data = bytearray(segment.read_bytes())
    data[data.index(value(number)) + SIZE // 2] ^= 0x10
    segment.write_bytes(data)


async def check(group: BrokerGroup, count: int) -> None:
    """Every node serves exactly these messages, and their tables equal their logs."""
    index = await group.settled()
    for node in group.running.values():
        async with RawClient(node.address) as client:
            assert await client.values(any_replica=True) == [value(n) for n in range(count)]
            (queue,) = (await client.verify(index)).values()
            assert queue.table_matches
            assert not queue.problems
        assert not node.replica.log.damaged


async def test_a_torn_tail_of_one_node_is_fetched_from_the_others(tmp_path: Path) -> None:
    group = await killed_after(tmp_path, 5)
    flip(group, 2, 4)
    group.files[2] = Rebooted()
    async with group:
        await check(group, 5)
        await store(group, 5, 2)
        await check(group, 7)


async def test_what_one_node_holds_whole_is_not_cut_by_the_others(tmp_path: Path) -> None:
    """Torn on two of three: the two wait for the third, which has the only copy."""
    group = await killed_after(tmp_path, 5)
    for node in (1, 2):
        flip(group, node, 4)
        group.files[node] = Rebooted()
    try:
        for node in (1, 2):
            started = await group.start(node)
            assert [one.torn for one in started.replica.log.damaged.values()] == [True]
        await asyncio.sleep(1.5)  # time in which nothing may happen
        for started in group.running.values():
            assert started.replica.log.damaged
            assert not started.replica.is_master
        await group.start(3)
        await check(group, 5)
        await store(group, 5, 1)
        await check(group, 6)
    finally:
        for node in list(group.running):
            await group.stop(node)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_what_is_torn_on_every_node_is_cut(tmp_path: Path, nodes: int) -> None:
    """The last entry, after a failure of power everywhere."""
    group = await killed_after(tmp_path, 5, nodes=nodes)
    for node in group.addresses:
        flip(group, node, 4)
        group.files[node] = Rebooted()
    async with group:
        await check(group, 4)
        await store(group, 4, 2)  # the same sequence again, as its producer would
        await check(group, 6)


async def test_a_group_of_one_refuses_to_cut_what_it_may_have_acknowledged(tmp_path: Path) -> None:
    """The process was killed and the power did not fail: no write was torn."""
    group = await killed_after(tmp_path, 5, nodes=1)
    flip(group, 1, 4)
    with pytest.raises(CorruptSegment, match=r"entry 9 .*segment-.* may have been acknowledged"):
        await group.start(1)


async def test_when_every_copy_is_damaged_it_is_refused_by_name_and_the_rest_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = await killed_after(tmp_path, 6, checkpoints=True)
    for node in group.addresses:
        flip(group, node, 2)
    caplog.set_level(logging.ERROR)
    async with group:
        await group.settled()
        for started in group.running.values():
            async with RawClient(started.address) as client:
                header, _ = await client.fetch(offset=2, max_bytes=1, any_replica=True)
                error = from_detail(header.results[0].error)
                assert isinstance(error, StorageError)
        await until_async(lambda: all(one.replica.lost_entries for one in group.running.values()))
        assert "EVERY COPY IS DAMAGED" in caplog.text
        assert "segment-" in caplog.text
        await store(group, 6, 2)
        old = await group.master()
        await group.stop(old.config.node_id)  # another one can be elected all the same
        await store(group, 8, 1)
        async with RawClient((await group.master()).address) as client:
            for offset in (0, 1, 3, 8):
                header, parts = await client.fetch(offset=offset, max_bytes=1)
                assert len(parts) == 1
                assert header.results[0].batches[0].base_offset == offset


async def test_an_entry_that_the_peers_have_cleaned_away_is_not_missed(tmp_path: Path) -> None:
    """They keep its live record by itself; the node must get that, and be electable again."""
    group = await killed_after(tmp_path, 6, checkpoints=True)
    flip(group, 2, 2)
    try:
        for node in (1, 3):
            await group.start(node)
        await group.settled()
        for started in group.running.values():
            log, state = started.replica.log, started.replica.state
            live = [RecordRef(*one) for one in state.queues[QUEUE].live_records(0, 1 << 60)]
            log.keep_records(_read(log, live))
            log._store.index.first_index = log.last_index + 1  # as if its segments had gone
        hurt = await group.start(2)
        async with RawClient(hurt.address) as client:
            await until_async(lambda: hurt.replica.lost_entries)
            assert await client.values(any_replica=True) == [value(n) for n in range(6)]
        await until_async(lambda: hurt.replica.electable)
    finally:
        for node in list(group.running):
            await group.stop(node)


def _read(log: Log, refs: list[RecordRef]) -> list[tuple[RecordRef, bytes]]:
    return [(ref, bytes(log.read_record(ref.index, ref.position, ref.length))) for ref in refs]


async def test_a_slave_that_needs_a_lost_entry_gets_a_snapshot(tmp_path: Path) -> None:
    """Its own directory is empty, and nobody can give it the log from the start."""
    group = await killed_after(tmp_path, 6, checkpoints=True)
    for node in group.addresses:
        flip(group, node, 2)
    async with group:
        await group.settled()
        for started in group.running.values():
            async with RawClient(started.address) as client:
                await client.fetch(offset=2, max_bytes=1, any_replica=True)
        await until_async(lambda: all(one.replica.lost_entries for one in group.running.values()))
        master = (await group.master()).config.node_id
        lost = next(node for node in group.addresses if node != master)
        await group.stop(lost)
        group.wipe(lost)
        await group.start(lost)
        await store(group, 6, 1)
        await group.settled()
        async with RawClient(group.running[lost].address) as client:
            header, _ = await client.fetch(offset=2, max_bytes=1, any_replica=True)
            assert isinstance(from_detail(header.results[0].error), StorageError)
            _, parts = await client.fetch(offset=6, max_bytes=1, any_replica=True)
            assert len(parts) == 1
