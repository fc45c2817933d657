"""Runs tests against mutants: collected once, then one forked process per mutant.

How it works. pytest collects the tests in this process and runs them once on unchanged code, while
a trace notes which lines of the mutated files each test executes, and how long it takes. Then, in
place of the end of the run, a process is forked for every mutant: it plants the change in its own
memory (`planting.py`) and runs the tests that execute the changed lines: first the tests that have
killed a mutant of the same function, then the quickest. The first failure ends it. So a mutant
costs as much as the test that kills it, and no interpreter is ever started.

Invariants
1. A mutant never outlives its process, and nothing of it is written to disk.
2. Only processes that were forked here are ever killed, by their number.
3. Tests are the same in each process: hypothesis draws from a fixed seed, and remembers nothing.
4. Unchanged code survives, in a forked process too: checked before any mutant is run.

A test that takes much longer than before, and a process that needs far more memory, count as having
noticed the mutant. Hypothesis does not shrink, because it does not matter which example fails.

Not here: which mutants there are (`mutants.py`), the account (`results.py`).
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tools.mutation.mutants import Mutant, Source
from tools.mutation.planting import plant
from tools.mutation.results import KILLED, SURVIVED, TIMEOUT, UNPLANTABLE, Fate

_SURVIVED: Final = 0
_UNPLANTABLE: Final = 3
_KILLED: Final = 4
_SLOWER: Final = 6
_STANDSTILL: Final = 5
_MEMORY_BYTES: Final = 1 << 30
_POLL_S: Final = 0.2
_Trace = Callable[[FrameType, str, Any], Any]


class Unsound(Exception):
    """The tests do not pass without any change, so their failures would mean nothing."""


@dataclass(slots=True)
class _Case:
    """One test, with the lines that it executes."""

    item: pytest.Item
    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=dict)
    """Executed lines of the mutated files, by path."""
    reaches_all: bool = False
    """Set by its module (`REACHES_ALL = True`) where a trace would only cost time."""

    def reaches(self, path: str, lines: set[int]) -> bool:
        return self.reaches_all or not lines.isdisjoint(self.lines.get(path, ()))


@dataclass(slots=True)
class _Run:
    """A mutant that is being tested in a process of its own."""

    mutant: Mutant | None
    pid: int
    pipe: int
    cases: list[_Case]
    reached: int = 0
    since: float = 0.0
    cpu_s: float = 0.0
    """Processor time that its process had used when the present test began."""

    def expected_s(self) -> float:
        """Seconds that the present test took without the change."""
        return self.cases[self.reached].seconds if self.reached < len(self.cases) else 0.0


class Workbench:
    """A pytest plugin that takes the place of running the tests.

    `on_fate` is called with each mutant and its fate; after `until`, on the monotonic clock, no
    further mutant is begun. A test may take `grace_s` plus six times as long as without the change,
    counted in processor time, so that a busy machine kills nothing; a test that stands still is
    ended as well. A mutant meets only the first tests that take `within_s` together.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        mutants: list[Mutant],
        *,
        jobs: int,
        until: float,
        on_fate: Callable[[Mutant, Fate], None],
        grace_s: float = 6.0,
        within_s: float = math.inf,
    ) -> None:
        self._sources = {source.file: source for source in sources}
        self._mutants = mutants
        self._jobs = jobs
        self._until = until
        self._on_fate = on_fate
        self._grace_s = grace_s
        self._within_s = within_s
        self._traced = {str(source.path) for source in self._sources.values()}
        self._killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._failed = ""
        self._in_child = False
        self.error: str | None = None

    # --- hooks of pytest

    def pytest_sessionstart(self) -> None:
        """Sets hypothesis' profile, after the tests' conftest did and before tests run."""
        from hypothesis import Phase, settings  # only after pytest, which rewrites plugins

        settings.register_profile(
            "mutants",
            settings(),
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid
            if self._in_child:
                os._exit(_KILLED)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            self._work([_case_of(item) for item in session.items])
        except Unsound as error:
            self.error = str(error)
        except Exception:
            self.error = traceback.format_exc()
        return True

    # --- once, unchanged

    def _work(self, cases: list[_Case]) -> None:
        if not cases:
            raise Unsound("no tests were collected")
        for case, following in zip(cases, [*cases[1:], None], strict=True):
            self._measure(case, following.item if following else None)
            if self._failed:
                raise Unsound(f"{self._failed} fails without any change")
        gc.collect()
        gc.freeze()
        run = self._begin(None, sorted(cases, key=lambda case: case.seconds))
        while (fate := self._look(run)) is None:
            self._wait([run])
        if fate.outcome != SURVIVED:
            raise Unsound(f"{fate.test} fails in a forked process without any change")
        self._run_all(cases)

    def _measure(self, case: _Case, following: pytest.Item | None) -> None:
        lines = case.lines
        traced = self._traced

        tracers: dict[str, _Trace] = {}

        def tracer_of(path: str) -> _Trace:
            seen = lines.setdefault(path, set())

            def trace_line(frame: FrameType, event: str, argument: Any) -> _Trace:
                seen.add(frame.f_lineno)
                return trace_line

            return trace_line

        def trace(frame: FrameType, event: str, argument: Any) -> _Trace | None:
            path = frame.f_code.co_filename
            if path not in traced:
                return None
            tracer = tracers.get(path)
            if tracer is None:
                tracer = tracers[path] = tracer_of(path)
            return tracer

        begin = time.monotonic()
        if not case.reaches_all:
            threading.settrace(trace)
            sys.settrace(trace)
        try:
            case.item.config.hook.pytest_runtest_protocol(item=case.item, nextitem=following)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        case.seconds = time.monotonic() - begin

    # --- for each mutant

    def _run_all(self, cases: list[_Case]) -> None:
        waiting = iter(self._mutants)
        runs: list[_Run] = []
        more = True
        while runs or more:
            while more and len(runs) < self._jobs:
                mutant = next(waiting, None)
                if mutant is None or time.monotonic() >= self._until:
                    more = False
                    break
                chosen = self._cases_for(mutant, cases)
                if chosen:
                    runs.append(self._begin(mutant, chosen))
                else:
                    self._on_fate(mutant, Fate(mutant.key, SURVIVED, "", 0))
            if not runs:
                continue
            self._wait(runs)
            for run in list(runs):
                fate = self._look(run)
                if fate is not None:
                    runs.remove(run)
                    assert run.mutant is not None
                    if fate.test:
                        self._killers[run.mutant.function][fate.test] += 1
                    self._on_fate(run.mutant, fate)

    def _cases_for(self, mutant: Mutant, cases: list[_Case]) -> list[_Case]:
        path = str(self._sources[mutant.file].path)
        lines = set(mutant.lines)
        killers = self._killers[mutant.function]
        found = [case for case in cases if case.reaches(path, lines)]
        found.sort(key=lambda case: (-killers[case.item.nodeid], case.seconds))
        total_s = list(accumulate(case.seconds for case in found))
        return found[: bisect_right(total_s, self._within_s)]

    def _begin(self, mutant: Mutant | None, cases: list[_Case]) -> _Run:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            self._test(mutant, cases, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        return _Run(mutant, pid, reading, cases, since=time.monotonic())

    def _test(self, mutant: Mutant | None, cases: list[_Case], pipe: int) -> None:
        """Runs the tests in the forked process; never returns."""
        self._in_child = True
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # The limit also holds when the parent process is gone and no longer watches.
            seconds = math.ceil(self._grace_s + _SLOWER * sum(case.seconds for case in cases)) + 1
            used = math.ceil(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))
            limit = _address_space() + _MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            if mutant is not None:
                source = self._sources[mutant.file]
                try:
                    module = importlib.import_module(source.module)
                    plant(mutant, module, source.code_of(mutant))
                except (LookupError, ValueError):
                    os._exit(_UNPLANTABLE)
            following = [*(case.item for case in cases[1:]), None]
            for case, after in zip(cases, following, strict=True):
                case.item.config.hook.pytest_runtest_protocol(item=case.item, nextitem=after)
                os.write(pipe, b".")
        except BaseException:
            os._exit(_KILLED)
        os._exit(_SURVIVED)

    def _wait(self, runs: list[_Run]) -> None:
        select.select([run.pipe for run in runs], [], [], _POLL_S)

    def _look(self, run: _Run) -> Fate | None:
        """Reads the progress of a run; returns the mutant's fate once it is known."""
        now = time.monotonic()
        ended = False
        try:
            done = os.read(run.pipe, 4096)
            ended = not done
            if done:
                run.reached += len(done)
                run.since = now
                run.cpu_s = _cpu_s(run.pid)
        except BlockingIOError:
            pass
        limit_s = self._grace_s + _SLOWER * run.expected_s()
        slow = not ended and (
            _cpu_s(run.pid) > run.cpu_s + limit_s or now > run.since + _STANDSTILL * limit_s
        )
        if slow:
            os.kill(run.pid, signal.SIGKILL)
        elif not ended:
            return None
        os.close(run.pipe)
        _, status = os.waitpid(run.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        outcome = {_SURVIVED: SURVIVED, _UNPLANTABLE: UNPLANTABLE}.get(code, KILLED)
        test = ""
        if outcome == KILLED:
            test = run.cases[min(run.reached, len(run.cases) - 1)].item.nodeid
        key = run.mutant.key if run.mutant else ""
        tests_run = run.reached + (outcome == KILLED)
        return Fate(key, TIMEOUT if slow else outcome, test, tests_run)


def _case_of(item: pytest.Item) -> _Case:
    module = getattr(item, "module", None)
    return _Case(item, reaches_all=getattr(module, "REACHES_ALL", False))


def _cpu_s(pid: int) -> float:
    """Processor time of a process, also of one that has ended but was not waited for."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()
