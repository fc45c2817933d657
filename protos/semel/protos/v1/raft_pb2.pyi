from semel.protos.v1 import common_pb2 as _common_pb2
from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_STATE_UNSPECIFIED: _ClassVar[EntryState]
    ENTRY_STATE_HELD: _ClassVar[EntryState]
    ENTRY_STATE_ABSENT: _ClassVar[EntryState]
    ENTRY_STATE_TORN: _ClassVar[EntryState]
    ENTRY_STATE_DAMAGED: _ClassVar[EntryState]
    ENTRY_STATE_UNKNOWN: _ClassVar[EntryState]
ENTRY_STATE_UNSPECIFIED: EntryState
ENTRY_STATE_HELD: EntryState
ENTRY_STATE_ABSENT: EntryState
ENTRY_STATE_TORN: EntryState
ENTRY_STATE_DAMAGED: EntryState
ENTRY_STATE_UNKNOWN: EntryState

class OpenStreamRequest(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "founding_id", "to_node_id", "address", "levels", "plaintext_wanted")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    PLAINTEXT_WANTED_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    founding_id: str
    to_node_id: int
    address: str
    levels: _common_pb2.Levels
    plaintext_wanted: bool
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., founding_id: _Optional[str] = ..., to_node_id: _Optional[int] = ..., address: _Optional[str] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., plaintext_wanted: _Optional[bool] = ...) -> None: ...

class OpenStreamReply(_message.Message):
    __slots__ = ("port", "ticket", "feature_level_max", "levels", "plaintext")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    PLAINTEXT_FIELD_NUMBER: _ClassVar[int]
    port: int
    ticket: bytes
    feature_level_max: int
    levels: _common_pb2.Levels
    plaintext: bool
    def __init__(self, port: _Optional[int] = ..., ticket: _Optional[bytes] = ..., feature_level_max: _Optional[int] = ..., levels: _Optional[_Union[_common_pb2.Levels, _Mapping]] = ..., plaintext: _Optional[bool] = ...) -> None: ...

class PeerCaller(_message.Message):
    __slots__ = ("cluster_id", "group_id", "node_id", "founding_id", "to_node_id")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group_id: int
    node_id: int
    founding_id: str
    to_node_id: int
    def __init__(self, cluster_id: _Optional[str] = ..., group_id: _Optional[int] = ..., node_id: _Optional[int] = ..., founding_id: _Optional[str] = ..., to_node_id: _Optional[int] = ...) -> None: ...

class PullCheckpointRequest(_message.Message):
    __slots__ = ("index", "position", "caller")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    index: int
    position: int
    caller: PeerCaller
    def __init__(self, index: _Optional[int] = ..., position: _Optional[int] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class CheckpointChunk(_message.Message):
    __slots__ = ("index", "term", "total_bytes", "position", "data", "payload_crc")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    total_bytes: int
    position: int
    data: bytes
    payload_crc: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., total_bytes: _Optional[int] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ..., payload_crc: _Optional[int] = ...) -> None: ...

class RecordRef(_message.Message):
    __slots__ = ("index", "position", "length")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    index: int
    position: int
    length: int
    def __init__(self, index: _Optional[int] = ..., position: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class EntryRef(_message.Message):
    __slots__ = ("index", "term")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class PullFramesRequest(_message.Message):
    __slots__ = ("entries", "caller")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EntryRef]
    caller: PeerCaller
    def __init__(self, entries: _Optional[_Iterable[_Union[EntryRef, _Mapping]]] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class FrameChunk(_message.Message):
    __slots__ = ("index", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PullRecordsRequest(_message.Message):
    __slots__ = ("records", "applied_index", "caller")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[RecordRef]
    applied_index: int
    caller: PeerCaller
    def __init__(self, records: _Optional[_Iterable[_Union[RecordRef, _Mapping]]] = ..., applied_index: _Optional[int] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class RecordChunk(_message.Message):
    __slots__ = ("record", "data", "crc", "gone", "damaged")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    record: RecordRef
    data: bytes
    crc: int
    gone: bool
    damaged: bool
    def __init__(self, record: _Optional[_Union[RecordRef, _Mapping]] = ..., data: _Optional[bytes] = ..., crc: _Optional[int] = ..., gone: _Optional[bool] = ..., damaged: _Optional[bool] = ...) -> None: ...

class DescribeEntriesRequest(_message.Message):
    __slots__ = ("entries", "caller")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EntryRef]
    caller: PeerCaller
    def __init__(self, entries: _Optional[_Iterable[_Union[EntryRef, _Mapping]]] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class DescribeEntriesReply(_message.Message):
    __slots__ = ("node_id", "states")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    states: _containers.RepeatedScalarFieldContainer[EntryState]
    def __init__(self, node_id: _Optional[int] = ..., states: _Optional[_Iterable[_Union[EntryState, str]]] = ...) -> None: ...

class PullIdsRequest(_message.Message):
    __slots__ = ("topic_id", "seed", "arrival", "applied_index", "caller")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    seed: bytes
    arrival: int
    applied_index: int
    caller: PeerCaller
    def __init__(self, topic_id: _Optional[int] = ..., seed: _Optional[bytes] = ..., arrival: _Optional[int] = ..., applied_index: _Optional[int] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class IdsChunk(_message.Message):
    __slots__ = ("lacking", "first_arrival", "end_arrival", "ids", "id_columns", "place_columns", "crc")
    LACKING_FIELD_NUMBER: _ClassVar[int]
    FIRST_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    END_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ID_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PLACE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    lacking: bool
    first_arrival: int
    end_arrival: int
    ids: int
    id_columns: bytes
    place_columns: bytes
    crc: int
    def __init__(self, lacking: _Optional[bool] = ..., first_arrival: _Optional[int] = ..., end_arrival: _Optional[int] = ..., ids: _Optional[int] = ..., id_columns: _Optional[bytes] = ..., place_columns: _Optional[bytes] = ..., crc: _Optional[int] = ...) -> None: ...

class PullBodiesRequest(_message.Message):
    __slots__ = ("records", "caller")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[RecordRef]
    caller: PeerCaller
    def __init__(self, records: _Optional[_Iterable[_Union[RecordRef, _Mapping]]] = ..., caller: _Optional[_Union[PeerCaller, _Mapping]] = ...) -> None: ...

class BodyChunk(_message.Message):
    __slots__ = ("record", "data")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    record: RecordRef
    data: bytes
    def __init__(self, record: _Optional[_Union[RecordRef, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...
