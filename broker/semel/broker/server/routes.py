"""The service `Controller` at a broker's port: routes, and ids for producers without a name.

How it works. A client may be given a broker instead of a controller, and every client asks brokers
if no controller answers. Clients for whose watches the controllers have no room watch here, groups
only. All other methods are refused with the address of the active controller.

Not here: the copy (`control_plane/route_cache.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from semel.broker.control_plane.route_cache import RoutesCopy
from semel.protos.v1 import controller_pb2 as pb

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Controller"]


def routes_handler(copy: RoutesCopy) -> grpc.GenericRpcHandler:
    """The handler to add to a server."""

    async def get_routes(request: pb.GetRoutesRequest, context: Any) -> pb.Routes:
        return copy.answer(request)

    async def open_producer(request: pb.OpenProducerRequest, context: Any) -> pb.OpenProducerReply:
        return copy.open_anonymous(request)

    async def refuse(request: Message, context: Any) -> bytes:
        raise copy.not_master("this is a broker")

    async def watch_routes(request: pb.GetRoutesRequest, context: Any) -> AsyncGenerator[pb.Routes]:
        if not request.groups_only:
            raise copy.not_master("a broker's copy tells changes of groups only")
        async for routes in copy.watch():
            yield routes

    async def refuse_stream(request: Message, context: Any) -> AsyncGenerator[bytes]:
        raise copy.not_master("this is a broker")
        yield b""

    handlers: dict[str, Any] = {
        method.name: grpc.unary_stream_rpc_method_handler(
            refuse_stream, GetMessageClass(method.input_type).FromString
        )
        if method.server_streaming
        else grpc.unary_unary_rpc_method_handler(
            refuse, GetMessageClass(method.input_type).FromString
        )
        for method in _SERVICE.methods
    }
    handlers["GetRoutes"] = grpc.unary_unary_rpc_method_handler(
        get_routes,
        request_deserializer=pb.GetRoutesRequest.FromString,
        response_serializer=pb.Routes.SerializeToString,
    )
    handlers["OpenProducer"] = grpc.unary_unary_rpc_method_handler(
        open_producer,
        request_deserializer=pb.OpenProducerRequest.FromString,
        response_serializer=pb.OpenProducerReply.SerializeToString,
    )
    handlers["WatchRoutes"] = grpc.unary_stream_rpc_method_handler(
        watch_routes,
        request_deserializer=pb.GetRoutesRequest.FromString,
        response_serializer=pb.Routes.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)
