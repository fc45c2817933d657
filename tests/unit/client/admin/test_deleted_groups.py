"""A consumer group that is deleted while its queues move: it is forgotten wherever they go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.state import Accepted, GroupDeleted
from semel.client.admin.resets import forget_progress
from semel.protos.errors import Throttled, Unavailable
from semel.protos.v1 import broker_pb2, control_pb2
from tests.kit.state_log import KEY, control, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice, copy_some, move

GROUP = "billing"
JOB = 1 << 63
"""As large as controllers' numbers may be."""


def homes() -> dict[int, Home]:
    """Two broker groups; the first one has a queue of which a consumer group has read a part."""
    made = {1: Home(1, queues=(KEY,)), 2: Home(2)}
    first = made[1]
    first.fence()
    first.produce(header(-1, last=4))
    first.entry.append(
        control(reset_offset=control_pb2.ResetOffset(group=GROUP, queue=ref(), offset=4))
    )
    first.commit()
    return made


class Cluster:
    """Broker groups as a client reaches them. Something may happen before each of its calls."""

    config = SimpleNamespace(request_timeout_ms=1_000)
    routes = SimpleNamespace(on_routes=lambda routes: None)

    def __init__(self, groups: dict[int, Home], events: list[Callable[[], None]]) -> None:
        self.groups = groups
        self.events = events
        self.deletions = 0

    async def controller(self, method: str, request: object) -> Any:
        return SimpleNamespace(groups=[SimpleNamespace(group_id=each) for each in self.groups])

    async def call_master(self, number: int, method: str, request: Any) -> Any:
        """The second of two broker groups is asked first."""
        await asyncio.sleep(0 if number == 2 else 0.001)
        while True:
            if self.events:
                self.events.pop(0)()
            group, record = self.groups[number], control_pb2.DeleteGroup(group=request.group)
            decision = group.admission.admit_delete_group(record)
            if isinstance(decision, Accepted):
                break
            assert isinstance(decision.error, Throttled)
        group.entry.append(control(delete_group=record))
        result = group.commit()[-1]
        assert isinstance(result, GroupDeleted)
        self.deletions += 1
        return broker_pb2.DeleteGroupReply(moves_digest=result.moves_digest, queues=result.queues)


def known(groups: dict[int, Home]) -> list[int]:
    return [number for number, group in groups.items() if GROUP in group.state.groups.names()]


def there(groups: dict[int, Home]) -> None:
    move(groups[1], groups[2], JOB + 1)


def back(groups: dict[int, Home]) -> None:
    move(groups[2], groups[1], JOB + 2)


def sealed(groups: dict[int, Home]) -> None:
    assert begin(groups[1], groups[2], JOB + 1) is None
    copy_some(groups[1], groups[2], 9)
    assert groups[1].step("SEAL", JOB + 1, 2) is None


def arrived(groups: dict[int, Home]) -> None:
    assert bring_slice(groups[1], groups[2], JOB + 1) is None
    assert groups[2].step("ACTIVATE", JOB + 1, 1) is None
    assert groups[1].step("FORWARD", JOB + 1, 2) is None


def nothing(groups: dict[int, Home]) -> None:
    pass


@pytest.mark.parametrize(
    ("events", "deletions"),
    [
        ([], 4),
        ([there], 4),
        ([nothing, there], 6),
        ([nothing, sealed, arrived], 6),
        ([nothing, there, nothing, back], 8),
        ([there, back], 6),
    ],
)
def test_a_deleted_group_is_forgotten_wherever_its_queues_go(
    events: list[Callable[[dict[int, Home]], None]], deletions: int
) -> None:
    """Each event comes before one of the calls: target, source, target, source..."""
    groups = homes()
    assert known(groups) == [1]
    cluster = Cluster(groups, [partial(event, groups) for event in events])
    assert asyncio.run(forget_progress(cluster, GROUP))  # type: ignore[arg-type]
    assert not cluster.events
    assert not known(groups)
    assert cluster.deletions == deletions


def test_a_single_broker_group_is_asked_once() -> None:
    groups = {1: homes()[1]}
    cluster = Cluster(groups, [])
    assert asyncio.run(forget_progress(cluster, GROUP))  # type: ignore[arg-type]
    assert cluster.deletions == 1
    assert not known(groups)
    assert not asyncio.run(forget_progress(cluster, GROUP)), "nobody knows it any more"  # type: ignore[arg-type]


def test_queues_that_move_all_the_time_are_no_success() -> None:
    groups = homes()
    cluster = Cluster(groups, [])
    cluster.config = SimpleNamespace(request_timeout_ms=0)
    jobs = iter(range(1, 100))

    def again() -> None:
        cluster.events.append(again)
        job = next(jobs)
        source, target = (1, 2) if job % 2 else (2, 1)
        move(groups[source], groups[target], job)

    cluster.events.append(again)
    with pytest.raises(Unavailable, match="Delete it again"):
        asyncio.run(forget_progress(cluster, GROUP))  # type: ignore[arg-type]
