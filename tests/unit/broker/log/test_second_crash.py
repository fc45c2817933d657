"""What a process finds may be in the page cache only: it makes that durable before it counts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from semel.broker.log import HardStateFile, Log, OsFiles, RecordRef, check_identity
from semel.broker.log.segment import IDS_AT, decode_header, decode_id, salt
from semel.protos.errors import Closed, DiskFull
from semel.protos.frames import FRAME_HEADER_BYTES
from semel.protos.ids import NodeId
from tests.kit.disk import PowerCut, SimFiles
from tests.kit.log_entries import ROOT, SMALL, everything, fill, frame, frames, opened
from tests.kit.waiting import until

VOTE = ROOT / "hard_state"


def failed(log: Log, act: Callable[[], None]) -> None:
    """Returns once the log has failed."""
    ended = threading.Event()
    log.on_failure = lambda _: ended.set()
    act()
    assert ended.wait(10)
    with contextlib.suppress(Closed, OSError, PowerCut):
        log.close()


def loses_power(disk: SimFiles) -> SimFiles:
    """Nothing that was not synced survives."""
    return disk.restart(survives=0.0)


def vote(disk: SimFiles) -> object:
    return HardStateFile(VOTE, disk).load()


@pytest.mark.parametrize("first", [True, False])
def test_a_vote_that_a_restart_believes_survives_a_failure_of_power(first: bool) -> None:
    """The process before was killed at any step of saving it."""
    for step in range(20):
        disk = SimFiles()
        disk.make_directory(ROOT)
        file = HardStateFile(VOTE, disk)
        if not first:
            file.save(1, None)
        disk.crash_at = disk.operations + step
        try:
            file.save(2, NodeId(3))
        except PowerCut:
            disk = disk.copy()
            found = vote(disk)
            assert vote(loses_power(disk)) == found
            continue
        assert step > 2
        return


def test_a_vote_whose_sync_failed_is_durable_when_a_restart_believes_it() -> None:
    """The kernel calls its pages clean: to sync them again would write nothing."""
    disk = SimFiles()
    disk.make_directory(ROOT)
    file = HardStateFile(VOTE, disk)
    file.save(1, None)
    disk.sync_error_in = 0
    with pytest.raises(OSError, match="input/output"):
        file.save(2, NodeId(3))
    disk = disk.copy()
    assert vote(disk) == (2, NodeId(3))
    assert vote(loses_power(disk)) == (2, NodeId(3))


def test_a_vote_that_cannot_be_made_durable_is_not_believed() -> None:
    disk = SimFiles()
    disk.make_directory(ROOT)
    HardStateFile(VOTE, disk).save(1, None)
    disk.full = ("hard_state", "write")
    with pytest.raises(DiskFull):
        vote(disk)
    disk.full = None
    disk.sync_error_in = 0
    with pytest.raises(OSError, match="input/output"):
        vote(disk)


@pytest.mark.parametrize("error", [False, True])
def test_entries_that_a_restart_counts_survive_a_failure_of_power(error: bool) -> None:
    """Their sync never came, or failed; nobody was told that they are durable, until now."""
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 3))
    if error:
        disk.sync_error_in = 0
    else:
        disk.syncs_left = 0
    failed(log, lambda: log.append(frames(3, 6)))
    disk = disk.copy()
    log = opened(disk)
    assert (log.last_index, log.synced_index) == (5, 5)
    with contextlib.closing(opened(loses_power(disk))) as later:
        assert everything(later) == frames(1, 6)
        assert not later.damaged
    log.close()


def test_entries_that_cannot_be_made_durable_are_not_counted() -> None:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 3))
    disk.sync_error_in = 0
    failed(log, lambda: log.append(frames(3, 6)))
    disk = disk.copy()
    disk.sync_error_in = 0
    with pytest.raises(OSError, match="input/output"):
        opened(disk)
    disk = disk.copy()
    with contextlib.closing(opened(disk)):
        pass
    with contextlib.closing(opened(loses_power(disk))) as later:
        assert everything(later) == frames(1, 6)


def test_only_what_was_on_its_way_is_written_again() -> None:
    """A restart reads what a long log has in its last segment, and writes next to nothing."""
    disk = SimFiles()
    log = opened(disk)
    for index in range(1, 6):
        fill(log, [frame(index)])
    disk.syncs_left = 0
    failed(log, lambda: log.append([frame(6)]))
    disk = disk.copy()
    written: list[int] = []
    segment = disk.find("segment-")[0]
    inode = disk.names_now[segment]
    assert inode is not None
    before = len(inode.pending)
    with contextlib.closing(opened(disk)):
        written = [
            len(change[1])
            for change in inode.pending[before:]
            if isinstance(change, tuple) and change[0] >= IDS_AT
        ]
    assert written == []  # all of it is synced
    assert not inode.pending


def test_an_id_that_is_made_anew_says_no_more_than_is_known() -> None:
    """A kill came between frames and IDs. Until the repair is synced, nothing behind entry 2 is
    known to be durable, and a failure of power must not make it look so."""
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 3))
    until(lambda: log._store.keeper.spare_count == 1)  # nobody else writes
    disk.crash_at = disk.operations + 1  # frames, no IDs
    failed(log, lambda: log.append(frames(3, 6)))
    disk = disk.copy()
    with contextlib.closing(opened(disk)) as log:
        assert log.last_index == 5
        image = bytes(disk.image(disk.find("segment-")[0]))
    header = decode_header(image)
    assert header is not None
    assert not isinstance(header, int)
    ids = [decode_id(image[IDS_AT:], slot, salt(header.generation)) for slot in range(5)]
    assert all(one is not None and one.durable_before <= 2 for one in ids)


def _with_snapshot(disk: SimFiles) -> None:
    log = opened(disk)
    try:
        log.install_snapshot([b"state"], 40, 3, [(RecordRef(7, FRAME_HEADER_BYTES, 5), b"bytes")])
    finally:
        with contextlib.suppress(PowerCut, Closed):
            log.close()


def test_a_snapshot_that_a_restart_finds_survives_a_failure_of_power() -> None:
    """The process was killed at any step of switching to it; the next one removes the other log."""
    seen = set()
    for step in range(200):
        disk = SimFiles()
        log = opened(disk)
        fill(log, frames(1, 9))
        log.close()
        disk.crash_at = disk.operations + step
        try:
            _with_snapshot(disk)
        except (PowerCut, Closed):
            disk = disk.copy()
            with contextlib.closing(opened(disk)) as log:
                found = log.last_index
                for survives in (0.0, 0.5):
                    with contextlib.closing(opened(disk.restart(survives=survives))) as later:
                        assert later.last_index == found, f"step {step}"
            seen.add(found)
            continue
        break
    assert seen == {8, 40}


def test_a_checkpoint_that_a_restart_finds_survives_a_failure_of_power() -> None:
    for step in range(30):
        disk = SimFiles()
        with contextlib.closing(opened(disk)) as log:
            fill(log, frames(1, 9))
            disk.crash_at = disk.operations + step
            with contextlib.suppress(PowerCut, Closed):
                log.save_checkpoint(5, 1, [b"state"])
            disk = disk.copy()
        with contextlib.closing(opened(disk)) as log:
            found = log.checkpoint and log.checkpoint.index
            with contextlib.closing(opened(loses_power(disk))) as later:
                assert (later.checkpoint and later.checkpoint.index) == found


def test_an_identity_that_a_restart_finds_survives_a_failure_of_power() -> None:
    """Else the next start would meet a directory with data and without a name."""
    who = {"cluster_id": "c", "group_id": 1, "node_id": 2}
    for step in range(20):
        disk = SimFiles()
        disk.make_directory(ROOT)
        disk.crash_at = disk.operations + step
        with contextlib.suppress(PowerCut):
            check_identity(ROOT, **who, files=disk)  # type: ignore[arg-type]
        disk = disk.copy()
        check_identity(ROOT, **who, files=disk)  # type: ignore[arg-type]
        assert set(loses_power(disk).names(ROOT)) >= {"IDENTITY", "IDENTITY.copy"}


def test_a_checkpoint_proves_nothing_that_is_not_durable_though_syncs_are_delayed() -> None:
    """With `durability=interval` entries are reported before their sync; a checkpoint is not."""
    disk = SimFiles()
    log = opened(disk, replace(SMALL, sync_interval_ms=600_000))
    fill(log, frames(1, 6))
    log.save_checkpoint(5, 1, [b"state"])
    with contextlib.closing(opened(loses_power(disk))) as later:
        assert later.last_index == 5
        assert later.checkpoint is not None
    log.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells by /proc what was synced")
def test_a_directory_that_a_killed_process_made_is_synced_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "node" / "log"
    directory.mkdir(parents=True)
    synced: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    OsFiles().make_directory(directory)
    # Its own names, its own name, and its parent's.
    assert synced[:3] == [str(directory), str(directory.parent), str(tmp_path)]
    synced.clear()
    OsFiles().make_directory(directory / "a" / "b")
    assert synced[:3] == [str(directory / "a" / "b"), str(directory / "a"), str(directory)]
