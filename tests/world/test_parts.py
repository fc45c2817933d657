"""Parts of worlds go together in any combination, and share one view of the broker groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

from tests.world import soak
from tests.world.parts import deliveries
from tests.world.parts.rights import is_secured
from tests.world.plan import Plan, make_plan
from tests.world.registry import all_parts, find_fault, with_parts
from tests.world.soak import ANY, run_seeds


@pytest.mark.timeout(600)
def test_worlds_of_any_combination_hold() -> None:
    """Seeds with many parts are the dearest of all: `./run soak sim --any` runs more of them."""
    seen, failures, _ = run_seeds(range(700, 702), more=(ANY,))
    assert not failures
    assert seen["message acknowledged"] > 200


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_parts_are_named_does_not_matter(seed: int) -> None:
    plan, names = make_plan(seed), list(all_parts())
    assert with_parts(plan, names) == with_parts(plan, names[::-1])


@pytest.mark.parametrize("names", list(combinations(all_parts(), 2)), ids=" and ".join)
def test_a_plan_names_each_client_once_and_its_steps_in_order(names: tuple[str, ...]) -> None:
    for seed in range(10):
        plan = with_parts(make_plan(seed), names)
        assert len(set(plan.clients)) == len(plan.clients)
        assert plan.steps == tuple(sorted(plan.steps, key=lambda step: step.at_s))
        assert 1 <= plan.victim <= sum(plan.groups)


def test_parts_that_need_several_broker_groups_mean_the_same_ones() -> None:
    for seed in range(20):
        moves = with_parts(make_plan(seed), ["moves"])
        both = with_parts(make_plan(seed), ["moves", "transactions"])
        assert both.groups == moves.groups
        assert len(both.groups) == 2


def test_a_fault_of_a_part_is_found_by_its_name() -> None:
    assert find_fault("move queue") is not None
    assert find_fault("kill master") is None, "that one is the nemesis' own"


ALONE: list[tuple[Callable[[list[str]], int], list[str]]] = [
    (soak.main, ["--alone", "--deliveries"]),
    (deliveries.main, []),
]


@pytest.mark.parametrize(("main", "options"), ALONE, ids=["sim --alone", "deliveries"])
def test_alone_only_the_parts_have_programs(
    main: Callable[[list[str]], int], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to the plan, of one seed that is traced and of many. Its world is none
    of those that the command line secures."""
    own, ran = {"doubter 1", "member 1", "watcher 1"}, []
    seed = next(
        seed
        for seed in range(3, 100)
        if own <= set(make_plan(seed).clients) and not is_secured(seed)
    )

    def run_plan(plan: Plan, **_: object) -> tuple[object, str, list[str]]:
        ran.append(plan)
        return object(), "", []

    def run_chunks(first: int, end: int, jobs: int, **fields: Any) -> Iterator[Any]:
        ran.append(soak._plan(first, **fields))
        return iter(())

    monkeypatch.setattr(soak, "run_plan", run_plan)
    monkeypatch.setattr(soak, "run_chunks", run_chunks)
    for trace in ["--trace"], []:
        assert main([*options, *trace, "--seeds", f"{seed}:{seed + 1}"]) == 0
    assert ran == [deliveries.plan_of(seed)] * 2
    assert not own & set(ran[0].clients)


def test_alone_without_parts_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be no programs."""
    with pytest.raises(SystemExit):
        soak.main(["--alone"])
    assert "--alone leaves no programs" in capsys.readouterr().err
