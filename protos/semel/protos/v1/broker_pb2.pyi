from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import control_pb2 as _control_pb2
from semel.protos.v1 import errors_pb2 as _errors_pb2
from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DirectStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECT_STREAM_UNSPECIFIED: _ClassVar[DirectStream]
    DIRECT_STREAM_PRODUCE: _ClassVar[DirectStream]
    DIRECT_STREAM_FETCH: _ClassVar[DirectStream]

class ProduceStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRODUCE_STATUS_UNSPECIFIED: _ClassVar[ProduceStatus]
    PRODUCE_STATUS_COMMITTED: _ClassVar[ProduceStatus]
    PRODUCE_STATUS_DUPLICATE: _ClassVar[ProduceStatus]
    PRODUCE_STATUS_FAILED: _ClassVar[ProduceStatus]

class MessageFate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_FATE_UNKNOWN: _ClassVar[MessageFate]
    MESSAGE_FATE_STORED: _ClassVar[MessageFate]
    MESSAGE_FATE_DELAYED: _ClassVar[MessageFate]
    MESSAGE_FATE_CANCELLED: _ClassVar[MessageFate]
    MESSAGE_FATE_REMOVED: _ClassVar[MessageFate]

class MembershipStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBERSHIP_STATUS_UNSPECIFIED: _ClassVar[MembershipStatus]
    MEMBERSHIP_STATUS_LEARNER: _ClassVar[MembershipStatus]
    MEMBERSHIP_STATUS_VOTER: _ClassVar[MembershipStatus]
    MEMBERSHIP_STATUS_REMOVED: _ClassVar[MembershipStatus]
DIRECT_STREAM_UNSPECIFIED: DirectStream
DIRECT_STREAM_PRODUCE: DirectStream
DIRECT_STREAM_FETCH: DirectStream
PRODUCE_STATUS_UNSPECIFIED: ProduceStatus
PRODUCE_STATUS_COMMITTED: ProduceStatus
PRODUCE_STATUS_DUPLICATE: ProduceStatus
PRODUCE_STATUS_FAILED: ProduceStatus
MESSAGE_FATE_UNKNOWN: MessageFate
MESSAGE_FATE_STORED: MessageFate
MESSAGE_FATE_DELAYED: MessageFate
MESSAGE_FATE_CANCELLED: MessageFate
MESSAGE_FATE_REMOVED: MessageFate
MEMBERSHIP_STATUS_UNSPECIFIED: MembershipStatus
MEMBERSHIP_STATUS_LEARNER: MembershipStatus
MEMBERSHIP_STATUS_VOTER: MembershipStatus
MEMBERSHIP_STATUS_REMOVED: MembershipStatus

