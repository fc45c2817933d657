"""The tests that may fail on one Python alone, on every other supported one of this machine.

All tests run on the Python that pytest runs on. On the others run the units of what differs from
Python to Python (event loops, threads, sockets, TLS, databases), the budgets of a batch, one file
with real processes, and simulated clusters. Seeds are dealt out over them, and so are units that
have no more than coroutines and threads: a machine with many takes little longer. Which of them
runs which of these units follows from the seed of the run, so that each meets all in time. Where no
other Python is, there is nothing to run here.

Not here: all units and many seeds on each of them, which is `./run soak pythons`
(docs/decisions/pythons.md has figures).
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.pythons import worlds
from tests.pythons.others import (
    PROCESSES,
    PYTHONS,
    ROOT,
    UNITS,
    WORLDS_IN_SHORT,
    Unsuccessful,
    dealt_to,
    differs,
    differs_most,
    run,
    run_all_worlds,
    run_tests,
    run_worlds,
    units_of,
    units_that_differ,
)

SEEDS: Final = 18
"""Number of seeds of each kind of simulated cluster, over all other Pythons."""
VERSIONS: Final = list(PYTHONS)

pytestmark = pytest.mark.timeout(1_800)  # of these a single one is a whole run of pytest


@pytest.mark.parametrize("version", VERSIONS)
class TestPython:
    __test__ = bool(VERSIONS)

    def test_units_of_what_differs(
        self, version: str, tmp_path: Path, pytestconfig: pytest.Config
    ) -> None:
        turn = zlib.crc32(str(pytestconfig.option.hypothesis_seed).encode())
        units = units_of(version, VERSIONS, turn)
        run_tests(version, [*units, *WORLDS_IN_SHORT], tmp_path / "base")

    def test_processes(self, version: str, tmp_path: Path) -> None:
        run_tests(version, PROCESSES, tmp_path / "base")

    def test_simulated_clusters(self, version: str) -> None:
        run_all_worlds(version, dealt_to(version, VERSIONS, SEEDS))


def test_each_seed_runs_on_one_of_the_pythons() -> None:
    versions = ["3.11.2", "3.12.1", "3.13.0", "3.14.0"]
    for several in (versions[:1], versions[:3], versions):
        dealt = [seed for one in several for seed in dealt_to(one, several, SEEDS)]
        assert dealt == list(range(SEEDS))


@pytest.mark.parametrize(
    "line",
    ["async def test_it() -> None:", "import ssl", "from threading import Thread", "    import gc"],
)
def test_a_test_of_what_differs_is_known_by_its_text(line: str) -> None:
    assert differs(f'"""It."""\n\n{line}\n')


@pytest.mark.parametrize("line", ["import struct", "# import ssl", "from sslly import it"])
def test_a_pure_test_does_not_run_on_each_python(line: str) -> None:
    assert not differs(f'"""It."""\n\n{line}\n')


def test_what_meets_sockets_and_loops_is_among_those_that_differ() -> None:
    chosen = units_that_differ()
    for part in UNITS:
        assert any(file.startswith(part) for file in chosen)
    for file in ("protos/test_compat.py", "protos/test_rpc.py", "client/test_session.py"):
        assert f"tests/unit/{file}" in chosen


@pytest.mark.parametrize(
    "line", ["import ssl", "pytestmark = pytest.mark.both_loops", "from semel.protos import compat"]
)
def test_what_meets_the_system_is_not_dealt_out(line: str) -> None:
    assert differs_most(f'"""It."""\n\n{line}\n')
    assert not differs_most("import asyncio\n\nasync def test_it() -> None:")


@pytest.mark.parametrize("turn", range(4))
def test_each_unit_of_what_differs_runs_on_one_of_the_pythons_or_on_all(turn: int) -> None:
    versions = ["3.11.2", "3.12.1", "3.13.0"]
    units = units_that_differ()
    dealt = Counter(file for one in versions for file in units_of(one, versions, turn))
    assert dealt.keys() == set(units)
    most = {file for file in units if differs_most((ROOT / file).read_text("utf-8"))}
    assert all(dealt[file] == (3 if file in most else 1) for file in units)
    assert 20 < len(most) < len(units) / 2
    assert units_of("3.11.2", versions[:1], turn) == units


def test_with_the_turn_each_unit_comes_to_each_python() -> None:
    versions = ["3.11.2", "3.12.1", "3.13.0"]
    seen = {file for turn in range(3) for file in units_of("3.12.1", versions, turn)}
    assert seen == set(units_that_differ())


def test_what_fails_on_another_python_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PYTHONS, "planted", sys.executable)
    assert "usage: ./run soak sim" in run("planted", "tests.soak", "sim", "--help")
    with pytest.raises(Unsuccessful, match="want --seeds A:B"):
        run_worlds("planted", "plain", range(5, 5), jobs=1)
    run_all_worlds("planted", range(5, 5))
    with pytest.raises(Unsuccessful, match="ValueError"):
        run("planted", "tests.pythons.worlds", "no number", "1")
    monkeypatch.setitem(PYTHONS, "planted", "")
    with pytest.raises(Unsuccessful, match="no environment could be made for Python planted"):
        run("planted", "pytest")


def test_a_failed_seed_is_told_with_how_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_chunk(seeds: range, *, more: tuple[str, ...]) -> tuple[object, list[object], object]:
        return Counter(), [(seeds[1], "it broke")] if "shared_memory" in more else [], {}

    monkeypatch.setattr(worlds, "run_chunk", run_chunk)
    assert worlds.main(["7", "9"]) == 1
    said = capsys.readouterr().out
    assert "seed 8 failed (./run soak sim --seeds 8:9 --shared-memory): it broke" in said
    assert "8 kinds of 2 seeds, 1 failed" in said
