"""A producer's stream to one broker group."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from semel.client.lanes import Lane, Link
from semel.protos.ids import GroupId


class EndlessLane:
    """One that always has a batch to send."""

    key = (1, 0)

    def next_batch(self, may_encode: bool) -> Any:
        return SimpleNamespace(payload=bytes(1 << 20))

    def close(self) -> None:
        pass


def test_a_link_sends_nothing_once_it_is_closed() -> None:
    """A producer that fails because of a hole must not store what comes behind the hole, though the
    link's writer may be due to run once more."""
    owner = SimpleNamespace(config=SimpleNamespace(max_in_flight_bytes=8 << 20))
    link = Link(cast(Any, owner), cast(Any, None), GroupId(1))
    lane = cast(Lane, EndlessLane())
    link.on_ready(lane)
    assert link._gather()
    link.close()
    link.on_ready(lane)
    assert link._gather() == []


class OneBatchLane:
    """One with a single batch in flight."""

    key = (1, 0)

    def __init__(self) -> None:
        self.queued = True

    def next_batch(self, may_encode: bool) -> Any:
        queued, self.queued = self.queued, False
        return SimpleNamespace(payload=b"batch") if queued else None

    def on_stream_lost(self) -> None:
        self.queued = True

    def close(self) -> None:
        pass


class Stream:
    """A call to a broker that says nothing."""

    def __init__(self) -> None:
        self.written = asyncio.Event()

    async def write(self, message: bytes) -> None:
        if b"batch" in message:
            self.written.set()

    async def read(self) -> Any:
        await asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        pass


class OneMaster:
    """A cluster with one broker group, whose master is known."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(ping_ms=60_000, silence_ms=600_000)
        self.streams: list[Stream] = []
        self.opened = asyncio.Event()
        self.routes = SimpleNamespace(master=lambda _: self._master)
        self.connections = SimpleNamespace(channel=lambda *_: self)
        self._master = SimpleNamespace(address="b:1")

    async def master(self, _: GroupId) -> Any:
        return self._master

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        def call() -> Stream:
            self.streams.append(Stream())
            self.opened.set()
            return self.streams[-1]

        return call

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(coroutine, name=name)


async def test_what_went_out_on_a_stream_that_is_ended_goes_out_on_the_next() -> None:
    """Though nothing new is sent: a fence ends the stream just after it woke the writer."""
    cluster = OneMaster()
    owner = SimpleNamespace(
        config=SimpleNamespace(max_in_flight_bytes=8 << 20), on_room=lambda: None
    )
    link = Link(cast(Any, owner), cast(Any, cluster), GroupId(1))
    lane = cast(Lane, OneBatchLane())
    link.add(lane)
    link.on_ready(lane)
    async with asyncio.timeout(10):
        await cluster.opened.wait()
        await cluster.streams[0].written.wait()
        cluster.opened.clear()
        link.restart()
        await cluster.opened.wait()
        await cluster.streams[1].written.wait()
    link.close()
