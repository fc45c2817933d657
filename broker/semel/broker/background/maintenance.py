"""Runs the background work of a replica as one task.

How it works. The master decides about shared state, through the log: trimming, the expiry of
producers, the release of locks. Every node decides about the bytes on its own disk: when to write a
checkpoint, and when to recycle the oldest segments.
"""

from __future__ import annotations

from semel.broker.background.checkpointing import Checkpointing
from semel.broker.background.full_disk import FullDisk
from semel.broker.background.lock_expiry import LockExpiry
from semel.broker.background.producer_expiry import ProducerExpiry
from semel.broker.background.retention import Retention
from semel.broker.membership.changes import MembershipChanges
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.protos import compat


async def maintain(replica: Replica, checkpoints: Checkpoints, changes: MembershipChanges) -> None:
    """Ends only by cancellation."""
    checkpointing = Checkpointing(replica, checkpoints)
    async with compat.TaskGroup() as tasks:
        tasks.create_task(LockExpiry(replica).run())
        tasks.create_task(checkpointing.run())
        retention = Retention(replica, checkpointing, forgets=bool(replica.config.tier))
        tasks.create_task(retention.run())
        tasks.create_task(ProducerExpiry(replica).run())
        tasks.create_task(FullDisk(replica, changes).run())
