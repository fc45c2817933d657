from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import transaction_records_pb2 as _transaction_records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MoveStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_STEP_UNSPECIFIED: _ClassVar[MoveStep]
    MOVE_STEP_BEGIN: _ClassVar[MoveStep]
    MOVE_STEP_FLOOR: _ClassVar[MoveStep]
    MOVE_STEP_SEAL: _ClassVar[MoveStep]
    MOVE_STEP_PART: _ClassVar[MoveStep]
    MOVE_STEP_INGEST: _ClassVar[MoveStep]
    MOVE_STEP_ACTIVATE: _ClassVar[MoveStep]
    MOVE_STEP_FORWARD: _ClassVar[MoveStep]
    MOVE_STEP_UNSEAL: _ClassVar[MoveStep]
    MOVE_STEP_ABORT: _ClassVar[MoveStep]
    MOVE_STEP_IDS: _ClassVar[MoveStep]
    MOVE_STEP_SUPERSEDE: _ClassVar[MoveStep]
    MOVE_STEP_HOLD: _ClassVar[MoveStep]
    MOVE_STEP_MIRROR: _ClassVar[MoveStep]
    MOVE_STEP_SETTLE: _ClassVar[MoveStep]
    MOVE_STEP_PROMOTE: _ClassVar[MoveStep]
    MOVE_STEP_UNMIRROR: _ClassVar[MoveStep]
MOVE_STEP_UNSPECIFIED: MoveStep
MOVE_STEP_BEGIN: MoveStep
MOVE_STEP_FLOOR: MoveStep
MOVE_STEP_SEAL: MoveStep
MOVE_STEP_PART: MoveStep
MOVE_STEP_INGEST: MoveStep
MOVE_STEP_ACTIVATE: MoveStep
MOVE_STEP_FORWARD: MoveStep
MOVE_STEP_UNSEAL: MoveStep
MOVE_STEP_ABORT: MoveStep
MOVE_STEP_IDS: MoveStep
MOVE_STEP_SUPERSEDE: MoveStep
MOVE_STEP_HOLD: MoveStep
MOVE_STEP_MIRROR: MoveStep
MOVE_STEP_SETTLE: MoveStep
MOVE_STEP_PROMOTE: MoveStep
MOVE_STEP_UNMIRROR: MoveStep

