"""Which error of Kafka's fits an error of the cluster. No I/O.

Kafka's clients act by the code alone: they send again after a retriable one, look for the leader
after NOT_LEADER_OR_FOLLOWER, and give the program everything else.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from semel.protos import errors
from semel.protos.security.rules import Kind

_CODES: Final[tuple[tuple[type[errors.SemelError], ErrorCode], ...]] = (
    (errors.NotMaster, ErrorCode.not_leader_or_follower),
    (errors.QueueMoved, ErrorCode.not_leader_or_follower),
    (errors.QueueSealed, ErrorCode.not_leader_or_follower),
    (errors.ParentUnread, ErrorCode.not_leader_or_follower),
    (errors.Throttled, ErrorCode.throttling_quota_exceeded),
    (errors.Unavailable, ErrorCode.not_leader_or_follower),
    (errors.TimedOut, ErrorCode.request_timed_out),
    (errors.TransactionAborted, ErrorCode.invalid_txn_state),
    (errors.TransactionFenced, ErrorCode.invalid_producer_epoch),
    (errors.ProducerFenced, ErrorCode.invalid_producer_epoch),
    (errors.DedupStateExpired, ErrorCode.unknown_producer_id),
    (errors.OutOfOrderSequence, ErrorCode.out_of_order_sequence_number),
    (errors.PartialOverlap, ErrorCode.out_of_order_sequence_number),
    (errors.SequenceConflict, ErrorCode.out_of_order_sequence_number),
    (errors.UnknownTopic, ErrorCode.unknown_topic_or_partition),
    (errors.UnknownQueue, ErrorCode.unknown_topic_or_partition),
    (errors.TopicExists, ErrorCode.topic_already_exists),
    (errors.OffsetOutOfRange, ErrorCode.offset_out_of_range),
    (errors.OffsetsLost, ErrorCode.offset_out_of_range),
    (errors.MessageTooLarge, ErrorCode.message_too_large),
    (errors.CorruptBatch, ErrorCode.corrupt_message),
    (errors.DiskFull, ErrorCode.kafka_storage_error),
    (errors.StorageError, ErrorCode.kafka_storage_error),
    (errors.Unauthenticated, ErrorCode.sasl_authentication_failed),
    (errors.UnsupportedVersion, ErrorCode.unsupported_version),
    (errors.UnknownGroup, ErrorCode.group_id_not_found),
    (errors.UnknownMember, ErrorCode.unknown_member_id),
    (errors.StaleGeneration, ErrorCode.illegal_generation),
    (errors.MemberFenced, ErrorCode.fenced_instance_id),
    (errors.LockLost, ErrorCode.fenced_instance_id),
    (errors.TransactionConflict, ErrorCode.invalid_request),
    (errors.InvalidRequest, ErrorCode.invalid_request),
    (errors.Closed, ErrorCode.broker_not_available),
    (errors.RetriableError, ErrorCode.request_timed_out),
)
"""The first class that an error is of counts."""
_DENIED: Final = {
    Kind.CONSUMER_GROUP.value: ErrorCode.group_authorization_failed,
    Kind.TRANSACTION.value: ErrorCode.transactional_id_authorization_failed,
    Kind.CLUSTER.value: ErrorCode.cluster_authorization_failed,
}
"""By the kind of what the caller has no right to; anything else, also what an older broker does not
name, is a topic."""


def error_code(error: errors.SemelError) -> ErrorCode:
    """Returns the code; UNKNOWN_SERVER_ERROR where nothing of Kafka's fits."""
    if isinstance(error, errors.PermissionDenied):
        about = error.resource.partition(":")[0]
        return _DENIED.get(about, ErrorCode.topic_authorization_failed)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error
