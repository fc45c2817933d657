"""Topics that come from another cluster: what their restore and their mirror have in common.

Not here: the steps (`restores.py`, `mirrors.py`), queues and their slots (`lineages.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from semel.controller.epoch import ControllerEpoch
from semel.protos.errors import InvalidRequest, Unavailable
from semel.protos.levels import lacking
from semel.protos.v1.metadata_pb2 import MirroredTopic, RestoringTopic

ID_STEP: Final = 1 << 40
"""More ids than the other cluster can have given out since it was asked."""
TOPICS_A_LOOK: Final = 100

T = TypeVar("T", MirroredTopic, RestoringTopic)


class Groups(Protocol):
    """The facts about broker groups that a placement depends on."""

    def group_ids(self) -> list[int]:
        """All groups ever heard of."""

    def roomy_groups(self) -> list[int]:
        """Groups whose master is alive and has room on its disk; if none has, those without."""


def check_step(epoch: ControllerEpoch, cluster_id: str, level: int) -> None:
    """Checks that a step is meant for this cluster, and that its metadata are at `level`. Raises
    InvalidRequest, UnsupportedVersion."""
    if cluster_id != epoch.cluster_id:
        raise InvalidRequest(f"this is cluster {epoch.cluster_id}, the caller means {cluster_id}")
    if epoch.level < level:
        raise lacking(level, epoch.level, "the controllers' metadata")


def page_after(topics: Iterable[T], topic_id: int) -> list[T]:
    """The first TOPICS_A_LOOK topics with higher ids, by id."""
    later = (topic for topic in topics if topic.topic.topic_id > topic_id)
    return sorted(later, key=lambda topic: topic.topic.topic_id)[:TOPICS_A_LOOK]


def usable_groups(groups: Groups) -> list[int]:
    """The groups that queues can be placed on. Raises Unavailable if no broker is known yet."""
    usable = groups.roomy_groups() or groups.group_ids()
    if not usable:
        raise Unavailable("no broker has reported to the controller yet. Start the brokers")
    return usable
