"""The plan that a seed makes for two sites: loads, the fail-over, and what strikes when.

Not here: what a usual plan has (`plan.py`), carrying it out (`two_sites.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tests.world.plan import Plan, Step, make_plan
from tests.world.registry import with_parts

_FIRST: Final = ("loader 1", "loader 2", "sender 1", "member 1", "member 2", "mirror 1", "mirror 2")
_SECOND: Final = ("loader 1", "loader 2", "sender 8", "member 1", "follower 1")
_MEANTIME: Final = (
    *("site cut", "site cut", "site cut one way", "mirror crash", "mirror crash", "mirror stop"),
    *("another mirror", "another mirror", "strike in a mirror", "strike in a mirror"),
    *("strike in a mirror", "kill master", "kill master", "kill", "stop master", "checkpoint"),
    *("controller crash", "far controller crash", "controller crash in a write", "heal"),
    *("all lose power", "client crash", "isolate master", "one-way cut", "planned restart"),
    *("power cut", "crash in operation", "long absence", "member stop"),
)
_FAIL_OVER: Final = (
    *("kill master", "kill master", "kill", "all lose power", "far controller crash"),
    *("promoter crash", "promoter crash", "stop master", "strike in a mirror"),
)
_LATER: Final = ("kill master", "kill", "client crash", "controller crash", "checkpoint", "zombie")
_KNOWN: Final = frozenset({*_MEANTIME, *_LATER, "split"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesPlan:
    """What a seed decides."""

    first: Plan
    """The load of the near site, and what strikes meanwhile."""
    during: tuple[Step, ...]
    """Strikes while the far site is promoted."""
    second: Plan
    """The load of the far site."""
    fail_over: str
    """lost, alive or planned."""
    settle_s: float
    read_bytes: int
    """How much the source tells in one answer."""
    part_bytes: int
    """Size of the pieces of slices."""


def plan_of(seed: int) -> SitesPlan:
    random = Random(f"{seed} sites")
    parts = [name for name in ("delays", "splits", "parting") if random.random() < 0.5]
    drawn = replace(make_plan(seed), clients=())
    plan = with_parts(replace(drawn, size=3), parts)
    clients = [*_FIRST, *(name for name in plan.clients if name.startswith("postponer"))]
    duration_s = random.uniform(1.5, 4.0) + (1.5 if "delays" in parts else 0.0)
    usual = (step for step in plan.steps if step.kind in _KNOWN and step.at_s < duration_s)
    own = [step for step in usual if random.random() < 0.5]
    first = replace(
        plan,
        clients=tuple(clients),
        steps=(*own, *_steps(random, _MEANTIME, duration_s, (4, 8, 14))),
        more_groups=(),
        victim=random.randrange(1, 7),
        retention_bytes=0,
        producers_max=100,
        producer_idle_ms=7 * 24 * 3_600_000,
        lines=random.choice((20, 40, 70)),
        duration_s=duration_s,
    )
    later_s = random.uniform(0.5, 2.0)
    second = replace(
        first,
        clients=_SECOND,
        steps=_steps(random, _LATER, later_s, (0, 2, 4)),
        duration_s=later_s,
    )
    return SitesPlan(
        first=first,
        during=_steps(random, _FAIL_OVER, 2.0, (0, 2, 5)),
        second=second,
        fail_over=random.choice(("lost", "lost", "alive", "planned")),
        settle_s=random.choice((0.05, 0.2, 0.6)),
        read_bytes=random.choice((300, 2_000, 20_000)),
        part_bytes=random.choice((150, 400, 20_000)),
    )


def _steps(
    random: Random, kinds: Sequence[str], end_s: float, counts: Sequence[int]
) -> tuple[Step, ...]:
    return tuple(
        Step(round(random.uniform(0.0, end_s), 6), kind, random.getrandbits(32))
        for kind in random.choices(kinds, k=random.choice(counts))
    )
