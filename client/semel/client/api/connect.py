"""Connecting a client: `connect` blocks, `connect_async` is awaited or entered."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any

from semel.client.api.aio import AsyncClient
from semel.client.api.sync import Client
from semel.client.session import Session


def connect(bootstrap: str | None = None, **options: Any) -> Client:
    """Connects to a cluster through its controllers.

    `bootstrap` is "HOST:PORT[,HOST:PORT]"; None takes that of the file that SEMEL_CLIENT_CONFIG or
    SEMEL_PROFILE names, SEMEL_BOOTSTRAP, or 127.0.0.1:7070. Options are the fields of
    `ClientConfig`. Raises Unavailable when no controller answers in time,
    InvalidRequest for an unknown option.

        >>> with connect(bootstrap) as client:
        ...     client.admin.create_topic("greetings", queues=2)
        ...     with client.producer() as producer:
        ...         stored = producer.send("greetings", b"hello").result()
        ...     with client.reader("greetings", end="latest") as reader:
        ...         [message.value for message in reader]
        True
        [b'hello']
    """
    session = Session(bootstrap, options)
    session.run(session.open(), None)
    return Client(session)


def connect_async(bootstrap: str | None = None, **options: Any) -> Connecting:
    """Connects to a cluster; `async with connect_async(...) as client`, or await it.

    Arguments and errors are those of `connect`.

        >>> async with connect_async(bootstrap) as client:
        ...     await client.admin.create_topic("pings", queues=1)
        ...     async with client.producer() as producer:
        ...         stored = await producer.send("pings", b"ping")
        ...     async with client.reader("pings", end="latest") as reader:
        ...         [message.value async for message in reader]
        True
        [b'ping']
    """
    return Connecting(bootstrap, options)


class Connecting:
    """A client that is about to connect: await it, or enter it."""

    def __init__(self, bootstrap: str | None, options: dict[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._client: AsyncClient | None = None

    async def _connect(self) -> AsyncClient:
        session = Session(self._bootstrap, self._options)
        await session.await_run(session.open())
        return AsyncClient(session)

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._client is not None
        await self._client.__aexit__(kind, error, trace)
