"""The tests that may fail on one Python alone, on every other supported one of this machine.

All tests run on the Python that pytest runs on. On the others run the units of what differs from
Python to Python (event loops, threads, sockets, TLS, databases), the budgets of a batch, one file
with real processes, and simulated clusters, whose seeds are dealt out over them, so that a machine
with many takes no longer. Where no other Python is, there is nothing to run here.

Not here: all units and many seeds on each of them, which is `./run soak pythons`
(docs/decisions/pythons.md has figures).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.pythons.others import (
    KINDS,
    PROCESSES,
    PYTHONS,
    UNITS,
    WORLDS,
    Unsuccessful,
    dealt_to,
    differs,
    run,
    run_tests,
    run_worlds,
    units_that_differ,
)

SEEDS: Final = 36
"""Number of seeds of each kind of simulated cluster, over all other Pythons."""
VERSIONS: Final = list(PYTHONS)

pytestmark = pytest.mark.timeout(1_800)  # of these a single one is a whole run of pytest


@pytest.mark.parametrize("version", VERSIONS)
class TestPython:
    __test__ = bool(VERSIONS)

    def test_units_of_what_differs(self, version: str, tmp_path: Path) -> None:
        run_tests(version, [*units_that_differ(), *WORLDS], tmp_path / "base")

    def test_processes(self, version: str, tmp_path: Path) -> None:
        run_tests(version, PROCESSES, tmp_path / "base")

    @pytest.mark.parametrize("kind", KINDS)
    def test_simulated_clusters(self, version: str, kind: str) -> None:
        run_worlds(version, kind, dealt_to(version, VERSIONS, SEEDS), jobs=1)


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


def test_what_fails_on_another_python_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PYTHONS, "planted", sys.executable)
    assert "usage: ./run soak sim" in run("planted", "tests.soak", "sim", "--help")
    with pytest.raises(Unsuccessful, match="want --seeds A:B"):
        run_worlds("planted", "plain", range(5, 5), jobs=1)
    monkeypatch.setitem(PYTHONS, "planted", "")
    with pytest.raises(Unsuccessful, match="no environment could be made for Python planted"):
        run("planted", "pytest")
