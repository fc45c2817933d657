"""Compaction, kept records, recycling, checkpoints."""

from __future__ import annotations

import asyncio
import threading

import pytest

from semel.broker.log import DamagedEntry, IndexUnavailable, Log, RecordRef
from semel.broker.log import keeper as keeper_module
from semel.broker.log.keeper import Keeper
from semel.broker.log.segment import Segment, decode_header
from semel.protos.errors import CorruptSegment, DataDirectoryError, DiskFull, InvalidRequest
from tests.kit.disk import SimFiles
from tests.kit.log_entries import ROOT, SMALL, WAIT_S, everything, fill, frame, frames, opened

LENGTH = 60


def _ref(index: int) -> RecordRef:
    return RecordRef(index, 48, LENGTH)


def _payload(index: int) -> bytes:
    return frame(index)[56 : 56 + LENGTH]


def _filled(disk: SimFiles, count: int = 60) -> Log:
    log = opened(disk)
    for one in frames(1, count):
        log.append([one])
    assert log.wait_synced(count - 1, WAIT_S)
    fill(log, [frame(count)])  # Leaves only the newest in memory.
    return log


def _checkpointed(disk: SimFiles) -> Log:
    log = _filled(disk)
    log.save_checkpoint(40, 1, [b"first"])
    log.save_checkpoint(50, 1, [b"second"])
    return log


def test_live_records_stay_readable() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    live = [_ref(index) for index in range(2, 60, 5)]
    asked: list[tuple[int, int]] = []

    def keep(lo: int, hi: int) -> list[RecordRef]:
        asked.append((lo, hi))
        return [ref for ref in live if lo <= ref.index < hi]

    first = log.compact(30, keep)
    assert first == log.first_index == asked[-1][1]
    assert 20 < first <= 30
    assert [lo for lo, _ in asked] == [1, *(hi for _, hi in asked[:-1])]
    assert log.term_at(first - 1) == 1
    assert log.term_at(first - 2) is None
    with pytest.raises(IndexUnavailable):
        log.read_frames(first - 1, first)
    assert log.read_frames(first, 61) == frames(first, 61)
    for opened_again in (False, True):
        if opened_again:
            log.close()
            log = opened(disk)
            assert log.first_index == first
            assert log.term_at(first - 1) == 1
        for ref in live:
            assert log.read_record(ref.index, ref.position, ref.length) == _payload(ref.index)
        with pytest.raises(IndexUnavailable):
            log.read_record(3, 48, LENGTH)
        with pytest.raises(InvalidRequest):
            log.read_record(2, 48, LENGTH + 1)
    assert log.stats().kept_records == len([ref for ref in live if ref.index < first])
    log.close()


def test_a_kept_record_that_was_repaired_stays_so_after_a_failure_of_power() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    ref = _ref(2)
    log.compact(30, lambda lo, hi: [ref] if lo <= ref.index < hi else [])
    (path,) = disk.find("kept-")
    at = bytes(disk.image(path)).index(_payload(ref.index))
    damaging = disk.open(path)
    damaging.write([b"?"], at)
    damaging.sync()
    damaging.close()
    with pytest.raises(DamagedEntry):
        log.read_record(ref.index, ref.position, ref.length)
    log.repair_record(ref, _payload(ref.index))
    again = opened(disk.restart(survives=0.0))
    assert again.read_record(ref.index, ref.position, ref.length) == _payload(ref.index)
    again.close()
    log.close()


def test_compaction_stops_before_the_older_checkpoint() -> None:
    log = _filled(SimFiles())
    assert log.compact(60, lambda lo, hi: []) == 1
    log.save_checkpoint(30, 1, [b"only one"])
    assert log.compact(60, lambda lo, hi: []) == 1
    log.save_checkpoint(55, 1, [b"two"])
    assert 20 < log.compact(60, lambda lo, hi: []) <= 31
    log.close()


