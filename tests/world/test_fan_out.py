"""Whole clusters with several readers of one topic, which brokers answer as crowds.

Bugs are planted in `tests/unit/broker/server/test_fan_out.py`: here the SDK would drop what a reply
repeats, and ask again for what it leaves out.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from semel.broker.server import fan_out
from tests.world.plan import Plan, make_plan, with_clients
from tests.world.run import run_plan

SEEDS = range(6)


def crowded(seed: int) -> Plan:
    return with_clients(make_plan(seed), [f"follower {number}" for number in range(1, 5)])


def counted(sizes: Counter[int]) -> AbstractContextManager[object]:
    """Counts the answers of crowds by the number of polls there."""
    answer = fan_out._Crowd._answer

    def watched(self: Any, member: Any) -> bool:
        answered = answer(self, member)
        sizes[len(self.members)] += answered
        return answered

    return patch.object(fan_out._Crowd, "_answer", watched)


def test_crowds_get_all_of_it_under_faults() -> None:
    sizes: Counter[int] = Counter()
    for seed in SEEDS:
        result, error, _ = run_plan(crowded(seed), plant=counted(sizes))
        assert result is not None, f"seed {seed}: {error}"
    assert sizes[4] >= 50
