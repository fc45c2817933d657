"""The network between hosts: directed links that are slow, lossy, or cut; streams and datagrams.

How it works. In some worlds Raft's messages go as datagrams: they may be lost, repeated, delayed
and reordered, as the protocol must bear. Calls and streams of gRPC, and in the other worlds the
streams between replicas, go through pipes, which keep their order and lose nothing, as TCP does:
while a link is cut, what was sent waits, and when a process dies its peers hear so. A link may be
cut one way.

Not here: calls (`rpc.py`), byte streams (`sockets.py`), the nemesis that cuts (`nemesis.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from tests.world.loop import SimLoop

if TYPE_CHECKING:
    from tests.world.rpc import SimCall, SimServer
    from tests.world.sockets import SimListener, SimTransport


@dataclass(slots=True)
class Weather:
    """Probabilities are for each message, times in seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0
    slow_max_s: float = 0.3
    latency_max_s: float = 0.004


class Network:
    """All links of one run."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.weather = Weather()
        self.cut: set[tuple[str, str]] = set()
        """Directed links (from, to) that let nothing through."""
        self.servers: dict[str, SimServer] = {}
        self.calls: dict[SimCall, None] = {}
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.transports: dict[SimTransport, None] = {}
        """Open ends of connections."""
        self.writers_paused = 0
        self._ports = count(20_000)
        self.lost = 0
        self.repeated = 0
        self.blocked = 0
        self._stuck: dict[Pipe, None] = {}
        self._nobody = Context()

    def free_port(self) -> int:
        return next(self._ports)

    def latency(self) -> float:
        weather, random = self.weather, self.random
        delay = random.uniform(0.0001, weather.latency_max_s)
        if weather.slow and random.random() < weather.slow:
            delay += random.uniform(0, weather.slow_max_s)
        return delay

    def datagram(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Calls `deliver` later, never, once or twice, outside of any process."""
        weather, random = self.weather, self.random
        if random.random() < weather.loss:
            self.lost += 1
            return

        def arrive() -> None:
            if (source, target) in self.cut:
                self.blocked += 1
            else:
                deliver()

        copies = 1
        if random.random() < weather.repeat:
            self.repeated += 1
            copies = 2
        for _ in range(copies):
            self.loop.call_at(self.loop.now + self.latency(), arrive, context=self._nobody)

    def heal(self) -> None:
        """All links work again; what waited in pipes arrives."""
        self.set_cuts(set())

    def set_cuts(self, cut: set[tuple[str, str]]) -> None:
        self.cut = cut
        for pipe in [pipe for pipe in self._stuck if pipe.link not in cut]:
            del self._stuck[pipe]
            pipe.flush()

    def on_death(self, host: str, processes_of: Callable[[Any], bool]) -> None:
        """Ends the servers of a dead process, and tells the other ends of its calls."""
        for address in [a for a, server in self.servers.items() if processes_of(server.process)]:
            del self.servers[address]
        for place in [p for p, one in self.listeners.items() if processes_of(one.process)]:
            del self.listeners[place]
        for transport in [one for one in self.transports if processes_of(one.process)]:
            del self.transports[transport]
            transport.tell_other()
        for call in list(self.calls):
            if processes_of(call.server_process):
                call.on_server_lost()
            elif processes_of(call.process):
                call.on_client_lost()

    def pipe(self, source: str, target: str) -> Pipe:
        return Pipe(self, source, target)


class Pipe:
    """One direction of a connection."""

    __slots__ = ("_last", "_network", "_waiting", "link")

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.link = (source, target)
        self._network = network
        self._last = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def send(self, deliver: Callable[[], None]) -> None:
        """Calls `deliver` later, outside of any process, after all that was sent before."""
        network = self._network
        loop = network.loop
        self._last = at = max(self._last, loop.now + network.latency())
        self._waiting.append(deliver)
        loop.call_at(at, self._arrive, context=network._nobody)

    def _arrive(self) -> None:
        network = self._network
        if self in network._stuck:
            return
        if self.link in network.cut:
            network.blocked += 1
            network._stuck[self] = None
            return
        if self._waiting:
            self._waiting.popleft()()

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for deliver in waiting:
            self._last = max(self._last, self._network.loop.now + 0.001)
            self._waiting.append(deliver)
            self._network.loop.call_at(self._last, self._arrive, context=self._network._nobody)