def test_compaction_never_takes_the_newest_segment() -> None:
    log = _checkpointed(SimFiles())
    log.save_checkpoint(60, 1, [b"third"])
    log.save_checkpoint(60, 1, [b"third again"])
    assert log.compact(1_000, lambda lo, hi: []) <= 60
    fill(log, [frame(61)])
    assert everything(log) == frames(log.first_index, 62)
    log.close()


def test_segments_are_recycled_with_another_generation() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    old = {decode_header(bytes(disk.image(path))).generation for path in disk.find("segment-")}  # type: ignore[union-attr]
    log.compact(40, lambda lo, hi: [])
    assert log.stats().spares == SMALL.recycle_max + 1
    created = len(disk.find(""))
    for one in frames(61, 80):
        log.append([one])
    assert log.wait_synced(79, WAIT_S)
    log._store.keeper.drain()
    assert len(disk.find("")) <= created + 1
    new = {decode_header(bytes(disk.image(path))).generation for path in disk.find("segment-")}  # type: ignore[union-attr]
    assert len(new - old) >= 2
    first = log.first_index
    for found in (disk.copy(), disk.restart(survives=0.0)):
        again = opened(found)
        assert everything(again) == frames(first, 80)
        again.close()
    log.close()


def test_a_reader_holds_its_segment() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    path = log._store.directory / log._store.index.segments[0].file_name
    done = threading.Event()

    def compact() -> None:
        log.compact(20, lambda lo, hi: [])
        done.set()

    with log._store.open_files.use(path) as file:
        before = file.read(16_384, 0)
        thread = threading.Thread(target=compact)
        thread.start()
        assert not done.wait(0.05)
        assert file.read(16_384, 0) == before
        assert path in disk.names_now
    thread.join()
    assert path not in disk.names_now
    assert log.first_index > 8
    log.close()


def test_a_damaged_live_record_stops_compaction_until_it_is_repaired() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    start, _ = log._store.index.segments[1].place(10)
    disk.image(log._store.directory / log._store.index.segments[1].file_name)[start + 70] ^= 1
    with pytest.raises(DamagedEntry):
        log.compact(30, lambda lo, hi: [_ref(index) for index in range(lo, hi)])
    assert log.first_index == 9
    assert list(log.damaged) == [10]
    log.repair(frame(10))
    log.compact(30, lambda lo, hi: [_ref(index) for index in range(lo, hi)])
    assert log.read_record(10, 48, LENGTH) == _payload(10)
    assert log.read_record(1, 48, LENGTH) == _payload(1)
    log.close()


def test_a_damaged_dead_entry_goes_with_its_segment() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    disk.image(log._store.directory / log._store.index.segments[0].file_name)[12_288 + 70] ^= 1
    with pytest.raises(DamagedEntry):
        log.read_record(1, 48, LENGTH)
    assert list(log.damaged) == [1]
    log.compact(20, lambda lo, hi: [])
    assert log.damaged == {}
    log.close()


def test_kept_files_go_when_nothing_in_them_lives() -> None:
    disk = SimFiles()
    log = _checkpointed(disk)
    log.compact(30, lambda lo, hi: [_ref(index) for index in range(lo, hi)])
    first, files = log.first_index, log.stats().kept_files
    assert files >= 3
    assert log.drop_kept(lambda index, position: True) == 0
    survivors = {3, 20}
    assert log.drop_kept(lambda index, position: index in survivors) == files
    assert log.stats().kept_records == 2
    log.close()
    log = opened(disk)
    for index in range(1, first):
        if index in survivors:
            assert log.read_record(index, 48, LENGTH) == _payload(index)
        else:
            with pytest.raises(IndexUnavailable):
                log.read_record(index, 48, LENGTH)
    log.drop_kept(lambda index, position: False)
    assert disk.find("kept-") == []
    assert log.stats().kept_records == 0
    log.close()


