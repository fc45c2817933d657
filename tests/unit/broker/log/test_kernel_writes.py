"""The writer's two ways, by the kernel and by its thread, and every way from one to the other.

How it works. Scripts and hypothesis drive the writer of a `Machine`, which notices what must not
happen; planted bugs must be noticed.

Not here: what is left on the disk by a crash (`test_crash.py`), the real kernel
(`test_kernel_sync.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.log import writer as writer_module
from semel.broker.log.active import _DROP_BYTES
from semel.broker.log.index import Roll, Write
from semel.broker.log.writer import Writer
from tests.unit.broker.log.kernel_machine import BIG, EIO, SMALL, Machine, running


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_SMALL_BYTES", 1_000)


# --- one after the other --------------------------------------------------------------------------


def test_a_small_write_is_synced_by_the_kernel_and_reported_when_that_is_done() -> None:
    with running() as machine:
        assert machine.reports == [(1, 1, 0, 1)], "the first one rolls: the thread had it"
        assert machine.by_loop == 0
        machine.append(SMALL, 104)
        assert (machine.by_loop, len(machine.reports)) == (1, 1)
        machine.complete()
        assert len(machine.reports) == 1, "nobody has told"
        machine.tell()
        assert machine.reports[1:] == [(3, 1, 0, 1)]
        active = machine.writer.active
        assert (active.syncs, active.rolls, active.written_bytes) == (2, 1, 96 + 96 + 104)
        assert active.durable_index == active.written_index == 3
        assert active.dirty_since is None
        assert active.sync_seconds.count == 2


def test_a_sync_takes_as_long_as_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 1e6 + monotonic())
    with running() as machine:
        for _ in range(3):
            machine.append(SMALL)
        machine.settle()
        seconds = machine.writer.active.sync_seconds
        assert seconds.count == 3
        assert 0 <= seconds.total_s < 60


def test_what_comes_meanwhile_is_one_group_that_begins_before_the_report() -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.append(SMALL)
        machine.append(SMALL)
        assert machine.by_loop == 1
        began_at: list[int] = []
        on_durable = machine.writer._on_durable

        def told(*report: int) -> None:
            began_at.append(machine.by_loop)
            on_durable(*report)

        machine.writer._on_durable = told
        machine.tell()
        assert began_at == [2]
        machine.tell()
        assert machine.reports[1:] == [(2, 1, 0, 1), (4, 1, 0, 2)]
        assert began_at == [2, 2]


def test_an_id_tells_what_was_durable_when_it_was_written_and_no_more() -> None:
    """A node judges by that what it finds after a crash: an entry that is called durable and is not
    there would halt it. Not even the group that has just begun counts."""
    with running() as machine:
        active = machine.writer.active
        machine.slowest = 1
        machine.append(SMALL)
        machine.append(SMALL)  # gathers, and begins before the first is reported
        assert (active.durable_index, active.written_index) == (1, 2)
        machine.tell()
        assert (active.durable_index, active.written_index) == (2, 3)
        machine.append(SMALL)
        machine.tell()
        assert (active.durable_index, active.written_index) == (3, 4)
        machine.tell()
        assert (active.durable_index, active.written_index) == (4, 4)


def test_what_a_report_leads_to_is_taken_up_behind_it() -> None:
    with running() as machine:
        on_durable = machine.writer._on_durable

        def told(*report: int) -> None:
            on_durable(*report)
            if machine.index.last_index < 4:
                machine.append(SMALL)

        machine.writer._on_durable = told
        machine.append(SMALL)
        machine.tell()
        machine.tell()
        machine.tell()
        assert machine.reports[1:] == [(2, 1, 0, 1), (3, 1, 0, 1), (4, 1, 0, 1)]
        assert machine.by_loop == 3


@pytest.mark.parametrize("length", [1_000, 1_008])
def test_a_large_group_is_the_threads(length: int) -> None:
    with running() as machine:
        machine.append(length)
        machine.settle()
        assert machine.by_loop == (length <= 1_000)
        assert len(machine.reports) == 2


def test_what_gathers_to_a_large_group_is_the_threads() -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.append(504)
        machine.append(504)
        machine.tell()
        machine.idle()
        assert machine.by_loop == 1
        assert machine.reports[1:] == [(2, 1, 0, 1), (4, 1, 0, 2)]


def test_a_roll_while_the_kernel_syncs_waits_for_it_and_is_the_threads() -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.append(SMALL, SMALL, SMALL)  # the second of them is in the next segment
        assert machine.writer.active.rolls == 1
        machine.tell()
        machine.idle()
        assert (machine.writer.active.rolls, machine.by_loop) == (2, 1)
        assert machine.reports[-1][0] == 5
        machine.append(SMALL)
        assert machine.by_loop == 2, "the next one is the kernel's again"


def test_a_truncation_while_the_kernel_syncs_is_reported_with_its_era() -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.truncate()
        machine.append(SMALL)
        machine.settle()
        assert machine.reports[1:] == [(2, 1, 0, 1), (2, 2, 1, 1)]
        assert machine.by_loop == 1


def test_a_hint_to_the_page_cache_is_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as machine:
        active = machine.writer.active
        active.page_cached = False
        active._dropped_to = active._written_to - _DROP_BYTES + SMALL
        machine.append(SMALL)
        machine.settle()
        assert (machine.by_loop, machine.dropped) == (1, 0)
        machine.append(SMALL)
        machine.settle()
        assert machine.by_loop == 1
        assert machine.dropped == _DROP_BYTES + SMALL


def test_delayed_syncs_and_nodes_without_a_kernel_use_the_thread() -> None:
    for options in ({"interval_ms": 1}, {"kernel": False}):
        machine = Machine(**options)
        for _ in range(3):
            machine.append(SMALL)
            machine.idle()
        machine.end()
        assert machine.by_loop == 0
        assert machine.unreported == 0


def test_before_the_thread_has_performed_all_it_has_the_segment() -> None:
    with running() as machine:
        machine.pause_s = 0.02
        machine.append(BIG)
        machine.append(SMALL)
        assert machine.by_loop == 0
        machine.settle()


@pytest.mark.parametrize("length", [SMALL, BIG])
def test_what_is_held_is_written_when_it_is_released(length: int) -> None:
    with running() as machine:
        written = machine.writer.active.written_bytes
        machine.hold()
        machine.append(length)
        machine.append(SMALL)
        machine.idle()
        assert machine.writer.active.written_bytes == written
        machine.release()
        machine.settle()
        assert [report[3] for report in machine.reports[1:]] == [2]
        machine.append(SMALL)
        assert machine.by_loop == (2 if length == SMALL else 1), "held no longer"
        machine.release()  # which is not needed


@pytest.mark.parametrize("kernel", [False, True])
def test_what_is_held_is_written_at_the_end(kernel: bool) -> None:
    with running(kernel=kernel) as machine:
        machine.hold()
        machine.append(SMALL)
        machine.append(BIG)
    assert machine.reports[-1][0] == 3


# --- the end --------------------------------------------------------------------------------------


def test_the_end_while_nothing_is_under_way() -> None:
    with running() as machine:
        pass
    assert machine.closed == 1
    assert not machine.writer._thread.is_alive()


@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("gathered", [(), (SMALL,), (BIG, SMALL), (SMALL, SMALL, SMALL)])
@pytest.mark.parametrize("in_executor", [False, True])
def test_the_end_while_the_kernel_syncs(
    completed: bool, gathered: tuple[int, ...], in_executor: bool
) -> None:
    """The thread waits for it, reports it, and goes on with what has gathered."""
    with running() as machine:
        syncs = machine.by_thread
        machine.append(SMALL)
        for length in gathered:
            machine.append(length)
        if completed:
            machine.complete()
        if in_executor:
            executor = threading.Thread(target=machine.writer.close)
            executor.start()
            executor.join()
        else:
            machine.writer.close()
        assert machine.reports[1] == (2, 1, 0, 1)
        assert machine.reports[-1][0] == 2 + len(gathered)
        assert machine.closed == 1
        assert gathered or machine.by_thread == syncs, "the kernel has synced that"
        before = list(machine.reports)
        machine.tell()
        assert machine.reports == before, "the late one is reported again"
        machine.append(SMALL)
        machine.idle = lambda: None  # type: ignore[method-assign]
        machine._writes.clear()


def test_the_end_does_not_make_good_what_the_kernel_failed_to_sync() -> None:
    """The kernel tells the error once: a second sync of the same file would succeed."""
    with running() as machine:
        machine.append(SMALL)
        machine.append(SMALL)
        machine.fail_sync = True
        machine.complete()
        machine.fail_sync = False
        machine.writer.close()
        assert machine.failures == [EIO]
        assert machine.writer.failed
        assert len(machine.reports) == 1
        assert machine.closed == 1


def test_the_end_after_a_failure_syncs_nothing() -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.fail_sync = True
        machine.tell()
        machine.fail_sync = False
        machine.writer.close()
        assert machine.failures == [EIO]
        assert len(machine.reports) == 1


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["fail_write", "fail_start", "fail_sync"])
@pytest.mark.parametrize("gathered", [0, 2])
def test_a_failure_is_reported_once_and_ends_everything(fault: str, gathered: int) -> None:
    with running() as machine:
        setattr(machine, fault, True)
        machine.append(SMALL)
        for _ in range(gathered):
            machine.append(SMALL)
        machine.settle()
        setattr(machine, fault, False)
        assert machine.failures == [EIO]
        assert machine.writer.failed
        machine.append(SMALL)
        machine.append(BIG)
        assert len(machine.reports) == 1


@pytest.mark.parametrize("fault", ["fail_write", "fail_start"])
def test_the_group_before_the_one_that_fails_is_reported_first(fault: str) -> None:
    with running() as machine:
        machine.append(SMALL)
        machine.append(SMALL)
        setattr(machine, fault, True)
        machine.tell()
        assert machine.reports[1:] == [(2, 1, 0, 1)]
        assert machine.failures == [EIO]


def test_after_a_report_that_fails_the_group_behind_it_is_not_reported() -> None:
    """The kernel had its sync by then, and may finish it."""
    with running() as machine:
        failure = RuntimeError("full up")

        def refused(*report: int) -> None:
            raise failure

        machine.append(SMALL)
        machine.append(SMALL)
        machine.writer._on_durable = refused
        machine.tell()
        assert machine.failures == [failure]
        assert machine.under_way
        machine.writer._on_durable = machine._on_durable
        machine.tell()
        assert len(machine.reports) == 1


# --- any timing -----------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.sampled_from([SMALL, SMALL, 504, BIG]), min_size=1, max_size=3),
        ),
        st.sampled_from(
            [
                (name, None)
                for name in ("truncate", "complete", "tell", "tell", "idle", "hold", "release")
            ]
        ),
    ),
    max_size=25,
)


def drive(actions: list[tuple[str, list[int] | None]], end: str = "settle") -> Machine:
    machine = Machine()
    machine.pause_s = 0.0002  # the thread is in the middle of something, mostly
    for name, lengths in actions:
        if lengths is not None:
            machine.append(*lengths)
        else:
            getattr(machine, name)()
    getattr(machine, end)()
    machine.end()
    return machine


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, end=st.sampled_from(["settle", "end"]))
def test_in_any_timing_all_is_reported_once_in_order_and_durable(
    actions: list[tuple[str, list[int] | None]], end: str
) -> None:
    machine = drive(actions, end)
    assert machine.wrong == []
    assert machine.failures == []
    assert machine.unreported == 0


def _reports_at_once(patch: pytest.MonkeyPatch) -> None:
    begin = Writer._begin

    def _begin(self: Writer, group: list[Write]) -> BaseException | None:
        self._report(group)
        return begin(self, group)

    patch.setattr(Writer, "_begin", _begin)


def _ignores_errors(patch: pytest.MonkeyPatch) -> None:
    hears = Writer._on_kernel_synced
    patch.setattr(Writer, "_on_kernel_synced", lambda self, group, error: hears(self, group, None))


def _reports_out_of_order(patch: pytest.MonkeyPatch) -> None:
    def _report_and_go_on(self: Writer, group: list[Write]) -> None:
        self.active.on_synced(self._began)
        self._under_way = None
        self._go_on(self._take_gathered())
        time.sleep(0.01)
        self._report(group)

    patch.setattr(Writer, "_report_and_go_on", _report_and_go_on)


def _does_not_wait_for_the_thread(patch: pytest.MonkeyPatch) -> None:
    decide = Writer._are_for_the_kernel

    def _are_for_the_kernel(self: Writer, steps: list[Roll | Write]) -> bool:
        given, self._given = self._given, self._performed
        try:
            return decide(self, steps)
        finally:
            self._given = given

    patch.setattr(Writer, "_are_for_the_kernel", _are_for_the_kernel)


def _writes_while_the_kernel_syncs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "put", lambda self, step: self._go_on([step]))


def _syncs_again_at_the_end(patch: pytest.MonkeyPatch) -> None:
    def _wait_for_kernel(self: Writer, step: writer_module._TakenOver) -> None:
        self.active.sync()
        self._report(step.group)

    patch.setattr(Writer, "_wait_for_kernel", _wait_for_kernel)


SCRIPT: list[tuple[str, list[int] | None]] = [
    ("append", [SMALL]),
    ("idle", None),
    *[
        ("append", [SMALL]),
        ("append", [BIG]),
        ("idle", None),
        ("tell", None),
        ("append", [SMALL]),
    ]
    * 6,
]


@pytest.mark.parametrize(
    ("plant", "noticed"),
    [
        (_reports_at_once, "reported, and not durable"),
        (_reports_out_of_order, "a report out of order"),
        (_does_not_wait_for_the_thread, "write beside another operation"),
        (_writes_while_the_kernel_syncs, "write while the kernel syncs"),
    ],
)
def test_the_machine_notices_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drive(SCRIPT).wrong == []
    plant(monkeypatch)
    assert any(noticed in drive(SCRIPT).wrong for _ in range(20))


def test_the_machine_notices_an_error_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for plant in (_ignores_errors, _syncs_again_at_the_end):
        with monkeypatch.context() as patch:
            plant(patch)
            machine = Machine()
            machine.append(SMALL)
            machine.settle()
            machine.append(SMALL)
            machine.fail_sync = True
            machine.complete()
            machine.fail_sync = False
            if plant is _ignores_errors:
                machine.tell()
                assert machine.wrong == ["reported, and not durable"]
            machine.writer.close()
            assert not machine.failures, "which the true one has"
