"""Readers of one queue that decode nothing: a process of its own that prints JSON.

How it works. The argument is the settings as JSON. Each reader gets a ticket, opens a socket, and
asks once, from offset 0 on, with a poll that stands for as long as a benchmark runs. The process
prints `{"ready": true}`, and counts replies until a line says how many messages there are. Then
each reader's last reply tells how far it has got, which may take a moment more.

Not here: who starts it (`fan_out.py`).
"""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, Final

from benchmarks.floor_node import die_with_parent
from benchmarks.growth_client import connected, topic_id
from benchmarks.side_by_side_client import ready
from semel.protos.addresses import Address
from semel.protos.framed import ACCEPTED, MessageBuffer, encode_head, encode_hello
from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import levels_metadata, own_levels
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, broker_pb2_grpc
from tests.kit.fetch_replies import decode_fetch_reply

STANDING_BYTES: Final = 1 << 31
WAIT_MS: Final = 30_000
LATE_S: Final = 10.0


class Reader:
    """One stream."""

    def __init__(self, address: tuple[str, int], ticket: bytes, request: bytes) -> None:
        self.socket = socket.create_connection(address)
        self.socket.sendall(encode_hello(ticket))
        assert self.socket.recv(1) == ACCEPTED
        self.socket.sendall(encode_head(len(request)) + request)
        self.socket.setblocking(False)
        self.replies = 0
        self._last = b""
        self._buffer = MessageBuffer(self._on_message)

    def receive(self) -> None:
        """Takes what has come."""
        count = self.socket.recv_into(self._buffer.target())
        assert count, "the broker has ended a stream"
        self._buffer.received(count)

    def _on_message(self, message: memoryview) -> None:
        self.replies += 1
        self._last = bytes(message)

    @property
    def offset(self) -> int:
        """The end of the last reply. Asserts that the poll still stands."""
        if not self._last:
            return 0
        header, _ = decode_fetch_reply(self._last)
        assert header.more, f"the poll has ended after {self.replies} replies: {header}"
        batch = header.results[0].batches[-1]
        return int(batch.base_offset + batch.row_end - batch.row_start)


async def opened(settings: dict[str, Any]) -> list[Reader]:
    """Opens the readers' streams."""
    async with AsyncExitStack() as exits:
        key = QueueKey(await topic_id(exits, settings["controller"], settings["topic"]), QueueId(0))
        stub: Any = broker_pb2_grpc.BrokerStreamStub(connected(exits, settings["broker"]))
        request = broker_pb2.FetchRequest(
            correlation_id=1, max_wait_ms=WAIT_MS, standing_bytes=STANDING_BYTES
        )
        request.queues.add(queue=queue_ref(key))
        host = Address.parse(settings["broker"]).host
        found = []
        for _ in range(settings["count"]):
            reply = await stub.OpenDirect(
                broker_pb2.OpenDirectRequest(stream=broker_pb2.DIRECT_STREAM_FETCH),
                metadata=levels_metadata(own_levels()),
            )
            address = host, reply.port
            found.append(Reader(address, reply.ticket, request.SerializeToString()))
        return found


def main() -> None:
    """Reads until told."""
    die_with_parent()
    readers = asyncio.run(opened(json.loads(sys.argv[1])))
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        ready()
        messages = -1
        while messages < 0:
            for key, _ in selector.select():
                if key.data is not None:
                    key.data.receive()
                else:
                    messages = int(sys.stdin.readline())
        selector.unregister(sys.stdin)
        end = time.monotonic() + LATE_S
        while readers and time.monotonic() < end:
            if min(reader.offset for reader in readers) >= messages:
                break
            for key, _ in selector.select(0.1):
                key.data.receive()
    replies = sum(reader.replies for reader in readers)
    least = min((reader.offset for reader in readers), default=messages)
    print(json.dumps({"least": least, "replies": replies}), flush=True)


if __name__ == "__main__":
    main()
