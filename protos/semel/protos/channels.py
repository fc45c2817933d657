"""One process's channels to nodes, one for each address, and ordinary calls on them.

How it works. A channel is opened at the first call to its address. It stays open when a call fails:
closing it would cancel other calls, and gRPC connects again by itself.

Not here: which node to ask (`masters.py`); clients, which have separate channels for streams and
calls to one address (`transport/connection.py` in the client).
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
        """`levels` returns this process's feature levels, which every call carries."""
        self._levels = levels
        self._options = options
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float
    ) -> Any:
        """Calls a method of `service`, a stub, once and returns the reply. Raises SemelError."""
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
