"""Blocks that the disk cannot read: damage like any other, never the end of the node."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.log import DamagedEntry, Log, LogConfig, OsFiles
from semel.broker.log.segment import ID_BYTES, IDS_AT, PAGE, Segment, SegmentHeader, write_seal
from tests.kit.log_entries import everything, fill, frames

CONFIG = LogConfig(
    segment_bytes=256 << 10, ids_per_segment=512, fill_bytes_per_second=0, cache_bytes=0
)
WANTED = frames(1, 200, length=900)


class BadBlocks:
    """Blocks of one file that fail every read."""

    def __init__(self) -> None:
        self.path = Path()
        self.blocks: set[int] = set()
        self.bites = 0

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        if self.blocks and Path(f"/proc/self/fd/{descriptor}").readlink() == self.path:
            touched = range(offset // PAGE, (offset + length - 1) // PAGE + 1)
            if self.blocks & set(touched):
                self.bites += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return REAL_PREAD(descriptor, length, offset)


REAL_PREAD = os.pread


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Iterator[BadBlocks]:
    blocks = BadBlocks()
    monkeypatch.setattr(os, "pread", blocks.pread)
    yield blocks
    assert blocks.bites, "no read met a bad block"


def _filled(directory: Path) -> Path:
    log = Log.open(directory, CONFIG)
    fill(log, WANTED)
    log.save_checkpoint(150, 1, [b"state"])
    log.close()
    (segment,) = directory.glob("log-*/segment-*")
    return segment


def test_a_bad_block_under_a_cold_read_damages_what_lies_in_it(
    tmp_path: Path, bad: BadBlocks
) -> None:
    bad.path = _filled(tmp_path)
    log = Log.open(tmp_path, CONFIG)
    start, _ = log._store.index.segments[0].place(70)
    bad.blocks = {start // PAGE}
    with pytest.raises(DamagedEntry):
        log.read_frames(1, 150)
    assert sum(log.scrub())
    damaged = sorted(log.damaged)
    assert 70 in damaged
    assert damaged == list(range(damaged[0], damaged[-1] + 1))
    assert len(damaged) <= PAGE // 900 + 2
    for index in damaged:  # a write gives the disk another block
        log.repair(WANTED[index - 1])
    bad.blocks = set()
    assert everything(log) == WANTED
    log.close()


@pytest.mark.parametrize("block", [0, 1, IDS_AT // PAGE])
def test_a_bad_block_of_names_is_made_up_for_at_the_start(
    tmp_path: Path, bad: BadBlocks, block: int
) -> None:
    bad.path = _filled(tmp_path)
    bad.blocks = {block}
    log = Log.open(tmp_path, CONFIG)
    assert log.damaged == {}
    bad.blocks = set()
    assert everything(log) == WANTED
    log.close()
    again = Log.open(tmp_path, CONFIG)
    assert everything(again) == WANTED
    again.close()


def test_a_bad_block_of_a_frame_is_known_at_the_start(tmp_path: Path, bad: BadBlocks) -> None:
    bad.path = _filled(tmp_path)
    log = Log.open(tmp_path, CONFIG)
    start, _ = log._store.index.segments[0].place(180)
    log.close()
    bad.blocks = {start // PAGE}
    log = Log.open(tmp_path, CONFIG)
    assert 180 in log.damaged
    assert all(one.certain for one in log.damaged.values())
    log.close()


def test_what_cannot_be_read_is_never_sealed(tmp_path: Path, bad: BadBlocks) -> None:
    """A seal over zeros would make them count."""
    bad.path = tmp_path / "segment"
    file = OsFiles().open(bad.path, create=True)
    header = SegmentHeader(
        sequence=1, generation=1, first_index=1, previous_term=0, id_capacity=512
    )
    file.write([b"x" * (IDS_AT + 200 * ID_BYTES)], 0)
    bad.blocks = {IDS_AT // PAGE}
    with pytest.raises(OSError, match="cannot be read"):
        write_seal(file, Segment(header, 1 << 20), 200, 1 << 16, 1)
    file.close()
