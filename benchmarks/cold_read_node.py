"""A plain sequential read of files through gRPC, server and client: the floor of `cold_read`.

How it works. The server reads its files one after the other, each once from its start, in pieces
of READ_BYTES, and writes each piece to a stream of raw bytes. A thread reads the next piece while
the present one is sent. The client only counts the bytes that arrive.

    python -m benchmarks.cold_read_node FILE…

prints one JSON line: the bytes that arrived, and the seconds from the request to the end.

Not here: log formats, checks, more than one reader. This is not a broker, but the most that a
broker on the same library could reach.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.floor_node import CHANNEL_OPTIONS, READ_METHOD, die_with_parent, run_loop

READ_BYTES: Final = 1 << 20
ROOT = Path(__file__).resolve().parent.parent


class Files:
    """Files that are read once, in order."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    async def read(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Streams all files, piece by piece."""
        loop = asyncio.get_running_loop()
        for path in self._paths:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                position = 0
                coming = loop.run_in_executor(None, os.pread, file, READ_BYTES, position)
                while data := await coming:
                    position += len(data)
                    coming = loop.run_in_executor(None, os.pread, file, READ_BYTES, position)
                    yield data
            finally:
                os.close(file)


async def serve(paths: list[str]) -> None:
    """Prints its port, then serves until it is killed."""
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    service, name = READ_METHOD.strip("/").split("/")
    handler: Any = grpc.unary_stream_rpc_method_handler(Files(paths).read)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {name: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


async def read(port: int) -> None:
    """Reads all files once and prints the figures."""
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_stream(READ_METHOD)
        volume = 0
        start = time.perf_counter()
        async for data in call(b""):
            volume += len(data)
        print(json.dumps({"bytes": volume, "seconds": time.perf_counter() - start}), flush=True)


def main() -> None:
    """Command line; the server is a process of its own, as a broker is."""
    die_with_parent()
    if sys.argv[1:2] == ["--serve"]:
        run_loop(serve(sys.argv[2:]))
        return
    command = [sys.executable, "-m", "benchmarks.cold_read_node", "--serve", *sys.argv[1:]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert server.stdout is not None
    try:
        run_loop(read(int(server.stdout.readline())))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


if __name__ == "__main__":
    main()
