from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadAuditRequest(_message.Message):
    __slots__ = ("cluster_id", "position", "search", "result", "limit")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    position: str
    search: str
    result: str
    limit: int
    def __init__(self, cluster_id: _Optional[str] = ..., position: _Optional[str] = ..., search: _Optional[str] = ..., result: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class AuditLine(_message.Message):
    __slots__ = ("position", "line")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    position: str
    line: str
    def __init__(self, position: _Optional[str] = ..., line: _Optional[str] = ...) -> None: ...

class ReadAuditReply(_message.Message):
    __slots__ = ("lines", "begin", "position", "end", "kept", "scanned_bytes")
    LINES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SCANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[AuditLine]
    begin: str
    position: str
    end: bool
    kept: bool
    scanned_bytes: int
    def __init__(self, lines: _Optional[_Iterable[_Union[AuditLine, _Mapping]]] = ..., begin: _Optional[str] = ..., position: _Optional[str] = ..., end: _Optional[bool] = ..., kept: _Optional[bool] = ..., scanned_bytes: _Optional[int] = ...) -> None: ...
