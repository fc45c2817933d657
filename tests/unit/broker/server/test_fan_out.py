"""Many readers that wait for one queue: each gets all of it, from replies that are built once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.replica.fetch_waiters import QueueWatchers
from semel.broker.replica.pools import Pools
from semel.broker.server import fan_out
from semel.broker.server.fan_out import SLICE, FanOut
from semel.broker.server.fetch import FetchHandler, _Outlet
from semel.protos import compat
from semel.protos.errors import NotMaster, UnknownQueue, from_detail
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MAX, READERS_LEVEL
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import FetchReplies
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.fetch_replies import decode_fetch_reply
from tests.kit.state_log import KEY, Group, control, header

OTHER = QueueKey(TopicId(7), QueueId(1))
LONG_MS = 60_000


class Node:
    """A master with two queues, the bytes of whose batches are in its cache."""

    def __init__(self) -> None:
        self.group = Group(queues=(KEY, OTHER))
        self.group.fence(keys=(KEY, OTHER))
        self.state = self.group.state
        self.watchers = QueueWatchers()
        self.pools = Pools.of_one(ThreadPoolExecutor(1))
        self.log: Any = SimpleNamespace(cached_record=self._cached, read_record=self._read)
        self.is_master = True
        self.is_cached = True
        self.read = 0
        """Records that were read from disk."""
        self.config = SimpleNamespace(
            fetch_shared_bytes_max=0,
            fetch_wait_max_ms=LONG_MS,
            fetch_buffer_bytes_max=1 << 30,
            fetch_bytes_max=1 << 20,
        )
        self.last = {KEY: -1, OTHER: -1}

    def _cached(self, index: int, position: int, length: int) -> memoryview | None:
        return memoryview(self.group.payload(index, position)) if self.is_cached else None

    def _read(self, index: int, position: int, length: int) -> bytes:
        self.read += 1
        return self.group.payload(index, position)

    def check_master(self) -> None:
        if not self.is_master:
            raise NotMaster("ask another node")

    def grow(self, count: int = 1, key: QueueKey = KEY) -> None:
        last = self.last[key]
        self.last[key] += count
        group = self.group
        group.produce(header(last, last=last + count, key=key), commit=False)
        self.watchers.wake(group.commit())


class Reader:
    """One stream with one standing poll; what it gets must go on where it was."""

    def __init__(self, number: int, *offsets: int, keys: tuple[QueueKey, ...] = (KEY,)) -> None:
        self.number = number
        self.offsets = dict(zip(keys, offsets or (0,) * len(keys), strict=True))
        self.full = False
        self.drained = asyncio.Event()
        self.replies = 0
        self.slow = 0
        """Replies that its own task has written."""
        self.more = True
        self.errors: list[Exception] = []
        self.out = _Outlet(self)  # type: ignore[arg-type]

    def request(self, **fields: Any) -> broker_pb2.FetchRequest:
        fields = {"standing_bytes": 1 << 20, "max_wait_ms": LONG_MS, **fields}
        request = broker_pb2.FetchRequest(correlation_id=self.number, **fields)
        for key, offset in self.offsets.items():
            request.queues.add(queue=queue_ref(key), offset=offset)
        return request

    def slowly(self) -> bool:
        """Whether a reply can be written now; a test may let time pass here."""
        return not self.full

    def write_now(self, message: bytes) -> bool:
        if not self.slowly():
            return False
        self._take(message)
        return True

    async def write(self, message: bytes) -> None:
        self.slow += 1
        self._take(message)
        if self.full:
            await self.drained.wait()

    def _take(self, message: bytes) -> None:
        self.replies += 1
        head, parts = decode_fetch_reply(message)
        assert head.correlation_id == self.number
        assert self.more, "a reply came behind the last one"
        self.more = head.more
        if head.HasField("error"):
            self.errors.append(from_detail(head.error))
        assert sum(len(result.batches) for result in head.results) == len(parts)
        for result in head.results:
            key = QueueKey(TopicId(result.queue.topic_id), QueueId(result.queue.queue_id))
            if result.HasField("error"):
                self.errors.append(from_detail(result.error))
            for batch in result.batches:
                assert batch.base_offset == self.offsets[key]
                self.offsets[key] += batch.row_end - batch.row_start
                assert result.high_watermark >= self.offsets[key]

    @property
    def offset(self) -> int:
        return self.offsets[KEY]


class Site:
    """A node, and readers whose polls are under way."""

    def __init__(self) -> None:
        self.node = Node()
        stand_in: Any = self.node
        self.handler = FetchHandler(stand_in)
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, *readers: Reader, **fields: Any) -> None:
        level = fields.pop("level_max", LEVEL_MAX)
        for reader in readers:
            served = self.handler._serve(reader.request(**fields), reader.out, None, level)
            self.tasks.append(asyncio.get_running_loop().create_task(served))

    async def until(self, done: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if done():
                return
            await asyncio.sleep(0)
        raise AssertionError("it does not happen")

    @property
    def waiting(self) -> int:
        """Polls that wait for the queue in a crowd."""
        crowds = self.handler._fan_out._crowds
        return len(crowds[KEY].members) if KEY in crowds else 0


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    for task in made.tasks:
        task.cancel()
    found = await asyncio.gather(*made.tasks, return_exceptions=True)
    made.node.pools.clients.shutdown()
    assert [each for each in found if isinstance(each, Exception)] == []
    assert made.handler._fan_out._crowds == {}
    assert made.node.watchers._waiting == {}
    assert made.handler.unsent_bytes == 0


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[FetchReplies]:
    """The replies that crowds build."""
    made: list[FetchReplies] = []

    class Counted(FetchReplies):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(fan_out, "FetchReplies", Counted)
    return made


async def test_all_that_wait_get_what_is_built_once(built: list[FetchReplies]) -> None:
    async with site() as made:
        readers = [Reader(number) for number in range(3 * SLICE + 1)]
        made.begin(*readers)
        await made.until(lambda: made.waiting == len(readers))
        for count in (1, 3, 1):
            made.node.grow(count)
            end = made.node.last[KEY] + 1
            await made.until(partial(lambda end: {each.offset for each in readers} == {end}, end))
        assert len(built) == 3
        assert {(reader.replies, reader.slow, reader.more) for reader in readers} == {(3, 0, True)}
        counters = made.handler.counters
        assert counters.messages == 5 * len(readers)
        assert counters.seconds.count == 3
        assert counters.bytes == sum(
            len(made.node.group.payload(extent.index, extent.position)) * len(readers)
            for extent in made.node.state.queues[KEY].extents_from(0, 1 << 20)
        )


async def test_each_gets_what_follows_where_it_is() -> None:
    async with site() as made:
        made.node.grow(3)
        full = Reader(1, 3)
        others = [Reader(number, 3) for number in range(2, 5)]
        made.begin(full, *others)
        await made.until(lambda: made.waiting == 4)
        full.full = True
        for _ in range(3):
            made.node.grow()
            await made.until(lambda: others[0].offset == made.node.last[KEY] + 1)
        full.full = False
        full.drained.set()
        made.node.grow()
        await made.until(lambda: {reader.offset for reader in (full, *others)} == {7})


async def test_replies_of_another_place_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: all get what was built first."""
    reply = fan_out._Crowd._reply
    first: list[Any] = []

    def planted(self: Any, *arguments: Any) -> Any:
        first.append(reply(self, *arguments))
        return first[0]

    monkeypatch.setattr(fan_out._Crowd, "_reply", planted)
    made = Site()
    reader = Reader(1)
    made.begin(reader)
    await made.until(lambda: made.waiting == 1)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    for _ in range(2):
        made.node.grow()
        for _ in range(10):
            await asyncio.sleep(0)
    assert isinstance(failures[0]["exception"], AssertionError)
    made.tasks[0].cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    made.node.pools.clients.shutdown()


