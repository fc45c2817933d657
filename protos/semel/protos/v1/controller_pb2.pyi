from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import metadata_pb2 as _metadata_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UserChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USER_CHANGE_UNSPECIFIED: _ClassVar[UserChange]
    USER_CHANGE_ADD: _ClassVar[UserChange]
    USER_CHANGE_PASSWORD: _ClassVar[UserChange]
    USER_CHANGE_REMOVE: _ClassVar[UserChange]
USER_CHANGE_UNSPECIFIED: UserChange
USER_CHANGE_ADD: UserChange
USER_CHANGE_PASSWORD: UserChange
USER_CHANGE_REMOVE: UserChange

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "queues", "settings", "if_not_exists", "groups", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: int
    settings: _common_pb2.TopicSettings
    if_not_exists: bool
    groups: _containers.RepeatedScalarFieldContainer[int]
    request_id: bytes
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., if_not_exists: _Optional[bool] = ..., groups: _Optional[_Iterable[int]] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class CreateTopicReply(_message.Message):
    __slots__ = ("topic", "created")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    topic: TopicRoute
    created: bool
    def __init__(self, topic: _Optional[_Union[TopicRoute, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "settings", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _common_pb2.TopicSettings
    queues: int
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., queues: _Optional[int] = ...) -> None: ...

class AlterTopicReply(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicRoute
    def __init__(self, topic: _Optional[_Union[TopicRoute, _Mapping]] = ...) -> None: ...

class SplitQueueRequest(_message.Message):
    __slots__ = ("name", "queue_id", "children")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_id: int
    children: int
    def __init__(self, name: _Optional[str] = ..., queue_id: _Optional[int] = ..., children: _Optional[int] = ...) -> None: ...

class MoveQueueRequest(_message.Message):
    __slots__ = ("name", "queue_id", "group_id", "cancel")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_id: int
    group_id: int
    cancel: bool
    def __init__(self, name: _Optional[str] = ..., queue_id: _Optional[int] = ..., group_id: _Optional[int] = ..., cancel: _Optional[bool] = ...) -> None: ...

class MoveStatus(_message.Message):
    __slots__ = ("topic", "topic_id", "queue_id", "source", "target", "job", "stage", "copied_bytes", "total_bytes", "reason", "begun_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BEGUN_US_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    queue_id: int
    source: int
    target: int
    job: int
    stage: str
    copied_bytes: int
    total_bytes: int
    reason: str
    begun_us: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., source: _Optional[int] = ..., target: _Optional[int] = ..., job: _Optional[int] = ..., stage: _Optional[str] = ..., copied_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., begun_us: _Optional[int] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListMovesReply(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[MoveStatus]
    def __init__(self, moves: _Optional[_Iterable[_Union[MoveStatus, _Mapping]]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "if_exists")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    if_exists: bool
    def __init__(self, name: _Optional[str] = ..., if_exists: _Optional[bool] = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class GetRoutesRequest(_message.Message):
    __slots__ = ("topics", "groups_only", "known_version")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_ONLY_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    groups_only: bool
    known_version: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., groups_only: _Optional[bool] = ..., known_version: _Optional[int] = ...) -> None: ...

class QueueRoute(_message.Message):
    __slots__ = ("queue_id", "group_id", "slot_start", "slot_end", "parent_id")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    group_id: int
    slot_start: int
    slot_end: int
    parent_id: int
    def __init__(self, queue_id: _Optional[int] = ..., group_id: _Optional[int] = ..., slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ..., parent_id: _Optional[int] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("name", "topic_id", "settings", "queues", "created_us", "sealed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    settings: _common_pb2.TopicSettings
    queues: _containers.RepeatedCompositeFieldContainer[QueueRoute]
    created_us: int
    sealed: _containers.RepeatedCompositeFieldContainer[QueueRoute]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueRoute, _Mapping]]] = ..., created_us: _Optional[int] = ..., sealed: _Optional[_Iterable[_Union[QueueRoute, _Mapping]]] = ...) -> None: ...

class GroupRoute(_message.Message):
    __slots__ = ("group_id", "nodes", "master_id", "term")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    master_id: int
    term: int
    def __init__(self, group_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ..., master_id: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class Routes(_message.Message):
    __slots__ = ("version", "cluster_id", "groups", "topics", "controllers", "copied", "changes_since", "removed_topics", "watches")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_SINCE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupRoute]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    controllers: _containers.RepeatedScalarFieldContainer[str]
    copied: bool
    changes_since: int
    removed_topics: _containers.RepeatedScalarFieldContainer[str]
    watches: int
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupRoute, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., controllers: _Optional[_Iterable[str]] = ..., copied: _Optional[bool] = ..., changes_since: _Optional[int] = ..., removed_topics: _Optional[_Iterable[str]] = ..., watches: _Optional[int] = ...) -> None: ...

class OpenProducerRequest(_message.Message):
    __slots__ = ("name", "open_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPEN_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    open_id: bytes
    def __init__(self, name: _Optional[str] = ..., open_id: _Optional[bytes] = ...) -> None: ...

class OpenProducerReply(_message.Message):
    __slots__ = ("producer_id", "epoch", "lent")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    lent: bool
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., lent: _Optional[bool] = ...) -> None: ...

class ListProducersRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ProducerInfo(_message.Message):
    __slots__ = ("name", "producer_id", "epoch", "opened_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPENED_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    epoch: int
    opened_us: int
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., opened_us: _Optional[int] = ...) -> None: ...

class ListProducersReply(_message.Message):
    __slots__ = ("producers",)
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerInfo]
    def __init__(self, producers: _Optional[_Iterable[_Union[ProducerInfo, _Mapping]]] = ...) -> None: ...

class FindProducerOwnerRequest(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    def __init__(self, producer_id: _Optional[int] = ...) -> None: ...

class FindProducerOwnerReply(_message.Message):
    __slots__ = ("name", "given")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    given: bool
    def __init__(self, name: _Optional[str] = ..., given: _Optional[bool] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "topics", "session_ms", "client", "grace_ms", "incarnation", "kind", "address", "protocol")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    session_ms: int
    client: str
    grace_ms: int
    incarnation: bytes
    kind: _metadata_pb2.GroupKind
    address: str
    protocol: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., session_ms: _Optional[int] = ..., client: _Optional[str] = ..., grace_ms: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., kind: _Optional[_Union[_metadata_pb2.GroupKind, str]] = ..., address: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...

class HeartbeatGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "generation", "held", "incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    generation: int
    held: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    incarnation: bytes
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., held: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class GroupMembershipReply(_message.Message):
    __slots__ = ("member_id", "generation", "assignment", "heartbeat_ms", "address")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    generation: int
    assignment: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    heartbeat_ms: int
    address: str
    def __init__(self, member_id: _Optional[str] = ..., generation: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., heartbeat_ms: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    incarnation: bytes
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class LeaveGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("group", "counts_only")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COUNTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    group: str
    counts_only: bool
    def __init__(self, group: _Optional[str] = ..., counts_only: _Optional[bool] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "client", "topics", "assignment", "address")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    client: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    assignment: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    address: str
    def __init__(self, member_id: _Optional[str] = ..., client: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., assignment: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., address: _Optional[str] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "generation", "members", "member_count", "kind")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    group: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    member_count: int
    kind: _metadata_pb2.GroupKind
    def __init__(self, group: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., member_count: _Optional[int] = ..., kind: _Optional[_Union[_metadata_pb2.GroupKind, str]] = ...) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ...) -> None: ...

class ForgetGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ForgetGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportNodeRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node", "role", "term", "master_id", "commit_index", "log_end_index", "queues", "members", "damaged", "lost", "disk_full", "load", "wants_producer_ids", "founding_id", "levels")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    WANTS_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node: _common_pb2.NodeAddress
    role: str
    term: int
    master_id: int
    commit_index: int
    log_end_index: int
    queues: int
    members: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    damaged: int
    lost: int
    disk_full: bool
    load: NodeLoad
    wants_producer_ids: bool
    founding_id: str
    levels: _common_pb2.Levels
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node: _Optional[_Union[_common_pb2.NodeAddress, _Mapping]] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., master_id: _Optional[int] = ..., commit_index: _Optional[int] = ..., log_end_index: _Optional[int] = ..., queues: _Optional[int] = ..., members: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ..., damaged: _Optional[int] = ..., lost: _Optional[int] = ..., disk_full: _Optional[bool] = ..., load: _Optional[_Union[NodeLoad, _Mapping]] = ..., wants_producer_ids: _Optional[bool] = ..., founding_id: _Optional[str] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ...) -> None: ...

class NodeLoad(_message.Message):
    __slots__ = ("produced_messages", "produced_bytes", "fetched_messages", "fetched_bytes", "disk_free_bytes", "disk_total_bytes")
    PRODUCED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    produced_messages: int
    produced_bytes: int
    fetched_messages: int
    fetched_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    def __init__(self, produced_messages: _Optional[int] = ..., produced_bytes: _Optional[int] = ..., fetched_messages: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_total_bytes: _Optional[int] = ...) -> None: ...

class ReportNodeReply(_message.Message):
    __slots__ = ("cluster_id", "route_version", "controllers", "producer_ids_start", "producer_ids_end", "producer_ids_floor", "rights_version")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_START_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_END_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FLOOR_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    route_version: int
    controllers: _containers.RepeatedScalarFieldContainer[str]
    producer_ids_start: int
    producer_ids_end: int
    producer_ids_floor: int
    rights_version: int
    def __init__(self, cluster_id: _Optional[str] = ..., route_version: _Optional[int] = ..., controllers: _Optional[_Iterable[str]] = ..., producer_ids_start: _Optional[int] = ..., producer_ids_end: _Optional[int] = ..., producer_ids_floor: _Optional[int] = ..., rights_version: _Optional[int] = ...) -> None: ...

class FoundGroupRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "members", "complete_id", "anew", "previous_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_ID_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    members: _containers.RepeatedScalarFieldContainer[int]
    complete_id: str
    anew: bool
    previous_id: str
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., complete_id: _Optional[str] = ..., anew: _Optional[bool] = ..., previous_id: _Optional[str] = ...) -> None: ...

class FoundGroupReply(_message.Message):
    __slots__ = ("founding_id", "founded", "nodes", "previous_id")
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    FOUNDED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ID_FIELD_NUMBER: _ClassVar[int]
    founding_id: str
    founded: bool
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    previous_id: str
    def __init__(self, founding_id: _Optional[str] = ..., founded: _Optional[bool] = ..., nodes: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ..., previous_id: _Optional[str] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ("standby",)
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    standby: bool
    def __init__(self, standby: _Optional[bool] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "address", "role", "log_end_index", "alive", "silent_ms", "damaged", "lost", "disk_full", "load", "rack")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOG_END_INDEX_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    role: str
    log_end_index: int
    alive: bool
    silent_ms: int
    damaged: int
    lost: int
    disk_full: bool
    load: NodeLoad
    rack: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., log_end_index: _Optional[int] = ..., alive: _Optional[bool] = ..., silent_ms: _Optional[int] = ..., damaged: _Optional[int] = ..., lost: _Optional[int] = ..., disk_full: _Optional[bool] = ..., load: _Optional[_Union[NodeLoad, _Mapping]] = ..., rack: _Optional[str] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("group_id", "term", "master_id", "commit_index", "nodes", "queues")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    term: int
    master_id: int
    commit_index: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    queues: int
    def __init__(self, group_id: _Optional[int] = ..., term: _Optional[int] = ..., master_id: _Optional[int] = ..., commit_index: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., queues: _Optional[int] = ...) -> None: ...

class ControllerStatus(_message.Message):
    __slots__ = ("controller_id", "address", "role", "alive")
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    controller_id: int
    address: str
    role: str
    alive: bool
    def __init__(self, controller_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., alive: _Optional[bool] = ...) -> None: ...

class UnfinishedTopic(_message.Message):
    __slots__ = ("name", "topic_id", "step", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    step: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., step: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("cluster_id", "groups", "controllers", "topics", "version", "unfinished", "levels", "runtime", "started_us", "clients_ca_expires_s")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_CA_EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    controllers: _containers.RepeatedCompositeFieldContainer[ControllerStatus]
    topics: int
    version: str
    unfinished: _containers.RepeatedCompositeFieldContainer[UnfinishedTopic]
    levels: _common_pb2.Levels
    runtime: str
    started_us: int
    clients_ca_expires_s: int
    def __init__(self, cluster_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., controllers: _Optional[_Iterable[_Union[ControllerStatus, _Mapping]]] = ..., topics: _Optional[int] = ..., version: _Optional[str] = ..., unfinished: _Optional[_Iterable[_Union[UnfinishedTopic, _Mapping]]] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., runtime: _Optional[str] = ..., started_us: _Optional[int] = ..., clients_ca_expires_s: _Optional[int] = ...) -> None: ...

class RestartControllerRequest(_message.Message):
    __slots__ = ("cluster_id", "controller_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ...) -> None: ...

class RestartControllerReply(_message.Message):
    __slots__ = ("started_us",)
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    started_us: int
    def __init__(self, started_us: _Optional[int] = ...) -> None: ...

class RaiseMetadataLevelRequest(_message.Message):
    __slots__ = ("level", "dry_run")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    level: int
    dry_run: bool
    def __init__(self, level: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RaiseMetadataLevelReply(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class RestoreClusterRequest(_message.Message):
    __slots__ = ("cluster_id", "look", "begin", "place", "placed", "producers", "activate", "end")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    look: RestoreLook
    begin: RestoreBegin
    place: RestorePlace
    placed: RestorePlaced
    producers: RestoreProducers
    activate: RestoreActivate
    end: RestoreEnd
    def __init__(self, cluster_id: _Optional[str] = ..., look: _Optional[_Union[RestoreLook, _Mapping]] = ..., begin: _Optional[_Union[RestoreBegin, _Mapping]] = ..., place: _Optional[_Union[RestorePlace, _Mapping]] = ..., placed: _Optional[_Union[RestorePlaced, _Mapping]] = ..., producers: _Optional[_Union[RestoreProducers, _Mapping]] = ..., activate: _Optional[_Union[RestoreActivate, _Mapping]] = ..., end: _Optional[_Union[RestoreEnd, _Mapping]] = ...) -> None: ...

class RestoreLook(_message.Message):
    __slots__ = ("after_topic_id",)
    AFTER_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    after_topic_id: int
    def __init__(self, after_topic_id: _Optional[int] = ...) -> None: ...

class RestoreBegin(_message.Message):
    __slots__ = ("url", "folder", "owner")
    URL_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    url: str
    folder: str
    owner: str
    def __init__(self, url: _Optional[str] = ..., folder: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class RestorePlace(_message.Message):
    __slots__ = ("name", "topic_id", "settings", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    settings: _common_pb2.TopicSettings
    queues: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestorableQueue]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_metadata_pb2.RestorableQueue, _Mapping]]] = ...) -> None: ...

class RestorePlaced(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreProducers(_message.Message):
    __slots__ = ("producers", "producer_id_max")
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_MAX_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoredProducer]
    producer_id_max: int
    def __init__(self, producers: _Optional[_Iterable[_Union[_metadata_pb2.RestoredProducer, _Mapping]]] = ..., producer_id_max: _Optional[int] = ...) -> None: ...

class RestoreActivate(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    def __init__(self, topic_id: _Optional[int] = ...) -> None: ...

class RestoreEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreClusterReply(_message.Message):
    __slots__ = ("restore", "topics", "refusal")
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    restore: _metadata_pb2.RestoreRecord
    topics: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoringTopic]
    refusal: str
    def __init__(self, restore: _Optional[_Union[_metadata_pb2.RestoreRecord, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_metadata_pb2.RestoringTopic, _Mapping]]] = ..., refusal: _Optional[str] = ...) -> None: ...

class MirrorTopicsRequest(_message.Message):
    __slots__ = ("cluster_id", "look", "begin", "place", "producers", "promote", "promoted", "drop")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    look: MirrorLook
    begin: MirrorBegin
    place: MirrorPlace
    producers: MirrorProducers
    promote: MirrorPromote
    promoted: MirrorPromoted
    drop: MirrorDrop
    def __init__(self, cluster_id: _Optional[str] = ..., look: _Optional[_Union[MirrorLook, _Mapping]] = ..., begin: _Optional[_Union[MirrorBegin, _Mapping]] = ..., place: _Optional[_Union[MirrorPlace, _Mapping]] = ..., producers: _Optional[_Union[MirrorProducers, _Mapping]] = ..., promote: _Optional[_Union[MirrorPromote, _Mapping]] = ..., promoted: _Optional[_Union[MirrorPromoted, _Mapping]] = ..., drop: _Optional[_Union[MirrorDrop, _Mapping]] = ...) -> None: ...

class MirrorLook(_message.Message):
    __slots__ = ("after_topic_id",)
    AFTER_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    after_topic_id: int
    def __init__(self, after_topic_id: _Optional[int] = ...) -> None: ...

class MirrorBegin(_message.Message):
    __slots__ = ("source", "next_producer_id", "source_is_target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_IS_TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    next_producer_id: int
    source_is_target: bool
    def __init__(self, source: _Optional[str] = ..., next_producer_id: _Optional[int] = ..., source_is_target: _Optional[bool] = ...) -> None: ...

class MirrorPlace(_message.Message):
    __slots__ = ("name", "topic_id", "settings", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    settings: _common_pb2.TopicSettings
    queues: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.MirroredQueue]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_metadata_pb2.MirroredQueue, _Mapping]]] = ...) -> None: ...

