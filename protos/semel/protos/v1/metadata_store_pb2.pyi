from semel.protos.v1 import isolation_pb2 as _isolation_pb2
from semel.protos.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControllerMembership(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROLLER_MEMBERSHIP_UNSPECIFIED: _ClassVar[ControllerMembership]
    CONTROLLER_MEMBERSHIP_UNFORMED: _ClassVar[ControllerMembership]
    CONTROLLER_MEMBERSHIP_NON_COUNTING: _ClassVar[ControllerMembership]
    CONTROLLER_MEMBERSHIP_VOTER: _ClassVar[ControllerMembership]
CONTROLLER_MEMBERSHIP_UNSPECIFIED: ControllerMembership
CONTROLLER_MEMBERSHIP_UNFORMED: ControllerMembership
CONTROLLER_MEMBERSHIP_NON_COUNTING: ControllerMembership
CONTROLLER_MEMBERSHIP_VOTER: ControllerMembership

class GroupHello(_message.Message):
    __slots__ = ("cluster_id", "sender", "receiver", "members", "membership")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    sender: int
    receiver: int
    members: _containers.RepeatedScalarFieldContainer[int]
    membership: ControllerMembership
    def __init__(self, cluster_id: _Optional[str] = ..., sender: _Optional[int] = ..., receiver: _Optional[int] = ..., members: _Optional[_Iterable[int]] = ..., membership: _Optional[_Union[ControllerMembership, str]] = ...) -> None: ...

class MembershipReply(_message.Message):
    __slots__ = ("membership", "term", "has_history")
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HAS_HISTORY_FIELD_NUMBER: _ClassVar[int]
    membership: ControllerMembership
    term: int
    has_history: bool
    def __init__(self, membership: _Optional[_Union[ControllerMembership, str]] = ..., term: _Optional[int] = ..., has_history: _Optional[bool] = ...) -> None: ...

class LinkWelcome(_message.Message):
    __slots__ = ("membership",)
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    membership: ControllerMembership
    def __init__(self, membership: _Optional[_Union[ControllerMembership, str]] = ...) -> None: ...

class LinkFrame(_message.Message):
    __slots__ = ("hello", "message")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    hello: GroupHello
    message: GroupMessage
    def __init__(self, hello: _Optional[_Union[GroupHello, _Mapping]] = ..., message: _Optional[_Union[GroupMessage, _Mapping]] = ...) -> None: ...

class GroupMessage(_message.Message):
    __slots__ = ("term", "append", "dump", "next", "vote", "grant", "pre_vote", "pre_grant", "forward", "newer_term")
    TERM_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    PRE_GRANT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    NEWER_TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    append: AppendEntries
    dump: DumpChunk
    next: NextIndex
    vote: RequestVote
    grant: GrantVote
    pre_vote: PreVote
    pre_grant: GrantPreVote
    forward: ForwardCommand
    newer_term: NewerTerm
    def __init__(self, term: _Optional[int] = ..., append: _Optional[_Union[AppendEntries, _Mapping]] = ..., dump: _Optional[_Union[DumpChunk, _Mapping]] = ..., next: _Optional[_Union[NextIndex, _Mapping]] = ..., vote: _Optional[_Union[RequestVote, _Mapping]] = ..., grant: _Optional[_Union[GrantVote, _Mapping]] = ..., pre_vote: _Optional[_Union[PreVote, _Mapping]] = ..., pre_grant: _Optional[_Union[GrantPreVote, _Mapping]] = ..., forward: _Optional[_Union[ForwardCommand, _Mapping]] = ..., newer_term: _Optional[_Union[NewerTerm, _Mapping]] = ...) -> None: ...

class GroupEntry(_message.Message):
    __slots__ = ("index", "term", "command")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    command: bytes
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., command: _Optional[bytes] = ...) -> None: ...

