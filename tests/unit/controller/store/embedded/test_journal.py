"""The journal: crashes at every operation, damage of every byte."""

from __future__ import annotations

import random

import pytest

from semel.controller.store.embedded import journal as module
from semel.controller.store.embedded.journal import (
    COMMAND,
    FILE_NAMES,
    FIRST,
    NO_OP,
    Entry,
    JournalFiles,
)
from semel.protos.errors import DataDirectoryError
from tests.unit.controller.store.embedded import planted
from tests.unit.controller.store.embedded.disk import Crash, SimDisk


def entry(index: int, term: int = 1, size: int = 20) -> Entry:
    return Entry(COMMAND + b"%d." % index * size, index, term)


def new_journal(disk: SimDisk) -> JournalFiles:
    journal = JournalFiles(disk)
    journal.replace([FIRST])
    return journal


def filled(disk: SimDisk, count: int = 5) -> list[Entry]:
    """A journal of several frames, the last one of two entries; closed."""
    journal = new_journal(disk)
    for index in range(2, count):
        journal.add(entry(index))
        journal.sync()
    journal.add(entry(count))
    journal.add(Entry(NO_OP, count + 1, 2))
    journal.sync()
    return list(journal.entries)


def test_everything_returns() -> None:
    disk = SimDisk()
    entries = filled(disk)
    disk.power_off()
    assert JournalFiles(disk).entries == entries


def test_deleted_entries_stay_deleted_and_places_are_used_again() -> None:
    disk = SimDisk()
    filled(disk, 6)
    journal = JournalFiles(disk)
    journal.delete_from(4)
    journal.add(Entry(NO_OP, 4, 3))
    journal.sync()
    disk.power_off()
    again = JournalFiles(disk)
    assert [one.index for one in again.entries] == [1, 2, 3, 4]
    assert again.last == Entry(NO_OP, 4, 3)
    again.delete_to(3)
    disk.power_off()
    assert [one.index for one in JournalFiles(disk).entries] == [3, 4]


def test_what_was_not_synced_is_not_promised() -> None:
    disk = SimDisk()
    entries = filled(disk)
    journal = JournalFiles(disk)
    journal.add(entry(7, 2))
    disk.power_off()
    assert JournalFiles(disk).entries == entries


def test_a_frame_that_only_the_page_cache_has_is_rewritten_at_start() -> None:
    """A kill between write and sync, or a sync that fails: the next process finds the frame."""
    for fails in (False, True):
        disk = SimDisk()
        entries = filled(disk)
        journal = JournalFiles(disk)
        journal.add(entry(7, 2))
        wanted = list(journal.entries)
        if fails:
            disk.fail_at = disk.operations
        else:
            disk.crash_at = disk.operations + 3  # both copies are written, neither is synced
        with pytest.raises((Crash, OSError)):
            journal.sync()
        disk.kill()
        assert len(wanted) == len(entries) + 1
        again = JournalFiles(disk)
        assert again.entries == wanted
        again.sync()
        disk.power_off()
        assert JournalFiles(disk).entries == wanted


def test_a_start_whose_sync_fails_raises_and_the_next_one_rewrites() -> None:
    disk = SimDisk()
    entries = filled(disk)
    disk.fail_at = disk.operations
    with pytest.raises(OSError, match="error"):
        JournalFiles(disk)
    disk.kill()
    assert JournalFiles(disk).entries == entries
    disk.power_off()
    assert JournalFiles(disk).entries == entries


def test_a_start_over_nothing_but_proven_names_writes_nothing() -> None:
    disk = SimDisk()
    entries = filled(disk)
    JournalFiles(disk)
    before = disk.operations
    assert JournalFiles(disk).entries == entries
    assert disk.operations == before


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_operation_loses_nothing_that_was_synced(seed: int) -> None:
    rng = random.Random(seed)
    crashes = 0
    for crash_at in range(1, 200):
        disk = SimDisk()
        journal = new_journal(disk)
        disk.crash_at = disk.operations + crash_at
        synced: list[Entry] = [FIRST]
        possible: list[Entry] = [FIRST]
        try:
            for index in range(2, 9):
                journal.add(entry(index, 1 if index <= 5 else 2))
                possible = list(journal.entries)
                journal.sync()
                synced = possible
                if index == 5:
                    journal.delete_from(4)
                    journal.add(entry(4, 2))
                    journal.add(entry(5, 2))
                    possible = list(journal.entries)
                    journal.sync()
                    synced = possible
                if index == 7:
                    possible = journal.entries[3:]
                    journal.delete_to(4)
                    synced = possible
        except Crash:
            crashes += 1
            disk.crash(rng)
            found = JournalFiles(disk).entries
            assert found in (synced, possible), f"crash at operation {crash_at}"
            assert JournalFiles(disk).entries == found, "opening it again changes it"
            continue
        assert crash_at > 20
        break
    assert crashes > 20


