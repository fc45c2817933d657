"""The lock of a queue that a gateway holds for a group of Kafka's clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.client.core.routing import QueueRoute
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2

NO_ERA: Final = -1


@dataclass(slots=True)
class GroupLock:
    route: QueueRoute
    token: int
    committed: int
    """The offset that is committed, as far as it is known."""
    split: control_pb2.SplitQueue | None = None
    """How the queue was split, if it was when the lock was granted."""
    version: int = 0
    """The last version of metadata under this token."""
    era: int = NO_ERA
    """Nothing is staged that was staged before this era."""


def lock_ref(lock: GroupLock) -> broker_pb2.LockRef:
    """Returns what names it to brokers."""
    return broker_pb2.LockRef(queue=queue_ref(lock.route.key), token=lock.token)
