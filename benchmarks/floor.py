"""The floor: client → master → two slaves on bare grpc.aio, and the figures it reaches here.

Semel's figures are stated as ratios to this prototype, measured in the same run. It keeps the
promise that matters (a message is acknowledged once two of three have it on disk) and nothing else.

    python -m benchmarks.floor [--seconds 3] [--rounds 3] [--work-us 100]

`--work-us` simulates the cost of any logic: that much more of the interpreter's time at each of a
message's five stops, from the client over the master and a slave and back.

Not here: the nodes (`floor_node.py`) and the client's loops (`floor_client.py`), each a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from benchmarks.harness import (
    Contender,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)

ROOT = Path(__file__).resolve().parent.parent
NODE_FILE_BYTES = 64 << 20


class Floor:
    """Three running nodes; a context manager that stops them."""

    def __init__(self, data: Path, *, work_us: int = 0) -> None:
        self._data = data
        self._work_us = str(work_us)
        self._stack = ExitStack()
        self.address = ""
        self.pids: list[int] = []
        """Process ids of the running nodes."""

    def __enter__(self) -> Floor:
        try:
            slaves = [self._start(f"slave-{number}", []) for number in (1, 2)]
            self.address = self._start("master", slaves)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, name: str, slaves: list[str]) -> str:
        directory = self._data / name
        directory.mkdir()
        command = [sys.executable, "-m", "benchmarks.floor_node", "--data", str(directory)]
        command += ["--work-us", self._work_us]
        for slave in slaves:
            command += ["--slave", slave]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        self._stack.callback(_stop, process)
        self.pids.append(process.pid)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the floor's {name} did not start; see its error above")
        return str(json.loads(line)["address"])

    def _client(
        self, mode: str, batch_bytes: int, seconds: float, in_flight: int = 1, rate: int = 0
    ) -> dict[str, float]:
        command = self._client_command(mode, batch_bytes, seconds, in_flight, rate)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, cwd=ROOT, text=True, timeout=seconds + 60, check=True
        )
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def _client_command(
        self, mode: str, batch_bytes: int, seconds: float, in_flight: int = 1, rate: int = 0
    ) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.floor_client", mode, self.address]
        command += ["--batch-bytes", str(batch_bytes), "--seconds", str(seconds)]
        command += ["--in-flight", str(in_flight), "--rate", str(rate)]
        return [*command, "--work-us", self._work_us]

    def append(self, batch_bytes: int, seconds: float, in_flight: int = 32) -> Mapping[str, float]:
        """`mb_s` and `batches_s` with a full window."""
        return self._client("append", batch_bytes, seconds, in_flight)

    def round_trip(self, batch_bytes: int, seconds: float) -> Mapping[str, float]:
        """`p50_ms`, `p99_ms` and `messages_s` of one message at a time."""
        return self._client("round-trip", batch_bytes, seconds)

    def paced(self, batch_bytes: int, seconds: float, rate: int) -> Mapping[str, float]:
        """`p50_ms`, `p99_ms` and `messages` of an open loop of `rate` messages a second."""
        return self._client("paced", batch_bytes, seconds, rate=rate)

    def paced_and_read(self, batch_bytes: int, seconds: float, rate: int) -> Mapping[str, float]:
        """Like `paced`, with a reader of the same messages.

        The reader's figures are `tail_p50_ms`, `tail_p99_ms` and `tail_cpu_s`.
        """
        command = self._client_command("tail", batch_bytes, seconds, rate=rate)
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as tail:
            try:
                assert tail.stdout is not None
                if not tail.stdout.readline():
                    raise RuntimeError("the floor's reader did not start; see its error above")
                paced = self.paced(batch_bytes, seconds, rate)
                line, _ = tail.communicate(timeout=60)
                return {**paced, **json.loads(line)}
            finally:
                tail.kill()  # it has already ended unless an error occurred

    def read(self, batch_bytes: int, seconds: float) -> Mapping[str, float]:
        """`mb_s` of a stream from the master's cached file."""
        return self._client("read", batch_bytes, seconds)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def main() -> int:
    """Measure the floor by itself."""
    parser = arguments("Measure the bare prototype by itself.", rounds=3)
    parser.add_argument(
        "--work-us",
        type=number(0, 10_000),
        default=0,
        help="microseconds of Python more at each of a message's five stops",
    )
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * NODE_FILE_BYTES)
    seconds = options.seconds
    with (
        temporary_directory(options.data) as data,
        Floor(data, work_us=options.work_us) as floor,
    ):
        contenders = [
            Contender(name="floor 64 KiB", run=lambda: floor.append(64 << 10, seconds)),
            Contender(name="floor 256 KiB", run=lambda: floor.append(256 << 10, seconds)),
            Contender(name="floor 1 KiB", run=lambda: floor.append(1 << 10, seconds)),
            Contender(name="floor 1 KiB awaited", run=lambda: floor.round_trip(1 << 10, seconds)),
            Contender(name="floor 1,000/s", run=lambda: floor.paced(1 << 10, seconds, 1_000)),
            Contender(
                name="floor 1,000/s, read",
                run=lambda: floor.paced_and_read(1 << 10, seconds, 1_000),
            ),
            Contender(name="floor read 256 KiB", run=lambda: floor.read(256 << 10, seconds)),
        ]
        comparison = compare(
            "Floor: one client, one master, two slaves, two of three on disk",
            contenders,
            rounds=options.rounds,
            warm_ups=options.warm_ups,
        )
    return report(comparison, options)


if __name__ == "__main__":
    sys.exit(main())