def test_records_below_the_first_index_survive_a_crash_during_compaction() -> None:
    live = [_ref(index) for index in range(1, 40, 3)]
    operations = _compact_with(None, live)[1].operations
    for crash_at in range(operations):
        log, disk = _compact_with(crash_at, live)
        found = disk.restart()
        again = opened(found)
        assert everything(again) == frames(again.first_index, 61)
        for ref in live:
            assert again.read_record(ref.index, ref.position, ref.length) == _payload(ref.index)
        again.compact(35, lambda lo, hi: [ref for ref in live if lo <= ref.index < hi])
        assert again.first_index > 25
        for ref in live:
            assert again.read_record(ref.index, ref.position, ref.length) == _payload(ref.index)
        again.close()
        log.close()


def _compact_with(crash_at: int | None, live: list[RecordRef]) -> tuple[Log, SimFiles]:
    disk = SimFiles()
    log = _checkpointed(disk)
    log._store.keeper.drain()
    disk.operations = 0
    disk.crash_at = crash_at
    try:
        log.compact(35, lambda lo, hi: [ref for ref in live if lo <= ref.index < hi])
    except Exception:
        assert crash_at is not None
    return log, disk


def test_checkpoints_are_replaced_by_newer_ones() -> None:
    disk = SimFiles()
    log = _filled(disk)
    for index in (10, 20, 30):
        log.save_checkpoint(index, 1, [b"state ", str(index).encode()])
    checkpoint = log.checkpoint
    assert checkpoint is not None
    assert (checkpoint.index, checkpoint.term, checkpoint.length) == (30, 1, 8)
    assert checkpoint.payload == b"state 30"
    assert len(disk.find("checkpoint-")) == 2
    for index in (40, 50):
        log.save_checkpoint(index, 1, [b""])
    with pytest.raises(CorruptSegment, match="newer checkpoints"):
        assert checkpoint.payload
    newest = log.checkpoint
    assert newest is not None
    assert newest.payload == b""
    log.close()


def test_a_checkpoint_waits_until_its_entries_are_durable() -> None:
    disk = SimFiles()
    log = opened(disk)
    saved = threading.Event()

    def save() -> None:
        log.save_checkpoint(5, 1, [b"state"])
        saved.set()

    with disk.mutex:
        log.append(frames(1, 6))
        thread = threading.Thread(target=save)
        thread.start()
        assert not saved.wait(0.05)
    thread.join(WAIT_S)
    assert saved.is_set()
    log.close()


def test_a_checkpoint_is_whole_or_absent_wherever_the_power_fails() -> None:
    crash_at = 0
    while True:
        disk = SimFiles()
        log = _filled(disk, 20)
        log.save_checkpoint(10, 1, [b"old"])
        log._store.keeper.drain()
        disk.operations, disk.crash_at = 0, crash_at
        crashed = False
        try:
            log.save_checkpoint(20, 1, [b"new" * 1_000, b"er"])
        except Exception:
            crashed = True
        for survives in (0.0, 0.5, 1.0):
            again = opened(disk.restart(survives=survives))
            checkpoint = again.checkpoint
            assert checkpoint is not None
            payload = checkpoint.payload
            if not crashed:
                assert checkpoint.index == 20
            assert payload == {10: b"old", 20: b"new" * 1_000 + b"er"}[checkpoint.index]
            again.close()
        log.close()
        if not crashed:
            break
        crash_at += 1
    assert crash_at > 4


def test_a_checkpoint_that_finds_no_room_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimFiles()
    log = _filled(disk, 20)
    log.save_checkpoint(10, 1, [b"old"])
    log._store.keeper.drain()
    disk.failing["create"] = DiskFull("no room")
    with pytest.raises(DiskFull):
        log.save_checkpoint(20, 1, [b"new"])
    disk.failing.clear()
    assert log.checkpoint is not None
    assert log.checkpoint.payload == b"old"
    log.save_checkpoint(20, 1, [b"new"])
    assert log.checkpoint.payload == b"new"
    log.close()


