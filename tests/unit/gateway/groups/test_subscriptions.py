"""The topics that members have subscribed to."""

from __future__ import annotations

import struct

import pytest

from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.groups.subscriptions import subscribed_topics


def metadata(*topics: str, version: int = 0) -> bytes:
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    later = struct.pack(">i", 0) if version else b""
    return struct.pack(">hi", version, len(topics)) + named + struct.pack(">i", -1) + later


def member(**protocols: bytes) -> KafkaMember:
    return KafkaMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="h",
        session_ms=1,
        rebalance_ms=1,
        protocols=protocols,
        deadline_ms=1,
    )


def test_the_topics_of_all_members_and_protocols_count() -> None:
    members = [
        member(range=metadata("a", "b"), sticky=metadata("b", "c", version=3)),
        member(range=metadata()),
    ]
    assert subscribed_topics(members) == frozenset({"a", "b", "c"})
    assert subscribed_topics([]) == frozenset()


@pytest.mark.parametrize("wrong", [b"", b"\0", b"\0\0\0\0\0\2\0\1a", metadata("topic")[:9]])
def test_what_cannot_be_read_may_be_any_topic(wrong: bytes) -> None:
    assert subscribed_topics([member(range=metadata("a")), member(range=wrong)]) is None
