"""Giving up a delayed batch that no node can read, and that keeps the children of a split waiting.

How it works. The call is made twice: the first one says which batch is the next one of the queue,
that no member of the broker group can read it, and what is lost with it. The second one names that
batch, so that nothing else can be given up in its place.

Not here: whether a batch can be read (the broker), the question to the operator (the console).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.client.admin.descriptions import Described
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

CALL_S: Final = 30.0
"""The master asks every member for its copy first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableBatch(Described):
    """A delayed batch that no node can read."""

    topic: str
    queue: int
    due_us: int
    """When it is due, microseconds since the epoch."""
    ordinal: int
    """Its number in the queue."""
    messages: int
    """Messages that are lost with it; cancelled ones do not count."""
    bytes: int
    """Its length in the log."""
    entry: int
    """Index of the entry that holds it."""
    reason: str
    """Why it cannot be read."""


async def give_up_delayed(
    cluster: Cluster, topic: str, queue: int, batch: UnreadableBatch | None
) -> UnreadableBatch:
    """Gives up `batch`, or returns the one that could be. Raises UnknownTopic, InvalidRequest if
    there is none or it can be read, Throttled while it is repaired, Unavailable."""
    route = await cluster.topic(topic, refresh=True)
    found = next((each for each in route.every if each.key.queue_id == queue), None)
    if found is None:
        raise InvalidRequest(f"topic {topic!r} has no queue {queue}")
    request = broker_pb2.GiveUpDelayedRequest(queue=queue_ref(found.key))
    if batch is not None:
        request.batch.due_us, request.batch.ordinal = batch.due_us, batch.ordinal
    home = cluster.routes.home(found)
    reply = await cluster.call_master(home, "GiveUpDelayed", request, CALL_S)
    return UnreadableBatch(
        topic=topic,
        queue=queue,
        due_us=reply.batch.due_us,
        ordinal=reply.batch.ordinal,
        messages=reply.messages,
        bytes=reply.bytes,
        entry=reply.entry,
        reason=reply.reason,
    )