class AppendEntries(_message.Message):
    __slots__ = ("previous_index", "previous_term", "entries", "commit_index")
    PREVIOUS_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_TERM_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    previous_index: int
    previous_term: int
    entries: _containers.RepeatedCompositeFieldContainer[GroupEntry]
    commit_index: int
    def __init__(self, previous_index: _Optional[int] = ..., previous_term: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[GroupEntry, _Mapping]]] = ..., commit_index: _Optional[int] = ...) -> None: ...

class DumpChunk(_message.Message):
    __slots__ = ("commit_index", "index", "position", "total_bytes", "data")
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    commit_index: int
    index: int
    position: int
    total_bytes: int
    data: bytes
    def __init__(self, commit_index: _Optional[int] = ..., index: _Optional[int] = ..., position: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class NextIndex(_message.Message):
    __slots__ = ("next_index", "reset", "success")
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    next_index: int
    reset: bool
    success: bool
    def __init__(self, next_index: _Optional[int] = ..., reset: _Optional[bool] = ..., success: _Optional[bool] = ...) -> None: ...

class RequestVote(_message.Message):
    __slots__ = ("last_index", "last_term")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class GrantVote(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PreVote(_message.Message):
    __slots__ = ("last_index", "last_term", "round")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    round: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class GrantPreVote(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class ForwardCommand(_message.Message):
    __slots__ = ("command",)
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    command: bytes
    def __init__(self, command: _Optional[bytes] = ...) -> None: ...

class NewerTerm(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreCommand(_message.Message):
    __slots__ = ("transaction", "barrier")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    transaction: StoreTransaction
    barrier: bytes
    def __init__(self, transaction: _Optional[_Union[StoreTransaction, _Mapping]] = ..., barrier: _Optional[bytes] = ...) -> None: ...

class StoreTransaction(_message.Message):
    __slots__ = ("controller_id", "incarnation", "sequence", "resolved_below", "checks", "puts", "deletes", "revision_min")
    class PutsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_BELOW_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    REVISION_MIN_FIELD_NUMBER: _ClassVar[int]
    controller_id: int
    incarnation: int
    sequence: int
    resolved_below: int
    checks: _containers.RepeatedCompositeFieldContainer[ExpectedVersion]
    puts: _containers.ScalarMap[str, bytes]
    deletes: _containers.RepeatedScalarFieldContainer[str]
    revision_min: int
    def __init__(self, controller_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., resolved_below: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[ExpectedVersion, _Mapping]]] = ..., puts: _Optional[_Mapping[str, bytes]] = ..., deletes: _Optional[_Iterable[str]] = ..., revision_min: _Optional[int] = ...) -> None: ...

class ExpectedVersion(_message.Message):
    __slots__ = ("key", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class StoreDump(_message.Message):
    __slots__ = ("last", "previous", "revision", "values", "sessions")
    LAST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    last: GroupEntry
    previous: GroupEntry
    revision: int
    values: _containers.RepeatedCompositeFieldContainer[DumpedValue]
    sessions: _containers.RepeatedCompositeFieldContainer[DumpedSession]
    def __init__(self, last: _Optional[_Union[GroupEntry, _Mapping]] = ..., previous: _Optional[_Union[GroupEntry, _Mapping]] = ..., revision: _Optional[int] = ..., values: _Optional[_Iterable[_Union[DumpedValue, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[DumpedSession, _Mapping]]] = ...) -> None: ...

class DumpedValue(_message.Message):
    __slots__ = ("key", "version", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    value: bytes
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class DumpedSession(_message.Message):
    __slots__ = ("controller_id", "incarnation", "resolved_below", "results")
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_BELOW_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    controller_id: int
    incarnation: int
    resolved_below: int
    results: _containers.RepeatedCompositeFieldContainer[DumpedResult]
    def __init__(self, controller_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., resolved_below: _Optional[int] = ..., results: _Optional[_Iterable[_Union[DumpedResult, _Mapping]]] = ...) -> None: ...

class DumpedResult(_message.Message):
    __slots__ = ("sequence", "revision", "conflict")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    revision: int
    conflict: str
    def __init__(self, sequence: _Optional[int] = ..., revision: _Optional[int] = ..., conflict: _Optional[str] = ...) -> None: ...
