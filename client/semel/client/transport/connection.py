"""Channels to controllers and brokers, and the one place that translates gRPC's errors.

How it works. Each (address, purpose) has a channel of its own: a produce stream, a fetch stream and
small calls never share a connection, so that bulk data does not delay a lock's renewal. gRPC
reconnects a channel by itself, with short waits, and goes on for ever once it has failed. So a
channel whose node cannot be reached is closed, unless other calls use it: thousands of clients
would knock at a dead node's door all the time.

Not here: which node to ask (`transport/cluster.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Any

import grpc
import grpc.aio

from semel.protos.errors import SemelError, TimedOut, Unavailable, UnsupportedVersion
from semel.protos.levels import LEVEL_MAX, levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import Security, channel
from semel.protos.v1 import broker_pb2_grpc, controller_pb2_grpc


class Purpose(Enum):
    """What a channel is for."""

    CALLS = "calls"
    PRODUCE = "produce"
    FETCH = "fetch"


class Connections:
    """Channels of one client. Lives on the I/O thread."""

    def __init__(self, level_max: int = LEVEL_MAX, security: Security | None = None) -> None:
        self.security = security
        self.levels = own_levels(level_max)
        self.told = levels_metadata(self.levels)
        """Metadata of every call: this client's feature levels."""
        self._channels: dict[tuple[str, Purpose], grpc.aio.Channel] = {}
        self._stubs: dict[tuple[str, type[Any]], Any] = {}
        self._under_way: Counter[str] = Counter()
        """Calls, by address."""
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, address: str, purpose: Purpose) -> grpc.aio.Channel:
        """Returns the channel, opened at its first use."""
        opened = self._channels.get((address, purpose))
        if opened is None:
            opened = channel(address, CHANNEL_OPTIONS, self.security)
            self._channels[address, purpose] = opened
        return opened

    async def call(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float
    ) -> Any:
        """Makes one unary call. Raises SemelError."""
        stub = self._stub(address, service)
        self._under_way[address] += 1
        try:
            return await getattr(stub, method)(request, timeout=timeout_s, metadata=self.told)
        except grpc.RpcError as error:
            if self._under_way[address] == 1 and error.code() is grpc.StatusCode.UNAVAILABLE:
                self._maybe_close(address)
            raise translate(error, address) from None
        finally:
            self._on_end(address)

    async def stream(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float | None
    ) -> AsyncGenerator[Any]:
        """The replies of a call with many. Raises grpc.RpcError, which `translate` reads."""
        stub = self._stub(address, service)
        self._under_way[address] += 1
        try:
            async for reply in getattr(stub, method)(
                request, timeout=timeout_s, metadata=self.told
            ):
                yield reply
        finally:
            self._on_end(address)

    def _on_end(self, address: str) -> None:
        self._under_way[address] -= 1
        if not self._under_way[address]:
            del self._under_way[address]

    def _maybe_close(self, address: str) -> None:
        """Closes the channel for calls to an address that it cannot reach. No call may be under
        way on it: it would end as if its caller had cancelled it."""
        opened = self._channels.get((address, Purpose.CALLS))
        if opened is None or opened.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return
        del self._channels[address, Purpose.CALLS]
        for key in [key for key in self._stubs if key[0] == address]:
            del self._stubs[key]
        task = asyncio.ensure_future(opened.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _stub(self, address: str, service: type[Any]) -> Any:
        stub = self._stubs.get((address, service))
        if stub is None:
            stub = service(self.channel(address, Purpose.CALLS))
            self._stubs[address, service] = stub
        return stub

    async def close(self) -> None:
        """Closes all channels. Calls under way end with CANCELLED."""
        channels = list(self._channels.values())
        self._channels.clear()
        self._stubs.clear()
        await asyncio.gather(
            *(channel.close() for channel in channels), *self._closing, return_exceptions=True
        )


def translate(error: grpc.RpcError, address: str) -> SemelError:
    """Returns the exception for a failed call to `address`. Transport failures name the address."""
    known = error_from_rpc(error)
    if type(known) is UnsupportedVersion and address not in known.message:
        return UnsupportedVersion(f"{address}: {known.message}", level=known.level)
    if type(known) is Unavailable and address not in known.message:
        return Unavailable(f"{address} does not answer: {known.message}")
    return known


def telling(group: BaseExceptionGroup[SemelError]) -> SemelError:
    """Returns the most specific error of a stream's tasks: a broker's before the transport's."""
    leaves: list[SemelError] = []
    stack: list[Any] = list(group.exceptions)
    while stack:
        each = stack.pop()
        if isinstance(each, BaseExceptionGroup):
            stack.extend(each.exceptions)
        else:
            leaves.append(each)
    return min(leaves, key=says_little)


def says_little(error: BaseException) -> bool:
    """Sort key of errors: a broker's own error comes before one of the transport."""
    return isinstance(error, Unavailable | TimedOut)


BROKER: type[Any] = broker_pb2_grpc.BrokerStub
MEMBERS: type[Any] = broker_pb2_grpc.MembersStub
CONTROLLER: type[Any] = controller_pb2_grpc.ControllerStub