class MirrorProducers(_message.Message):
    __slots__ = ("producers", "forget")
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.RestoredProducer]
    forget: bool
    def __init__(self, producers: _Optional[_Iterable[_Union[_metadata_pb2.RestoredProducer, _Mapping]]] = ..., forget: _Optional[bool] = ...) -> None: ...

class MirrorPromote(_message.Message):
    __slots__ = ("topic_id", "queues")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queues: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.MirroredQueue]
    def __init__(self, topic_id: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[_metadata_pb2.MirroredQueue, _Mapping]]] = ...) -> None: ...

class MirrorPromoted(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    def __init__(self, topic_id: _Optional[int] = ...) -> None: ...

class MirrorDrop(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    def __init__(self, topic_id: _Optional[int] = ...) -> None: ...

class MirrorTopicsReply(_message.Message):
    __slots__ = ("mirrors", "topics", "next_producer_id")
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    mirrors: _metadata_pb2.MirrorsRecord
    topics: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.MirroredTopic]
    next_producer_id: int
    def __init__(self, mirrors: _Optional[_Union[_metadata_pb2.MirrorsRecord, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_metadata_pb2.MirroredTopic, _Mapping]]] = ..., next_producer_id: _Optional[int] = ...) -> None: ...

class ChangeRightsRequest(_message.Message):
    __slots__ = ("add_rules", "remove_rules", "add_members", "remove_members")
    ADD_RULES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_RULES_FIELD_NUMBER: _ClassVar[int]
    ADD_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    add_rules: _containers.RepeatedScalarFieldContainer[str]
    remove_rules: _containers.RepeatedScalarFieldContainer[str]
    add_members: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.PrincipalGroup]
    remove_members: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.PrincipalGroup]
    def __init__(self, add_rules: _Optional[_Iterable[str]] = ..., remove_rules: _Optional[_Iterable[str]] = ..., add_members: _Optional[_Iterable[_Union[_metadata_pb2.PrincipalGroup, _Mapping]]] = ..., remove_members: _Optional[_Iterable[_Union[_metadata_pb2.PrincipalGroup, _Mapping]]] = ...) -> None: ...

