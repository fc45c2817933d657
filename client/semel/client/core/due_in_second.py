"""How much is due in one second, as an acknowledgement tells it. Imports nothing of the client."""

from __future__ import annotations

from typing import NamedTuple

from semel.protos.v1 import broker_pb2


class DueInSecond(NamedTuple):
    """How much is due in one second of a topic on one broker group."""

    messages: int
    bytes: int
    """Length of the stored batches."""

    @classmethod
    def of(cls, ack: broker_pb2.ProduceAck) -> DueInSecond | None:
        """Returns what an acknowledgement tells; None for a batch that is not delayed."""
        if not ack.HasField("due_in_second"):
            return None
        return cls(ack.due_in_second.messages, ack.due_in_second.bytes)
