"""Gateways that race, die and forget commit each transaction of Kafka's clients whole, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.gateway.transactions.coordinator import TransactionCoordinator
from semel.gateway.transactions.ledger import Stage
from semel.gateway.transactions.numbers import incarnation_of, kafka_epoch_of
from semel.gateway.transactions.standing import Producer
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from tests.kit.transaction_world import ModelLedger, TransactionWorld
from tests.kit.virtual_time import run_virtually

ID = "booking"
TRANSACTIONS = 8
TRIES = 60
QUEUES = [
    QueueRoute(
        key=(key := QueueKey(TopicId(1), QueueId(number))),
        group_id=GroupId(1),
        slot_start=number,
        slot_end=number + 1,
    )
    for number in range(4)
]
GONE = (ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping)


class Fenced(Exception):
    """Another program has the id."""


@dataclass
class _Gateway:
    """One gateway; `die` makes it forget."""

    coordinator: TransactionCoordinator = field(default_factory=lambda: TransactionCoordinator(ID))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def die(self) -> None:
        # Calls under way go on, as those that are on the network do.
        self.coordinator, self.turn = TransactionCoordinator(ID), asyncio.Lock()


@dataclass
class _Race:
    world: TransactionWorld
    gateways: list[_Gateway]
    told: dict[str, str] = field(default_factory=dict)
    """What a client was told of its transactions: committed or aborted."""
    wanted: dict[str, list[str]] = field(default_factory=dict)
    """The values of each transaction that a client asked to commit."""

    async def ask(
        self, call: Callable[[TransactionCoordinator, ModelLedger], Awaitable[ErrorCode]]
    ) -> ErrorCode:
        """Asks one gateway after the other, as clients do."""
        ledger = ModelLedger(self.world)
        for _ in range(TRIES):
            gateway = self.world.random.choice(self.gateways)
            if self.world.random.random() < 0.03:
                gateway.die()
            await self.world.late()
            try:
                async with gateway.turn:
                    code = await call(gateway.coordinator, ledger)
            except SemelError:
                continue
            if code is ErrorCode.concurrent_transactions:
                continue
            if code in GONE:
                raise Fenced
            return code
        raise AssertionError("no gateway has answered")

    async def initialise(self) -> Producer:
        found: list[Producer] = []

        async def call(coordinator: TransactionCoordinator, ledger: ModelLedger) -> ErrorCode:
            answer = await coordinator.initialise(ledger, 60_000)
            found.append(Producer(ID, answer.producer_id, answer.epoch))
            return answer.error

        assert await self.ask(call) is ErrorCode.none
        return found[-1]

    async def run_client(self, name: str) -> None:
        try:
            producer = await self.initialise()
            first = incarnation_of(self.world.row.newest)
            before = len(self.world.published)
            for number in range(TRANSACTIONS):
                await self._transaction(f"{name}-{number}", producer)
        except Fenced:
            return
        newer = [epoch for epoch, _ in self.world.published[before:]]
        assert all(incarnation_of(epoch) >= first for epoch in newer)

    async def _transaction(self, name: str, producer: Producer) -> None:
        world = self.world
        values: list[str] = []
        lost = False
        chosen = world.random.sample(QUEUES, world.random.randrange(1, 4))
        for queue in chosen:
            code = await self.ask(lambda one, ledger, q=queue: one.add(ledger, producer, [q]))  # type: ignore[misc]
            if code is not ErrorCode.none:
                assert code is ErrorCode.unknown_producer_id
                lost = True
                break
            for place in range(world.random.randrange(3)):
                await world.late()
                value = f"{name}/{queue.key.queue_id}/{place}"
                if not self._stage(queue.key, producer, value):
                    lost = True
                values.append(value)
        if not lost and world.random.random() < 0.7:
            self.wanted[name] = values
            code = await self.ask(lambda one, ledger: one.end(ledger, producer, True))
            if code is ErrorCode.none:
                self.told[name] = "committed"
                return
            assert code is ErrorCode.unknown_producer_id, code
        code = await self.ask(lambda one, ledger: one.end(ledger, producer, False))
        assert code is ErrorCode.none, code
        self.told[name] = "aborted"

    def _stage(self, queue: QueueKey, producer: Producer, value: str) -> bool:
        """Stages as lanes do: at the newest stager that is open at the queue."""
        group = self.world.group_of(queue)
        open_here = [
            (one.epoch, stager_id)
            for (where, stager_id), one in self.world.staged.items()
            if where == group
            and queue in one.values
            and kafka_epoch_of(one.epoch) == producer.epoch
        ]
        return bool(open_here) and self.world.stage(max(open_here)[1], queue, value)

    def check(self) -> None:
        values = [value for _, value in self.world.published]
        assert len(values) == len(set(values)), "published twice"
        visible: dict[str, list[str]] = {}
        for value in values:
            visible.setdefault(value.split("/")[0], []).append(value)
        for name, found in visible.items():
            assert self.told.get(name) != "aborted", f"{name} was aborted"
            assert sorted(found) == sorted(self.wanted[name]), f"{name} is published in part"
        for name, told in self.told.items():
            if told == "committed":
                assert sorted(visible.get(name, [])) == sorted(self.wanted[name]), f"{name} is lost"


async def _run(seed: int, clients: int, faulty: bool = True, moving: bool = False) -> _Race:
    race = _Race(TransactionWorld(seed, faulty), [_Gateway(), _Gateway()])

    async def masters() -> None:
        while True:
            await asyncio.sleep(0.2)
            race.world.end_lost()

    async def client(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await race.run_client(name)

    async def moves() -> None:
        while moving:
            await asyncio.sleep(race.world.random.random())
            race.world.move(race.world.random.choice(QUEUES).key)

    background = [asyncio.create_task(masters()), asyncio.create_task(moves())]
    await asyncio.gather(
        *(client(f"client{n}", n * race.world.random.random()) for n in range(clients))
    )
    for task in background:
        task.cancel()
    race.check()
    return race


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_two_gateways_and_a_client_agree(first: int) -> None:
    for seed in range(first, first + 20):
        race = run_virtually(_run(seed, 1))
        assert len(race.told) == TRANSACTIONS, f"seed {seed}"


@pytest.mark.parametrize("first", range(1000, 1200, 20))
def test_zombies_commit_nothing_and_disturb_nobody(first: int) -> None:
    for seed in range(first, first + 20):
        race = run_virtually(_run(seed, 3))
        assert race.told, f"seed {seed}"


@pytest.mark.parametrize("first", range(2000, 2200, 20))
def test_a_queue_that_moves_takes_no_part_of_a_transaction_away(first: int) -> None:
    for seed in range(first, first + 20):
        race = run_virtually(_run(seed, 1, moving=True))
        assert len(race.told) == TRANSACTIONS, f"seed {seed}"


def test_who_does_not_notice_that_a_queue_has_moved_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Stage, "lost", property(lambda stage: False))

    def all_seeds() -> None:
        for seed in range(2000, 2200):
            run_virtually(_run(seed, 1, moving=True))

    with pytest.raises(AssertionError, match=r"published in part|is lost"):
        all_seeds()


def test_without_faults_no_transaction_is_lost() -> None:
    race = run_virtually(_run(1, 1, faulty=False))
    assert {race.told[name] for name in race.wanted} == {"committed"}
