from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LogInRequest(_message.Message):
    __slots__ = ("token", "user", "password", "signing_request")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    token: str
    user: str
    password: str
    signing_request: bytes
    def __init__(self, token: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class LogInReply(_message.Message):
    __slots__ = ("certificate", "ends_with_token")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    ENDS_WITH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    ends_with_token: bool
    def __init__(self, certificate: _Optional[bytes] = ..., ends_with_token: _Optional[bool] = ...) -> None: ...

class BeginScramRequest(_message.Message):
    __slots__ = ("mechanism", "client_first", "signing_request")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIRST_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    client_first: bytes
    signing_request: bytes
    def __init__(self, mechanism: _Optional[str] = ..., client_first: _Optional[bytes] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class BeginScramReply(_message.Message):
    __slots__ = ("server_first",)
    SERVER_FIRST_FIELD_NUMBER: _ClassVar[int]
    server_first: bytes
    def __init__(self, server_first: _Optional[bytes] = ...) -> None: ...

class FinishScramRequest(_message.Message):
    __slots__ = ("mechanism", "client_first", "client_final", "signing_request")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIRST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FINAL_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    client_first: bytes
    client_final: bytes
    signing_request: bytes
    def __init__(self, mechanism: _Optional[str] = ..., client_first: _Optional[bytes] = ..., client_final: _Optional[bytes] = ..., signing_request: _Optional[bytes] = ...) -> None: ...

class FinishScramReply(_message.Message):
    __slots__ = ("server_final", "certificate")
    SERVER_FINAL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    server_final: bytes
    certificate: bytes
    def __init__(self, server_final: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...
