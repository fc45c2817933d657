"""The operator of a simulated cluster, who makes administrative calls one after the other.

How it works. The nemesis gives it work; it is a client like the others, so it dies and sleeps too,
and a call that failed is made again, as the operator's guide says. When the run ends it finishes
what must not stay half done.

Not here: when it gets what to do (`nemesis.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from semel.protos.errors import QueueMoved, QueueSealed, SemelError, UnknownTopic
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from tests.world.clients import TOPIC, ClientHost
from tests.world.world import World

Job = Callable[[Any], Awaitable[None]]


class Operator(ClientHost):
    """Carries out jobs, each until it succeeds."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.jobs: deque[tuple[str, Job, bool]] = deque()

    def ask(self, name: str, job: Job, *, once: bool = False) -> None:
        """`once`: a job that failed is not begun again."""
        self.jobs.append((name, job, once))

    async def work(self, client: Any) -> None:
        while self.jobs or not self.stopping:
            if not self.jobs:
                await asyncio.sleep(0.05)
                continue
            name, job, once = self.jobs[0]
            if once and self.stopping:
                self.jobs.popleft()
                continue
            try:
                await job(client)
            except SemelError as error:
                self.world.tell(f"{name}: {type(error).__name__}: {error.message}")
                if once:
                    self.jobs.popleft()
                await asyncio.sleep(0.1)
                continue
            self.world.count(f"operator: {name}")
            self.jobs.popleft()
        self.done = True

    async def wind_up(self) -> None:
        """Finishes what it has begun."""


async def fence_all(client: Any) -> None:
    """Fences every producer with a session above its own: what it sends from now on is refused."""
    cluster = client._session.cluster
    try:
        await _fence_queues(cluster)
    except (QueueMoved, QueueSealed):
        await cluster.topic(TOPIC, refresh=True)
        raise


async def _fence_queues(cluster: Any) -> None:
    for queue in (await cluster.topic(TOPIC)).queues:
        reply = await cluster.call_master(
            queue.group_id,
            "DescribeProducers",
            broker_pb2.DescribeProducersRequest(queues=[queue_ref(queue.key)]),
        )
        for row in reply.rows:
            await cluster.call_master(
                queue.group_id,
                "FenceProducer",
                broker_pb2.FenceProducerRequest(
                    queues=[queue_ref(queue.key)],
                    producer_id=row.producer_id,
                    epoch=row.epoch,
                    session=row.session + 100,
                    name=row.name,
                ),
            )


async def open_queue(client: Any, topics: Sequence[str], choice: float) -> tuple[str, Any]:
    """Returns a topic and one of its open queues. The first of `topics` exists; half of the choices
    are for it."""
    cluster = client._session.cluster
    lots = [topics[0]] * max(1, len(topics) - 1) + [*topics[1:]]
    topic = lots[int(choice * 7_919) % len(lots)]
    try:
        route = await cluster.topic(topic, refresh=True)
    except UnknownTopic:
        topic = topics[0]
        route = await cluster.topic(topic, refresh=True)
    return topic, route.queues[int(choice * len(route.queues))]


def brief_topic(name: str) -> Job:
    """A job that makes a topic and deletes it, in several steps, each of which may be the last one
    of a controller's life."""

    async def job(client: Any) -> None:
        await client.admin.create_topic(name, queues=2, if_not_exists=True)
        await client.admin.delete_topic(name, if_exists=True)

    return job
