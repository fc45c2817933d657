"""The order of the steps of a change of membership, whatever was done before."""

from __future__ import annotations

from itertools import product

import pytest

from semel.client.members import Standing, next_step

LEARNER, VOTER, REMOVED = Standing.LEARNER, Standing.VOTER, Standing.REMOVED


def walk(members: dict[int, Standing], wanted: dict[int, Standing]) -> list[tuple[int, Standing]]:
    """All steps, each taken as the broker takes it."""
    steps = []
    while (step := next_step(members, wanted)) is not None:
        steps.append(step)
        node, standing = step
        if standing is REMOVED:
            del members[node]
        else:
            assert standing is LEARNER or members[node] is LEARNER, "a voter joins as a learner"
            members[node] = standing
        assert len(steps) < 10
    return steps


def test_a_replacement_adds_before_it_removes() -> None:
    members = {1: VOTER, 2: VOTER, 3: VOTER}
    assert walk(members, {4: VOTER, 2: REMOVED}) == [(4, LEARNER), (4, VOTER), (2, REMOVED)]
    assert members == {1: VOTER, 3: VOTER, 4: VOTER}


def test_all_who_join_catch_up_before_the_first_is_promoted() -> None:
    assert walk({1: VOTER}, {2: VOTER, 3: VOTER}) == [
        (2, LEARNER),
        (3, LEARNER),
        (2, VOTER),
        (3, VOTER),
    ]


@pytest.mark.parametrize(
    ("new", "old"), list(product((None, LEARNER, VOTER), (None, LEARNER, VOTER)))
)
def test_from_wherever_it_stopped_it_comes_to_the_same_end(
    new: Standing | None, old: Standing | None
) -> None:
    members = {1: VOTER, 3: VOTER}
    members |= {4: new} if new is not None else {}
    members |= {2: old} if old is not None else {}
    wanted = {4: VOTER, 2: REMOVED}
    walk(members, wanted)
    assert members == {1: VOTER, 3: VOTER, 4: VOTER}
    assert next_step(members, wanted) is None
