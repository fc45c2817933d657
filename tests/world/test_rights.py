"""Secured worlds: rules change while faults strike, and nobody does what it may not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world import planted_rights as planted
from tests.world.parts.rights import is_secured, rules_of
from tests.world.plan import make_plan
from tests.world.planted import Plant
from tests.world.registry import with_parts
from tests.world.run import run_plan
from tests.world.soak import THIRD, _plan, first_failure, run_seeds, run_until_seen

RIGHTS = ("rights",)
HIDDEN = "hidden"
WANTED = {
    "secured world": 4,
    "forger refused: end": 3,
    "forger refused: forge": 5,
    "guest refused": 20,
    "intruder refused: call": 20,
    "intruder refused: commit": 3,
    "intruder refused: fence": 3,
    "intruder refused: read": 3,
    "intruder refused: use_the_sdk": 5,
    "intruder refused: write": 3,
    "operator: rights of others": 6,
    "operator: rights taken and given back": 6,
}


@pytest.mark.timeout(300)
def test_no_secured_world_breaks_a_promise_and_intruders_are_refused() -> None:
    run_until_seen(range(20, 50), WANTED, more=RIGHTS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["controllers", "moves", "transactions", "deliveries"])
def test_other_worlds_hold_as_well_when_they_are_secured(part: str) -> None:
    seen, failures, _ = run_seeds(range(2), more=(part, *RIGHTS))
    assert not failures
    assert seen["guest refused"] >= 10


# Each with seeds of which one meets it.
PLANTS: list[tuple[Plant, range]] = [
    (planted.lets_all_messages_of_streams_in, range(3)),
    (planted.lets_streams_outlive_rights, range(7)),
    (planted.does_not_check_calls, range(3)),
    (planted.takes_batches_in_any_name, range(3, 8)),
    (planted.lets_anybody_fence_the_unseen, range(6, 14)),
    (planted.ignores_deny_rules, range(3, 10)),
    (planted.tells_of_hidden_topics, range(2, 9)),
    (planted.forgets_rules_with_the_controller, range(3, 9)),
    (planted.hears_rules_once, range(3)),
    (planted.believes_its_copy, range(2, 9)),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("plant", "seeds"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_planted_bug_is_found(plant: Plant, seeds: range) -> None:
    first_failure(seeds, plant, more=RIGHTS)


@pytest.mark.timeout(300)
def test_a_topic_that_is_hidden_while_batches_wait_loses_none_of_them() -> None:
    run_until_seen(range(40), {"operator: topic hidden and shown": 60}, theme=HIDDEN, more=RIGHTS)


@pytest.mark.timeout(300)
def test_a_producer_that_begins_again_with_its_first_session_is_found() -> None:
    plant = planted.begins_again_with_the_first_session
    first_failure(range(20), plant, match="loss", theme=HIDDEN, more=RIGHTS)


def test_one_third_of_the_seeds_is_secured_and_the_others_are_as_they_were() -> None:
    plans = [_plan(seed, more=(THIRD,)) for seed in range(600)]
    assert Counter("rights" in plan.parts for plan in plans)[True] == pytest.approx(200, abs=30)
    for seed, plan in enumerate(plans):
        if is_secured(seed):
            assert plan == with_parts(make_plan(seed), RIGHTS)
        else:
            assert plan == make_plan(seed)


def test_a_world_of_older_programs_knows_no_rules() -> None:
    plan = _plan(0, more=("upgrades", *RIGHTS))
    assert not any(name.startswith(("intruder", "guest")) for name in plan.clients)
    result, error, _ = run_plan(plan)
    assert result is not None, error
    assert not result.seen["secured world"]


def test_usual_programs_have_no_more_rights_than_they_need() -> None:
    assert rules_of("intruder", "xa1") == ()
    assert rules_of("forger", "xb1") == ("allow user:xb1 write topic:orders",)
    assert rules_of("sender", "s1") == ("allow user:s1 write topic:orders",)
    assert "allow user:l1 own-name producer:l1" in rules_of("loader", "l1")
