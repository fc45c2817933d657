"""What the store says of a topic's index beside its runs: the list of them, and the end of the
window before.

How it works. Each has a key, and a CRC of its own. The list names the runs that belong to the
index. The end names the entry of the log that ended the topic's last window here. It outlives the
index of that window, for a node that starts goes through older states, in which the window is
still there.

Format: `docs/formats/message-ids.md`. Not here: what they mean (`id_index.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from semel.broker.dedup.id_runs import RUN_MARK, RunInfo, topic_prefix
from semel.broker.dedup.id_store import CorruptIndex

_LIST: Final = struct.Struct("<4sIQI16s")
_LIST_MAGIC: Final = b"SMIX"
_END: Final = struct.Struct("<4sQ")
_END_MAGIC: Final = b"SMIE"
_CRC: Final = struct.Struct("<I")


class RunList(NamedTuple):
    """The list of a topic's runs."""

    runs: Sequence[RunInfo]
    next_run: int
    """The number of the next one."""
    left_behind: int
    """The window left behind what arrived before, and its runs were dropped."""
    seed: bytes
    """That of the window."""


def list_key(topic_id: int) -> bytes:
    """The key of the list of runs."""
    return topic_prefix(topic_id) + b"m"


def end_key(topic_id: int) -> bytes:
    """The key of the end of the window before."""
    return topic_prefix(topic_id) + b"e"


def encode_list(runs: RunList) -> bytes:
    """The value of a list."""
    body = _LIST.pack(_LIST_MAGIC, runs.next_run, runs.left_behind, len(runs.runs), runs.seed)
    return _with_crc(body + b"".join(RUN_MARK.pack(*info) for info in runs.runs))


def decode_list(data: bytes, topic_id: int) -> RunList:
    """The inverse of `encode_list`. Raises CorruptIndex."""
    body = _without_crc(data, _LIST.size, f"the list of runs of topic {topic_id}")
    magic, next_run, left_behind, count, seed = _LIST.unpack_from(body)
    if magic != _LIST_MAGIC or len(body) != _LIST.size + count * RUN_MARK.size:
        raise CorruptIndex(f"the list of runs of topic {topic_id} is of another format")
    marks = RUN_MARK.iter_unpack(body[_LIST.size :])
    return RunList([RunInfo(*mark) for mark in marks], next_run, left_behind, seed)


def encode_end(entry: int) -> bytes:
    """The value that says by which entry a window ended."""
    return _with_crc(_END.pack(_END_MAGIC, entry))


def decode_end(data: bytes, topic_id: int) -> int:
    """The inverse of `encode_end`. Raises CorruptIndex."""
    body = _without_crc(data, _END.size, f"the end of a window of topic {topic_id}")
    magic, entry = _END.unpack_from(body)
    if magic != _END_MAGIC or len(body) != _END.size:
        raise CorruptIndex(f"the end of a window of topic {topic_id} is of another format")
    return int(entry)


def _with_crc(body: bytes) -> bytes:
    return body + _CRC.pack(google_crc32c.value(body))


def _without_crc(data: bytes, bytes_min: int, what: str) -> bytes:
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(body) < bytes_min or crc != _CRC.pack(google_crc32c.value(body)):
        raise CorruptIndex(f"{what} is damaged")
    return body
