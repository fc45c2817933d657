"""A query that is copied epoch by epoch, as Spark does it: writers stage, drivers commit.

How it works. *Stagers*, each a program on a machine of its own, stage the messages of an epoch
under one transaction id and put their receipts on a desk, which survives them. Two *drivers* share
the id and the query: each commits the epoch when it finds all receipts, so that commits of one
epoch compete, are repeated with the same receipts and with those of another round, and meet each
other half done. A commit that is aborted has everything staged again, in a new round. An *impostor*
stages messages of its own under the same id and commits them in the name of another query.

What must hold
1. The messages of an epoch are stored once, however often they were staged; the epochs of a query
   are stored in order, and in each queue the messages of an epoch in the order of the writers.
2. An impostor is refused, and nothing of it is stored.

Not here: programs that stage and commit by themselves (`transactions.py`), what is checked
(`tests/checking`).
"""

from __future__ import annotations

from typing import Any

from semel.client import StageReceipt
from semel.protos.errors import (
    SemelError,
    TransactionAborted,
    TransactionConflict,
    TransactionFenced,
)
from tests.checking.history import Outcome, Send, digest_of
from tests.world.clients import TOPIC, ClientHost
from tests.world.groups import BrokerGroup
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, draw_groups, over_groups
from tests.world.registry import Part, add_part, fault, program, random_of
from tests.world.run import Run
from tests.world.world import World

COPY = "copy"
"""The transaction id."""
QUERY = "query of the drivers"
WRITERS = 2
_WRITER_MESSAGES_MAX = 1_000


