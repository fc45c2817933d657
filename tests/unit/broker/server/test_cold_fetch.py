"""Fetches of what only the object store has: newer messages never wait for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.memory import BodyStore
from semel.broker.replica.fetch_waiters import QueueWatchers
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.queue_calls import QueueCalls
from semel.broker.server.queue_reader import QueueReader
from semel.broker.tiers.cold_reads import ColdReads
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptSegment, Unavailable, from_detail
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import LEVEL_MAX
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import decode_fetch_header
from semel.protos.v1 import broker_pb2
from tests.kit.state_log import KEY, header
from tests.kit.tiered_node import TieredNode

HOT = QueueKey(KEY.topic_id, QueueId(1))


class Served(TieredNode):
    """Queue `KEY` has 60 messages, of which the log has the last 20; queue `HOT` is not tiered."""

    config: Any

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config.fetch_bytes_max = 1 << 20
        self.config.fetch_wait_max_ms = 30_000
        self.config.fetch_buffer_bytes_max = 1 << 26
        self.config.fetch_shared_bytes_max = 0
        self.config.group_id = 1
        self.watchers = QueueWatchers()
        self.pools: Any = SimpleNamespace(clients=None)
        self.log = SimpleNamespace(
            cached_record=lambda index, position, length: self.group.payload(index, position),
            read_record=self._read_record,
        )
        self.readers: Any = None
        self.bodies = BodyStore(0)

    async def fill(self) -> None:
        await self.place.open()
        for count in (20, 20, 20):
            self.send(count)
            self.passes(1.05)
            await self.tier()
            self.forget()
        self.group.create(HOT)
        self.group.fence(keys=(HOT,))
        assert (self.queue.log_start_offset, self.queue.local_start) == (0, 40)

    def check_master(self) -> None:
        pass

    def on_delivered(self, *_: object) -> None:
        pass

    def hot(self) -> None:
        """A message for the queue that is not tiered, which wakes who waits."""
        last = self.state.queues[HOT].log_end_offset - 1
        self.group.produce(header(last, key=HOT))
        for growth in list(self.watchers._waiting.get(HOT, ())):
            growth.set_result(None)

    def cold(self, timeout_s: float = 10) -> ColdReads:
        return ColdReads(self.place, cache_bytes=1 << 20, timeout_s=timeout_s)


@pytest.fixture
async def node(tmp_path: Path) -> Served:
    node = Served(tmp_path / "tier")
    await node.fill()
    return node


def wanted(offset: int, key: QueueKey = KEY) -> broker_pb2.FetchQueue:
    return broker_pb2.FetchQueue(queue=queue_ref(key), offset=offset)


async def read(reader: QueueReader, offset: int, *, room: int = 1 << 20) -> Any:
    return await reader.read(wanted(offset), KEY, room, alone=True, level_max=LEVEL_MAX)


def values(found: Any) -> list[int]:
    numbers: list[int] = []
    for part, stored in zip(found.result.batches, found.batches, strict=True):
        data = bytes(stored)[BROKER_HEADER_BYTES:]
        columns = decode_columns(data, check_batch(data))
        rows = columns.values.to_pylist()[part.row_start : part.row_end]
        assert part.base_offset == int(rows[0].split()[0])
        numbers += [int(value.split()[0]) for value in rows]
    return numbers


async def test_a_reader_goes_from_the_tier_to_the_log(node: Served) -> None:
    cold = node.cold()
    reader, at, found = QueueReader(node, cold), 3, list[int]()
    while at < 60:
        part = await read(reader, at)
        found += values(part)
        assert part.next_offset > at
        at = part.next_offset
    assert found == list(range(3, 60))
    await cold.close()


async def test_who_begins_with_a_group_gets_the_next_one_sooner(node: Served) -> None:
    cold = node.cold()
    reader = QueueReader(node, cold)
    second = node.manifest.files[1].start
    await read(reader, 3)
    await asyncio.sleep(0.02)
    assert cold.find(KEY, second) is None, "a single message"
    await read(reader, 0)
    while cold.find(KEY, second) is None:
        await asyncio.sleep(0.001)
    await cold.close()


async def test_a_node_without_the_store_says_so_and_serves_the_rest(node: Served) -> None:
    reader = QueueReader(node)
    error = from_detail((await read(reader, 3)).result.error)
    assert isinstance(error, Unavailable)
    assert "offsets 0 to 40 of queue 0 of 'orders'" in error.message
    assert "started without --tier" in error.message
    assert values(await read(reader, 40)) == list(range(40, 60))
    assert reader.absent(wanted(3), KEY) is None
    assert reader.read_cached(wanted(3), KEY, 1 << 20) is None


async def test_a_read_that_the_log_gave_up_meanwhile_is_tried_again(node: Served) -> None:
    cold = node.cold()
    reader = QueueReader(node, cold)

    def forgotten(*_: object) -> bytes:
        node.passes(2)
        node.queue.local_start = 60
        raise CorruptSegment("cleaned")

    node.log.cached_record = lambda *_: None
    node.log.read_record = forgotten
    assert await read(reader, 45) is None
    assert values(await read(reader, 45)) == list(range(45, 60))
    await cold.close()


def poll_of(handler: FetchHandler, *queues: broker_pb2.FetchQueue, wait_ms: int = 500) -> Any:
    request = broker_pb2.FetchRequest(queues=queues, max_wait_ms=wait_ms, max_bytes=1 << 20)
    return handler._poll(request, None, LEVEL_MAX)


class Out:
    """The client's end of a stream."""

    prompt = None

    def __init__(self) -> None:
        self.reading = asyncio.Semaphore(2)
        self.turn = lambda poll: self.reading
        self.replies: list[bytes] = []
        self.written = asyncio.Event()

    async def write(self, reply: bytes) -> None:
        self.replies.append(reply)
        self.written.set()


