"""The simulated machine: processes end, threads take turns, disks forget, pipes keep order."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.world import loop
from tests.world.disk import Disk
from tests.world.loop import Killed, Process
from tests.world.world import World

PATH = Path("/sim/x/file")


def started(
    world: World, main: Callable[[], Coroutine[Any, Any, None]], host: str = "h"
) -> Process:
    return world.start(host, 1, main)


def test_time_passes_only_while_nothing_is_ready() -> None:
    world = World(1)
    seen: list[float] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(10)
            seen.append(world.now)

    started(world, main)
    world.loop.run(100)
    world.end()
    assert seen == [10, 20, 30]


def test_a_world_whose_time_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STILL_MAX", 1_000)
    world = World(1)

    async def main() -> None:
        await asyncio.sleep(5)
        while True:
            await asyncio.sleep(0)

    started(world, main)
    world.loop.run(100)
    assert world.now == 5
    assert world.loop.errors[0].startswith("time stands still at 5.0: h#1 does ")
    world.end()


def test_many_events_of_different_moments_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "STILL_MAX", 1_000)
    world = World(1)

    async def main() -> None:
        for _ in range(50):
            for _ in range(900):
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)

    started(world, main)
    world.loop.run(100)
    assert not world.loop.errors
    world.end()


def test_a_signal_ends_a_run_once_the_baton_is_back() -> None:
    """Else the thread would run on beside the loop, and the end of the world would never come."""
    world = World(1)
    seen: list[str] = []

    def stop(*_: Any) -> None:
        raise SystemExit

    async def main() -> None:
        world.threads.spawn(work, "worker")
        await asyncio.sleep(1)

    def work() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(0.1)
        seen.append("the thread went on")

    old = signal.signal(signal.SIGUSR1, stop)
    try:
        started(world, main)
        with pytest.raises(SystemExit):
            world.loop.run(10)
        assert seen == ["the thread went on"]
        world.end()
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_a_dead_process_does_nothing_more() -> None:
    world = World(1)
    seen: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("alive")
            await asyncio.sleep(1)
            seen.append("dead and running")
        finally:
            if not world.loop.over:
                seen.append("its finally block")

    started(world, main)
    world.loop.run(1.5)
    world.crash("h", "test")
    world.loop.run(10)
    assert seen == ["alive"]
    world.end()


def test_a_stopped_process_goes_on_where_it_was() -> None:
    world = World(1)
    seen: list[float] = []

    async def main() -> None:
        while True:
            await asyncio.sleep(1)
            seen.append(world.now)

    process = started(world, main)
    world.loop.run(1.5)
    world.loop.stop_process(process, 5.0)
    world.loop.run(6.5)
    world.end()
    assert seen == [1, 5, 6]


def test_threads_take_turns_and_wake_each_other() -> None:
    world = World(1)
    order: list[object] = []

    async def main() -> None:
        threads = world.threads
        line = threads.SimpleQueue()
        condition = threads.Condition()

        def consumer() -> None:
            for _ in range(2):
                order.append(line.get())
            with condition:
                condition.notify_all()

        def waiter() -> None:
            with condition:
                assert condition.wait(10)
            order.append("notified")
            with condition:
                order.append(condition.wait(0.5))

        threads.Thread(target=waiter).start()
        threads.Thread(target=consumer).start()
        await asyncio.sleep(0.1)
        line.put("a")
        await asyncio.sleep(0.1)
        line.put("b")

    started(world, main)
    world.loop.run(5)
    world.end()
    assert order == ["a", "b", "notified", False]
    assert not world.loop.errors


def test_threads_of_a_dead_process_are_unwound() -> None:
    world = World(1)
    order: list[str] = []

    async def main() -> None:
        def work() -> None:
            try:
                world.threads.Event().wait()
            except Killed:
                order.append("unwound")
                raise

        world.threads.Thread(target=work).start()

    process = started(world, main)
    world.loop.run(1)
    assert len(process.threads) == 1
    world.crash("h", "test")
    world.loop.run(2)
    assert order == ["unwound"]
    assert not process.threads
    world.end()


def test_a_lock_that_would_block_the_loop_is_an_error() -> None:
    world = World(1)
    lock = world.threads.Lock()

    async def main() -> None:
        def work() -> None:
            lock.acquire()

        world.threads.Thread(target=work).start()
        await asyncio.sleep(1)
        lock.acquire()

    started(world, main)
    world.loop.run(5)
    world.end()
    assert "waits for one of its threads" in world.loop.errors[0]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_in_a_sync_keeps_what_the_machine_kept(power: bool) -> None:
    kept = set()
    for seed in range(20):
        world = World(seed)
        disk = Disk(world, "h")

        async def main(disk: Disk = disk, world: World = world) -> None:
            files = disk.mount(world.hosts["h"])
            files.make_directory(PATH.parent)
            file = files.open(PATH, create=True)
            files.sync_directory(PATH.parent)
            disk.crash_kind, disk.crash_in = "sync", 0
            file.write([b"x" * 4096], 0)
            file.sync()
            raise AssertionError("it should have died")

        started(world, main)
        world.loop.run(5)
        assert "h" not in world.hosts
        disk.after_power_cut() if power else disk.after_kill()
        kept.add(bytes(disk.files.image(PATH)).count(b"x"))
        assert not world.loop.errors
        world.end()
    assert (kept == {4096}) != power
    assert not power or {0, 4096} <= kept


def test_a_pipe_keeps_its_order_through_a_cut() -> None:
    world = World(1)
    network = world.network
    network.weather.latency_max_s = 0.5
    pipe = network.pipe("a", "b")
    got: list[int] = []
    network.set_cuts({("a", "b")})
    for number in range(10):
        pipe.send(partial(got.append, number))
    world.loop.run(3)
    assert got == []
    network.heal()
    pipe.send(lambda: got.append(10))
    world.loop.run(6)
    assert got == list(range(11))
    world.end()


def test_a_cut_link_lets_no_datagram_through() -> None:
    world = World(1)
    got: list[str] = []
    world.network.set_cuts({("a", "b")})
    world.network.datagram("a", "b", lambda: got.append("cut"))
    world.network.datagram("b", "a", lambda: got.append("open"))
    world.loop.run(1)
    world.end()
    assert got == ["open"]


class Recorder(asyncio.Protocol):
    """What one end of a connection lives through."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(type(error).__name__)


