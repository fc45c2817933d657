"""For all tests: room on the disk, Hypothesis without wall-clock deadlines, a shared ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.kit import forking
from tests.kit.distribution import Pieces, in_order
from tests.kit.zookeeper import Server, running_server
from tools.demo.spark_copy import JAVA_OPTIONS

os.environ["SEMEL_ROUTES_DIRECTORY"] = ""  # nothing of a test stays in the user's files
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    # A Spark of a test ends before code that is compiled well pays: each of its JVMs, and its
    # launcher, takes half of the processor so. Set here, since all programs that a process of tests
    # starts have to have one environment to be forked.
    os.environ[variable] = JAVA_OPTIONS
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's job in the background. Programs under test would inherit that, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What the tests that run at one time leave on the disk: clusters of up to 700 MB, four at once.
ROOM_BYTES = 3 << 30

settings.register_profile(
    "semel", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("semel")


PYTHONS = "SEMEL_TEST_PYTHONS"
"""Set by `./run test` (tests/pythons)."""
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Nodes and clients run on uvloop where it is installed: what meets the loop's transports is
    marked `both_loops`, and the rest runs on asyncio's."""
    if item.get_closest_marker("both_loops"):
        return LOOPS
    return {"asyncio": LOOPS["asyncio"]}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all that Hypothesis draws in this run: drawn here, and told, so that a run can
    be repeated. The processes of xdist take it over with the other options."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(1 << 32))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """With which seed, and on which Pythons; both event loops are tested on each."""
    others = [line.split(" ")[0] for line in os.environ.get(PYTHONS, "").splitlines()]
    this = ".".join(map(str, sys.version_info[:3]))
    return [
        f"repeat what is drawn: --hypothesis-seed={config.option.hypothesis_seed}",
        f"Pythons: all tests on {this}; tests/pythons on {', '.join(others) or 'no other one'}",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What computes is spread over what waits (tests/kit/distribution.py)."""
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[node_id] for node_id in in_order(by_id)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Pieces:
    """What one process runs as a whole."""
    return Pieces(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A broker waits while its disk is full: tests on a full disk would hang, one by one."""
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < ROOM_BYTES and not session.config.option.collectonly:
        pytest.exit(
            f"the tests need {ROOM_BYTES >> 20} MiB of disk and {place} has {free >> 20} MiB left: "
            "free some, or set TMPDIR to a directory with more",
            returncode=1,
        )


@pytest.fixture(scope="module")
def module_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A directory for all tests of a module, kept if one of them failed, as with `tmp_path`."""
    failed = request.session.testsfailed
    directory = tmp_path_factory.mktemp("module")
    yield directory
    if request.session.testsfailed == failed:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def forked_programs() -> Iterator[None]:
    """Nodes and consoles are forks of processes that have imported them (tests/kit/forking.py)."""
    with forking.enabled():
        yield


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real ZooKeeper for all tests: each takes a chroot of its own and kills nothing."""
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
