"""One simulated world: its loop, network, disks, processes, and what has happened in it.

How it works. Everything random comes from the seed, everything timed from the loop. `start` brings
a process to life, `crash` ends it between two of its steps or inside an operation of its disk. A
trace, when it is wanted, tells what happened in words: two runs of one seed tell the same.

Not here: what runs (`nodes.py`, `clients.py`), what goes wrong (`nemesis.py`), how long (`run.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import Any

from semel.protos.levels import LEVEL_MAX
from tests.checking.history import Fault, History
from tests.world.kernel import SimOs
from tests.world.loop import PROCESS, Killed, Process, SimLoop
from tests.world.network import Network
from tests.world.sockets import SimListener, connect
from tests.world.threads import Threads


class World:
    """The shared part of one run."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = SimLoop()
        self.loop.random = Random(seed)
        self.threads = Threads(self.loop, Random(seed * 2 + 5))
        self.system = SimOs(self)
        network = self.network = Network(self.loop, Random(self.random.getrandbits(64)))
        self.loop.listen = lambda factory, host, port: SimListener(
            network, factory, host, port or network.free_port()
        )
        self.loop.connect = partial(connect, network)
        self.history = History()
        self.seen: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.hosts: dict[str, Process] = {}
        """The living process of each host."""
        self.crashes: dict[str, Callable[[str], None]] = {}
        """Functions to call with the reason when a host's process has died, by host."""
        self.level_max = LEVEL_MAX
        """Highest feature level of the programs that machines get when they are set up."""
        self.asking = False
        """Clients learn where brokers may be asked for streams."""
        self.trace: list[str] | None = [] if traced else None
        self._fingerprint = hashlib.blake2b(digest_size=16)

    @property
    def now(self) -> float:
        return self.loop.now

    def count(self, event: str) -> None:
        """Counts an event."""
        self.seen[event] += 1
        self.tell(event)

    def fault(self, name: str) -> None:
        """Notes a fault that has bitten."""
        self.history.add(Fault(name=name, at_s=self.now))
        self.count(name)

    def tell(self, text: str) -> None:
        """A line of the trace; always part of the run's fingerprint."""
        process = PROCESS.get(None)
        line = f"{self.loop.now:10.6f} {process.name if process else '-':6} {text}"
        self._fingerprint.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    @property
    def fingerprint(self) -> str:
        """Equal for two runs that went the same way."""
        self._fingerprint.update(str((self.loop.steps, self.loop.now)).encode())
        return self._fingerprint.hexdigest()

    def start(
        self,
        host: str,
        number: int,
        main: Callable[[], Coroutine[Any, Any, None]],
        prepare: Callable[[Process], None] = lambda _: None,
    ) -> Process:
        """A new process on the host; `main` is its coroutine."""
        process = Process(f"{host}#{number}", host)
        self.processes.append(process)
        self.hosts[host] = process
        prepare(process)
        context = copy_context()
        context.run(PROCESS.set, process)

        def begin() -> None:
            self.loop.create_task(main()).add_done_callback(self._on_main_done)

        self.loop.call_soon(begin, context=context)
        context.run(self.tell, "starts")
        return process

    def _on_main_done(self, main: asyncio.Task[None]) -> None:
        """A program that ends with an uncaught error is wrong itself."""
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, Killed):
            where = "".join(traceback.format_exception(error)[-4:])
            self.loop.errors.append(f"{PROCESS.get()} ended: {error!r}\n{where}")

    def crash(self, host: str, why: str) -> None:
        """Ends the host's process now, whatever it is doing."""
        process = self.hosts.pop(host, None)
        if process is None or not process.alive:
            return
        self.tell(f"{process} dies: {why}")
        self.loop.kill(process)
        self.network.on_death(host, lambda one: one is process)
        after = self.crashes.get(host)
        if after is not None:
            after(why)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Calls `action` after `delay` seconds, outside of any process."""
        self.loop.call_at(self.loop.now + delay, action, context=Context())

    def end(self) -> None:
        self.loop.end(self.processes)
        self.threads.end()
