"""Queues that are split while all else goes on."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.world.clients import TOPIC
from tests.world.nemesis import Nemesis
from tests.world.operator import Job
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
    nemesis.run.operator.ask("split a queue", split_queue(nemesis.random.random()))


def split_queue(choice: float) -> Job:
    """A queue that is open when the operator comes to it."""

    async def job(client: Any) -> None:
        route = await client._session.cluster.topic(TOPIC, refresh=True)
        queue = route.queues[int(choice * len(route.queues))].key.queue_id
        await client.admin.split_queue(TOPIC, queue, children=2 + int(choice * 100) % 2)

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
