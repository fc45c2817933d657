"""Small segments and the index in memory, without files."""

from __future__ import annotations

from semel.broker.log.index import LogIndex, Roll, Write
from semel.broker.log.log_config import LogConfig
from semel.broker.log.segment import frames_at

SMALL = LogConfig(segment_bytes=20_480, ids_per_segment=4)
"""Frames begin at 12,288: room for 8,192 bytes or four frames."""


AT = frames_at(4)


def index_of(**more: object) -> LogIndex:
    return LogIndex(SMALL, first_index=1, base_term=0, **more)  # type: ignore[arg-type]


def put(index: LogIndex, *lengths: int, term: int = 1, era: int = 0) -> list[Roll | Write]:
    return index.place([bytes(length) for length in lengths], [term] * len(lengths), era)
