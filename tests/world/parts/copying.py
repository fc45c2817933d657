"""Programs that copy messages from topic to topic with their progress in the same transactions.

Processes die, or are not reached, at the steps by which progress is staged and published; queues
move between the broker groups meanwhile; what is staged has little time in some worlds.

Not here: the programs, and what must hold (`../copyists.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from semel.gateway.coordination import broker_ledger
from tests.world.copyists import Copyist
from tests.world.groups import BrokerGroup
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, draw_groups, over_groups, with_steps
from tests.world.registry import Part, add_part, fault, random_of
from tests.world.run import Run

_STRIKE = "strike in a copy"
_KINDS = (*(_STRIKE,) * 4, "kill master", "stop master", "client crash", "checkpoint")
_STEPS = ("open_stager", *("stage_commits",) * 3, "begin", "pin", "decide", "publish")
_MOVES = ("move queue", "move queue", "move there and back")


def with_copying(plan: Plan) -> Plan:
    """The plan with one or two broker groups, over which programs copy."""
    random = random_of(plan, "copying")
    groups = draw_groups(plan, random, ((1, 1), (1, 1), (3,), (3, 1), (1, 3), (3, 3)))

    def steps(kinds: list[str]) -> list[Step]:
        return [
            Step(round(random.uniform(0, plan.duration_s + 0.8), 6), kind, random.getrandbits(32))
            for kind in kinds
        ]

    added = steps([*random.choices(_KINDS, k=random.choice((3, 5, 8))), "heal"])
    copyists = ("copyist 1", "copyist 2", "copyist 3")[: random.choice((1, 2, 2, 3))]
    programs = (*copyists, "eraser 1") if random.random() < 0.7 else copyists
    made = over_groups(plan, random, groups, added, programs)
    if len(groups) == 1:
        return made
    return with_steps(made, steps(random.choices(_MOVES, k=random.choice((0, 1, 3)))))


@fault(_STRIKE)
def strike(nemesis: Nemesis) -> None:
    """A process dies, sleeps, or is not reached, at a certain step of a transaction."""
    kill = nemesis.kill_clients(Copyist)

    def stop(_: BrokerGroup) -> None:
        for process in nemesis.running_clients(Copyist):
            if nemesis.random.random() < 0.7:
                nemesis.stop_a_while(process, "copyist stop")

    def restart(group: BrokerGroup) -> None:
        """Nodes begin again from a checkpoint that has what is staged."""
        nemesis.write_checkpoints()
        nemesis.world.later(0.05, lambda: nemesis.kill_master_of(group))

    nemesis.arm(
        nemesis.random.choice(_STEPS),
        (
            nemesis.kill_master_of,
            nemesis.kill_master_of,
            restart,
            restart,
            stop,
            stop,
            kill,
            nemesis.cut_off_from_each_other,
        ),
    )


@contextmanager
def little_time(run: Run) -> Iterator[None]:
    """Stagers of abandoned transactions end while the world runs."""
    random = random_of(run.plan, "time of copies")
    chosen: list[tuple[Any, str, int]] = [
        (broker_ledger, "SLACK_MS", random.choice((100, 10_000))),
    ]
    with ExitStack() as stack:
        for module, name, value in chosen:
            stack.enter_context(patch.object(module, name, value))
        yield


add_part(
    Part(
        name="copying",
        help="programs copy messages with their progress in the same transactions",
        add=with_copying,
        exchange=little_time,
    )
)
