"""Client processes of a benchmark, each with a share of the clients.

How it works. Each process prints one line once all of its clients are there. Its standard input
stays open until the context is left, when all are ended.

Not here: what the clients do (`attached_client.py`, `reconnect_client.py`).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from benchmarks.harness import progress

ROOT: Final = Path(__file__).resolve().parent.parent

Process = subprocess.Popen[str]


@contextlib.contextmanager
def client_processes(commands: Sequence[Sequence[str]], doing: str) -> Iterator[list[Process]]:
    """Starts a process for each command; yields them once all clients are there. `doing` is shown
    meanwhile. Raises RuntimeError if one has ended."""
    running: list[Process] = []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
                )
            )
        for process in running:
            progress(doing)
            line_of(process)
        yield running
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.communicate()


def line_of(process: Process) -> str:
    """The next line of its output. Raises RuntimeError if it has ended."""
    line = pipe(process.stdout).readline()
    if not line:
        raise RuntimeError("a client process has ended; see its error above")
    return line


def pipe(end: IO[str] | None) -> IO[str]:
    """A process's input or output, which `client_processes` has opened."""
    assert end is not None
    return end
