"""One process of the floor: stores and syncs what comes, and as master forwards it to two slaves.

How it works. Raw byte messages arrive on a grpc.aio stream without a serializer. One writer thread
takes all pending messages, writes them with one `pwritev` into a preallocated file that it uses as
a ring, and calls `fdatasync` once (group commit). A master makes one *group* of all pending
messages and forwards it as one message, in parallel with its own write; a few groups are under way
at a time. A message is committed once the master has synced its group *and* one slave has
acknowledged its own sync: a majority of three. Answers to the client are cumulative counts of
messages.

Nothing else is here: no log format, no CRC, no terms, no retries. This is not a broker, but the
most that a broker on the same libraries could reach. With `--work-us` each of a message's five
stops (client, master, slave, master, client) also runs the interpreter for that time, as any logic
would.

    python -m benchmarks.floor_node --data DIR [--slave HOST:PORT --slave HOST:PORT] [--work-us N]

prints one JSON line with its address once it serves, and ends with its parent or on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

APPEND_METHOD = "/semel.floor/Append"
READ_METHOD = "/semel.floor/Read"
TAIL_METHOD = "/semel.floor/Tail"
STAMP_BYTES = 8
"""Length of the stamp at the start of a message: 0, or the sending time for a reader."""
FILE_BYTES = 64 << 20
PARTS_MAX = 1_000
"""Below the limit of 1,024 parts for one `pwritev`."""
GROUPS_MAX = 2
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.use_local_subchannel_pool", 1),
]
_PR_SET_PDEATHSIG = 1


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop if it is installed, with the settings that any node here needs."""
    # A thread that returns from fdatasync would wait 5 ms for the interpreter's lock.
    sys.setswitchinterval(0.0005)
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def work(microseconds: int) -> None:
    """Runs the interpreter for that many microseconds of this thread's own time."""
    if microseconds:
        end = time.thread_time_ns() + microseconds * 1_000
        while time.thread_time_ns() < end:
            pass


class GroupCommit:
    """A thread that writes and syncs, and tells the loop how many messages are on disk."""

    def __init__(self, path: Path, on_synced: Callable[[int], None]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._file, 0, FILE_BYTES)
        # Written once, so that every measured write meets allocated and cached pages.
        for position in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), position)
        os.fsync(self._file)
        self._loop = asyncio.get_running_loop()
        self._on_synced = on_synced
        self._pending: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="floor-writer", daemon=True).start()

    def append(self, data: bytes) -> None:
        """Write `data` after all that was appended before."""
        self._pending.put(data)

    def read(self, position: int, length: int) -> bytes:
        """Reads from the file, which is used as a ring."""
        return os.pread(self._file, length, position % (FILE_BYTES - length))

    def _run(self) -> None:
        position = synced = 0
        while True:
            parts = [self._pending.get()]
            while len(parts) < PARTS_MAX:
                try:
                    parts.append(self._pending.get_nowait())
                except queue.Empty:
                    break
            length = sum(map(len, parts))
            if position + length > FILE_BYTES:
                position = 0
            written = os.pwritev(self._file, parts, position)
            assert written == length, f"{written} of {length} bytes written"
            os.fdatasync(self._file)
            position += length
            synced += len(parts)
            self._loop.call_soon_threadsafe(self._on_synced, synced)


class SlaveLink:
    """The master's stream to one slave."""

    def __init__(self, address: str, on_ack: Callable[[], None]) -> None:
        self.acked = 0
        self._on_ack = on_ack
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._call: Any = self._channel.stream_stream(APPEND_METHOD)()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]

    def append(self, data: bytes) -> None:
        """Send `data` after all that was sent before."""
        self._outgoing.put_nowait(data)

    async def _send(self) -> None:
        while True:
            await self._call.write(await self._outgoing.get())

    async def _receive(self) -> None:
        while (reply := await self._call.read()) is not grpc.aio.EOF:
            self.acked = int.from_bytes(reply, "little")
            self._on_ack()


