"""The search for the master of a broker group, when the one that was known has failed.

How it works. A client that is one of few asks all replicas at once, repeatedly with short waits,
until one of them is master. Controllers tell clients how many of them there are, and brokers how
many streams they have, so a client knows how many others may search. One of many asks the failed
master alone, and only if its node is there, since it may be the connection that broke; then it
waits for its watch of the routes. Before an election can be over it asks nobody, and for some
seconds as long as it has a watch. After that it asks one replica at a time, the first one after a
random time, which is longer the more streams there were. Whoever is told by the watch goes to the
new master after another random time. A replica that very many ask says how long to wait.

Invariants
1. What one of many asks while a master is missing does not grow with their number.
2. A node that has not answered yet is not asked again: many clients that ask a busy node over and
   over would keep it busy.

Not here: what the answers mean (`core/routing.py`), the watch (`transport/controllers.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Final, Protocol

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import Master, RouteTable
from semel.client.transport.connection import BROKER, Connections
from semel.client.transport.controllers import Controllers
from semel.client.transport.streams import FEW, Streams
from semel.protos import compat
from semel.protos.errors import SemelError, UnsupportedVersion
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2

PROBE_S: Final = 2.0
"""Time limit in seconds for a node's answer to the question whether it is master."""
ROUND_S: Final = 0.1
"""How many seconds pass until nodes that have answered are asked again, though others have not."""
SEARCH_POLICY: Final = BackoffPolicy(initial_ms=15, max_ms=400)
TURN_S: Final = 0.001
"""Many clients spread over so many seconds for each of them."""
CROWD_S: Final = 2.0
"""The longest time over which they spread; also for those for whose watches the controllers have no
room."""
ELECTION_S: Final = 1.0
"""Seconds in which a group has mostly elected another master: one of many does not ask before."""
WATCHED_S: Final = (5.0, 10.0)
"""Between these, in seconds, one of many that has a watch asks nevertheless."""
CROWD_POLICY: Final = BackoffPolicy(initial_ms=500, max_ms=4_000)
ROLE_ONLY: Final = broker_pb2.NodeStatusRequest(role_only=True)


class Searching(Protocol):
    """The part of a client's view of the cluster that a search uses."""

    routes: RouteTable
    connections: Connections
    controllers: Controllers
    streams: Streams

    async def look_up(self, group_id: GroupId) -> None:
        """Fetches the groups for one that is not in the routes. Raises UnknownGroup."""


