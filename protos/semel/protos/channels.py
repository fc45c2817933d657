"""One process's channels to nodes, one for each address, and ordinary calls on them.

How it works. A channel is opened at the first call to its address and stays open when a call fails:
others have calls on it, which its closing would cancel, and gRPC connects again by itself.

Not here: whom to ask (`masters.py`); clients, whose streams and calls have channels of their own to
one address (`transport/connection.py` in the client).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS, Options, error_from_rpc
from semel.protos.v1.common_pb2 import Levels


class Channels:
    """Channels by HOST:PORT. Lives on the event loop."""

    def __init__(
        self, levels: Callable[[], Levels] = own_levels, options: Options = CHANNEL_OPTIONS
    ) -> None:
        """`levels` are this process's, told with every call."""
        self._levels = levels
        self._options = options
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float
    ) -> Any:
        """The reply to one call of a method of `service`, which is a stub. Raises SemelError."""
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel
        try:
            return await getattr(service(channel), method)(
                request, timeout=timeout_s, metadata=levels_metadata(self._levels())
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def close(self) -> None:
        """Closes all channels; calls under way fail."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close(grace=0)
