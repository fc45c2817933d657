"""The topics that members of a group of consumers have subscribed to. Pure.

Format. What a consumer tells with its protocols is an int16 version and an entity of Kafka's
ConsumerProtocolSubscription; each version begins with what the one before has. Groups of other
protocol types tell something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription

from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.schema_reader import read
from semel.protos.errors import InvalidRequest

CONSUMERS: Final = "consumer"
"""The protocol type of consumers."""
_VERSION_BYTES: Final = 2


def subscribed_topics(members: Iterable[KafkaMember]) -> frozenset[str] | None:
    """Returns the topics that any of these consumers has subscribed to; None if one of them says
    what cannot be read: then it may be any topic."""
    topics: set[str] = set()
    for member in members:
        for metadata in member.protocols.values():
            try:
                found, _ = read(ConsumerProtocolSubscription, memoryview(metadata)[_VERSION_BYTES:])
            except InvalidRequest:
                return None
            topics.update(found.topics)
    return frozenset(topics)
