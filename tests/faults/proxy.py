"""TCP proxies on every directed link of a cluster: what flows there can be held, slowed, broken.

How it works. Each party (a node, a controller, all clients together) has a number. Whoever wants to
reach party B from party A connects to 127.1.A.B on B's own port, where a proxy listens for exactly
this link and connects on to 127.0.0.1. So a port that B only tells in a handshake works too, as
long as it is exposed. All proxies of a network run on one event loop in a thread; rules are read at
every piece of data, so a change acts on connections that exist.

A *flow* is what travels from A to B, whoever opened the connection: the requests of A's connections
to B and the answers on B's connections to A. Rules stand on flows, which makes one-way partitions
what they are in a network: A's requests and A's answers are lost, B's arrive.

Invariants
1. Held bytes are kept in order and delivered when the flow is free again (TCP sends them again),
   unless the connection is broken by then.
2. Every rule counts what it did: `held`, `delayed`, `throttled`, `corrupted`, `broken`. A rule that
   counted nothing did not bite.

Not here: which links a cluster needs (`proxied.py`), faults of processes and disks (`matrix.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from semel.protos import compat

HOST: Final = "127.0.0.1"
PIECE_BYTES: Final = 64 << 10
WAITING_PIECES_MAX: Final = 64
"""Limit of the pieces of one connection that wait here; then no more are read (a full window)."""

T = TypeVar("T")


def link_host(source: int, target: int) -> str:
    """Where `source` reaches `target`."""
    return f"127.1.{source}.{target}"


@dataclass(slots=True)
class Flow:
    """Rules for what travels one way between two parties, and what they did."""

    free: asyncio.Event
    """Not set: everything is held."""
    cuts: int = 0
    """Number of those who cut it and have not freed it; 0 is the same as `free`."""
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: as fast as it comes."""
    corrupt_every: int = 0
    """One flipped bit in so many bytes; 0: none."""
    passed: int = 0
    held: int = 0
    """Pieces that had to wait because the flow was cut."""
    delayed: int = 0
    throttled: int = 0
    corrupted: int = 0
    broken: int = 0
    """Connections reset."""
    until_corrupt: int = 0