class ControlRecord(_message.Message):
    __slots__ = ("create_queue", "delete_queue", "alter_topic", "fence", "trim", "expire_producers", "acquire_lock", "release_lock", "commit_offsets", "reset_offset", "delete_group", "feature_level", "split_queue", "transaction", "move_queue", "release_delayed", "check_ids", "evict_ids", "cancel_delayed", "compact", "tiered", "forget", "lose_memory", "part_delayed", "give_up_delayed")
    CREATE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    DELETE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    ALTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TRIM_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_LOCK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_LOCK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RESET_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETE_GROUP_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    SPLIT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    MOVE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_DELAYED_FIELD_NUMBER: _ClassVar[int]
    CHECK_IDS_FIELD_NUMBER: _ClassVar[int]
    EVICT_IDS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_DELAYED_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    TIERED_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    LOSE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    PART_DELAYED_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_DELAYED_FIELD_NUMBER: _ClassVar[int]
    create_queue: CreateQueue
    delete_queue: DeleteQueue
    alter_topic: AlterTopic
    fence: Fence
    trim: Trim
    expire_producers: ExpireProducers
    acquire_lock: AcquireLock
    release_lock: ReleaseLock
    commit_offsets: CommitOffsets
    reset_offset: ResetOffset
    delete_group: DeleteGroup
    feature_level: FeatureLevel
    split_queue: SplitQueue
    transaction: _transaction_records_pb2.TransactionRecord
    move_queue: MoveQueue
    release_delayed: ReleaseDelayed
    check_ids: CheckIds
    evict_ids: EvictIds
    cancel_delayed: CancelDelayed
    compact: Compact
    tiered: Tiered
    forget: Forget
    lose_memory: LoseMemory
    part_delayed: PartDelayed
    give_up_delayed: GiveUpDelayed
    def __init__(self, create_queue: _Optional[_Union[CreateQueue, _Mapping]] = ..., delete_queue: _Optional[_Union[DeleteQueue, _Mapping]] = ..., alter_topic: _Optional[_Union[AlterTopic, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., trim: _Optional[_Union[Trim, _Mapping]] = ..., expire_producers: _Optional[_Union[ExpireProducers, _Mapping]] = ..., acquire_lock: _Optional[_Union[AcquireLock, _Mapping]] = ..., release_lock: _Optional[_Union[ReleaseLock, _Mapping]] = ..., commit_offsets: _Optional[_Union[CommitOffsets, _Mapping]] = ..., reset_offset: _Optional[_Union[ResetOffset, _Mapping]] = ..., delete_group: _Optional[_Union[DeleteGroup, _Mapping]] = ..., feature_level: _Optional[_Union[FeatureLevel, _Mapping]] = ..., split_queue: _Optional[_Union[SplitQueue, _Mapping]] = ..., transaction: _Optional[_Union[_transaction_records_pb2.TransactionRecord, _Mapping]] = ..., move_queue: _Optional[_Union[MoveQueue, _Mapping]] = ..., release_delayed: _Optional[_Union[ReleaseDelayed, _Mapping]] = ..., check_ids: _Optional[_Union[CheckIds, _Mapping]] = ..., evict_ids: _Optional[_Union[EvictIds, _Mapping]] = ..., cancel_delayed: _Optional[_Union[CancelDelayed, _Mapping]] = ..., compact: _Optional[_Union[Compact, _Mapping]] = ..., tiered: _Optional[_Union[Tiered, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., lose_memory: _Optional[_Union[LoseMemory, _Mapping]] = ..., part_delayed: _Optional[_Union[PartDelayed, _Mapping]] = ..., give_up_delayed: _Optional[_Union[GiveUpDelayed, _Mapping]] = ...) -> None: ...

class Tiered(_message.Message):
    __slots__ = ("queue", "number", "length", "sha256", "previous_sha256", "tier_start", "tier_end")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SHA256_FIELD_NUMBER: _ClassVar[int]
    TIER_START_FIELD_NUMBER: _ClassVar[int]
    TIER_END_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    number: int
    length: int
    sha256: bytes
    previous_sha256: bytes
    tier_start: int
    tier_end: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., number: _Optional[int] = ..., length: _Optional[int] = ..., sha256: _Optional[bytes] = ..., previous_sha256: _Optional[bytes] = ..., tier_start: _Optional[int] = ..., tier_end: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("queue", "local_start")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_START_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    local_start: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., local_start: _Optional[int] = ...) -> None: ...

class LoseMemory(_message.Message):
    __slots__ = ("queue", "from_offset", "to_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    from_offset: int
    to_offset: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ...) -> None: ...

class Compact(_message.Message):
    __slots__ = ("queue", "from_offset", "to_offset", "fates", "places_crc", "compacted_to", "tombstones", "tombstones_below")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FATES_FIELD_NUMBER: _ClassVar[int]
    PLACES_CRC_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_TO_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_BELOW_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    from_offset: int
    to_offset: int
    fates: bytes
    places_crc: int
    compacted_to: int
    tombstones: int
    tombstones_below: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., fates: _Optional[bytes] = ..., places_crc: _Optional[int] = ..., compacted_to: _Optional[int] = ..., tombstones: _Optional[int] = ..., tombstones_below: _Optional[int] = ...) -> None: ...

class CreateQueue(_message.Message):
    __slots__ = ("queue", "topic", "slot_start", "slot_end", "settings")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    topic: str
    slot_start: int
    slot_end: int
    settings: _common_pb2.TopicSettings
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., topic: _Optional[str] = ..., slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ...) -> None: ...

class ChildQueue(_message.Message):
    __slots__ = ("queue_id", "slot_start", "slot_end")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_START_FIELD_NUMBER: _ClassVar[int]
    SLOT_END_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    slot_start: int
    slot_end: int
    def __init__(self, queue_id: _Optional[int] = ..., slot_start: _Optional[int] = ..., slot_end: _Optional[int] = ...) -> None: ...

class SplitQueue(_message.Message):
    __slots__ = ("queue", "children")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    children: _containers.RepeatedCompositeFieldContainer[ChildQueue]
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., children: _Optional[_Iterable[_Union[ChildQueue, _Mapping]]] = ...) -> None: ...

