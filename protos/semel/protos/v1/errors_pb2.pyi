from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_MASTER: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_THROTTLED: _ClassVar[ErrorCode]
    ERROR_CODE_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_GENERATION: _ClassVar[ErrorCode]
    ERROR_CODE_LOCK_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_MEMBER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_SEQUENCE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_DEDUP_STATE_EXPIRED: _ClassVar[ErrorCode]
    ERROR_CODE_PARTIAL_OVERLAP: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_QUEUE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_GROUP: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_MEMBER: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    ERROR_CODE_QUEUE_LOCKED: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_CODE_QUEUE_SEALED: _ClassVar[ErrorCode]
    ERROR_CODE_PARENT_UNREAD: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_BATCH: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_SEGMENT: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_FRAME: _ClassVar[ErrorCode]
    ERROR_CODE_DISK_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_DIRECTORY: _ClassVar[ErrorCode]
    ERROR_CODE_CLOSED: _ClassVar[ErrorCode]
    ERROR_CODE_BUFFER_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_NOT_MASTER: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_THROTTLED: ErrorCode
ERROR_CODE_TIMED_OUT: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_STALE_GENERATION: ErrorCode
ERROR_CODE_LOCK_LOST: ErrorCode
ERROR_CODE_MEMBER_FENCED: ErrorCode
ERROR_CODE_INVALID_REQUEST: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE: ErrorCode
ERROR_CODE_SEQUENCE_CONFLICT: ErrorCode
ERROR_CODE_DEDUP_STATE_EXPIRED: ErrorCode
ERROR_CODE_PARTIAL_OVERLAP: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC: ErrorCode
ERROR_CODE_UNKNOWN_QUEUE: ErrorCode
ERROR_CODE_UNKNOWN_GROUP: ErrorCode
ERROR_CODE_UNKNOWN_MEMBER: ErrorCode
ERROR_CODE_TOPIC_EXISTS: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER: ErrorCode
ERROR_CODE_QUEUE_LOCKED: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
ERROR_CODE_QUEUE_SEALED: ErrorCode
ERROR_CODE_PARENT_UNREAD: ErrorCode
ERROR_CODE_CORRUPT_BATCH: ErrorCode
ERROR_CODE_CORRUPT_SEGMENT: ErrorCode
ERROR_CODE_CORRUPT_FRAME: ErrorCode
ERROR_CODE_DISK_FULL: ErrorCode
ERROR_CODE_DATA_DIRECTORY: ErrorCode
ERROR_CODE_CLOSED: ErrorCode
ERROR_CODE_BUFFER_FULL: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "master_address", "master_id", "term", "route_version", "last_sequence", "retry_after_ms", "current_epoch", "current_session", "current_token", "epoch_floor", "log_start_offset", "log_end_offset", "limit_bytes", "owner", "split_record")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SESSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FLOOR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SPLIT_RECORD_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    master_address: str
    master_id: int
    term: int
    route_version: int
    last_sequence: int
    retry_after_ms: int
    current_epoch: int
    current_session: int
    current_token: int
    epoch_floor: int
    log_start_offset: int
    log_end_offset: int
    limit_bytes: int
    owner: str
    split_record: bytes
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., master_address: _Optional[str] = ..., master_id: _Optional[int] = ..., term: _Optional[int] = ..., route_version: _Optional[int] = ..., last_sequence: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., current_epoch: _Optional[int] = ..., current_session: _Optional[int] = ..., current_token: _Optional[int] = ..., epoch_floor: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., owner: _Optional[str] = ..., split_record: _Optional[bytes] = ...) -> None: ...
