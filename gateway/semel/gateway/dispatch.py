"""From a decoded request to its response: what a handler gets, and which handler serves which API.

A *handler* is an async function `handler(request, context) -> response`. The request is kio's class
of the version that the client speaks, the response is made by `answers.answer`, and None means that
the client expects none (Produce with acks 0). What a handler needs beyond the context it has from
its object: handlers are methods of `Producing`, `Fetching`, `GroupHandlers` and so on, and each of
these offers `handlers()`, a mapping from `ApiKey`.

How requests of one connection meet. Kafka's brokers handle a connection's requests one after
another, and clients rely on it. So does the gateway, with one exception that no client can tell:
requests in `OVERLAPPING` begin while earlier ones of theirs wait for their acknowledgement. Up to
its first `await` a handler runs in the order of the requests.

Errors. A handler answers with Kafka's error codes; `refusals.error_code` tells which one fits a
SemelError. What else it raises is a mistake of ours: it is logged, and the connection is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from semel.client import AsyncClient
from semel.gateway.coordination.callers import Caller
from semel.gateway.principals.sasl_verdict import Gate
from semel.gateway.versions import TABLE, ApiKey

OVERLAPPING: Final = frozenset({ApiKey.PRODUCE})


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """A gateway of the cluster, as Kafka's clients see it: a broker."""

    node_id: int
    """Above 0, and the same as long as it has the same advertised address."""
    host: str
    port: int


class Gateways(Protocol):
    """The gateways of the cluster, as far as this one knows."""

    @property
    def own(self) -> GatewayPlace:
        """This gateway."""

    @property
    def present(self) -> tuple[GatewayPlace, ...]:
        """All that are there, by rising `node_id`; this one is among them."""

    @property
    def missed(self) -> tuple[GatewayPlace, ...]:
        """Those that have ended and are expected back, by rising `node_id`."""

    async def checked(self) -> tuple[GatewayPlace, ...]:
        """Returns those present, after a look whether they are still there."""


@dataclass(slots=True)
class Software:
    """The program at the other end of a connection, as it calls itself in ApiVersions from version
    3 on (KIP-511); empty if it has not."""

    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The owner of a request, and what handlers work with."""

    api_key: ApiKey
    version: int
    client_id: str
    """As the client calls itself; may be empty."""
    host: str
    """The address that the request came from."""
    client: AsyncClient
    """The cluster, as whoever asks may use it."""
    gateways: Gateways
    caller: Caller | None = None
    """The one who has logged in and asks; None for the gateway's own rights."""
    gate: Gate | None = None
    """SASL at the connection; None if clients of the gateway do not log in."""
    software: Software = field(default_factory=Software)


Handler: TypeAlias = Callable[[Any, RequestContext], Awaitable[Any | None]]


class Dispatcher:
    """Knows the handler of each API that is served."""

    def __init__(self, *handlers: Mapping[ApiKey, Handler]) -> None:
        """Asserts that each API in the table has one handler."""
        self._handlers: dict[ApiKey, Handler] = {}
        for some in handlers:
            assert not self._handlers.keys() & some.keys(), "two handlers for one API"
            self._handlers.update(some)
        missing = TABLE.keys() - self._handlers.keys()
        assert not missing, f"no handler for {missing}"

    def handler(self, key: ApiKey) -> Handler:
        return self._handlers[key]
