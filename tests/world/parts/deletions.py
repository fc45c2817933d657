"""Topics that are deleted while messages for them are on their way, or wait for room.

How it works. A *vagrant* makes a topic, fills the little room that its producer has with bulk calls
that wait for more, and deletes the topic in the middle; then it makes it again. Blocking callers
wait in threads of their own, which no client has here (`tests/integration/test_client_api.py`).

What must hold: every message has one outcome when its delivery timeout is over, and a flush ends.

Not here: what is stored in such topics, which nobody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from semel.client.producer import intake
from semel.client.producer.intake import Intake
from semel.protos.errors import SemelError
from tests.world.clients import ClientHost
from tests.world.plan import Plan, with_clients
from tests.world.registry import Part, add_part, program
from tests.world.run import Run
from tests.world.world import World

TIMEOUT_MS = 800
LATE_S = 0.7
"""Seconds by which an outcome may be later than that: the client looks several times a second."""
TOPICS = tuple(f"passing-{number}" for number in range(3))


class OutcomeError(AssertionError):
    """A message has no outcome in time."""


class Vagrant(ClientHost):
    """Sends to topics that it deletes."""

    topics = TOPICS

    def __init__(self, world: World, name: str, *, tiered: bool) -> None:
        super().__init__(world, name)
        self._tiered = tiered

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self._pass(client, self.random.choice(TOPICS))
        self.done = True

    async def _pass(self, client: Any, topic: str) -> None:
        await client.admin.create_topic(topic, queues=1, if_not_exists=True)
        async with client.producer(
            buffer_bytes=2_000, batch_bytes=1_000, delivery_timeout_ms=TIMEOUT_MS
        ) as producer:
            calls = [asyncio.create_task(self._send(producer, topic)) for _ in range(2)]
            await asyncio.sleep(self.random.uniform(0, 0.05))
            if self._tiered and self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0.2, 2))  # something may be at the store
            with suppress(SemelError):
                await client.admin.delete_topic(topic, if_exists=True)
            await asyncio.wait(calls, timeout=TIMEOUT_MS / 1000 + LATE_S + 0.2)
            now = vars(intake)["time"].monotonic()  # the program's own clock
            late = [
                chunk for chunk in producer._core.intake.snapshot() if chunk.deadline + LATE_S < now
            ]
            if late:
                raise OutcomeError(f"{self.name}: {len(late)} batches have no outcome in time")
            for call in calls:
                call.cancel()  # it may still wait for the topic's route
            self.world.count("topic deleted while messages waited")

    async def _send(self, producer: Any, topic: str) -> None:
        try:
            await (await producer.send_many(topic, [b"x" * 700] * 30))
        except SemelError as error:
            self.world.count(f"vagrant: {type(error).__name__}")


@program("vagrant", host="y")
def vagrant(run: Run, host: str) -> Vagrant:
    return Vagrant(run.world, host, tiered="tiers" in run.plan.parts)


def with_deletions(plan: Plan) -> Plan:
    return with_clients(plan, ("vagrant 1",))


add_part(
    Part(
        name="deletions",
        help="topics are deleted while messages for them wait for room",
        add=with_deletions,
    )
)


# --- a planted bug


@contextmanager
def leaves_messages_behind_forgotten_intakes() -> Iterator[None]:
    """A caller that waited while the topic was forgotten puts its messages where nobody looks, not
    even for late ones."""
    forget = Intake.forget

    def bad(door: Intake, topic: str) -> None:
        place = door._topics.get(topic)
        forget(door, topic)
        if place is not None:
            place.forgotten = False

    with patch.object(Intake, "forget", bad), patch.object(Intake, "expired", lambda *_: []):
        yield
