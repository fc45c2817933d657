"""The pointer that the replicated state has of a queue, as the tier's library wants it."""

from __future__ import annotations

from semel.broker.state import QueueState
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2
from semel.tier import Manifest, Pointer


def pointer_of(folder: str, queue: QueueState) -> Pointer | None:
    """The pointer to the queue's manifest; None if nothing of it was ever tiered. `folder` is that
    of the place."""
    tier = queue.tier
    if not tier.number:
        return None
    return Pointer(
        cluster_id=folder,
        topic_id=queue.key.topic_id,
        queue_id=queue.key.queue_id,
        number=tier.number,
        length=tier.length,
        sha256=tier.sha256.hex(),
    )


def record_of(pointer: Pointer, manifest: Manifest) -> control_pb2.ControlRecord:
    """The record by which the log decides that a manifest counts, which `pointer` names."""
    return control_pb2.ControlRecord(
        tiered=control_pb2.Tiered(
            queue=queue_ref(pointer.queue),
            number=pointer.number,
            length=pointer.length,
            sha256=bytes.fromhex(pointer.sha256),
            previous_sha256=bytes.fromhex(manifest.previous_sha256),
            tier_start=manifest.start,
            tier_end=manifest.end,
        )
    )
