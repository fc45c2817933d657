from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Setting(_message.Message):
    __slots__ = ("name", "value", "default_value", "started_value", "changeable", "least", "most")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STARTED_VALUE_FIELD_NUMBER: _ClassVar[int]
    CHANGEABLE_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default_value: str
    started_value: str
    changeable: bool
    least: int
    most: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default_value: _Optional[str] = ..., started_value: _Optional[str] = ..., changeable: _Optional[bool] = ..., least: _Optional[int] = ..., most: _Optional[int] = ...) -> None: ...

class ShowSettingsRequest(_message.Message):
    __slots__ = ("cluster_id", "names")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ShowSettingsReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class ChangeSettingRequest(_message.Message):
    __slots__ = ("cluster_id", "name", "value", "reset")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    name: str
    value: int
    reset: bool
    def __init__(self, cluster_id: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[int] = ..., reset: _Optional[bool] = ...) -> None: ...

class ChangeSettingReply(_message.Message):
    __slots__ = ("setting", "before")
    SETTING_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    setting: Setting
    before: str
    def __init__(self, setting: _Optional[_Union[Setting, _Mapping]] = ..., before: _Optional[str] = ...) -> None: ...
