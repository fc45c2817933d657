"""A producer whose batches have right checksums and wrong content.

How it works. Its batches follow one another, so that nothing but their content can be a reason to
refuse them. Most have a changed body, sealed again; some are compressed, and some unpack to far
more than they are.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import google_crc32c
import grpc
import grpc.aio

from semel.protos import compat
from semel.protos.batch import HEADER_BYTES, Codec, check_batch
from semel.protos.codecs import pack
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InternalError
from semel.protos.rpc import error_from_rpc
from semel.protos.streams import PRODUCE_METHOD, encode_produce
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2
from tests.fuzz.mutation import mutated
from tests.fuzz.wire_targets import BATCHES, seal_batch

QUEUES: Final = 2
_BOMB_BYTES: Final = 64 << 20
_ANSWER_S: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was sent and what came back."""

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    """Batches of the assault that a broker stored."""
    bugs: list[str] = field(default_factory=list)

    def answered(self, path: str, data: bytes, error: grpc.aio.AioRpcError) -> None:
        """Takes note of an error, which may be one that stands for a bug."""
        self.answers[error.code().name] += 1
        known = error_from_rpc(error)
        if isinstance(known, InternalError) or error.code() is grpc.StatusCode.UNKNOWN:
            self.bugs.append(f"{path}: {known} for {data[:2000].hex()}")


class Liar:
    """One producer whose batches have right checksums and wrong content."""

    def __init__(
        self,
        tally: Tally,
        master: Callable[[], Awaitable[grpc.aio.Channel]],
        topic_id: int,
        producer: int,
        epoch: int,
    ) -> None:
        self._tally = tally
        self._master = master
        self._topic_id = topic_id
        self._producer = producer
        self._epoch = epoch
        self._stream: Any = None
        self._last: dict[int, int] = {}

    async def send(self, rng: random.Random) -> int:
        """One message with some batches, and their acknowledgements."""
        try:
            return await self._send(rng)
        except grpc.aio.AioRpcError as error:
            self._tally.answered("lie", b"", error)
            self._stream = None
            return 1

    async def _send(self, rng: random.Random) -> int:
        if self._stream is None:
            await self._open()
        queue = rng.randrange(QUEUES)
        batch = self._lie(rng, queue)
        await self._stream.write(encode_produce([batch]))
        try:
            async with compat.timeout(_ANSWER_S):
                reply = await self._stream.read()
        except TimeoutError:
            self._tally.bugs.append(f"no answer to a batch: {batch[:2000].hex()}")
            reply = grpc.aio.EOF
        if reply is grpc.aio.EOF or reply.HasField("error"):
            if reply is not grpc.aio.EOF:
                self._tally.answers[f"stream {reply.error.code}"] += 1
            self._stream = None
            return 1
        for ack in reply.acks:
            self._tally.answers[f"ack {ack.status}"] += 1
            if ack.status == broker_pb2.PRODUCE_STATUS_COMMITTED:
                self._tally.stored += 1
                if (ack.topic_id, ack.producer_id) == (self._topic_id, self._producer):
                    self._last[ack.queue_id] = ack.last_sequence
        return 1

    async def _open(self) -> None:
        channel = await self._master()
        queues = [
            common_pb2.QueueRef(topic_id=self._topic_id, queue_id=queue) for queue in range(QUEUES)
        ]
        request = broker_pb2.FenceProducerRequest(
            queues=queues, producer_id=self._producer, epoch=self._epoch, session=1
        )
        reply = await broker_pb2_grpc.BrokerStub(channel).FenceProducer(request, timeout=10)
        self._last = {row.queue.queue_id: row.last_sequence for row in reply.rows}
        self._stream = channel.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()

    def _lie(self, rng: random.Random, queue: int) -> bytes:
        """A batch that follows the last one; most have a body that is not what the header says."""
        count = rng.choice((1, 2, 3, 40))
        first = self._last.get(queue, -1) + 1
        texts = [b"v%d" % row for row in range(count)]
        keyed = rng.random() < 0.7
        values = [*texts[:-1], None] if keyed and rng.random() < 0.2 else texts
        columns = Columns.from_arrow(
            values,
            keys=texts if keyed else None,
            headers=[{"h": b"1"}] * count if rng.random() < 0.3 else None,
            timestamps=list(range(count)) if rng.random() < 0.3 else None,
            message_ids=texts if rng.random() < 0.3 else None,
            slots=[row % 65_536 for row in range(count)] if rng.random() < 0.2 else None,
        )
        good = encode_batch(
            columns,
            topic_id=self._topic_id,
            queue_id=queue,
            producer_id=self._producer,
            epoch=self._epoch,
            session=1,
            previous_sequence=first - 1,
            base_sequence=first,
            last_sequence=first + count - 1,
            timestamp_us=1,
        )
        chance = rng.random()
        if chance < 0.2:
            return good
        if chance < 0.21:
            return _repacked(good, rng.choice(_bombs()))
        if chance < 0.35:
            return seal_batch(mutated(rng, good, BATCHES), rng) or good
        body = mutated(rng, good[HEADER_BYTES:], [good]) or b"\0"
        if chance < 0.6:
            return packed(good, body, rng)
        return seal_batch(good[:HEADER_BYTES] + body, random.Random(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """A compressed body."""

    codec: Codec
    data: bytes
    length: int
    """Uncompressed."""
    crc: int


def packed(good: bytes, body: bytes, rng: random.Random) -> bytes:
    """The batch with this body, compressed, all lengths and checksums right."""
    return _repacked(good, _compressed(rng.choice((Codec.LZ4, Codec.ZSTD)), body))


def _compressed(codec: Codec, body: bytes) -> _Packed:
    data = pack(body, codec)
    return _Packed(codec=codec, data=data, length=len(body), crc=int(google_crc32c.value(data)))


@functools.cache
def _bombs() -> tuple[_Packed, ...]:
    """To make one takes as long as a thousand requests."""
    return tuple(_compressed(codec, bytes(_BOMB_BYTES)) for codec in (Codec.LZ4, Codec.ZSTD))


def _repacked(good: bytes, body: _Packed) -> bytes:
    head = replace(
        check_batch(good),
        codec=body.codec,
        body_length=len(body.data),
        uncompressed_length=body.length,
        body_crc=body.crc,
    )
    return head.encode() + body.data