class MasterSearch:
    """Searches of one client. Lives on the I/O thread."""

    def __init__(self, cluster: Searching) -> None:
        self._cluster = cluster
        self._news = asyncio.Event()
        """Set by each new version of the routes."""

    def on_news(self) -> None:
        """Routes have come."""
        self._news.set()

    async def find(self, group_id: GroupId) -> Master:
        """Returns the group's master once there is one. Raises UnknownGroup, and
        UnsupportedVersion when this client cannot speak to any node of the group."""
        many = self.is_one_of_many()
        backoff = Backoff(CROWD_POLICY if many else SEARCH_POLICY, random.random)
        asked: dict[str, asyncio.Task[int]] = {}
        strangers: dict[str, UnsupportedVersion] = {}
        suspect = self._cluster.routes.suspect(group_id)
        turns: list[str] = []
        """Whom one of many asks, the next one last."""
        try:
            if many:
                await self._wait_as_one_of_many(group_id, suspect, asked, strangers)
            while (known := self._cluster.routes.master(group_id)) is None:
                addresses = self._cluster.routes.replicas(group_id)
                if not addresses:
                    await self._cluster.look_up(group_id)
                    await asyncio.sleep(backoff.next_ms() / 1000)
                    continue
                if many and not turns:
                    turns = random.sample(addresses, len(addresses))
                    turns.sort(key=lambda address: address != suspect)
                chosen = [turns.pop()] if many else addresses
                pause_ms = await self._ask(group_id, chosen, asked, strangers)
                if strangers.keys() >= set(addresses):
                    raise strangers[addresses[0]]
                wait_ms = backoff.next_ms()
                if pause_ms:
                    wait_ms = max(wait_ms, pause_ms * (1 - 0.5 * random.random()))
                await self._wait_for_news(group_id, wait_ms / 1000)
            return known
        finally:
            for probing in asked.values():
                probing.cancel()

    def is_one_of_many(self) -> bool:
        """Whether very many clients search when this one does."""
        return self._cluster.controllers.crowded or self._cluster.streams.clients > FEW

    def _spread_s(self) -> float:
        """Over how many seconds the clients of a group spread."""
        if self._cluster.controllers.crowded:
            return CROWD_S
        return min(self._cluster.streams.crowd * TURN_S, CROWD_S)

    async def _wait_as_one_of_many(
        self,
        group_id: GroupId,
        suspect: str,
        asked: dict[str, asyncio.Task[int]],
        strangers: dict[str, UnsupportedVersion],
    ) -> None:
        """Asks the master that has failed if its node is there, since it may be the connection that
        broke. Waits until the watch tells of another one and it is this client's turn to go there.
        """
        routes, spread_s = self._cluster.routes, self._spread_s()
        if suspect in routes.replicas(group_id) and await self._cluster.streams.is_there(suspect):
            await self._ask(group_id, [suspect], asked, strangers)
            if routes.master(group_id) is not None:
                return
        first_s = (ELECTION_S, ELECTION_S + spread_s)
        if self._cluster.controllers.watching:
            first_s = WATCHED_S
        await self._wait_for_news(group_id, random.uniform(*first_s))
        # Brokers tell those who watch them one after the other.
        if routes.master(group_id) is not None and not self._cluster.controllers.crowded:
            await asyncio.sleep(random.uniform(0, spread_s))

    async def _ask(
        self,
        group_id: GroupId,
        addresses: Sequence[str],
        asked: dict[str, asyncio.Task[int]],
        strangers: dict[str, UnsupportedVersion],
    ) -> int:
        """Asks nodes who is master. Takes answers off `asked` for `ROUND_S` seconds, or until one
        tells: a node that hangs must not delay the next questions to the others. Returns the
        longest pause that a node asks for, in ms."""
        for address in addresses:
            if address not in asked:
                probe = self._probe(group_id, address, strangers)
                asked[address] = asyncio.ensure_future(probe)
        loop = asyncio.get_running_loop()
        give_up, pause_ms = loop.time() + ROUND_S, 0
        while asked and self._cluster.routes.master(group_id) is None:
            left = give_up - loop.time()
            if left <= 0:
                break
            done, _ = await asyncio.wait(
                asked.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            for address in [address for address, probe in asked.items() if probe in done]:
                pause_ms = max(pause_ms, asked.pop(address).result())
        return pause_ms

    async def _wait_for_news(self, group_id: GroupId, seconds: float) -> None:
        """Returns when the time is over, or routes have come that name the group's master."""
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(seconds):
                while self._cluster.routes.master(group_id) is None:
                    self._news.clear()
                    await self._news.wait()

    async def _probe(
        self, group_id: GroupId, address: str, strangers: dict[str, UnsupportedVersion]
    ) -> int:
        """Asks a node whether it is master. Returns how long to wait before it is asked again, in
        ms, if it says so. If it can never answer this client, the error is noted."""
        strangers.pop(address, None)
        try:
            status = await self._cluster.connections.call(
                address, BROKER, "GetNodeStatus", ROLE_ONLY, PROBE_S
            )
        except UnsupportedVersion as error:
            strangers[address] = error
        except SemelError:
            pass
        else:
            if status.group_id == group_id:
                self._cluster.routes.on_node_status(group_id, status)
            return int(status.ask_again_ms)
        return 0