class DeleteQueue(_message.Message):
    __slots__ = ("queue", "noted")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    noted: bool
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., noted: _Optional[bool] = ...) -> None: ...

class AlterTopic(_message.Message):
    __slots__ = ("topic_id", "settings")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    settings: _common_pb2.TopicSettings
    def __init__(self, topic_id: _Optional[int] = ..., settings: _Optional[_Union[_common_pb2.TopicSettings, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("queues", "producer_id", "epoch", "session", "name", "after_expiry")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    producer_id: int
    epoch: int
    session: int
    name: str
    after_expiry: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., session: _Optional[int] = ..., name: _Optional[str] = ..., after_expiry: _Optional[bool] = ...) -> None: ...

class Trim(_message.Message):
    __slots__ = ("queue", "log_start_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    log_start_offset: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class ExpireProducers(_message.Message):
    __slots__ = ("queue", "producer_ids", "epoch_floor")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FLOOR_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    epoch_floor: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., epoch_floor: _Optional[int] = ...) -> None: ...

class AcquireLock(_message.Message):
    __slots__ = ("group", "queue", "member_id", "generation", "lock_ms", "session_ms", "beside_parents", "drop_staged")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOCK_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    BESIDE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    DROP_STAGED_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: _common_pb2.QueueRef
    member_id: str
    generation: int
    lock_ms: int
    session_ms: int
    beside_parents: bool
    drop_staged: bool
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., lock_ms: _Optional[int] = ..., session_ms: _Optional[int] = ..., beside_parents: _Optional[bool] = ..., drop_staged: _Optional[bool] = ...) -> None: ...

class ReleaseLock(_message.Message):
    __slots__ = ("group", "queue", "token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: _common_pb2.QueueRef
    token: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., token: _Optional[int] = ...) -> None: ...

class CommitOffsets(_message.Message):
    __slots__ = ("group", "commits")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    group: str
    commits: _containers.RepeatedCompositeFieldContainer[QueueCommit]
    def __init__(self, group: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[QueueCommit, _Mapping]]] = ...) -> None: ...

class QueueCommit(_message.Message):
    __slots__ = ("queue", "token", "offset", "metadata", "metadata_version", "may_lower")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METADATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAY_LOWER_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    token: int
    offset: int
    metadata: bytes
    metadata_version: int
    may_lower: bool
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., token: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[bytes] = ..., metadata_version: _Optional[int] = ..., may_lower: _Optional[bool] = ...) -> None: ...

class ResetOffset(_message.Message):
    __slots__ = ("group", "queue", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: _common_pb2.QueueRef
    offset: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class DeleteGroup(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.QueueRef]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.QueueRef, _Mapping]]] = ...) -> None: ...

class FeatureLevel(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class MembershipRecord(_message.Message):
    __slots__ = ("voters", "learners")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    learners: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeAddress]
    def __init__(self, voters: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ..., learners: _Optional[_Iterable[_Union[_common_pb2.NodeAddress, _Mapping]]] = ...) -> None: ...

class MoveQueue(_message.Message):
    __slots__ = ("queue", "job", "group_id", "step", "create", "offset", "part", "digest", "ids", "ids_from", "ids_to", "first_arrival", "seed", "arrivals", "last", "horizon_us", "waits_from", "waiting", "source_time_us", "source", "mirror_epoch", "ordinal_to")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    IDS_FROM_FIELD_NUMBER: _ClassVar[int]
    IDS_TO_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    HORIZON_US_FIELD_NUMBER: _ClassVar[int]
    WAITS_FROM_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MIRROR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_TO_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    job: int
    group_id: int
    step: MoveStep
    create: CreateQueue
    offset: int
    part: bytes
    digest: bytes
    ids: bytes
    ids_from: int
    ids_to: int
    first_arrival: int
    seed: bytes
    arrivals: bytes
    last: bool
    horizon_us: int
    waits_from: int
    waiting: bool
    source_time_us: int
    source: str
    mirror_epoch: int
    ordinal_to: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., job: _Optional[int] = ..., group_id: _Optional[int] = ..., step: _Optional[_Union[MoveStep, str]] = ..., create: _Optional[_Union[CreateQueue, _Mapping]] = ..., offset: _Optional[int] = ..., part: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., ids_from: _Optional[int] = ..., ids_to: _Optional[int] = ..., first_arrival: _Optional[int] = ..., seed: _Optional[bytes] = ..., arrivals: _Optional[bytes] = ..., last: _Optional[bool] = ..., horizon_us: _Optional[int] = ..., waits_from: _Optional[int] = ..., waiting: _Optional[bool] = ..., source_time_us: _Optional[int] = ..., source: _Optional[str] = ..., mirror_epoch: _Optional[int] = ..., ordinal_to: _Optional[int] = ...) -> None: ...

