"""Vote record, identity and dump: crashes, damage, and the tables of their formats."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from semel.controller.store import Versioned
from semel.controller.store.embedded import dump as dumps
from semel.controller.store.embedded import hard_state, identity
from semel.controller.store.embedded.dump import Dump
from semel.controller.store.embedded.files import replace_file
from semel.controller.store.embedded.hard_state import HardState, HardStateFile
from semel.controller.store.embedded.identity import Identity, claim
from semel.controller.store.embedded.journal import COMMAND, FIRST, NO_OP, Entry, JournalFiles
from semel.controller.store.embedded.machine import Result, Session, State
from semel.protos.errors import DataDirectoryError
from tests.unit.controller.store.embedded.disk import Crash, SimDisk

ME = Identity(cluster_id="c", controller_id=2, members=(1, 2, 3))


def dump_at(index: int, term: int = 1) -> Dump:
    return Dump(
        Entry(COMMAND + b"last", index, term),
        Entry(NO_OP, index - 1, term),
        State(
            revision=9,
            entries={"/a": Versioned(value=b"\x00v", version=9)},
            sessions={
                1: Session(
                    incarnation=3, resolved_below=7, results={7: Result(revision=9), 8: Result()}
                )
            },
        ),
    )


def test_term_vote_and_membership_return() -> None:
    disk = SimDisk()
    file = HardStateFile(disk)
    assert file.state is None
    state = HardState(term=3, voted_for=2, voter=True, incarnation=4)
    file.save(state)
    disk.power_off()
    assert HardStateFile(disk).state == state


def test_a_crash_at_any_operation_leaves_the_old_vote_or_the_new_one() -> None:
    old = HardState(term=3, voted_for=1, voter=True, incarnation=1)
    new = HardState(term=4, voted_for=2, voter=True, incarnation=1)
    seen = set()
    for crash_at in range(1, 30):
        disk = SimDisk()
        file = HardStateFile(disk)
        file.save(old)
        disk.crash_at = disk.operations + crash_at
        try:
            file.save(new)
        except Crash:
            disk.crash(random.Random(crash_at))
            seen.add(HardStateFile(disk).state)
            continue
        break
    assert seen == {old, new}
    disk.power_off()
    assert HardStateFile(disk).state == new


def test_a_vote_never_changes_and_a_term_never_falls() -> None:
    file = HardStateFile(SimDisk())
    file.save(HardState(term=3, voted_for=1, voter=True))
    for term, vote in ((3, 2), (3, None), (2, 1)):
        with pytest.raises(AssertionError, match=r"vote of term|term falls"):
            file.save_vote(term, vote)


def read_all(disk: SimDisk) -> None:
    claim(disk, ME)
    HardStateFile(disk)
    dumps.load(disk)


@pytest.mark.parametrize("name", [hard_state.FILE_NAME, identity.FILE_NAME, dumps.FILE_NAME])
def test_every_damaged_byte_is_refused_by_name_with_the_way_out(name: str) -> None:
    disk = SimDisk()
    claim(disk, ME)
    HardStateFile(disk).save(HardState(term=3, voted_for=1, voter=True))
    replace_file(disk, dumps.FILE_NAME, dumps.encode(dump_at(20)))
    good = disk.read(name)
    assert good is not None
    for position in range(len(good)):
        for bad in (good[:position], good[:position] + b"\xa5" + good[position + 1 :]):
            disk.write(name, bad)
            with pytest.raises(DataDirectoryError, match=rf"disk/{name} is damaged.*(E|e)mpty"):
                read_all(disk)


def test_a_directory_of_something_else_is_refused() -> None:
    disk = SimDisk()
    disk.write("metadata.sqlite", b"")
    with pytest.raises(DataDirectoryError, match="export"):
        claim(disk, ME)
    disk = SimDisk()
    disk.write("lock", b"")
    disk.write("controller.log", b"")
    claim(disk, ME)
    claim(disk, ME)
    for other in (
        replace(ME, cluster_id="d"),
        replace(ME, controller_id=1),
        replace(ME, members=(1, 2, 3, 4, 5)),
    ):
        with pytest.raises(DataDirectoryError, match="belongs to"):
            claim(disk, other)


def test_a_dump_returns_as_it_was() -> None:
    dump = dump_at(20)
    assert dumps.decode(dumps.encode(dump), "dump") == dump


def test_a_dump_of_pickles_or_with_values_of_the_future_is_refused() -> None:
    pickled = dump_at(20)._replace(last=Entry(b"\x02pickle", 20, 1))
    future = dump_at(20)._replace(
        state=replace(dump_at(20).state, entries={"/a": Versioned(value=b"", version=10)})
    )
    for bad in (pickled, future, dump_at(20)._replace(previous=Entry(NO_OP, 18, 1))):
        with pytest.raises(DataDirectoryError, match="is damaged"):
            dumps.decode(dumps.encode(bad), "dump")


def journal_of(disk: SimDisk, first: int, last: int, term: int = 1) -> JournalFiles:
    journal = JournalFiles(disk)
    dump = dump_at(20)
    at = {dump.last.index: dump.last, dump.previous.index: dump.previous, 1: FIRST}
    journal.replace(
        [
            at[index] if term == 1 and index in at else Entry(COMMAND + b"%d" % index, index, term)
            for index in range(first, last + 1)
        ]
    )
    return journal


def test_entries_behind_the_dump_stay_when_the_journal_begins_before_it() -> None:
    """A crash between dump and trim; pysyncobj clears such a journal."""
    disk = SimDisk()
    for first in (2, 18, 19, 20):
        journal = journal_of(disk, first, 25)
        dumps.fit(journal, dump_at(20), disk)
        assert journal.entries[:2] == [dump_at(20).previous, dump_at(20).last]
        assert [one.index for one in journal.entries] == list(range(19, 26))
        assert JournalFiles(disk).entries == journal.entries


def test_a_journal_that_ends_before_the_dump_or_conflicts_gives_way() -> None:
    disk = SimDisk()
    for journal in (journal_of(disk, 2, 12), journal_of(disk, 2, 30, term=0)):
        dumps.fit(journal, dump_at(20), disk)
        assert journal.entries == [dump_at(20).previous, dump_at(20).last]


def test_entries_missing_between_dump_and_journal_are_refused() -> None:
    disk = SimDisk()
    with pytest.raises(DataDirectoryError, match=r"it ends at 20, the entries begin at 22"):
        dumps.fit(journal_of(disk, 22, 25), dump_at(20), disk)
    with pytest.raises(DataDirectoryError, match="dump is damaged: it is missing"):
        dumps.fit(journal_of(disk, 22, 25), None, disk)
