"""The context of a raw-bytes stream, as the handlers use it."""

from __future__ import annotations

from typing import Any, Protocol

import grpc


class StreamContext(Protocol):
    """grpc.aio.ServicerContext of a stream that is handled without serializers."""

    async def read(self) -> Any:
        """The next message as bytes, or grpc.aio.EOF."""
        ...

    async def write(self, message: bytes) -> None: ...

    async def send_initial_metadata(self, metadata: tuple[()]) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None: ...