async def test_the_loop_works_between_slices_and_late_ones_get_more_at_a_time(
    monkeypatch: pytest.MonkeyPatch, built: list[FetchReplies]
) -> None:
    monkeypatch.setattr(fan_out, "SLICE", 2)
    async with site() as made:
        readers = [Reader(number) for number in range(6)]
        made.begin(*readers)
        await made.until(lambda: made.waiting == 6)
        made.node.grow()
        await made.until(lambda: readers[1].offset == 1)
        assert [reader.offset for reader in readers] == [1, 1, 0, 0, 0, 0]
        made.node.grow()
        await made.until(lambda: {reader.offset for reader in readers} == {2})
        assert [reader.replies for reader in readers] == [2, 2, 1, 1, 1, 1]
        assert len(built) == 3


@pytest.mark.parametrize("write_us", [100, 10_000_000])
async def test_a_crowd_rests_after_a_round_that_took_its_time(
    write_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 0
    monkeypatch.setattr(fan_out, "monotonic_us", lambda: now_us)

    def take_time(reader: Reader) -> bool:
        nonlocal now_us
        now_us += write_us
        return not reader.full

    async with site() as made:
        readers = [Reader(number) for number in range(5)]
        for reader in readers:
            monkeypatch.setattr(reader, "slowly", partial(take_time, reader))
        made.begin(*readers)
        await made.until(lambda: made.waiting == 5)
        made.node.grow()
        await made.until(lambda: {reader.offset for reader in readers} == {1})
        made.node.grow()
        crowd = made.handler._fan_out._crowds[KEY]
        if write_us == 100:
            await made.until(lambda: {reader.offset for reader in readers} == {2})
            return
        await made.until(lambda: crowd._serving is not None)
        timer = crowd._serving
        assert isinstance(timer, asyncio.TimerHandle)
        left_s = timer.when() - asyncio.get_running_loop().time()
        assert left_s == pytest.approx(5 * write_us / 1e6, abs=5)
        assert {reader.offset for reader in readers} == {1}
        timer.cancel()
        crowd._begin()
        await made.until(lambda: {reader.offset for reader in readers} == {2})


async def test_a_client_that_does_not_read_is_left_to_its_own_task() -> None:
    async with site() as made:
        reader, other = Reader(1), Reader(2)
        made.begin(reader, other)
        await made.until(lambda: made.waiting == 2)
        reader.full = True
        made.node.grow()
        await made.until(lambda: reader.slow == 1)
        assert made.waiting == 1
        made.node.grow()
        await made.until(lambda: other.offset == 2)
        assert (reader.offset, other.slow) == (1, 0)
        reader.full = False
        reader.drained.set()
        await made.until(lambda: reader.offset == 2 and made.waiting == 2)


async def test_a_poll_ends_with_its_bytes() -> None:
    async with site() as made:
        readers = [Reader(number) for number in range(2)]
        made.begin(*readers, standing_bytes=1)
        await made.until(lambda: made.waiting == 2)
        made.node.grow()
        await made.until(lambda: all(task.done() for task in made.tasks))
        assert [(reader.offset, reader.more, reader.slow) for reader in readers] == [
            (1, False, 0)
        ] * 2


async def test_a_poll_ends_with_its_time() -> None:
    async with site() as made:
        reader = Reader(1)
        made.begin(reader, max_wait_ms=1)
        async with compat.timeout(10):
            await made.tasks[0]
        assert (reader.offset, reader.more, reader.replies, reader.errors) == (0, False, 1, [])


async def test_a_node_that_is_not_the_master_any_more_answers_only_who_takes_any() -> None:
    async with site() as made:
        refused, served = Reader(1), Reader(2)
        made.begin(refused)
        made.begin(served, any_replica=True)
        await made.until(lambda: made.waiting == 2)
        made.node.is_master = False
        made.node.grow()
        await made.until(lambda: made.tasks[0].done() and served.offset == 1)
        assert [type(error) for error in refused.errors] == [NotMaster]
        assert served.more
        made.node.watchers.wake_all()
        await made.until(lambda: made.waiting == 1)


async def test_a_queue_that_is_deleted_is_told_to_all() -> None:
    async with site() as made:
        readers = [Reader(number) for number in range(3)]
        made.begin(*readers)
        await made.until(lambda: made.waiting == 3)
        record = control_pb2.DeleteQueue(queue=queue_ref(KEY))
        made.node.watchers.wake(made.node.group.apply(control(delete_queue=record)))
        await made.until(lambda: all(task.done() for task in made.tasks))
        assert [type(error) for reader in readers for error in reader.errors] == [UnknownQueue] * 3


async def test_what_is_not_in_the_cache_is_read_by_each_task() -> None:
    async with site() as made:
        readers = [Reader(number) for number in range(2)]
        made.begin(*readers)
        await made.until(lambda: made.waiting == 2)
        made.node.is_cached = False
        made.node.grow()
        while [reader.offset for reader in readers] != [1, 1]:
            await asyncio.sleep(0.001)
        assert made.node.read == 2


async def test_a_poll_of_two_queues_is_answered_by_whichever_grows() -> None:
    async with site() as made:
        readers = [Reader(number, keys=(KEY, OTHER)) for number in range(3)]
        made.begin(*readers)
        await made.until(lambda: made.waiting == 3)
        made.node.grow(2, OTHER)
        made.node.grow(1, KEY)
        made.node.grow(1, OTHER)
        await made.until(lambda: all(reader.offsets == {KEY: 1, OTHER: 3} for reader in readers))
        assert {(reader.slow, reader.more) for reader in readers} == {(0, True)}


async def test_a_stream_that_must_wait_to_write_is_in_no_crowd() -> None:
    class Waits:
        """The context of gRPC."""

        def __init__(self, reader: Reader) -> None:
            self.write = reader.write

    async with site() as made:
        reader = Reader(1)
        reader.out = _Outlet(Waits(reader))  # type: ignore[arg-type]
        made.begin(reader)
        await made.until(lambda: KEY in made.node.watchers._waiting)
        assert made.waiting == 0
        made.node.grow()
        await made.until(lambda: reader.offset == 1)
        assert (reader.slow, reader.more) == (1, True)


async def test_a_client_of_an_older_level_is_in_no_crowd() -> None:
    """It may not be able to read what the others get."""
    async with site() as made:
        reader, older = Reader(1), Reader(2)
        made.begin(reader)
        made.begin(older, level_max=READERS_LEVEL - 1)
        await made.until(lambda: made.waiting == 1 and len(made.node.watchers._waiting[KEY]) == 2)
        made.node.grow()
        await made.until(lambda: (reader.offset, older.offset) == (1, 1))
        assert (reader.slow, older.slow) == (0, 1)


async def test_kept_replies_are_few() -> None:
    async with site() as made:
        made.node.grow(10)
        crowd_of: FanOut = made.handler._fan_out
        reader = Reader(1, 10)
        made.begin(reader)
        await made.until(lambda: made.waiting == 1)
        crowd = crowd_of._crowds[KEY]
        for offset in range(10):
            wanted = broker_pb2.FetchQueue(queue=queue_ref(KEY), offset=offset)
            assert crowd._reply(wanted, 0) is not None
            assert len(crowd._replies) <= fan_out._REPLIES_MAX
        wanted = broker_pb2.FetchQueue(queue=queue_ref(KEY), offset=9)
        assert crowd._reply(wanted, 0) is crowd._reply(wanted, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_each_gets_all_of_it_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(fan_out, "SLICE", random.choice((1, 2, 5, 32)))
    async with site() as made:
        readers = [Reader(number, keys=(KEY, OTHER)) for number in range(8)]
        for reader in readers:
            made.begin(reader, standing_bytes=random.choice((1, 500, 1 << 20)))
        for _ in range(200):
            action, reader = random.random(), random.choice(readers)
            if action < 0.4:
                made.node.grow(random.choice((1, 1, 3)), random.choice((KEY, OTHER)))
            elif action < 0.5:
                reader.full = True
                reader.drained.clear()
            elif action < 0.65:
                reader.full = False
                reader.drained.set()
            elif action < 0.7:
                made.node.watchers.wake_all()
            elif action < 0.75:
                made.node.is_cached = not made.node.is_cached
            else:
                for _ in range(random.choice((1, 1, 2, 6))):
                    await asyncio.sleep(0)
            _ask_again(made, readers)
        for reader in readers:
            reader.full = False
            reader.drained.set()
        made.node.is_cached = True
        end = {KEY: made.node.last[KEY] + 1, OTHER: made.node.last[OTHER] + 1}
        for _ in range(10_000):
            if all(reader.offsets == end for reader in readers):
                break
            _ask_again(made, readers)
            await asyncio.sleep(0.001)
        assert {tuple(reader.offsets.values()) for reader in readers} == {tuple(end.values())}
        assert not [error for reader in readers for error in reader.errors]


def _ask_again(made: Site, readers: list[Reader]) -> None:
    """As a client does whose poll has ended."""
    for at, reader in enumerate(readers):
        if made.tasks[at].done():
            assert not reader.more
            made.tasks[at].result()
            reader.more = True
            served = made.handler._serve(reader.request(), reader.out, None, LEVEL_MAX)
            made.tasks[at] = asyncio.get_running_loop().create_task(served)
