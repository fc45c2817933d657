"""The context of a raw-bytes stream, as the handlers use it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


class StreamContext(Protocol):
    """grpc.aio.ServicerContext of a stream that is handled without serializers."""

    async def read(self) -> Any:
        """The next message, a bytes-like object, or grpc.aio.EOF."""
        ...

    async def write(self, message: bytes) -> None: ...

    async def send_initial_metadata(self, metadata: tuple[tuple[str, bytes], ...]) -> None: ...

    def invocation_metadata(self) -> Any:
        """The metadata of the call that opened the stream, as pairs; None for none."""
        ...


@runtime_checkable
class PromptContext(Protocol):
    """A context that can also write without waiting."""

    def write_now(self, message: bytes) -> bool:
        """Sends a message; False, and nothing is sent, while the client has yet to take others."""
        ...
