"""Programs that commit transactions to topics that compare message ids, beside the repeaters.

How it works. A *banker* stages a few messages, with ids of the pool that repeaters use, and commits
or gives them up. It does not care what becomes of a transaction whose commit was not answered: the
brokers end it. The checker of ids derives from the log alone what was staged, rewritten and
published (`tests/checking/message_ids.py`).

Most transactions are *large* here, so that batches of which messages are dropped are rewritten
before the publication. Processes die at any step of that.

Not here: what must hold otherwise (`ids.py`), transactions without ids (`transactions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from semel.broker.background import publication
from semel.broker.dedup import pinned_ids
from semel.broker.replica import message_ids, pinned_look_up
from semel.broker.replica.message_ids import MessageIds
from semel.protos.errors import FencedError, InvalidRequest, SemelError, TransactionAborted
from tests.checking.moved_ids import Message
from tests.world.clients import ClientHost
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, program, random_of
from tests.world.repeaters import SentIds
from tests.world.run import Run


class Banker(ClientHost):
    """One transaction after the other."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._known = run.shared(SentIds)
        self._pool = Sizes(run.plan).pool
        self._mean_s = run.plan.send_mean_s
        self._number = 0
        self.delay_us_max = 700_000

    async def work(self, client: Any) -> None:
        for topic in TOPICS:  # they may not be made yet
            await client._session.cluster.topic(topic, refresh=True)
        producer = client.producer(linger_ms=1, delivery_timeout_ms=2_000)
        while not self.stopping:
            await self._once(producer)
            await self.pause(self._mean_s)
        self.done = True

    async def _once(self, producer: Any) -> None:
        transaction = producer.transaction(f"{self.name} {self.starts}")
        await transaction.__aenter__()
        for _ in range(self.random.choice((1, 1, 2, 3))):  # of one batch for each queue
            for _ in range(self.random.choice((1, 2, 4, 8))):
                await self._send(transaction)
            await self.pause(0.004)  # longer than a batch waits for more messages
        if self.stopping or self.random.random() < 0.1:
            await transaction.abort()
            return
        for _ in range(5):
            try:
                committed = await transaction.commit()
            except (TransactionAborted, FencedError, InvalidRequest) as error:
                self.world.count(f"transaction with ids: {type(error).__name__}")
                return
            except SemelError as error:
                self.world.count(f"transaction with ids in doubt: {type(error).__name__}")
                await self.pause(self._mean_s)
            else:
                self.world.count("transaction with ids committed")
                self._known.committed.add((f"{self.name} {self.starts}", committed.epoch))
                return

    async def _send(self, transaction: Any) -> None:
        topic = self.random.choice(TOPICS)
        message = self._message(topic)
        self._known.recent[topic].append(message)
        due_us = self.soon_us() if self.random.random() < 0.15 else None
        await transaction.send(
            topic,
            message.value,
            key=message.key,
            message_id=message.message_id,
            deliver_at=due_us,
        )

    def _message(self, topic: str) -> Message:
        recent, chance = self._known.recent[topic], self.random.random()
        if recent and chance < 0.3:
            return self.random.choice(recent)
        if chance < 0.4:
            self._number += 1
            return Message(None, self.value(self._number))
        number = self.random.randrange(self._pool)
        content = b"other" if self.random.random() < 0.1 else b"content"
        key = b"k%d" % number if number % 3 == 0 else None
        return Message(b"id %d" % number, b"%s of %d" % (content, number), key)

    async def wind_up(self) -> None:
        """What it has not committed is given up by the brokers."""
        self.done = True


@program("banker", host="bk")
def _banker(run: Run, host: str) -> Banker:
    return Banker(run, host)


@fault("strike in a transaction with ids")
def _strike(nemesis: Nemesis) -> None:
    """A master dies at a certain step."""
    step = nemesis.random.choice(("pin", "rewrite", "rewrite", "rewrite", "publish"))
    nemesis.arm(step, (nemesis.kill_master_of, nemesis.kill_clients(Banker)))


_KINDS: Final = (
    *("strike in a transaction with ids",) * 4,
    *("kill master", "kill", "checkpoint", "checkpoint", "long absence", "client crash"),
)


def with_bankers(plan: Plan) -> Plan:
    random = random_of(plan, "bankers")
    kinds = random.choices(_KINDS, k=random.choice((4, 8)))
    steps = [
        Step(round(random.uniform(0.0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in kinds
    ]
    bankers = (f"banker {number}" for number in range(1, random.choice((2, 3)) + 1))
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 1.0)
    return with_clients(longer, bankers)


@contextmanager
def _small(run: Run) -> Iterator[None]:
    random = random_of(run.plan, "sizes of transactions")
    exchanged: list[tuple[Any, str, Any]] = [
        (message_ids, "_SMALL_MESSAGES", random.choice((0, 0, 4, 1_000))),
        (pinned_look_up, "REWRITE_BYTES", random.choice((1, 400, 1 << 20))),
        (pinned_ids, "LATE_MAX", random.choice((0, 3, 1_000))),
        (pinned_ids, "_AT_ONCE", random.choice((2, 1_000))),
        (publication, "FREE_ROUNDS", random.choice((0, 1, 3))),
    ]
    with ExitStack() as stack:
        for target, name, value in exchanged:
            stack.enter_context(patch.object(target, name, value))
        watched = _watched_give_up(run, MessageIds.give_up_fetching)
        stack.enter_context(patch.object(MessageIds, "give_up_fetching", watched))
        yield


def _watched_give_up(run: Run, give_up: Callable[..., None]) -> Callable[..., None]:
    """A batch that is damaged on a node leaves a gap in its index."""

    def watched(self: MessageIds, *arguments: Any) -> None:
        run.world.count("published ids not read")
        run.shared(SentIds).without.add(self._node.config.node_id)  # type: ignore[attr-defined]
        give_up(self, *arguments)

    return watched


add_part(
    Part(
        name="bankers",
        help="programs commit transactions to topics that compare message ids; needs --ids",
        add=with_bankers,
        exchange=_small,
    )
)
