"""Semel's transactions as a model in memory, for coordinators of Kafka's that race on it.

How it works. The model keeps what the brokers' log would: the row of one transaction id, stages on
two broker groups, pins, and what was published. A call of a ledger is late, may fail before it is
carried out or lose its answer afterwards, and its parts (one a broker group) are carried out one
after the other, with others in between. Queues may move from one broker group to the other.
`end_lost` does what masters do: it settles pins.

What is checked: what is published is a whole transaction, once (`published`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from semel.client.core.routing import QueueRoute
from semel.gateway.transactions.ledger import Attempt, Found, Part, Pinned, Stage
from semel.gateway.transactions.standing import Row
from semel.protos.errors import TransactionAborted, TransactionFenced, Unavailable
from semel.protos.ids import GroupId, QueueKey

GROUPS = (GroupId(1), GroupId(2))


@dataclass
class _Staged:
    """A stager on one broker group."""

    epoch: int
    timeout_ms: int
    values: dict[QueueKey, list[str]] = field(default_factory=dict)


@dataclass
class TransactionWorld:
    """See the module's text."""

    seed: int
    faulty: bool = True
    now_us: int = 1_000_000_000
    row: Row = field(default_factory=Row)
    next_attempt: int = 1
    decided: int = 0
    """The newest attempt that was decided."""
    staged: dict[tuple[GroupId, int], _Staged] = field(default_factory=dict)
    """By broker group and stager."""
    pins: dict[GroupId, tuple[int, int, frozenset[int]]] = field(default_factory=dict)
    """Epoch, attempt and stagers of what is pinned on a broker group."""
    held: dict[GroupId, dict[int, _Staged]] = field(default_factory=dict)
    """The stagers that are pinned, by broker group and number."""
    moved: Counter[QueueKey] = field(default_factory=Counter)
    """How often each queue was moved."""
    published: list[tuple[int, str]] = field(default_factory=list)
    """Epoch and value of each message, in the order of the publication."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    async def late(self) -> None:
        """Passes some time."""
        self.now_us += self.random.randrange(3_000)
        await asyncio.sleep(self.random.random() / 100)

    def maybe_fails(self) -> None:
        if self.faulty and self.random.random() < 0.04:
            raise Unavailable("the model has lost a call")

    # --- the log ----------------------------------------------------------------------------------

    def begin(self, epoch: int) -> Attempt:
        row = self.row
        if epoch <= row.epoch:
            return Attempt(epoch, 0, row.epoch)
        attempt, self.next_attempt = self.next_attempt, self.next_attempt + 1
        self.row = Row(epoch=row.epoch, begun_epoch=epoch, attempt=attempt, changed_us=self.now_us)
        return Attempt(epoch, attempt, row.epoch)

    def group_of(self, queue: QueueKey) -> GroupId:
        """Where a queue is."""
        return GROUPS[(queue.queue_id + self.moved[queue]) % len(GROUPS)]

    def move(self, queue: QueueKey) -> None:
        """Moves a queue to the other broker group; what is staged for it stays behind and is gone.
        A queue for which something is pinned does not move."""
        group = self.group_of(queue)
        if any(queue in one.values for one in self.held.get(group, {}).values()):
            return
        for (where, _), one in self.staged.items():
            if where == group:
                one.values.pop(queue, None)
        self.moved[queue] += 1

    def stage(self, stager_id: int, queue: QueueKey, value: str) -> bool:
        """Stages one message; returns whether the stager is open at the queue."""
        one = self.staged.get((self.group_of(queue), stager_id))
        if one is None or queue not in one.values:
            return False
        one.values[queue].append(value)
        return True

    def pin(self, group: GroupId, begun: Attempt, claimed: Mapping[int, int]) -> None:
        """Pins stagers that have as many messages as claimed."""
        known = self.pins.get(group)
        if known is not None and known[1] > begun.number:
            raise TransactionFenced("a newer attempt has pinned")
        if known is not None and known[1] == begun.number:
            if known[2] != claimed.keys():
                raise TransactionAborted("the same attempt has pinned something else")
            return
        if known is not None and known[2] == claimed.keys():
            self.pins[group] = begun.epoch, begun.number, known[2]
            return
        for stager_id, count in claimed.items():
            one = self.staged.get((group, stager_id))
            if one is None or sum(map(len, one.values.values())) != count:
                raise TransactionAborted("what is staged is gone, or other than claimed")
        self.pins[group] = begun.epoch, begun.number, frozenset(claimed)
        self.held[group] = {number: self.staged.pop((group, number)) for number in claimed}
        for key in [key for key, each in self.staged.items() if each.epoch <= begun.epoch]:
            if key[0] == group:
                del self.staged[key]

    def decide(self, begun: Attempt, participants: Iterable[GroupId]) -> None:
        if self.decided == begun.number and self.row.epoch == begun.epoch:
            return
        if (self.row.begun_epoch, self.row.attempt) != (begun.epoch, begun.number):
            raise TransactionFenced("a newer attempt has begun")
        self.decided = begun.number
        self.row = Row(
            epoch=begun.epoch, begun_epoch=begun.epoch, attempt=0, changed_us=self.now_us
        )
        for group in participants:
            epoch, attempt, _ = self.pins.pop(group)
            assert (epoch, attempt) == (begun.epoch, begun.number), "published what is not pinned"
            for one in self.held.pop(group).values():
                for values in one.values.values():
                    self.published += [(epoch, value) for value in values]

    def end_lost(self) -> None:
        """Masters ask what became of their pins, and end those that will never be committed."""
        for group, (_, attempt, _) in list(self.pins.items()):
            if attempt != self.row.attempt:
                del self.pins[group], self.held[group]


class ModelLedger:
    """A ledger of one gateway on the model."""

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world

    async def check_level(self) -> None:
        await self._world.late()

    async def row(self) -> Row:
        world = self._world
        await world.late()
        world.maybe_fails()
        row = world.row
        told = Row(
            epoch=row.epoch,
            begun_epoch=row.begun_epoch,
            attempt=row.attempt,
            changed_us=row.changed_us,
            log_time_us=world.now_us,
        )
        await world.late()
        return told

    async def find(self) -> Found:
        world = self._world
        stages: list[Stage] = []
        pinned: list[Pinned] = []
        for group in GROUPS:
            await world.late()
            world.maybe_fails()
            for (where, stager_id), one in world.staged.items():
                if where == group:
                    stages.append(_stage_of(group, stager_id, one))
            if group in world.pins:
                epoch, attempt, _ = world.pins[group]
                winners = [
                    _stage_of(group, number, one) for number, one in world.held[group].items()
                ]
                pinned.append(Pinned(group, epoch, attempt, winners))
        return Found(await self.row(), stages, pinned)

    async def begin(self, epoch: int) -> Attempt:
        world = self._world
        await world.late()
        world.maybe_fails()
        begun = world.begin(epoch)
        await world.late()
        world.maybe_fails()
        return begun

    async def open(self, epoch: int, timeout_ms: int, stagers: Mapping[int, QueueRoute]) -> None:
        world = self._world
        for stager_id, queue in stagers.items():
            await world.late()
            world.maybe_fails()
            key = world.group_of(queue.key), stager_id
            one = world.staged.setdefault(key, _Staged(epoch, timeout_ms))
            one.values.setdefault(queue.key, [])
        await world.late()
        world.maybe_fails()

    async def drop(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            await self._world.late()
            if not self._world.faulty or self._world.random.random() > 0.1:
                self._world.staged.pop((stage.group, stage.stager_id), None)

    async def commit(self, begun: Attempt, stages: Sequence[Stage]) -> None:
        world = self._world
        claimed: dict[GroupId, dict[int, int]] = {}
        for stage in stages:
            if stage.parts:
                count = sum(part.messages for part in stage.parts)
                claimed.setdefault(stage.group, {})[stage.stager_id] = count
        for group, counts in claimed.items():
            await world.late()
            world.maybe_fails()
            world.pin(group, begun, counts)
        await world.late()
        world.maybe_fails()
        world.decide(begun, claimed)
        await world.late()
        world.maybe_fails()

    async def published(self, epoch: int) -> None:
        await self._world.late()


def _stage_of(group: GroupId, stager_id: int, one: _Staged) -> Stage:
    return Stage(
        group=group,
        epoch=one.epoch,
        stager_id=stager_id,
        timeout_ms=one.timeout_ms,
        queues=frozenset(one.values),
        parts=tuple(
            Part(group, key.topic_id, key.queue_id, 1, len(values), 0)
            for key, values in one.values.items()
            if values
        ),
    )
