"""The identifiers that every part shares, as types of their own.

They are plain integers at run time; mypy refuses an offset where an index is wanted. Offsets and
sequences count messages; indexes and terms are Raft's.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

TopicId = NewType("TopicId", int)
"""Random, 63 bits: a topic that is deleted and created again is another topic."""

QueueId = NewType("QueueId", int)
"""Unsigned 32 bits, unique within a topic and never used again."""

ProducerId = NewType("ProducerId", int)
"""1 and up, below 2**63; given out by the controller."""

NodeId = NewType("NodeId", int)
"""One broker node, 1 and up; 0 means "none" in messages."""

GroupId = NewType("GroupId", int)
"""One broker group (not a consumer group, which has a name)."""

Term = NewType("Term", int)
Index = NewType("Index", int)
"""Position of an entry in a broker group's log, 1 and up."""

Offset = NewType("Offset", int)
"""Position of a message in a queue, 0 and up, dense."""

Sequence = NewType("Sequence", int)
"""A producer's own number of a message in a queue."""

NO_SEQUENCE: Final = Sequence(-1)
"""The last sequence of a producer that has stored nothing yet."""


class QueueKey(NamedTuple):
    """The identity of a queue, on the wire and on disk."""

    topic_id: TopicId
    queue_id: QueueId
