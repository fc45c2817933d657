"""Produce streams: batches in, acknowledgements out.

How it works. A stream's batches are checked (envelope, both CRCs, columns) and given to the
proposer in the loop turn in which they arrive. Only compressed ones wait until a thread has
unpacked them: a few bytes may unpack to 64 MiB. Acknowledgements come back through
`ProduceStream.ack` in any order and are corked: all that are due when the writer gets its turn
leave in one reply.

Backpressure. A stream is not read while the proposer holds too many bytes, a quota makes it wait,
or other principals have their turn (`quotas/write_pace.py`); gRPC's window then stops the client. A
client that does not read its acknowledgements holds at most its own window of batches here, as a
batch beyond it is refused.

Invariants
1. Each batch that was decoded is answered exactly once, unless the stream ends before.
2. A batch whose CRC does not match is never looked into: its stream ends with CorruptBatch, because
   none of its bytes, not even its identity, can be trusted.
3. A batch whose CRCs match but whose columns contradict each other is refused. Stored, it would
   stop every reader of its queue, and whatever the broker does with its rows.
4. What a stream's batches unpack to is never in memory for more than one batch, and streams take
   turns at the threads that unpack.
5. A bug that meets a batch ends its stream with InternalError: the client must not take the end for
   that of a stream whose batches are all answered.

Not here: admission (`state/admission/admission.py`), entries (`replica/proposer.py`).
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import grpc
import grpc.aio

from semel.broker.quotas.broker_quotas import BrokerQuotas, calling_principal
from semel.broker.quotas.write_pace import WritePace
from semel.broker.replica.fetch_waiters import finish
from semel.broker.server.stream import StreamContext
from semel.broker.state import DueLoad
from semel.protos.batch import BatchHeader, Codec, check_batch
from semel.protos.column_checks import check_columns
from semel.protos.errors import InternalError, NotMaster, SemelError, Unavailable, to_detail
from semel.protos.levels import levels_metadata
from semel.protos.metrics import Histogram
from semel.protos.security.declared import Need
from semel.protos.security.enforcement import Enforcer, Gate
from semel.protos.security.rules import Action, Kind
from semel.protos.streams import Ping, decode_produce
from semel.protos.v1 import broker_pb2, errors_pb2
from semel.protos.v1.common_pb2 import Levels

logger = logging.getLogger(__name__)

_METHOD: Final = "/semel.protos.v1.BrokerStream/Produce"
_ACKS_PER_REPLY = 1024
_UNREAD_ACKS_MAX = 8 * _ACKS_PER_REPLY
"""A client that leaves more acknowledgements than this unread is not read either."""
_STATUS = {
    "committed": broker_pb2.PRODUCE_STATUS_COMMITTED,
    "duplicate": broker_pb2.PRODUCE_STATUS_DUPLICATE,
}


class ProduceNode(Protocol):
    """The node, as this module needs it."""

    @property
    def term(self) -> int: ...

    def check_master(self) -> None:
        """Raises NotMaster."""
        ...

    def levels(self) -> Levels:
        """The feature levels that the node names."""
        ...

    def submit_batch(self, header: BatchHeader, batch: bytes, stream: _Arrival) -> None: ...

    async def produce_room(self) -> None:
        """Returns once there is room for more pending batches."""
        ...


@dataclass(slots=True, kw_only=True)
class ProduceCounters:
    """Totals of the answers of all streams since the start, as plain numbers for `probe.py`."""

    committed_batches: int = 0
    committed_messages: int = 0
    committed_bytes: int = 0
    """Bytes of batches as they were sent, headers included."""
    duplicate_batches: int = 0
    duplicate_messages: int = 0
    refused_batches: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    """From a batch's arrival to its acknowledgement, with the wait for a predecessor."""


class _Arrival:
    """The batches of one message of a stream, with its time of arrival, taken once for all."""

    __slots__ = ("_at_s", "_counters", "_stream")

    def __init__(self, stream: ProduceStream, counters: ProduceCounters, at_s: float) -> None:
        self._stream = stream
        self._counters = counters
        self._at_s = at_s

    def ack(
        self,
        header: BatchHeader,
        status: str,
        base_offset: int,
        append_time_us: int,
        dropped: bytes = b"",
        due: DueLoad | None = None,
    ) -> None:
        counters = self._counters
        if status == "committed":
            counters.committed_batches += 1
            counters.committed_messages += header.count
            counters.committed_bytes += header.batch_length
        else:
            counters.duplicate_batches += 1
            counters.duplicate_messages += header.count
        counters.seconds.observe(asyncio.get_running_loop().time() - self._at_s)
        self._stream.ack(header, status, base_offset, append_time_us, dropped, due)

    def refuse(self, header: BatchHeader, error: SemelError) -> None:
        self._counters.refused_batches += 1
        self._stream.refuse(header, error)


