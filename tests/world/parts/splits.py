"""Queues that are split while all else goes on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.world.nemesis import Nemesis
from tests.world.operator import Job, open_queue
from tests.world.plan import Plan, Step, with_steps, without_clients
from tests.world.registry import Part, add_part, fault


def with_splits(plan: Plan) -> Plan:
    random = Random(plan.seed * 2 + 7)
    return with_steps(
        plan,
        [
            Step(round(random.uniform(0, plan.duration_s), 6), "split", random.getrandbits(32))
            for _ in range(random.choice((1, 2, 4)))
        ],
    )


@fault("split")
def split(nemesis: Nemesis) -> None:
    job = split_queue(nemesis.topics, nemesis.random.random())
    nemesis.run.operator.ask("split a queue", job)


def split_queue(topics: Sequence[str], choice: float) -> Job:
    async def job(client: Any) -> None:
        topic, queue = await open_queue(client, topics, choice)
        children = 2 + int(choice * 100) % 2
        await client.admin.split_queue(topic, queue.key.queue_id, children=children)

    return job


add_part(
    Part(
        name="splits",
        help="queues are split",
        add=with_splits,
        # They speak the protocol by themselves, and know nothing of splits.
        leave_out=lambda plan: without_clients(plan, "hasty", "doubter"),
    )
)
