"""The tests that matter most, on every other supported Python of this machine.

`./run test` looks for Pythons, makes an environment for each, and names them in SEMEL_TEST_PYTHONS;
all tests run on the one that pytest runs on, and these on the others: the units of everything that
is replicated or that a client is made of, one file with real processes, and simulated clusters.
Where no other Python is, there is nothing to run here.

Each kind of simulated cluster has SEEDS seeds, which are dealt out over the other Pythons, so that
a machine with many takes no longer (docs/decisions/pythons.md has figures). All of it has a lower
priority: it takes what tests that wait for processes leave of the cores. Not the lowest: beside
programs of other people on the same cores it would hardly run at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from semel.console import launcher

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 300
UNITS: Final = (
    *("tests/unit/broker", "tests/unit/client", "tests/unit/controller", "tests/unit/protos"),
    *("tests/world/test_budget.py", "tests/world/test_machine.py"),
)
KINDS: Final = (
    *("plain", "controllers", "delays", "moves"),
    *("shared_memory", "splits", "transactions", "upgrades"),
)
"""Simulated clusters whose parts are in every program of the product. The kinds that are about
single programs run on the Python of all other tests."""
PROCESSES: Final = ("tests/integration/test_client_consumers.py",)

PYTHONS: Final = dict(
    line.split(" ", 1) for line in os.environ.get("SEMEL_TEST_PYTHONS", "").splitlines()
)
"""Interpreter of the environment by version; "" where none could be made."""
VERSIONS: Final = list(PYTHONS)

pytestmark = pytest.mark.timeout(3600)  # of these a single one is a whole run of pytest


def run(version: str, *arguments: str) -> str:
    """What the program of that Python printed; fails with its end if that failed."""
    python = PYTHONS[version]
    assert python, f"no environment could be made for Python {version}: see .setup.log"
    command = ["nice", "-n", "5", python, "-m", *arguments]
    outcome = subprocess.run(
        [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), "/usr/bin/env", *command],
        cwd=ROOT,
        env={**os.environ, "SEMEL_TEST_PYTHONS": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        end = "\n".join((outcome.stdout + outcome.stderr).splitlines()[-150:])
        pytest.fail(f"Python {version}: {' '.join(arguments)}\n{end}", pytrace=False)
    return outcome.stdout


def dealt_to(version: str, versions: list[str], seeds: int) -> range:
    """The seeds of one version: together they have each seed once."""
    at = versions.index(version)
    return range(seeds * at // len(versions), seeds * (at + 1) // len(versions))


@pytest.mark.parametrize("version", VERSIONS)
class TestPython:
    __test__ = bool(VERSIONS)

    @pytest.mark.parametrize("tests", [UNITS, PROCESSES], ids=["units", "processes"])
    def test_tests(self, version: str, tests: tuple[str, ...], tmp_path: Path) -> None:
        base = f"--basetemp={tmp_path / 'base'}"
        run(version, "pytest", "-q", "-p", "no:cacheprovider", base, *tests)

    @pytest.mark.parametrize("part", KINDS)
    def test_simulated_clusters(self, version: str, part: str) -> None:
        seeds = dealt_to(version, VERSIONS, SEEDS)
        options = [] if part == "plain" else [f"--{part.replace('_', '-')}"]
        jobs = str(os.cpu_count() or 1)
        chosen = f"{seeds.start}:{seeds.stop}"
        told = run(version, "tests.soak", "sim", "--seeds", chosen, "--jobs", jobs, *options)
        assert f"{len(seeds)} seeds, 0 failed" in told


def test_each_seed_runs_on_one_of_the_pythons() -> None:
    versions = ["3.11.2", "3.12.1", "3.13.0", "3.14.0"]
    for several in (versions[:1], versions[:3], versions):
        dealt = [seed for one in several for seed in dealt_to(one, several, SEEDS)]
        assert dealt == list(range(SEEDS))


def test_what_fails_on_another_python_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PYTHONS, "planted", sys.executable)
    assert "usage: ./run soak sim" in run("planted", "tests.soak", "sim", "--help")
    with pytest.raises(pytest.fail.Exception, match="want --seeds A:B"):
        run("planted", "tests.soak", "sim", "--seeds", "5:5")
    monkeypatch.setitem(PYTHONS, "planted", "")
    with pytest.raises(AssertionError, match="no environment could be made for Python planted"):
        run("planted", "pytest")
