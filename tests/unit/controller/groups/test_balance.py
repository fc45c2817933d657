"""The balanced, sticky assignment judged by its promises; the judges judged by bad ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.controller.groups.balance import Assignment, balance
from semel.protos.ids import QueueId, QueueKey, TopicId

Subscriptions = Mapping[str, Set[int]]
Queues = Mapping[int, Sequence[QueueKey]]


def queues_of(topic: int, count: int) -> list[QueueKey]:
    return [QueueKey(TopicId(topic), QueueId(number)) for number in range(count)]


def check_complete(subscriptions: Subscriptions, queues: Queues, result: Assignment) -> None:
    """Every queue that somebody may have has one owner, who may have it."""
    assert set(result) == set(subscriptions)
    owners = Counter(queue for held in result.values() for queue in held)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert owners == Counter(q for t in wanted for q in queues.get(t, ()))
    for member, held in result.items():
        assert {queue.topic_id for queue in held} <= set(subscriptions[member])
        assert held == sorted(held)


def check_balanced(subscriptions: Subscriptions, queues: Queues, result: Assignment) -> None:
    """From no member a chain of hand-overs leads to one with at least two queues fewer."""
    for giver, held in result.items():
        reached = {giver}
        topics = {int(queue.topic_id) for queue in held}
        while True:
            more = {m for m, wish in subscriptions.items() if topics & wish} - reached
            if not more:
                break
            reached |= more
            topics |= {int(queue.topic_id) for member in more for queue in result[member]}
        assert len(held) <= min(len(result[member]) for member in reached) + 1


def least_moves(loads: Sequence[int], free: int) -> int:
    """Queues that must change owner so that equal members differ by at most one."""
    low, rest = divmod(sum(loads) + free, len(loads))
    targets = [low + (rank < rest) for rank in range(len(loads))]
    return sum(
        max(0, load - target)
        for load, target in zip(sorted(loads, reverse=True), targets, strict=True)
    )


MEMBERS = st.integers(1, 7).map(lambda n: [f"m{i}" for i in range(n)])
TOPICS = st.dictionaries(st.integers(1, 5), st.integers(1, 9), max_size=5).map(
    lambda counts: {topic: queues_of(topic, count) for topic, count in counts.items()}
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Subscriptions, Queues, Assignment]:
    queues = draw(TOPICS)
    members = draw(MEMBERS)
    wishes = st.sets(st.integers(1, 6), max_size=4)
    subscriptions = {member: draw(wishes) for member in members}
    everybody = [*members, "gone"]
    current: Assignment = {member: [] for member in everybody}
    for topic in (*queues, 9):
        for queue in queues_of(topic, draw(st.integers(0, 10))):
            for owner in draw(st.sets(st.sampled_from(everybody), max_size=2)):
                current[owner].append(queue)
    return subscriptions, queues, current


@settings(max_examples=60, deadline=None)
@given(situations())
def test_whatever_was_before_the_result_is_complete_balanced_and_stable(
    situation: tuple[Subscriptions, Queues, Assignment],
) -> None:
    subscriptions, queues, current = situation
    result = balance(subscriptions, queues, current)
    check_complete(subscriptions, queues, result)
    check_balanced(subscriptions, queues, result)
    assert balance(subscriptions, queues, result) == result
    reordered = dict(reversed(list(subscriptions.items())))
    assert balance(reordered, dict(reversed(list(queues.items()))), current) == result


@settings(max_examples=60, deadline=None)
@given(situations())
def test_members_with_equal_subscriptions_differ_by_at_most_one(
    situation: tuple[Subscriptions, Queues, Assignment],
) -> None:
    subscriptions, queues, current = situation
    result = balance(subscriptions, queues, current)
    for one, wish in subscriptions.items():
        for other, other_wish in subscriptions.items():
            if wish == other_wish:
                assert abs(len(result[one]) - len(result[other])) <= 1


@settings(max_examples=60, deadline=None)
@given(MEMBERS, TOPICS, st.randoms(use_true_random=False))
def test_with_equal_subscriptions_no_queue_moves_without_need(
    members: list[str], queues: Queues, random: object
) -> None:
    current: Assignment = {member: [] for member in (*members, "gone")}
    for queue in (queue for found in queues.values() for queue in found):
        owner = random.choice([*members, "gone", None])  # type: ignore[attr-defined]
        if owner:
            current[owner].append(queue)
    result = balance({member: set(queues) for member in members}, queues, current)
    kept = [set(current[member]) for member in members]
    moved = sum(len(had - set(result[m])) for m, had in zip(members, kept, strict=True))
    free = sum(map(len, queues.values())) - sum(map(len, kept))
    assert moved == least_moves([len(had) for had in kept], free)


def owners_before(
    subscriptions: Subscriptions, queues: Queues, current: Assignment
) -> dict[QueueKey, str]:
    """Today's member that had each queue and may keep it; of two, the first by name."""
    owners: dict[QueueKey, str] = {}
    for member in sorted(subscriptions):
        for queue in current.get(member, ()):
            wished = queue.topic_id in subscriptions[member]
            if wished and queue in queues.get(queue.topic_id, ()):
                owners.setdefault(queue, member)
    return owners


