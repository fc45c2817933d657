"""A fetch that stands: answered as its queue grows, each time from where the last answer ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from semel.broker.server.fetch import FetchHandler
from semel.protos import compat
from semel.protos.errors import InvalidRequest, LockLost, NotMaster, UnknownQueue, from_detail
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import FETCH_METHOD, MEMORY_HEAD_BYTES
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.batches import to_record_batch
from tests.kit.brokers import CLUSTER, QUEUE, BrokerGroup, RawClient, acquire, make_batch
from tests.kit.fetch_replies import decode_fetch_reply

pytestmark = pytest.mark.both_loops

LONG_MS = 10_000


class Standing:
    """One fetch stream."""

    def __init__(self, client: RawClient) -> None:
        self._stream: Any = client.channel.stream_stream(
            FETCH_METHOD, request_serializer=broker_pb2.FetchRequest.SerializeToString
        )()

    async def ask(self, number: int, offset: int, **fields: Any) -> None:
        wanted = broker_pb2.FetchQueue(
            queue=queue_ref(QUEUE),
            offset=offset,
            group=fields.pop("group", ""),
            token=fields.pop("token", 0),
        )
        fields.setdefault("max_wait_ms", LONG_MS)
        await self._stream.write(
            broker_pb2.FetchRequest(correlation_id=number, queues=[wanted], **fields)
        )

    async def answer(self) -> tuple[Any, list[tuple[int, bytes]]]:
        """Header, and the messages with their offsets."""
        async with compat.timeout(10):
            message = await self._stream.read()
        assert message is not grpc.aio.EOF
        header, parts = decode_fetch_reply(message)
        found: list[tuple[int, bytes]] = []
        places = [place for result in header.results for place in result.batches]
        for place, part in zip(places, parts, strict=True):
            rows = to_record_batch(bytes(part), place.row_start, place.row_end)
            offsets, values = rows.column("offset").to_pylist(), rows.column("value").to_pylist()
            found += zip(offsets, values, strict=True)
        return header, found


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with BrokerGroup(tmp_path, nodes=1) as started:
        yield started


@pytest_asyncio.fixture
async def client(group: BrokerGroup) -> AsyncIterator[RawClient]:
    """With a queue and an open producer."""
    async with RawClient((await group.master()).address) as client:
        await client.create_queue()
        await client.fence(1)
        yield client


async def store(client: RawClient, offset: int, *values: bytes) -> None:
    """The only producer of the queue, whose sequences are the offsets."""
    (ack,) = await client.produce(make_batch(offset - 1, list(values)))
    assert ack.base_offset == offset


async def test_each_answer_goes_on_where_the_one_before_ended(client: RawClient) -> None:
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=1 << 20)
    offset = 0
    for values in ([b"a"], [b"b", b"c"], [b"d"]):
        await store(client, offset, *values)
        header, found = await stream.answer()
        assert found == [*enumerate(values, offset)]
        assert (header.correlation_id, header.more) == (1, True)
        assert header.results[0].high_watermark == offset + len(values)
        offset += len(values)


async def test_it_begins_inside_a_batch(client: RawClient) -> None:
    await store(client, 0, b"a", b"b", b"c")
    stream = Standing(client)
    await stream.ask(1, 1, standing_bytes=1 << 20)
    assert (await stream.answer())[1] == [(1, b"b"), (2, b"c")]
    await store(client, 3, b"d")
    assert (await stream.answer())[1] == [(3, b"d")]


async def test_it_ends_with_its_bytes(client: RawClient) -> None:
    await store(client, 0, b"a")
    _, parts = await client.fetch()
    size = len(parts[0])
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=2 * size)
    more = []
    for offset in range(2):
        header, found = await stream.answer()
        assert found == [(offset, b"a")]
        more.append(header.more)
        await store(client, offset + 1, b"a")
    assert more == [True, False]
    await stream.ask(2, 2)  # nothing of the first request comes before this one's answer
    header, found = await stream.answer()
    assert (header.correlation_id, header.more, found) == (2, False, [(2, b"a")])


async def test_it_ends_with_its_time(client: RawClient) -> None:
    await store(client, 0, b"a")
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=1 << 20, max_wait_ms=300)
    header, found = await stream.answer()
    assert (header.more, found) == (True, [(0, b"a")])
    header, found = await stream.answer()
    assert (header.more, found, list(header.results)) == (False, [], [])


async def test_without_bytes_to_stand_for_it_is_answered_once(client: RawClient) -> None:
    await store(client, 0, b"a")
    stream = Standing(client)
    await stream.ask(1, 0)
    header, found = await stream.answer()
    assert (header.more, found) == (False, [(0, b"a")])


async def test_a_lock_that_is_lost_ends_it(client: RawClient) -> None:
    token = (await acquire(client, "one", lock_ms=10_000)).token
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=1 << 20, group="g", token=token)
    await store(client, 0, b"a")
    header, found = await stream.answer()
    assert (header.more, found) == (True, [(0, b"a")])
    lock = broker_pb2.LockRef(queue=queue_ref(QUEUE), token=token)
    await client.call(
        "ReleaseLocks", broker_pb2.ReleaseLocksRequest(group="g", member_id="one", locks=[lock])
    )
    await acquire(client, "two", lock_ms=10_000)
    await store(client, 1, b"b")
    header, found = await stream.answer()
    assert (header.more, found) == (False, [])
    assert isinstance(from_detail(header.results[0].error), LockLost)


async def test_what_is_given_counts_as_delivered(client: RawClient, group: BrokerGroup) -> None:
    """All of it, not what the first answer had: the lock's clock starts."""
    token = (await acquire(client, "one", lock_ms=10_000)).token
    node = await group.master()
    clock = node.replica.lock_clock
    assert clock is not None
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=1 << 20, group="g", token=token)
    for offset in range(3):
        await store(client, offset, b"a")
        await stream.answer()
        assert clock._held["g", QUEUE].delivered_end == offset + 1


