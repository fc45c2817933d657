"""A compacted topic: programs write to it and read it as a table, while faults strike.

Passes come often, and their runs are short, so that masters change in the middle of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from semel.broker.background import compaction_passes
from tests.world import (
    nodes,
    tables,  # noqa: F401
)
from tests.world import run as run_module
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, random_of
from tests.world.run import Run


def with_compaction(plan: Plan) -> Plan:
    random = random_of(plan, "compaction")
    kinds = (
        *("kill master",) * 3,
        *("checkpoint", "client crash", "kill", "stop master", "heal", "two masters"),
        *("all lose power", "planned restart", "transfer", "wall clock jump"),
    )
    steps = [
        Step(round(random.uniform(0.3, plan.duration_s + 2.5), 6), kind, random.getrandbits(32))
        for kind in random.choices(kinds, k=random.choice((3, 5, 8)))
    ]
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 2.5)
    return with_clients(longer, ("keeper 1", "keeper 2", "tabler 1"))


@contextmanager
def _small(run: Run) -> Iterator[None]:
    random = random_of(run.plan, "sizes of compaction")
    config: dict[str, Any] = {
        "compaction_check_ms": random.choice((40, 150, 400)),
        "compaction_dirty_percent": random.choice((1, 30)),
        "compaction_bytes_per_second": random.choice((20_000, 1 << 20)),
        "compaction_keys_max": random.choice((3, 1 << 20)),
    }
    with ExitStack() as stack:
        made = partial(nodes.broker_config, **config)
        stack.enter_context(patch.object(run_module, "broker_config", made))
        stack.enter_context(
            patch.object(compaction_passes, "PIECE_BYTES", random.choice((500, 3_000)))
        )
        stack.enter_context(
            patch.object(compaction_passes, "PIECE_EXTENTS", random.choice((2, 10)))
        )
        yield


add_part(
    Part(
        name="compaction",
        help="programs use a compacted topic as a table",
        add=with_compaction,
        exchange=_small,
    )
)
