"""Calls to the masters of other broker groups.

How it works. The addresses of a group's nodes come from the copy of the controllers' routes, or
from a client whose request needs that group. The nodes are asked in rounds (`protos/masters.py`),
the last known master first, with a pause after each of them, until one answers or the time is over.

Invariants
1. All calls made here may be repeated.

Not here: the content of the calls (`background/transaction_work.py`).
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
from semel.protos.security.credentials import Security
from semel.protos.v1 import transactions_pb2
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.transactions_pb2_grpc import TransactionsStub

ATTEMPT_S: Final = 1.0
PAUSE_S: Final = 0.05
KNOWN_MAX: Final = 1_000
"""Limit of the groups that are remembered because a client named them."""


class GroupCalls:
    """One broker node's channels to other groups. It lives on the event loop."""

    def __init__(
        self,
        routes: RoutesCopy,
        levels: Callable[[], Levels] = own_levels,
        security: Security | None = None,
    ) -> None:
        """`levels` are this node's."""
        self._routes = routes
        self._named: dict[int, tuple[str, ...]] = {}
        self._masters: dict[int, str] = {}
        self._channels = Channels(levels, PEER_CHANNEL_OPTIONS, security)

    def learn(self, groups: Iterable[transactions_pb2.KnownGroup]) -> None:
        """Remembers the nodes of groups that a client names; they serve only for groups that the
        controllers' routes do not name."""
        for group in groups:
            if len(self._named) < KNOWN_MAX or group.group_id in self._named:
                self._named[group.group_id] = tuple(group.addresses)

    async def call(self, group_id: int, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of the group's master. Raises SemelError, but never NotMaster, which callers
        would take for this node's own group."""
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
        """Closes all channels; calls under way fail."""
        await self._channels.close()
