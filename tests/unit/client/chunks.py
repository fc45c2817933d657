"""Chunks of messages and the routes they take, for the tests of a client."""

from __future__ import annotations

from typing import Any

from semel.client.core.batching import ROW_BYTES, Chunk, Part
from semel.client.core.routing import TopicRoute, topic_route
from semel.client.core.splitting import Heir
from semel.protos.few_rows import FewRows
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.slots import split_slots
from semel.protos.v1 import control_pb2, controller_pb2

SPLIT = control_pb2.SplitQueue(
    queue={"topic_id": 5, "queue_id": 0},
    children=[
        {"queue_id": 2, "slot_start": 0, "slot_end": 9_000},
        {"queue_id": 3, "slot_start": 9_000, "slot_end": 20_000},
        {"queue_id": 4, "slot_start": 20_000, "slot_end": 32_768},
    ],
)


def topic(queues: int) -> TopicRoute:
    message = controller_pb2.TopicRoute(name="t", topic_id=5)
    # Routes may come in any order.
    for number, (start, end) in reversed(list(enumerate(split_slots(queues)))):
        message.queues.add(queue_id=number, group_id=1, slot_start=start, slot_end=end)
    return topic_route(message)


def chunk_of(values: list[bytes], **columns: Any) -> Chunk:
    chunk = Chunk("t", 1_000, 0.0)
    chunk.values = values
    chunk.count = len(values)
    chunk.bytes = sum(len(value) + ROW_BYTES for value in values)
    for name, column in columns.items():
        setattr(chunk, name, column)
    return chunk


def values_of(part: Part) -> list[bytes]:
    columns = part.columns
    assert columns is not None
    if isinstance(columns, FewRows):
        return columns.values
    listed: list[bytes] = columns.values.to_pylist()
    return listed


def heirs(lasts: tuple[int, ...] = (-1, -1, -1)) -> list[Heir]:
    return [
        Heir(
            key=QueueKey(TopicId(5), QueueId(child.queue_id)),
            slot_start=child.slot_start,
            last_sequence=last,
        )
        for child, last in zip(SPLIT.children, lasts, strict=True)
    ]
