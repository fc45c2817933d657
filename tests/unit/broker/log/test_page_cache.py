"""What stays in the operating system's cache, and what does not."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from semel.broker.log import Log, LogConfig
from semel.broker.log.active import _DROP_BYTES
from tests.kit import disk as sim_files
from tests.kit.disk import SimFiles
from tests.kit.log_entries import WAIT_S, everything, fill, frames, opened
from tests.kit.waiting import until

MB = 1 << 20
CONFIG = LogConfig(segment_bytes=6 * MB, ids_per_segment=64, fill_bytes_per_second=0, cache_bytes=0)
COUNT = 14
WANTED = frames(1, COUNT + 1, length=MB)
ENTRY_BYTES = len(WANTED[0])


def test_what_serves_nobody_is_dropped_piece_by_piece_once_it_is_durable() -> None:
    disk = SimFiles()
    log = opened(disk, CONFIG)
    log.page_cached = False
    for one in WANTED[:5]:
        fill(log, [one])
    first = log._store.index.locate(1)
    assert disk.dropped == [(first.header.frames_at, 4 * ENTRY_BYTES)]
    assert 4 * ENTRY_BYTES >= _DROP_BYTES > 3 * ENTRY_BYTES
    for one in WANTED[5:]:
        fill(log, [one])
    assert everything(log) == WANTED
    log.close()
    # All of the segments that are full, and whole pieces of the last one.
    assert disk.dropped[1] == (first.header.frames_at + 4 * ENTRY_BYTES, ENTRY_BYTES)
    dropped = sum(length for _, length in disk.dropped)
    assert dropped >= (COUNT - 4) * ENTRY_BYTES
    assert len(disk.find("segment-")) == 3


def test_what_somebody_reads_here_stays() -> None:
    disk = SimFiles()
    log = opened(disk, CONFIG)
    assert log.page_cached
    for one in WANTED:
        fill(log, [one])
    assert disk.dropped == []
    log.close()


def test_a_node_that_becomes_master_keeps_what_it_writes_from_then_on() -> None:
    disk = SimFiles()
    log = opened(disk, CONFIG)
    log.page_cached = False
    for one in WANTED[:5]:
        fill(log, [one])
    log.page_cached = True
    before = list(disk.dropped)
    for one in WANTED[5:]:
        fill(log, [one])
    assert disk.dropped == before != []
    log.close()


def test_a_log_that_a_snapshot_replaces_goes_on_so() -> None:
    disk = SimFiles()
    log = opened(disk, CONFIG)
    log.page_cached = False
    log.install_snapshot([b"state"], 100, 1, [])
    for one in frames(101, 106, length=MB):
        fill(log, [one])
    assert disk.dropped != []
    log.close()


def test_a_spare_that_was_used_before_is_read_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pages are not in the cache any more: a write within one of them would wait for it."""
    config = LogConfig(
        segment_bytes=2_500_000,
        ids_per_segment=64,
        fill_bytes_per_second=10_000_000_000,
        checkpoint_keep=1,
    )
    disk = SimFiles()
    log = opened(disk, config)
    for one in frames(1, 5, length=MB):
        fill(log, [one])
    log.save_checkpoint(4, 1, [b"state"])
    read = sim_files.SimFile.read
    reads: list[tuple[int, int]] = []

    def watched(self: sim_files.SimFile, length: int, offset: int) -> bytes:
        if threading.current_thread().name == "semel-log-keeper":
            reads.append((offset, length))
        return read(self, length, offset)

    monkeypatch.setattr(sim_files.SimFile, "read", watched)
    assert log.compact(5, lambda lo, hi: []) == 3
    keeper = log._store.keeper
    keeper.drain()
    ready = keeper._ready
    assert ready is not None
    assert ready.fresh
    used = disk.find("spare-")[-1]
    fill(log, frames(5, 6, length=MB))  # takes the fresh one

    def refilled() -> Any:
        one = keeper._ready
        return one and one.unfilled_at == config.segment_bytes and one

    ready = until(refilled)
    assert (ready.path.name, ready.fresh) == (used.name, False)
    log.close()
    assert {(0, MB), (MB, MB), (2 * MB, 2_500_000 - 2 * MB)} <= set(reads)


def _cached(path: Path) -> int:
    """Pages of the file that are in memory; asking brings none in, as reading would."""
    size, page = path.stat().st_size, mmap.PAGESIZE
    found = (ctypes.c_ubyte * -(-size // page))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        start = ctypes.c_char.from_buffer(mapped)
        asked = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), found
        )
        del start
    assert asked == 0, "mincore failed"
    return sum(one & 1 for one in found)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is in its page cache")
def test_the_operating_system_does_as_it_is_told(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(MB))
    descriptor = os.open(probe, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if _cached(probe):
        pytest.skip("this file system lives in memory")
    cached = {}
    for stays in (True, False):
        directory = tmp_path / str(stays)
        log = Log.open(directory, CONFIG)
        log.page_cached = stays
        for one in WANTED[:5]:
            log.append([one])
        assert log.wait_synced(5, WAIT_S)
        (segment,) = directory.glob("log-*/segment-*")
        cached[stays] = _cached(segment)
        log.close()
    pages = 4 * ENTRY_BYTES // mmap.PAGESIZE
    # Not all: what shares a larger piece of memory with its neighbours stays with them.
    assert cached[True] - cached[False] >= pages // 2
