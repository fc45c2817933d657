"""Makes a failing plan small: fewer faults, fewer clients, and it still fails.

How it works. Delta debugging over the list of steps (halves, quarters, ... single ones are left out
as long as the run fails without them), then over the clients, then the source is made shorter. Any
failure counts: what remains is a failing run too, and a shorter story.

Not here: what a plan is (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.world.plan import Plan

RUNS_MAX = 120


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, runs_max: int = RUNS_MAX) -> Plan:
    """The smallest failing plan found within `runs_max` runs; `plan` itself must fail."""
    runs = 0

    def still_fails(candidate: Plan) -> bool:
        nonlocal runs
        runs += 1
        return runs <= runs_max and fails(candidate)

    size = max(1, len(plan.steps) // 2)
    while plan.steps and runs < runs_max:
        removed = False
        at = 0
        while at < len(plan.steps):
            candidate = replace(plan, steps=plan.steps[:at] + plan.steps[at + size :])
            if still_fails(candidate):
                plan, removed = candidate, True
            else:
                at += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    for client in plan.clients:
        others = tuple(one for one in plan.clients if one != client)
        if others and still_fails(replace(plan, clients=others)):
            plan = replace(plan, clients=others)
    for lines in (5, 10):
        if lines < plan.lines and still_fails(replace(plan, lines=lines)):
            plan = replace(plan, lines=lines)
            break
    return plan


def describe(plan: Plan) -> str:
    """The plan in words."""
    steps = [f"  {step.at_s:8.3f} s  {step.kind}" for step in plan.steps]
    settings = ", ".join(
        f"{name}={getattr(plan, name)}"
        for name in plan.__slots__
        if name not in ("steps", "clients", "seed")
    )
    return "\n".join(
        [f"seed {plan.seed}: {settings}", f"clients: {', '.join(plan.clients)}", "faults:", *steps]
    )