def check_few_moves(
    subscriptions: Subscriptions, queues: Queues, current: Assignment, result: Assignment
) -> None:
    """No more than the shortest chains can move that level what was kept and filled up."""
    owners = owners_before(subscriptions, queues, current)
    moved = sum(owners.get(q, member) != member for member, held in result.items() for q in held)
    loads = Counter(owners.values())
    for topic in sorted(queues, key=lambda t: (sum(t in s for s in subscriptions.values()), t)):
        wishing = [member for member in sorted(subscriptions) if topic in subscriptions[member]]
        for queue in queues[topic] if wishing else ():
            if queue not in owners:
                loads[min(wishing, key=lambda member: (loads[member], member))] += 1
    before = sum(load * load for load in loads.values())
    after = sum(len(held) ** 2 for held in result.values())
    known = [frozenset(wish & queues.keys()) for wish in subscriptions.values()]
    assert 2 * moved <= (2 * len(set(known)) - 1) * (before - after)


@settings(max_examples=60, deadline=None)
@given(situations())
def test_with_different_subscriptions_moves_are_bounded(
    situation: tuple[Subscriptions, Queues, Assignment],
) -> None:
    subscriptions, queues, current = situation
    check_few_moves(subscriptions, queues, current, balance(subscriptions, queues, current))


def test_what_a_chain_moved_without_need_goes_back() -> None:
    subscriptions = {"m0": {2}, "m1": {1, 2}, "m2": {1}}
    queues = {1: queues_of(1, 2), 2: queues_of(2, 2)}
    result = balance(subscriptions, queues, {"m0": queues[2], "m1": queues[1]})
    assert result == {"m0": queues[2], "m1": queues[1][:1], "m2": queues[1][1:]}


def test_a_newcomer_takes_its_share_and_nothing_else_moves() -> None:
    queues = {1: queues_of(1, 12)}
    before = balance({m: {1} for m in ("a", "b", "c")}, queues, {})
    after = balance({m: {1} for m in ("a", "b", "c", "d")}, queues, before)
    assert len(after["d"]) == 3
    for member in ("a", "b", "c"):
        assert set(after[member]) < set(before[member])


def test_a_chain_reaches_a_member_that_shares_no_topic_with_the_fullest() -> None:
    queues = {1: queues_of(1, 4), 2: queues_of(2, 2)}
    current = {"a": queues[1], "b": queues[2]}
    result = balance({"a": {1}, "b": {1, 2}, "c": {2}}, queues, current)
    assert {member: len(held) for member, held in result.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_topic_without_queues_and_a_group_without_members_are_nothing_special() -> None:
    assert balance({}, {1: queues_of(1, 2)}, {}) == {}
    assert balance({"a": {7}}, {}, {"a": queues_of(7, 2)}) == {"a": []}


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (check_complete, {"a": queues_of(1, 3), "b": []}),
        (check_complete, {"a": queues_of(1, 4), "b": queues_of(1, 1)}),
        (check_complete, {"a": [*queues_of(1, 4), *queues_of(2, 1)], "b": []}),
        (check_balanced, {"a": queues_of(1, 3), "b": [queues_of(1, 4)[3]]}),
    ],
)
def test_the_checks_see_a_bad_assignment(
    check: Callable[[Subscriptions, Queues, Assignment], None], bad: Assignment
) -> None:
    with pytest.raises(AssertionError):
        check({"a": {1}, "b": {1}}, {1: queues_of(1, 4)}, bad)


def test_the_bound_of_moves_sees_a_useless_one() -> None:
    subscriptions: Subscriptions = {"a": {1}, "b": {1, 2}}
    queues = {1: queues_of(1, 2), 2: queues_of(2, 1)}
    kept = {"a": queues[1][:1], "b": [queues[1][1], *queues[2]]}
    check_few_moves(subscriptions, queues, kept, kept)
    swapped = {"a": queues[1][1:], "b": [queues[1][0], *queues[2]]}
    with pytest.raises(AssertionError):
        check_few_moves(subscriptions, queues, kept, swapped)


@pytest.mark.parametrize("different", [False, True])
def test_two_hundred_members_and_a_thousand_queues_are_planned_in_few_steps(
    different: bool,
) -> None:
    queues = {topic: queues_of(topic, 50) for topic in range(1, 21)}
    subscriptions = {
        f"m{n}": {topic for topic in queues if not different or (n + topic) % 3} for n in range(200)
    }
    skewed = {"m0": [queue for topic in queues for queue in queues[topic]]}
    for current in ({}, skewed):
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            result = balance(subscriptions, queues, current)
        finally:
            sys.setprofile(None)
        check_complete(subscriptions, queues, result)
        assert 0 < calls <= 150_000, "some 60 ms on the machine where it was measured"
