"""Calls to the masters of other broker groups.

How it works. A group's nodes are known from the copy of the controllers' routes, or were named by a
client that asked for something which needs them. They are tried in turn, the last known master
first; a node that is not master may name the one that is.

Invariants
1. Only calls that may be repeated are made here.

Not here: what is asked (`background/transactions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio

from semel.broker.control_plane.route_cache import RoutesCopy
from semel.protos.errors import NotMaster, SemelError, TimedOut, Unavailable
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import PEER_CHANNEL_OPTIONS, error_from_rpc
from semel.protos.v1 import transactions_pb2, transactions_pb2_grpc
from semel.protos.v1.common_pb2 import Levels

ATTEMPT_S: Final = 1.0
PAUSE_S: Final = 0.05
KNOWN_MAX: Final = 1_000
"""Groups that clients have named; more are not remembered."""


class GroupCalls:
    """Channels of one broker node to other groups. Lives on the event loop."""

    def __init__(self, routes: RoutesCopy, levels: Callable[[], Levels] = own_levels) -> None:
        """`levels` are this node's."""
        self._routes = routes
        self._levels = levels
        self._named: dict[int, tuple[str, ...]] = {}
        self._masters: dict[int, str] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def learn(self, groups: Iterable[transactions_pb2.KnownGroup]) -> None:
        """A client names nodes of groups; the controllers' word counts more."""
        for group in groups:
            if len(self._named) < KNOWN_MAX or group.group_id in self._named:
                self._named[group.group_id] = tuple(group.addresses)

    async def call(self, group_id: int, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of the group's master. Raises SemelError, but never NotMaster: that would be
        taken for this group's."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        last: SemelError | None = None
        turn = 0
        while True:
            addresses = self._addresses(group_id)
            if not addresses:
                raise Unavailable(f"no node of broker group {group_id} is known here yet")
            address = self._masters.get(group_id) or addresses[turn % len(addresses)]
            turn += 1
            left = give_up - loop.time()
            try:
                stub = transactions_pb2_grpc.TransactionsStub(self._channel(address))
                reply = await getattr(stub, method)(
                    request,
                    timeout=max(0.001, min(ATTEMPT_S, left)),
                    metadata=levels_metadata(self._levels()),
                )
            except grpc.aio.AioRpcError as error:
                failure = error_from_rpc(error)
                if last is None or left >= ATTEMPT_S or not isinstance(failure, TimedOut):
                    last = failure  # an attempt that was cut short says less than the one before
            else:
                self._masters[group_id] = address
                return reply
            if not last.retriable:
                raise last
            hint = last.master_address if isinstance(last, NotMaster) else ""
            if hint and hint != address:
                self._masters[group_id] = hint
            else:
                self._masters.pop(group_id, None)
            if loop.time() + PAUSE_S >= give_up:
                if isinstance(last, NotMaster):
                    raise Unavailable(f"broker group {group_id} has no master: {last.message}")
                raise last
            await asyncio.sleep(PAUSE_S)

    def _addresses(self, group_id: int) -> tuple[str, ...]:
        return self._routes.nodes_of(group_id) or self._named.get(group_id, ())

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=PEER_CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        """Ends all channels; calls under way fail."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(grace=0)
