"""A snapshot replaces the whole log, or nothing of it, wherever the power fails."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.log import IndexUnavailable, Log, RecordRef
from semel.protos.errors import Closed, CorruptSegment, DiskFull
from tests.kit.disk import SimFiles
from tests.kit.log_entries import WAIT_S, everything, fill, frame, frames, opened

INDEX, TERM = 100, 7
PARTS = [b"the state ", b"at 100"]
RECORDS = [(RecordRef(index, 48, 200), bytes([index]) * 200) for index in range(3, 99, 4)]


def _filled() -> tuple[SimFiles, Log]:
    disk = SimFiles()
    log = opened(disk)
    fill(log, frames(1, 30))
    log.save_checkpoint(20, 1, [b"old state"])
    log._store.keeper.drain()
    return disk, log


def _install(log: Log) -> None:
    log.install_snapshot(PARTS, INDEX, TERM, iter(RECORDS))


def _check_installed(log: Log) -> None:
    assert (log.first_index, log.last_index, log.synced_index) == (INDEX + 1, INDEX, INDEX)
    assert log.last_term == log.term_at(INDEX) == TERM
    assert log.term_at(INDEX - 1) is None
    assert log.checkpoint is not None
    assert (log.checkpoint.index, log.checkpoint.term) == (INDEX, TERM)
    assert log.checkpoint.payload == b"".join(PARTS)
    assert everything(log) == []
    for ref, data in RECORDS:
        assert log.read_record(ref.index, ref.position, ref.length) == data


def _check_old(log: Log) -> None:
    assert everything(log) == frames(1, 30)
    assert log.checkpoint is not None
    assert log.checkpoint.payload == b"old state"


def test_a_snapshot_replaces_the_log() -> None:
    disk, log = _filled()
    reports: list[tuple[int, int]] = []
    log.on_synced = lambda index, term: reports.append((index, term))
    _install(log)
    _check_installed(log)
    with pytest.raises(IndexUnavailable):
        log.read_frames(5, 6)
    with pytest.raises(IndexUnavailable):
        log.read_record(5, 48, 60)
    assert log.cached_frames(28, 30) is None
    fill(log, frames(INDEX + 1, INDEX + 20, term=8))
    assert reports[-1] == (INDEX + 19, 8)
    assert len([name for name in disk.names(log._current.path.parent) if "log-" in name]) == 1
    log.close()
    again = opened(disk)
    assert everything(again) == frames(INDEX + 1, INDEX + 20, term=8)
    assert again.term_at(INDEX) == TERM
    again.close()


def test_a_snapshot_over_a_snapshot_and_over_an_empty_log() -> None:
    disk = SimFiles()
    log = opened(disk)
    _install(log)
    _check_installed(log)
    log.install_snapshot([b"later"], 200, 9, [])
    assert (log.first_index, log.last_index, log.last_term) == (201, 200, 9)
    assert log.stats().kept_records == 0
    log.close()
    again = opened(disk)
    assert (again.first_index, again.last_index, again.last_term) == (201, 200, 9)
    again.close()


def test_records_may_come_from_the_log_that_is_replaced() -> None:
    _, log = _filled()

    def records() -> Iterator[tuple[RecordRef, Any]]:
        for index in range(1, 29, 3):
            yield RecordRef(index, 48, 60), log.read_record(index, 48, 60)

    log.install_snapshot(PARTS, INDEX, TERM, records())
    for index in range(1, 29, 3):
        assert log.read_record(index, 48, 60) == frame(index)[56:116]
    log.close()


def test_a_pull_that_fails_leaves_the_old_log() -> None:
    _, log = _filled()

    def records() -> Iterator[tuple[RecordRef, bytes]]:
        yield RECORDS[0]
        raise ConnectionError("the peer is gone")

    for _ in range(2):
        with pytest.raises(ConnectionError):
            log.install_snapshot(PARTS, INDEX, TERM, records())
        _check_old(log)
    fill(log, frames(30, 40))
    _install(log)
    _check_installed(log)
    log.close()


class Misdirecting:
    """Parts of a state; the last block of it that is written lands in another file."""

    def __init__(self, disk: SimFiles) -> None:
        self._disk = disk

    def __iter__(self) -> Iterator[bytes]:
        yield PARTS[0]
        (path,) = (path for path in self._disk.names_now if path.name.endswith(".tmp"))
        yield PARTS[1]
        inode = self._disk.names_now[path]
        assert inode is not None
        del inode.data[-len(PARTS[1]) :]


def test_a_checkpoint_that_is_not_where_it_was_written_leaves_the_old_log() -> None:
    disk, log = _filled()
    with pytest.raises(CorruptSegment, match="checkpoint-"):
        log.install_snapshot(Misdirecting(disk), INDEX, TERM, iter(RECORDS))
    _check_old(log)
    fill(log, frames(30, 40))
    _install(log)
    _check_installed(log)
    log.close()


@pytest.mark.parametrize("survives", [0.0, 0.5, 1.0])
def test_the_power_fails_at_every_operation(survives: float) -> None:
    crash_at = 0
    outcomes: set[str] = set()
    while True:
        disk, log = _filled()
        disk.operations, disk.crash_at = 0, crash_at
        crashed = False
        try:
            _install(log)
        except Exception:
            crashed = True
        again = opened(disk.restart(random.Random(crash_at), survives))
        if again.last_index == INDEX:
            _check_installed(again)
            outcomes.add("new")
            fill(again, frames(INDEX + 1, INDEX + 4, term=8))
        else:
            assert crashed
            _check_old(again)
            outcomes.add("old")
            _install(again)
            _check_installed(again)
        assert len(again._current._numbers()) == 1
        again.close()
        log.close()
        if not crashed:
            break
        crash_at += 1
    assert outcomes == {"old", "new"}
    assert crash_at > 10
    assert WAIT_S


def test_what_was_decided_about_the_old_log_is_not_done_to_the_snapshot() -> None:
    """A cleaner that has waited for the snapshot knows nothing of the records that came with it."""
    _, log = _filled()
    before = log.incarnation
    _install(log)
    assert log.incarnation > before
    assert log.compact(INDEX + 1, lambda lo, hi: [], incarnation=before) == INDEX + 1
    assert log.drop_kept(lambda index, position: False, incarnation=before) == 0
    _check_installed(log)
    assert log.drop_kept(lambda index, position: False, incarnation=log.incarnation) > 0
    log.close()


@pytest.mark.both_loops
async def test_each_turn_of_the_owner_sees_all_of_the_old_log_or_all_of_the_new() -> None:
    """Reads, too: what was committed before the snapshot may have to be applied yet."""
    loop = asyncio.get_running_loop()
    _, log = _filled()
    log.attach(loop)
    state, incarnation = "old", log.incarnation
    seen: list[str] = []
    adopt, remove = log._current.adopt_staged, log._current.remove_others

    def look() -> None:
        if state == "old":
            assert (log.first_index, log.last_index, log.incarnation) == (1, 29, incarnation)
            assert log.read_frames(5, 30) == frames(5, 30)
        else:
            assert (log.first_index, log.last_index) == (INDEX + 1, INDEX)
            assert log.incarnation > incarnation
        seen.append(state)

    def on_loop() -> None:
        asyncio.run_coroutine_threadsafe(_later(look), loop).result(WAIT_S)

    def slow_adopt() -> None:
        adopt()
        on_loop()

    def slow_open(directory: Path) -> Any:
        on_loop()
        store = Log._open_store(log, directory)
        on_loop()
        return store

    def slow_remove() -> None:
        on_loop()
        remove()

    def on_switched() -> None:
        nonlocal state
        assert asyncio.get_running_loop() is loop
        assert seen == ["old"] * 3
        state = "new"
        look()

    log._current.adopt_staged = slow_adopt  # type: ignore[method-assign]
    log._open_store = slow_open  # type: ignore[method-assign]
    log._current.remove_others = slow_remove  # type: ignore[method-assign]
    await loop.run_in_executor(
        None, log.install_snapshot, PARTS, INDEX, TERM, iter(RECORDS), on_switched
    )
    assert seen == ["old"] * 3 + ["new"] * 2
    _check_installed(log)
    await loop.run_in_executor(None, log.close)


async def _later(look: Callable[[], None]) -> None:
    look()


def _staged(disk: SimFiles) -> set[str]:
    return {path.parent.name for path in disk.names_now if path.parent.name.startswith("log-")}


@pytest.mark.parametrize("refused", ["kept-", "checkpoint-", "CURRENT"])
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_full_disk_leaves_the_old_log_and_nothing_that_keeps_it_full(
    refused: str, kind: str
) -> None:
    disk, log = _filled()
    failures: list[BaseException] = []
    log.on_failure = failures.append
    disk.full = (refused, kind)
    with pytest.raises(DiskFull):
        _install(log)
    assert _staged(disk) == {log._current.path.name}
    disk.full = None
    _check_old(log)
    fill(log, frames(30, 40))
    assert not failures
    _install(log)
    _check_installed(log)
    log.close()


@pytest.mark.parametrize("step", ["rename", "syncdir"])
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "input/output error"), DiskFull("no room")], ids=["EIO", "full"]
)
def test_a_failed_switch_ends_the_log_and_the_next_start_finds_one_of_the_two_whole(
    step: str, error: Exception
) -> None:
    """Nobody knows which name the disk has, so nothing may be acknowledged in either log."""
    disk, log = _filled()
    failures: list[BaseException] = []
    log.on_failure = failures.append
    adopt = log._current.adopt_staged

    def adopt_on_a_failing_disk() -> None:
        disk.failing[step] = error
        adopt()

    log._current.adopt_staged = adopt_on_a_failing_disk  # type: ignore[method-assign]
    with pytest.raises(OSError, match="it is unknown which of the two the disk names"):
        _install(log)
    disk.failing.clear()
    (failure,) = failures
    old, new = (f"log-{number:020d}" for number in (1, 2))
    assert f"CURRENT could not be switched from {old} to {new} ({error})" in str(failure)
    assert "start the node again" in str(failure)
    with pytest.raises(Closed, match="cannot be written any more"):
        log.append(frames(30, 31))
    with pytest.raises(Closed):
        _install(log)
    assert _staged(disk) == {old, new}
    found = set()
    for seed in range(10):
        for after in (disk.copy(), disk.restart(random.Random(seed))):
            again = opened(after)
            found.add(again.first_index)
            (_check_old if again.first_index == 1 else _check_installed)(again)
            assert _staged(after) == {again._current.path.name}
            again.close()
    assert found == ({1} if step == "rename" else {1, INDEX + 1})
    log.close()


def test_an_old_log_that_cannot_be_removed_for_lack_of_room_stays_until_it_can() -> None:
    """Some file systems need room for that, too. The switch is done, and the node goes on."""
    disk, log = _filled()
    failures: list[BaseException] = []
    log.on_failure = failures.append
    remove = log._current.remove_others

    def remove_without_room() -> None:
        disk.failing["remove"] = DiskFull("no room")
        remove()

    log._current.remove_others = remove_without_room  # type: ignore[method-assign]
    _install(log)
    _check_installed(log)
    assert len(_staged(disk)) == 2
    log.close()
    assert not failures
    again = opened(disk)
    _check_installed(again)
    assert len(_staged(disk)) == 2
    disk.failing.clear()
    again.close()
    last = opened(disk)
    _check_installed(last)
    assert _staged(disk) == {last._current.path.name}
    last.close()


def test_a_checkpoint_that_has_waited_for_a_snapshot_is_not_written() -> None:
    """It would lie below the log's first entry, and be what a damaged newer one falls back to."""
    _, log = _filled()
    saved: list[bool] = []

    def save() -> None:
        saved.append(log.save_checkpoint(25, 1, [b"older than the snapshot"]))

    saving = threading.Thread(target=save)
    log.install_snapshot(PARTS, INDEX, TERM, iter(RECORDS), saving.start)
    saving.join(60)
    assert saved == [False]
    assert [one.index for one in log._store.checkpoints.all()] == [INDEX]
    assert log.save_checkpoint(INDEX, TERM, PARTS)
    log.close()


def test_what_is_done_to_the_old_log_does_not_wait_for_a_pull() -> None:
    """Its records may come for hours, and readers that wait for it would serve nobody."""
    _, log = _filled()
    done: list[object] = []

    def keep() -> None:
        log.keep_records([])
        done.append(None)

    def records() -> Iterator[tuple[RecordRef, bytes]]:
        yield RECORDS[0]
        others = [
            threading.Thread(target=lambda: done.append(log.save_checkpoint(25, 1, [b"state"]))),
            threading.Thread(target=lambda: done.append(log.compact(20, lambda lo, hi: []))),
            threading.Thread(target=lambda: done.append(log.drop_kept(lambda *_: False))),
            threading.Thread(target=keep),
        ]
        for other in others:
            other.daemon = True
            other.start()
        for other in others:
            other.join(10)
        assert len(done) == len(others)

    log.install_snapshot(PARTS, INDEX, TERM, records())
    assert log.has_kept(RECORDS[0][0])
    log.close()