class ProduceStream:
    """One client's stream, to which its acknowledgements go."""

    def __init__(
        self,
        node: ProduceNode,
        counters: ProduceCounters | None = None,
        unpackers: Executor | None = None,
    ) -> None:
        """`unpackers` unpack compressed batches; by default the event loop's own threads."""
        self._node = node
        self._unpackers = unpackers
        self.gate: Gate | None = None
        """Decides to which topics the client may write; None: to all."""
        self.pace: WritePace | None = None
        """What its batches wait for; None: for nothing."""
        self._counters = counters or ProduceCounters()
        self._acks: list[broker_pb2.ProduceAck] = []
        self._pong = 0
        self._waits = False
        """The client is to hear that its batches wait."""
        self._throttled_ms = 0
        """For how long they have, since it heard so."""
        self._error: SemelError | None = None
        # Futures that are made when somebody waits, because thousands of idle streams hold them.
        self._due: asyncio.Future[None] | None = None
        """Done once there is something to write."""
        self._taken: asyncio.Future[None] | None = None
        """Done once acknowledgements have left."""
        self._unanswered = 0
        self._ended = False

    def ack(
        self,
        header: BatchHeader,
        status: str,
        base_offset: int,
        append_time_us: int,
        dropped: bytes = b"",
        due: DueLoad | None = None,
    ) -> None:
        """`status` is committed or duplicate; `base_offset` is -1 if it is not known any more;
        `dropped` lists messages that were not stored, `due` is what is due in the second of a
        delayed batch."""
        self._answer(header, _STATUS[status], base_offset, append_time_us, None, dropped, due)

    def refuse(self, header: BatchHeader, error: SemelError) -> None:
        """This request did not store the batch; `error` gives the reason."""
        self._answer(header, broker_pb2.PRODUCE_STATUS_FAILED, -1, 0, to_detail(error))

    def _answer(
        self,
        header: BatchHeader,
        status: broker_pb2.ProduceStatus,
        base_offset: int,
        append_time_us: int,
        error: errors_pb2.ErrorDetail | None = None,
        dropped: bytes = b"",
        due: DueLoad | None = None,
    ) -> None:
        self._unanswered -= 1
        self._acks.append(
            broker_pb2.ProduceAck(
                topic_id=header.topic_id,
                queue_id=header.queue_id,
                producer_id=header.producer_id,
                epoch=header.epoch,
                session=header.session,
                base_sequence=header.base_sequence,
                last_sequence=header.last_sequence,
                status=status,
                base_offset=base_offset,
                append_time_us=append_time_us,
                error=error,
                dropped=dropped,
                due_in_second=None if due is None else broker_pb2.DueInSecond(**due._asdict()),
            )
        )
        finish(self._due)

    def tell_waiting(self, throttled_ms: int) -> None:
        """Batches wait, and have waited for a quota for so much longer."""
        self._waits = True
        self._throttled_ms += throttled_ms
        finish(self._due)

    def fail(self, error: SemelError) -> None:
        """Ends the stream once all that is due has left."""
        if self._error is None:
            self._error = error
        finish(self._due)

    async def serve(self, context: StreamContext) -> None:
        """Reads and writes until either side ends."""
        reader = asyncio.create_task(self._read(context))
        try:
            await self._write(context)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, context: StreamContext) -> None:
        try:
            while True:
                data = await context.read()
                if data is grpc.aio.EOF:
                    break
                brought = await self._on_message(data)
                del data  # thousands of idle streams must not each keep their newest message
                if not brought:
                    continue
                await self._node.produce_room()
                if self.pace is not None and self.pace.held_bytes:
                    await self.pace.room()
                while len(self._acks) > _UNREAD_ACKS_MAX:  # the client reads none of them
                    self._taken = asyncio.get_running_loop().create_future()
                    await self._taken
        except SemelError as error:
            self.fail(error)
        except grpc.aio.AioRpcError:
            self._unanswered = 0  # the client went away: nobody is there to be answered
        except Exception as bug:
            logger.exception("produce stream failed")
            kind = type(bug).__name__
            self.fail(InternalError(f"the produce stream failed: {kind}; see the broker's log"))
        finally:
            self._ended = True
            finish(self._due)

    async def _on_message(self, data: bytes | memoryview) -> bool:
        """False for a ping, which is answered even if there is no room for batches."""
        message = decode_produce(data)
        if isinstance(message, Ping):
            self._node.check_master()
            self._pong = max(self._pong, message.number)
            finish(self._due)
            return False
        paced = self.pace if self.pace is not None and self.pace.slows else None
        if paced is not None:
            await paced.before(message, len(data))
        arrival = _Arrival(self, self._counters, asyncio.get_running_loop().time())
        for batch in message:
            header = check_batch(batch)
            if self.gate and (refusal := _denial(self.gate, header)):
                pass  # and nothing of the batch is looked into
            elif header.codec is Codec.NONE:
                refusal = _refusal(batch, header)
            else:
                refusal = await asyncio.get_running_loop().run_in_executor(
                    self._unpackers, _refusal, batch, header
                )
            self._unanswered += 1
            if refusal is not None:
                arrival.refuse(header, refusal)
            elif paced is not None:
                self._submit_paced(paced, header, batch, arrival)
            else:
                self._node.submit_batch(header, batch, arrival)
        return True

    def _submit_paced(
        self, pace: WritePace, header: BatchHeader, batch: bytes, arrival: _Arrival
    ) -> None:
        """Submits or refuses a batch now, or when the quota of its topic lets it pass."""
        submit = partial(self._submit_if_room, pace, header, batch, arrival)
        if not pace.hold(header, len(batch), submit):
            submit()

    def _submit_if_room(
        self, pace: WritePace, header: BatchHeader, batch: bytes, arrival: _Arrival
    ) -> None:
        if (refusal := pace.refusal(header)) is not None:
            arrival.refuse(header, refusal)
        else:
            self._node.submit_batch(header, batch, arrival)

    async def _write(self, context: StreamContext) -> None:
        while True:
            if not (self._acks or self._pong or self._error or self._waits):
                if self._ended and not self._unanswered:
                    return
                self._due = asyncio.get_running_loop().create_future()
                await self._due
                continue
            acks = self._acks[:_ACKS_PER_REPLY]
            del self._acks[:_ACKS_PER_REPLY]
            finish(self._taken)
            reply = broker_pb2.ProduceReply(acks=acks, term=self._node.term)
            reply.pong, self._pong = self._pong, 0
            if self._waits:
                reply.throttled_ms, self._throttled_ms = self._throttled_ms, 0
                self._waits = False
            last = self._error is not None and not self._acks
            if last and self._error is not None:
                reply.error.CopyFrom(to_detail(self._error))
            await context.write(reply.SerializeToString())
            if last:
                return


