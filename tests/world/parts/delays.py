"""Programs that send delayed messages, which become due while faults strike."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part


def with_delays(plan: Plan) -> Plan:
    random = Random(plan.seed * 2 + 17)
    kinds = (
        *("kill master",) * 3,
        *("checkpoint", "client crash", "kill", "stop master", "heal"),
        *("all lose power", "planned restart", "transfer", "wall clock jump"),
    )
    steps = [
        Step(round(random.uniform(0.3, plan.duration_s + 2.5), 6), kind, random.getrandbits(32))
        for kind in random.choices(kinds, k=random.choice((3, 5, 8)))
    ]
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 2.5)
    return with_clients(longer, ("postponer 1", "postponer 2", "follower 1"))


add_part(Part(name="delays", help="programs send delayed messages", add=with_delays))
