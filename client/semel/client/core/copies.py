"""The *record* that a queue's owner leaves for the next owner about the copies it makes.

How it works. The record is stored as metadata beside a group's committed offset. It names offsets
above the group's progress whose copies are stored, and the *attempt*, which may have stored more.
An empty record takes no bytes.

Not here: copying (`dead_letters/relay.py`), when it is stored (`dead_letters/retrying.py`,
`dead_letters/redrive.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from google.protobuf.message import DecodeError

from semel.protos.errors import InvalidRequest
from semel.protos.v1.copies_pb2 import CopyAttempt, CopyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The metadata beside an offset."""

    copied: frozenset[int] = frozenset()
    """Offsets at or above the progress whose copies are stored."""
    attempt: CopyAttempt | None = None
    """The attempt whose copies may be stored, too."""


def record_bytes(copied: Iterable[int], attempt: CopyAttempt | None, progress: int) -> bytes:
    """Returns the record of a group at `progress`, without copies below it."""
    offsets = sorted(offset for offset in copied if offset >= progress)
    distances = [right - left for left, right in pairwise(offsets)]
    if attempt is not None and attempt.end <= progress:
        attempt = None
    return CopyRecord(copied=[*offsets[:1], *distances], attempt=attempt).SerializeToString()


def read_record(metadata: bytes) -> Record:
    """The inverse of `record_bytes`. Raises InvalidRequest."""
    try:
        found = CopyRecord.FromString(metadata)
    except DecodeError as error:
        raise InvalidRequest(
            f"the group has {len(metadata)} bytes of metadata here that are no record of copies:"
            " another program has left them; use another group, or reset this one's offsets"
        ) from error
    return Record(
        copied=frozenset(accumulate(found.copied)),
        attempt=found.attempt if found.HasField("attempt") else None,
    )
