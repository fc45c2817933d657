"""A real load survives SIGKILL of the master, of all brokers, of the loader, of the controller.

Each test ends with `semel verify --exactly-once` and a comparison with the source file. Each proves
that its fault bit: the process ended in the middle of the load, and another had to do its work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.loading import (
    create_topic,
    done,
    done_of,
    finish,
    make_source,
    prove,
    start_loader,
    wait_share,
)
from tests.kit.up_process import UpNode, UpProcess
from tests.kit.waiting import until
from tools.demo.acks import await_master
from tools.demo.source import Source
from tools.demo.stage import Actor, Stage

LINES = 60_000
LOAD_S = 8


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "cluster") as process:
        yield process


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return make_source(tmp_path / "source", lines=LINES, seed=7)


def begin(up: UpProcess, stage: Stage, source: Source) -> Actor:
    """A loader that has stored a quarter of the file and needs seconds for the rest."""
    create_topic(up.bootstrap)
    loader = start_loader(stage, up.bootstrap, source, seconds=LOAD_S)
    wait_share(loader, source, 0.25)
    return loader


def wait_end(up: UpProcess, node: UpNode, pid: int) -> None:
    """Waits until the supervisor saw that process end, and has started another."""
    up.wait_event("exited", id=node.id, kind="broker", pid=pid, timeout=5)
    up.wait_event("started", id=node.id, kind="broker", timeout=10)


def wait_next_master(loader: Actor, nodes: list[UpNode], *, term: int) -> None:
    """Waits until a master of a newer term acknowledged something."""
    elected = await_master([node.address for node in nodes], newer_than=term, timeout=30)
    assert elected is not None, f"no master after term {term}"
    before = done(loader)
    loader.wait_for(
        lambda said: said.time >= elected.time and done_of(said.line) > before,
        30,
        "an acknowledgement by the new master",
    )


def check_result(result: dict[str, int]) -> None:
    assert result["read"] == LINES
    assert done_of(result) == LINES


def test_the_master_is_killed(up: UpProcess, stage: Stage, source: Source, tmp_path: Path) -> None:
    loader = begin(up, stage, source)
    group = up.group()
    master, term = up.node(group.master), group.term
    assert loader.running
    pid = up.kill(master)
    wait_next_master(loader, [node for node in up.brokers if node is not master], term=term)
    wait_end(up, master, pid)
    check_result(finish(loader))
    assert up.term() > term
    up.wait_all_alive()
    prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")


def test_all_brokers_are_killed(
    up: UpProcess, stage: Stage, source: Source, tmp_path: Path
) -> None:
    loader = begin(up, stage, source)
    term = up.term()
    assert loader.running
    nodes = up.brokers
    pids = [up.kill(node) for node in nodes]
    wait_next_master(loader, nodes, term=term)
    for node, pid in zip(nodes, pids, strict=True):
        wait_end(up, node, pid)
    check_result(finish(loader))
    up.wait_all_alive()
    prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")


def test_the_loader_is_killed_again_and_again(
    up: UpProcess, stage: Stage, source: Source, tmp_path: Path
) -> None:
    loader = begin(up, stage, source)
    for life in range(3):
        loader.kill()
        assert 0 < done(loader) < LINES
        before = done(loader)
        loader = start_loader(stage, up.bootstrap, source, seconds=LOAD_S, name=f"loader-{life}")
        wait_share(loader, source, 0.4 + 0.15 * life)
        assert loader.said[-1].line["skipped"] > 0
        assert done(loader) >= before * 0.9
    result = finish(loader)
    check_result(result)
    assert result["skipped"] > LINES // 2
    again = finish(start_loader(stage, up.bootstrap, source, seconds=0.1, name="again"))
    assert (again["stored"], again["skipped"]) == (0, LINES)
    prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")


def test_the_controller_is_killed_and_nothing_waits_for_it(
    tmp_path: Path, stage: Stage, source: Source
) -> None:
    with UpProcess(tmp_path / "cluster", "--no-restart") as up:
        loader = begin(up, stage, source)
        controller = up.node(1, "controller")
        pid = up.kill(controller)
        up.wait_event("exited", kind="controller", pid=pid, timeout=5)
        check_result(finish(loader))
        assert up.node(1, "controller").pid is None, "it came back and proved nothing"
        up.stop()
        up.start()
        prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")


def test_the_master_is_paused_and_comes_back(
    up: UpProcess, stage: Stage, source: Source, tmp_path: Path
) -> None:
    loader = begin(up, stage, source)
    group = up.group()
    master, term = up.node(group.master), group.term
    assert master.pid is not None
    os.kill(master.pid, signal.SIGSTOP)
    try:
        until(lambda: up.term() > term, 15, "another master")
        wait_share(loader, source, 0.6)
    finally:
        os.kill(master.pid, signal.SIGCONT)
    check_result(finish(loader))
    up.wait_all_alive()
    prove(up.bootstrap, source, nodes=3, scratch=tmp_path / "rebuilt")