def _denial(gate: Gate, header: BatchHeader) -> SemelError | None:
    """Why the client may not write to the batch's topic, or as its producer; None if it may."""
    try:
        gate.admit((Need(Action.WRITE, Kind.TOPIC, header.topic_id),))
        gate.admit_producer(header.producer_id)
    except SemelError as error:
        return error
    return None


def _refusal(batch: bytes, header: BatchHeader) -> SemelError | None:
    """Why nobody could read the batch; None if all can. Any thread."""
    try:
        check_columns(batch, header)
    except SemelError as error:
        return error
    return None


class ProduceHandler:
    """Handles BrokerStream.Produce, and ends its streams when mastership is lost."""

    def __init__(
        self,
        node: ProduceNode,
        unpackers: Executor | None = None,
        enforcer: Enforcer | None = None,
        quotas: BrokerQuotas | None = None,
    ) -> None:
        """`unpackers` are as for `ProduceStream`. Without an `enforcer` everybody may write to
        every topic, without `quotas` as much as the node takes."""
        self._node = node
        self._quotas = quotas
        self._unpackers = unpackers
        self._enforcer = enforcer
        self.counters = ProduceCounters()
        self._streams: dict[ProduceStream, None] = {}
        """In the order in which they came; the order of a set would change from run to run."""

    async def produce(self, _: object, context: StreamContext) -> None:
        """One client's stream."""
        stream = ProduceStream(self._node, self.counters, self._unpackers)
        if self._quotas is not None:
            stream.pace = WritePace(self._quotas, calling_principal(), stream.tell_waiting)
        self._streams[stream] = None
        try:
            try:
                self._node.check_master()
            except NotMaster as error:
                stream.fail(error)
            await context.send_initial_metadata(levels_metadata(self._node.levels()))
            if self._enforcer is None:
                await stream.serve(context)
                return
            with self._enforcer.gate(_METHOD, stream.fail) as stream.gate:
                await stream.serve(context)
        finally:
            del self._streams[stream]
            if stream.pace is not None:
                stream.pace.close()

    @property
    def stream_count(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def on_mastership_lost(self, error: NotMaster) -> None:
        """Sends every client to the new master."""
        for stream in self._streams:
            stream.fail(error)

    def on_level_raised(self) -> None:
        """Ends all streams: a client hears of the level when it connects."""
        for stream in self._streams:
            stream.fail(Unavailable("the broker group's feature level has risen; connect again"))