def results(reply: bytes) -> list[tuple[int, int, bool]]:
    """Queue, number of batches, and whether there is an error."""
    header, _ = decode_fetch_header(reply)
    return [
        (each.queue.queue_id, len(each.batches), each.HasField("error")) for each in header.results
    ]


async def test_a_newer_message_does_not_wait_for_an_older_one(node: Served) -> None:
    cold = node.cold()
    handler, out = FetchHandler(node, cold), Out()  # type: ignore[arg-type]
    node.system.hangs = threading.Event()
    request = broker_pb2.FetchRequest(
        queues=[wanted(0), wanted(0, HOT)], max_wait_ms=5_000, max_bytes=1 << 20
    )
    serving = asyncio.create_task(handler._serve(request, out, None, LEVEL_MAX))  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    assert out.replies == []
    node.hot()
    await serving
    assert results(out.replies[0]) == [(1, 1, False)]
    request.queues[1].offset = 1
    serving = asyncio.create_task(handler._serve(request, out, None, LEVEL_MAX))  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    node.system.hangs.set()
    await serving
    assert results(out.replies[1])[0][0] == 0
    assert not results(out.replies[1])[0][2]
    await cold.close()


async def test_an_answer_leaves_in_time_without_what_is_slow(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.broker.server.fetch._COLD_WAIT_S", 0.01)
    cold = node.cold()
    handler, out = FetchHandler(node, cold), Out()  # type: ignore[arg-type]
    node.system.hangs = threading.Event()
    request = broker_pb2.FetchRequest(queues=[wanted(0)], max_wait_ms=10, max_bytes=1 << 20)
    await handler._serve(request, out, None, LEVEL_MAX)  # type: ignore[arg-type]
    assert results(out.replies[0]) == []
    node.system.hangs.set()
    request = broker_pb2.FetchRequest(queues=[wanted(0)], max_wait_ms=5_000, max_bytes=1 << 20)
    await handler._serve(request, out, None, LEVEL_MAX)  # type: ignore[arg-type]
    assert results(out.replies[1])[0][:1] == (0,)
    await cold.close()


async def test_a_store_that_is_down_is_an_error_of_the_queue_alone(node: Served) -> None:
    cold = node.cold(timeout_s=0.02)
    handler, out = FetchHandler(node, cold), Out()  # type: ignore[arg-type]
    node.system.hangs = threading.Event()
    node.hot()
    request = broker_pb2.FetchRequest(queues=[wanted(0)], max_wait_ms=5_000, max_bytes=1 << 20)
    await handler._serve(request, out, None, LEVEL_MAX)  # type: ignore[arg-type]
    assert results(out.replies[0]) == [(0, 0, True)]
    both = broker_pb2.FetchRequest(
        queues=[wanted(0), wanted(0, HOT)], max_wait_ms=5_000, max_bytes=1 << 20
    )
    await handler._serve(both, out, None, LEVEL_MAX)  # type: ignore[arg-type]
    assert results(out.replies[1]) == [(0, 0, True), (1, 1, False)]
    node.system.hangs.set()
    await cold.close()


@pytest.mark.parametrize("with_store", [True, False])
async def test_times_of_older_messages_are_looked_up(node: Served, with_store: bool) -> None:
    cold = node.cold()
    routes: Any = None
    calls = QueueCalls(node.config, node, routes, cold if with_store else None)  # type: ignore[arg-type]
    queue = node.queue
    first_us = queue.last_append_us - 2_100_000

    async def offsets(time_us: int, offset: int | None = None) -> Any:
        request = broker_pb2.ListOffsetsRequest(
            queues=[queue_ref(KEY), queue_ref(HOT)], time_us=time_us, offset=offset
        )
        found, hot = (await calls.ListOffsets(request, None)).queues
        assert not hot.HasField("error")
        return found

    newest = await offsets(queue.last_append_us + 1)
    assert newest.time_offset == 60
    assert (newest.local_start_offset, newest.tier_end_offset) == (40, queue.tier.end)
    if not with_store:
        assert "--tier" in from_detail((await offsets(first_us)).error).message
        return
    assert (await offsets(queue.last_append_us)).time_offset == 40
    assert (await offsets(1)).time_offset == 0
    assert (await offsets(first_us)).time_offset == 0
    assert (await offsets(first_us + 1)).time_offset == 20
    assert (await offsets(0, 5)).append_time_us == first_us
    assert (await offsets(0, 45)).append_time_us == queue.last_append_us
    await cold.close()
