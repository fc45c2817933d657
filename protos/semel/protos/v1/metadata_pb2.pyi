from semel.protos.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_STATE_UNSPECIFIED: _ClassVar[TopicState]
    TOPIC_STATE_CREATING: _ClassVar[TopicState]
    TOPIC_STATE_ACTIVE: _ClassVar[TopicState]
    TOPIC_STATE_DELETING: _ClassVar[TopicState]

class GroupKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_KIND_CONSUMERS: _ClassVar[GroupKind]
    GROUP_KIND_KAFKA: _ClassVar[GroupKind]
    GROUP_KIND_GATEWAYS: _ClassVar[GroupKind]

class MoveStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_STAGE_UNSPECIFIED: _ClassVar[MoveStage]
    MOVE_STAGE_COPYING: _ClassVar[MoveStage]
    MOVE_STAGE_DECIDED: _ClassVar[MoveStage]
    MOVE_STAGE_ACTIVATED: _ClassVar[MoveStage]
    MOVE_STAGE_ABORTING: _ClassVar[MoveStage]
    MOVE_STAGE_ABORTED: _ClassVar[MoveStage]
    MOVE_STAGE_SEALING: _ClassVar[MoveStage]

class RestoreStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESTORE_STAGE_UNSPECIFIED: _ClassVar[RestoreStage]
    RESTORE_STAGE_PLACING: _ClassVar[RestoreStage]
    RESTORE_STAGE_RESTORING: _ClassVar[RestoreStage]
    RESTORE_STAGE_ENDED: _ClassVar[RestoreStage]

class MirrorStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MIRROR_STAGE_UNSPECIFIED: _ClassVar[MirrorStage]
    MIRROR_STAGE_COPYING: _ClassVar[MirrorStage]
    MIRROR_STAGE_PROMOTING: _ClassVar[MirrorStage]
    MIRROR_STAGE_PROMOTED: _ClassVar[MirrorStage]

class QuotaKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUOTA_KIND_UNSPECIFIED: _ClassVar[QuotaKind]
    QUOTA_KIND_WRITE_BYTES: _ClassVar[QuotaKind]
    QUOTA_KIND_READ_BYTES: _ClassVar[QuotaKind]
    QUOTA_KIND_MESSAGES: _ClassVar[QuotaKind]
    QUOTA_KIND_REQUESTS: _ClassVar[QuotaKind]
    QUOTA_KIND_PRODUCERS: _ClassVar[QuotaKind]
    QUOTA_KIND_GROUPS: _ClassVar[QuotaKind]
    QUOTA_KIND_TOPICS: _ClassVar[QuotaKind]
    QUOTA_KIND_DELAYED_BYTES: _ClassVar[QuotaKind]
    QUOTA_KIND_STAGED_BYTES: _ClassVar[QuotaKind]
TOPIC_STATE_UNSPECIFIED: TopicState
TOPIC_STATE_CREATING: TopicState
TOPIC_STATE_ACTIVE: TopicState
TOPIC_STATE_DELETING: TopicState
GROUP_KIND_CONSUMERS: GroupKind
GROUP_KIND_KAFKA: GroupKind
GROUP_KIND_GATEWAYS: GroupKind
MOVE_STAGE_UNSPECIFIED: MoveStage
MOVE_STAGE_COPYING: MoveStage
MOVE_STAGE_DECIDED: MoveStage
MOVE_STAGE_ACTIVATED: MoveStage
MOVE_STAGE_ABORTING: MoveStage
MOVE_STAGE_ABORTED: MoveStage
MOVE_STAGE_SEALING: MoveStage
RESTORE_STAGE_UNSPECIFIED: RestoreStage
RESTORE_STAGE_PLACING: RestoreStage
RESTORE_STAGE_RESTORING: RestoreStage
RESTORE_STAGE_ENDED: RestoreStage
MIRROR_STAGE_UNSPECIFIED: MirrorStage
MIRROR_STAGE_COPYING: MirrorStage
MIRROR_STAGE_PROMOTING: MirrorStage
MIRROR_STAGE_PROMOTED: MirrorStage
QUOTA_KIND_UNSPECIFIED: QuotaKind
QUOTA_KIND_WRITE_BYTES: QuotaKind
QUOTA_KIND_READ_BYTES: QuotaKind
QUOTA_KIND_MESSAGES: QuotaKind
QUOTA_KIND_REQUESTS: QuotaKind
QUOTA_KIND_PRODUCERS: QuotaKind
QUOTA_KIND_GROUPS: QuotaKind
QUOTA_KIND_TOPICS: QuotaKind
QUOTA_KIND_DELAYED_BYTES: QuotaKind
QUOTA_KIND_STAGED_BYTES: QuotaKind

