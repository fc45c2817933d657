"""The controllers of one cluster: their addresses, and which of them to ask.

How it works. A call goes to the controller that answered last. When that one does not answer, or
names another active controller, the call goes on to the others. While a call waits, the client
asks the controller from time to time whether it lives: a slow call stays with its controller, and a
controller that hangs is given up if somebody else may be asked. A client that was given some of
the controllers learns the others from the routes. Brokers keep a copy of the routes. So brokers may
be given instead of controllers, and they are asked for routes when no controller answers. A
controller takes a bounded number of watches. A client that finds no room watches a broker, chosen
at random, so that very many clients are spread over all brokers.

Invariants
1. Only calls that may be repeated go through `call`: their first attempt may have taken effect.
2. An address that the caller gave is never forgotten.

Not here: what the routes mean (`core/routing.py`), channels (`transport/connection.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.transport.connection import CONTROLLER, Connections, translate
from semel.protos.errors import NotMaster, SemelError, Throttled, TimedOut, Unavailable
from semel.protos.masters import Round
from semel.protos.security.wire_probe import why_closed
from semel.protos.v1 import controller_pb2

logger = logging.getLogger(__name__)

PROBE_S: Final = 0.4
"""Time limit in seconds for a controller's answer to the question whether it lives."""
FAIR_S: Final = 0.25
"""A controller that had fewer seconds than this to answer does not count as silent: the call raises
the error that it met before."""
HANG_S: Final = 0.8
"""Seconds after which a waiting call makes the client ask whether the controller lives."""
BROKERS_TOO: Final = ("GetRoutes", "OpenProducer")
"""Methods that brokers answer too, from their copy of the routes and their range of ids."""
COPIES_MAX: Final = 3
"""Most brokers that are asked for their copies in one round of a call."""
CALL_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=300)
WATCH_POLICY: Final = BackoffPolicy(initial_ms=100, max_ms=2_000)
SCATTER_S: Final = 5.0
"""Seconds over which clients spread when the broker ends that they all watched. None of them waits
for it: a broker that is not the master any more tells so itself."""
CROWDED_S: Final = 600.0
"""Seconds for which a client that found no room at the controllers watches brokers only."""