class ReleaseDelayed(_message.Message):
    __slots__ = ("queue", "until_us", "batches", "base_offset", "messages", "below_ordinal")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BELOW_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    until_us: int
    batches: int
    base_offset: int
    messages: int
    below_ordinal: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., until_us: _Optional[int] = ..., batches: _Optional[int] = ..., base_offset: _Optional[int] = ..., messages: _Optional[int] = ..., below_ordinal: _Optional[int] = ...) -> None: ...

class PartDelayed(_message.Message):
    __slots__ = ("queue", "batches")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    batches: _containers.RepeatedCompositeFieldContainer[PartedBatch]
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[PartedBatch, _Mapping]]] = ...) -> None: ...

class PartedBatch(_message.Message):
    __slots__ = ("due_us", "ordinal", "entry", "position", "parts", "cancelled", "cancelled_crc")
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_CRC_FIELD_NUMBER: _ClassVar[int]
    due_us: int
    ordinal: int
    entry: int
    position: int
    parts: int
    cancelled: int
    cancelled_crc: int
    def __init__(self, due_us: _Optional[int] = ..., ordinal: _Optional[int] = ..., entry: _Optional[int] = ..., position: _Optional[int] = ..., parts: _Optional[int] = ..., cancelled: _Optional[int] = ..., cancelled_crc: _Optional[int] = ...) -> None: ...

class GiveUpDelayed(_message.Message):
    __slots__ = ("queue", "due_us", "ordinal", "entry", "position", "messages")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    due_us: int
    ordinal: int
    entry: int
    position: int
    messages: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., due_us: _Optional[int] = ..., ordinal: _Optional[int] = ..., entry: _Optional[int] = ..., position: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class CheckIds(_message.Message):
    __slots__ = ("queue", "producer_id", "base_sequence", "count", "content_crc", "first_arrival", "ids", "duplicates", "conflicts", "dropped")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_CRC_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    producer_id: int
    base_sequence: int
    count: int
    content_crc: int
    first_arrival: int
    ids: int
    duplicates: int
    conflicts: int
    dropped: bytes
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., producer_id: _Optional[int] = ..., base_sequence: _Optional[int] = ..., count: _Optional[int] = ..., content_crc: _Optional[int] = ..., first_arrival: _Optional[int] = ..., ids: _Optional[int] = ..., duplicates: _Optional[int] = ..., conflicts: _Optional[int] = ..., dropped: _Optional[bytes] = ...) -> None: ...

class EvictIds(_message.Message):
    __slots__ = ("topic_id", "first_arrival")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    first_arrival: int
    def __init__(self, topic_id: _Optional[int] = ..., first_arrival: _Optional[int] = ...) -> None: ...

class CancelDelayed(_message.Message):
    __slots__ = ("queue", "due_us", "ordinal", "row", "arrival", "entry")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    queue: _common_pb2.QueueRef
    due_us: int
    ordinal: int
    row: int
    arrival: int
    entry: int
    def __init__(self, queue: _Optional[_Union[_common_pb2.QueueRef, _Mapping]] = ..., due_us: _Optional[int] = ..., ordinal: _Optional[int] = ..., row: _Optional[int] = ..., arrival: _Optional[int] = ..., entry: _Optional[int] = ...) -> None: ...

class QueueSlice(_message.Message):
    __slots__ = ("version", "queue", "rows", "groups", "extents", "delayed", "delayed_batches", "origins")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    version: int
    queue: bytes
    rows: bytes
    groups: bytes
    extents: int
    delayed: bytes
    delayed_batches: int
    origins: bytes
    def __init__(self, version: _Optional[int] = ..., queue: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., groups: _Optional[bytes] = ..., extents: _Optional[int] = ..., delayed: _Optional[bytes] = ..., delayed_batches: _Optional[int] = ..., origins: _Optional[bytes] = ...) -> None: ...
