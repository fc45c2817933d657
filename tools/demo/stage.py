"""The demo's processes (the cluster, the loader, Spark): starting, listening, ending.

How it works. Every process is started through the console's launcher, so the kernel kills it when
the demo ends, however it ends. Each prints JSON lines, which a thread collects with the time of
their arrival. The demo also adopts orphans: processes that a killed process leaves behind (the Java
of Spark, its Python workers) become its children and are ended with the rest.

Invariants
1. After `clear` no process that the demo started lives, not even one it never knew of (given
   `adopt_orphans`).
2. Every wait for a process to end, or for a pipe that one holds, has a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from semel.console import launcher

PR_SET_CHILD_SUBREAPER: Final = 36
STOP_S: Final = 8.0
"""How long all processes together may take to stop after SIGTERM."""
READ_S: Final = 2.0
"""How long reading the last lines of an ended process may take."""


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line that a process printed, and the time (monotonic seconds)."""

    time: float
    line: dict[str, Any]


class Actor:
    """One process that prints JSON lines."""

    def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str]):
        self.name = name
        self._log = log
        self.said: list[Said] = []
        self._news = threading.Condition()
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def wait_for(
        self,
        found: Callable[[Said], bool],
        timeout: float,
        what: str,
        since: int = 0,
    ) -> Said:
        """The first line, from number `since` on, for which `found` holds. Raises DemoFailed."""
        deadline = time.monotonic() + timeout
        seen = since
        while True:
            with self._news:
                while seen == len(self.said):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise DemoFailed(f"{what} did not come within {timeout:.0f} s{self.tail()}")
                    if not self._reader.is_alive():
                        raise DemoFailed(f"the {self.name} ended without {what}{self.tail()}")
                    self._news.wait(min(left, 0.2))
            for said in self.said[seen:]:
                seen += 1
                if found(said):
                    return said

    def say(self, line: str) -> None:
        """Writes one line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> float:
        """Sends SIGKILL and waits for the end; returns when it was sent (monotonic seconds)."""
        at = time.monotonic()
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        return at

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def end(self, deadline: float) -> None:
        """Waits for the end after SIGTERM until `deadline` (monotonic seconds), then sends SIGKILL.

        The SIGKILL goes to the rest of the process group, such as the Java of a Spark that ended.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(READ_S)
        if self._reader.is_alive():
            return  # a process out of reach holds the pipe, and closing it would wait for that one
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def tail(self) -> str:
        """The last lines that it wrote to stderr, for an error message."""
        text = self._log.read_text(errors="replace").strip().splitlines()
        return ": " + " / ".join(text[-3:]).removeprefix("error: ") if text else ""

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                said = Said(time.monotonic(), json.loads(line))
                with self._news:
                    self.said.append(said)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Stage:
    """All processes that the demo starts, with their files in one scratch directory."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._actors: list[Actor] = []

    @staticmethod
    def adopt_orphans() -> None:
        """Makes orphans below this process its children, so that `clear` finds them."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Actor:
        """Starts a Python module: `start("loader", "semel.console", "produce", ...)`."""
        temporary = self.scratch / f"{name}-tmp"
        temporary.mkdir(exist_ok=True)
        actor = Actor(
            name,
            [sys.executable, "-m", *command],
            self.scratch / f"{name}.log",
            {
                "TMPDIR": str(temporary),
                "SPARK_LOCAL_DIRS": str(temporary),
                **(environment or {}),
            },
        )
        self._actors.append(actor)
        return actor

    def end_actors(self) -> None:
        """Ends every process that was started here, the newest first."""
        for actor in reversed(self._actors):
            actor.terminate()
        deadline = time.monotonic() + STOP_S
        for actor in reversed(self._actors):
            actor.end(deadline)

    def clear(self) -> None:
        """Ends every process below this one."""
        self.end_actors()
        for _ in range(100):  # orphans of orphans become our children one after another
            left = psutil.Process().children(recursive=True)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not left:
                return
            psutil.wait_procs(left, timeout=0.1)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
