"""The receiving end of `framed_tls`: a process with a port for framed streams, like a broker's.

How it works. The arguments are settings as JSON. The process prints `{"port": …, "ticket": …}` and
takes messages on the one stream that is opened with it. A message of one byte begins a measurement,
the next one ends it; each is answered with the seconds of CPU of this process until then. What lies
in between is received as a broker does it, and thrown away.

Not here: who starts it and sends (`framed_tls.py`).
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.floor_node import die_with_parent
from semel.broker.replication.framed_port import FramedStream, TicketPort
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import CLIENT, Identity
from semel.protos.security.tls_files import TlsFiles

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
SECONDS: Final = struct.Struct("<d")
SENDER: Final = Identity(CLIENT, "sender", "c")


class Sink:
    """Takes the messages of the stream (`framed_port.Taker`)."""

    whose = "the sender"

    def __init__(self, stream: FramedStream, lost: asyncio.Event) -> None:
        self._stream = stream
        self._lost = lost

    def on_message(self, data: memoryview, *, owned: bool) -> None:
        if len(data) == 1:
            self._stream.write(SECONDS.pack(time.process_time()))

    def on_writable(self) -> None:
        pass

    def on_lost(self) -> None:
        self._lost.set()


async def serve(tls: Contexts | None) -> None:
    """Serves one stream until it is lost."""
    lost = asyncio.Event()
    port = TicketPort(silence_max_s=15, tls=tls)
    await port.serve("127.0.0.1", 0)
    ticket = port.give_ticket(lambda stream: Sink(stream, lost), None if tls is None else SENDER)
    print(json.dumps({"port": port.port, "ticket": ticket.hex()}), flush=True)
    await lost.wait()
    await port.close()


def compute() -> None:
    """Never lets the interpreter go by itself."""
    while True:
        sum(range(1_000))


def main() -> None:
    """Command line."""
    die_with_parent()
    settings: dict[str, Any] = json.loads(sys.argv[1])
    tls = None
    if settings["directory"]:
        tls = Contexts(TlsFiles.in_directory(Path(settings["directory"])))
    if settings["computing"]:
        threading.Thread(target=compute, daemon=True).start()
    with asyncio.Runner(loop_factory=LOOPS[settings["loop"]]) as runner:
        runner.run(serve(tls))


if __name__ == "__main__":
    main()
