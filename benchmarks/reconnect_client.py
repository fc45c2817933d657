"""Clients of one process for `reconnect.py`: each has its own connections and one producer.

How it works. All clients connect, a few at a time, store one message each and then wait. For each
line on standard input every client sends one message at once, and the process prints the moments
(`time.monotonic`, which all processes of a machine share) at which they were acknowledged, as one
JSON list. The process ends with its standard input.

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
from contextlib import AsyncExitStack
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


async def sent(producer: AsyncProducer) -> float:
    """Sends one message; returns the moment of its acknowledgement."""
    async with compat.timeout(SEND_S):
        await producer.send(TOPIC, b"here")
    return time.monotonic()


async def run(options: argparse.Namespace) -> None:
    """Connects all, prints one line, and sends once for each line that comes."""
    security = Security.read(options.security) if options.security else None
    turn = asyncio.Semaphore(CONNECTING)
    async with AsyncExitStack() as exits:

        async def attach() -> AsyncProducer:
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
                await sent(producer)
                return producer

        producers = await asyncio.gather(*(attach() for _ in range(options.clients)))
        print(json.dumps({"attached": len(producers)}), flush=True)

        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await asyncio.gather(*map(sent, producers))), flush=True)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--security", type=Path)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends this process
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
