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

class ReadMirroredRequest(_message.Message):
    __slots__ = ("cluster_id", "queue", "offset", "ordinal", "max_bytes", "slice_wanted", "settled_digest", "slice_digest", "slice_offset")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLICE_WANTED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SLICE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SLICE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    queue: _common_pb2.QueueRef
    offset: int
    ordinal: int
    max_bytes: int
    slice_wanted: bool
    settled_digest: bytes
    slice_digest: bytes
    slice_offset: int
    def __init__(self, cluster_id: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ..., ordinal: _Optional[int] = ..., max_bytes: _Optional[int] = ..., slice_wanted: _Optional[bool] = ..., settled_digest: _Optional[bytes] = ..., slice_digest: _Optional[bytes] = ..., slice_offset: _Optional[int] = ...) -> None: ...

class ReadMirroredReply(_message.Message):
    __slots__ = ("log_start_offset", "log_end_offset", "batches", "base_offset", "delayed", "ordinal_to", "delayed_bytes_left", "slice_part", "slice_offset", "slice_bytes", "slice_digest", "source_time_us", "producers", "child_ids", "feature_level")
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_TO_FIELD_NUMBER: _ClassVar[int]
    DELAYED_BYTES_LEFT_FIELD_NUMBER: _ClassVar[int]
    SLICE_PART_FIELD_NUMBER: _ClassVar[int]
    SLICE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLICE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CHILD_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    log_start_offset: int
    log_end_offset: int
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    base_offset: int
    delayed: _containers.RepeatedScalarFieldContainer[bytes]
    ordinal_to: int
    delayed_bytes_left: int
    slice_part: bytes
    slice_offset: int
    slice_bytes: int
    slice_digest: bytes
    source_time_us: int
    producers: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoredProducer]
    child_ids: _containers.RepeatedScalarFieldContainer[int]
    feature_level: int
    def __init__(self, log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., batches: _Optional[_Iterable[bytes]] = ..., base_offset: _Optional[int] = ..., delayed: _Optional[_Iterable[bytes]] = ..., ordinal_to: _Optional[int] = ..., delayed_bytes_left: _Optional[int] = ..., slice_part: _Optional[bytes] = ..., slice_offset: _Optional[int] = ..., slice_bytes: _Optional[int] = ..., slice_digest: _Optional[bytes] = ..., source_time_us: _Optional[int] = ..., producers: _Optional[_Iterable[_Union[_metadata_pb2.RestoredProducer, _Mapping]]] = ..., child_ids: _Optional[_Iterable[int]] = ..., feature_level: _Optional[int] = ...) -> None: ...

class BeginMirroredRequest(_message.Message):
    __slots__ = ("cluster_id", "create", "source", "mirror_epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MIRROR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    create: _control_pb2.CreateQueue
    source: str
    mirror_epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., create: _Optional[_Union[_control_pb2.CreateQueue, _Mapping]] = ..., source: _Optional[str] = ..., mirror_epoch: _Optional[int] = ...) -> None: ...

class MirroredQueueStatus(_message.Message):
    __slots__ = ("queue", "log_start_offset", "log_end_offset", "ordinal", "settled_digest", "settled_end_offset", "settled_us", "mirror_epoch", "promoted", "settled_child_ids", "producers", "delayed_messages", "groups")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    SETTLED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SETTLED_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SETTLED_US_FIELD_NUMBER: _ClassVar[int]
    MIRROR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_CHILD_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    log_start_offset: int
    log_end_offset: int
    ordinal: int
    settled_digest: bytes
    settled_end_offset: int
    settled_us: int
    mirror_epoch: int
    promoted: bool
    settled_child_ids: _containers.RepeatedScalarFieldContainer[int]
    producers: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoredProducer]
    delayed_messages: int
    groups: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., ordinal: _Optional[int] = ..., settled_digest: _Optional[bytes] = ..., settled_end_offset: _Optional[int] = ..., settled_us: _Optional[int] = ..., mirror_epoch: _Optional[int] = ..., promoted: _Optional[bool] = ..., settled_child_ids: _Optional[_Iterable[int]] = ..., producers: _Optional[_Iterable[_Union[_metadata_pb2.RestoredProducer, _Mapping]]] = ..., delayed_messages: _Optional[int] = ..., groups: _Optional[int] = ...) -> None: ...

class WriteMirroredRequest(_message.Message):
    __slots__ = ("cluster_id", "queue", "mirror_epoch", "read")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIRROR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    queue: _common_pb2.QueueRef
    mirror_epoch: int
    read: ReadMirroredReply
    def __init__(self, cluster_id: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., mirror_epoch: _Optional[int] = ..., read: _Optional[_Union[ReadMirroredReply, _Mapping]] = ...) -> None: ...

class DescribeMirroredRequest(_message.Message):
    __slots__ = ("cluster_id", "queues")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    def __init__(self, cluster_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ...) -> None: ...

class DescribeMirroredReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[MirroredQueueStatus]
    def __init__(self, queues: _Optional[_Iterable[_Union[MirroredQueueStatus, _Mapping]]] = ...) -> None: ...

class EndMirroredRequest(_message.Message):
    __slots__ = ("cluster_id", "queue", "digest", "settings")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    queue: _common_pb2.QueueRef
    digest: bytes
    settings: _common_pb2.TopicSettings
    def __init__(self, cluster_id: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., digest: _Optional[bytes] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ...) -> None: ...

class EndMirroredReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
