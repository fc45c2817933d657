"""The system calls below the log's file layer, for simulated machines: files and Linux AIO.

How it works. `semel.broker.log.files` and `kernel_sync.py` run as they are; for the time of a run
they find this in place of `os`, `select` and the extension module of caio (`hosting.py`,
`disk.py`). A descriptor is a number for an open file of a simulated disk, which decides how long an
operation takes, whether it fails, and whether the process dies in it. On top of that comes what
only system calls do: a write or a read does a part of what was asked for, a full disk is an errno,
a sync that was submitted ends later, its result is a number without a sign, and the loop hears of
it late, or is woken for nothing.

Not here: what lies on a disk, and its faults (`disk.py`).
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from semel.protos.errors import DiskFull
from tests.world.loop import Killed

if TYPE_CHECKING:
    from tests.world.disk import NodeFiles, _NodeFile
    from tests.world.world import World

SHORT = 0.1
"""How often a write or a read does a part only."""
LATE_S = (0.0, 0.0, 0.0, 0.001, 0.02)
"""Seconds from the end of a sync in the kernel until the loop is woken for it."""
WOKEN_FOR_NOTHING = 0.05


@contextmanager
def _as_errno() -> Iterator[None]:
    """A full disk, as the kernel tells it."""
    try:
        yield
    except DiskFull as error:
        raise OSError(errno.ENOSPC, error.message) from error


class SimOs:
    """`os`, and `select`, of all simulated machines of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._files: dict[int, _NodeFile] = {}
        self._next = 1_000
        self.poll = lambda: _Poll(world)
        self.POLLIN = select.POLLIN

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def adopt(self, file: _NodeFile) -> int:
        """The descriptor of an open file."""
        self._next += 1
        self._files[self._next] = file
        return self._next

    def file(self, descriptor: int) -> _NodeFile:
        try:
            return self._files[descriptor]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _some(self, file: _NodeFile, length: int) -> int:
        """Number of bytes that the system call does, of `length` that it is asked to."""
        disk = file.disk
        if length < 2 or not disk.system_calls_vary or disk.random.random() >= SHORT:
            return length
        self._world.seen["short system call"] += 1
        return disk.random.randrange(1, length)

    def pwritev(self, descriptor: int, parts: Sequence[bytes], offset: int) -> int:
        return self.pwrite(descriptor, b"".join(parts), offset)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        file = self.file(descriptor)
        data = bytes(data[: self._some(file, len(data))])
        with _as_errno():
            file.write([data], offset)
        return len(data)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        file = self.file(descriptor)
        data = file.read(length, offset)
        return data[: self._some(file, len(data))]

    def fdatasync(self, descriptor: int) -> None:
        with _as_errno():
            self.file(descriptor).sync()

    def posix_fadvise(self, descriptor: int, offset: int, length: int, advice: int) -> None:
        self.file(descriptor).drop_cached(offset, length)

    def posix_fallocate(self, descriptor: int, offset: int, length: int) -> None:
        with _as_errno():
            self.file(descriptor).allocate(offset + length)

    def ftruncate(self, descriptor: int, length: int) -> None:
        with _as_errno():
            self.file(descriptor).resize(length)

    def fstat(self, descriptor: int) -> SimpleNamespace:
        return SimpleNamespace(st_size=self.file(descriptor).size())

    def close(self, descriptor: int) -> None:
        self._files.pop(descriptor).close()


class _Poll:
    """`select.poll`, of a thread that looks again soon in any case."""

    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, descriptor: object, events: int) -> None:
        self._world.count("kernel waited for at the end")

    def poll(self, timeout_ms: int) -> None:
        thread = self._world.threads.current
        assert thread is not None, "the event loop of a node waits for its disk"
        thread.sleep(timeout_ms / 1_000)


class _Operation:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.tell: Callable[[int], None] = lambda _: None
        self.set_callback = lambda tell: setattr(self, "tell", tell)


class SimAio:
    """`caio.linux_aio`, for one process."""

    def __init__(self, layer: NodeFiles, system: SimOs) -> None:
        self.layer = layer
        self.system = system
        self.Operation = SimpleNamespace(fdsync=_Operation)

    def Context(self, requests: int) -> _Context:  # noqa: N802
        return _Context(self)


class _Context:
    """One of the kernel's queues; its own `fileno`."""

    def __init__(self, aio: SimAio) -> None:
        self._aio = aio
        self._disk = aio.layer.disk
        self._loop = self._disk.world.loop
        self._under_way = 0
        self._done: deque[tuple[_Operation, int]] = deque()
        self._signals = 0
        self.fileno = self

    def submit(self, operation: _Operation) -> int:
        layer = self._aio.layer
        if not layer.process.alive:
            raise Killed
        self._under_way += 1
        assert self._under_way == 1, "one sync at a time"
        self._loop.call_at(self._loop.now + self._disk.latency("sync"), self._end, operation)
        return 1

    def _end(self, operation: _Operation) -> None:
        """The kernel is done."""
        self._under_way -= 1
        result = 0
        try:
            with _as_errno():
                self._aio.system.file(operation.descriptor).sync_by_kernel()
        except OSError as error:
            result = (1 << 64) - (error.errno or errno.EIO)
        self._done.append((operation, result))
        self._signals += 1
        world, chance = self._disk.world, self._disk.random
        world.seen["sync by the kernel"] += 1
        if not self._disk.system_calls_vary:
            self._wake()
            return
        late = chance.choice(LATE_S)
        world.seen["loop woken late for a sync"] += late > 0
        self._loop.call_at(self._loop.now + late, self._wake)
        if chance.random() < WOKEN_FOR_NOTHING:
            self._loop.call_at(self._loop.now + chance.choice(LATE_S), self._wake)

    def _wake(self) -> None:
        watching = self._loop.readers.get(self)
        if watching is not None:
            watching()

    def poll(self) -> int:
        if not self._signals:
            raise BlockingIOError(errno.EAGAIN, "nothing is done")
        signals, self._signals = self._signals, 0
        return signals

    def process_events(self, requests: int) -> int:
        for _ in range(min(requests, len(self._done))):
            operation, result = self._done.popleft()
            operation.tell(result)
        return 0
