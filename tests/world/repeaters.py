"""Producers that send messages with ids, many of them again: their own and those of others.

How it works. All repeaters of a world share a small pool of ids. Each sends batches of messages
with ids of the pool, mostly with the one content that belongs to the id, and often messages that
somebody has sent a moment ago, whether or not those were answered. Some messages have no id, some
batches are delayed, and some have no messages at all, as those of a producer with source positions.
A batch that is not answered is sent again, sometimes twice at a time; when that takes too long the
repeater goes on as another producer.

Not here: the topics, and what must hold (`parts/ids.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from semel.client.core.encoding import encode_mark
from semel.client.core.routing import QueueRoute
from semel.client.producer.identity import Identity
from semel.client.transport.connection import Purpose
from semel.protos import compat
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import NotMaster, OutOfOrderSequence, QueueMoved, Unavailable, from_detail
from semel.protos.ids import Sequence as Number
from semel.protos.streams import PRODUCE_METHOD, encode_produce
from semel.protos.v1 import broker_pb2
from tests.checking.id_topics import BatchName
from tests.checking.message_ids import Answer
from tests.checking.moved_ids import Message
from tests.world.clients import ClientHost
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.registry import program
from tests.world.run import Run

_ATTEMPTS: Final = 6


class SentIds:
    """What all repeaters of a world have sent and heard."""

    def __init__(self) -> None:
        self.sent: dict[tuple[BatchName, int], Message] = {}
        self.answers: list[Answer] = []
        self.recent: dict[str, deque[Message]] = {topic: deque(maxlen=25) for topic in TOPICS}
        self.committed: set[tuple[str, int]] = set()
        """Transactions and epochs whose commits were answered."""
        self.marks: set[BatchName] = set()
        """Batches without messages."""
        self.delayed: deque[tuple[str, bytes, int]] = deque(maxlen=12)
        """Topic, id and delivery time of messages that may be cancelled."""
        self.without: set[int] = set()
        """Nodes that lacked ids for another reason than a loss: they had got a snapshot, which has
        none, or had not applied them yet."""


class Repeater(ClientHost):
    """One producer after the other."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._pool = Sizes(run.plan).pool
        self._known = run.shared(SentIds)
        self._mean_s = run.plan.send_mean_s / 2
        self._number = 0
        self._moved = False
        """A queue is not where the routes say."""
        sizes = Sizes(run.plan)
        self.delay_us_max = sizes.delay_us_max
        self.share_delayed = sizes.share_delayed

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        topic = self.random.choice(TOPICS)
        identity = Identity(cluster, self.name if self.random.random() < 0.3 else "")
        await identity.ensure()
        queues = (await cluster.topic(topic, refresh=self.random.random() < 0.3)).queues
        rows = await identity.fence(list(queues), 1, 3.0, after_expiry=True)
        last = {queue.key: row.last_sequence for queue, row in zip(queues, rows, strict=True)}
        while not self.stopping:
            batches: dict[tuple[int, int], tuple[BatchName, bytes]] = {}
            for _ in range(self.random.choice((1, 1, 2, 3))):
                queue = self.random.choice(queues)
                make = self._mark if self.random.random() < 0.05 else self._batch
                name, batch, count = make(identity, queue, topic, last[queue.key])
                batches[name.queue[1], name.base_sequence] = name, batch
                last[queue.key] += count
            if not await self._store(cluster, topic, queues, batches):
                self.world.count("repeater goes on as another producer")
                return
            await self.pause(self._mean_s)
        self.done = True

    def _batch(
        self, identity: Identity, queue: QueueRoute, topic: str, last: int
    ) -> tuple[BatchName, bytes, int]:
        messages = [self._message(topic) for _ in range(self.random.choice((1, 1, 2, 3, 6)))]
        due_us = self.soon_us() if self.random.random() < self.share_delayed else 0
        if due_us:
            named = {each.message_id for each in messages if each.message_id is not None}
            self._known.delayed.extend((topic, each, due_us) for each in sorted(named))
        key, name = queue.key, _name(identity, queue, last + 1)
        for at, message in enumerate(messages):
            self._known.sent[name, last + 1 + at] = message
        self._known.recent[topic].extend(messages)
        keys = [message.key for message in messages]
        ids = [message.message_id for message in messages]
        batch = encode_batch(
            Columns.from_arrow(
                [message.value for message in messages],
                keys=keys if any(keys) else None,
                message_ids=ids if any(ids) else None,
            ),
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            session=1,
            previous_sequence=last,
            base_sequence=last + 1,
            last_sequence=last + len(messages),
            timestamp_us=1_700_000_000_000_000,
            deliver_at_us=due_us,
        )
        return name, batch, len(messages)

    def _mark(
        self, identity: Identity, queue: QueueRoute, topic: str, last: int
    ) -> tuple[BatchName, bytes, int]:
        """A batch without messages, as a producer with source positions sends it."""
        key, position = queue.key, last + 3
        mark = encode_mark(
            key,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            session=1,
            previous_sequence=Number(last),
            position=Number(position),
            timestamp_us=1_700_000_000_000_000,
        )
        name = _name(identity, queue, position)
        self._known.marks.add(name)
        return name, mark, position - last

    def _message(self, topic: str) -> Message:
        recent, chance = self._known.recent[topic], self.random.random()
        if recent and chance < 0.4:
            return self.random.choice(recent)
        if chance < 0.5:
            self._number += 1
            return Message(None, self.value(self._number))
        number = self.random.randrange(self._pool)
        content = b"other" if self.random.random() < 0.1 else b"content"
        key = b"k%d" % number if number % 3 == 0 else None
        return Message(b"id %d" % number, b"%s of %d" % (content, number), key)

    async def _store(
        self,
        cluster: Any,
        topic: str,
        queues: Sequence[QueueRoute],
        batches: dict[tuple[int, int], tuple[BatchName, bytes]],
    ) -> bool:
        """Sends batches until all are answered, or for long enough; True if they are.

        Raises SemelError: what is open is stored, or not.
        """
        for _ in range(_ATTEMPTS):
            for home in dict.fromkeys(map(cluster.routes.home, queues)):
                own = {queue.key.queue_id for queue in queues if cluster.routes.home(queue) == home}
                mine = [batch for (queue_id, _), (_, batch) in batches.items() if queue_id in own]
                if mine:
                    await self._send(cluster, home, mine, batches)
            if not batches:
                return True
            if self.random.random() < 0.1:
                return False
            if self._moved:
                self._moved = False
                await cluster.topic(topic, refresh=True)
        return False

    async def _send(
        self,
        cluster: Any,
        home: Any,
        order: list[bytes],
        batches: dict[tuple[int, int], tuple[BatchName, bytes]],
    ) -> None:
        """Sends batches to one broker group, some of them twice, and takes the answers that come.

        Raises SemelError.
        """
        open_here = len(batches) - len(order)
        master = await cluster.master(home)
        channel = cluster.connections.channel(master.address, Purpose.PRODUCE)
        call = channel.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()
        if self.random.random() < 0.3:
            order += self.random.sample(order, 1)
        if self.random.random() < 0.2:
            self.random.shuffle(order)
        try:
            async with compat.timeout(self.random.choice((0.02, 0.1, 0.4, 1.0))):
                for batch in order:
                    await call.write(encode_produce([batch]))
                while (
                    len(batches) > open_here
                    and not self._moved
                    and (reply := await call.read()) is not grpc.aio.EOF
                ):
                    self._take(reply, batches)
        except TimeoutError:
            self.world.count("repeater in doubt")
        except (grpc.RpcError, asyncio.InvalidStateError, NotMaster) as error:
            cluster.on_master_error(home, master, Unavailable(f"try again: {error!r}"))
            await self.pause(0.05)
        finally:
            call.cancel()

    def _take(
        self,
        reply: broker_pb2.ProduceReply,
        batches: dict[tuple[int, int], tuple[BatchName, bytes]],
    ) -> None:
        for ack in reply.acks:
            found = batches.get((ack.queue_id, ack.base_sequence))
            if found is None:
                continue
            if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                error = from_detail(ack.error)
                if isinstance(error, QueueMoved):
                    self._moved = True
                elif not error.retriable and not isinstance(error, OutOfOrderSequence):
                    self.world.count(f"repeater refused: {type(error).__name__}")
                    raise error
                continue
            del batches[ack.queue_id, ack.base_sequence]
            if found[0] not in self._known.marks:
                self._known.answers.append(Answer(found[0], ack.base_offset, ack.dropped))
            self.world.tell(f"ok {found[0]} at {ack.base_offset}")
        if reply.HasField("error"):
            raise from_detail(reply.error)


def _name(identity: Identity, queue: QueueRoute, base_sequence: int) -> BatchName:
    key = int(queue.key.topic_id), int(queue.key.queue_id)
    return BatchName(key, int(identity.producer_id), identity.epoch, 1, base_sequence)


@program("repeater", host="r")
def _repeater(run: Run, host: str) -> Repeater:
    return Repeater(run, host)
