"""A produce stream whose client misbehaves."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.broker.server.produce import ProduceStream
from semel.protos.batch import BatchHeader
from semel.protos.streams import encode_produce
from tests.integration.brokers import make_batch

PER_MESSAGE = 100


class _Node:
    """Knows every batch already."""

    term = 1

    def check_master(self) -> None:
        """It is."""

    def submit_batch(self, header: BatchHeader, data: bytes, stream: ProduceStream) -> None:
        stream.ack(header, "duplicate", 0, 0)

    async def produce_room(self) -> None:
        """There is."""


class _Client:
    """Sends without an end and takes nothing off."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.read_messages = 0
        self.full = asyncio.Event()

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        self.read_messages += 1
        return self.message

    async def write(self, reply: bytes) -> None:
        self.full.set()
        await asyncio.Event().wait()


async def _read_from(client: _Client, turns: int) -> int:
    """How many messages were read in so many turns of the loop."""
    node: Any = _Node()
    context: Any = client
    serving = asyncio.create_task(ProduceStream(node).serve(context))
    await client.full.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return client.read_messages


async def test_who_reads_no_acknowledgements_is_not_read() -> None:
    client = _Client(encode_produce([make_batch(-1, [b"x"])] * PER_MESSAGE))
    assert 50 < await _read_from(client, 5_000) < 200
