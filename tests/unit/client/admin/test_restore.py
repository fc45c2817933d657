"""Which nodes an operator's restore makes count: every quorum must contain every survivor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin.restore import RestorePlan, _Node, _plan
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import broker_pb2


def status(node: int, size: int = 3, **fields: Any) -> Any:
    """A node of a group of `size` that counts, or as `fields` say."""
    known = {
        "node_id": node,
        "founding_id": "x",
        "non_counting": False,
        "log_end_index": 10,
        "membership_index": 0,
        "members": [
            SimpleNamespace(
                node=SimpleNamespace(node_id=one), membership=broker_pb2.MEMBERSHIP_STATUS_VOTER
            )
            for one in range(1, size + 1)
        ],
    }
    return SimpleNamespace(**{**known, **fields})


def empty(node: int, size: int = 3, **fields: Any) -> Any:
    return status(node, size, **{"non_counting": True, "log_end_index": 0, **fields})


def plan(
    *statuses: Any, lost: tuple[int, ...] = (), founding: str = "x", previous: str = ""
) -> RestorePlan:
    nodes = {
        number: _Node(address=f"h{number}", status=found)
        for number, found in enumerate(statuses, 1)
    }
    record = SimpleNamespace(founding_id=founding, previous_id=previous)
    return _plan(1, nodes, record, frozenset(lost))


def chosen(found: RestorePlan) -> tuple[Any, ...]:
    return found.survivors, found.counted, found.fed, found.lost, found.needed


@pytest.mark.parametrize(
    ("statuses", "lost", "wanted"),
    [
        ([status(1), empty(2), empty(3)], (), ((1,), (2,), (3,), (), True)),
        ([empty(1), empty(2), empty(3)], (), ((), (1, 2), (3,), (), True)),
        ([status(1), empty(2), None], (3,), ((1,), (2,), (), (3,), True)),
        ([status(1), empty(2), empty(3, log_end_index=4)], (), ((1,), (3,), (2,), (), True)),
        ([empty(1, size=1)], (), ((), (1,), (), (), True)),
        ([status(1), status(2), empty(3)], (), ((1, 2), (), (3,), (), False)),
        ([status(1), status(2), None], (), ((1, 2), (), (), (3,), False)),
        (
            [status(1, 5), empty(2, 5), empty(3, 5), status(4, 5), empty(5, 5)],
            (),
            ((1, 4), (2,), (3, 5), (), True),
        ),
    ],
)
def test_as_few_as_possible_are_made_to_count(
    statuses: list[Any], lost: tuple[int, ...], wanted: tuple[Any, ...]
) -> None:
    found = plan(*statuses, lost=lost)
    assert chosen(found) == wanted
    if found.needed:
        assert len(found.survivors) + len(found.counted) == len(found.voters) // 2 + 1


@pytest.mark.parametrize(
    ("statuses", "lost", "reason"),
    [
        ([status(1), None, empty(3)], (), r"nodes \[2\] .* may have messages"),
        ([status(1), empty(2), empty(3)], (2,), "node 2 answers and is not lost"),
        ([status(1), empty(2), None], (7,), "node 7 is no voter"),
        ([status(1), None, None], (2, 3), "start nodes with empty directories"),
        ([None, None, None], (), "no node .* answers"),
    ],
)
def test_what_may_lose_more_than_it_must_is_refused(
    statuses: list[Any], lost: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        plan(*statuses, lost=lost)


def test_a_node_of_an_ended_founding_is_not_taken_for_a_survivor() -> None:
    """It came back with its old disk after the group had been begun anew without it."""
    old = status(3, founding_id="w", log_end_index=1_000)
    found = plan(status(1), status(2), old)
    assert chosen(found) == ((1, 2), (), (), (3,), False)
    found = plan(status(1), empty(2), old, lost=(3,))
    assert chosen(found) == ((1,), (2,), (), (3,), True)


def test_what_was_interrupted_goes_on_with_both_foundings() -> None:
    """Node 1 is in the new one already, node 4 still in the old one; both survive."""
    five = [status(1, 5, founding_id="y"), empty(2, 5), empty(3, 5), status(4, 5), empty(5, 5)]
    found = plan(*five, founding="y", previous="x")
    assert chosen(found) == ((1, 4), (2,), (3, 5), (), True)
    all_counting = [status(n, founding_id="y" if n < 3 else "x") for n in (1, 2, 3)]
    assert not plan(*all_counting, founding="y", previous="x").needed
    assert plan(*(status(n) for n in (1, 2, 3)), founding="y", previous="x").needed
