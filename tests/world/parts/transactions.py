"""Programs that commit transactions: all messages of one are stored, or none, and once.

How it works. A *teller* is alone under its transaction id. It sends a few messages and commits, or
gives them up. A commit that fails without a verdict is tried again; when the program dies before it
knows, its next life learns from the newest committed epoch what became of the last transaction.

Not here: what is checked (`tests/checking`), other clients (`../clients.py`).
"""

from __future__ import annotations

from random import Random
from typing import Any

from semel.protos.errors import FencedError, InvalidRequest, SemelError, TransactionAborted
from tests.checking.history import Outcome, Send, digest_of
from tests.world.clients import TOPIC, ClientHost
from tests.world.groups import BrokerGroup
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, draw_groups, over_groups
from tests.world.registry import Part, add_part, fault, program
from tests.world.run import Run
from tests.world.world import World


class Teller(ClientHost):
    """One transaction after the other, under one id."""

    def __init__(self, world: World, name: str, mean_s: float) -> None:
        super().__init__(world, name)
        self.mean_s = mean_s
        self.number = 0
        self.last_epoch = -1
        """The newest epoch that is known to be committed."""
        self.doubt: list[Send] = []
        """The newest transaction, as long as its fate is not known."""
        self.doubt_epoch = -1
        self.postpones = False
        """True when some of its messages are delayed beyond their commit."""

    async def work(self, client: Any) -> None:
        producer = client.producer(linger_ms=1, delivery_timeout_ms=2_000)
        while not self.stopping or self.doubt:
            await self._once(producer)
            await self.pause(self.mean_s)
        self.done = True

    async def _once(self, producer: Any) -> None:
        transaction = producer.transaction(self.name)
        await transaction.__aenter__()
        self._learn(transaction.last_epoch)
        if self.stopping:
            await transaction.abort()
            return
        name = f"{self.name}#{self.starts}/{transaction.epoch}/{self.number}"
        notes = [await self._send(transaction, name) for _ in range(self.random.randint(1, 5))]
        if self.random.random() < 0.15:
            await transaction.abort()
            self._settle(notes, Outcome.FAIL, "given up")
            return
        self.doubt, self.doubt_epoch = notes, transaction.epoch
        await self._commit(transaction)

    async def _send(self, transaction: Any, name: str) -> Send:
        self.number += 1
        value = self.value(self.number)
        key = b"k%d" % self.random.randrange(16)
        due_us = self.soon_us() if self.postpones and self.random.random() < 0.4 else 0
        note = Send(
            client=f"{self.name}#{self.starts}",
            number=self.number,
            digest=digest_of(value, key),
            began_s=self.world.now,
            topic=TOPIC,
            transaction=name,
            due_us=due_us,
        )
        self.world.history.begin_send(note)
        await transaction.send(TOPIC, value, key=key, deliver_at=due_us or None)
        return note

    async def _commit(self, transaction: Any) -> None:
        """Tries for a while to learn what becomes of it; else the next one's beginning tells."""
        for _ in range(5):
            try:
                await transaction.commit()
            except (TransactionAborted, FencedError, InvalidRequest) as error:
                self._end_doubt(Outcome.FAIL, f"ended: {type(error).__name__}")
                return
            except SemelError as error:
                self.world.count(f"transaction in doubt: {type(error).__name__}")
                await self.pause(self.mean_s)
            else:
                self._end_doubt(Outcome.OK, "committed")
                return

    def _learn(self, last_epoch: int) -> None:
        """Takes in what the brokers say of the past when the next transaction has begun."""
        if self.doubt and last_epoch >= self.doubt_epoch:
            self._end_doubt(Outcome.OK, "committed, as it turned out")
        elif self.doubt:
            self._end_doubt(Outcome.FAIL, "lost")
        assert last_epoch == self.last_epoch, f"{self.name}: {last_epoch}, not {self.last_epoch}"

    def _end_doubt(self, outcome: Outcome, what: str) -> None:
        if outcome is Outcome.OK:
            self.last_epoch = self.doubt_epoch
        self._settle(self.doubt, outcome, what)
        self.doubt = []

    def _settle(self, notes: list[Send], outcome: Outcome, what: str) -> None:
        self.world.count(f"transaction {what}")
        for note in notes:
            note.outcome, note.ended_s = outcome, self.world.now

    async def wind_up(self) -> None:
        """Goes on until it knows what became of its last transaction."""
        self.done = not self.doubt


@program("teller", host="t")
def teller(run: Run, host: str) -> Teller:
    made = Teller(run.world, host, run.plan.send_mean_s)
    made.postpones = "delays" in run.plan.parts
    return made


def with_transactions(plan: Plan) -> Plan:
    """The plan with one or two broker groups, over which programs commit transactions."""
    random = Random(plan.seed * 2 + 13)
    groups = draw_groups(plan, random, ((1, 1), (3,), (3, 1), (1, 3), (3, 3)))
    kinds = ("strike in a transaction",) * 4 + ("client crash", "kill master", "stop master")
    steps = [
        Step(round(random.uniform(0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in (*random.choices(kinds, k=random.choice((3, 6, 10))), "heal")
    ]
    armed = [Step(0.0, "strike in a transaction", random.getrandbits(32)) for _ in range(4)]
    steps += armed[: random.choice((0, 2, 4))]  # they wait for their step
    return over_groups(plan, random, groups, steps, ("teller 1", "teller 2", "watcher 1"))


@fault("strike in a transaction")
def strike(nemesis: Nemesis) -> None:
    """A process dies, or is not reached, at a certain step of a transaction."""
    step = nemesis.random.choice(("open_stager", "begin", "pin", "decide", "publish"))

    kill_tellers = nemesis.kill_clients(Teller)

    def kill_tellers_and_others(group: BrokerGroup) -> None:
        """The next life begins before the last one's transaction has ended everywhere."""
        kill_tellers(group)
        for other in nemesis.run.groups:
            host = other.master()
            if host is not None and other is not group:
                host.away_s = 1.0
                nemesis.die(host, "kill of the master in a step")

    def stop_tellers(_: BrokerGroup) -> None:
        """Programs stand still until what is pinned is given up, then go on."""
        for process in nemesis.running_clients(Teller):
            nemesis.stop_a_while(process, "teller stop")

    nemesis.arm(
        step,
        (
            nemesis.kill_master_of,
            nemesis.kill_master_of,
            stop_tellers,
            stop_tellers,
            kill_tellers,
            kill_tellers_and_others,
            nemesis.cut_off_from_controllers,
            nemesis.cut_off_from_each_other,
        ),
    )


add_part(
    Part(
        name="transactions",
        help="programs commit transactions over one or two broker groups",
        add=with_transactions,
    )
)
