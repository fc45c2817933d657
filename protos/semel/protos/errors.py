"""Every error of Semel, and its two-way map to the protocol's codes.

How it works. Each `ErrorCode` has one class, whose annotated attributes have the names and types of
`ErrorDetail`'s fields. `to_detail` and `from_detail` translate, so no other code looks at codes.
The families say who is at fault and what helps:

- `RetriableError`: the same request, sent again (perhaps elsewhere), may succeed.
- `FencedError`: a newer owner took over; this incarnation must stop.
- `CallerError`: the request itself cannot succeed.
- `StorageError`: bytes are damaged, or have no room.

A duplicate is no error. Errors keep their attributes when they are pickled, as Spark does it.

Invariants
1. The map from code to class is total and one to one; a code from a newer peer becomes
   `SemelError` itself, which is not retriable.
2. `from_detail(to_detail(error))` has the same class, message and attributes.

Not here: gRPC status objects and metadata (`rpc.py`).
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Final

from semel.protos.v1 import errors_pb2
from semel.protos.v1.errors_pb2 import ErrorCode, ErrorDetail


class SemelError(Exception):
    """The root of all errors. The constructor raises TypeError for an attribute that the class does
    not have."""

    code: ClassVar[ErrorCode] = errors_pb2.ERROR_CODE_UNSPECIFIED
    status: ClassVar[str] = "UNKNOWN"
    """Name of the grpc.StatusCode that the error travels with."""
    retriable: ClassVar[bool] = False
    attributes: ClassVar[tuple[str, ...]] = ()
    """Names of the typed attributes; every one is a field of ErrorDetail."""

    def __init_subclass__(cls) -> None:
        own = inspect.get_annotations(cls)
        cls.attributes = (*cls.attributes, *own)

    def __init__(self, message: str = "", **attributes: object) -> None:
        super().__init__(message)
        for name, value in attributes.items():
            if name not in self.attributes:
                raise TypeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(self, name, value)

    @property
    def message(self) -> str:
        """The text: what happened, to what, and what to do."""
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        shown = [repr(self.message)]
        shown += [f"{name}={getattr(self, name)!r}" for name in self.attributes]
        return f"{type(self).__name__}({', '.join(shown)})"


class RetriableError(SemelError):
    """The same request may succeed later or elsewhere."""

    retriable = True


class FencedError(SemelError):
    """A newer owner exists; this one must stop."""


class CallerError(SemelError):
    """The request cannot succeed as it is."""


class StorageError(SemelError):
    """Bytes are damaged or misplaced, or the disk has no room for them."""


class NotMaster(RetriableError):
    """This node is not the master of the queue's group."""

    code = errors_pb2.ERROR_CODE_NOT_MASTER
    status = "UNAVAILABLE"
    master_address: str = ""
    master_id: int = 0
    term: int = 0
    route_version: int = 0


class Unavailable(RetriableError):
    """No answer now; a write may or may not have taken effect."""

    code = errors_pb2.ERROR_CODE_UNAVAILABLE
    status = "UNAVAILABLE"


class Throttled(RetriableError):
    """Refused before anything was done."""

    code = errors_pb2.ERROR_CODE_THROTTLED
    status = "RESOURCE_EXHAUSTED"
    retry_after_ms: int = 0


class DelayThrottled(Throttled):
    """The second `due_us` takes `due_messages_max` messages, and `due_messages` are due then: more
    would be late, and are not stored. Waiting does not help: choose another time."""

    code = errors_pb2.ERROR_CODE_DELAY_THROTTLED
    retriable = False
    due_us: int = 0
    due_messages: int = 0
    due_messages_max: int = 0


class TimedOut(RetriableError):
    """The deadline passed; a write may or may not have taken effect."""

    code = errors_pb2.ERROR_CODE_TIMED_OUT
    status = "DEADLINE_EXCEEDED"


class QueueMoved(RetriableError):
    """The queue lives on broker group `group_id`, with all that was known of it."""

    code = errors_pb2.ERROR_CODE_QUEUE_MOVED
    status = "UNAVAILABLE"
    topic_id: int = 0
    queue_id: int = 0
    group_id: int = 0


class ProducerFenced(FencedError):
    """A newer (epoch, session) of the producer exists."""

    code = errors_pb2.ERROR_CODE_PRODUCER_FENCED
    status = "ABORTED"
    current_epoch: int = 0
    current_session: int = 0


class StaleGeneration(FencedError):
    """The consumer group is in a newer generation."""

    code = errors_pb2.ERROR_CODE_STALE_GENERATION
    status = "ABORTED"


