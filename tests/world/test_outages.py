"""Whole clusters of two broker groups, one without a master: the locks of the other one stay."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import pytest

from semel.client.consumer.lock_renewals import LockRenewals
from semel.client.consumer.locks import Locks
from semel.protos.ids import GroupId
from tests.world.plan import Plan, make_plan
from tests.world.registry import with_parts
from tests.world.run import run_plan

SEEDS = range(8)


def calm(seed: int) -> Plan:
    """Nothing but an outage, and an idle consumer."""
    plan = replace(make_plan(seed), steps=(), clients=(), loss=0.0, repeat=0.0, slow=0.0, skew=0.0)
    return with_parts(plan, ("outages",))


@pytest.mark.timeout(300)
def test_an_outage_of_one_broker_group_costs_no_lock_of_another() -> None:
    for seed in SEEDS:
        result, error, _ = run_plan(calm(seed))
        assert result is not None, f"seed {seed}: {error}"
        assert result.seen["outage"] >= 1
        assert result.seen["idler held locks of two broker groups"] >= 2


def renews_in_rounds() -> AbstractContextManager[object]:
    """The next renewal at any broker group waits for this one at all of them."""

    async def renew(renewals: LockRenewals, group_id: GroupId) -> None:
        locks = renewals._holder
        assert isinstance(locks, Locks)
        while locks.held:
            await asyncio.sleep(renewals._config.session_ms / 3000)
            groups = {queue.group_id for queue in locks.held.values()}
            if group_id != min(groups, default=group_id):
                return
            await asyncio.gather(*(renewals.renew_at(at, locks.held_at(at)) for at in groups))

    return patch.object(LockRenewals, "_renew", renew)


@pytest.mark.timeout(300)
def test_renewals_that_wait_for_another_broker_group_are_found() -> None:
    for seed in SEEDS:
        result, error, _ = run_plan(calm(seed), plant=renews_in_rounds())
        if result is None:
            assert "lost locks of a broker group that was well" in error
            return
    raise AssertionError(f"survived {len(SEEDS)} seeds")
