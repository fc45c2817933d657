"""Programs that read, write and commit in one: each message of the topic is copied once.

How it works. A *copyist* is a program of Kafka's kind and the gateway that it talks to, in one
process: the gateway's coordinators of transactional ids, its producers' lanes and its offsets of
groups are production code; only Kafka's wire between the two is missing. It reads the topic from
its group's progress on, writes a copy of each message to another topic, and commits the copies and
the progress in one transaction.

All copyists have one transactional id and one group, and each believes that it is the one: whoever
begins fences those before it, which go on, sleep, die with messages in hand, or carry on though
they were told that they are fenced. Each is also the coordinator of the id, as two gateways may be
for a moment. So the brokers' log alone decides. A copyist does what Kafka's clients do: first
InitProducerId, then the group's offsets; a transaction that it is not sure of is the end of its
producer.

A second group has its progress staged beside the first. An *eraser* deletes it, or parts of it,
while transactions are under way; so nobody reads by it.

What must hold
1. At the end there is one copy of each message below the group's progress, and none of any other.
   What retention has taken away before anybody has read it has none.
2. Who is told that its transaction is committed finds the progress there, and so does whoever
   begins after it.

Not here: progress after each entry, also of the second group (`consumption.py`,
`staged_progress.py`), faults (`parts/copying.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import pyarrow as pa
from kio.schema.errors import ErrorCode

from semel.client import connect_async
from semel.client.admin.resets import forget_group
from semel.client.core.routing import QueueRoute
from semel.client.reading.offsets import list_offsets
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.committed_offsets import CommittedOffsets, Place
from semel.gateway.coordination.group_locks import Deposed, GroupLocks
from semel.gateway.coordination.line_progress import Progress
from semel.gateway.coordination.transaction_service import TransactionRefused, TransactionService
from semel.gateway.dispatch import GatewayPlace
from semel.gateway.partitions import PartitionedTopic
from semel.gateway.producing.kafka_lanes import BatchOutcome, NumberedBatch
from semel.gateway.producing.kafka_numbers import Numbers
from semel.gateway.producing.stage_lanes import StageProducers
from semel.gateway.transactions.standing import Producer
from semel.protos.columns import Columns, encode_batch
from semel.protos.compat import timeout
from semel.protos.errors import SemelError, TopicExists, UnknownGroup
from semel.protos.ids import ProducerId, QueueId, QueueKey, TopicId
from semel.protos.levels import LEVEL_MIN
from tests.checking.history import digest_of
from tests.checking.raw_log import Fold
from tests.world.clients import READS, TOPIC, ClientHost
from tests.world.registry import program
from tests.world.run import Run

COPIES: Final = "copies"
ID: Final = "copying"
READERS: Final = "copyists"
NOTES: Final = "notes of copyists"
_QUEUES: Final = 2
_ENDS_MAX: Final = 6
_ANSWER_S: Final = 3.0
_REST_S: Final = (0.05, 0.4, 1.5)
"""How long who was fenced rests, on average. If all began again at once, none would get on."""
_TIMEOUTS_MS: Final = (1_000, 3_000, 60_000)
_ERA: Final = 1
"""Each producer is the only reader of its generation."""

Spot = tuple[int, int]
"""A queue's number, and an offset."""


class OverError(Exception):
    """The producer cannot go on; the next one begins."""


class Desk:
    """What all copyists of a run know, and what they may not forget."""

    def __init__(self) -> None:
        self.generations = count(1)
        """The group's next ones. Controllers give each once, and they rise."""
        self.acknowledged: dict[int, int] = defaultdict(int)
        """By partition: how far a commit was answered with success."""
        self.gone: set[Spot] = set()
        """Messages that nobody will ever read: they were trimmed first."""
        self.topics: dict[str, int] = {}
        """Ids of the topics."""


class _Alone:
    """The gateways that a copyist knows: its own."""

    def __init__(self, host: str) -> None:
        self.own = GatewayPlace(1, host, 9092)
        self.present = (self.own,)
        self.missed: tuple[GatewayPlace, ...] = ()

    async def checked(self) -> tuple[GatewayPlace, ...]:
        return self.present


class _Input(NamedTuple):
    partition: int
    queue: QueueKey
    offset: int
    next_offset: int
    """The partition's, behind it."""
    copy: bytes


