from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Storage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORAGE_UNSPECIFIED: _ClassVar[Storage]
    STORAGE_LOG: _ClassVar[Storage]
    STORAGE_MEMORY: _ClassVar[Storage]
STORAGE_UNSPECIFIED: Storage
STORAGE_LOG: Storage
STORAGE_MEMORY: Storage

class Frame(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class QueueRef(_message.Message):
    __slots__ = ("topic_id", "queue_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queue_id: int
    def __init__(self, topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("retention_ms", "retention_bytes", "message_bytes_max", "batch_bytes_max", "dedup", "delay_per_second_max", "compaction", "tier_after_ms", "local_retention_ms", "storage", "memory_bytes")
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DEDUP_FIELD_NUMBER: _ClassVar[int]
    DELAY_PER_SECOND_MAX_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    TIER_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    retention_ms: int
    retention_bytes: int
    message_bytes_max: int
    batch_bytes_max: int
    dedup: IdDedup
    delay_per_second_max: int
    compaction: Compaction
    tier_after_ms: int
    local_retention_ms: int
    storage: Storage
    memory_bytes: int
    def __init__(self, retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., dedup: _Optional[_Union[IdDedup, _Mapping]] = ..., delay_per_second_max: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ..., tier_after_ms: _Optional[int] = ..., local_retention_ms: _Optional[int] = ..., storage: _Optional[_Union[Storage, str]] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("tombstone_ms", "lag_ms")
    TOMBSTONE_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    tombstone_ms: int
    lag_ms: int
    def __init__(self, tombstone_ms: _Optional[int] = ..., lag_ms: _Optional[int] = ...) -> None: ...

class IdDedup(_message.Message):
    __slots__ = ("window_bytes", "keep_ms", "keep_first", "seed")
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIRST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    window_bytes: int
    keep_ms: int
    keep_first: bool
    seed: bytes
    def __init__(self, window_bytes: _Optional[int] = ..., keep_ms: _Optional[int] = ..., keep_first: _Optional[bool] = ..., seed: _Optional[bytes] = ...) -> None: ...

class Levels(_message.Message):
    __slots__ = ("min", "max", "version", "active")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    version: str
    active: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ..., version: _Optional[str] = ..., active: _Optional[int] = ...) -> None: ...

class NodeAddress(_message.Message):
    __slots__ = ("node_id", "address", "rack", "stream_port")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    STREAM_PORT_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    rack: str
    stream_port: int
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., stream_port: _Optional[int] = ...) -> None: ...