class LockLost(FencedError):
    """The queue's lock expired or has another owner."""

    code = errors_pb2.ERROR_CODE_LOCK_LOST
    status = "ABORTED"
    current_token: int = 0


class MemberFenced(FencedError):
    """Another process has joined the consumer group under this member's id."""

    code = errors_pb2.ERROR_CODE_MEMBER_FENCED
    status = "ABORTED"


class TransactionFenced(FencedError):
    """A newer attempt at the transaction exists."""

    code = errors_pb2.ERROR_CODE_TRANSACTION_FENCED
    status = "ABORTED"


class InvalidRequest(CallerError):
    """Malformed, or not allowed in this state."""

    code = errors_pb2.ERROR_CODE_INVALID_REQUEST
    status = "INVALID_ARGUMENT"


class OutOfOrderSequence(CallerError):
    """The batch does not follow the producer's last one."""

    code = errors_pb2.ERROR_CODE_OUT_OF_ORDER_SEQUENCE
    status = "FAILED_PRECONDITION"
    last_sequence: int = -1


class SequenceConflict(CallerError):
    """Other content is stored under the same sequences."""

    code = errors_pb2.ERROR_CODE_SEQUENCE_CONFLICT
    status = "FAILED_PRECONDITION"


class DedupStateExpired(CallerError):
    """The queue no longer knows the producer's sequences."""

    code = errors_pb2.ERROR_CODE_DEDUP_STATE_EXPIRED
    status = "FAILED_PRECONDITION"
    epoch_floor: int = 0


class PartialOverlap(CallerError):
    """The batch is stored in part; trim it after `last_sequence` and send the rest."""

    code = errors_pb2.ERROR_CODE_PARTIAL_OVERLAP
    status = "FAILED_PRECONDITION"
    last_sequence: int = -1


class UnknownTopic(CallerError):
    """No such topic."""

    code = errors_pb2.ERROR_CODE_UNKNOWN_TOPIC
    status = "NOT_FOUND"


class UnknownQueue(CallerError):
    """No such queue here."""

    code = errors_pb2.ERROR_CODE_UNKNOWN_QUEUE
    status = "NOT_FOUND"


class UnknownGroup(CallerError):
    """No such consumer group or broker group."""

    code = errors_pb2.ERROR_CODE_UNKNOWN_GROUP
    status = "NOT_FOUND"


class UnknownMember(CallerError):
    """The consumer group does not know the member."""

    code = errors_pb2.ERROR_CODE_UNKNOWN_MEMBER
    status = "NOT_FOUND"


class GroupKindConflict(CallerError):
    """The consumer group is of another kind: of Kafka's clients, or of Semel's. The two do not mix,
    and a group keeps its kind until it is deleted."""

    code = errors_pb2.ERROR_CODE_GROUP_KIND_CONFLICT
    status = "FAILED_PRECONDITION"


class TopicExists(CallerError):
    """The topic exists with other settings."""

    code = errors_pb2.ERROR_CODE_TOPIC_EXISTS
    status = "ALREADY_EXISTS"


class OffsetOutOfRange(CallerError):
    """The offset lies outside `[log_start_offset, log_end_offset]`."""

    code = errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE
    status = "OUT_OF_RANGE"
    log_start_offset: int = 0
    log_end_offset: int = 0


class OffsetsLost(CallerError):
    """The messages from this offset on are lost: they were only in the memory of a majority of
    nodes that died together. The queue goes on at `next_offset`."""

    code = errors_pb2.ERROR_CODE_OFFSETS_LOST
    status = "DATA_LOSS"
    next_offset: int = 0


class MessageTooLarge(CallerError):
    """A message, batch or request exceeds a limit."""

    code = errors_pb2.ERROR_CODE_MESSAGE_TOO_LARGE
    status = "INVALID_ARGUMENT"
    limit_bytes: int = 0


class UnknownProducer(CallerError):
    """No such producer."""

    code = errors_pb2.ERROR_CODE_UNKNOWN_PRODUCER
    status = "NOT_FOUND"


class QueueLocked(CallerError):
    """Another consumer owns the queue."""

    code = errors_pb2.ERROR_CODE_QUEUE_LOCKED
    status = "FAILED_PRECONDITION"
    owner: str = ""
    retry_after_ms: int = 0


class QueueSealed(CallerError):
    """The queue was split; what it does not hold belongs to its children."""

    code = errors_pb2.ERROR_CODE_QUEUE_SEALED
    status = "FAILED_PRECONDITION"
    split_record: bytes = b""


