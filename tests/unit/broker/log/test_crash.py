"""Power failures: any subset of unsynced writes may survive, what was reported must. Kills: all
that was written is found, and only what was synced is durable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.log import Log, checkpoint, kept, recovery, writer
from semel.broker.log.active import ActiveSegment
from semel.broker.log.files import File
from semel.broker.log.index import Write
from semel.broker.log.reader import Reader
from semel.broker.log.types import Damage
from semel.broker.log.writer import Writer
from tests.kit.disk import SimFiles, SimSyncs
from tests.kit.log_entries import fill, frame, frames, opened
from tests.kit.waiting import until
from tests.unit.broker.log.crash_model import Driver, Model, Violation, run_seed

SEEDS_TO_CATCH = 1_500
"""At most: the first that shows it is enough; the threads' pace has a part in which it is."""


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), kernel=st.booleans())
def test_what_was_reported_survives_and_nothing_torn_is_served(seed: int, kernel: bool) -> None:
    run_seed(seed, kernel=kernel)


@pytest.fixture(autouse=True, scope="module")
def _large_groups_come_soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_SMALL_BYTES", 1_500)
        yield


@pytest.mark.parametrize("kernel", [False, True])
def test_the_rare_events_happen(kernel: bool) -> None:
    saw: set[str] = set()
    wanted = {
        *(["kernel"] if kernel else []),
        "checkpoint",
        "closed",
        "compaction",
        "cut at an operation",
        "cut in a thread",
        "failed at the start",
        "failed sync",
        "killed",
        "replaced while it was repaired",
        "torn",
        "truncation",
    }
    for seed in range(SEEDS_TO_CATCH):
        saw |= run_seed(seed, kernel=kernel)
        if saw >= wanted:
            return
    raise AssertionError(f"never happened: {wanted - saw}")


@pytest.mark.parametrize("completed", [False, True])
def test_a_crash_while_the_kernel_syncs(completed: bool) -> None:
    """What it has not synced may be lost, and was not reported; what it has is there."""
    disk = SimFiles()
    kernel = disk.kernel = SimSyncs(disk)
    log = opened(disk)
    fill(log, frames(1, 2))
    log.attach(None)  # type: ignore[arg-type]
    writer = log._store.writer
    until(lambda: writer._given == writer._performed)
    log.append(frames(2, 4))
    log.append(frames(4, 5))  # gathers
    assert kernel.under_way
    if completed:
        kernel.complete()
    assert log.synced_index == 1
    again = opened(disk.restart(survives=0.0))
    assert again.last_index == (3 if completed else 1)
    again.close()
    again = opened(disk.restart(survives=1.0))
    assert again.last_index == 3, "what gathered is in memory alone"
    again.close()
    kernel.tell()
    assert log.synced_index == 3
    log.close()
    assert log.synced_index == 4
    assert kernel.closed


def _is_caught(*, kernel: bool = False) -> bool:
    for seed in range(SEEDS_TO_CATCH):
        try:
            Driver(seed, kernel=kernel).run(4)
        except Violation:
            return True
        except Exception:
            continue
    return False


class _NeverSynced:
    """A file whose owner forgets to sync it."""

    def __init__(self, file: File) -> None:
        self.write = file.write
        self.close = file.close

    def sync(self) -> None:
        pass


def test_the_checker_finds_nothing_in_the_real_log() -> None:
    """So that the plants below are what is caught."""
    for seed in range(20):
        Driver(seed).run(4)


def test_the_checker_catches_a_missing_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: ActiveSegment) -> None:
        self.dirty_since = None
        self.durable_index = self.written_index

    monkeypatch.setattr(ActiveSegment, "sync", sync)
    assert _is_caught()


def test_the_checker_catches_a_report_before_the_kernel_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, report = Writer._begin, Writer._report
    told: list[list[Write] | None] = [None]

    def _begin(self: Writer, group: list[Write]) -> BaseException | None:
        self._report(group)
        told[0] = group
        return begin(self, group)

    def _report(self: Writer, group: list[Write]) -> None:
        if group is not told[0]:
            report(self, group)

    monkeypatch.setattr(Writer, "_begin", _begin)
    monkeypatch.setattr(Writer, "_report", _report)
    assert _is_caught(kernel=True)


def test_the_checker_catches_an_error_of_the_kernel_that_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hears = Writer._on_kernel_synced
    monkeypatch.setattr(
        Writer, "_on_kernel_synced", lambda self, group, error: hears(self, group, None)
    )
    assert _is_caught(kernel=True)


def test_the_checker_catches_frames_taken_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_is_entry", lambda frame, one: True)
    monkeypatch.setattr(Reader, "_check", lambda *_: None)
    assert _is_caught()


def test_the_checker_catches_a_page_cache_that_is_taken_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart syncs what it finds; but pages whose sync has failed are clean to the kernel."""
    monkeypatch.setattr(recovery._Walk, "_write_again", lambda *_: None)
    assert _is_caught()


def test_the_checker_catches_what_is_found_and_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    original = recovery._Walk.__init__

    def unsyncing(self: object, file: File, *rest: object) -> None:
        unsynced = _NeverSynced(file)
        unsynced.read = file.read  # type: ignore[attr-defined]
        original(self, unsynced, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery._Walk, "__init__", unsyncing)
    assert _is_caught()


def test_the_checker_catches_a_repaired_entry_that_strikes_what_has_replaced_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place is looked up when it is written, and not when the damage is looked at."""
    original = Reader.repair

    def repair(self: Reader, damage: Damage, frame: bytes) -> None:
        segment = self._index.locate(damage.index)
        position, _ = segment.place(damage.index)
        damage = dataclasses.replace(damage, file_name=segment.file_name, position=position)
        original(self, damage, frame)

    monkeypatch.setattr(Reader, "repair", repair)
    assert _is_caught()


def _truncate_and_lose_power() -> None:
    """As in figure 7 of the Raft paper: what is truncated has a higher term than what follows."""
    disk, model = SimFiles(), Model()
    log = opened(disk)
    log.on_synced = model.on_synced
    for added in (frames(1, 4), frames(4, 7, term=3)):
        model.now.extend(added)
        fill(log, added)
    log.truncate(4)
    model.truncate(4)
    model.now.append(frame(4, term=2))
    fill(log, [frame(4, term=2)])
    again = opened(disk.restart())
    model.check(again)
    again.close()
    log.close()


def test_truncated_entries_do_not_come_back_behind_others() -> None:
    _truncate_and_lose_power()


def test_the_checker_catches_a_truncation_that_writes_on_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Log.truncate

    def truncate(self: Log, from_index: int) -> None:
        self._store.writer.active.durable_index = 0
        index = self._store.index
        tail = index._tail
        assert tail is not None
        original(self, from_index)
        tail.sealed = False
        index._tail, index._unsealed = tail, None

    monkeypatch.setattr(Log, "truncate", truncate)
    with pytest.raises(Violation, match="of no lineage"):
        _truncate_and_lose_power()


def test_the_checker_catches_kept_files_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = kept._KeptWriter.finish

    def finish(self: kept._KeptWriter) -> object:
        self._file = _NeverSynced(self._file)  # type: ignore[assignment]
        return original(self)

    monkeypatch.setattr(kept._KeptWriter, "finish", finish)
    assert _is_caught()


def test_the_checker_catches_checkpoints_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint._write
    monkeypatch.setattr(
        checkpoint,
        "_write",
        lambda file, index, term, parts: original(_NeverSynced(file), index, term, parts),  # type: ignore[arg-type]
    )
    assert _is_caught()