class OpenDirectRequest(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: DirectStream
    def __init__(self, stream: _Optional[_Union[DirectStream, str]] = ...) -> None: ...

class OpenDirectReply(_message.Message):
    __slots__ = ("port", "ticket", "levels", "streams")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    port: int
    ticket: bytes
    levels: _common_pb2.Levels
    streams: int
    def __init__(self, port: _Optional[int] = ..., ticket: _Optional[bytes] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., streams: _Optional[int] = ...) -> None: ...

class AskStream(_message.Message):
    __slots__ = ("stream", "cluster_id", "group_id", "node_id", "levels")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    stream: DirectStream
    cluster_id: str
    group_id: int
    node_id: int
    levels: _common_pb2.Levels
    def __init__(self, stream: _Optional[_Union[DirectStream, str]] = ..., cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ...) -> None: ...

class AskStreamReply(_message.Message):
    __slots__ = ("levels", "streams", "error")
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    levels: _common_pb2.Levels
    streams: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., streams: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class ProduceAck(_message.Message):
    __slots__ = ("topic_id", "queue_id", "producer_id", "base_sequence", "last_sequence", "status", "base_offset", "append_time_us", "error", "epoch", "session", "dropped", "due_in_second")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DUE_IN_SECOND_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queue_id: int
    producer_id: int
    base_sequence: int
    last_sequence: int
    status: ProduceStatus
    base_offset: int
    append_time_us: int
    error: _errors_pb2.ErrorDetail
    epoch: int
    session: int
    dropped: bytes
    due_in_second: DueInSecond
    def __init__(self, topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., producer_id: _Optional[int] = ..., base_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., status: _Optional[_Union[ProduceStatus, str]] = ..., base_offset: _Optional[int] = ..., append_time_us: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., epoch: _Optional[int] = ..., session: _Optional[int] = ..., dropped: _Optional[bytes] = ..., due_in_second: _Optional[_Union[DueInSecond, _Mapping]] = ...) -> None: ...

class DueInSecond(_message.Message):
    __slots__ = ("messages", "bytes")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    bytes: int
    def __init__(self, messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ProduceReply(_message.Message):
    __slots__ = ("acks", "term", "pong", "error", "throttled_ms")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    acks: _containers.RepeatedCompositeFieldContainer[ProduceAck]
    term: int
    pong: int
    error: _errors_pb2.ErrorDetail
    throttled_ms: int
    def __init__(self, acks: _Optional[_Iterable[_Union[ProduceAck, _Mapping]]] = ..., term: _Optional[int] = ..., pong: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., throttled_ms: _Optional[int] = ...) -> None: ...

class FetchQueue(_message.Message):
    __slots__ = ("queue", "offset", "max_bytes", "group", "token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    offset: int
    max_bytes: int
    group: str
    token: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., group: _Optional[str] = ..., token: _Optional[int] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("pid", "descriptor", "secret")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    secret: bytes
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("correlation_id", "queues", "max_bytes", "max_wait_ms", "any_replica", "memory", "memory_at", "memory_bytes", "standing_bytes")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ANY_REPLICA_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    queues: _containers.RepeatedCompositeFieldContainer[FetchQueue]
    max_bytes: int
    max_wait_ms: int
    any_replica: bool
    memory: SharedMemory
    memory_at: int
    memory_bytes: int
    standing_bytes: int
    def __init__(self, correlation_id: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[FetchQueue, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., any_replica: _Optional[bool] = ..., memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., memory_at: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., standing_bytes: _Optional[int] = ...) -> None: ...

class BatchRange(_message.Message):
    __slots__ = ("length", "base_offset", "row_start", "row_end")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_START_FIELD_NUMBER: _ClassVar[int]
    ROW_END_FIELD_NUMBER: _ClassVar[int]
    length: int
    base_offset: int
    row_start: int
    row_end: int
    def __init__(self, length: _Optional[int] = ..., base_offset: _Optional[int] = ..., row_start: _Optional[int] = ..., row_end: _Optional[int] = ...) -> None: ...

class FetchResult(_message.Message):
    __slots__ = ("queue", "error", "log_start_offset", "high_watermark", "batches", "sealed")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    error: _errors_pb2.ErrorDetail
    log_start_offset: int
    high_watermark: int
    batches: _containers.RepeatedCompositeFieldContainer[BatchRange]
    sealed: bool
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[BatchRange, _Mapping]]] = ..., sealed: _Optional[bool] = ...) -> None: ...

class FetchReplyHeader(_message.Message):
    __slots__ = ("correlation_id", "results", "error", "in_memory", "more", "throttled_ms")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    results: _containers.RepeatedCompositeFieldContainer[FetchResult]
    error: _errors_pb2.ErrorDetail
    in_memory: bool
    more: bool
    throttled_ms: int
    def __init__(self, correlation_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[FetchResult, _Mapping]]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., in_memory: _Optional[bool] = ..., more: _Optional[bool] = ..., throttled_ms: _Optional[int] = ...) -> None: ...

class FenceProducerRequest(_message.Message):
    __slots__ = ("queues", "producer_id", "epoch", "session", "name", "after_expiry")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    producer_id: int
    epoch: int
    session: int
    name: str
    after_expiry: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., session: _Optional[int] = ..., name: _Optional[str] = ..., after_expiry: _Optional[bool] = ...) -> None: ...

class WindowEntry(_message.Message):
    __slots__ = ("base_sequence", "last_sequence", "base_offset", "count", "dropped")
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    base_sequence: int
    last_sequence: int
    base_offset: int
    count: int
    dropped: bool
    def __init__(self, base_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., dropped: _Optional[bool] = ...) -> None: ...

class ProducerRow(_message.Message):
    __slots__ = ("queue", "producer_id", "epoch", "session", "last_sequence", "window", "last_time_us", "name")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_US_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    producer_id: int
    epoch: int
    session: int
    last_sequence: int
    window: _containers.RepeatedCompositeFieldContainer[WindowEntry]
    last_time_us: int
    name: str
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., session: _Optional[int] = ..., last_sequence: _Optional[int] = ..., window: _Optional[_Iterable[_Union[WindowEntry, _Mapping]]] = ..., last_time_us: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class FenceProducerReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ProducerRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[ProducerRow, _Mapping]]] = ...) -> None: ...