@pytest.mark.parametrize("part", ["checkpoint-", "CURRENT", "kept-"])
def test_a_file_of_a_newer_version_is_refused(part: str) -> None:
    import google_crc32c

    disk = SimFiles()
    log = _checkpointed(disk)
    log.compact(30, lambda lo, hi: [_ref(lo)])
    log.close()
    image = disk.image(disk.find(part)[-1])
    size = 32 if part == "CURRENT" else 64
    image[4] = 9
    crc = int(google_crc32c.value(bytes(image[: size - 4])))
    image[size - 4 : size] = crc.to_bytes(4, "little")
    with pytest.raises(DataDirectoryError, match="version 9"):
        opened(disk)


async def test_the_log_loses_its_oldest_segments_on_the_owners_loop_only() -> None:
    """Else one of them could go between two looks of the owner, for example of a master that sends
    from there."""
    loop = asyncio.get_running_loop()
    log = _checkpointed(SimFiles())
    log.attach(loop)
    here, where = threading.get_ident(), []
    drop = log._store.index.drop_before

    def watched_drop(segment: Segment) -> None:
        where.append(threading.get_ident())
        drop(segment)

    log._store.index.drop_before = watched_drop  # type: ignore[method-assign]
    assert await loop.run_in_executor(None, log.compact, 30, lambda lo, hi: []) > 20
    assert where
    assert set(where) == {here}
    await loop.run_in_executor(None, log.close)


def test_the_records_of_a_damaged_entry_stay_until_its_segment_goes() -> None:
    """Its peers have cleaned the entry away; nothing else has its messages here."""
    log = _checkpointed(SimFiles())
    ref = _ref(25)
    log.keep_records([(ref, _payload(25))])
    log.compact(20, lambda lo, hi: [])
    assert log.first_index <= 25
    assert log.drop_kept(lambda index, position: False) == 0
    assert log.has_kept(ref)
    log.compact(40, lambda lo, hi: [])
    assert log.first_index > 25
    assert log.drop_kept(lambda index, position: True) == 0
    assert log.read_record(25, 48, LENGTH) == _payload(25)
    assert log.drop_kept(lambda index, position: False) == 1
    log.close()


def test_files_that_are_gone_for_good_are_remembered_nowhere() -> None:
    log = _checkpointed(SimFiles())
    log.compact(40, lambda lo, hi: [_ref(lo)])
    log.drop_kept(lambda index, position: False)
    assert log.stats().kept_files == 0
    assert not log._store.open_files._gone
    log.close()


def test_a_full_disk_is_told_once_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    """The keeper looks again every second."""

    def told() -> int:
        return len([one for one in caplog.messages if one.startswith("disk full")])

    disk = SimFiles()
    disk.make_directory(ROOT)
    keeper = Keeper(disk, ROOT, SMALL, [], lambda _: None)  # its thread does not run
    disk.room = 0
    for _ in range(3):
        keeper._prepare()
        assert keeper.shortage is not None
    assert told() == 1
    disk.room = None
    keeper._prepare()
    assert keeper.shortage is None
    disk.room = 0
    keeper._wanted_bytes = 1 << 20
    keeper._prepare()
    assert told() == 2
    keeper.close()


def test_a_seal_without_room_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is on file systems that write nothing in place: the next start does without."""

    def refused(*_: object) -> None:
        raise DiskFull("no room for a seal")

    disk = SimFiles()
    log = opened(disk)
    failures: list[BaseException] = []
    log.on_failure = failures.append
    monkeypatch.setattr(keeper_module, "write_seal", refused)
    for one in frames(1, 40):
        fill(log, [one])
    log._store.keeper.drain()
    assert not failures
    log.close()
    monkeypatch.undo()
    again = opened(disk.restart(survives=0.0))
    assert everything(again) == frames(1, 40)
    again.close()
