from semel.protos.v1 import broker_pb2 as _broker_pb2
from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from semel.protos.v1 import transaction_records_pb2 as _transaction_records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenStagerReply(_message.Message):
    __slots__ = ("last_sequences",)
    LAST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    last_sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, last_sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class StageCommitsReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[_broker_pb2.CommitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[_broker_pb2.CommitOutcome, _Mapping]]] = ...) -> None: ...

class DropStagersReply(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class KnownGroup(_message.Message):
    __slots__ = ("group_id", "addresses")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_id: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("pin", "known")
    PIN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    pin: _transaction_records_pb2.PinTransaction
    known: _containers.RepeatedCompositeFieldContainer[KnownGroup]
    def __init__(self, pin: _Optional[_Union[_transaction_records_pb2.PinTransaction, _Mapping]] = ..., known: _Optional[_Iterable[_Union[KnownGroup, _Mapping]]] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("duplicates", "conflicts")
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    duplicates: int
    conflicts: int
    def __init__(self, duplicates: _Optional[int] = ..., conflicts: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class SettleReply(_message.Message):
    __slots__ = ("settled",)
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    settled: bool
    def __init__(self, settled: _Optional[bool] = ...) -> None: ...

class BeginReply(_message.Message):
    __slots__ = ("epoch", "attempt", "last_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: int
    last_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., last_epoch: _Optional[int] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("decide", "known")
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    decide: _transaction_records_pb2.DecideTransaction
    known: _containers.RepeatedCompositeFieldContainer[KnownGroup]
    def __init__(self, decide: _Optional[_Union[_transaction_records_pb2.DecideTransaction, _Mapping]] = ..., known: _Optional[_Iterable[_Union[KnownGroup, _Mapping]]] = ...) -> None: ...

class DecideReply(_message.Message):
    __slots__ = ("published", "duplicates", "conflicts")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    published: bool
    duplicates: int
    conflicts: int
    def __init__(self, published: _Optional[bool] = ..., duplicates: _Optional[int] = ..., conflicts: _Optional[int] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: bool
    def __init__(self, committed: _Optional[bool] = ...) -> None: ...

class DescribeTransactionsRequest(_message.Message):
    __slots__ = ("transaction_id", "limit")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    limit: int
    def __init__(self, transaction_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class CoordinatedTransaction(_message.Message):
    __slots__ = ("transaction_id", "query_id", "epoch", "published", "participants", "attempt", "begun_epoch", "changed_us")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BEGUN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_US_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    query_id: str
    epoch: int
    published: bool
    participants: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    begun_epoch: int
    changed_us: int
    def __init__(self, transaction_id: _Optional[str] = ..., query_id: _Optional[str] = ..., epoch: _Optional[int] = ..., published: _Optional[bool] = ..., participants: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., begun_epoch: _Optional[int] = ..., changed_us: _Optional[int] = ...) -> None: ...

class PinnedTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch", "attempt", "coordinator", "pinned_us", "bytes", "messages", "winners")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    PINNED_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    attempt: int
    coordinator: int
    pinned_us: int
    bytes: int
    messages: int
    winners: _containers.RepeatedCompositeFieldContainer[StagedTransaction]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., coordinator: _Optional[int] = ..., pinned_us: _Optional[int] = ..., bytes: _Optional[int] = ..., messages: _Optional[int] = ..., winners: _Optional[_Iterable[_Union[StagedTransaction, _Mapping]]] = ...) -> None: ...

class StagedProgress(_message.Message):
    __slots__ = ("group", "queue", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: _common_pb2.QueueRef
    offset: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class StagedTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch", "stager_id", "writer", "bytes", "messages", "expires_us", "parts", "queues", "session", "commits")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    stager_id: int
    writer: int
    bytes: int
    messages: int
    expires_us: int
    parts: _containers.RepeatedCompositeFieldContainer[_transaction_records_pb2.StagedPart]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    session: int
    commits: _containers.RepeatedCompositeFieldContainer[StagedProgress]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., stager_id: _Optional[int] = ..., writer: _Optional[int] = ..., bytes: _Optional[int] = ..., messages: _Optional[int] = ..., expires_us: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[_transaction_records_pb2.StagedPart, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., session: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[StagedProgress, _Mapping]]] = ...) -> None: ...

class DescribeTransactionsReply(_message.Message):
    __slots__ = ("coordinated", "pinned", "staged", "staged_bytes", "staged_bytes_max", "log_time_us", "truncated", "level")
    COORDINATED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_US_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    coordinated: _containers.RepeatedCompositeFieldContainer[CoordinatedTransaction]
    pinned: _containers.RepeatedCompositeFieldContainer[PinnedTransaction]
    staged: _containers.RepeatedCompositeFieldContainer[StagedTransaction]
    staged_bytes: int
    staged_bytes_max: int
    log_time_us: int
    truncated: bool
    level: int
    def __init__(self, coordinated: _Optional[_Iterable[_Union[CoordinatedTransaction, _Mapping]]] = ..., pinned: _Optional[_Iterable[_Union[PinnedTransaction, _Mapping]]] = ..., staged: _Optional[_Iterable[_Union[StagedTransaction, _Mapping]]] = ..., staged_bytes: _Optional[int] = ..., staged_bytes_max: _Optional[int] = ..., log_time_us: _Optional[int] = ..., truncated: _Optional[bool] = ..., level: _Optional[int] = ...) -> None: ...
