"""Queues that are split while messages of theirs are delayed, and masters that go just then."""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random
from unittest.mock import patch

from semel.broker.background import delayed_parting
from tests.world.plan import Plan, Step, with_steps, without_clients
from tests.world.registry import Part, add_part
from tests.world.run import Run

_PIECE_BYTES = 700
"""A few batches, so that a queue takes several entries."""
_BREAKS = ("kill master", "kill master", "stop master", "transfer", "checkpoint", "isolate master")


def with_parting(plan: Plan) -> Plan:
    random = Random(plan.seed * 2 + 31)
    steps = []
    for _ in range(random.choice((2, 3, 4))):
        at = random.uniform(0.2, plan.duration_s)
        steps.append(Step(round(at, 6), "split", random.getrandbits(32)))
        for after in (0.1, 0.5, 1.2):
            when, kind = at + random.uniform(0, after), random.choice(_BREAKS)
            steps.append(Step(round(when, 6), kind, random.getrandbits(32)))
    return with_steps(plan, steps)


def small_pieces(_: Run) -> AbstractContextManager[object]:
    return patch.object(delayed_parting, "PIECE_BYTES", _PIECE_BYTES)


add_part(
    Part(
        name="parting",
        help="queues are split while masters die, and hand over what is delayed bit by bit",
        add=with_parting,
        # They speak the protocol by themselves, and know nothing of splits.
        leave_out=lambda plan: without_clients(plan, "hasty", "doubter"),
        exchange=small_pieces,
    )
)
