"""One call of any method on an open channel."""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from semel.protos.levels import levels_metadata, own_levels
from semel.protos.rpc import error_from_rpc
from semel.protos.security.declared import declared
from tests.kit.declared_calls import path_of


async def call_on(opened: grpc.aio.Channel, method: MethodDescriptor, request: Any) -> str:
    """The class of the error; "" for an answer."""
    decode = GetMessageClass(method.output_type).FromString
    options: dict[str, Any] = {"timeout": 5, "metadata": levels_metadata(own_levels())}
    path, encode = path_of(method), type(request).SerializeToString
    try:
        if method.client_streaming:
            stream = opened.stream_stream(path, encode, decode)(**options)
            # A write to a stream that was just refused fails in gRPC before the refusal is
            # read, and that error would be the call's.
            if not declared(path).for_nodes_only:
                await stream.write(request)
            await stream.read()
        elif method.server_streaming:
            replies = opened.unary_stream(path, encode, decode)(request, **options)
            await anext(aiter(replies), None)
        else:
            await opened.unary_unary(path, encode, decode)(request, **options)
    except grpc.aio.AioRpcError as error:
        return type(error_from_rpc(error)).__name__
    return ""