async def test_a_queue_that_is_deleted_ends_it(client: RawClient) -> None:
    stream = Standing(client)
    await stream.ask(1, 0, standing_bytes=1 << 20, max_wait_ms=1_000)
    await store(client, 0, b"a")
    assert (await stream.answer())[0].more
    record = control_pb2.DeleteQueue(queue=queue_ref(QUEUE))
    request = broker_pb2.ApplyQueuesRequest(
        cluster_id=CLUSTER, records=[control_pb2.ControlRecord(delete_queue=record)]
    )
    await client.call("ApplyQueues", request)
    header, found = await stream.answer()
    assert (header.more, found) == (False, [])
    assert isinstance(from_detail(header.results[0].error), UnknownQueue)


async def test_a_master_that_is_none_any_more_ends_it(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        async with RawClient(master.address) as client:
            await client.create_queue()
            await client.fence(1)
            stream = Standing(client)
            await stream.ask(1, 0, standing_bytes=1 << 20)
            await store(client, 0, b"a")
            assert (await stream.answer())[0].more
            for number in [number for number in group.running if number != master.config.node_id]:
                await group.stop(number)
            header, _ = await stream.answer()
            assert not header.more
            assert isinstance(from_detail(header.error), NotMaster)


async def test_it_names_no_memory(client: RawClient) -> None:
    stream = Standing(client)
    await stream.ask(
        1, 0, standing_bytes=1, memory_at=MEMORY_HEAD_BYTES, memory_bytes=4096, max_wait_ms=0
    )
    header, _ = await stream.answer()
    error = from_detail(header.error)
    assert isinstance(error, InvalidRequest)
    assert "names no memory" in error.message
    await stream.ask(2, 0, max_wait_ms=0)  # and the stream goes on
    assert (await stream.answer())[0].correlation_id == 2


async def test_a_broker_that_does_not_move_on_is_caught(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: every answer begins where the request did."""
    once = FetchHandler._once

    async def planted(self: FetchHandler, poll: Any, header: Any, room: int, pace: Any) -> Any:
        offsets = [wanted.offset for wanted in poll.request.queues]
        parts = await once(self, poll, header, room, pace)
        for wanted, offset in zip(poll.request.queues, offsets, strict=True):
            wanted.offset = offset
        return parts

    monkeypatch.setattr(FetchHandler, "_once", planted)
    with pytest.raises(AssertionError, match=r"\(0, b'a'\)"):
        await test_each_answer_goes_on_where_the_one_before_ended(client)
