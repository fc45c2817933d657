"""Whole fetch replies, for clients of the raw protocol."""

from __future__ import annotations

from semel.protos.streams import decode_fetch_header, fetched_batches
from semel.protos.v1 import broker_pb2


def decode_fetch_reply(message: bytes) -> tuple[broker_pb2.FetchReplyHeader, list[memoryview]]:
    """Returns the header of a fetch reply and its stored batches, as views of `message`.

    Raises CorruptBatch when the reply is malformed; the batches themselves are not checked.
    """
    header, rest = decode_fetch_header(message)
    return header, fetched_batches(header, rest)
