"""What receives the answers to batches."""

from __future__ import annotations

from typing import Protocol

from semel.broker.state import DueLoad
from semel.protos.batch import BatchHeader
from semel.protos.errors import SemelError


class AckSink(Protocol):
    """Receives the answers to batches (`server/produce.py`)."""

    def ack(
        self,
        header: BatchHeader,
        status: str,
        base_offset: int,
        append_time_us: int,
        dropped: bytes = b"",
        due: DueLoad | None = None,
    ) -> None:
        """`dropped` lists messages whose ids were known, see docs/formats/batch.md; `due` is what
        is due in the second of a delayed batch."""
        ...

    def refuse(self, header: BatchHeader, error: SemelError) -> None: ...
