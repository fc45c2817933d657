"""Calls to the masters of other broker groups.

How it works. A group's nodes are known from the copy of the controllers' routes, or were named by a
client that asked for something which needs them. They are asked in rounds (`protos/masters.py`),
the last known master first, with a pause after each of them, until one answers or the time is over.

Invariants
1. Only calls that may be repeated are made here.

Not here: what is asked (`background/transactions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from semel.broker.control_plane.route_cache import RoutesCopy
from semel.protos.channels import Channels
from semel.protos.errors import RetriableError, SemelError
from semel.protos.levels import own_levels
from semel.protos.masters import MasterSearch
from semel.protos.rpc import PEER_CHANNEL_OPTIONS
from semel.protos.v1 import transactions_pb2
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.transactions_pb2_grpc import TransactionsStub

ATTEMPT_S: Final = 1.0
PAUSE_S: Final = 0.05
KNOWN_MAX: Final = 1_000
"""Groups that clients have named; more are not remembered."""


class GroupCalls:
    """Channels of one broker node to other groups. Lives on the event loop."""

    def __init__(self, routes: RoutesCopy, levels: Callable[[], Levels] = own_levels) -> None:
        """`levels` are this node's."""
        self._routes = routes
        self._named: dict[int, tuple[str, ...]] = {}
        self._masters: dict[int, str] = {}
        self._channels = Channels(levels, PEER_CHANNEL_OPTIONS)

    def learn(self, groups: Iterable[transactions_pb2.KnownGroup]) -> None:
        """A client names nodes of groups; nodes that the controllers name come before those."""
        for group in groups:
            if len(self._named) < KNOWN_MAX or group.group_id in self._named:
                self._named[group.group_id] = tuple(group.addresses)

    async def call(self, group_id: int, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of the group's master. Raises SemelError, never NotMaster."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        search = MasterSearch(f"broker group {group_id}", passing=(RetriableError,))
        while True:
            address = search.next()
            if not address:
                search.again(self._addresses(group_id))
                address = search.next()
            if not address:
                raise search.error
            left = give_up - loop.time()
            try:
                reply = await self._channels.call(
                    address, TransactionsStub, method, request, max(0.001, min(ATTEMPT_S, left))
                )
            except SemelError as error:
                self._masters.pop(group_id, None)
                search.on_error(error, cut_short=left < ATTEMPT_S)
            else:
                self._masters[group_id] = address
                return reply
            if loop.time() + PAUSE_S >= give_up:
                raise search.error
            await asyncio.sleep(PAUSE_S)

    def _addresses(self, group_id: int) -> tuple[str, ...]:
        nodes = self._routes.nodes_of(group_id) or self._named.get(group_id, ())
        return (self._masters.get(group_id, ""), *nodes) if nodes else ()

    async def close(self) -> None:
        """Ends all channels; calls under way fail."""
        await self._channels.close()
