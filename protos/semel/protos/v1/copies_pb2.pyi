from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CopyRecord(_message.Message):
    __slots__ = ("copied", "attempt")
    COPIED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    copied: _containers.RepeatedScalarFieldContainer[int]
    attempt: CopyAttempt
    def __init__(self, copied: _Optional[_Iterable[int]] = ..., attempt: _Optional[_Union[CopyAttempt, _Mapping]] = ...) -> None: ...

class CopyAttempt(_message.Message):
    __slots__ = ("producer_id", "epoch", "end", "targets", "source_topic_id")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    end: int
    targets: _containers.RepeatedCompositeFieldContainer[CopyTarget]
    source_topic_id: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[CopyTarget, _Mapping]]] = ..., source_topic_id: _Optional[int] = ...) -> None: ...

class CopyTarget(_message.Message):
    __slots__ = ("topic", "topic_id", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    queues: _containers.RepeatedCompositeFieldContainer[CopyTargetQueue]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[CopyTargetQueue, _Mapping]]] = ...) -> None: ...

class CopyTargetQueue(_message.Message):
    __slots__ = ("queue_id", "end")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    end: int
    def __init__(self, queue_id: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