class Copyist(ClientHost):
    """See the module's text; one producer after the other."""

    stage = READS
    topics = (COPIES,)

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self.run = run
        self.desk = run.shared(Desk)
        self.mean_s = run.plan.send_mean_s

    async def work(self, client: Any) -> None:
        with suppress(TopicExists):  # and was split
            await client.admin.create_topic(
                COPIES, queues=_QUEUES, groups=self.run.home_groups, if_not_exists=True
            )
        async with connect_async(
            self.bootstrap,
            request_timeout_ms=4_000,
            connect_timeout_ms=3_000,
            keep_routes=False,
            level_max=self.level_max,
            security=self.security,
        ) as other:
            await self._work(_Gateway(client, self.name), _Gateway(other, self.name))

    async def _work(self, gateway: _Gateway, other: _Gateway) -> None:
        gateway.service.start()
        try:
            while not (self.stopping and self.run.is_read(READERS)):
                try:
                    await _Life(self, gateway, other).run()
                except (OverError, Deposed, TransactionRefused) as over:
                    self.world.tell(f"over: {over!r}")
                    await self.pause(self.random.choice(_REST_S))
                await self.pause(self.mean_s)
        finally:
            await gateway.service.close()
        self.done = True

    async def wind_up(self) -> None:
        """Goes on until all is copied."""

    def verdict(self, fold: Fold) -> str:
        """Compares the copies with the messages."""
        ids = {name: number for number, name in fold.topics.items()}
        if COPIES not in ids:
            return ""
        copies = Counter(row.digest for row in fold.rows if row.queue[0] == ids[COPIES])
        for row in fold.rows:
            if row.queue[0] != ids[TOPIC]:
                continue
            spot = row.queue[1], row.offset
            found = copies.pop(digest_of(copy_of(spot, row.digest)), 0)
            progress = self.progress(QueueKey(TopicId(ids[TOPIC]), QueueId(spot[0])))
            due = int(row.offset < progress)
            if found != due and (found or spot not in self.desk.gone):
                return f"there are {found} copies of {spot}, and progress is {progress}"
        return f"copies of nothing: {len(copies)}" if copies else ""

    def progress(self, key: QueueKey) -> int:
        """What the group has committed of a queue, as the logs say; -1 for nothing."""
        groups = (group.invariants.folded.consumption for group in self.run.groups)
        return max(group.progress(READERS, key) for group in groups)


def copy_of(spot: Spot, digest: str) -> bytes:
    """The copy of the message at this place."""
    return f"{spot[0]}/{spot[1]}/{digest}".encode()


class _Gateway:
    """The parts of a gateway that answer about transactions, on one client."""

    def __init__(self, client: Any, host: str) -> None:
        self.client = client
        self.cluster = client._session.cluster
        self.caller = Caller(client, checks=False)
        self.service = TransactionService(self.caller, _Alone(host))
        topics = self.caller.topics
        self.stages = StageProducers(self.cluster, topics.on_sealed, topics.is_split)

    def offsets(self, group: str, generation: int) -> CommittedOffsets:
        locks = GroupLocks(self.cluster, group, generation)
        return CommittedOffsets(self.cluster, self.caller.topics, locks)