class ChangeRightsReply(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: _Optional[bool] = ...) -> None: ...

class ListRightsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRightsReply(_message.Message):
    __slots__ = ("rights",)
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    rights: _metadata_pb2.RightsRecord
    def __init__(self, rights: _Optional[_Union[_metadata_pb2.RightsRecord, _Mapping]] = ...) -> None: ...

class CheckRightRequest(_message.Message):
    __slots__ = ("principal", "action", "resource")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    action: str
    resource: str
    def __init__(self, principal: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class CheckRightReply(_message.Message):
    __slots__ = ("allowed", "rule", "reason")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    rule: str
    reason: str
    def __init__(self, allowed: _Optional[bool] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeUserRequest(_message.Message):
    __slots__ = ("user", "change", "password", "scram")
    USER_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    user: str
    change: UserChange
    password: str
    scram: bool
    def __init__(self, user: _Optional[str] = ..., change: _Optional[_Union[UserChange, str]] = ..., password: _Optional[str] = ..., scram: _Optional[bool] = ...) -> None: ...

class ChangeUserReply(_message.Message):
    __slots__ = ("changed", "scram")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    scram: bool
    def __init__(self, changed: _Optional[bool] = ..., scram: _Optional[bool] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UserInfo(_message.Message):
    __slots__ = ("user", "changed_us", "scram")
    USER_FIELD_NUMBER: _ClassVar[int]
    CHANGED_US_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    user: str
    changed_us: int
    scram: bool
    def __init__(self, user: _Optional[str] = ..., changed_us: _Optional[int] = ..., scram: _Optional[bool] = ...) -> None: ...

class ListUsersReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserInfo]
    def __init__(self, users: _Optional[_Iterable[_Union[UserInfo, _Mapping]]] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIReply(_message.Message):
    __slots__ = ("principal", "groups", "administrator", "scopes", "expires_us", "login", "narrowed", "unchecked", "level")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ADMINISTRATOR_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_US_FIELD_NUMBER: _ClassVar[int]
    LOGIN_FIELD_NUMBER: _ClassVar[int]
    NARROWED_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    principal: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    administrator: bool
    scopes: _containers.RepeatedScalarFieldContainer[str]
    expires_us: int
    login: str
    narrowed: bool
    unchecked: bool
    level: int
    def __init__(self, principal: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., administrator: _Optional[bool] = ..., scopes: _Optional[_Iterable[str]] = ..., expires_us: _Optional[int] = ..., login: _Optional[str] = ..., narrowed: _Optional[bool] = ..., unchecked: _Optional[bool] = ..., level: _Optional[int] = ...) -> None: ...

class ChangeQuotasRequest(_message.Message):
    __slots__ = ("set", "remove")
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    set: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Quota]
    remove: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Quota]
    def __init__(self, set: _Optional[_Iterable[_Union[_metadata_pb2.Quota, _Mapping]]] = ..., remove: _Optional[_Iterable[_Union[_metadata_pb2.Quota, _Mapping]]] = ...) -> None: ...

class ChangeQuotasReply(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    def __init__(self, changed: _Optional[bool] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("of",)
    OF_FIELD_NUMBER: _ClassVar[int]
    of: str
    def __init__(self, of: _Optional[str] = ...) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Quota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[_metadata_pb2.Quota, _Mapping]]] = ...) -> None: ...

class WatchRightsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
