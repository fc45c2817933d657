"""Clients of one process for `reconnect.py`: each has its own connections and one producer.

How it works. All clients connect, a few at a time, store one message each and then wait. Each has a
key of its own, so that it goes on with the queue that it has written to before; with `--new-queues`
its messages go to any queue, and a producer that has not written to it yet must fence it by a call
first. For each line on standard input every client sends one message at once, and the process
prints the moments (`time.monotonic`, which all processes of a machine share) at which they were
acknowledged, as one JSON list. The process ends with its standard input.

    python -m benchmarks.reconnect_client BOOTSTRAP --clients 250 [--security DIRECTORY]

Not here: the cluster and the measurement (`reconnect.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.floor_node import die_with_parent
from semel.client import AsyncProducer, connect_async
from semel.protos import compat
from semel.protos.security.credentials import Security

TOPIC: Final = "reconnect"
CONNECTING: Final = 8
"""Number of clients that connect at the same time."""
CONNECT_MS: Final = 120_000
SEND_S: Final = 120.0


async def sent(producer: AsyncProducer, key: bytes | None) -> float:
    """Sends one message; returns the moment of its acknowledgement."""
    async with compat.timeout(SEND_S):
        await producer.send(TOPIC, b"here", key=key)
    return time.monotonic()


async def run(options: argparse.Namespace) -> None:
    """Connects all, prints one line, and sends once for each line that comes."""
    security = Security.read(options.security) if options.security else None
    turn = asyncio.Semaphore(CONNECTING)
    async with AsyncExitStack() as exits:

        async def attach(number: int) -> Callable[[], Awaitable[float]]:
            key = None if options.new_queues else b"%d" % number
            async with turn:
                client = await exits.enter_async_context(
                    connect_async(
                        options.bootstrap,
                        security=security,
                        keep_routes=False,
                        connect_timeout_ms=CONNECT_MS,
                    )
                )
                producer = await exits.enter_async_context(client.producer())
                await sent(producer, key)
                return partial(sent, producer, key)

        senders = await asyncio.gather(*map(attach, range(options.clients)))
        print(json.dumps({"attached": len(senders)}), flush=True)

        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await asyncio.gather(*(send() for send in senders))), flush=True)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--new-queues", action="store_true")
    parser.add_argument("--security", type=Path)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends this process
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
