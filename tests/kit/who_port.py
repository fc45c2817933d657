"""A gRPC port that tells callers who they are, with methods for nodes, for all, and for nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from semel.protos.rpc import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    ServerInterceptor,
    error_from_rpc,
)
from semel.protos.security.credentials import Security, add_port, channel
from semel.protos.security.guard import Guard
from semel.protos.security.identity import Identity, identity_of_auth_context

RAFT = "semel.protos.v1.RaftPeer/OpenStream"
BROKER = "semel.protos.v1.Broker/GetNodeStatus"
ECHO = "semel.protos.v1.BrokerStream/Produce"
UNDECLARED = "semel.protos.v1.Broker/Undeclared"


async def _who(request: bytes, context: Any) -> bytes:
    caller = identity_of_auth_context(context.auth_context())
    return caller.uri.encode() if caller is not None else b"nobody"


async def _echo(requests: Any, context: Any) -> Any:
    async for request in requests:
        yield request


@asynccontextmanager
async def serving(security: Security | None, at: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """A server with a method between nodes, two for all, and one that declares nothing; its
    address."""
    guard = Guard(security)
    server = grpc.aio.server(
        interceptors=[ServerInterceptor(check_caller=guard.admit)], options=SERVER_OPTIONS
    )
    who: Any = grpc.unary_unary_rpc_method_handler(_who)
    echo: Any = grpc.stream_stream_rpc_method_handler(_echo)
    for path, handler in ((RAFT, who), (BROKER, who), (UNDECLARED, who), (ECHO, echo)):
        service, _, method = path.partition("/")
        handlers = {method: handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = add_port(server, at, security)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def ask(
    address: str, security: Security | None, to: Identity | None = None, method: str = BROKER
) -> str:
    """Returns who the caller is for the port. Raises SemelError."""
    async with channel(address, CHANNEL_OPTIONS, security, to) as opened:
        return await ask_on(opened, method)


async def ask_on(opened: grpc.aio.Channel, method: str = BROKER) -> str:
    """The same on an open channel."""
    try:
        call: Any = opened.unary_unary(f"/{method}")
        return bytes(await call(b"", timeout=5)).decode()
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from None