def test_a_reader_that_looks_at_no_checksum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.takes_a_torn_frame(monkeypatch)
    with pytest.raises((AssertionError, DataDirectoryError)):
        many_crashes()


def many_crashes() -> None:
    for seed in range(20):
        test_a_crash_at_any_operation_loses_nothing_that_was_synced(seed)


def test_one_damaged_byte_anywhere_loses_nothing_and_is_repaired() -> None:
    disk = SimDisk()
    entries = filled(disk)
    images = {name: disk.read(name) for name in FILE_NAMES}
    good = images[FILE_NAMES[0]]
    assert good is not None
    assert good == images[FILE_NAMES[1]]
    for name in FILE_NAMES:
        for position in range(len(good)):
            for other, image in images.items():
                assert image is not None
                disk.write(other, image)
            bad = bytearray(good)
            bad[position] ^= 0xFF
            disk.write(name, bytes(bad))
            assert JournalFiles(disk).entries == entries, f"byte {position} of {name}"
            repaired = [disk.read(one) for one in FILE_NAMES]
            assert repaired[0] == repaired[1]


def test_a_file_that_is_gone_or_cut_is_repaired_from_the_other() -> None:
    for length in (0, 10, 40, 100, None):
        disk = SimDisk()
        entries = filled(disk)
        image = disk.read(FILE_NAMES[0])
        assert image is not None
        if length is None:
            disk.remove(FILE_NAMES[0])
        else:
            disk.write(FILE_NAMES[0], image[:length])
        assert JournalFiles(disk).entries == entries
        assert disk.read(FILE_NAMES[0]) == disk.read(FILE_NAMES[1])


def test_damage_of_both_copies_before_the_end_is_refused_by_name() -> None:
    disk = SimDisk()
    filled(disk)
    image = disk.read(FILE_NAMES[0])
    assert image is not None
    place = image.index(b"3.3.3.")
    refused = 0
    for position in (place, 5, 30, place - 30):
        for name in FILE_NAMES:
            bad = bytearray(image)
            bad[position] ^= 0x01
            disk.write(name, bytes(bad))
        with pytest.raises(DataDirectoryError, match=r"journal\.a and disk/journal\.b are damaged"):
            JournalFiles(disk)
        refused += 1
    assert refused == 4


def test_a_frame_that_is_torn_in_both_copies_at_the_end_is_cut() -> None:
    disk = SimDisk()
    entries = filled(disk)
    images = [disk.read(name) for name in FILE_NAMES]
    journal = JournalFiles(disk)
    journal.add(entry(7, 2))
    journal.sync()
    longer = disk.read(FILE_NAMES[0])
    assert longer is not None
    assert images[0] is not None
    for cut in range(len(images[0]), len(longer)):
        for name in FILE_NAMES:
            disk.write(name, longer[:cut])
        assert JournalFiles(disk).entries == entries


def test_an_unknown_kind_of_entry_is_damage() -> None:
    disk = SimDisk()
    journal = new_journal(disk)
    journal.add(Entry(b"\x02pickled", 2, 1))
    journal.sync()
    with pytest.raises(DataDirectoryError, match="an entry of kind 02"):
        JournalFiles(disk)


def test_a_newer_format_is_refused() -> None:
    disk = SimDisk()
    filled(disk)
    image = disk.read(FILE_NAMES[0])
    assert image is not None
    head = module.HEADER_STRUCT.pack(module.HEADER_MAGIC, 2, 0, 1, 0)[:-4]
    newer = head + module._crc(head).to_bytes(4, "little") + image[module.HEADER_STRUCT.size :]
    disk.write(FILE_NAMES[1], newer)
    with pytest.raises(DataDirectoryError, match="format version 2"):
        JournalFiles(disk)