class Controllers:
    """All controllers that a client knows. Lives on the I/O thread."""

    def __init__(
        self,
        addresses: Iterable[str],
        connections: Connections,
        copies: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`copies` returns HOST:PORT of brokers, which have a copy of the routes."""
        self._given = tuple(dict.fromkeys(addresses))
        self._addresses = list(self._given)
        """The addresses to ask, in this order."""
        self._connections = connections
        self._copies = copies
        self._watch: asyncio.Future[None] | None = None
        self._watched = ""
        self._crowded_until = 0.0
        """Monotonic time until which brokers are watched: the controllers had no room."""
        self.watching = False
        """A watch is open: whoever has it tells of changes."""
        self.crowded = False
        """There are very many clients: the watch of this one is not, or not yet, at a controller,
        because they have no room for it."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Returns HOST:PORT of all known controllers, the one to ask first in front."""
        return tuple(self._addresses)

    def learn(self, addresses: Iterable[str]) -> None:
        """Takes the controllers' addresses from the routes."""
        known = dict.fromkeys((*addresses, *self._given))
        kept = [address for address in self._addresses if address in known]
        self._addresses = list(dict.fromkeys((*kept, *known)))

    async def call(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        on_throttled: Callable[[float], None] = lambda wait_ms: None,
    ) -> Any:
        """Calls the active controller. Raises SemelError.

        One that tells the call to come back later is asked again then; `on_throttled` hears how
        long that is, in milliseconds.
        """
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(CALL_POLICY, random.random)
        last: SemelError | None = None
        where_last = ""
        while True:
            asked = Round(self._addresses)
            copies = list(self._copies()) if method in BROKERS_TOO else []
            others = bool(copies) or len(self._addresses) > 1
            copied: Any = None  # the best answer so far, from a broker's copy
            throttled_ms = 0
            while (address := asked.next()) and (left := deadline - time.monotonic()) > 0:
                try:
                    reply = await self._ask(address, method, request, left, others=others)
                except NotMaster as error:
                    last = error
                    asked.ask_next(error.master_address)
                except TimedOut:
                    if last is None or left >= FAIR_S:
                        raise
                except Throttled as error:
                    last = error
                    throttled_ms = max(throttled_ms, error.retry_after_ms)
                except Unavailable as error:
                    last, where_last = error, address
                else:
                    if isinstance(reply, controller_pb2.Routes) and reply.copied:
                        copied = reply  # unless a controller that it names answers
                        asked.ask_too(reply.controllers)
                    else:
                        self._prefer(address)
                        return reply
                if asked.over and copied is None and copies:
                    asked.ask_too(random.sample(copies, min(COPIES_MAX, len(copies))))
                    copies = []
            if copied is not None:
                return copied
            wait = max(throttled_ms, backoff.next_ms()) / 1000
            if throttled_ms:
                on_throttled(wait * 1000)
            if time.monotonic() + wait >= deadline:
                if isinstance(last, Throttled):
                    raise last
                where = ", ".join(self._addresses)
                why = "no controller was asked" if last is None else last.message
                if isinstance(last, Unavailable) and where_last:
                    tls = self._connections.security is not None
                    why = await why_closed(why, where_last, tls=tls)
                raise Unavailable(
                    f"no controller answers at {where} within {timeout_s:g} s"
                    f" ({why}); is the cluster running?"
                )
            await asyncio.sleep(wait)

    async def watch(
        self,
        request: controller_pb2.GetRoutesRequest,
        on_routes: Callable[[controller_pb2.Routes], None],
    ) -> None:
        """Passes each new version of the routes to `on_routes`, until it is cancelled."""
        backoff = Backoff(WATCH_POLICY, random.random)

        async def read(address: str) -> None:
            stream = self._connections.stream(address, CONTROLLER, "WatchRoutes", request, None)
            async for routes in stream:
                self._prefer(address)
                self.watching = True
                on_routes(routes)
                backoff.reset()

        while True:
            copies = list(self._copies())
            crowded = self.crowded = bool(copies) and time.monotonic() < self._crowded_until
            if crowded:
                asked = Round(random.sample(copies, len(copies)))
            else:  # a broker that was given as an address names the controllers
                own = [address for address in self._addresses if address not in copies]
                asked = Round(own or self._addresses)
            full_ms = 0
            while address := asked.next():
                reading = self._watch = asyncio.ensure_future(read(address))
                self._watched = address
                began = time.monotonic()
                try:
                    await asyncio.wait({reading})
                finally:
                    self.watching = False
                    reading.cancel()
                if reading.cancelled():
                    break  # `_prefer` has ended it
                if (error := reading.exception()) is None:
                    continue
                if isinstance(error, grpc.RpcError):
                    known = translate(error, address)
                elif isinstance(error, SemelError):  # the client's login has expired
                    known = error
                else:
                    raise error
                logger.debug("route watch ended address=%s error=%s", address, known)
                if isinstance(known, NotMaster):
                    asked.ask_next(known.master_address)
                elif isinstance(known, Throttled):
                    full_ms = known.retry_after_ms
                    if not crowded:
                        self._crowded_until = time.monotonic() + CROWDED_S
                        self.crowded = True
                        break
                elif crowded and time.monotonic() - began > SCATTER_S:
                    await asyncio.sleep(random.uniform(0, SCATTER_S))
            wait_ms = backoff.next_ms()
            if full_ms and (crowded or not copies):  # there is room nowhere
                wait_ms = max(wait_ms, full_ms * random.uniform(0.5, 1.0))
            await asyncio.sleep(wait_ms / 1000)

    async def _ask(
        self, address: str, method: str, request: Any, timeout_s: float, *, others: bool
    ) -> Any:
        """Makes one call. Raises SemelError; if there are others to ask, a controller that hangs
        gives Unavailable."""
        call = asyncio.ensure_future(
            self._connections.call(address, CONTROLLER, method, request, timeout_s)
        )
        try:
            while not (await asyncio.wait({call}, timeout=HANG_S))[0]:
                if others and not await self._lives(address):
                    raise Unavailable(f"{address} hangs; whether the call took effect is unknown")
            return call.result()
        finally:
            call.cancel()

    async def _lives(self, address: str) -> bool:
        request = controller_pb2.ClusterStatusRequest(standby=True)
        try:
            await self._connections.call(address, CONTROLLER, "GetClusterStatus", request, PROBE_S)
        except (Unavailable, TimedOut):
            return False
        except SemelError:
            return True
        return True

    def _prefer(self, address: str) -> None:
        """Asks this controller first from now on, and watches it. A broker keeps its place."""
        if address in self._copies():
            return
        if address in self._addresses:
            self._addresses.remove(address)
        self._addresses.insert(0, address)
        if self._watch is not None and self._watched != address:
            if self._watched in self._copies():
                return  # a broker's copy is watched on purpose
            self._watch.cancel()
