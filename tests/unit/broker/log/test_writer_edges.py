"""What the writer does with its files, step by step, and what it reports."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence

from semel.broker.log.files import File
from semel.broker.log.index import Retired, Roll, Write
from semel.broker.log.segment import ID_BYTES, IDS_AT, LAG_MAX, Segment, decode_id
from semel.broker.log.writer import Writer
from tests.unit.broker.log.indexes import AT, index_of, put

# --- the writer -----------------------------------------------------------------------------------


class Files:
    """What the writer asks of its files, in order."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.retired: list[tuple[object, object]] = []

    def activate(self, segment: Segment) -> File:
        self.calls.append(("activate", segment.header.sequence))
        return _Recorder(self.calls, segment.header.sequence)  # type: ignore[return-value]

    def retire(self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]) -> None:
        number = None if file is None else file.number  # type: ignore[attr-defined]
        self.calls.append(("retire", number, len(void)))
        self.retired.append((retired, void))


class _Recorder:
    def __init__(self, calls: list[object], number: int) -> None:
        self.calls = calls
        self.number = number
        self.data: dict[int, bytes] = {}

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        joined = b"".join(parts)
        self.data[offset] = joined
        self.calls.append(("write", self.number, offset, len(joined)))

    def sync(self) -> None:
        self.calls.append(("sync", self.number))

    def close(self) -> None:
        self.calls.append(("close", self.number))


def written(
    *steps: Roll | Write, durable_index: int = 0, interval_ms: int = 0
) -> tuple[Writer, Files, list[tuple[int, int, int, int]]]:
    """A writer that was given all steps before it began, and has ended."""
    files = Files()
    reports: list[tuple[int, int, int, int]] = []
    failures: list[BaseException] = []
    writer = Writer(
        files,
        durable_index=durable_index,
        sync_interval_ms=interval_ms,
        on_durable=lambda *report: reports.append(report),
        on_failure=failures.append,
    )
    for step in steps:
        writer.put(step)
    writer.put(_stop())
    writer.start()
    writer.close()
    assert failures == []
    return writer, files, reports


def _stop() -> Write:
    from semel.broker.log import writer

    return writer._STOP  # type: ignore[return-value]


def test_one_group_is_two_writes_and_one_sync() -> None:
    index = index_of()
    steps = [*put(index, 96, 200, term=1, era=2), *put(index, 104, term=3, era=5)]
    writer, files, reports = written(*steps)
    assert files.calls == [
        ("activate", 1),
        ("retire", None, 0),
        ("write", 1, AT, 400),
        ("write", 1, IDS_AT, 3 * ID_BYTES),
        ("sync", 1),
        ("close", 1),
    ]
    assert reports == [(3, 3, 5, 2)]
    active = writer.active
    assert (active.syncs, active.rolls, active.written_bytes, writer.failed) == (1, 1, 400, False)


def test_a_report_names_the_term_of_its_last_entry() -> None:
    index = index_of()
    steps = index.place([bytes(96), bytes(96), bytes(96)], [1, 2, 5], 0)
    _, _, reports = written(*steps)
    assert reports == [(3, 5, 0, 1)]


def test_ids_say_what_was_durable_when_they_were_written() -> None:
    index = index_of()
    roll, first = put(index, 96, 200)
    (second,) = put(index, 104, term=2)
    assert isinstance(roll, Roll)
    files = Files()
    writer = Writer(
        files,
        durable_index=0,
        sync_interval_ms=0,
        on_durable=lambda *report: None,
        on_failure=lambda error: None,
    )
    assert writer._perform([roll, first])
    assert writer._perform([second])
    file = writer.active.file
    seed = roll.segment.seed
    ids = file.data[IDS_AT] + file.data[IDS_AT + 2 * ID_BYTES]  # type: ignore[union-attr]
    found = [decode_id(ids, slot, seed) for slot in range(3)]
    assert [(one.index, one.term, one.position, one.length, one.lag) for one in found if one] == [
        (1, 1, AT, 96, 1),
        (2, 1, AT + 96, 200, 2),
        (3, 2, AT + 296, 104, 1),
    ]
    writer.active.durable_index = -LAG_MAX
    (third,) = put(index, 8)
    writer._perform([third])
    last = decode_id(file.data[IDS_AT + 3 * ID_BYTES], 0, seed)  # type: ignore[union-attr]
    assert last is not None
    assert last.lag == LAG_MAX


