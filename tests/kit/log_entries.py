"""Frames to fill a log with, and a small configuration under which everything happens often."""

from __future__ import annotations

from pathlib import Path

from semel.broker.log import Log, LogConfig
from semel.protos.frames import RecordKind, build_frame
from tests.kit.disk import SimFiles

ROOT = Path("/node")
SMALL = LogConfig(
    segment_bytes=16_384,
    ids_per_segment=8,
    fill_bytes_per_second=0,
    cache_bytes=2_000,
    read_cache_bytes=4_000,
    open_files_max=2,
)
WAIT_S = 10.0


def frame(index: int, term: int = 1, length: int = 60, salt: int = 0) -> bytes:
    """A frame of one record whose bytes say which entry it is."""
    text = f"entry {index} of term {term} salt {salt} ".encode()
    payload = (text * (length // len(text) + 1))[:length]
    return build_frame(index, term, 1_000 + index, [(RecordKind.BATCH, [payload])])[0]


def frames(lo: int, hi: int, term: int = 1, length: int = 60) -> list[bytes]:
    """Frames with the indexes [lo, hi)."""
    return [frame(index, term, length) for index in range(lo, hi)]


def opened(disk: SimFiles, config: LogConfig = SMALL) -> Log:
    return Log.open(ROOT, config, files=disk)


def fill(log: Log, added: list[bytes]) -> None:
    """Appends and waits until it is durable."""
    log.append(added)
    assert log.wait_synced(log.last_index, WAIT_S)


def everything(log: Log) -> list[bytes]:
    """All frames, read in several pieces."""
    found: list[bytes] = []
    while (lo := log.first_index + len(found)) <= log.last_index:
        found += log.read_frames(lo, log.fit(lo, log.last_index + 1, 1_000))
    return found