class ProduceOutcomeRequest(_message.Message):
    __slots__ = ("queue", "producer_id", "sequence")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    producer_id: int
    sequence: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ProduceOutcomeReply(_message.Message):
    __slots__ = ("outcome", "offset", "last_sequence")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[ProduceOutcomeReply.Outcome]
        OUTCOME_COMMITTED: _ClassVar[ProduceOutcomeReply.Outcome]
        OUTCOME_NOT_COMMITTED: _ClassVar[ProduceOutcomeReply.Outcome]
        OUTCOME_TOO_OLD: _ClassVar[ProduceOutcomeReply.Outcome]
    OUTCOME_UNSPECIFIED: ProduceOutcomeReply.Outcome
    OUTCOME_COMMITTED: ProduceOutcomeReply.Outcome
    OUTCOME_NOT_COMMITTED: ProduceOutcomeReply.Outcome
    OUTCOME_TOO_OLD: ProduceOutcomeReply.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    outcome: ProduceOutcomeReply.Outcome
    offset: int
    last_sequence: int
    def __init__(self, outcome: _Optional[_Union[ProduceOutcomeReply.Outcome, str]] = ..., offset: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("queues", "producer_id", "windows", "limit", "confirmed")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    producer_id: int
    windows: bool
    limit: int
    confirmed: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., producer_id: _Optional[int] = ..., windows: _Optional[bool] = ..., limit: _Optional[int] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class DescribeProducersReply(_message.Message):
    __slots__ = ("rows", "truncated")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ProducerRow]
    truncated: bool
    def __init__(self, rows: _Optional[_Iterable[_Union[ProducerRow, _Mapping]]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class AcquireLocksRequest(_message.Message):
    __slots__ = ("group", "member_id", "generation", "queues", "lock_ms", "session_ms", "beside_parents", "drop_staged")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LOCK_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    DROP_STAGED_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    generation: int
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    lock_ms: int
    session_ms: int
    beside_parents: bool
    drop_staged: bool
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., lock_ms: _Optional[int] = ..., session_ms: _Optional[int] = ..., beside_parents: _Optional[bool] = ..., drop_staged: _Optional[bool] = ...) -> None: ...

class LockGrant(_message.Message):
    __slots__ = ("queue", "token", "committed_offset", "log_start_offset", "high_watermark", "error", "metadata", "split")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    token: int
    committed_offset: int
    log_start_offset: int
    high_watermark: int
    error: _errors_pb2.ErrorDetail
    metadata: bytes
    split: _control_pb2.SplitQueue
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., token: _Optional[int] = ..., committed_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., metadata: _Optional[bytes] = ..., split: _Optional[_Union[_control_pb2.SplitQueue, _Mapping]] = ...) -> None: ...

class AcquireLocksReply(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[LockGrant]
    def __init__(self, grants: _Optional[_Iterable[_Union[LockGrant, _Mapping]]] = ...) -> None: ...

class LockRef(_message.Message):
    __slots__ = ("queue", "token")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    token: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., token: _Optional[int] = ...) -> None: ...

class RenewLocksRequest(_message.Message):
    __slots__ = ("group", "member_id", "locks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    locks: _containers.RepeatedCompositeFieldContainer[LockRef]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., locks: _Optional[_Iterable[_Union[LockRef, _Mapping]]] = ...) -> None: ...

class RenewLocksReply(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[LockRef]
    def __init__(self, lost: _Optional[_Iterable[_Union[LockRef, _Mapping]]] = ...) -> None: ...

class ReleaseLocksRequest(_message.Message):
    __slots__ = ("group", "member_id", "locks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    locks: _containers.RepeatedCompositeFieldContainer[LockRef]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., locks: _Optional[_Iterable[_Union[LockRef, _Mapping]]] = ...) -> None: ...

class ReleaseLocksReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("group", "commits")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    group: str
    commits: _containers.RepeatedCompositeFieldContainer[_control_pb2.QueueCommit]
    def __init__(self, group: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[_control_pb2.QueueCommit, _Mapping]]] = ...) -> None: ...

class CommitOutcome(_message.Message):
    __slots__ = ("queue", "error")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    error: _errors_pb2.ErrorDetail
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CommitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CommitOutcome, _Mapping]]] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("queues", "time_us", "offset")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    time_us: int
    offset: int
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., time_us: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("queue", "log_start_offset", "high_watermark", "time_offset", "bytes", "error", "delayed_messages", "next_due_us", "append_time_us", "gaps_to", "local_start_offset", "tier_end_offset", "lost_messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    TIME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    GAPS_TO_FIELD_NUMBER: _ClassVar[int]
    LOCAL_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIER_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    log_start_offset: int
    high_watermark: int
    time_offset: int
    bytes: int
    error: _errors_pb2.ErrorDetail
    delayed_messages: int
    next_due_us: int
    append_time_us: int
    gaps_to: int
    local_start_offset: int
    tier_end_offset: int
    lost_messages: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., time_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., delayed_messages: _Optional[int] = ..., next_due_us: _Optional[int] = ..., append_time_us: _Optional[int] = ..., gaps_to: _Optional[int] = ..., local_start_offset: _Optional[int] = ..., tier_end_offset: _Optional[int] = ..., lost_messages: _Optional[int] = ...) -> None: ...

class ListOffsetsReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class DescribeIdsRequest(_message.Message):
    __slots__ = ("topic_ids",)
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class IdWindowStatus(_message.Message):
    __slots__ = ("topic_id", "ids", "bytes", "oldest_age_us", "hits", "conflicts", "lookups", "evictions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_US_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    ids: int
    bytes: int
    oldest_age_us: int
    hits: int
    conflicts: int
    lookups: int
    evictions: int
    def __init__(self, topic_id: _Optional[int] = ..., ids: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_age_us: _Optional[int] = ..., hits: _Optional[int] = ..., conflicts: _Optional[int] = ..., lookups: _Optional[int] = ..., evictions: _Optional[int] = ...) -> None: ...

class DescribeIdsReply(_message.Message):
    __slots__ = ("windows",)
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[IdWindowStatus]
    def __init__(self, windows: _Optional[_Iterable[_Union[IdWindowStatus, _Mapping]]] = ...) -> None: ...

class DelayedPlace(_message.Message):
    __slots__ = ("due_us", "ordinal")
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    due_us: int
    ordinal: int
    def __init__(self, due_us: _Optional[int] = ..., ordinal: _Optional[int] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("queue", "before_us", "after", "messages_max")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_US_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    before_us: int
    after: DelayedPlace
    messages_max: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., before_us: _Optional[int] = ..., after: _Optional[_Union[DelayedPlace, _Mapping]] = ..., messages_max: _Optional[int] = ...) -> None: ...

class DelayedBatch(_message.Message):
    __slots__ = ("place", "stored", "cancelled")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    place: DelayedPlace
    stored: bytes
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, place: _Optional[_Union[DelayedPlace, _Mapping]] = ..., stored: _Optional[bytes] = ..., cancelled: _Optional[_Iterable[int]] = ...) -> None: ...

class ListDelayedReply(_message.Message):
    __slots__ = ("batches", "more")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[DelayedBatch]
    more: bool
    def __init__(self, batches: _Optional[_Iterable[_Union[DelayedBatch, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class CountDelayedRequest(_message.Message):
    __slots__ = ("queues", "within_us")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WITHIN_US_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    within_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., within_us: _Optional[_Iterable[int]] = ...) -> None: ...

class DelayedCount(_message.Message):
    __slots__ = ("batches", "messages", "bytes")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    batches: int
    messages: int
    bytes: int
    def __init__(self, batches: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class QueueDelays(_message.Message):
    __slots__ = ("queue", "error", "counts", "first_due_us", "last_due_us")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_DUE_US_FIELD_NUMBER: _ClassVar[int]
    LAST_DUE_US_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    error: _errors_pb2.ErrorDetail
    counts: _containers.RepeatedCompositeFieldContainer[DelayedCount]
    first_due_us: int
    last_due_us: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., counts: _Optional[_Iterable[_Union[DelayedCount, _Mapping]]] = ..., first_due_us: _Optional[int] = ..., last_due_us: _Optional[int] = ...) -> None: ...

class CountDelayedReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueDelays]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueDelays, _Mapping]]] = ...) -> None: ...

class ListReleasesRequest(_message.Message):
    __slots__ = ("topic_id", "since_us", "rows_max")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    since_us: int
    rows_max: int
    def __init__(self, topic_id: _Optional[int] = ..., since_us: _Optional[int] = ..., rows_max: _Optional[int] = ...) -> None: ...

class ReleaseRow(_message.Message):
    __slots__ = ("queue_id", "span_s", "due_first_us", "due_last_us", "released_first_us", "released_last_us", "base_offset", "messages", "late_min_us", "late_max_us")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_S_FIELD_NUMBER: _ClassVar[int]
    DUE_FIRST_US_FIELD_NUMBER: _ClassVar[int]
    DUE_LAST_US_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIRST_US_FIELD_NUMBER: _ClassVar[int]
    RELEASED_LAST_US_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LATE_MIN_US_FIELD_NUMBER: _ClassVar[int]
    LATE_MAX_US_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    span_s: int
    due_first_us: int
    due_last_us: int
    released_first_us: int
    released_last_us: int
    base_offset: int
    messages: int
    late_min_us: int
    late_max_us: int
    def __init__(self, queue_id: _Optional[int] = ..., span_s: _Optional[int] = ..., due_first_us: _Optional[int] = ..., due_last_us: _Optional[int] = ..., released_first_us: _Optional[int] = ..., released_last_us: _Optional[int] = ..., base_offset: _Optional[int] = ..., messages: _Optional[int] = ..., late_min_us: _Optional[int] = ..., late_max_us: _Optional[int] = ...) -> None: ...

class ListReleasesReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ReleaseRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[ReleaseRow, _Mapping]]] = ...) -> None: ...

