"""A produce stream whose client misbehaves, or is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from semel.broker.server.produce import ProduceStream
from semel.protos import compat
from semel.protos.batch import BatchHeader
from semel.protos.errors import InternalError, Throttled, from_detail
from semel.protos.streams import encode_produce
from semel.protos.v1 import broker_pb2
from tests.kit.brokers import make_batch

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


class _Message(bytes):
    """Tells when nobody has it any more."""

    given_up: list[int]

    def __del__(self) -> None:
        self.given_up.append(len(self))


class _Idle:
    """Sends one message, takes its acknowledgement off, and is idle."""

    def __init__(self) -> None:
        self.given_up: list[int] = []
        self.acknowledged = asyncio.Event()
        self._messages = [_Message(encode_produce([make_batch(-1, [bytes(1 << 20)])]))]
        self._messages[0].given_up = self.given_up

    async def read(self) -> bytes:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop()

    async def write(self, reply: bytes) -> None:
        self.acknowledged.set()


async def test_an_idle_stream_keeps_no_message() -> None:
    node: Any = _Node()
    client = _Idle()
    context: Any = client
    serving = asyncio.create_task(ProduceStream(node).serve(context))
    await client.acknowledged.wait()
    assert len(client.given_up) == 1
    assert client.given_up[0] > 1 << 20
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


class _Broken(_Node):
    """Has a bug in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self._fail)

    def _fail(self, *_: object) -> None:
        raise RuntimeError("a bug")


class _Listener:
    """Sends one batch, and hears what comes back until the end."""

    def __init__(self) -> None:
        self.replies: list[broker_pb2.ProduceReply] = []
        self._messages = [encode_produce([make_batch(-1, [b"x"])])]

    async def read(self) -> bytes:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop()

    async def write(self, reply: bytes) -> None:
        self.replies.append(broker_pb2.ProduceReply.FromString(reply))


@pytest.mark.parametrize("method", ["submit_batch", "produce_room"])
async def test_a_bug_ends_the_stream_with_an_error_and_a_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the batch that met it waits for its answer, which will never come."""
    node: Any = _Broken(method)
    client = _Listener()
    context: Any = client
    async with compat.timeout(60):
        await ProduceStream(node).serve(context)
    error = from_detail(client.replies[-1].error)
    assert isinstance(error, InternalError)
    assert "RuntimeError" in error.message
    (record,) = (record for record in caplog.records if record.exc_info)
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a bug"


class _Pace:
    """Holds every batch."""

    slows = True
    held_bytes = 0

    def __init__(self) -> None:
        self.full: Throttled | None = None
        self.held: asyncio.Future[Callable[[], None]] = asyncio.Future()

    async def before(self, batches: list[bytes], size: int) -> None:
        """At once."""

    def hold(self, header: BatchHeader, length: int, submit: Callable[[], None]) -> bool:
        self.held.set_result(submit)
        return True

    def refusal(self, header: BatchHeader) -> Throttled | None:
        return self.full


async def test_a_batch_that_was_held_is_refused_if_its_topic_has_filled_meanwhile() -> None:
    node: Any = _Broken("submit_batch")
    client, pace = _Listener(), _Pace()
    context: Any = client
    stream = ProduceStream(node)
    stream.pace = pace  # type: ignore[assignment]
    async with compat.timeout(60):
        serving = asyncio.create_task(stream.serve(context))
        submit = await pace.held
        pace.full = Throttled("the topic is full", retry_after_ms=1)
        submit()
        while not client.replies:
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    (ack,) = client.replies[0].acks
    assert isinstance(from_detail(ack.error), Throttled)
