"""Data damaged beyond repair moves away, and no crash makes the node forget that."""

from __future__ import annotations

import random
from pathlib import Path

from semel.broker.log import Log
from semel.broker.repair.quarantine import MARK_NAME, quarantine
from semel.protos.errors import CorruptSegment
from tests.kit.disk import PowerCut, SimFiles
from tests.kit.log_entries import SMALL, everything, fill, frames

DATA = Path("/node")
WANTED = frames(1, 10)
REASON = CorruptSegment("both headers")


def _built() -> SimFiles:
    disk = SimFiles()
    log = Log.open(DATA / "log", SMALL, files=disk)
    fill(log, WANTED)
    log.close()
    return disk.restart(survives=1.0)


def _everything(disk: SimFiles, directory: Path) -> list[bytes]:
    log = Log.open(directory, SMALL, files=disk)
    try:
        return everything(log)
    finally:
        log.close()


def test_nothing_is_lost_and_the_mark_comes_first() -> None:
    steps = 0
    seen: set[str] = set()
    while True:
        disk = _built()
        disk.crash_at = disk.operations + steps
        try:
            quarantine(disk, DATA, "log", REASON)
        except PowerCut:
            pass
        else:
            break
        for seed in range(8):
            found = disk.restart(random.Random(seed))
            marked = DATA / MARK_NAME in found.names_now
            places = [DATA / "log", DATA / "damaged-1" / "log"]
            (there,) = [place for place in places if found.names(place)]
            assert marked or there == places[0], "it may vote without what it had"
            assert _everything(found, there) == WANTED
            seen.add(f"{there} {marked}")
        steps += 1
    assert len(seen) == 3, seen


def test_a_second_time_takes_another_place() -> None:
    disk = _built()
    quarantine(disk, DATA, "log", REASON)
    log = Log.open(DATA / "log", SMALL, files=disk)
    fill(log, WANTED[:2])
    log.close()
    quarantine(disk, DATA, "log", REASON)
    assert _everything(disk, DATA / "damaged-1" / "log") == WANTED
    assert _everything(disk, DATA / "damaged-2" / "log") == WANTED[:2]


def test_what_is_not_there_is_not_missed() -> None:
    disk = SimFiles()
    disk.make_directory(DATA)
    quarantine(disk, DATA, "hard_state", REASON)
    assert DATA / MARK_NAME in disk.names_now
