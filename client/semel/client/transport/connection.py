"""Channels to controllers and brokers, and one place where gRPC's errors become Semel's.

How it works. A channel for each (address, purpose): a produce stream, a fetch stream and small
calls never share a connection, so that bulk does not delay a lock's renewal. gRPC reconnects a
channel by itself, with short waits.

Not here: whom to ask (`cluster.py`).
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
from semel.protos.v1 import broker_pb2_grpc, controller_pb2_grpc


class Purpose(Enum):
    """What a channel is for."""

    CALLS = "calls"
    PRODUCE = "produce"
    FETCH = "fetch"


class Connections:
    """Channels of one client. Lives on the I/O thread."""

    def __init__(self, level_max: int = LEVEL_MAX) -> None:
        self.levels = own_levels(level_max)
        self.told = levels_metadata(self.levels)
        """Metadata of every call: this client's feature levels."""
        self._channels: dict[tuple[str, Purpose], grpc.aio.Channel] = {}
        self._stubs: dict[tuple[str, type[Any]], Any] = {}

    def channel(self, address: str, purpose: Purpose) -> grpc.aio.Channel:
        """The channel, opened lazily."""
        channel = self._channels.get((address, purpose))
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address, purpose] = channel
        return channel

    async def call(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float
    ) -> Any:
        """One unary call. Raises SemelError."""
        try:
            return await getattr(self._stub(address, service), method)(
                request, timeout=timeout_s, metadata=self.told
            )
        except grpc.RpcError as error:
            raise translate(error, address) from None

    def stream(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float | None
    ) -> Any:
        """One call with a stream of replies; iterate it, and `translate` what it raises."""
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
        """Closes all channels; calls under way end with CANCELLED."""
        channels = list(self._channels.values())
        self._channels.clear()
        self._stubs.clear()
        await asyncio.gather(*(channel.close() for channel in channels), return_exceptions=True)


def translate(error: grpc.RpcError, address: str) -> SemelError:
    """The exception for a failed call to `address`; transport failures name the address."""
    known = error_from_rpc(error)
    if type(known) is UnsupportedVersion and address not in known.message:
        return UnsupportedVersion(f"{address}: {known.message}", level=known.level)
    if type(known) is Unavailable and address not in known.message:
        return Unavailable(f"{address} does not answer: {known.message}")
    return known


def telling(group: BaseExceptionGroup[SemelError]) -> SemelError:
    """The error of a stream's tasks that says most: a broker's own word before the transport's."""
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
    """Order of errors: one of the transport comes after a broker's own word."""
    return isinstance(error, Unavailable | TimedOut)


BROKER: type[Any] = broker_pb2_grpc.BrokerStub
MEMBERS: type[Any] = broker_pb2_grpc.MembersStub
CONTROLLER: type[Any] = controller_pb2_grpc.ControllerStub