@dataclass(slots=True)
class _Link:
    """One directed link: its servers by port, its connections."""

    source: int
    target: int
    servers: dict[int, asyncio.Server] = field(default_factory=dict)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Network:
    """The proxies among some parties. `with Network(...) as network`; methods are thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._flows: dict[tuple[int, int], Flow] = {}
        self._links: dict[tuple[int, int], _Link] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def expose(self, source: int, target: int, ports: Iterable[int]) -> None:
        """`source` reaches these ports of `target` through this network from now on."""
        self._do(self._expose(source, target, set(ports)))

    def flow(self, source: int, target: int) -> Flow:
        """Counts and rules of one direction; to look at, not to change."""
        found = self._flows.get((source, target))
        if found is None:
            found = self._do(self._new_flow(source, target))
        return found

    def flows(self) -> list[Flow]:
        """All of them; to look at, not to change."""
        return list(self._flows.values())

    def cut(self, flows: Iterable[tuple[int, int]]) -> None:
        """Holds what travels on these flows until everybody who cut them has freed them."""
        found = [self.flow(*each) for each in flows]

        def change() -> None:
            for flow in found:
                flow.cuts += 1
                flow.free.clear()

        self._call(change)

    def free(self, flows: Iterable[tuple[int, int]]) -> None:
        """Ends a `cut` of the same flows."""
        found = [self.flow(*each) for each in flows]

        def change() -> None:
            for flow in found:
                flow.cuts = max(0, flow.cuts - 1)
                if not flow.cuts:
                    flow.free.set()

        self._call(change)

    def shape(
        self,
        flows: Iterable[tuple[int, int]],
        *,
        delay_s: float | None = None,
        bytes_per_s: float | None = None,
        corrupt_every: int | None = None,
    ) -> None:
        """Delays, throttles or damages what travels on these flows; 0 ends it, None leaves it."""
        found = [self.flow(*each) for each in flows]

        def change() -> None:
            for flow in found:
                flow.delay_s = flow.delay_s if delay_s is None else delay_s
                flow.bytes_per_s = flow.bytes_per_s if bytes_per_s is None else bytes_per_s
                if corrupt_every is not None:
                    flow.corrupt_every = flow.until_corrupt = corrupt_every

        self._call(change)

    def heal(self) -> None:
        """Every flow is free and unharmed again; counts stay."""

        def change() -> None:
            for flow in self._flows.values():
                flow.cuts = 0
                flow.free.set()
                flow.delay_s = flow.bytes_per_s = 0.0
                flow.corrupt_every = 0

        self._call(change)

    def drop(self, source: int, target: int) -> int:
        """Resets the connections that `source` has to `target`; returns how many there were."""

        async def reset() -> int:
            link = self._links.get((source, target))
            found = list(link.writers) if link is not None else []
            for writer in found:
                writer.transport.abort()
            (await self._new_flow(source, target)).broken += len(found)
            return len(found)

        return self._do(reset())

    # Inside the loop.

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        self._do(run())

    async def _new_flow(self, source: int, target: int) -> Flow:
        flow = self._flows.get((source, target))
        if flow is None:
            flow = self._flows[source, target] = Flow(asyncio.Event())
            flow.free.set()
        return flow

    async def _expose(self, source: int, target: int, ports: set[int]) -> None:
        link = self._links.setdefault((source, target), _Link(source, target))
        await self._new_flow(source, target)
        await self._new_flow(target, source)
        for gone in link.servers.keys() - ports:
            link.servers.pop(gone).close()
        for port in ports - link.servers.keys():

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
            ) -> None:
                await self._carry(link, port, reader, writer)

            link.servers[port] = await asyncio.start_server(
                accept, link_host(source, target), port, limit=PIECE_BYTES, backlog=4096
            )

    async def _carry(
        self, link: _Link, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        link.tasks.add(task)
        link.writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(HOST, port, limit=PIECE_BYTES)
            link.writers.add(there)
            forth = self._flows[link.source, link.target]
            home = self._flows[link.target, link.source]
            async with compat.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, there, forth))
                pumps.create_task(self._pump(back, writer, home))
        except* OSError:
            pass  # one side has gone; so does the other
        finally:
            for one in (writer, there):
                if one is not None:
                    link.writers.discard(one)
                    one.transport.abort()
            link.tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow
    ) -> None:
        """What comes in leaves under the flow's rules. Ends by ConnectionResetError."""
        waiting: deque[tuple[float, bytes]] = deque()
        changed = asyncio.Event()
        room = asyncio.Event()
        room.set()
        loop = asyncio.get_running_loop()
        async with compat.TaskGroup() as tasks:
            sender = tasks.create_task(self._send(waiting, changed, room, writer, flow))
            while data := await reader.read(PIECE_BYTES):
                waiting.append((loop.time() + flow.delay_s, data))
                flow.delayed += flow.delay_s > 0
                changed.set()
                if len(waiting) >= WAITING_PIECES_MAX:
                    room.clear()
                    await room.wait()
            while waiting:  # an end arrives behind the data before it
                await asyncio.sleep(0.005)
            await flow.free.wait()
            sender.cancel()
        raise ConnectionResetError("the other side has ended the connection")

    async def _send(
        self,
        waiting: deque[tuple[float, bytes]],
        changed: asyncio.Event,
        room: asyncio.Event,
        writer: asyncio.StreamWriter,
        flow: Flow,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not waiting:
                changed.clear()
                await changed.wait()
            due, data = waiting[0]
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            if not flow.free.is_set():
                flow.held += 1
                await flow.free.wait()
            if flow.bytes_per_s:
                flow.throttled += 1
                await asyncio.sleep(len(data) / flow.bytes_per_s)
            if flow.corrupt_every:
                data = self._damage(data, flow)
            flow.passed += len(data)
            writer.write(data)
            await writer.drain()
            waiting.popleft()
            room.set()

    def _damage(self, data: bytes, flow: Flow) -> bytes:
        flow.until_corrupt -= len(data)
        if flow.until_corrupt > 0:
            return data
        flow.until_corrupt = self._random.randrange(1, 2 * flow.corrupt_every)
        flow.corrupted += 1
        damaged = bytearray(data)
        damaged[self._random.randrange(len(damaged))] ^= 1 << self._random.randrange(8)
        return bytes(damaged)

    async def _close(self) -> None:
        for link in self._links.values():
            for server in link.servers.values():
                server.close()
            for task in list(link.tasks):
                task.cancel()
        tasks = [task for link in self._links.values() for task in link.tasks]
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(5):
                await asyncio.gather(*tasks, return_exceptions=True)
