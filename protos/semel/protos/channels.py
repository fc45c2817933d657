"""One process's channels to nodes, one for each address, and ordinary calls on them.

How it works. A channel is opened at the first call to its address. It stays open when a call fails:
closing it would cancel other calls, and gRPC connects again by itself.

Not here: which node to ask (`masters.py`); clients, which have separate channels for streams and
calls to one address (`transport/connection.py` in the client).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS, Options, error_from_rpc
from semel.protos.security.credentials import Security, channel
from semel.protos.v1.common_pb2 import Levels


class Channels:
    """Channels by HOST:PORT. Lives on the event loop."""

    def __init__(
        self,
        levels: Callable[[], Levels] = own_levels,
        options: Options = CHANNEL_OPTIONS,
        security: Security | None = None,
    ) -> None:
        """`levels` returns this process's feature levels, which every call carries."""
        self._levels = levels
        self._options = options
        self._security = security
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(
        self, address: str, service: type[Any], method: str, request: Any, timeout_s: float
    ) -> Any:
        """Calls a method of `service`, a stub, once and returns the reply. Raises SemelError."""
        opened = self._channels.get(address)
        if opened is None:
            opened = channel(address, self._options, self._security)
            self._channels[address] = opened
        try:
            return await getattr(service(opened), method)(
                request, timeout=timeout_s, metadata=levels_metadata(self._levels())
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def close(self) -> None:
        """Closes all channels; calls under way fail."""
        while self._channels:
            _, opened = self._channels.popitem()
            await opened.close(grace=0)