def test_a_connection_keeps_its_bytes_in_order_and_breaks_with_its_end() -> None:
    world = World(1)
    near, far = Recorder(), Recorder()
    sent = bytes(range(256)) * 200

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: far, "server", 7)
        assert server.sockets[0].getsockname() == ("server", 7)

    async def call() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(lambda: near, "server", 8)
        await loop.create_connection(lambda: near, "server", 7)
        world.network.set_cuts({("client", "server")})
        for at in range(0, len(sent), 1000):
            near.transport.write(sent[at : at + 1000])

    started(world, serve, "server")
    world.loop.run(1)
    started(world, call, "client")
    world.loop.run(2)
    assert near.events == ["pause"], "what cannot leave fills the buffer"
    assert far.data == b""
    world.network.heal()
    world.loop.run(3)
    assert far.data == sent
    assert far.pieces > len(sent) / 1000, "some arrive in pieces"
    assert near.events == ["pause", "resume"]
    far.transport.pause_reading()
    near.transport.write(b"unread")
    world.loop.run(3.5)
    assert far.data == sent
    far.transport.resume_reading()
    near.transport.write(b", then read")
    world.loop.run(4)
    assert far.data == sent + b"unread, then read"
    world.crash("server", "test")
    world.loop.run(5)
    assert near.events[2:] == ["ConnectionResetError"]
    assert not world.network.transports
    assert not world.loop.errors
    world.end()


def test_what_a_sleeper_finds_is_in_order_a_connection_only() -> None:
    orders = set()
    for seed in range(20):
        world = World(seed)
        got: list[bytes] = []

        class Far(Recorder):
            def data_received(self, data: bytes) -> None:
                got.append(data)  # noqa: B023

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(Far, "server", 7)

        async def call() -> None:
            loop = asyncio.get_running_loop()
            near = [(await loop.create_connection(Recorder, "server", 7))[0] for _ in range(2)]
            await asyncio.sleep(1)
            for letters in (b"aA", b"bB", b"cC"):
                for at, transport in enumerate(near):
                    transport.write(letters[at : at + 1])

        sleeper = started(world, serve, "server")
        started(world, call, "client")
        world.loop.run(0.5)
        world.loop.stop_process(sleeper, 5)
        world.loop.run(9)
        assert not world.loop.errors
        world.end()
        told = b"".join(got)
        assert bytes(sorted(told)) == b"ABCabc"
        for letters in (b"abc", b"ABC"):
            assert bytes(byte for byte in told if byte in letters) == letters
        orders.add(told)
    assert len(orders) > 3


def test_a_misdirected_write_succeeds_and_lies_elsewhere() -> None:
    kept, other = Path("/sim/x/kept-1"), Path("/sim/x/checkpoint-1")
    inside = 0
    for seed in range(20):
        world = World(seed)
        disk = Disk(world, "h")
        bitten: list[int] = []
        disk.on_misdirected = partial(bitten.append, seed)

        async def main(disk: Disk = disk, world: World = world) -> None:
            files = disk.mount(world.hosts["h"])
            files.make_directory(kept.parent)
            opened = {path: files.open(path, create=True) for path in (kept, other)}
            for file in opened.values():
                file.write([b"." * 4096], 0)
            disk.misdirect_in, disk.misdirect_file = 0, "kept"
            opened[other].write([b"o" * 8], 0)
            opened[kept].write([b"k" * 512], 1024)

        started(world, main)
        world.loop.run(5)
        assert not world.loop.errors
        found = {path: bytes(disk.files.image(path)) for path in (kept, other)}
        world.end()
        if not bitten:
            continue  # it had chosen its own place: nobody could tell
        assert found[kept][1024:1536] == b"." * 512
        assert b"".join(found.values()).count(b"k") == 512
        assert found[other][:8] in (b"o" * 8, b"k" * 8), "only what was asked for goes astray"
        assert world.seen["misdirected write of kept"] == 1
        inside += found[kept].count(b"k") == 512
    assert 0 < inside < 20, "some stay in their file, others leave it"
