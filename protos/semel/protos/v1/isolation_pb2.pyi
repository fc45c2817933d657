from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class CallClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_CLASS_UNSPECIFIED: _ClassVar[CallClass]
    CALL_CLASS_STREAM: _ClassVar[CallClass]
    CALL_CLASS_NODES: _ClassVar[CallClass]
    CALL_CLASS_SESSION: _ClassVar[CallClass]
    CALL_CLASS_CONNECT: _ClassVar[CallClass]
    CALL_CLASS_BEGIN: _ClassVar[CallClass]
    CALL_CLASS_METADATA: _ClassVar[CallClass]
    CALL_CLASS_LOOK_UP: _ClassVar[CallClass]
    CALL_CLASS_ADMIN: _ClassVar[CallClass]
    CALL_CLASS_WATCH: _ClassVar[CallClass]
    CALL_CLASS_SCAN: _ClassVar[CallClass]
    CALL_CLASS_COPY: _ClassVar[CallClass]
    CALL_CLASS_HEALTH: _ClassVar[CallClass]
CALL_CLASS_UNSPECIFIED: CallClass
CALL_CLASS_STREAM: CallClass
CALL_CLASS_NODES: CallClass
CALL_CLASS_SESSION: CallClass
CALL_CLASS_CONNECT: CallClass
CALL_CLASS_BEGIN: CallClass
CALL_CLASS_METADATA: CallClass
CALL_CLASS_LOOK_UP: CallClass
CALL_CLASS_ADMIN: CallClass
CALL_CLASS_WATCH: CallClass
CALL_CLASS_SCAN: CallClass
CALL_CLASS_COPY: CallClass
CALL_CLASS_HEALTH: CallClass
CALL_CLASS_FIELD_NUMBER: _ClassVar[int]
call_class: _descriptor.FieldDescriptor
UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
uncounted: _descriptor.FieldDescriptor
