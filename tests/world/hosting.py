"""Puts production modules into a simulated machine: their clocks, threads, randomness and gRPC.

How it works. For the time of a run every module below `semel` that has `time`, `random`,
`threading`, `queue`, `gc` or `secrets` among its names gets the run's own in place of them; gRPC's
entry points (`insecure_channel`, `secure_channel`, `server`) and the generator of random bytes are
exchanged for all. So there is no "if simulated" anywhere in the product, nothing on its hot paths,
and a new module is simulated without knowing of it. A name that was imported out of one of these
modules would escape; `_check` refuses to run then.

An executor that has one thread for the sake of order gets one (`executors.py`).

A clock is the one of the process that asks: its rate, its offset, its jumps.

Not here: what simulated threads and calls do (`threads.py`, `rpc.py`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc.aio

from semel.broker.log import files, kernel_sync
from semel.broker.replica import id_indexes, message_ids
from semel.broker.server import node_status
from tests.world.executors import OneThread
from tests.world.loop import PROCESS
from tests.world.rpc import SimChannel, SimServer

if TYPE_CHECKING:
    from tests.world.world import World

EPOCH_S = 1_700_000_000.0
_ROOM = SimpleNamespace(f_bavail=1 << 20, f_frsize=4096, f_blocks=1 << 21)
"""What a node reports of its disk: the real disk's figures would not repeat."""
_ESCAPES = (
    time.monotonic,
    time.monotonic_ns,
    time.time,
    time.time_ns,
    random.random,
    threading.Thread,
    threading.Condition,
    queue.SimpleQueue,
)


class _Clock:
    """`time`, as the process that asks sees it."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self, world: World) -> None:
        self._loop = world.loop

    def monotonic(self) -> float:
        process = PROCESS.get(None)
        if process is None:
            return self._loop.now
        return self._loop.now * process.clock_rate + process.clock_offset

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    def time(self) -> float:
        process = PROCESS.get(None)
        return EPOCH_S + self.monotonic() + (process.wall_offset if process is not None else 0.0)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def clock_gettime(self, _: int) -> float:
        return self.monotonic()

    perf_counter = monotonic

    def thread_time(self) -> float:
        """Nothing in the world takes time to compute."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a sleep of {seconds} s would stop the world")


class _Chance:
    """`random` and `secrets`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.token_bytes = rng.randbytes
        self.randbits = rng.getrandbits
        self.randbelow = rng.randrange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)

    def Random(self, seed: Any = None) -> Random:  # noqa: N802
        return Random(self._rng.getrandbits(64) if seed is None else seed)

    def token_hex(self, length: int = 16) -> str:
        return self._rng.randbytes(length).hex()


class _NoCollector:
    """`gc`: a collection would run finalizers at moments that do not repeat."""

    def collect(self) -> int:
        return 0

    def freeze(self) -> None:
        pass


class _Reply:
    """What `run_coroutine_threadsafe` gives to a simulated thread."""

    def __init__(self, world: World, task: asyncio.Task[Any]) -> None:
        self._world = world
        self._task = task

    def result(self, timeout: float | None = None) -> Any:
        thread = self._world.threads.current
        assert thread is not None, "the event loop waits for a coroutine"
        ticket = thread.ticket
        self._task.add_done_callback(lambda _: thread.wake(ticket))
        thread.park()
        return self._task.result()


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("semel.") and module is not None and "_pb2" not in name
    ]


_checked: set[str] = set()


def _check(modules: list[ModuleType]) -> None:
    for module in modules:
        if module.__name__ in _checked:
            continue
        _checked.add(module.__name__)
        if module.__name__.startswith(("semel.console", "semel.spark")):
            continue
        for name, value in vars(module).items():
            if any(value is escape for escape in _ESCAPES):
                raise AssertionError(
                    f"{module.__name__} binds {name} itself, so the simulator cannot give it its "
                    "own: use it through its module"
                )


@contextmanager
def hosted(world: World) -> Iterator[None]:
    """The product runs in `world` while the block runs."""
    modules = _modules()
    _check(modules)
    clock, chance = _Clock(world), _Chance(Random(world.random.getrandbits(64)))
    everywhere: dict[int, Any] = {
        id(time): clock,
        id(random): chance,
        id(secrets): chance,
        id(gc): _NoCollector(),
        id(Random): chance.Random,
    }
    in_broker: dict[int, Any] = {id(threading): world.threads, id(queue): world.threads}
    undo: list[Callable[[], None]] = []

    def put(target: Any, name: str, value: Any) -> None:
        old = getattr(target, name)
        setattr(target, name, value)
        undo.append(lambda: setattr(target, name, old))

    for module in modules:
        known = everywhere
        if module.__name__.startswith("semel.broker"):
            known = {**everywhere, **in_broker}
        for name, value in list(vars(module).items()):
            replacement = known.get(id(value))
            if replacement is not None:
                put(module, name, replacement)

    def run_coroutine_threadsafe(coroutine: Any, loop: Any) -> _Reply:
        return _Reply(world, loop.create_task(coroutine))

    def channel(address: str, **_: Any) -> SimChannel:
        return SimChannel(world.network, address)

    def secure_channel(address: str, credentials: Any, options: Any = (), **_: Any) -> SimChannel:
        name = dict(options)["grpc.ssl_target_name_override"]
        return SimChannel(world.network, address, credentials, name)

    def server(*, interceptors: Any = (), **_: Any) -> SimServer:
        return SimServer(world.network, list(interceptors))

    put(asyncio, "run_coroutine_threadsafe", run_coroutine_threadsafe)
    put(grpc.aio, "insecure_channel", channel)
    put(grpc.aio, "secure_channel", secure_channel)
    put(grpc.aio, "server", server)
    put(files, "os", world.system)
    put(kernel_sync, "select", world.system)
    for module in (id_indexes, message_ids):
        put(module, "ThreadPoolExecutor", partial(OneThread, world.threads))
    put(os, "urandom", chance.token_bytes)
    put(os, "statvfs", lambda _: _ROOM)
    put(node_status, "resident_bytes", lambda: 0)
    put(sys, "setswitchinterval", lambda _: None)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for action in reversed(undo):
            action()
        if collecting:
            gc.enable()
