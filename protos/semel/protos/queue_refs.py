"""References to queues in protobuf messages."""

from __future__ import annotations

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import common_pb2


def queue_ref(key: QueueKey) -> common_pb2.QueueRef:
    """Returns the reference to a queue."""
    return common_pb2.QueueRef(topic_id=key.topic_id, queue_id=key.queue_id)


def queue_key_of(reference: common_pb2.QueueRef) -> QueueKey:
    """Returns the queue that a reference names."""
    return QueueKey(TopicId(reference.topic_id), QueueId(reference.queue_id))
