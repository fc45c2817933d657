"""Which queues of a tier make a topic, and what a loss in a parent means for its children."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client.admin.tier_restore import _ancestors_whole, _family
from semel.protos.errors import InvalidRequest
from semel.protos.v1.metadata_pb2 import RestorableQueue
from semel.protos.v1.restores_pb2 import DescribeTieredQueueReply

Reply = DescribeTieredQueueReply


def reply(number: int, start: int, end: int, problem: str = "", **fields: Any) -> Reply:
    given = {"producers": 3, "log_end_offset": 10, "known_end_offset": 10} | fields
    queue = RestorableQueue(queue_id=number, slot_start=start, slot_end=end, **given)
    return Reply(queue=queue, problem=problem)


def split(**parent: Any) -> list[Reply]:
    """Queue 0 became 1 and 2, and 2 became 3 and 4."""
    return [
        reply(0, 0, 65_536, child_ids=[1, 2], **parent),
        reply(1, 0, 30_000, parent_id=0),
        reply(2, 30_000, 65_536, parent_id=0, child_ids=[3, 4]),
        reply(3, 30_000, 40_000, parent_id=2),
        reply(4, 40_000, 65_536, parent_id=2),
    ]


def numbers(replies: list[Reply]) -> list[int]:
    return [each.queue.queue_id for each in replies]


def test_a_whole_family_is_kept_as_it_is() -> None:
    whole = [reply(1, 30_000, 65_536), reply(0, 0, 30_000)]
    assert numbers(_family("t", whole)) == [0, 1]
    kept = _family("t", split())
    assert numbers(kept) == [0, 1, 2, 3, 4]
    assert [(each.queue.producers, each.queue.reopened) for each in kept] == [(3, 0)] * 5


@pytest.mark.parametrize("lost", [{"log_end_offset": 9}, {"delayed_messages": 1}])
def test_a_loss_of_a_parent_ends_the_rows_of_all_below(lost: dict[str, int]) -> None:
    kept = _family("t", split(**lost))
    queues = [each.queue for each in kept]
    assert [(queue.producers, queue.reopened) for queue in queues] == [(3, 0), *[(0, 3)] * 4]
    assert [_ancestors_whole(queue, queues) for queue in queues] == [True, *[False] * 4]


def test_a_split_that_the_parent_does_not_know_is_as_if_it_had_not_been() -> None:
    queues = [reply(0, 0, 65_536), *split()[1:]]
    assert numbers(_family("t", queues)) == [0]
    queues[2].queue.tiered = True
    with pytest.raises(InvalidRequest, match="queue 2 of topic 't' cannot be restored: the split"):
        _family("t", queues)


@pytest.mark.parametrize(
    "queues",
    [
        [reply(0, 0, 30_000)],
        [reply(1, 30_000, 65_536)],
        [reply(0, 0, 30_000), reply(2, 30_000, 65_536)],
        [reply(0, 0, 30_000), reply(1, 20_000, 65_536)],
        split()[:4],
        [split()[0]],
    ],
)
def test_what_is_no_whole_topic_is_refused_with_its_name(queues: list[Reply]) -> None:
    with pytest.raises(InvalidRequest, match=r"topic 't' cannot be restored.* --without t"):
        _family("t", queues)


def test_a_damaged_queue_is_refused_with_the_reason() -> None:
    queues = [reply(0, 0, 30_000), reply(1, 30_000, 65_536, "the manifest is gone")]
    with pytest.raises(InvalidRequest, match=r"queue 1 .*: the manifest is gone. Leave"):
        _family("t", queues)
