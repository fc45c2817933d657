"""What TLS costs on framed streams: CPU of both ends, in plaintext and encrypted, on both loops.

How it works. This process sends messages on a client's direct stream, and another one receives
them on a broker's port; nothing else is done with them. CPU is that of both processes, user and
system, between two words of the stream: figures hold on a busy machine, where those per second do
not. `--computing` has a thread in the receiving process that computes in Python without pause, as
in a client whose application does; then the bytes per second count.

    python -m benchmarks.framed_tls [--size 1m] [--mib 512] [--loops asyncio,uvloop]
    python -m benchmarks.framed_tls --computing

Not here: whole clusters (`security.py`), the receiving end (`framed_tls_node.py`).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.commands import guarded, some_of
from benchmarks.framed_tls_node import LOOPS, SECONDS, SENDER
from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    report,
    temporary_directory,
)
from semel.client.transport.streams import DirectStream
from semel.protos.security.credentials import Contexts
from semel.protos.security.tls_connection import TlsConnection
from semel.protos.security.tls_files import TlsFiles
from tests.kit.authority import Authority

PLAIN: Final = "plaintext"
TLS: Final = "TLS"
WAYS: Final = (PLAIN, TLS)
WORD: Final = b"!"
ROOT: Final = Path(__file__).resolve().parent.parent


class Ends:
    """Both ends of the streams to come."""

    def __init__(self, data: Path, *, size: int, total: int, computing: bool) -> None:
        """`size` is that of a message, `total` of all, in bytes."""
        authority = Authority(data, SENDER.cluster)
        self._receiving = authority.write(authority.broker(1))
        self._sending = authority.write(SENDER)
        self._name = authority.broker(1).tls_name
        self._messages = [os.urandom(size) for _ in range(max(1, min(8, total // size)))]
        self._count = max(1, total // size)
        self._computing = computing

    def run(self, loop: str, way: str) -> Mapping[str, float]:
        """Sends everything once."""
        settings = {
            "loop": loop,
            "directory": "" if way == PLAIN else str(self._receiving),
            "computing": self._computing,
        }
        command = [sys.executable, "-m", "benchmarks.framed_tls_node", json.dumps(settings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
            try:
                assert process.stdout is not None
                told = json.loads(process.stdout.readline() or "null")
                if told is None:
                    raise RuntimeError("the receiving process has ended; see its error above")
                with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                    return runner.run(self._send(way, told["port"], bytes.fromhex(told["ticket"])))
            finally:
                process.kill()

    async def _send(self, way: str, port: int, ticket: bytes) -> Mapping[str, float]:
        stream = DirectStream(f"127.0.0.1:{port}")
        protocol: asyncio.BaseProtocol = stream
        if way != PLAIN:
            contexts = Contexts(TlsFiles.in_directory(self._sending))
            protocol = TlsConnection(stream, contexts.client(), server_hostname=self._name)
        await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)
        await stream.show(ticket)
        await stream.write(WORD)
        (theirs,) = SECONDS.unpack(await stream.read())
        start, own = time.perf_counter(), time.process_time()
        for turn in range(self._count):
            await stream.write(self._messages[turn % len(self._messages)])
        await stream.write(WORD)
        (theirs_after,) = SECONDS.unpack(await stream.read())
        seconds, sending = time.perf_counter() - start, time.process_time() - own
        stream.close()
        gb = self._count * len(self._messages[0]) / 1e9
        figures = {"mb_s": gb * 1e3 / seconds}
        if not self._computing:
            receiving = theirs_after - theirs
            figures |= {
                "cpu_ms_per_gb": (sending + receiving) * 1e3 / gb,
                "sending": sending * 1e3 / gb,
                "receiving": receiving * 1e3 / gb,
            }
        return figures


def main() -> int:
    """Command line."""
    parser = arguments("Compare TLS on framed streams with plaintext.", rounds=3)
    parser.add_argument("--size", type=number(2, 16 << 20), default=1 << 20, help="of a message")
    parser.add_argument("--mib", type=number(1, 1 << 20), default=256, help="sent in one run")
    parser.add_argument("--loops", type=some_of("loop", LOOPS), default=list(LOOPS))
    parser.add_argument("--computing", action="store_true", help="a thread computes beside it")
    options = parser.parse_args()
    with temporary_directory(options.data) as data:
        ends = Ends(data, size=options.size, total=options.mib << 20, computing=options.computing)
        comparison = compare(
            f"TLS on framed streams: messages of {options.size:,} B, two processes",
            [
                Contender(name=f"{loop}, {way}", run=functools.partial(ends.run, loop, way))
                for loop in options.loops
                for way in WAYS
            ],
            rounds=options.rounds,
            warm_ups=options.warm_ups,
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(guarded(main))
