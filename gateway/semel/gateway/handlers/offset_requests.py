"""What requests about committed offsets share: topics with partitions, and an error for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.gateway.coordination.committed_offsets import Place
from semel.gateway.coordination.line_progress import Progress
from semel.gateway.refusals import error_code
from semel.protos.errors import CallerError, InvalidRequest, SemelError

METADATA_BYTES_MAX: Final = 4_096


def wanted_progress(
    topics: Iterable[Any],
) -> tuple[dict[Place, Progress], dict[Place, ErrorCode]]:
    """Returns the offsets of a request that may be committed, and why the others may not."""
    wanted: dict[Place, Progress] = {}
    codes: dict[Place, ErrorCode] = {}
    for topic in topics:
        for each in topic.partitions:
            place = (topic.name, each.partition_index)
            metadata = (each.committed_metadata or "").encode()
            if len(metadata) > METADATA_BYTES_MAX:
                codes[place] = ErrorCode.offset_metadata_too_large
            else:
                wanted[place] = Progress(each.committed_offset, metadata)
    return wanted, codes


def told_by_place(topics: Iterable[Any], codes: Mapping[Place, ErrorCode]) -> list[dict[str, Any]]:
    """Returns the topics of an answer: what became of each partition of the request; those without
    a code are as wanted."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": each.partition_index,
                    "error_code": codes.get((topic.name, each.partition_index), ErrorCode.none),
                }
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


def storage_code(error: SemelError) -> ErrorCode:
    """What a client hears of an offset that is not stored: whether to commit again."""
    if isinstance(error, CallerError) and not isinstance(error, InvalidRequest):
        return error_code(error)
    if isinstance(error, InvalidRequest):
        return ErrorCode.invalid_request
    return ErrorCode.coordinator_not_available