class Desk:
    """Where writers and drivers of a run leave things for each other. It outlives them."""

    world: World

    def __init__(self) -> None:
        self.epoch = 0
        """The epoch that is to be committed next."""
        self.round = 0
        self.receipts: dict[int, StageReceipt] = {}
        """Receipts of this epoch and round, by writer."""
        self.sizes: dict[tuple[int, int], int] = {}
        """Messages of an epoch by (epoch, writer): each round stages the same."""
        self.notes: dict[tuple[int, int], Send] = {}
        """Notes of the present epoch, by writer and number."""

    def note(self, client: str, writer: int, number: int, value: bytes, key: bytes) -> None:
        """Notes a message that is about to be staged, unless it was noted before."""
        if (writer, number) in self.notes:
            return
        note = self.notes[writer, number] = Send(
            client=client,
            number=number,
            digest=digest_of(value, key),
            began_s=self.world.now,
            topic=TOPIC,
            transaction=f"{COPY}/{self.epoch}",
        )
        self.world.history.begin_send(note)

    def put(self, epoch: int, round_: int, writer: int, receipt: StageReceipt) -> None:
        if (epoch, round_) == (self.epoch, self.round):
            self.receipts[writer] = receipt

    def on_aborted(self, epoch: int, round_: int) -> None:
        """Has all of the epoch staged again."""
        if (epoch, round_) == (self.epoch, self.round):
            self.world.count("epoch staged again")
            self.round += 1
            self.receipts = {}

    def on_committed(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        for note in self.notes.values():
            note.outcome, note.ended_s = Outcome.OK, self.world.now
        self.epoch, self.round = epoch + 1, 0
        self.receipts, self.notes = {}, {}


class Stager(ClientHost):
    """Stages its part of each epoch, and may die with its receipt in hand."""

    def __init__(self, world: World, name: str, desk: Desk, writer: int, mean_s: float) -> None:
        super().__init__(world, name)
        self.desk = desk
        self.writer = writer
        self.mean_s = mean_s

    async def work(self, client: Any) -> None:
        desk = self.desk
        while not self.done:
            self.done = self.stopping and not desk.notes
            if self.done or self.writer in desk.receipts:
                await self.pause(self.mean_s / 2)
                continue
            try:
                await self._stage(client, desk.epoch, desk.round)
            except TransactionAborted as error:
                self.world.count("stage aborted")
                self.world.tell(f"stage aborted: {error.message}")
                await self.pause(self.mean_s)

    async def _stage(self, client: Any, epoch: int, round_: int) -> None:
        desk = self.desk
        size = desk.sizes.setdefault((epoch, self.writer), self.random.randint(0, 4))
        stage = client.transactions.stage(
            COPY, epoch, writer=self.writer, linger_ms=1, delivery_timeout_ms=2_000
        )
        for at in range(size):
            number = epoch * _WRITER_MESSAGES_MAX + at
            value = self.value(number)
            key = b"k%d" % (number * 7 % 16)
            if epoch == desk.epoch:
                desk.note(self.name, self.writer, number, value, key)
            await stage.send(TOPIC, value, key=key)
        receipt = await stage.receipt()
        if self.random.random() < 0.1:
            self.world.count("receipt lost")  # as with a task that Spark runs again
            return
        await self.pause(self.mean_s / 4)
        desk.put(epoch, round_, self.writer, receipt)

    async def wind_up(self) -> None:
        """An epoch that has begun is completed."""
        self.done = not self.desk.notes


class Driver(ClientHost):
    """Commits each epoch whose receipts are all there, beside another one that does the same."""

    def __init__(self, world: World, name: str, desk: Desk, mean_s: float) -> None:
        super().__init__(world, name)
        self.desk = desk
        self.mean_s = mean_s

    async def work(self, client: Any) -> None:
        desk = self.desk
        while not self.done:
            self.done = self.stopping and not desk.notes
            if len(desk.receipts) == WRITERS:
                await self._commit(client, desk.epoch, desk.round, dict(desk.receipts))
            await self.pause(self.mean_s / 2)

    async def _commit(
        self, client: Any, epoch: int, round_: int, receipts: dict[int, StageReceipt]
    ) -> None:
        world = self.world
        named = [receipt for _, receipt in sorted(receipts.items())]
        try:
            committed = await client.transactions.commit(COPY, QUERY, epoch, named)
        except TransactionFenced:
            world.count("driver overtaken")  # by the other one, which commits or will be overtaken
        except TransactionAborted as error:
            world.tell(f"epoch {epoch} aborted: {error.message}")
            self.desk.on_aborted(epoch, round_)
        except SemelError as error:
            world.count(f"driver in doubt: {type(error).__name__}")
            if not error.retriable:
                raise
        else:
            world.count("epoch committed again" if committed.replayed else "epoch committed")
            self.desk.on_committed(epoch)

    async def wind_up(self) -> None:
        self.done = not self.desk.notes


class Impostor(ClientHost):
    """Commits in the name of another query, and has to be refused."""

    def __init__(self, world: World, name: str, desk: Desk, mean_s: float) -> None:
        super().__init__(world, name)
        self.desk = desk
        self.mean_s = mean_s
        self.number = 0

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.pause(self.mean_s * 4)
            if self.desk.epoch:  # before the first commit the id is nobody's
                await self._try(client, self.desk.epoch + self.random.randrange(2))
        self.done = True

    async def _try(self, client: Any, epoch: int) -> None:
        world = self.world
        self.number += 1
        value = self.value(self.number)
        note = Send(
            client=f"{self.name}#{self.starts}",
            number=self.number,
            digest=digest_of(value),
            began_s=world.now,
            topic=TOPIC,
        )
        world.history.begin_send(note)
        note.outcome = Outcome.FAIL
        try:
            stage = client.transactions.stage(COPY, epoch, linger_ms=1, delivery_timeout_ms=2_000)
            await stage.send(TOPIC, value)
            receipt = await stage.receipt()
            await client.transactions.commit(COPY, "another query", epoch, [receipt])
        except TransactionConflict:
            world.count("impostor refused")
        else:
            raise AssertionError(f"{self.name} committed epoch {epoch} of somebody else's id")


def _desk(run: Run) -> Desk:
    desk = run.shared(Desk)
    desk.world = run.world
    return desk


@program("stager", host="e")
def stager(run: Run, host: str) -> Stager:
    return Stager(run.world, host, _desk(run), int(host[1:]) - 1, run.plan.send_mean_s)


@program("driver", host="x")
def driver(run: Run, host: str) -> Driver:
    return Driver(run.world, host, _desk(run), run.plan.send_mean_s)


@program("impostor", host="i")
def impostor(run: Run, host: str) -> Impostor:
    return Impostor(run.world, host, _desk(run), run.plan.send_mean_s)


def with_drivers(plan: Plan) -> Plan:
    """The plan with a query over one or two broker groups, and faults at its commits."""
    random = random_of(plan, "drivers")
    groups = draw_groups(plan, random, ((1, 1), (3,), (3, 1), (1, 3), (3, 3)))
    kinds = ("strike at a commit",) * 4 + ("client crash", "kill master", "stop master")
    steps = [
        Step(round(random.uniform(0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in (*random.choices(kinds, k=random.choice((3, 6, 10))), "heal")
    ]
    clients = [*(f"stager {writer + 1}" for writer in range(WRITERS)), "driver 1", "driver 2"]
    return over_groups(plan, random, groups, steps, (*clients, "impostor 1", "watcher 1"))


@fault("strike at a commit")
def strike(nemesis: Nemesis) -> None:
    """A program of the query dies or stands still at a certain step of a commit."""
    step = nemesis.random.choice(("open_stager", "begin", "pin", "decide", "publish"))

    def stop_a_driver(_: BrokerGroup) -> None:
        """A driver stands still until the other one has overtaken it, then goes on."""
        running = nemesis.running_clients(Driver)
        if running:
            nemesis.stop_a_while(nemesis.random.choice(running), "driver stop")

    nemesis.arm(
        step,
        (
            nemesis.kill_master_of,
            stop_a_driver,
            stop_a_driver,
            nemesis.kill_clients(Driver),
            nemesis.kill_clients(Stager),
        ),
    )


add_part(
    Part(
        name="drivers",
        help="several programs stage what two drivers commit under one transaction id",
        add=with_drivers,
    )
)
