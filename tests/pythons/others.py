"""The other supported Pythons of this machine, what runs on them, and how.

`./run test` and `./run soak pythons` look for Pythons, make an environment for each, and name them
in SEMEL_TEST_PYTHONS. What runs there has the priority of all other tests: with a lower one it
starved beside simulated clusters, until the limit of time for a test was over.

Not here: what of it runs in a test (`test_other_pythons.py`), and in a soak
(`tests/soak/pythons.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from semel.console import launcher

ROOT: Final = Path(__file__).parents[2]
UNITS: Final = tuple(f"tests/unit/{part}" for part in ("broker", "client", "controller", "protos"))
"""The units of everything that is replicated or that a client is made of."""
WORLDS: Final = ("tests/world/test_budget.py", "tests/world/test_machine.py")
_BUDGET: Final = "tests/world/test_budget.py::test_"
WORLDS_IN_SHORT: Final = (
    *(
        f"{_BUDGET}a_batch_stays_within_its_budget",
        f"{_BUDGET}only_bytes_rise_with_the_messages_of_a_batch",
    ),
    *(f"{_BUDGET}what_each_message_adds_stays_within_its_budget", WORLDS[1]),
)
"""Without the bugs that are planted to test the count: what a batch costs is all that differs."""
PROCESSES: Final = ("tests/integration/test_client_consumers.py",)
KINDS: Final = (
    *("plain", "controllers", "delays", "moves"),
    *("shared_memory", "splits", "transactions", "upgrades"),
)
"""Simulated clusters whose parts are in every program of the product. The kinds that are about
single programs run on the Python of all other tests."""
_DIFFERS: Final = re.compile(
    r"\basync def |\bboth_loops\b|^ *(?:import|from) "
    r"(?:asyncio|concurrent|contextvars|gc|mmap|multiprocessing|queue|select|signal|socket|sqlite3"
    r"|ssl|subprocess|threading|uvloop|weakref)\b",
    re.MULTILINE,
)
"""What a test of something that differs from Python to Python has in its text: event loops,
threads, processes, sockets, TLS, databases, shared memory and the collector of garbage."""
_DIFFERS_MOST: Final = re.compile(
    r"\bboth_loops\b|\bcompat\b|^ *(?:import|from) "
    r"(?:contextvars|gc|mmap|multiprocessing|select|signal|socket|sqlite3|ssl|uvloop|weakref)\b",
    re.MULTILINE,
)
"""What meets the interpreter or the system below it, and the stand-ins for what asyncio does wrong.
The other tests of what differs have coroutines or threads that meet fakes alone."""

PYTHONS: Final = dict(
    line.split(" ", 1) for line in os.environ.get("SEMEL_TEST_PYTHONS", "").splitlines()
)
"""Interpreter of the environment by version; "" where none could be made."""


class Unsuccessful(Exception):
    """A program on another Python failed; the message has the end of what it said."""


def run(version: str, *arguments: str) -> str:
    """What the program of that Python printed. Raises Unsuccessful if it failed, or if there is no
    environment."""
    python = PYTHONS[version]
    if not python:
        raise Unsuccessful(
            f"no environment could be made for Python {version}: see .setup-{version}.log"
        )
    command = [python, "-m", *arguments]
    outcome = subprocess.run(
        [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
        cwd=ROOT,
        env={**os.environ, "SEMEL_TEST_PYTHONS": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode != 0:
        end = "\n".join((outcome.stdout + outcome.stderr).splitlines()[-150:])
        raise Unsuccessful(f"Python {version}: {' '.join(arguments)}\n{end}")
    return outcome.stdout


def run_tests(version: str, tests: Sequence[str], base: Path) -> str:
    """Runs files or directories of tests on that Python, with their files below `base`."""
    return run(version, "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={base}", *tests)


def run_worlds(version: str, kind: str, seeds: range, jobs: int) -> None:
    """Runs simulated clusters of a kind on that Python. Raises Unsuccessful if a seed fails."""
    chosen = ("--seeds", f"{seeds.start}:{seeds.stop}", "--jobs", str(jobs))
    told = run(version, "tests.soak", "sim", *chosen, *option_of(kind))
    if f"{len(seeds)} seeds, 0 failed" not in told:
        raise Unsuccessful(f"Python {version}: not all of {len(seeds)} seeds ran: {told}")


def option_of(kind: str) -> tuple[str, ...]:
    """How `./run soak sim` is told the kind."""
    return () if kind == "plain" else (f"--{kind.replace('_', '-')}",)


def run_all_worlds(version: str, seeds: range) -> None:
    """Runs simulated clusters of each kind on that Python, in one process, since a process takes
    longer to start than a cluster to run. Raises Unsuccessful if a seed fails."""
    told = run(version, "tests.pythons.worlds", str(seeds.start), str(seeds.stop))
    if f"{len(KINDS)} kinds of {len(seeds)} seeds, 0 failed" not in told:
        raise Unsuccessful(f"Python {version}: not all of {len(seeds)} seeds ran: {told}")


def dealt_to(version: str, versions: Sequence[str], seeds: int) -> range:
    """The seeds of one version: together they have each seed once."""
    at = versions.index(version)
    return range(seeds * at // len(versions), seeds * (at + 1) // len(versions))


def units_that_differ() -> list[str]:
    """The files of UNITS that test something that differs from Python to Python."""
    files = (file for part in UNITS for file in sorted((ROOT / part).rglob("test_*.py")))
    return [str(file.relative_to(ROOT)) for file in files if differs(file.read_text("utf-8"))]


def units_of(version: str, versions: Sequence[str], turn: int) -> list[str]:
    """The files of `units_that_differ` that one of several Pythons runs: all that differ most, and
    its share of the others, of which each is on one of them. Which one goes round with `turn`."""
    units = units_that_differ()
    shared = [file for file in units if not differs_most((ROOT / file).read_text("utf-8"))]
    others = set(shared) - set(
        shared[(versions.index(version) + turn) % len(versions) :: len(versions)]
    )
    return [file for file in units if file not in others]


def differs_most(text: str) -> bool:
    """Whether a file of tests meets what differs from patch level to patch level."""
    return _DIFFERS_MOST.search(text) is not None


def differs(text: str) -> bool:
    """Whether a file of tests meets what differs from Python to Python."""
    return _DIFFERS.search(text) is not None
