"""Clients of a simulated cluster that speak the produce protocol themselves.

How it works. A *hasty* one does without the SDK's window: batches come before their predecessors,
and twice. A *doubter* has a durable name, sends one message at a time and does not wait long. Then
it asks (`GetProduceOutcome`), sends the same batch again, or fences with a higher session; the
answer of a fence is final, so what it does not contain goes to another queue, in which the checker
must not find it a second time. Its next life settles by its first fence what was open when it
died. Every answer is noted and judged (`tests/checking`).

Not here: programs over the SDK (`clients.py`), when they die (`nemesis.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pyarrow as pa

from semel.client.core.routing import QueueRoute
from semel.client.producer.identity import Identity
from semel.client.transport.connection import Purpose
from semel.protos import compat
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import (
    DedupStateExpired,
    NotMaster,
    OutOfOrderSequence,
    QueueMoved,
    Unavailable,
    from_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.streams import PRODUCE_METHOD, encode_produce
from semel.protos.v1 import broker_pb2
from tests.checking.history import Answer, Asked, Outcome, Send, digest_of
from tests.world.clients import TOPIC, ClientHost
from tests.world.registry import program
from tests.world.world import World

if TYPE_CHECKING:
    from tests.world.run import Run


def batch_of(value: bytes, identity: Identity, key: QueueKey, session: int, sequence: int) -> bytes:
    """A batch of one message behind sequence - 1."""
    return encode_batch(
        Columns(values=pa.array([value], pa.binary())),
        topic_id=key.topic_id,
        queue_id=key.queue_id,
        producer_id=identity.producer_id,
        epoch=identity.epoch,
        session=session,
        previous_sequence=sequence - 1,
        base_sequence=sequence,
        last_sequence=sequence,
        timestamp_us=1_700_000_000_000_000,
    )


class Hasty(ClientHost):
    """Speaks the produce protocol itself: sends each window in a random order, some of it twice."""

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.number = 0

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        identity = Identity(cluster, "")
        await identity.ensure()
        queue = self.random.choice((await cluster.topic(TOPIC)).queues)
        await identity.fence([queue], 1, 3.0, after_expiry=True)
        last = -1
        while not self.stopping:
            batches: dict[int, tuple[bytes, Send]] = {}
            for sequence in range(last + 1, last + 5):
                batches[sequence] = self._batch(identity, queue.key, sequence)
            await self._store(cluster, queue.group_id, batches)
            last += 4
            await self.pause(4 * self.mean_s)
        self.done = True

    def _batch(self, identity: Identity, key: QueueKey, sequence: int) -> tuple[bytes, Send]:
        self.number += 1
        value = self.value(self.number)
        batch = batch_of(value, identity, key, 1, sequence)
        note = Send(
            client=f"{self.name}#{self.starts}",
            number=self.number,
            digest=digest_of(value),
            began_s=self.world.now,
            topic=TOPIC,
        )
        self.world.history.begin_send(note)
        return batch, note

    async def _store(
        self, cluster: Any, group_id: Any, batches: dict[int, tuple[bytes, Send]]
    ) -> None:
        """Sends the window to the present master until all of it is answered.

        Raises ProducerFenced and DedupStateExpired: the fate of what is open stays unknown then.
        """
        while batches and not self.stopping:
            master = await cluster.master(group_id)
            channel = cluster.connections.channel(master.address, Purpose.PRODUCE)
            call = channel.stream_stream(
                PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
            )()
            order = [batch for batch, _ in batches.values()]
            order += self.random.sample(order, 1)
            self.random.shuffle(order)
            try:
                async with compat.timeout(1.0):
                    for batch in order:
                        await call.write(encode_produce([batch]))
                    while batches and (reply := await call.read()) is not grpc.aio.EOF:
                        self._take(reply, batches)
            except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError, NotMaster) as error:
                cluster.on_master_error(group_id, master, Unavailable(f"try again: {error!r}"))
                await self.pause(0.05)
            finally:
                call.cancel()

    def _take(self, reply: broker_pb2.ProduceReply, batches: dict[int, tuple[bytes, Send]]) -> None:
        world = self.world
        for ack in reply.acks:
            if ack.base_sequence not in batches:
                continue
            if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                error = from_detail(ack.error)
                if not error.retriable and not isinstance(error, OutOfOrderSequence):
                    raise error
                continue
            _, note = batches.pop(ack.base_sequence)
            note.outcome, note.ended_s = Outcome.OK, world.now
            note.queue, note.offset = (ack.topic_id, ack.queue_id), ack.base_offset
            note.sequence = ack.base_sequence
            world.tell(f"ok {note.number} at {ack.queue_id}:{ack.base_offset}")
        if reply.HasField("error"):
            raise from_detail(reply.error)


@dataclass(slots=True)
class _Doubt:
    """A message that was sent and not acknowledged."""

    value: bytes
    note: Send
    queue: QueueRoute
    sequence: int
    incarnation: tuple[int, int, int]
    """(producer id, epoch, session) of its newest batch."""


@program("hasty", host="h")
def _hasty(run: Run, host: str) -> Hasty:
    return Hasty(run.world, host, run.plan.send_mean_s)


class Doubter(ClientHost):
    """A named producer of one message at a time, with its own journal of what is open."""

    trusts_mere_reads = False
    """A planted bug: takes "not committed" of a confirmed read for final."""

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.number = 0
        self.doubt: _Doubt | None = None
        self._last: dict[QueueKey, int] = {}
        """Last sequence by queue, as far as this incarnation knows."""

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        identity = Identity(cluster, self.name)
        await identity.ensure()
        queues = (await cluster.topic(TOPIC)).queues
        session = 1
        await self._fence(identity, queues, session)
        while self.doubt is not None or not self.stopping:
            if self.doubt is None:
                await self.pause(self.mean_s)
                self._begin(self.random.choice(queues))
            doubt = self.doubt
            assert doubt is not None
            await self._send(cluster, identity, session, doubt)
            if self.doubt is None:
                continue
            if self.random.random() < 0.6:
                answer = await self._ask(cluster, doubt)
                if answer is Answer.NOT_COMMITTED and self.trusts_mere_reads:
                    others = [queue for queue in queues if queue != doubt.queue]
                    doubt.queue = self.random.choice(others or queues)
            if self.doubt is None or self.random.random() < 0.4:
                continue  # the same batch again
            session += 1
            await self._fence(identity, queues, session)
        self.done = True

    async def wind_up(self) -> None:
        """Goes on until nothing is open."""

    def _begin(self, queue: QueueRoute) -> None:
        self.number += 1
        value = self.value(self.number)
        note = Send(
            client=f"{self.name}.{self.number}",  # several queues: no order among its messages
            number=self.number,
            digest=digest_of(value),
            began_s=self.world.now,
            topic=TOPIC,
            producer=self.name,
        )
        self.world.history.begin_send(note)
        self.doubt = _Doubt(value, note, queue, -1, (0, 0, 0))

    def _settle(self, doubt: _Doubt, outcome: Outcome, offset: int = -1) -> None:
        note = doubt.note
        if outcome is not Outcome.UNKNOWN:
            note.outcome, note.ended_s = outcome, self.world.now
            key = doubt.queue.key
            note.queue, note.offset = (key.topic_id, key.queue_id), offset
            note.sequence = doubt.sequence
            self._last[doubt.queue.key] = doubt.sequence
            self.world.tell(f"{outcome} {note.number} at {doubt.queue.key.queue_id}:{offset}")
        self.doubt = None

    async def _send(self, cluster: Any, identity: Identity, session: int, doubt: _Doubt) -> None:
        """One attempt, with little patience."""
        key = doubt.queue.key
        doubt.sequence = self._last[key] + 1
        doubt.incarnation = (int(identity.producer_id), identity.epoch, session)
        home = cluster.routes.home(doubt.queue)
        master = await cluster.master(home)
        channel = cluster.connections.channel(master.address, Purpose.PRODUCE)
        call = channel.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()
        batch = batch_of(doubt.value, identity, key, session, doubt.sequence)
        try:
            async with compat.timeout(self.random.choice((0.003, 0.01, 0.03, 0.2, 1.0))):
                await call.write(encode_produce([batch]))
                while self.doubt is not None and (reply := await call.read()) is not grpc.aio.EOF:
                    for ack in reply.acks:
                        if ack.status != broker_pb2.PRODUCE_STATUS_FAILED:
                            self._settle(doubt, Outcome.OK, ack.base_offset)
                        elif not (error := from_detail(ack.error)).retriable:
                            raise error
                        elif isinstance(error, QueueMoved):
                            cluster.routes.on_moved(error)
                    if reply.HasField("error"):
                        raise from_detail(reply.error)
        except TimeoutError:
            self.world.count("producer in doubt")
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            cluster.on_master_error(home, master, Unavailable(f"try again: {error!r}"))
        except NotMaster as error:
            cluster.on_master_error(home, master, error)
        finally:
            call.cancel()

    async def _ask(self, cluster: Any, doubt: _Doubt) -> Answer:
        """A confirmed read: true when it says yes, and open when it says no."""
        note = self._asked(doubt, final=False)
        reply = await cluster.call_master(
            cluster.routes.home(doubt.queue),
            "GetProduceOutcome",
            broker_pb2.ProduceOutcomeRequest(
                queue=queue_ref(doubt.queue.key),
                producer_id=doubt.incarnation[0],
                sequence=doubt.sequence,
            ),
            2.0,
        )
        kinds = broker_pb2.ProduceOutcomeReply
        answer = {
            kinds.OUTCOME_COMMITTED: Answer.COMMITTED,
            kinds.OUTCOME_NOT_COMMITTED: Answer.NOT_COMMITTED,
            kinds.OUTCOME_TOO_OLD: Answer.TOO_OLD,
        }[reply.outcome]
        self._answered(note, answer, reply.offset)
        if answer is Answer.COMMITTED:
            self._settle(doubt, Outcome.OK, reply.offset)
        return answer

    def _asked(self, doubt: _Doubt, *, final: bool) -> Asked:
        producer_id, epoch, session = doubt.incarnation
        note = Asked(
            client=f"{self.name}#{self.starts}",
            queue=tuple(doubt.queue.key),  # type: ignore[arg-type]
            digest=doubt.note.digest,
            producer_id=producer_id,
            epoch=epoch,
            session=session,
            sequence=doubt.sequence,
            final=final,
            began_s=self.world.now,
        )
        self.world.history.add(note)
        return note

    def _answered(self, note: Asked, answer: Answer, offset: int = -1) -> None:
        note.answer, note.offset, note.ended_s = answer, offset, self.world.now
        self.world.count(f"outcome {'of a fence' if note.final else 'asked'}: {answer}")

    async def _fence(
        self, identity: Identity, queues: tuple[QueueRoute, ...], session: int
    ) -> None:
        """Nothing older can be stored any more; what is open is settled, or may go elsewhere."""
        doubt = self.doubt
        note = None
        if doubt is not None and doubt.sequence >= 0:
            note = self._asked(doubt, final=True)
        try:
            rows = await identity.fence(list(queues), session, 3.0, after_expiry=False)
        except DedupStateExpired:
            self.world.count("doubter forgotten")
            if doubt is not None:
                self._settle(doubt, Outcome.UNKNOWN)
            note = None
            rows = await identity.fence(list(queues), session, 3.0, after_expiry=True)
        self._last = {queue.key: row.last_sequence for queue, row in zip(queues, rows, strict=True)}
        if note is None or doubt is None:
            return
        (row,) = [one for q, one in zip(queues, rows, strict=True) if q.key == doubt.queue.key]
        entries = [one for one in row.window if one.base_sequence == doubt.sequence]
        if entries:
            self._answered(note, Answer.COMMITTED, entries[0].base_offset)
            self._settle(doubt, Outcome.OK, entries[0].base_offset)
            self._last[doubt.queue.key] = row.last_sequence
        elif row.last_sequence < doubt.sequence:
            self._answered(note, Answer.NOT_COMMITTED)
            if self.random.random() < 0.3:
                self._settle(doubt, Outcome.FAIL)  # it gives up: certainly absent
                self._last[doubt.queue.key] = row.last_sequence
            else:
                doubt.queue, doubt.sequence = self.random.choice(queues), -1
        else:
            self._answered(note, Answer.TOO_OLD)
            self._settle(doubt, Outcome.UNKNOWN)


@program("doubter", host="d")
def _doubter(run: Run, host: str) -> Doubter:
    return Doubter(run.world, host, run.plan.send_mean_s)
