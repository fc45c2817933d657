from semel.protos.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionRecord(_message.Message):
    __slots__ = ("open_stager", "pin", "publish", "drop_pin", "drop_stagers", "begin", "decide", "abort", "finish", "forget", "rewrite", "stage_commits")
    OPEN_STAGER_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    DROP_PIN_FIELD_NUMBER: _ClassVar[int]
    DROP_STAGERS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    REWRITE_FIELD_NUMBER: _ClassVar[int]
    STAGE_COMMITS_FIELD_NUMBER: _ClassVar[int]
    open_stager: OpenStager
    pin: PinTransaction
    publish: PublishTransaction
    drop_pin: DropPin
    drop_stagers: DropStagers
    begin: BeginTransaction
    decide: DecideTransaction
    abort: AbortTransaction
    finish: FinishTransaction
    forget: ForgetTransactions
    rewrite: RewriteBatches
    stage_commits: StageCommits
    def __init__(self, open_stager: _Optional[_Union[OpenStager, _Mapping]] = ..., pin: _Optional[_Union[PinTransaction, _Mapping]] = ..., publish: _Optional[_Union[PublishTransaction, _Mapping]] = ..., drop_pin: _Optional[_Union[DropPin, _Mapping]] = ..., drop_stagers: _Optional[_Union[DropStagers, _Mapping]] = ..., begin: _Optional[_Union[BeginTransaction, _Mapping]] = ..., decide: _Optional[_Union[DecideTransaction, _Mapping]] = ..., abort: _Optional[_Union[AbortTransaction, _Mapping]] = ..., finish: _Optional[_Union[FinishTransaction, _Mapping]] = ..., forget: _Optional[_Union[ForgetTransactions, _Mapping]] = ..., rewrite: _Optional[_Union[RewriteBatches, _Mapping]] = ..., stage_commits: _Optional[_Union[StageCommits, _Mapping]] = ...) -> None: ...

class OpenStager(_message.Message):
    __slots__ = ("transaction_id", "epoch", "stager_id", "writer", "session", "ttl_ms", "queues")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    stager_id: int
    writer: int
    session: int
    ttl_ms: int
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., stager_id: _Optional[int] = ..., writer: _Optional[int] = ..., session: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ...) -> None: ...

class StageCommits(_message.Message):
    __slots__ = ("transaction_id", "epoch", "stager_id", "group", "commits", "session")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    stager_id: int
    group: str
    commits: _containers.RepeatedCompositeFieldContainer[StagedCommit]
    session: int
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., stager_id: _Optional[int] = ..., group: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[StagedCommit, _Mapping]]] = ..., session: _Optional[int] = ...) -> None: ...

class StagedCommit(_message.Message):
    __slots__ = ("queue", "token", "offset", "metadata", "metadata_version", "may_lower")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAY_LOWER_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    token: int
    offset: int
    metadata: bytes
    metadata_version: int
    may_lower: bool
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., token: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[bytes] = ..., metadata_version: _Optional[int] = ..., may_lower: _Optional[bool] = ...) -> None: ...

class StagedPart(_message.Message):
    __slots__ = ("queue", "batches", "messages", "digest")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    batches: int
    messages: int
    digest: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., batches: _Optional[int] = ..., messages: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class Winner(_message.Message):
    __slots__ = ("stager_id", "parts", "commits")
    STAGER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    stager_id: int
    parts: _containers.RepeatedCompositeFieldContainer[StagedPart]
    commits: int
    def __init__(self, stager_id: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[StagedPart, _Mapping]]] = ..., commits: _Optional[int] = ...) -> None: ...

class PinTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch", "attempt", "coordinator", "winners")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    WINNERS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    attempt: int
    coordinator: int
    winners: _containers.RepeatedCompositeFieldContainer[Winner]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., coordinator: _Optional[int] = ..., winners: _Optional[_Iterable[_Union[Winner, _Mapping]]] = ...) -> None: ...

class PublishedPart(_message.Message):
    __slots__ = ("queue", "base_offset", "messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    base_offset: int
    messages: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., base_offset: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class PublishedIds(_message.Message):
    __slots__ = ("topic_id", "first_arrival", "ids", "entries", "positions", "lengths")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    first_arrival: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., first_arrival: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., entries: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class PublishTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch", "attempt", "parts", "ids")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    attempt: int
    parts: _containers.RepeatedCompositeFieldContainer[PublishedPart]
    ids: _containers.RepeatedCompositeFieldContainer[PublishedIds]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[PublishedPart, _Mapping]]] = ..., ids: _Optional[_Iterable[_Union[PublishedIds, _Mapping]]] = ...) -> None: ...

class RewriteBatches(_message.Message):
    __slots__ = ("transaction_id", "attempt")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    attempt: int
    def __init__(self, transaction_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class DropPin(_message.Message):
    __slots__ = ("transaction_id", "attempt")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    attempt: int
    def __init__(self, transaction_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class DropStagers(_message.Message):
    __slots__ = ("stager_ids", "expired_only")
    STAGER_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_ONLY_FIELD_NUMBER: _ClassVar[int]
    stager_ids: _containers.RepeatedScalarFieldContainer[int]
    expired_only: bool
    def __init__(self, stager_ids: _Optional[_Iterable[int]] = ..., expired_only: _Optional[bool] = ...) -> None: ...

class BeginTransaction(_message.Message):
    __slots__ = ("transaction_id", "query_id", "epoch")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    query_id: str
    epoch: int
    def __init__(self, transaction_id: _Optional[str] = ..., query_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DecideTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch", "attempt", "participants")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    attempt: int
    participants: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ..., participants: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortTransaction(_message.Message):
    __slots__ = ("transaction_id", "attempt")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    attempt: int
    def __init__(self, transaction_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class FinishTransaction(_message.Message):
    __slots__ = ("transaction_id", "epoch")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    epoch: int
    def __init__(self, transaction_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ForgetTransactions(_message.Message):
    __slots__ = ("transaction_ids",)
    TRANSACTION_IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transaction_ids: _Optional[_Iterable[str]] = ...) -> None: ...