class FindMessageRequest(_message.Message):
    __slots__ = ("topic_id", "message_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    message_id: bytes
    def __init__(self, topic_id: _Optional[int] = ..., message_id: _Optional[bytes] = ...) -> None: ...

class FindMessageReply(_message.Message):
    __slots__ = ("fate", "queue", "offset", "due_us", "append_time_us", "stored", "row")
    FATE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    fate: MessageFate
    queue: _common_pb2.QueueRef
    offset: int
    due_us: int
    append_time_us: int
    stored: bytes
    row: int
    def __init__(self, fate: _Optional[_Union[MessageFate, str]] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., due_us: _Optional[int] = ..., append_time_us: _Optional[int] = ..., stored: _Optional[bytes] = ..., row: _Optional[int] = ...) -> None: ...

class CancelMessageRequest(_message.Message):
    __slots__ = ("topic_id", "message_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    message_id: bytes
    def __init__(self, topic_id: _Optional[int] = ..., message_id: _Optional[bytes] = ...) -> None: ...

class CancelMessageReply(_message.Message):
    __slots__ = ("fate", "queue", "offset", "due_us", "append_time_us")
    FATE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    fate: MessageFate
    queue: _common_pb2.QueueRef
    offset: int
    due_us: int
    append_time_us: int
    def __init__(self, fate: _Optional[_Union[MessageFate, str]] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., due_us: _Optional[int] = ..., append_time_us: _Optional[int] = ...) -> None: ...

class DescribeGroupOffsetsRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupQueueState(_message.Message):
    __slots__ = ("group", "queue", "committed_offset", "token", "owner", "log_start_offset", "high_watermark", "metadata", "lock", "unsettled")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LOCK_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: _common_pb2.QueueRef
    committed_offset: int
    token: int
    owner: str
    log_start_offset: int
    high_watermark: int
    metadata: bytes
    lock: LockAge
    unsettled: bool
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., committed_offset: _Optional[int] = ..., token: _Optional[int] = ..., owner: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., metadata: _Optional[bytes] = ..., lock: _Optional[_Union[LockAge, _Mapping]] = ..., unsettled: _Optional[bool] = ...) -> None: ...

class LockAge(_message.Message):
    __slots__ = ("held_ms", "older", "uncommitted_ms", "lock_ms")
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    OLDER_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    LOCK_MS_FIELD_NUMBER: _ClassVar[int]
    held_ms: int
    older: bool
    uncommitted_ms: int
    lock_ms: int
    def __init__(self, held_ms: _Optional[int] = ..., older: _Optional[bool] = ..., uncommitted_ms: _Optional[int] = ..., lock_ms: _Optional[int] = ...) -> None: ...

class DescribeGroupOffsetsReply(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[GroupQueueState]
    def __init__(self, states: _Optional[_Iterable[_Union[GroupQueueState, _Mapping]]] = ...) -> None: ...

class SumGroupsRequest(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupTopicSum(_message.Message):
    __slots__ = ("group", "topic_id", "lag", "locks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic_id: int
    lag: int
    locks: int
    def __init__(self, group: _Optional[str] = ..., topic_id: _Optional[int] = ..., lag: _Optional[int] = ..., locks: _Optional[int] = ...) -> None: ...

class SumGroupsReply(_message.Message):
    __slots__ = ("names", "sums")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    sums: _containers.RepeatedCompositeFieldContainer[GroupTopicSum]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., sums: _Optional[_Iterable[_Union[GroupTopicSum, _Mapping]]] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[_control_pb2.QueueCommit]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[_control_pb2.QueueCommit, _Mapping]]] = ...) -> None: ...

class ResetOffsetsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueueTrim(_message.Message):
    __slots__ = ("queue", "log_start_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    log_start_offset: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class TrimQueuesRequest(_message.Message):
    __slots__ = ("trims",)
    TRIMS_FIELD_NUMBER: _ClassVar[int]
    trims: _containers.RepeatedCompositeFieldContainer[QueueTrim]
    def __init__(self, trims: _Optional[_Iterable[_Union[QueueTrim, _Mapping]]] = ...) -> None: ...

class TrimQueuesReply(_message.Message):
    __slots__ = ("trims",)
    TRIMS_FIELD_NUMBER: _ClassVar[int]
    trims: _containers.RepeatedCompositeFieldContainer[QueueTrim]
    def __init__(self, trims: _Optional[_Iterable[_Union[QueueTrim, _Mapping]]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ("moves_digest", "queues")
    MOVES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    moves_digest: bytes
    queues: int
    def __init__(self, moves_digest: _Optional[bytes] = ..., queues: _Optional[int] = ...) -> None: ...

class ApplyQueuesRequest(_message.Message):
    __slots__ = ("records", "cluster_id", "controller_epoch")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_control_pb2.ControlRecord]
    cluster_id: str
    controller_epoch: int
    def __init__(self, records: _Optional[_Iterable[_Union[_control_pb2.ControlRecord, _Mapping]]] = ..., cluster_id: _Optional[str] = ..., controller_epoch: _Optional[int] = ...) -> None: ...

class ApplyQueuesReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GiveUpDelayedRequest(_message.Message):
    __slots__ = ("queue", "batch")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    batch: DelayedPlace
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., batch: _Optional[_Union[DelayedPlace, _Mapping]] = ...) -> None: ...

class GiveUpDelayedReply(_message.Message):
    __slots__ = ("batch", "messages", "entry", "bytes", "reason")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    batch: DelayedPlace
    messages: int
    entry: int
    bytes: int
    reason: str
    def __init__(self, batch: _Optional[_Union[DelayedPlace, _Mapping]] = ..., messages: _Optional[int] = ..., entry: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ("confirmed", "tiers", "role_only")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_ONLY_FIELD_NUMBER: _ClassVar[int]
    confirmed: bool
    tiers: bool
    role_only: bool
    def __init__(self, confirmed: _Optional[bool] = ..., tiers: _Optional[bool] = ..., role_only: _Optional[bool] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("node_id", "match_index", "active", "counts")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    match_index: int
    active: bool
    counts: bool
    def __init__(self, node_id: _Optional[int] = ..., match_index: _Optional[int] = ..., active: _Optional[bool] = ..., counts: _Optional[bool] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("node", "membership")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    node: _common_pb2.NodeAddress
    membership: MembershipStatus
    def __init__(self, node: _Optional[_Union[_common_pb2.NodeAddress, _Mapping]] = ..., membership: _Optional[_Union[MembershipStatus, str]] = ...) -> None: ...

class StuckDelayed(_message.Message):
    __slots__ = ("queue", "due_us", "messages", "behind", "reason")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    due_us: int
    messages: int
    behind: int
    reason: str
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., due_us: _Optional[int] = ..., messages: _Optional[int] = ..., behind: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NodeStatusReply(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "role", "term", "master_id", "master_address", "commit_index", "applied_index", "log_end_index", "log_first_index", "checkpoint_index", "queues", "producers", "disk_bytes", "peers", "version", "resident_bytes", "pid", "members", "membership_index", "non_counting", "electable", "scrub_passes", "scrub_bytes", "scrub_total_bytes", "damaged", "lost", "disk_free_bytes", "disk_total_bytes", "disk_full", "wall_us", "log_time_us", "producer_idle_ms", "synced_index", "founding_id", "prepared_id", "knows_foundings", "levels", "runtime", "memory_bytes", "memory_pulling", "tier", "tier_usable", "tiered_queues", "tier_overdue_ms", "stuck_delayed", "replication_plaintext_within", "ask_again_ms", "started_us", "clients_ca_expires_s")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_INDEX_FIELD_NUMBER: _ClassVar[int]
    NON_COUNTING_FIELD_NUMBER: _ClassVar[int]
    ELECTABLE_FIELD_NUMBER: _ClassVar[int]
    SCRUB_PASSES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    SYNCED_INDEX_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    PREPARED_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWS_FOUNDINGS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PULLING_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TIER_USABLE_FIELD_NUMBER: _ClassVar[int]
    TIERED_QUEUES_FIELD_NUMBER: _ClassVar[int]
    TIER_OVERDUE_MS_FIELD_NUMBER: _ClassVar[int]
    STUCK_DELAYED_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_PLAINTEXT_WITHIN_FIELD_NUMBER: _ClassVar[int]
    ASK_AGAIN_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_CA_EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    role: str
    term: int
    master_id: int
    master_address: str
    commit_index: int
    applied_index: int
    log_end_index: int
    log_first_index: int
    checkpoint_index: int
    queues: int
    producers: int
    disk_bytes: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    version: str
    resident_bytes: int
    pid: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    membership_index: int
    non_counting: bool
    electable: bool
    scrub_passes: int
    scrub_bytes: int
    scrub_total_bytes: int
    damaged: int
    lost: int
    disk_free_bytes: int
    disk_total_bytes: int
    disk_full: bool
    wall_us: int
    log_time_us: int
    producer_idle_ms: int
    synced_index: int
    founding_id: str
    prepared_id: str
    knows_foundings: bool
    levels: _common_pb2.Levels
    runtime: str
    memory_bytes: int
    memory_pulling: bool
    tier: str
    tier_usable: bool
    tiered_queues: int
    tier_overdue_ms: int
    stuck_delayed: _containers.RepeatedCompositeFieldContainer[StuckDelayed]
    replication_plaintext_within: _containers.RepeatedScalarFieldContainer[str]
    ask_again_ms: int
    started_us: int
    clients_ca_expires_s: int
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., master_id: _Optional[int] = ..., master_address: _Optional[str] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., log_end_index: _Optional[int] = ..., log_first_index: _Optional[int] = ..., checkpoint_index: _Optional[int] = ..., queues: _Optional[int] = ..., producers: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., version: _Optional[str] = ..., resident_bytes: _Optional[int] = ..., pid: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., membership_index: _Optional[int] = ..., non_counting: _Optional[bool] = ..., electable: _Optional[bool] = ..., scrub_passes: _Optional[int] = ..., scrub_bytes: _Optional[int] = ..., scrub_total_bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., lost: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_total_bytes: _Optional[int] = ..., disk_full: _Optional[bool] = ..., wall_us: _Optional[int] = ..., log_time_us: _Optional[int] = ..., producer_idle_ms: _Optional[int] = ..., synced_index: _Optional[int] = ..., founding_id: _Optional[str] = ..., prepared_id: _Optional[str] = ..., knows_foundings: _Optional[bool] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., runtime: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_pulling: _Optional[bool] = ..., tier: _Optional[str] = ..., tier_usable: _Optional[bool] = ..., tiered_queues: _Optional[int] = ..., tier_overdue_ms: _Optional[int] = ..., stuck_delayed: _Optional[_Iterable[_Union[StuckDelayed, _Mapping]]] = ..., replication_plaintext_within: _Optional[_Iterable[str]] = ..., ask_again_ms: _Optional[int] = ..., started_us: _Optional[int] = ..., clients_ca_expires_s: _Optional[int] = ...) -> None: ...

class RestartNodeRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ...) -> None: ...

class RestartNodeReply(_message.Message):
    __slots__ = ("started_us",)
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    started_us: int
    def __init__(self, started_us: _Optional[int] = ...) -> None: ...

class ChangeMemberRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node", "membership", "ignore_memory")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node: _common_pb2.NodeAddress
    membership: MembershipStatus
    ignore_memory: bool
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node: _Optional[_Union[_common_pb2.NodeAddress, _Mapping]] = ..., membership: _Optional[_Union[MembershipStatus, str]] = ..., ignore_memory: _Optional[bool] = ...) -> None: ...

class ChangeMemberReply(_message.Message):
    __slots__ = ("members", "membership_index")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_INDEX_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    membership_index: int
    def __init__(self, members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., membership_index: _Optional[int] = ...) -> None: ...

class ReadmitNodeRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "founding_id", "to_node_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    founding_id: str
    to_node_id: int
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., founding_id: _Optional[str] = ..., to_node_id: _Optional[int] = ...) -> None: ...

class ReadmitNodeReply(_message.Message):
    __slots__ = ("index", "term")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class TransferMastershipRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "ignore_memory")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IGNORE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    ignore_memory: bool
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., ignore_memory: _Optional[bool] = ...) -> None: ...