class Node:
    """A slave, or with slaves given, the master."""

    def __init__(self, data: Path, slaves: list[str], work_us: int) -> None:
        self._work_us = work_us
        self._received = 0
        self._pending: list[bytes] = []
        self._groups_formed = 0
        self._groups_synced = 0
        self._groups_committed = 0
        self._uncommitted: deque[tuple[int, bytes]] = deque()
        """Uncommitted groups: the count of messages at the end of each, and its bytes."""
        self._committed = 0
        self._tails: set[asyncio.Queue[bytes]] = set()
        self._progress: set[asyncio.Event] = set()
        self._writer = GroupCommit(data / "floor.log", self._on_synced)
        self._slaves = [SlaveLink(address, self._on_progress) for address in slaves]

    def _receive(self, data: bytes) -> None:
        work(self._work_us)
        self._received += 1
        self._pending.append(data)
        self._form_groups()

    def _form_groups(self) -> None:
        """Start a group of all pending messages, unless enough groups are under way."""
        if not self._pending or self._groups_formed - self._groups_committed >= GROUPS_MAX:
            return
        group = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        self._groups_formed += 1
        self._uncommitted.append((self._received, group))
        for slave in self._slaves:
            slave.append(group)
        self._writer.append(group)

    def _on_synced(self, count: int) -> None:
        self._groups_synced = count
        self._on_progress()

    def _on_progress(self) -> None:
        committed = self._groups_synced
        if self._slaves:
            committed = min(committed, max(slave.acked for slave in self._slaves))
        if committed == self._groups_committed:
            return
        while self._groups_committed < committed:
            self._committed, group = self._uncommitted.popleft()
            for tail in self._tails:
                tail.put_nowait(group)
            self._groups_committed += 1
        self._form_groups()
        for event in self._progress:
            event.set()

    async def append(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        """Receives one stream of messages; answers with the count of its committed messages."""
        base = self._received
        progress = asyncio.Event()
        self._progress.add(progress)
        answers = asyncio.create_task(self._answer(context, base, progress))
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                self._receive(data)
        finally:
            answers.cancel()
            self._progress.discard(progress)

    async def _answer(self, context: Any, base: int, progress: asyncio.Event) -> None:
        answered = 0
        while True:
            await progress.wait()
            progress.clear()
            committed = self._committed - base
            if committed > answered:
                if self._slaves:
                    work(self._work_us)
                await context.write(committed.to_bytes(8, "little"))
                answered = committed

    async def tail(self, _request: bytes, context: Any) -> None:
        """Streams everything that is committed from now on, after one message of zeros."""
        groups: asyncio.Queue[bytes] = asyncio.Queue()
        self._tails.add(groups)
        try:
            await context.write(bytes(STAMP_BYTES))
            while True:
                found = [await groups.get()]
                while not groups.empty():
                    found.append(groups.get_nowait())
                await context.write(b"".join(found))
        finally:
            self._tails.discard(groups)

    async def read(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """`count` messages of `length` bytes, read from the file's cached pages."""
        length = int.from_bytes(request[:4], "little")
        count = int.from_bytes(request[4:8], "little")
        for number in range(count):
            yield self._writer.read(number * length, length)


async def serve(data: Path, slaves: list[str], work_us: int) -> None:
    """Serve until SIGTERM."""
    node = Node(data, slaves, work_us)
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    methods: dict[str, Any] = {
        APPEND_METHOD: grpc.stream_stream_rpc_method_handler(node.append),
        READ_METHOD: grpc.unary_stream_rpc_method_handler(node.read),
        TAIL_METHOD: grpc.unary_stream_rpc_method_handler(node.tail),
    }
    service = APPEND_METHOD.split("/")[1]
    handlers = {name.rpartition("/")[2]: handler for name, handler in methods.items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(json.dumps({"address": f"127.0.0.1:{port}", "pid": os.getpid()}), flush=True)
    await stopped.wait()
    # The links and the writer end with the process; there is nothing to save.
    os._exit(0)


def main() -> None:
    """Command line of one node."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--slave", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--work-us", type=int, default=0)
    options = parser.parse_args()
    run_loop(serve(options.data, options.slave, options.work_us))


if __name__ == "__main__":
    main()