class _Life:
    """One producer, from its InitProducerId to its end."""

    def __init__(self, owner: Copyist, gateway: _Gateway, other: _Gateway) -> None:
        """Batches may come to the `other` gateway, too."""
        self._owner = owner
        self._world = owner.world
        self._random = owner.random
        self._gateway = gateway
        self._gateways = gateway, other
        self._service = gateway.service
        self._producer = Producer(ID, -1, -1)
        self._sequences: dict[int, int] = defaultdict(int)
        """The next number at each partition of the copies."""
        self._at: dict[int, int] = {}
        """The next offset to read of each partition."""
        self._unheard = False
        """Batches are on their way of which nobody waits to hear. A producer of Kafka raises its
        epoch then: they must not get into its next transaction."""

    async def run(self) -> None:
        """Raises OverError, Deposed, TransactionRefused, SemelError."""
        owner, gateway = self._owner, self._gateway
        timeout_ms = self._random.choice(_TIMEOUTS_MS)
        given = await self._service.initialise(ID, timeout_ms, None, None)
        if given.error is not ErrorCode.none:
            raise OverError(given.error.name)
        self._producer = Producer(ID, given.producer_id, given.epoch)
        self._world.count("copyist begins")
        generation = next(owner.desk.generations)
        self._offsets = gateway.offsets(READERS, generation)
        self._notes = gateway.offsets(NOTES, generation)
        while not (owner.stopping and owner.run.is_read(READERS)):
            topic = await gateway.caller.topics.renewed(TOPIC)
            await self._find(topic)
            inputs = await self._read(topic)
            if inputs:
                await self._copy(inputs)
            if self._unheard:
                raise OverError("batches are on their way")
            await owner.pause(owner.mean_s)

    async def _find(self, topic: PartitionedTopic) -> None:
        """Learns where the group stands at partitions that are new to this producer."""
        missing = [(TOPIC, number) for number in range(topic.count) if number not in self._at]
        if not missing:
            return
        before = dict(self._owner.desk.acknowledged)
        found = await self._offsets.fetch(missing, _ERA)
        for (_, number), progress in found.items():
            if isinstance(progress, SemelError):
                raise progress
            at = self._at[number] = max(progress.offset, 0)
            if at < before.get(number, 0):
                self._world.loop.errors.append(
                    f"partition {number} is at {at}, and {before[number]} was acknowledged"
                )

    # --- reading

    async def _read(self, topic: PartitionedTopic) -> list[_Input]:
        """The next messages of some partitions."""
        found: list[_Input] = []
        numbers = range(topic.count)
        for number in self._random.sample(numbers, self._random.randint(1, len(numbers))):
            line = topic.partition(number)
            place, offset = line.spot(self._at[number])
            queue, start = line.queues[place], line.starts[place]
            for message in await self._messages(queue, offset):
                spot = queue.key.queue_id, message.offset
                copy = copy_of(spot, digest_of(message.value, message.key))
                self._owner.desk.gone |= {(spot[0], each) for each in range(offset, spot[1])}
                offset = spot[1] + 1
                found.append(_Input(number, queue.key, spot[1], start + offset, copy))
        return found

    @property
    def _counts(self) -> tuple[int, ...]:
        """How many messages are read at a time. When the run ends, that may be all that are left:
        other programs may have sent many hundreds."""
        return (1, 3, 8, 500) if self._owner.stopping else (1, 3, 8)

    async def _messages(self, queue: QueueRoute, offset: int) -> list[Any]:
        number = queue.key.queue_id
        known = (await list_offsets(self._gateway.cluster, [queue]))[number]
        begin = max(offset, known.log_start_offset)
        if begin >= known.log_end_offset:
            return []
        async with self._gateway.client.reader(
            TOPIC, queues=[number], start={number: begin}, end="latest"
        ) as reader:
            messages = await reader.poll(self._random.choice(self._counts), 0.5)
        return [message for message in messages if message.queue == number]

    # --- one transaction

    async def _copy(self, inputs: list[_Input]) -> None:
        self._world.tell(f"copies {[(each.queue.queue_id, each.offset) for each in inputs]}")
        await self._add(await self._homes())
        await self._write(inputs)
        staged = await self._stage(inputs)
        if self._random.random() < (0.08 if self._owner.stopping else 0.2):
            await asyncio.sleep(self._random.choice((0.1, 0.3, 1.5)))
        if staged and self._random.random() < 0.9:
            await self._commit(inputs)
            return
        self._world.count("copies given up")
        if await self._end(committed=False) is not ErrorCode.none:
            raise OverError("the abort was refused")

    async def _homes(self) -> PartitionedTopic:
        return await self._gateway.caller.topics.renewed(COPIES)

    async def _add(self, copies: PartitionedTopic) -> None:
        self._copies = copies
        queues = [copies.partition(number).open for number in range(copies.count)]
        for some in (queues, ()):
            code = await self._service.add(self._producer, some, None)
            if code is not ErrorCode.none:
                await self._refused(code)

    async def _refused(self, code: ErrorCode) -> None:
        """The producer was told that it cannot go on; some do not listen."""
        self._world.count(f"copyist refused: {code.name}")
        if code is ErrorCode.unknown_producer_id:  # clients abort then, and go on
            if await self._end(committed=False) is ErrorCode.none:
                self._world.count("lost copies given up")
        elif self._random.random() < 0.5:
            self._world.count("copyist carries on")
            await self._owner.pause(self._owner.mean_s)
            await self._end(committed=True)
        raise OverError(code.name)

    async def _write(self, inputs: Iterable[_Input]) -> None:
        """Raises OverError unless all copies are staged."""
        by_partition: dict[int, list[bytes]] = defaultdict(list)
        for each in inputs:
            by_partition[(each.queue.queue_id + each.offset) % self._copies.count].append(each.copy)
        outcomes = [outcome for each in by_partition.items() for outcome in self._send_all(*each)]
        try:
            async with timeout(_ANSWER_S):
                told = [await outcome for outcome in outcomes]
        except TimeoutError:
            raise OverError("no answer to a batch") from None
        errors = [outcome.error for outcome in told if outcome.error is not None]
        if errors:
            self._world.count(f"copies not staged: {type(errors[0]).__name__}")
            await self._end(committed=False)
            raise OverError(str(errors[0]))

    def _send_all(self, partition: int, values: list[bytes]) -> list[asyncio.Future[BatchOutcome]]:
        """Sends batches to a gateway. Some are sent again, to another one, because the connection
        broke: all of them, in their order, and the new answers count."""
        base = self._sequences[partition]
        self._sequences[partition] += len(values)
        size = max(2, len(values) // 4)
        pieces = {base + at: values[at : at + size] for at in range(0, len(values), size)}
        first = self._random.randrange(2)
        answers = [self._send(first, partition, *each) for each in pieces.items()]
        if self._random.random() < 0.1:
            self._world.count("batches sent to another gateway")
            self._unheard = True
            answers = [self._send(1 - first, partition, *each) for each in pieces.items()]
        return answers

    def _send(
        self, gateway: int, partition: int, base: int, values: list[bytes]
    ) -> asyncio.Future[BatchOutcome]:
        line, producer = self._copies.partition(partition), self._producer
        answer: asyncio.Future[BatchOutcome] = asyncio.get_running_loop().create_future()
        batch = NumberedBatch(
            base_sequence=base,
            count=len(values),
            encode=partial(_encode, line.open.key, values),
            level=LEVEL_MIN,
            tell=lambda outcome: None if answer.done() else answer.set_result(outcome),
        )
        stages = self._gateways[gateway].stages
        stages.stage(line, ID, producer.producer_id, producer.epoch, batch)
        return answer

    async def _stage(self, inputs: Iterable[_Input]) -> bool:
        """Stages the progress of both groups; False if that of one is not."""
        ends = {each.partition: each.next_offset for each in inputs}
        wanted = {(TOPIC, number): Progress(end, b"") for number, end in ends.items()}
        try:
            staged_in = await self._service.staged_in(self._producer, None)
        except TransactionRefused as refused:
            await self._refused(refused.code)
            raise
        failed: Mapping[Place, SemelError] = await self._offsets.stage(wanted, staged_in)
        if not failed and self._random.random() < 0.5:
            failed = await self._notes.stage(wanted, staged_in)
        for error in failed.values():
            self._world.count(f"progress not staged: {type(error).__name__}")
        return not failed

    async def _commit(self, inputs: Iterable[_Input]) -> None:
        code = await self._end(committed=True)
        if code is not ErrorCode.none:
            await self._refused(code)
        self._world.count("copies committed")
        for each in inputs:
            if (progress := self._owner.progress(each.queue)) <= each.offset:
                self._world.loop.errors.append(f"{each} is committed, and progress is {progress}")
            self._at[each.partition] = each.next_offset
            known = self._owner.desk.acknowledged
            known[each.partition] = max(known[each.partition], each.next_offset)

    async def _end(self, *, committed: bool) -> ErrorCode:
        """Asks again as long as the answer says so, not for ever. Raises TransactionRefused."""
        for _ in range(_ENDS_MAX):
            try:
                return await self._service.end(self._producer, committed, None)
            except TransactionRefused as refused:
                if refused.code is not ErrorCode.coordinator_not_available:
                    raise
                self._world.count("end of a transaction in doubt")
            await self._owner.pause(self._owner.mean_s)
        raise OverError("nobody knows what became of the transaction")


def _encode(
    key: QueueKey,
    values: list[bytes],
    producer_id: ProducerId,
    epoch: int,
    session: int,
    numbers: Numbers,
) -> bytes:
    return encode_batch(
        Columns(values=pa.array(values, pa.binary())),
        topic_id=key.topic_id,
        queue_id=key.queue_id,
        producer_id=producer_id,
        epoch=epoch,
        session=session,
        previous_sequence=numbers.previous,
        base_sequence=numbers.base,
        last_sequence=numbers.last,
        timestamp_us=1_700_000_000_000_000,
    )


class Eraser(ClientHost):
    """Deletes the second group, or its progress on some partitions, again and again."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self.mean_s = run.plan.send_mean_s * 3

    async def work(self, client: Any) -> None:
        gateway = _Gateway(client, self.name)
        while not self.stopping:
            await self.pause(self.mean_s)
            if self.random.random() < 0.3:
                try:
                    await forget_group(gateway.cluster, NOTES)
                except UnknownGroup:
                    continue
                self.world.count("notes deleted")
                continue
            topic = await gateway.caller.topics.find(TOPIC)
            number = self.random.randrange(topic.count)
            await gateway.offsets(NOTES, 0).forget([(TOPIC, number)])
            self.world.count("notes on a partition deleted")
        self.done = True


@program("copyist", host="cy")
def _copyist(run: Run, host: str) -> Copyist:
    return Copyist(run, host)


@program("eraser", host="er")
def _eraser(run: Run, host: str) -> Eraser:
    return Eraser(run, host)
