"""Producers that send messages with ids through the SDK, which chooses their queues.

How it works. All *payers* of a world share a small pool of ids. The ids are their own: a repeater
takes any queue for an id, as the protocol lets it, and so several broker groups may have one of
its ids. A payer sends with one call each or in bulk, one message at a time or more than go without
Arrow, and sends again what has failed, and what any payer has sent a moment ago. Some messages have
no id. When its process dies, its next life goes on with the same pool.

What the SDK puts on its streams is noted, as repeaters note what they send: a log says only what is
stored.

Not here: producers that choose queues themselves (`repeaters.py`), what must hold
(`tests/checking/client_ids.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from semel.protos.batch import BROKER_HEADER_BYTES, decode_header
from semel.protos.errors import IdConflict, ProducerFenced, SemelError
from semel.protos.few_rows import FEW_ROWS_MAX
from semel.protos.staging import STAGER_ID_MIN
from tests.checking.client_ids import SentAnswer
from tests.checking.message_ids import messages_in, name_of
from tests.checking.moved_ids import Message
from tests.world.clients import ClientHost
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.registry import program
from tests.world.repeaters import SentIds
from tests.world.run import Run

_COUNTS: Final = (1, 1, 1, 2, 5, FEW_ROWS_MAX, FEW_ROWS_MAX + 10)
"""How many messages are sent at a time."""


class Payments:
    """What all payers of a world have sent and heard."""

    def __init__(self) -> None:
        self.topic_ids: set[int] = set()
        self.messages: set[Message] = set()
        self.answers: list[SentAnswer] = []
        self.recent: dict[str, deque[Message]] = {topic: deque(maxlen=25) for topic in TOPICS}

    @property
    def message_ids(self) -> set[bytes]:
        """The ids that only payers have sent."""
        return {each.message_id for each in self.messages if each.message_id is not None}


class Payer(ClientHost):
    """One producer of the SDK in each life."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._pool = Sizes(run.plan).pool
        self._known = run.shared(Payments)
        self._mean_s = run.plan.send_mean_s
        self._number = 0
        self._again: deque[tuple[str, Message]] = deque(maxlen=50)
        """Messages whose fate is unknown."""
        self._fenced: ProducerFenced | None = None

    async def work(self, client: Any) -> None:
        cluster = client._session.cluster
        topic_ids = {
            topic: int((await cluster.topic(topic, refresh=True)).topic_id) for topic in TOPICS
        }
        self._known.topic_ids |= set(topic_ids.values())
        producer = client.producer(
            self.name if self.random.random() < 0.3 else None,
            after_expiry="restart",
            linger_ms=self.random.choice((0, 1, 20)),
            delivery_timeout_ms=self.random.choice((800, 3_000)),
        )
        self._fenced = None
        tasks: list[asyncio.Task[None]] = []
        while not self.stopping:
            if self._fenced is not None:
                raise self._fenced
            topic = self.random.choice(TOPICS)
            messages = self._messages(topic, self.random.choice(_COUNTS))
            self._known.messages |= set(messages)
            self._known.recent[topic].extend(messages)
            if self.random.random() < 0.25:
                await self._send_many(producer, topic, messages)
            else:
                for message in messages:
                    sent = producer.send(topic, message.value, message_id=message.message_id)
                    settled = self._settle(sent, topic, topic_ids[topic], message)
                    tasks.append(asyncio.ensure_future(settled))
            await self.pause(self._mean_s)
        await asyncio.gather(*tasks)
        self.done = True

    def _messages(self, topic: str, count: int) -> list[Message]:
        again = [message for where, message in self._again if where == topic][:count]
        self._again = deque(each for each in self._again if each[1] not in again)
        return again + [self._message(topic) for _ in range(count - len(again))]

    def _message(self, topic: str) -> Message:
        recent, chance = self._known.recent[topic], self.random.random()
        if recent and chance < 0.4:
            return self.random.choice(recent)
        if chance < 0.45:
            self._number += 1
            return Message(None, self.value(self._number))
        number = self.random.randrange(self._pool)
        content = b"other" if self.random.random() < 0.1 else b"content"
        return Message(b"payment %d" % number, b"%s of %d" % (content, number))

    async def _send_many(self, producer: Any, topic: str, messages: list[Message]) -> None:
        """Sends in bulk, and waits for the answer now and then."""
        sent = await producer.send_many(
            topic,
            [message.value for message in messages],
            message_ids=[message.message_id for message in messages],
        )
        if self.random.random() < 0.5:
            summary = await sent
            self.world.seen["duplicate told to a payer"] += summary.duplicates

    async def _settle(self, sent: Any, topic: str, topic_id: int, message: Message) -> None:
        world = self.world
        try:
            found = await sent
        except IdConflict:
            world.count("conflict told to a payer")
            return
        except SemelError as error:
            world.count(f"payer: {type(error).__name__}")
            self._again.append((topic, message))
            if isinstance(error, ProducerFenced):
                self._fenced = error
            return
        world.seen["duplicate told to a payer"] += found.duplicate
        if message.message_id is not None:
            self._known.answers.append(
                SentAnswer(
                    topic_id=topic_id,
                    message=message,
                    queue=found.queue,
                    offset=found.offset,
                    duplicate=found.duplicate,
                )
            )


def watched_encode(run: Run, encode: Callable[[list[bytes]], bytes]) -> Callable[..., bytes]:
    """`encode_produce` of the SDK, which notes what payers' streams carry."""

    def watched(batches: list[bytes]) -> bytes:
        known = run.shared(Payments)
        for batch in batches:
            header = decode_header(batch)
            if header.topic_id in known.topic_ids and header.producer_id < STAGER_ID_MIN:
                _note(run, batch)
        return encode(batches)

    return watched


def _note(run: Run, batch: bytes) -> None:
    stored = bytes(BROKER_HEADER_BYTES) + batch  # a broker puts its own header there
    messages, sequences = messages_in(stored)
    name = name_of(stored)
    if not run.shared(Payments).messages.issuperset(messages):
        run.world.loop.errors.append(f"the SDK sends {messages} as {name}, and nobody else has")
    sent = run.shared(SentIds).sent
    for sequence, message in zip(sequences, messages, strict=True):
        sent[name, sequence] = message
    run.world.count("batch of a payer")


@program("payer", host="py")
def _payer(run: Run, host: str) -> Payer:
    return Payer(run, host)
