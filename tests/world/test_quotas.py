"""Worlds with quotas: they are kept, nobody else waits, and changes reach every node in time."""

from __future__ import annotations

import pytest

from semel.protos.security.quotas import QuotaKind
from tests.world import planted_quotas as planted
from tests.world.parts.quotas import _are_named
from tests.world.plan import make_plan
from tests.world.planted import Plant
from tests.world.quota_ledger import Item, Ledger, Wrong
from tests.world.registry import with_parts
from tests.world.run import run_plan
from tests.world.soak import _plan, first_failure, run_until_seen

QUOTAS = ("quotas",)
WANTED = {
    "world with quotas": 3,
    "master died while a quota changed": 3,
    "quota in force": 12,
    "quotas set": 20,
    "quotas removed": 5,
    "quota: a batch waited for its topic": 20,
    "quota: a message waited for its user": 5,
    "quota: a call refused": 5,
    "quota: a reader waited": 4,
    "quota: delayed-bytes refused": 1,
}


@pytest.mark.timeout(300)
def test_quotas_are_kept_nobody_else_waits_and_changes_are_in_force_in_a_second() -> None:
    run_until_seen(range(40), WANTED, more=QUOTAS)


# Each with seeds of which one meets it.
PLANTS: list[tuple[Plant, range]] = [
    (planted.lets_all_messages_pass, range(3)),
    (planted.counts_no_batches_of_topics, range(3)),
    (planted.gives_each_stream_the_whole_rate, range(3)),
    (planted.looks_seldom, range(3)),
    (planted.reads_for_nothing, range(5)),
    (planted.serves_all_calls, range(5)),
    (planted.counts_calls_twice, range(5)),
    (planted.keeps_the_first_limit, range(12)),
    (planted.hears_quotas_once, range(3)),
    (planted.opens_any_number, range(5)),
    (planted.counts_producers_for_ever, range(5)),
    (planted.delays_any_number, range(5)),
    (planted.counts_all_topics_together, range(5)),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("plant", "seeds"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_planted_bug_is_found(plant: Plant, seeds: range) -> None:
    first_failure(seeds, plant, match="quota: ", more=QUOTAS)


def test_a_world_of_older_programs_has_no_quotas() -> None:
    plan = _plan(0, more=("upgrades", *QUOTAS))
    assert not any(name.startswith("treasurer") for name in plan.clients)
    result, error, _ = run_plan(plan)
    assert result is not None, error
    assert not result.seen["world with quotas"]


def test_half_of_the_worlds_know_their_users() -> None:
    plans = [with_parts(make_plan(seed), QUOTAS) for seed in range(400)]
    assert sum(map(_are_named, plans)) == pytest.approx(200, abs=40)


# --- the ledger itself

RATE = {("user:a", QuotaKind.WRITE_BYTES): 100, ("*", QuotaKind.REQUESTS): 10}


def ledger() -> Ledger:
    made = Ledger("node", 0.0)
    made.hear(1, RATE, 0.0)
    return made


def sends(made: Ledger, size: float, now_s: float) -> Item:
    return made.comes("a message", "user:a", {QuotaKind.WRITE_BYTES: size}, now_s)


def test_a_ledger_sees_what_passes_before_its_turn_and_what_waits_for_nothing() -> None:
    for at_s, told in ((0.5, "passes beyond the write-bytes of user:a"), (1.5, "for nothing")):
        made = ledger()
        first, second = sends(made, 200, 0.0), sends(made, 1, 0.0)
        assert not made.passes(first, 0.0)
        with pytest.raises(Wrong, match=told):
            made.passes(second, at_s)
    made = ledger()
    first, second = sends(made, 200, 0.0), sends(made, 1, 0.0)
    made.passes(first, 0.0)
    assert made.passes(second, 1.1)


def test_whoever_gives_up_was_never_there() -> None:
    made = ledger()
    made.passes(sends(made, 150, 0.0), 0.0)
    gone, waits = sends(made, 10_000, 0.0), sends(made, 1, 0.0)
    made.gives_up(gone, 0.2)
    assert made.passes(waits, 0.55)


def test_calls_and_reads_of_a_ledger() -> None:
    made = ledger()
    for _ in range(10):
        made.served("user:b", 0.0)
    with pytest.raises(Wrong, match="refused within its quota"):
        made.refused("user:b", 0.0)
    made.served("user:b", 0.0)
    made.refused("user:b", 0.0)
    with pytest.raises(Wrong, match="beyond the requests of user:b"):
        made.served("user:b", 0.05)
    made.hear(2, {("topic:t", QuotaKind.READ_BYTES): 100}, 1.0)
    made.reads("topic:t", 1_000, 1.0)
    made.reads("topic:t", 10, 1.5)
    with pytest.raises(Wrong, match="10 bytes are read beyond"):
        made.reads("topic:t", 10, 3.0)
    made.waited("user:a", 2.0, 9.0)
    with pytest.raises(Wrong, match=r"waited 2\.000 s for nothing"):
        made.waited("user:a", 2.0, 30.0)


def test_what_a_node_counts_from_then_on_has_a_seconds_worth_by_the_quota_of_that_time() -> None:
    made = ledger()
    made.hear(2, {("topic:t", QuotaKind.READ_BYTES): 100}, 1.0)
    made.begins("topic:t", QuotaKind.READ_BYTES, 1.0)
    made.hear(3, {("topic:t", QuotaKind.READ_BYTES): 400}, 1.0)
    made.reads("topic:t", 350, 1.5)  # 300 are there
    made.waited("", 0.1, 1.6)


def test_what_is_read_counts_from_when_a_node_began_to_read_it() -> None:
    made = ledger()
    made.hear(2, {("topic:t", QuotaKind.READ_BYTES): 100}, 1.0)
    made.reads("topic:t", 1_000, 1.5, read_s=0.9)  # when there was no quota yet
    made.reads("topic:t", 300, 2.5, read_s=2.0)  # a second's worth is there, so the debt ends at 4
    made.reads("topic:t", 300, 4.0, read_s=4.0)
    with pytest.raises(Wrong, match="10 bytes are read beyond"):
        made.reads("topic:t", 10, 6.9, read_s=6.9)


def test_a_debt_that_ends_lets_all_read_who_waited_for_it() -> None:
    made = ledger()
    made.hear(2, {("topic:t", QuotaKind.READ_BYTES): 100}, 1.0)
    made.reads("topic:t", 300, 1.0)  # a second's worth is there, so the debt ends at 3
    for _ in range(2):
        made.reads("topic:t", 50, 3.0)
    made.reads("topic:t", 200, 3.5)
    with pytest.raises(Wrong, match="50 bytes are read beyond"):
        made.reads("topic:t", 50, 4.5)
