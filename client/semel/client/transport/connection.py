"""Channels to controllers and brokers, and the one place that translates gRPC's errors.

How it works. Each (address, purpose) has a channel of its own: a produce stream, a fetch stream and
small calls never share a connection, so that bulk data does not delay a lock's renewal. gRPC
reconnects a channel by itself, with short waits.

Not here: which node to ask (`transport/cluster.py`).
"""

from __future__ import annotations

import asyncio
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
        try:
            return await getattr(self._stub(address, service), method)(
                request, timeout=timeout_s, metadata=self.told
            )
        except grpc.RpcError as error:
            raise translate(error, address) from None

    def stream(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float | None
    ) -> Any:
        """Starts a call with a stream of replies. Iterate it, and `translate` what it raises."""
        return getattr(self._stub(address, service), method)(
            request, timeout=timeout_s, metadata=self.told
        )

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
        await asyncio.gather(*(channel.close() for channel in channels), return_exceptions=True)


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