class ParentUnread(CallerError):
    """The consumer group has to read the queue's parent to its end first."""

    code = errors_pb2.ERROR_CODE_PARENT_UNREAD
    status = "FAILED_PRECONDITION"
    retry_after_ms: int = 0


class TransactionConflict(CallerError):
    """The transaction id belongs to another query."""

    code = errors_pb2.ERROR_CODE_TRANSACTION_CONFLICT
    status = "FAILED_PRECONDITION"
    owner: str = ""


class TransactionAborted(CallerError):
    """The transaction ended without effect; nothing of it is stored."""

    code = errors_pb2.ERROR_CODE_TRANSACTION_ABORTED
    status = "ABORTED"


class UnsupportedVersion(CallerError):
    """The other program, its group or the metadata lacks the feature level that the request needs
    (`level`; 0 if the two programs have no level in common). Nothing was done."""

    code = errors_pb2.ERROR_CODE_UNSUPPORTED_VERSION
    status = "FAILED_PRECONDITION"
    level: int = 0


class IdConflict(CallerError):
    """The topic has a message with the same id and other content, whose place the attributes name
    (`offset` is -1, and `due_us` not 0, for a delayed one). This message is not stored."""

    code = errors_pb2.ERROR_CODE_ID_CONFLICT
    status = "FAILED_PRECONDITION"
    message_id: bytes = b""
    queue_id: int = 0
    offset: int = -1
    due_us: int = 0


class Unauthenticated(CallerError):
    """The caller did not prove its identity."""

    code = errors_pb2.ERROR_CODE_UNAUTHENTICATED
    status = "UNAUTHENTICATED"


class PermissionDenied(CallerError):
    """The caller may not do this; `resource` is what it lacks a right to, as rules name it."""

    code = errors_pb2.ERROR_CODE_PERMISSION_DENIED
    status = "PERMISSION_DENIED"
    resource: str = ""


class CorruptBatch(StorageError):
    """A batch is damaged or malformed."""

    code = errors_pb2.ERROR_CODE_CORRUPT_BATCH
    status = "DATA_LOSS"


class CorruptSegment(StorageError):
    """A file of the log is damaged."""

    code = errors_pb2.ERROR_CODE_CORRUPT_SEGMENT
    status = "DATA_LOSS"


class CorruptFrame(CorruptSegment):
    """A frame (one log entry) is damaged."""

    code = errors_pb2.ERROR_CODE_CORRUPT_FRAME
    status = "DATA_LOSS"


class DiskFull(StorageError):
    """The disk has no room; nothing was written."""

    code = errors_pb2.ERROR_CODE_DISK_FULL
    status = "RESOURCE_EXHAUSTED"


class DataDirectoryError(StorageError):
    """The directory is another node's, of a newer version, or in use."""

    code = errors_pb2.ERROR_CODE_DATA_DIRECTORY
    status = "FAILED_PRECONDITION"


class Closed(SemelError):
    """The object was closed."""

    code = errors_pb2.ERROR_CODE_CLOSED
    status = "FAILED_PRECONDITION"


class BufferFull(SemelError):
    """The producer's buffer is full; nothing was queued."""

    code = errors_pb2.ERROR_CODE_BUFFER_FULL
    status = "RESOURCE_EXHAUSTED"


class InternalError(SemelError):
    """A bug in the server; a write may or may not have taken effect."""

    code = errors_pb2.ERROR_CODE_INTERNAL
    status = "INTERNAL"


def _concrete(root: type[SemelError]) -> dict[ErrorCode, type[SemelError]]:
    """Returns `root` and its descendants that have a code of their own, by code."""
    found: dict[ErrorCode, type[SemelError]] = {}
    pending = [root]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if "code" in cls.__dict__:
            assert cls.code not in found, f"two classes for {ErrorCode.Name(cls.code)}"
            found[cls.code] = cls
    return found


CLASS_OF_CODE: Final[dict[ErrorCode, type[SemelError]]] = _concrete(SemelError)


def to_detail(error: SemelError) -> ErrorDetail:
    """Returns the error as a message, with exactly the attributes of its class set."""
    values: dict[str, Any] = {name: getattr(error, name) for name in error.attributes}
    return ErrorDetail(code=error.code, message=error.message, **values)


def from_detail(detail: ErrorDetail) -> SemelError:
    """Returns the exception for `detail`. Attributes that the sender left out have the class's
    defaults."""
    cls = CLASS_OF_CODE.get(detail.code, SemelError)
    given = {name: getattr(detail, name) for name in cls.attributes if detail.HasField(name)}
    return cls(detail.message, **given)