def test_a_roll_syncs_the_old_segment_before_it_names_the_new_one() -> None:
    index = index_of()
    steps = put(index, 96, 96, 96, 96, 104)
    old = index.segments[0]
    writer, files, reports = written(*steps)
    assert files.calls == [
        ("activate", 1),
        ("retire", None, 0),
        ("write", 1, AT, 384),
        ("write", 1, IDS_AT, 4 * ID_BYTES),
        ("sync", 1),
        ("activate", 2),
        ("retire", 1, 0),
        ("write", 2, AT, 104),
        ("write", 2, IDS_AT, ID_BYTES),
        ("sync", 2),
        ("close", 2),
    ]
    assert files.retired == [(None, ()), (Retired(old, 4, AT + 384, 1), ())]
    assert reports == [(5, 1, 0, 2)]
    assert (writer.active.syncs, writer.active.rolls) == (2, 2)
    assert (writer.active.durable_index, writer.active.written_index) == (5, 5)


def test_a_roll_behind_a_truncation_counts_from_the_cut() -> None:
    index = index_of()
    steps = put(index, 96, 96, 96)
    index.truncate(2)
    steps += put(index, 104, term=2, era=1)
    writer, files, reports = written(*steps)
    assert reports == [(2, 2, 1, 2)]
    assert writer.active.durable_index == 2
    assert ("write", 2, AT, 104) in files.calls


def test_with_an_interval_reports_do_not_wait_and_the_end_syncs() -> None:
    index = index_of()
    writer, files, reports = written(*put(index, 96), interval_ms=60_000)
    assert reports == [(1, 1, 0, 1)]
    assert (writer.active.syncs, files.calls[-2:]) == (1, [("sync", 1), ("close", 1)])
    quiet = Writer(
        Files(),
        durable_index=0,
        sync_interval_ms=60_000,
        on_durable=lambda *report: None,
        on_failure=lambda error: None,
    )
    assert quiet._interval_s == 60
    assert quiet._thread.daemon, "a process that fails must end"
    assert quiet._perform([])
    assert quiet._perform(list(put(index_of(), 96)))
    active = quiet.active
    assert (active.syncs, active.dirty_since is None, active.durable_index) == (0, False, 0)


class Quiet:
    """A queue in which nothing comes; it tells how long somebody waited."""

    def __init__(self) -> None:
        self.waited: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        self.waited.append(timeout)
        raise queue.Empty


def test_a_delayed_sync_waits_for_its_time_and_comes() -> None:
    for due_s, low, high in ((50.0, 40.0, 50.0), (-5.0, 0.0, 0.0)):
        writer = Writer(
            Files(),
            durable_index=7,
            sync_interval_ms=60_000,
            on_durable=lambda *report: None,
            on_failure=lambda error: None,
        )
        assert (writer.active.durable_index, writer.active.written_index) == (7, 7)
        assert writer._perform(list(put(index_of(), 96)))
        quiet = Quiet()
        writer._queue = quiet  # type: ignore[assignment]
        writer.active.dirty_since = time.monotonic() + due_s - 60
        assert writer._gather() == []
        (waited,) = quiet.waited
        assert waited is not None
        assert low <= waited <= high
        active = writer.active
        assert (active.syncs, active.dirty_since, active.durable_index) == (1, None, 1)


def test_without_frames_nothing_is_written_nor_reported() -> None:
    writer, files, reports = written()
    assert (files.calls, reports, writer.active.syncs) == ([], [], 0)
