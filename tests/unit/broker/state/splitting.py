"""A queue that is split: the records, and the calls that tests make around them."""

from __future__ import annotations

from typing import Any

from semel.broker.state import Accepted, Refused
from semel.protos import errors
from semel.protos.ids import QueueKey
from semel.protos.levels import SPLIT_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, control, ref

CHILDREN = ((1, 0, 30_000), (2, 30_000, 65_536))


def split_of(
    key: QueueKey = KEY, children: tuple[tuple[int, int, int], ...] = CHILDREN
) -> control_pb2.SplitQueue:
    return control_pb2.SplitQueue(
        queue=ref(key),
        children=[
            control_pb2.ChildQueue(queue_id=number, slot_start=start, slot_end=end)
            for number, start, end in children
        ],
    )


def raise_level(group: Group) -> None:
    record = control_pb2.FeatureLevel(level=SPLIT_LEVEL)
    assert isinstance(group.admission.admit_feature_level(record), Accepted)
    group.entry.append(control(feature_level=record))
    group.commit()


def split(group: Group, record: control_pb2.SplitQueue | None = None, **how: Any) -> Any:
    """The verdict; the split is applied unless `commit` is false."""
    record = record or split_of()
    verdict = group.admission.queues.admit_split(record)
    if isinstance(verdict, Accepted):
        group.entry.append(control(split_queue=record))
        if how.get("commit", True):
            group.commit()
    return verdict


def commit_offset(group: Group, token: int, offset: int, key: QueueKey = KEY) -> None:
    commit = control_pb2.QueueCommit(queue=ref(key), token=token, offset=offset)
    record = control_pb2.CommitOffsets(group="g", commits=[commit])
    (result,) = group.apply(control(commit_offsets=record))
    assert result.outcomes[0].error is None  # type: ignore[union-attr]


def acquire(group: Group, key: QueueKey, name: str = "g", *, beside_parents: bool = False) -> Any:
    lock = control_pb2.AcquireLock(
        group=name,
        queue=ref(key),
        member_id="m",
        lock_ms=1000,
        session_ms=1000,
        beside_parents=beside_parents,
    )
    (result,) = group.apply(control(acquire_lock=lock))
    return result


def error_of(verdict: Any) -> errors.SemelError:
    assert isinstance(verdict, Refused), verdict
    return verdict.error
