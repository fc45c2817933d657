"""Programs of the product as forks of a process that has imported them: nodes, and the console.

How it works. To import what a node needs takes a second of a core, and a cluster of four nodes
lives for a few seconds in most tests. So each process of tests has *nurseries*, processes that
import the programs once and fork themselves for each that is to run. A fork does what `python -m`
does: its own arguments, environment, directory and files; the program's `__main__` runs from its
first line, and the interpreter ends as always. Python's generator of random numbers is seeded anew
in each.

Programs of one number are forks of the same nursery, and have its hash seed; the nodes of a broker
group have different ones, as they do in production.

What a nursery cannot do is started by `exec`: other programs, and an environment in which
libraries would be loaded otherwise. Nothing is forked unless tests ask for it (`enabled`):
benchmarks and soaks start what users start. In the tests `semel up` does.

Invariants
1. A nursery has one thread beside that of Arrow's allocator, which heeds forks, and has opened no
   channel: it is safe to fork.
2. A program dies with its nursery, and that with the process of tests, however this ends.

Not here: what a cluster is (`cluster.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import queue
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

PROGRAMS: Final = ("semel.broker", "semel.controller", "semel.console")
NURSERIES: Final = 3
_OWN: Final = ("SEMEL_", "PYTEST_", "TMPDIR")
"""Beginnings of variables that programs read when they run, and not while they are imported."""
_PDEATHSIG: Final = 1
_ALLOCATOR: Final = "jemalloc_bg_thd"
_MESSAGE_BYTES: Final = 1 << 20

_enabled = False
_nurseries: dict[int, Nursery] = {}
"""By number, once somebody has asked for one."""


@contextlib.contextmanager
def enabled(on: bool = True) -> Iterator[None]:
    """While the block runs, programs of this process are forked, or not. All that is forked ends
    with the last block."""
    global _enabled
    before, _enabled = _enabled, on
    try:
        yield
    finally:
        _enabled = before
        if on and not before:
            for nursery in _nurseries.values():
                nursery.close()
            _nurseries.clear()


def begin(
    program: str,
    arguments: Sequence[str],
    number: int,
    files: tuple[int, int, int],
    environment: Mapping[str, str] | None = None,
) -> Forked | None:
    """`python -m PROGRAM ARGUMENTS`, forked; None where it must be started by `exec`. `files` are
    the descriptors of its stdin, stdout and stderr; `number` chooses the nursery."""
    if not _enabled or program not in PROGRAMS:
        return None
    nursery = _nurseries.get(number % NURSERIES)
    if nursery is None:
        if threading.current_thread() is not threading.main_thread():
            return None  # it would end with this thread
        nursery = _nurseries[number % NURSERIES] = Nursery()
    variables = dict(os.environ if environment is None else environment)
    if _foreign(variables) != nursery.foreign:
        return None
    request = {
        "program": program,
        "arguments": list(arguments),
        "environment": variables,
        "directory": str(Path.cwd()),
    }
    return nursery.fork(request, files)


def _foreign(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(_OWN)}


class Forked:
    """A running program, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, collect: Callable[[int], None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._collect = collect
        self._status = 0
        self._ended = threading.Event()

    def on_end(self, status: int) -> None:
        """It has ended, and is a zombie until somebody asks for its status."""
        self._status = status
        self._ended.set()

    def poll(self) -> int | None:
        """Its exit status, minus the number of a signal that ended it; None while it runs."""
        if self.returncode is None and self._ended.is_set():
            self.returncode = self._status
            self._collect(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The end of the process of tests."""

    def __init__(self) -> None:
        self.foreign = _foreign(os.environ)
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.forking", str(there.fileno())],
                pass_fds=[there.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._lock = threading.Lock()
        self._forked: dict[int, Forked] = {}
        self._begun: queue.SimpleQueue[Forked | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()

    def fork(self, request: dict[str, Any], files: tuple[int, int, int]) -> Forked:
        """A program that runs from now on. Raises RuntimeError if the nursery has ended."""
        with self._lock, contextlib.suppress(OSError):
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
            if (forked := self._begun.get()) is not None:
                return forked
        raise RuntimeError(f"the nursery has ended with status {self.process.wait(10)}")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._socket.recv(_MESSAGE_BYTES):
                told = json.loads(data)
                if "begun" in told:
                    forked = self._forked[told["begun"]] = Forked(told["begun"], self._collect)
                    self._begun.put(forked)
                else:
                    self._forked.pop(told["ended"]).on_end(told["status"])
        for forked in self._forked.values():
            forked.on_end(-signal.SIGKILL)
        self._begun.put(None)

    def _collect(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # or all have ended with it
            self._socket.send(json.dumps({"collect": pid}).encode())

    def close(self) -> None:
        """Ends it, and all that still runs."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.process.wait(30)
        self._listener.join()
        self._socket.close()


# --- the nursery itself


class _Cradle:
    """What forks; the whole of a nursery."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._living: set[int] = set()
        self._waking, self._woken = os.pipe()
        for end in (self._waking, self._woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> Callable[[], None]:
        """Forks what it is told until the process of tests has gone. Returns in each fork, too:
        what it is to do."""
        watched: list[Any] = [self._channel, self._waking]
        while True:
            readable, _, _ = select.select(watched, [], [])
            if self._waking in readable:
                os.read(self._waking, 4096)
                self._tell_of_ends()
            if self._channel in readable:
                data, files, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 3)
                if not data:
                    return lambda: None
                told = json.loads(data)
                if "collect" in told:
                    os.waitpid(told["collect"], 0)
                elif program := self._fork(told, files):
                    return program

    def _fork(self, request: dict[str, Any], files: Sequence[int]) -> Callable[[], None] | None:
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for end in (self._channel.detach(), self._waking, self._woken):
                os.close(end)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return partial(_become, request)
        for file in files:
            os.close(file)
        self._living.add(pid)
        self._tell(begun=pid)
        return None

    def _tell_of_ends(self) -> None:
        for pid in list(self._living):
            # It stays a zombie, as a child of `subprocess` does: its number is nobody else's yet.
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._living.discard(pid)
                left = found.si_code == os.CLD_EXITED
                self._tell(ended=pid, status=found.si_status if left else -found.si_status)

    def _tell(self, **message: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the end is seen when it is read
            self._channel.send(json.dumps(message).encode())


def main(descriptor: int) -> None:
    """Imports all programs, then forks. Returns at the end, and in each fork at that of its
    program."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    for program in PROGRAMS:
        importlib.import_module(f"{program}.__main__")
    names = sorted(
        (thread / "comm").read_text().strip()
        for thread in Path("/proc/self/task").iterdir()
        if int(thread.name) != os.getpid()
    )
    assert names in ([], [_ALLOCATOR]), f"libraries have threads, not safe to fork: {names}"
    gc.collect()
    gc.freeze()  # what is frozen stays shared memory
    _Cradle(socket.socket(fileno=descriptor)).run()()


def _become(request: dict[str, Any]) -> None:
    """The program, in the fork."""
    _die_with_parent()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    program = request["program"]
    sys.argv[:] = [program, *request["arguments"]]
    sys.modules.pop(f"{program}.__main__")
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
