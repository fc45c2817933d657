"""Clients and nodes that are slower than the rest: bounded memory, and the rest goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from semel.broker.log import File, LogConfig, OsFiles
from semel.broker.server.fetch import FetchHandler
from semel.client import connect
from semel.protos import compat
from semel.protos.errors import Throttled
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import FETCH_METHOD, encode_produce
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch
from tests.kit.cluster import Cluster
from tests.kit.fetch_replies import decode_fetch_reply
from tests.kit.waiting import until_async

MIB = 1 << 20


class _SlowFile:
    """A file whose syncs take long."""

    def __init__(self, below: File, delay_s: float) -> None:
        self._below = below
        self._delay_s = delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def sync(self) -> None:
        time.sleep(self._delay_s)  # in the log's writer thread: this disk is slow
        self._below.sync()


class SlowFiles(OsFiles):
    """A disk on which a sync of a segment takes long."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> Any:
        file = super().open(path, create=create, private=private)
        slow = path.name.startswith(("segment-", "spare-"))
        return _SlowFile(file, self._delay_s) if slow else file

    def syncs(self, loop: object, file: File) -> None:
        """The kernel would not be slow."""


async def _stalled(client: RawClient, requests: int) -> Any:
    """A consumer that asks for everything and takes nothing."""
    wanted = broker_pb2.FetchQueue(queue=queue_ref(QUEUE), offset=0)
    stream: Any = client.channel.stream_stream(
        FETCH_METHOD, request_serializer=broker_pb2.FetchRequest.SerializeToString
    )()
    for number in range(requests):
        await stream.write(broker_pb2.FetchRequest(correlation_id=number, queues=[wanted]))
    return stream