class TransferMastershipReply(_message.Message):
    __slots__ = ("master_id", "term")
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    master_id: int
    term: int
    def __init__(self, master_id: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "drain_ms", "ignore_memory")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    drain_ms: int
    ignore_memory: bool
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., drain_ms: _Optional[int] = ..., ignore_memory: _Optional[bool] = ...) -> None: ...

class DrainNodeReply(_message.Message):
    __slots__ = ("master_id", "was_master")
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    WAS_MASTER_FIELD_NUMBER: _ClassVar[int]
    master_id: int
    was_master: bool
    def __init__(self, master_id: _Optional[int] = ..., was_master: _Optional[bool] = ...) -> None: ...

class RefoundNodeRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "from_id", "to_id", "count", "voters")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_ID_FIELD_NUMBER: _ClassVar[int]
    TO_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    from_id: str
    to_id: str
    count: bool
    voters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., from_id: _Optional[str] = ..., to_id: _Optional[str] = ..., count: _Optional[bool] = ..., voters: _Optional[_Iterable[int]] = ...) -> None: ...

class RefoundNodeReply(_message.Message):
    __slots__ = ("founding_id", "non_counting")
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    NON_COUNTING_FIELD_NUMBER: _ClassVar[int]
    founding_id: str
    non_counting: bool
    def __init__(self, founding_id: _Optional[str] = ..., non_counting: _Optional[bool] = ...) -> None: ...

class RaiseLevelRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "level", "dry_run")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    level: int
    dry_run: bool
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., level: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RaiseLevelReply(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class VerifyQueuesRequest(_message.Message):
    __slots__ = ("queues", "index", "tier")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    index: int
    tier: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., index: _Optional[int] = ..., tier: _Optional[bool] = ...) -> None: ...

class VerifiedTier(_message.Message):
    __slots__ = ("queue", "start_offset", "end_offset", "messages", "compared", "duplicates", "problems", "unread")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    start_offset: int
    end_offset: int
    messages: int
    compared: int
    duplicates: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    unread: str
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., messages: _Optional[int] = ..., compared: _Optional[int] = ..., duplicates: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., unread: _Optional[str] = ...) -> None: ...

class VerifiedQueue(_message.Message):
    __slots__ = ("queue", "log_start_offset", "log_end_offset", "messages", "duplicates", "missing", "digest", "table_digest", "table_matches", "problems", "delayed", "id_duplicates", "compactions", "lost")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TABLE_MATCHES_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    ID_DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    log_start_offset: int
    log_end_offset: int
    messages: int
    duplicates: int
    missing: int
    digest: bytes
    table_digest: bytes
    table_matches: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    delayed: int
    id_duplicates: int
    compactions: int
    lost: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., messages: _Optional[int] = ..., duplicates: _Optional[int] = ..., missing: _Optional[int] = ..., digest: _Optional[bytes] = ..., table_digest: _Optional[bytes] = ..., table_matches: _Optional[bool] = ..., problems: _Optional[_Iterable[str]] = ..., delayed: _Optional[int] = ..., id_duplicates: _Optional[int] = ..., compactions: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class VerifyQueuesReply(_message.Message):
    __slots__ = ("bytes_read", "bytes_total", "queues", "index", "tiers")
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    bytes_read: int
    bytes_total: int
    queues: _containers.RepeatedCompositeFieldContainer[VerifiedQueue]
    index: int
    tiers: _containers.RepeatedCompositeFieldContainer[VerifiedTier]
    def __init__(self, bytes_read: _Optional[int] = ..., bytes_total: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[VerifiedQueue, _Mapping]]] = ..., index: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[VerifiedTier, _Mapping]]] = ...) -> None: ...

