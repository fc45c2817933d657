from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_DESCRIBE: _ClassVar[Action]
    ACTION_READ: _ClassVar[Action]
    ACTION_WRITE: _ClassVar[Action]
    ACTION_CREATE: _ClassVar[Action]
    ACTION_ALTER: _ClassVar[Action]
    ACTION_DELETE: _ClassVar[Action]
    ACTION_COMMIT: _ClassVar[Action]
    ACTION_OWN_NAME: _ClassVar[Action]
    ACTION_TRANSACT: _ClassVar[Action]
    ACTION_OPERATE: _ClassVar[Action]
    ACTION_SECURITY: _ClassVar[Action]

class ResourceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_KIND_UNSPECIFIED: _ClassVar[ResourceKind]
    RESOURCE_KIND_CLUSTER: _ClassVar[ResourceKind]
    RESOURCE_KIND_TOPIC: _ClassVar[ResourceKind]
    RESOURCE_KIND_CONSUMER_GROUP: _ClassVar[ResourceKind]
    RESOURCE_KIND_PRODUCER: _ClassVar[ResourceKind]
    RESOURCE_KIND_TRANSACTION: _ClassVar[ResourceKind]

class NodeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_KIND_UNSPECIFIED: _ClassVar[NodeKind]
    NODE_KIND_BROKER: _ClassVar[NodeKind]
    NODE_KIND_CONTROLLER: _ClassVar[NodeKind]

class Unnamed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNNAMED_REFUSED: _ClassVar[Unnamed]
    UNNAMED_NOTHING: _ClassVar[Unnamed]
    UNNAMED_VISIBLE: _ClassVar[Unnamed]
ACTION_UNSPECIFIED: Action
ACTION_DESCRIBE: Action
ACTION_READ: Action
ACTION_WRITE: Action
ACTION_CREATE: Action
ACTION_ALTER: Action
ACTION_DELETE: Action
ACTION_COMMIT: Action
ACTION_OWN_NAME: Action
ACTION_TRANSACT: Action
ACTION_OPERATE: Action
ACTION_SECURITY: Action
RESOURCE_KIND_UNSPECIFIED: ResourceKind
RESOURCE_KIND_CLUSTER: ResourceKind
RESOURCE_KIND_TOPIC: ResourceKind
RESOURCE_KIND_CONSUMER_GROUP: ResourceKind
RESOURCE_KIND_PRODUCER: ResourceKind
RESOURCE_KIND_TRANSACTION: ResourceKind
NODE_KIND_UNSPECIFIED: NodeKind
NODE_KIND_BROKER: NodeKind
NODE_KIND_CONTROLLER: NodeKind
UNNAMED_REFUSED: Unnamed
UNNAMED_NOTHING: Unnamed
UNNAMED_VISIBLE: Unnamed
ACCESS_FIELD_NUMBER: _ClassVar[int]
access: _descriptor.FieldDescriptor

class Right(_message.Message):
    __slots__ = ("action", "resource", "field", "unnamed")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    action: Action
    resource: ResourceKind
    field: str
    unnamed: Unnamed
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., resource: _Optional[_Union[ResourceKind, str]] = ..., field: _Optional[str] = ..., unnamed: _Optional[_Union[Unnamed, str]] = ...) -> None: ...

class Shown(_message.Message):
    __slots__ = ("field", "resource", "name")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    field: str
    resource: ResourceKind
    name: str
    def __init__(self, field: _Optional[str] = ..., resource: _Optional[_Union[ResourceKind, str]] = ..., name: _Optional[str] = ...) -> None: ...

class Access(_message.Message):
    __slots__ = ("nodes", "rights", "anybody", "each_message", "shows")
    NODES_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    ANYBODY_FIELD_NUMBER: _ClassVar[int]
    EACH_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHOWS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[NodeKind]
    rights: _containers.RepeatedCompositeFieldContainer[Right]
    anybody: bool
    each_message: bool
    shows: _containers.RepeatedCompositeFieldContainer[Shown]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeKind, str]]] = ..., rights: _Optional[_Iterable[_Union[Right, _Mapping]]] = ..., anybody: _Optional[bool] = ..., each_message: _Optional[bool] = ..., shows: _Optional[_Iterable[_Union[Shown, _Mapping]]] = ...) -> None: ...