class ClusterRecord(_message.Message):
    __slots__ = ("cluster_id", "created_us", "controller_epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    created_us: int
    controller_epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., created_us: _Optional[int] = ..., controller_epoch: _Optional[int] = ...) -> None: ...

class LevelRecord(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class TopicRecord(_message.Message):
    __slots__ = ("name", "topic_id", "state", "settings", "placement", "created_us", "settings_pending", "queues", "splits", "touched", "request_id", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_PENDING_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    state: TopicState
    settings: _common_pb2.TopicSettings
    placement: _containers.RepeatedScalarFieldContainer[int]
    created_us: int
    settings_pending: bool
    queues: _containers.RepeatedCompositeFieldContainer[QueueRecord]
    splits: _containers.RepeatedCompositeFieldContainer[SplitRecord]
    touched: _containers.RepeatedCompositeFieldContainer[QueuePlace]
    request_id: bytes
    owner: str
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., state: _Optional[_Union[TopicState, str]] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ..., placement: _Optional[_Iterable[int]] = ..., created_us: _Optional[int] = ..., settings_pending: _Optional[bool] = ..., queues: _Optional[_Iterable[_Union[QueueRecord, _Mapping]]] = ..., splits: _Optional[_Iterable[_Union[SplitRecord, _Mapping]]] = ..., touched: _Optional[_Iterable[_Union[QueuePlace, _Mapping]]] = ..., request_id: _Optional[bytes] = ..., owner: _Optional[str] = ...) -> None: ...

class QueueRecord(_message.Message):
    __slots__ = ("slot_start", "slot_end", "sealed", "parent_id")
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    slot_start: int
    slot_end: int
    sealed: bool
    parent_id: int
    def __init__(self, slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ..., sealed: _Optional[bool] = ..., parent_id: _Optional[int] = ...) -> None: ...

class SplitRecord(_message.Message):
    __slots__ = ("queue_id", "child_ids", "slot_starts")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_IDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_STARTS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    child_ids: _containers.RepeatedScalarFieldContainer[int]
    slot_starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_id: _Optional[int] = ..., child_ids: _Optional[_Iterable[int]] = ..., slot_starts: _Optional[_Iterable[int]] = ...) -> None: ...