class CopyQueueRequest(_message.Message):
    __slots__ = ("queue", "offset", "max_bytes", "figures_only", "job")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_ONLY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    offset: int
    max_bytes: int
    figures_only: bool
    job: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., figures_only: _Optional[bool] = ..., job: _Optional[int] = ...) -> None: ...

class CopiedBatch(_message.Message):
    __slots__ = ("base_offset", "count", "stored")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    count: int
    stored: bytes
    def __init__(self, base_offset: _Optional[int] = ..., count: _Optional[int] = ..., stored: _Optional[bytes] = ...) -> None: ...

class CopyQueueReply(_message.Message):
    __slots__ = ("batches", "log_start_offset", "log_end_offset", "bytes", "feature_level")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[CopiedBatch]
    log_start_offset: int
    log_end_offset: int
    bytes: int
    feature_level: int
    def __init__(self, batches: _Optional[_Iterable[_Union[CopiedBatch, _Mapping]]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., feature_level: _Optional[int] = ...) -> None: ...

class CopyDelayedRequest(_message.Message):
    __slots__ = ("queue", "ordinal", "max_bytes")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    ordinal: int
    max_bytes: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., ordinal: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class CopyDelayedReply(_message.Message):
    __slots__ = ("stored", "ordinal_to", "bytes_left", "feature_level")
    STORED_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_TO_FIELD_NUMBER: _ClassVar[int]
    BYTES_LEFT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedScalarFieldContainer[bytes]
    ordinal_to: int
    bytes_left: int
    feature_level: int
    def __init__(self, stored: _Optional[_Iterable[bytes]] = ..., ordinal_to: _Optional[int] = ..., bytes_left: _Optional[int] = ..., feature_level: _Optional[int] = ...) -> None: ...

class ReadSliceRequest(_message.Message):
    __slots__ = ("queue", "job", "offset", "max_bytes")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    job: int
    offset: int
    max_bytes: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., job: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadSliceReply(_message.Message):
    __slots__ = ("part", "total_bytes", "digest", "log_start_offset", "feature_level", "log_time_us")
    PART_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_US_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    total_bytes: int
    digest: bytes
    log_start_offset: int
    feature_level: int
    log_time_us: int
    def __init__(self, part: _Optional[bytes] = ..., total_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., log_start_offset: _Optional[int] = ..., feature_level: _Optional[int] = ..., log_time_us: _Optional[int] = ...) -> None: ...

class CopyIdsRequest(_message.Message):
    __slots__ = ("queue", "arrival", "horizon_us", "waiting")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    HORIZON_US_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    arrival: int
    horizon_us: int
    waiting: bool
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., arrival: _Optional[int] = ..., horizon_us: _Optional[int] = ..., waiting: _Optional[bool] = ...) -> None: ...

class CopyIdsReply(_message.Message):
    __slots__ = ("compares", "ids_to", "next_arrival", "ids", "seed", "feature_level", "horizon_us", "waits_from")
    COMPARES_FIELD_NUMBER: _ClassVar[int]
    IDS_TO_FIELD_NUMBER: _ClassVar[int]
    NEXT_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    HORIZON_US_FIELD_NUMBER: _ClassVar[int]
    WAITS_FROM_FIELD_NUMBER: _ClassVar[int]
    compares: bool
    ids_to: int
    next_arrival: int
    ids: bytes
    seed: bytes
    feature_level: int
    horizon_us: int
    waits_from: int
    def __init__(self, compares: _Optional[bool] = ..., ids_to: _Optional[int] = ..., next_arrival: _Optional[int] = ..., ids: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., feature_level: _Optional[int] = ..., horizon_us: _Optional[int] = ..., waits_from: _Optional[int] = ...) -> None: ...

class PullQueueRequest(_message.Message):
    __slots__ = ("cluster_id", "controller_epoch", "queue", "job", "sources", "max_ms", "finish")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_epoch: int
    queue: _common_pb2.QueueRef
    job: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    max_ms: int
    finish: bool
    def __init__(self, cluster_id: _Optional[str] = ..., controller_epoch: _Optional[int] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., job: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., max_ms: _Optional[int] = ..., finish: _Optional[bool] = ...) -> None: ...

class PullQueueReply(_message.Message):
    __slots__ = ("log_start_offset", "copied_offset", "log_end_offset", "copied_bytes", "total_bytes", "ready", "ids_left", "delayed_left")
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COPIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_LEFT_FIELD_NUMBER: _ClassVar[int]
    log_start_offset: int
    copied_offset: int
    log_end_offset: int
    copied_bytes: int
    total_bytes: int
    ready: bool
    ids_left: int
    delayed_left: int
    def __init__(self, log_start_offset: _Optional[int] = ..., copied_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., ready: _Optional[bool] = ..., ids_left: _Optional[int] = ..., delayed_left: _Optional[int] = ...) -> None: ...
