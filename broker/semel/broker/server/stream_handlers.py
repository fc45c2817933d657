"""The service of produce and fetch streams at the gRPC port, whose messages are bytes.

How it works. A stream's messages are frames of our own, which protobuf does not decode, so the
service has no generated servicer: its methods are put together here.

Not here: what the streams do (`produce.py`, `fetch.py`), their sockets (`direct.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from semel.broker.server.direct import DirectStreams, Handler
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.produce import ProduceHandler
from semel.protos.v1 import broker_pb2

SERVICE: Final = "semel.protos.v1.BrokerStream"


def direct_handlers(produce: ProduceHandler, fetch: FetchHandler) -> Mapping[int, Handler]:
    """The handlers of streams on sockets."""
    return {
        broker_pb2.DIRECT_STREAM_PRODUCE: produce.produce,
        broker_pb2.DIRECT_STREAM_FETCH: fetch.fetch,
    }


def stream_handlers(
    produce: ProduceHandler, fetch: FetchHandler, direct: DirectStreams
) -> grpc.GenericRpcHandler:
    """The methods of the service."""
    methods = {
        "Produce": grpc.stream_stream_rpc_method_handler(produce.produce),
        "Fetch": grpc.stream_stream_rpc_method_handler(fetch.fetch),
        "OpenDirect": grpc.unary_unary_rpc_method_handler(
            direct.open,
            request_deserializer=broker_pb2.OpenDirectRequest.FromString,
            response_serializer=broker_pb2.OpenDirectReply.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)
