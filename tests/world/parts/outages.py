"""A broker group without a master for several sessions, beside one that nothing happens to.

How it works. *Idlers* are a consumer group of their own. They hold the locks of the topic's queues
at two broker groups, and read what comes, if anything does. In an *outage* most nodes of the second
group are away for longer than a session. Where nothing else goes wrong, no lock of the first group
may be lost meanwhile: its master hears of its holders all the time.

Not here: members that must read everything (`../clients.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from semel.protos.errors import LockLost
from tests.checking.raw_log import Fold
from tests.world.clients import READS, TOPIC, ClientHost
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, draw_groups, over_groups
from tests.world.registry import Part, add_part, fault, program, random_of
from tests.world.run import Run

GROUP: Final = "idlers"
OUTAGE: Final = "outage"
SESSION_MS: Final = 800
OUTAGE_S: Final = 4 * SESSION_MS / 1000


class Idler(ClientHost):
    """A member that does nothing but hold its locks."""

    stage = READS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        plan = run.plan
        weather = plan.loss + plan.repeat + plan.slow + plan.skew
        self.calm = not weather and all(step.kind == OUTAGE for step in plan.steps)
        self.troubled = run.groups[-1].group_id
        self.lost: list[str] = []
        """Locks that it lost at a broker group that was not touched."""

    async def work(self, client: Any) -> None:
        async with client.consumer(
            GROUP, TOPIC, lock_ms=60_000, session_ms=SESSION_MS, client_name=self.name
        ) as consumer:
            locks = consumer._core.locks
            locks.on_lost = partial(self._on_lost, locks, locks.on_lost)
            while not self.stopping:
                messages = await consumer.poll(timeout=0.3)
                held = {queue.group_id for queue in locks.held.values()}
                if len(held) > 1:
                    self.world.seen["idler held locks of two broker groups"] += 1
                if messages:
                    await self._commit(consumer)
        self.done = True

    async def _commit(self, consumer: Any) -> None:
        try:
            await consumer.commit()
        except LockLost:
            self.world.count("idler: lock lost")

    def _on_lost(self, locks: Any, on_lost: Any, key: Any, token: int) -> None:
        queue = locks.find(key, token)
        if queue is not None and queue.group_id != self.troubled:
            self.lost.append(
                f"queue {key.queue_id} at broker group {queue.group_id}, {self.world.now:g} s"
            )
        on_lost(key, token)

    def verdict(self, fold: Fold) -> str:
        if self.calm and self.lost:
            return f"{self.name} lost locks of a broker group that was well: {self.lost}"
        return ""


@program("idler", host="j")
def idler(run: Run, host: str) -> Idler:
    return Idler(run, host)


@fault(OUTAGE)
def strike(nemesis: Nemesis) -> None:
    """A majority of the last broker group is away, or all of it."""
    nodes = list(nemesis.run.groups[-1].hosts.values())
    away = nodes[: nemesis.random.randint(len(nodes) // 2 + 1, len(nodes))]
    for host in away:
        host.away_s = OUTAGE_S
        nemesis.die(host, OUTAGE)


def with_outages(plan: Plan) -> Plan:
    random = random_of(plan, "outages")
    groups = draw_groups(plan, random, ((1, 1), (3, 1), (1, 3), (3, 3)))
    at = random.uniform(1.0, 1.5)
    steps = [Step(round(at, 6), OUTAGE, random.getrandbits(32))]
    plan = over_groups(plan, random, groups, steps, ("idler 1",))
    return replace(
        plan, queues=max(plan.queues, 2), duration_s=max(plan.duration_s, at + OUTAGE_S + 0.5)
    )


add_part(
    Part(
        name="outages",
        help="a broker group without a master for several sessions, and an idle consumer",
        add=with_outages,
    )
)
