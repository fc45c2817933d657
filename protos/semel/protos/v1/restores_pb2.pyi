from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import control_pb2 as _control_pb2
from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import metadata_pb2 as _metadata_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListTierRequest(_message.Message):
    __slots__ = ("cluster_id", "url", "identity_only")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_ONLY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    url: str
    identity_only: bool
    def __init__(self, cluster_id: _Optional[str] = ..., url: _Optional[str] = ..., identity_only: _Optional[bool] = ...) -> None: ...

class ListTierReply(_message.Message):
    __slots__ = ("owner", "folder", "topics")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    folder: str
    topics: _containers.RepeatedCompositeFieldContainer[TierTopic]
    def __init__(self, owner: _Optional[str] = ..., folder: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TierTopic, _Mapping]]] = ...) -> None: ...

class TierTopic(_message.Message):
    __slots__ = ("name", "topic_id", "queue_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeTieredQueueRequest(_message.Message):
    __slots__ = ("cluster_id", "url", "queue")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    url: str
    queue: _common_pb2.QueueRef
    def __init__(self, cluster_id: _Optional[str] = ..., url: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ...) -> None: ...

class DescribeTieredQueueReply(_message.Message):
    __slots__ = ("queue", "settings", "producers", "producer_id_max", "problem", "deleted")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_MAX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    queue: _metadata_pb2.RestorableQueue
    settings: _common_pb2.TopicSettings
    producers: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoredProducer]
    producer_id_max: int
    problem: str
    deleted: bool
    def __init__(self, queue: _Optional[_Union[_metadata_pb2.RestorableQueue, _Mapping]] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., producers: _Optional[_Iterable[_Union[_metadata_pb2.RestoredProducer, _Mapping]]] = ..., producer_id_max: _Optional[int] = ..., problem: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class TakeTierRequest(_message.Message):
    __slots__ = ("cluster_id", "url", "owner")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    url: str
    owner: str
    def __init__(self, cluster_id: _Optional[str] = ..., url: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class TakeTierReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreQueueRequest(_message.Message):
    __slots__ = ("cluster_id", "url", "create", "facts", "ancestors_whole")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ANCESTORS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    url: str
    create: _control_pb2.CreateQueue
    facts: str
    ancestors_whole: bool
    def __init__(self, cluster_id: _Optional[str] = ..., url: _Optional[str] = ..., create: _Optional[_Union[_control_pb2.CreateQueue, _Mapping]] = ..., facts: _Optional[str] = ..., ancestors_whole: _Optional[bool] = ...) -> None: ...

class RestoreQueueReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
