"""A topic in memory: programs write and read it, while nodes die, one at a time or together.

In half of the worlds only *careful* kills happen: a node dies only while all nodes of its group are
up and have all bodies. Then nothing may be lost. In the others everything happens, also that a
majority dies together, and what is lost must be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

from tests.world import (
    memorists,  # noqa: F401
    nodes,
)
from tests.world import run as run_module
from tests.world.memorists import CAREFUL
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, random_of
from tests.world.run import Run

_KILLS = ("kill master", "kill", "all lose power", "power cut", "planned restart", "transfer")


def is_careful(plan: Plan) -> bool:
    """Whether nodes die one at a time."""
    return random_of(plan, "care for memory").random() < 0.5


def with_memory(plan: Plan) -> Plan:
    random = random_of(plan, "memory")
    careful = is_careful(plan)
    kinds = (CAREFUL,) if careful else (*_KILLS, "checkpoint", "client crash", "two masters")
    count = 12 if careful else random.choice((3, 5, 8))
    steps = [
        Step(round(random.uniform(0.3, plan.duration_s + 2.5), 6), kind, random.getrandbits(32))
        for kind in random.choices(kinds, k=count)
    ]
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 2.5)
    if careful:
        longer = replace(longer, size=max(3, longer.size))
    return with_clients(longer, ("pusher 1", "pusher 2", "peeker 1"))


def only_careful(plan: Plan) -> Plan:
    if not is_careful(plan):
        return plan
    quiet = {CAREFUL, "checkpoint", "client crash", "client stop", "transfer", "wall clock jump"}
    quiet |= {"move queue", "move there and back", "move and cancel"}
    return replace(plan, steps=tuple(step for step in plan.steps if step.kind in quiet))


@fault(CAREFUL)
def _kill_one(nemesis: Nemesis) -> None:
    group = nemesis.group()
    members = list(group.members())
    replicas = [host.replica for host in members]
    whole = all(one is not None and not one.bodies.missing_to for one in replicas)
    if not whole or len(members) < 3:
        nemesis.world.count("no careful kill: a node is down or lacks bodies")
        return
    masters = [host for host in members if host.replica and host.replica.is_master]
    nemesis.die(nemesis.random.choice([*masters, *masters, *members]), CAREFUL)


@contextmanager
def _small(run: Run) -> Iterator[None]:
    wait_ms = random_of(run.plan, "wait for memory").choice((300, 2_000))
    made = partial(nodes.broker_config, memory_wait_ms=wait_ms)
    with patch.object(run_module, "broker_config", made):
        yield


add_part(
    Part(
        name="memory",
        help="programs write and read a topic in memory",
        add=with_memory,
        leave_out=only_careful,
        exchange=_small,
    )
)