async def test_consumers_that_take_nothing_hold_little_and_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[FetchHandler] = []
    begin = FetchHandler.__init__

    def remember(self: FetchHandler, *arguments: Any) -> None:
        begin(self, *arguments)
        handlers.append(self)

    monkeypatch.setattr(FetchHandler, "__init__", remember)
    streams, bound = 30, 32 * MIB
    async with BrokerGroup(tmp_path, nodes=1, fetch_buffer_bytes_max=bound) as group:
        node = await group.master()
        (handler,) = handlers
        async with RawClient(node.address) as client:
            await client.create_queue()
            await client.fence(1)
            for number in range(24):
                await client.produce(make_batch(number - 1, [bytes([number]) * (MIB // 2)]))
            held = [await _stalled(client, 16) for _ in range(streams)]
            await until_async(lambda: handler.unsent_bytes > 8 * MIB, what="streams that stall")
            peak = 0
            async with RawClient(node.address) as reader:
                for _ in range(20):
                    began = time.monotonic()
                    _, parts = await reader.fetch(offset=0)
                    assert parts
                    assert time.monotonic() - began < 5
                    peak = max(peak, handler.unsent_bytes)
            assert peak > 8 * MIB, "they were stalled no longer"
            # Beyond the bound each stalled stream may hold a batch or two, the least there is.
            assert peak <= bound + 2 * streams * MIB
            assert peak < streams * 12 * MIB / 4, "as much as they asked for"
            for stream in held:
                stream.cancel()
            async with compat.timeout(10):
                while handler.unsent_bytes:
                    await asyncio.sleep(0.02)
            assert len(await client.values()) == 24


async def test_a_new_message_does_not_wait_until_others_on_its_stream_have_caught_up(
    tmp_path: Path,
) -> None:
    """All readers of a client share the stream: here 40 with a backlog, and one without."""
    backlogs, fresh, number = 40, QueueKey(QUEUE.topic_id, QueueId(QUEUE.queue_id + 1)), 100
    async with BrokerGroup(tmp_path, nodes=1) as group:
        node = await group.master()
        async with RawClient(node.address) as client:
            for key in (QUEUE, fresh):
                await client.create_queue(key)
                await client.fence(1, key=key)
            for at in range(8):
                await client.produce(make_batch(at - 1, [bytes([at]) * (MIB // 2)]))
            stream = await _stalled(client, 0)
            wanted = broker_pb2.FetchQueue(queue=queue_ref(fresh), offset=0)
            request = broker_pb2.FetchRequest(
                correlation_id=number, queues=[wanted], max_wait_ms=20_000
            )
            await stream.write(request)
            for at in range(backlogs):
                wanted = broker_pb2.FetchQueue(queue=queue_ref(QUEUE), offset=0)
                request = broker_pb2.FetchRequest(correlation_id=at, queues=[wanted])
                await stream.write(request)
            order = []
            for answer in range(backlogs + 1):
                header, _ = decode_fetch_reply(await stream.read())
                order.append(header.correlation_id)
                if answer == 4:  # all others wait for their turn
                    await client.produce(make_batch(-1, [b"new"], key=fresh))
            stream.cancel()
    assert sorted(order) == [*range(backlogs), number]
    assert order.index(number) < 20, order


async def test_producers_that_are_faster_than_the_disk_wait(tmp_path: Path) -> None:
    group = BrokerGroup(
        tmp_path,
        nodes=1,
        pending_bytes_max=2 * MIB,
        unapplied_bytes_max=2 * MIB,
        log=LogConfig(fill_bytes_per_second=0),
    )
    group.files[1] = SlowFiles(0.05)
    streams, batches, size = 4, 40, 200_000
    async with group:
        node = await group.master()
        peaks = [0, 0]

        async def watch() -> None:
            while True:
                proposer = node.replica.mastership.proposer
                assert proposer is not None
                peaks[0] = max(peaks[0], proposer.pending_bytes)
                peaks[1] = max(peaks[1], proposer.unapplied_bytes)
                await asyncio.sleep(0)

        async def flood(client: RawClient, producer: int) -> int:
            await client.fence(1, producer=producer)
            data = [
                make_batch(number - 1, [bytes(size)], producer=producer)
                for number in range(batches)
            ]
            stream = client.produce_stream()

            async def send() -> None:
                for one in data:
                    await stream.write(encode_produce([one]))

            sending = asyncio.create_task(send())
            acked = 0
            while acked < batches:
                reply = await stream.read()
                assert all(ack.status == broker_pb2.PRODUCE_STATUS_COMMITTED for ack in reply.acks)
                acked += len(reply.acks)
            await sending
            stream.cancel()
            return acked

        async with RawClient(node.address) as client:
            await client.create_queue()
            watching = asyncio.create_task(watch())
            done: Sequence[int] = await asyncio.gather(
                *(flood(client, producer) for producer in range(10, 10 + streams))
            )
            watching.cancel()
            assert sum(done) == streams * batches
            assert peaks[0] > MIB, "the disk was fast enough"
            assert peaks[0] <= 2 * MIB + streams * (size + 1_000)
            assert peaks[1] <= 2 * MIB + node.config.entry_bytes_target + size + 1_000


async def test_calls_beyond_what_may_wait_are_told_when_to_come_back(tmp_path: Path) -> None:
    group = BrokerGroup(
        tmp_path,
        nodes=1,
        requests_waiting_max=10,
        log=LogConfig(fill_bytes_per_second=0),
    )
    group.files[1] = SlowFiles(0.1)
    async with group:
        node = await group.master()
        async with RawClient(node.address) as client:
            await client.create_queue()
            calls = [client.fence(1, producer=producer) for producer in range(10, 60)]
            done: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
            throttled = [one for one in done if isinstance(one, Throttled)]
            assert 0 < len(throttled) < 50
            assert all(one.retriable and one.retry_after_ms > 0 for one in throttled)
            assert all(isinstance(one, Throttled) or one.epoch == 1 for one in done)
            late = next(number for number, one in enumerate(done, 10) if isinstance(one, Throttled))
            assert (await client.fence(1, producer=late)).epoch == 1


def test_a_slave_that_stands_still_costs_its_master_no_memory(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("t", queues=1)
        with client.producer("loader") as producer:

            def load(megabytes: int) -> None:
                for _ in range(megabytes):
                    producer.send_many("t", [bytes(100_000)] * 10)
                producer.flush(60)

            load(60)  # caches are full
            master, slave = cluster.master(), cluster.slaves()[0]
            before = master.resident_bytes()
            cluster.pause(slave)
            load(90)
            grown = master.resident_bytes() - before
            assert cluster.status(master).commit_index > cluster.status(master).checkpoint_index
            cluster.resume(slave)
            assert cluster.master() == master
        assert grown < 48 * MIB, f"{grown >> 20} MiB for 90 MiB that a slave did not take"
        cluster.wait_caught_up()
        assert client.admin.verify("t").ok