class BrokerGroupRecord(_message.Message):
    __slots__ = ("group_id", "nodes", "term", "master_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    term: int
    master_id: int
    def __init__(self, group_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ..., term: _Optional[int] = ..., master_id: _Optional[int] = ...) -> None: ...

class FoundingRecord(_message.Message):
    __slots__ = ("group_id", "founding_id", "members", "founded", "founded_us", "previous_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FOUNDED_FIELD_NUMBER: _ClassVar[int]
    FOUNDED_US_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    founding_id: str
    members: _containers.RepeatedScalarFieldContainer[int]
    founded: bool
    founded_us: int
    previous_id: str
    def __init__(self, group_id: _Optional[int] = ..., founding_id: _Optional[str] = ..., members: _Optional[_Iterable[int]] = ..., founded: _Optional[bool] = ..., founded_us: _Optional[int] = ..., previous_id: _Optional[str] = ...) -> None: ...

class ProducerOpen(_message.Message):
    __slots__ = ("open_id", "epoch")
    OPEN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    open_id: bytes
    epoch: int
    def __init__(self, open_id: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class ProducerRecord(_message.Message):
    __slots__ = ("name", "producer_id", "epoch", "opened_us", "opens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OPENED_US_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    epoch: int
    opened_us: int
    opens: _containers.RepeatedCompositeFieldContainer[ProducerOpen]
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., opened_us: _Optional[int] = ..., opens: _Optional[_Iterable[_Union[ProducerOpen, _Mapping]]] = ...) -> None: ...

class ProducerIdsRecord(_message.Message):
    __slots__ = ("next_id",)
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    next_id: int
    def __init__(self, next_id: _Optional[int] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("topic_id", "queue_ids")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ConsumerMemberRecord(_message.Message):
    __slots__ = ("member_id", "client", "topics", "session_ms", "assignment", "grace_ms", "incarnation", "address", "protocol")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    client: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    session_ms: int
    assignment: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    grace_ms: int
    incarnation: bytes
    address: str
    protocol: str
    def __init__(self, member_id: _Optional[str] = ..., client: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., session_ms: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., grace_ms: _Optional[int] = ..., incarnation: _Optional[bytes] = ..., address: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...

class ConsumerGroupRecord(_message.Message):
    __slots__ = ("group", "generation", "members", "owner", "kind")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    group: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[ConsumerMemberRecord]
    owner: str
    kind: GroupKind
    def __init__(self, group: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ConsumerMemberRecord, _Mapping]]] = ..., owner: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ...) -> None: ...

class QueuePlace(_message.Message):
    __slots__ = ("queue_id", "group_id")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    group_id: int
    def __init__(self, queue_id: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

class MoveRecord(_message.Message):
    __slots__ = ("job", "topic", "topic_id", "queue_id", "source", "target", "stage", "begun_us", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_US_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: int
    topic: str
    topic_id: int
    queue_id: int
    source: int
    target: int
    stage: MoveStage
    begun_us: int
    reason: str
    def __init__(self, job: _Optional[int] = ..., topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., queue_id: _Optional[int] = ..., source: _Optional[int] = ..., target: _Optional[int] = ..., stage: _Optional[_Union[MoveStage, str]] = ..., begun_us: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RestoreRecord(_message.Message):
    __slots__ = ("url", "folder", "owner", "stage", "begun_us", "producer_ids_floor")
    URL_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FLOOR_FIELD_NUMBER: _ClassVar[int]
    url: str
    folder: str
    owner: str
    stage: RestoreStage
    begun_us: int
    producer_ids_floor: int
    def __init__(self, url: _Optional[str] = ..., folder: _Optional[str] = ..., owner: _Optional[str] = ..., stage: _Optional[_Union[RestoreStage, str]] = ..., begun_us: _Optional[int] = ..., producer_ids_floor: _Optional[int] = ...) -> None: ...

class RestorableQueue(_message.Message):
    __slots__ = ("queue_id", "facts", "slot_start", "slot_end", "parent_id", "child_ids", "log_start_offset", "log_end_offset", "known_end_offset", "known_us", "producers", "reopened", "delayed_messages", "groups", "groups_back", "tiered")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KNOWN_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KNOWN_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_BACK_FIELD_NUMBER: _ClassVar[int]
    TIERED_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    facts: str
    slot_start: int
    slot_end: int
    parent_id: int
    child_ids: _containers.RepeatedScalarFieldContainer[int]
    log_start_offset: int
    log_end_offset: int
    known_end_offset: int
    known_us: int
    producers: int
    reopened: int
    delayed_messages: int
    groups: int
    groups_back: int
    tiered: bool
    def __init__(self, queue_id: _Optional[int] = ..., facts: _Optional[str] = ..., slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ..., parent_id: _Optional[int] = ..., child_ids: _Optional[_Iterable[int]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., known_end_offset: _Optional[int] = ..., known_us: _Optional[int] = ..., producers: _Optional[int] = ..., reopened: _Optional[int] = ..., delayed_messages: _Optional[int] = ..., groups: _Optional[int] = ..., groups_back: _Optional[int] = ..., tiered: _Optional[bool] = ...) -> None: ...

class RestoredProducer(_message.Message):
    __slots__ = ("name", "producer_id", "epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    epoch: int
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class RestoringTopic(_message.Message):
    __slots__ = ("topic", "queues", "active")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    topic: TopicRecord
    queues: _containers.RepeatedCompositeFieldContainer[RestorableQueue]
    active: bool
    def __init__(self, topic: _Optional[_Union[TopicRecord, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[RestorableQueue, _Mapping]]] = ..., active: _Optional[bool] = ...) -> None: ...

class MirroredQueue(_message.Message):
    __slots__ = ("queue_id", "slot_start", "slot_end", "parent_id", "child_ids", "digest", "log_end_offset", "source_time_us", "delayed_messages", "groups", "producers")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_IDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    slot_start: int
    slot_end: int
    parent_id: int
    child_ids: _containers.RepeatedScalarFieldContainer[int]
    digest: bytes
    log_end_offset: int
    source_time_us: int
    delayed_messages: int
    groups: int
    producers: int
    def __init__(self, queue_id: _Optional[int] = ..., slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ..., parent_id: _Optional[int] = ..., child_ids: _Optional[_Iterable[int]] = ..., digest: _Optional[bytes] = ..., log_end_offset: _Optional[int] = ..., source_time_us: _Optional[int] = ..., delayed_messages: _Optional[int] = ..., groups: _Optional[int] = ..., producers: _Optional[int] = ...) -> None: ...

class MirroredTopic(_message.Message):
    __slots__ = ("topic", "queues", "stage")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    topic: TopicRecord
    queues: _containers.RepeatedCompositeFieldContainer[MirroredQueue]
    stage: MirrorStage
    def __init__(self, topic: _Optional[_Union[TopicRecord, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[MirroredQueue, _Mapping]]] = ..., stage: _Optional[_Union[MirrorStage, str]] = ...) -> None: ...

class MirrorsRecord(_message.Message):
    __slots__ = ("source", "producer_ids_floor")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FLOOR_FIELD_NUMBER: _ClassVar[int]
    source: str
    producer_ids_floor: int
    def __init__(self, source: _Optional[str] = ..., producer_ids_floor: _Optional[int] = ...) -> None: ...

class PrincipalGroup(_message.Message):
    __slots__ = ("name", "members")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("subject", "kind", "limit")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    kind: QuotaKind
    limit: int
    def __init__(self, subject: _Optional[str] = ..., kind: _Optional[_Union[QuotaKind, str]] = ..., limit: _Optional[int] = ...) -> None: ...

class RightsRecord(_message.Message):
    __slots__ = ("version", "rules", "groups", "quotas")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rules: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedCompositeFieldContainer[PrincipalGroup]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, version: _Optional[int] = ..., rules: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[_Union[PrincipalGroup, _Mapping]]] = ..., quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...

class UserRecord(_message.Message):
    __slots__ = ("password_hash", "changed_us", "scram")
    PASSWORD_HASH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_US_FIELD_NUMBER: _ClassVar[int]
    SCRAM_FIELD_NUMBER: _ClassVar[int]
    password_hash: str
    changed_us: int
    scram: _containers.RepeatedCompositeFieldContainer[ScramVerifier]
    def __init__(self, password_hash: _Optional[str] = ..., changed_us: _Optional[int] = ..., scram: _Optional[_Iterable[_Union[ScramVerifier, _Mapping]]] = ...) -> None: ...

class ScramVerifier(_message.Message):
    __slots__ = ("mechanism", "salt", "iterations", "stored_key", "server_key")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    def __init__(self, mechanism: _Optional[str] = ..., salt: _Optional[bytes] = ..., iterations: _Optional[int] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class ScramSecretRecord(_message.Message):
    __slots__ = ("secret",)
    SECRET_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    def __init__(self, secret: _Optional[bytes] = ...) -> None: ...
